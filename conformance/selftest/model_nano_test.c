/* model_nano_test.c: gpt-nano-sort, a trained GPT-2, against every tensor that PyTorch recorded (f32), and the ids it
 * sorts (fixtures/models/gpt-nano-sort). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "model_driver.h"

#define NANO ASSAY_SOURCE_DIR "/fixtures/models/gpt-nano-sort/"

enum { B = 3, T = 11, C = 48, H = 3, D = 16, V = 3, TOKENS = B * T };

/* PyTorch's f32 against f64: 24 bits of the largest term of each sum, over three layers. */
static const double f32_bound = 2e-6;

static assay_error error;
static assay_model_config config;
static assay_model_weights weights;
static json_reader *reader;
static const json_value *manifest; /* names the recorded tensors */
static float *recorded;
static int32_t ids[B][T];

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

static const json_value *read_json(const char *path) {
  size_t size = 0;
  char *text = read_all(path, &size);
  const json_value *root = NULL;
  cr_assert_eq(json_parse(reader, text, size, &root, &error), ASSAY_OK, "%s", error.text);
  free(text);
  return root;
}

/* Offset, in floats, of a tensor of a manifest. */
static int64_t find(const json_value *root, const char *name) {
  for (const json_value *t = json_member(root, "tensors")->child; t != NULL; t = t->next)
    if (strcmp(json_text(t, "name", ""), name) == 0) return json_integer(t, "offset", -1) / (int64_t)sizeof(float);
  cr_assert_fail("%s: not in the manifest", name);
  return -1;
}

/* Its name in the file, from ours: "layers.1.attn.proj.w" is "h.1.attn.c_proj.weight". */
static void name_in_file(const char *name, char *out, size_t room) {
  static const char *const pair[][2] = {{"embed.w", "wte.weight"},           {"embed_pos.w", "wpe.weight"},
                                        {"final.g", "ln_f.weight"},          {"final.b", "ln_f.bias"},
                                        {"head.w", "lm_head.weight"},        {"attn.pre.g", "ln_1.weight"},
                                        {"attn.pre.b", "ln_1.bias"},         {"attn.qkv.w", "attn.c_attn.weight"},
                                        {"attn.qkv.b", "attn.c_attn.bias"},  {"attn.proj.w", "attn.c_proj.weight"},
                                        {"attn.proj.b", "attn.c_proj.bias"}, {"mlp.pre.g", "ln_2.weight"},
                                        {"mlp.pre.b", "ln_2.bias"},          {"mlp.up.w", "mlp.c_fc.weight"},
                                        {"mlp.up.b", "mlp.c_fc.bias"},       {"mlp.down.w", "mlp.c_proj.weight"},
                                        {"mlp.down.b", "mlp.c_proj.bias"}};
  const bool layered = strncmp(name, "layers.", 7) == 0;
  const char *rest = layered ? name + strlen("layers.0.") : name;
  char layer[8] = "";
  if (layered) (void)snprintf(layer, sizeof layer, "h.%c.", name[strlen("layers.")]);
  for (size_t i = 0; i < sizeof pair / sizeof pair[0]; ++i)
    if (strcmp(rest, pair[i][0]) == 0) (void)snprintf(out, room, "%s%s", layer, pair[i][1]);
}

static void setup(void) {
  config = assay_model_production(ASSAY_GPT2);
  config.layers = 3;
  config.hidden = C;
  config.heads = config.kv_heads = H;
  config.head_size = D;
  config.intermediate = 4 * C;
  config.vocab = V;
  config.max_pos = T;
  config.tied_head = false;
  config.weight_dtype = config.act_dtype = config.kv_dtype = ASSAY_F32;
  config.block_size = 8;
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &error), ASSAY_OK, "%s", error.text);
  reader = json_open();
  const json_value *root = read_json(NANO "manifest.json");
  size_t size = 0;
  float *file = read_all(NANO "weights_f32.bin", &size);
  assay_weight_spec spec;
  for (int32_t i = 0; assay_model_weight_spec(&config, i, &spec); ++i) {
    char name[64] = "";
    name_in_file(spec.name, name, sizeof name);
    memcpy(weights.tensor[i].data, file + find(root, name), (size_t)(spec.shape[0] * spec.shape[1]) * sizeof *file);
  }
  free(file);
  manifest = read_json(NANO "golden_pytorch_manifest.json");
  recorded = read_all(NANO "golden_pytorch_f32.bin", &size);
  int64_t b = 0;
  for (const json_value *row = json_member(manifest, "batch_idx")->child; row != NULL; row = row->next, ++b) {
    int64_t t = 0;
    for (const json_value *id = row->child; id != NULL; id = id->next)
      ids[b][t++] = (int32_t)id->number;
    cr_assert(b < B && t == T);
  }
}

static void tidy(void) {
  assay_model_weights_free(&weights);
  json_close(reader);
  free(recorded);
}

TestSuite(nano, .init = setup, .fini = tidy);

/* ---- every recorded tensor ---- */

typedef struct pair {
  const char *tap, *name;
  bool by_head; /* recorded as [B, H, T, ...]; rows here are [B, T, H, ...] */
} pair;

static const pair pairs[] = {{"embed", "x", false},
                             {"layers.0.attn.pre", "ln1", false},
                             {"layers.0.attn.qkv", "qkv", false},
                             {"layers.0.attn.q", "q", true},
                             {"layers.0.attn.k", "k", true},
                             {"layers.0.attn.v", "v", true},
                             {"layers.0.attn.s", "att", true},
                             {"layers.0.attn.p", "attSm", true},
                             {"layers.0.attn.out", "y", false},
                             {"layers.0.attn.proj.biased", "yProj", false},
                             {"layers.0.attn.residual", "attnResid", false},
                             {"layers.0.mlp.pre", "ln2", false},
                             {"layers.0.mlp.up.biased", "fc", false},
                             {"layers.0.mlp.act", "gelu", false},
                             {"layers.0.mlp.down.biased", "mlp", false},
                             {"layers.0.mlp.residual", "mlpResid", false},
                             {"layers.0.mlp.residual", "block0", false},
                             {"layers.1.mlp.residual", "block1", false},
                             {"layers.2.mlp.residual", "block2", false},
                             {"final", "ln_f", false},
                             {"logits", "lm_head", false}};
enum { PAIRS = sizeof pairs / sizeof pairs[0] };
static bool compared[PAIRS];
static double worst;

/* Relative to the larger of 1 and the value; -Inf equals itself. */
static void compare(const pair *p, int64_t rows, int64_t width, const double *value) {
  const float *golden = recorded + find(manifest, p->name);
  const int64_t inner = p->by_head ? rows * width / (TOKENS * H) : 1;
  for (int64_t i = 0; i < rows * width; ++i) {
    int64_t j = i;
    if (p->by_head) {
      const int64_t c = i % inner, h = i / inner % H, t = i / inner / H % T, b = i / inner / H / T;
      j = ((b * H + h) * T + t) * inner + c;
    }
    if ((double)golden[j] == value[i]) continue;
    const double off = fabs((double)golden[j] - value[i]) / fmax(1, fabs(value[i]));
    if (!(off <= worst)) worst = off;
    cr_assert(off <= f32_bound, "%s (%s), element %lld: %.9g, recorded %.9g", p->tap, p->name, (long long)i, value[i],
              (double)golden[j]);
  }
}

static void take(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  (void)context;
  for (int i = 0; i < PAIRS; ++i)
    if (strcmp(name, pairs[i].tap) == 0) {
      compare(&pairs[i], rows, width, value);
      compared[i] = true;
    }
}

Test(nano, every_recorded_tensor) {
  const assay_model_taps taps = {NULL, NULL, take, NULL};
  model_driver d;
  driver_open(&d, &config, &weights, 8, TOKENS, B, ASSAY_MODEL_EXACT);
  for (int64_t b = 0; b < B; ++b)
    driver_add(&d, driver_request(&d, NULL, 0, NULL), ids[b], T, true);
  const double *logits = driver_step(&d, &taps);
  for (int i = 0; i < PAIRS; ++i)
    cr_expect(compared[i], "%s: no tap", pairs[i].tap);
  double probability[TOKENS * V];
  for (int64_t n = 0; n < TOKENS; ++n) {
    double sum = 0;
    for (int64_t c = 0; c < V; ++c)
      sum += exp(logits[n * V + c]);
    for (int64_t c = 0; c < V; ++c)
      probability[n * V + c] = exp(logits[n * V + c]) / sum;
  }
  compare(&(pair){"softmax of logits", "probs", false}, TOKENS, V, probability);
  cr_log_info("largest difference: %g", worst);
  driver_close(&d);
}

/* ---- what it is for ---- */

Test(nano, sorts) {
  json_reader *other = json_open();
  size_t size = 0;
  char *text = read_all(NANO "golden_greedy.json", &size);
  const json_value *root = NULL;
  cr_assert_eq(json_parse(other, text, size, &root, &error), ASSAY_OK, "%s", error.text);
  model_driver d;
  driver_open(&d, &config, &weights, 8, 8, 1, ASSAY_MODEL_MIRROR);
  int64_t cases = 0;
  for (const json_value *entry = json_member(root, "cases")->child; entry != NULL; entry = entry->next, ++cases) {
    int32_t sequence[12];
    int64_t n = 0;
    for (const json_value *id = json_member(entry, "prompt_ids")->child; id != NULL; id = id->next)
      sequence[n++] = (int32_t)id->number;
    const int32_t request = driver_request(&d, NULL, 0, NULL);
    driver_add(&d, request, sequence, n, false);
    for (const json_value *id = json_member(entry, "generated_ids")->child; id != NULL; id = id->next) {
      const int32_t next = driver_argmax(driver_step(&d, NULL), V);
      cr_assert_eq(next, (int32_t)id->number, "case %lld", (long long)cases);
      if (id->next != NULL) driver_add(&d, request, &next, 1, false);
    }
    cr_assert_eq(assay_kv_release(d.kv, request, &error), ASSAY_OK);
  }
  cr_expect_eq(cases, 81);
  driver_close(&d);
  json_close(other);
  free(text);
}
