/* model_step_test.c: what a step is refused for, with nothing written; and mirror mode: every stored value is one that
 * its storage type has, and near the exact one. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "model_driver.h"
#include "model_small.h"

static assay_error error;
static assay_model_config config;
static assay_model_weights weights;
static model_driver d;

static void open_model(int number, assay_model_mode mode) {
  config = small_model(number);
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_seed(&config, 3, &weights, &error), ASSAY_OK, "%s", error.text);
  driver_open(&d, &config, &weights, 16, 64, 4, mode);
}

static void close_model(void) {
  driver_close(&d);
  assay_model_weights_free(&weights);
}

/* ---- refusals ---- */

static assay_model_batch batch;

static void refused(const char *says) {
  assay_error found = {""};
  double logits[4 * 300];
  logits[0] = 12345;
  cr_expect_eq(d.backend->forward(d.session, &batch, logits, NULL, &found), ASSAY_ERR_INPUT, "%s: not refused", says);
  cr_expect(strstr(found.text, says) != NULL, "wanted '%s': %s", says, found.text);
  cr_expect_eq(logits[0], 12345, "%s: logits were written", says);
}

/* Request 0: 11 tokens, of which 3 are new; request 1: 5 new tokens; then a pad row. Each refusal spoils one thing;
 * after all of them the step gives what it gives in a session that never saw them. */
Test(step, refusals_write_nothing) {
  int32_t ids[16];
  double *clean = NULL;
  for (int spoiled = 0; spoiled < 2; ++spoiled) {
    open_model(1, ASSAY_MODEL_EXACT);
    assay_model_prompt(&config, 3, 0, 16, ids);
    const int32_t a = driver_request(&d, NULL, 0, NULL), b = driver_request(&d, NULL, 0, NULL);
    driver_add(&d, a, ids, 8, false);
    (void)driver_step(&d, NULL);
    driver_add(&d, a, ids + 8, 3, false);
    driver_add(&d, b, ids, 5, true);
    driver_add_pad(&d);
    batch = driver_batch(&d);
    const int64_t blocks = batch.max_blocks;
#define SPOIL(place, value, says)                                                                                      \
  do {                                                                                                                 \
    const int64_t kept = (int64_t)(place);                                                                             \
    (place) = (value);                                                                                                 \
    refused(says);                                                                                                     \
    (place) = (__typeof__(place))kept;                                                                                 \
  } while (0)
    if (spoiled) {
      SPOIL(d.ids[2], -1, "row 2: id: found -1, allowed 0 to 299");
      SPOIL(d.ids[7], 300, "row 7: id");
      SPOIL(d.slots[0], -1, "row 0: slot");
      SPOIL(d.slots[0], d.slots[0] + 1, "row 0: slot");
      SPOIL(d.slots[8], 0, "row 8: slot of a pad row");
      SPOIL(d.kv_len[0], 2, "request 0: kv_len");
      SPOIL(d.kv_len[0], 257, "request 0: kv_len");
      SPOIL(d.kv_len[1], -5, "request 1: kv_len");
      SPOIL(d.kv_len[1], 0, "request 1: kv_len");
      SPOIL(d.table[0], 16, "request 0: block table entry: found 16, allowed 0 to 15");
      SPOIL(d.table[blocks], -1, "request 1: block table entry");
      SPOIL(d.cu_q[0], 1, "cu_q");
      SPOIL(d.cu_q[1], 9, "request 1: cu_q");
      SPOIL(d.cu_q[3], 65, "request 2: cu_q");
      SPOIL(d.logit_rows[0], 9, "logit 0: row");
      SPOIL(d.logit_rows[5], -1, "logit 5: row");
      SPOIL(batch.max_blocks, 1, "request 0: blocks of kv_len");
      SPOIL(batch.requests, 5, "requests");
      SPOIL(batch.requests, -1, "requests");
      SPOIL(batch.logit_count, 65, "logit_count");
      SPOIL(batch.copy_count, -1, "copy_count");
      /* Request 1 writes where request 0 does. */
      const int32_t block = d.table[blocks];
      const int64_t slots[5] = {d.slots[3], d.slots[4], d.slots[5], d.slots[6], d.slots[7]};
      d.table[blocks] = d.table[1];
      for (int i = 0; i < 5; ++i)
        d.slots[3 + i] = d.table[1] * config.block_size + i;
      refused("row 3: slot");
      d.table[blocks] = block;
      memcpy(d.slots + 3, slots, sizeof slots);
      d.copies[0] = (assay_kv_copy){0, 16};
      batch.copy_count = 1;
      refused("copy 0: target: found 16");
      d.copies[0] = (assay_kv_copy){-1, 3};
      refused("copy 0: source: found -1");
      d.copies[0] = (assay_kv_copy){3, 3};
      refused("copy 0: target 3 is also the source of copy 0");
      d.copies[0] = (assay_kv_copy){0, 9};
      d.copies[1] = (assay_kv_copy){1, 9};
      batch.copy_count = 2;
      refused("copy 0: target 9 is also the target of copy 1");
    }
    const size_t bytes = sizeof(double) * (size_t)(6 * config.vocab);
    const double *logits = driver_step(&d, NULL);
    if (!spoiled) {
      clean = malloc(bytes);
      memcpy(clean, logits, bytes);
    } else {
      cr_expect_arr_eq(logits, clean, bytes);
    }
    close_model();
  }
  free(clean);
}

/* Two requests with states and a pad row. */
Test(step, states_are_refused) {
  int32_t ids[16];
  open_model(12, ASSAY_MODEL_EXACT);
  assay_model_prompt(&config, 3, 0, 16, ids);
  const int32_t a = driver_request(&d, NULL, 0, NULL), b = driver_request(&d, NULL, 0, NULL);
  driver_add(&d, a, ids, 3, false);
  driver_add(&d, b, ids, 5, false);
  driver_add_pad(&d);
  batch = driver_batch(&d);
  SPOIL(d.states[0], -1, "request 0: state: found -1, allowed 0 to 23");
  SPOIL(d.states[1], 24, "request 1: state: found 24, allowed 0 to 23");
  SPOIL(d.states[1], d.states[0], "request 1: state 0: another request of the same step has it");
  SPOIL(d.states[2], 5, "request 2: state of a pad row: found 5, allowed -1 to -1");
  static const int32_t pairs[4][4] = {{24, 1, 4, 5}, {1, -1, 4, 5}, {7, 8, 8, 9}, {7, 8, 9, 8}};
  static const char *const says[4] = {"state copy 0: source: found 24", "state copy 0: target: found -1",
                                      "state copy 0: target 8 is also the source of state copy 1",
                                      "state copy 0: target 8 is also the target of state copy 1"};
  batch.state_copy_count = 2;
  for (int i = 0; i < 4; ++i) {
    batch.state_copies = pairs[i];
    refused(says[i]);
  }
  batch.state_copy_count = 25;
  refused("state_copy_count: found 25, allowed 0 to 24");
  batch.state_copy_count = 0;
  batch.states = NULL;
  refused("states: found none, allowed a slot for each request");
  close_model();
}

Test(step, sessions_are_refused) {
  open_model(0, ASSAY_MODEL_EXACT);
  assay_model_session *session = NULL;
  static const struct {
    assay_model_limits limits;
    const char *says;
  } bad[] = {{{0, 1, 1, 1, 0}, "num_blocks"}, {{(int64_t)1 << 40, 1, 1, 1, 0}, "num_blocks"},
             {{1, 0, 1, 1, 0}, "max_tokens"}, {{1, 1, -1, 1, 0}, "max_requests"},
             {{1, 1, 1, 2, 0}, "max_logits"}, {{1, 1, 1, 1, 1}, "num_states: found 1, allowed 0 to 0"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    assay_error found = {""};
    cr_expect_eq(d.backend->open(&config, &weights, &bad[i].limits, ASSAY_MODEL_EXACT, &session, &found),
                 ASSAY_ERR_INPUT);
    cr_expect(strstr(found.text, bad[i].says) != NULL, "%s: %s", bad[i].says, found.text);
    cr_expect_null(session);
  }
  d.backend->close(NULL);
  close_model();
}

/* ---- mirror mode ---- */

enum { KEPT = 128 };
typedef struct kept {
  char name[ASSAY_MODEL_NAME];
  int64_t count;
  double *value;
} kept;
static kept exact[KEPT];
static int64_t taken;
static bool comparing;

static double rms(const double *a, const double *b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += (a[i] - (b != NULL ? b[i] : 0)) * (a[i] - (b != NULL ? b[i] : 0));
  return sqrt(sum / (double)count);
}

/* Relative to the tap's size; a path of three layers with a rounding or two at each of its operators. */
static void take(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  double *most = context;
  kept *k = &exact[taken++];
  cr_assert_leq(taken, KEPT);
  if (!comparing) {
    (void)snprintf(k->name, sizeof k->name, "%s", name);
    k->count = rows * width;
    k->value = malloc(sizeof(double) * (size_t)k->count);
    memcpy(k->value, value, sizeof(double) * (size_t)k->count);
    return;
  }
  cr_assert(strcmp(name, k->name) == 0 && k->count == rows * width, "%s, %s", name, k->name);
  const bool scores = strstr(name, ".attn.s") != NULL || strstr(name, ".attn.p") != NULL;
  if (scores && (strcmp(strrchr(name, '.'), ".s") == 0 || strcmp(strrchr(name, '.'), ".p") == 0)) return;
  const bool f32 = strcmp(name, "logits") == 0 || strstr(name, ".router.weights") != NULL ||
                   strstr(name, ".delta.g") != NULL || strstr(name, ".delta.beta") != NULL ||
                   strstr(name, ".shared.weight") != NULL ||
                   (config.arch == ASSAY_DEEPSEEK_V3 && strstr(name, ".router") != NULL); /* its logits are f32 */
  const assay_dtype type = f32 ? ASSAY_F32 : config.act_dtype;
  if (strstr(name, ".biased") == NULL)
    for (int64_t i = 0; i < k->count; ++i)
      cr_assert_eq(value[i], assay_round_f64(value[i], type), "%s, element %lld", name, (long long)i);
  const double ratio = rms(value, k->value, k->count) / rms(k->value, NULL, k->count);
  if (!(ratio <= *most)) *most = ratio;
}

/* Rounding may exchange two experts: mirror mode takes over the choices of the exact run. */
static void choose(void *context, const char *name, int64_t rows, int64_t k, int32_t *ids) {
  (void)context;
  for (int64_t i = 0; i < KEPT && comparing; ++i)
    if (strcmp(exact[i].name, name) == 0)
      for (int64_t j = 0; j < rows * k; ++j)
        ids[j] = (int32_t)exact[i].value[j];
}

Test(step, mirror_mode_stores_what_fits) {
  for (int number = 0; number < REF_MODELS; ++number) {
    double most = 0;
    const assay_model_taps taps = {&most, NULL, take, choose};
    for (int mirror = 0; mirror < 2; ++mirror) {
      open_model(number, mirror ? ASSAY_MODEL_MIRROR : ASSAY_MODEL_EXACT);
      int32_t ids[40];
      assay_model_prompt(&config, 3, 0, 40, ids);
      taken = 0;
      comparing = mirror != 0;
      const int32_t request = driver_request(&d, NULL, 0, NULL);
      driver_add(&d, request, ids, 40, true);
      (void)driver_step(&d, &taps);
      close_model();
    }
    /* bf16 has 8 bits, f16 11, e4m3 4. */
    const double bound = config.kv_dtype == ASSAY_E4M3    ? 0.1
                         : config.act_dtype == ASSAY_BF16 ? 0.04
                         : config.act_dtype == ASSAY_F16  ? 0.005
                                                          : 1e-6;
    cr_expect(most > bound / 50 && most <= bound, "model %d: %g", number, most);
    for (int64_t i = 0; i < taken; ++i)
      free(exact[i].value);
    memset(exact, 0, sizeof exact);
  }
}

/* An fp8 cache is quantised with its head's scale in mirror mode alone. There, keys that are far too large become the
 * largest code times the scale. In f64 they stay as they are. */
Test(step, fp8_cache) {
  for (int mirror = 0; mirror < 2; ++mirror) {
    open_model(4, mirror ? ASSAY_MODEL_MIRROR : ASSAY_MODEL_EXACT);
    int32_t ids[24];
    double logits[2][300];
    assay_model_prompt(&config, 3, 0, 24, ids);
    for (int tiny = 0; tiny < 2; ++tiny) {
      for (int64_t layer = 0; layer < config.layers && tiny; ++layer) {
        char name[ASSAY_MODEL_NAME];
        (void)snprintf(name, sizeof name, "layers.%d.attn.v_scale", (int)layer);
        *(float *)weights.tensor[assay_model_weight_index(&config, name)].data = 0x1p-20f;
      }
      const int32_t request = driver_request(&d, NULL, 0, NULL);
      driver_add(&d, request, ids, 24, false);
      memcpy(logits[tiny], driver_step(&d, NULL), sizeof logits[0]);
    }
    const double off = rms(logits[0], logits[1], 300);
    cr_expect(mirror ? off > 0.01 : off == 0, "mirror %d: %g", mirror, off);
    close_model();
  }
}
