/* bits_fixture.c: reads products that a card has made, and holds the predictor against their bits. */
#include "bits_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/text/npy.h"
#include "core/json.h"

enum { PATH_ROOM = 1024 };

typedef struct bits_files {
  npy_tensor a, b, c, scale_a, scale_b;
} bits_files;

static bool load(const char *folder, const char *name, const char *part, const char *dtype, npy_tensor *to,
                 assay_error *error) {
  char path[PATH_ROOM];
  (void)snprintf(path, sizeof path, "%s/%s.%s.npy", folder, name, part);
  return npy_read(path, dtype, NULL, to, error) == ASSAY_OK;
}

static assay_tensor dense(const npy_tensor *t) {
  assay_tensor in_memory = {.data = t->data, .dtype = (assay_dtype)t->type, .rank = t->rank};
  int64_t stride = 1;
  for (int32_t i = t->rank - 1; i >= 0; --i) {
    in_memory.shape[i] = t->shape[i];
    in_memory.stride[i] = stride;
    stride *= t->shape[i];
  }
  return in_memory;
}

static assay_sums contract_of(const json_value *entry, bool scaled) {
  const char *const rule = json_text(entry, "rule", "");
  assay_sums sums = {.unit = strcmp(rule, "16-bit") == 0 ? ASSAY_SUM_WGMMA_16
                             : strcmp(rule, "fp8") == 0  ? ASSAY_SUM_WGMMA_8
                                                         : ASSAY_SUM_MMA_8,
                     .parts = json_integer(entry, "parts", 1),
                     .promote = json_integer(entry, "promote", 0),
                     .scale = scaled ? ASSAY_SCALE_FMA_PRODUCT : ASSAY_SCALE_NONE};
  return sums;
}

/* Seconds of the processor, so that other programs do not count. */
static double now(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool compare(const bits_files *files, const assay_sums *sums, bits_result *result, assay_error *error) {
  const assay_product product = {.a = dense(&files->a),
                                 .b = dense(&files->b),
                                 .scale_a = dense(&files->scale_a),
                                 .scale_b = dense(&files->scale_b)};
  const int64_t count = product.a.shape[0] * product.b.shape[0];
  uint32_t *const predicted = malloc((size_t)count * sizeof *predicted);
  const double begun = now();
  const bool done =
      predicted != NULL && files->c.count == count && assay_sums_predict(sums, &product, predicted, error) == ASSAY_OK;
  result->seconds = now() - begun;
  result->elements = count;
  result->products = count * product.a.shape[1];
  for (int64_t i = 0; done && i < count; ++i)
    result->differ += memcmp(predicted + i, files->c.data + 4 * i, 4) != 0;
  free(predicted);
  return done;
}

static bool one_product(const char *folder, const json_value *entry, void (*change)(assay_sums *), bits_result *result,
                        assay_error *error) {
  bits_files files = {.a.count = 0};
  char path[PATH_ROOM];
  *result = (bits_result){.elements = 0};
  (void)snprintf(result->name, sizeof result->name, "%s", entry->key);
  (void)snprintf(path, sizeof path, "%s/%s.sa.npy", folder, entry->key);
  FILE *const scales = fopen(path, "rb");
  const bool scaled = scales != NULL;
  if (scaled) (void)fclose(scales);
  assay_sums sums = contract_of(entry, scaled);
  if (change != NULL) change(&sums);
  const bool whole = load(folder, entry->key, "a", json_text(entry, "a", NULL), &files.a, error) &&
                     load(folder, entry->key, "b", json_text(entry, "b", NULL), &files.b, error) &&
                     load(folder, entry->key, "c", NULL, &files.c, error) &&
                     (!scaled || (load(folder, entry->key, "sa", NULL, &files.scale_a, error) &&
                                  load(folder, entry->key, "sb", NULL, &files.scale_b, error))) &&
                     compare(&files, &sums, result, error);
  npy_free(&files.a);
  npy_free(&files.b);
  npy_free(&files.c);
  npy_free(&files.scale_a);
  npy_free(&files.scale_b);
  return whole;
}

int32_t bits_compare(const char *folder, void (*change)(assay_sums *sums), bits_result result[BITS_PRODUCTS],
                     assay_error *error) {
  char path[PATH_ROOM], text[16384];
  (void)snprintf(path, sizeof path, "%s/index.json", folder);
  FILE *const file = fopen(path, "rb");
  if (file == NULL) {
    (void)assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read", path);
    return -1;
  }
  const size_t size = fread(text, 1, sizeof text, file);
  (void)fclose(file);
  json_reader *const reader = json_open();
  const json_value *index = NULL;
  bool good = reader != NULL && size < sizeof text && json_parse(reader, text, size, &index, error) == ASSAY_OK;
  int32_t count = 0;
  for (const json_value *at = good ? index->child : NULL; at != NULL && good && count < BITS_PRODUCTS; at = at->next)
    good = one_product(folder, at, change, &result[count++], error);
  if (reader != NULL) json_close(reader);
  return good ? count : -1;
}

/* ---- single steps -------------------------------------------------------------------------------------- */

/* A record: 32 bytes of a, 32 of b, then c and the card's sum, both f32. */
enum { STEP_FACTORS = 32, STEP_BYTES = 72 };

static const struct {
  const char *name;
  assay_sum_unit unit;
  assay_dtype a, b;
} step_files[] = {
    {"wgmma_bf16", ASSAY_SUM_WGMMA_16, ASSAY_BF16, ASSAY_BF16},
    {"mma_f16", ASSAY_SUM_MMA_16, ASSAY_F16, ASSAY_F16},
    {"wgmma_e5m2_e4m3", ASSAY_SUM_WGMMA_8, ASSAY_E5M2, ASSAY_E4M3},
    {"mma_e4m3", ASSAY_SUM_MMA_8, ASSAY_E4M3, ASSAY_E4M3},
    {"mma_f16_f16", ASSAY_SUM_MMA_16_F16, ASSAY_F16, ASSAY_F16},
    {"wgmma_tf32", ASSAY_SUM_WGMMA_TF32, ASSAY_F32, ASSAY_F32},
};

int32_t bits_steps(const char *folder, bits_result result[BITS_PRODUCTS], assay_error *error) {
  const int32_t files = (int32_t)(sizeof step_files / sizeof *step_files);
  for (int32_t f = 0; f < files; ++f) {
    char path[PATH_ROOM];
    npy_tensor steps = {.count = 0};
    result[f] = (bits_result){.elements = 0};
    (void)snprintf(result[f].name, sizeof result[f].name, "%s", step_files[f].name);
    (void)snprintf(path, sizeof path, "%s/steps_%s.npy", folder, step_files[f].name);
    if (npy_read(path, NULL, NULL, &steps, error) != ASSAY_OK) return -1;
    const int64_t depth = STEP_FACTORS / assay_dtype_size(step_files[f].a);
    bool done = steps.rank == 2 && steps.shape[1] == STEP_BYTES && steps.count > 0;
    for (int64_t i = 0; done && i < steps.shape[0]; ++i) {
      uint32_t factors[2][STEP_FACTORS / 4];
      float start;
      uint32_t sum, card;
      const unsigned char *const record = steps.data + i * STEP_BYTES;
      memcpy(factors, record, sizeof factors);
      memcpy(&start, record + sizeof factors, sizeof start);
      memcpy(&card, record + sizeof factors + sizeof start, sizeof card);
      const assay_sums sums = {.unit = step_files[f].unit};
      const assay_product product = {
          .a = {.data = factors[0], .dtype = step_files[f].a, .rank = 2, .shape = {1, depth}, .stride = {depth, 1}},
          .b = {.data = factors[1], .dtype = step_files[f].b, .rank = 2, .shape = {1, depth}, .stride = {depth, 1}},
          .start = {.data = &start, .dtype = ASSAY_F32, .rank = 2, .shape = {1, 1}, .stride = {1, 1}}};
      done = assay_sums_predict(&sums, &product, &sum, error) == ASSAY_OK;
      ++result[f].elements;
      result[f].products += depth;
      result[f].differ += done && sum != card;
    }
    npy_free(&steps);
    if (!done) return -1;
  }
  return files;
}
