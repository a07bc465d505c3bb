/* model_stories_test.c: stories260K, a trained model of the Llama family, against ids and logits that an independent
 * program recorded (fixtures/models/stories260K). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "model_driver.h"

#define STORIES ASSAY_SOURCE_DIR "/fixtures/models/stories260K/"

enum { V = 512, C = 64, LAYERS = 5, STEPS = 200, RECORDED = 204, PROMPTS = 5, HEADER = 7 };

static assay_error error;

static void *read_all(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file, "%s", path);
  cr_assert_eq(fseek(file, 0, SEEK_END), 0);
  *size = (size_t)ftell(file);
  rewind(file);
  void *memory = malloc(*size + 1);
  cr_assert_not_null(memory);
  cr_assert_eq(fread(memory, 1, *size, file), *size);
  (void)fclose(file);
  return memory;
}

/* ---- the checkpoint ---- */

static assay_model_config stories_config(int64_t block_size) {
  return (assay_model_config){.arch = ASSAY_QWEN3,
                              .layers = LAYERS,
                              .hidden = C,
                              .heads = 8,
                              .kv_heads = 4,
                              .head_size = 8,
                              .intermediate = 172,
                              .vocab = V,
                              .max_pos = 512,
                              .eps = 1e-5,
                              .rope_style = ASSAY_ROPE_INTERLEAVED,
                              .rope_base = 1e4,
                              .rotated = 8,
                              .tied_head = true,
                              .weight_dtype = ASSAY_F32,
                              .act_dtype = ASSAY_F32,
                              .kv_dtype = ASSAY_F32,
                              .block_size = block_size};
}

/* `count` elements of layer `layer` of a [layers, count] array of the file, into a weight from `offset` on. */
static void place(const assay_model_config *c, assay_model_weights *w, int64_t layer, const char *name, int64_t offset,
                  const float *from, int64_t count) {
  char full[ASSAY_MODEL_NAME];
  (void)snprintf(full, sizeof full, "layers.%d.%s", (int)layer, name);
  const int32_t index = assay_model_weight_index(c, full);
  cr_assert_geq(index, 0, "%s", full);
  memcpy((float *)w->tensor[index].data + offset, from + layer * count, (size_t)count * sizeof *from);
}

static void load_stories(const assay_model_config *c, assay_model_weights *w) {
  size_t size = 0;
  float *file = read_all(STORIES "stories260K.bin", &size);
  cr_assert_eq(assay_model_weights_alloc(c, w, &error), ASSAY_OK, "%s", error.text);
  const float *at = file + HEADER;
  memcpy(w->tensor[assay_model_weight_index(c, "embed.w")].data, at, V * C * sizeof *at);
  at += V * C;
  const struct {
    const char *name;
    int64_t offset, count;
  } part[] = {{"attn.pre.g", 0, C},
              {"attn.qkv.w", 0, C * C},
              {"attn.qkv.w", C * C, C * C / 2},
              {"attn.qkv.w", C * C * 3 / 2, C * C / 2},
              {"attn.proj.w", 0, C * C},
              {"mlp.pre.g", 0, C},
              {"mlp.up.w", 0, 172 * C},
              {"mlp.down.w", 0, 172 * C},
              {"mlp.up.w", 172 * C, 172 * C}};
  for (size_t i = 0; i < sizeof part / sizeof part[0]; at += LAYERS * part[i++].count)
    for (int64_t layer = 0; layer < LAYERS; ++layer)
      place(c, w, layer, part[i].name, part[i].offset, at, part[i].count);
  memcpy(w->tensor[assay_model_weight_index(c, "final.g")].data, at, C * sizeof *at);
  free(file);
}

/* ---- what was recorded ---- */

static int32_t prompt[PROMPTS][32], greedy[PROMPTS][STEPS];
static int64_t prompt_size[PROMPTS], once_case = -1;

static int64_t take_ids(const json_value *array, int32_t *ids, int64_t room) {
  int64_t n = 0;
  for (const json_value *id = array->child; id != NULL; id = id->next) {
    cr_assert_lt(n, room);
    ids[n++] = (int32_t)id->number;
  }
  return n;
}

static void load_ids(void) {
  size_t size = 0;
  char *text = read_all(STORIES "golden_greedy_f32.json", &size);
  json_reader *reader = json_open();
  const json_value *root = NULL;
  cr_assert_eq(json_parse(reader, text, size, &root, &error), ASSAY_OK, "%s", error.text);
  int64_t i = 0;
  for (const json_value *entry = json_member(root, "cases")->child; entry != NULL; entry = entry->next, ++i) {
    cr_assert_lt(i, PROMPTS);
    if (strcmp(json_text(entry, "prompt", ""), "Once upon a time") == 0) once_case = i;
    prompt_size[i] = take_ids(json_member(entry, "prompt_ids"), prompt[i], 32);
    cr_assert_eq(take_ids(json_member(entry, "generated_ids"), greedy[i], STEPS), STEPS);
  }
  cr_assert_eq(i, PROMPTS);
  json_close(reader);
  free(text);
}

static assay_model_weights weights;
static int32_t once[RECORDED];
static double *recorded;

static void setup(void) {
  const assay_model_config c = stories_config(16);
  load_stories(&c, &weights);
  load_ids();
  size_t size = 0;
  recorded = read_all(STORIES "golden_logits_once_f64.bin", &size);
  cr_assert_eq(size, sizeof(double) * RECORDED * V);
  for (int64_t i = 0; i < PROMPTS; ++i) {
    if (i != once_case) continue;
    memcpy(once, prompt[i], (size_t)prompt_size[i] * sizeof *once);
    memcpy(once + prompt_size[i], greedy[i], (size_t)(RECORDED - prompt_size[i]) * sizeof *once);
  }
  cr_assert_neq(once[0], 0);
}

static void tidy(void) {
  assay_model_weights_free(&weights);
  free(recorded);
}

TestSuite(stories, .init = setup, .fini = tidy);

static double farthest(const double *a, const double *b, int64_t count) {
  double most = 0;
  for (int64_t i = 0; i < count; ++i)
    if (!(fabs(a[i] - b[i]) <= most)) most = fabs(a[i] - b[i]);
  return most;
}

/* Block size 256 holds all of it in one block: contiguous. */
Test(stories, logits_in_one_prefill_and_in_chunks_contiguous_and_paged) {
  static const int64_t block_size[] = {8, 16, 64, 256}, chunk[] = {0, 1, 7, 16};
  double *logits = malloc(sizeof(double) * RECORDED * V);
  for (size_t b = 0; b < sizeof block_size / sizeof block_size[0]; ++b) {
    const assay_model_config c = stories_config(block_size[b]);
    model_driver d;
    driver_open(&d, &c, &weights, 4 * 256 / block_size[b], RECORDED, 4, ASSAY_MODEL_EXACT);
    for (size_t i = 0; i < sizeof chunk / sizeof chunk[0]; ++i) {
      driver_prompt(&d, once, RECORDED, chunk[i], logits);
      const double off = farthest(logits, recorded, RECORDED * V);
      cr_expect(off <= 1e-9, "block_size %lld, chunk %lld: %g", (long long)block_size[b], (long long)chunk[i], off);
    }
    driver_close(&d);
  }
  free(logits);
}

/* All five sequences side by side, `chunk` tokens of each in every step. */
Test(stories, logits_in_a_batch_of_five) {
  static const int64_t block_size[] = {8, 256}, chunk[] = {RECORDED, 1, 7, 16};
  for (size_t b = 0; b < sizeof block_size / sizeof block_size[0]; ++b) {
    const assay_model_config c = stories_config(block_size[b]);
    model_driver d;
    driver_open(&d, &c, &weights, 8 * PROMPTS * 256 / block_size[b], PROMPTS * 256, PROMPTS, ASSAY_MODEL_EXACT);
    for (size_t i = 0; i < sizeof chunk / sizeof chunk[0]; ++i) {
      int32_t request[PROMPTS];
      for (int64_t r = 0; r < PROMPTS; ++r)
        request[r] = driver_request(&d, NULL, 0, NULL);
      for (int64_t at = 0; at < RECORDED; at += chunk[i]) {
        int64_t before = 0; /* rows of logits of the requests before it */
        for (int64_t r = 0; r < PROMPTS; ++r) {
          if (r == once_case) before = d.logit_count;
          int32_t ids[32 + STEPS];
          memcpy(ids, prompt[r], (size_t)prompt_size[r] * sizeof *ids);
          memcpy(ids + prompt_size[r], greedy[r], sizeof greedy[r]);
          const int64_t size = prompt_size[r] + STEPS - 1, left = size - at;
          if (left > 0) driver_add(&d, request[r], ids + at, left < chunk[i] ? left : chunk[i], r == once_case);
        }
        const int64_t rows = RECORDED - at < chunk[i] ? RECORDED - at : chunk[i];
        const double *logits = driver_step(&d, NULL);
        const double off = farthest(logits + before * V, recorded + at * V, rows * V);
        cr_assert(off <= 1e-9, "block_size %lld, chunk %lld, from %lld: %g", (long long)block_size[b],
                  (long long)chunk[i], (long long)at, off);
      }
      for (int64_t r = 0; r < PROMPTS; ++r)
        cr_assert_eq(assay_kv_release(d.kv, request[r], &error), ASSAY_OK);
    }
    driver_close(&d);
  }
}

/* ---- residual streams ---- */

typedef struct residuals {
  const double *recorded;
  int64_t seen;
  double off;
} residuals;

static bool wants(void *context, const char *name) {
  (void)context;
  return strcmp(name, "embed") == 0 || strstr(name, ".mlp.residual") != NULL;
}

static void take(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  residuals *r = context;
  const int64_t stream = strcmp(name, "embed") == 0 ? 0 : 1 + name[strlen("layers.")] - '0';
  cr_assert(rows == RECORDED && width == C && stream == r->seen);
  const double off = farthest(value, r->recorded + stream * RECORDED * C, RECORDED * C);
  if (!(off <= r->off)) r->off = off;
  ++r->seen;
}

Test(stories, residual_streams) {
  size_t size = 0;
  double *streams = read_all(STORIES "golden_residual_once_f64.bin", &size);
  cr_assert_eq(size, sizeof(double) * (LAYERS + 1) * RECORDED * C);
  residuals r = {.recorded = streams};
  const assay_model_taps taps = {&r, wants, take, NULL};
  const assay_model_config c = stories_config(16);
  model_driver d;
  driver_open(&d, &c, &weights, 16, RECORDED, 1, ASSAY_MODEL_EXACT);
  driver_add(&d, driver_request(&d, NULL, 0, NULL), once, RECORDED, false);
  (void)driver_step(&d, &taps);
  cr_expect_eq(r.seen, LAYERS + 1);
  cr_expect(r.off <= 1e-9, "%g", r.off);
  driver_close(&d);
  free(streams);
}

/* ---- greedy ids ---- */

/* Prompts first .. first + count - 1 side by side: one prefill each in the same step, then decode steps of `count`
 * rows. The prompts differ in length, so that lengths differ all along. */
static void generate(model_driver *d, int64_t first, int64_t count, const char *what) {
  int32_t request[PROMPTS], next[PROMPTS] = {0};
  for (int64_t i = 0; i < count; ++i) {
    request[i] = driver_request(d, NULL, 0, NULL);
    driver_add(d, request[i], prompt[first + i], prompt_size[first + i], false);
  }
  for (int64_t step = 0;; ++step) {
    const double *logits = driver_step(d, NULL);
    for (int64_t i = 0; i < count; ++i) {
      next[i] = driver_argmax(logits + i * V, V);
      cr_assert_eq(next[i], greedy[first + i][step], "%s: prompt %lld, step %lld: %d, not %d", what,
                   (long long)(first + i), (long long)step, next[i], greedy[first + i][step]);
    }
    if (step + 1 == STEPS) break;
    for (int64_t i = 0; i < count; ++i)
      driver_add(d, request[i], &next[i], 1, false);
  }
  for (int64_t i = 0; i < count; ++i)
    cr_assert_eq(assay_kv_release(d->kv, request[i], &error), ASSAY_OK);
}

Test(stories, every_greedy_id_alone_and_in_a_batch) {
  static const int64_t block_size[] = {8, 256};
  for (size_t b = 0; b < sizeof block_size / sizeof block_size[0]; ++b)
    for (int mode = ASSAY_MODEL_EXACT; mode <= ASSAY_MODEL_MIRROR; ++mode) {
      const assay_model_config c = stories_config(block_size[b]);
      model_driver d;
      driver_open(&d, &c, &weights, PROMPTS * 256 / block_size[b], 128, PROMPTS, (assay_model_mode)mode);
      generate(&d, 0, PROMPTS, "batch of 5");
      for (int64_t i = 0; i < PROMPTS && mode == ASSAY_MODEL_EXACT; ++i)
        generate(&d, i, 1, "alone");
      driver_close(&d);
    }
}
