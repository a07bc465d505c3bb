/* simt_model_test.c: the launchers' forward pass on simt, stage by stage: no farther from f64 than 1.5 times what
 * rounding at the same places costs (mirror mode), over prefill, mixed steps with a pad row, a fork and decode. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/builtin.h"
#include "core/dtype.h"
#include "model_driver.h"
#include "model_small.h"

enum { MOST_TAPS = 1024, IDS = 40 };

static assay_error error;
static assay_model_config c;
static assay_model_weights w;
static int32_t ids[IDS];

/* Every stage of every step of one pass, in the order in which they came. */
typedef struct record {
  struct {
    char name[ASSAY_MODEL_NAME];
    int64_t count;
    double *value;
  } tap[MOST_TAPS];
  int64_t count;
} record;

static record exact, mirror, device;

/* Stages that only the reference has. */
static bool wants(void *context, const char *name) {
  const char *last = strrchr(name, '.');
  (void)context;
  return last == NULL || (strcmp(last, ".biased") != 0 && strcmp(last, ".s") != 0 && strcmp(last, ".p") != 0);
}

static void keep(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  record *r = context;
  cr_assert_lt(r->count, MOST_TAPS);
  (void)snprintf(r->tap[r->count].name, ASSAY_MODEL_NAME, "%s", name);
  r->tap[r->count].count = rows * width;
  r->tap[r->count].value = malloc((size_t)(rows * width) * sizeof *value);
  memcpy(r->tap[r->count++].value, value, (size_t)(rows * width) * sizeof *value);
}

static void forget(record *r) {
  for (int64_t i = 0; i < r->count; ++i)
    free(r->tap[i].value);
  r->count = 0;
}

static void run(const assay_model_backend *backend, assay_model_mode mode, record *r) {
  const assay_model_taps taps = {r, wants, keep};
  model_driver d;
  driver_open_on(&d, backend, &c, &w, 16, 64, 4, mode);
  const int32_t a = driver_request(&d, NULL, 0, NULL), b = driver_request(&d, NULL, 0, NULL);
  driver_add(&d, a, ids, 13, true);
  driver_add(&d, b, ids + 13, 7, false);
  (void)driver_step(&d, &taps); /* prefill */
  const int32_t e = driver_request(&d, NULL, 0, NULL);
  driver_add(&d, a, ids + 20, 1, false);
  driver_add(&d, b, ids + 21, 4, true);
  driver_add_pad(&d);
  driver_add(&d, e, ids + 25, 5, false);
  (void)driver_step(&d, &taps); /* mixed */
  int32_t forked = -1;
  cr_assert_eq(assay_kv_fork(d.kv, a, &forked, &error), ASSAY_OK, "%s", error.text);
  driver_add(&d, a, ids + 30, 1, false);
  driver_add(&d, forked, ids + 31, 1, false);
  driver_add_pad(&d);
  (void)driver_step(&d, &taps); /* decode, one of them behind a copied block */
  driver_close(&d);
}

static double rms(const double *x, const double *y, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += (x[i] - y[i]) * (x[i] - y[i]);
  return sqrt(sum / (double)count);
}

/* Stages out of bounds; the first is said. */
static int64_t compare(double limit, char *first, size_t size) {
  int64_t bad = 0;
  first[0] = '\0';
  cr_assert_eq(device.count, exact.count);
  cr_assert_eq(mirror.count, exact.count);
  for (int64_t i = 0; i < exact.count; ++i) {
    const int64_t n = exact.tap[i].count;
    cr_assert_str_eq(device.tap[i].name, exact.tap[i].name);
    cr_assert_eq(device.tap[i].count, n);
    double scale = 0;
    for (int64_t k = 0; k < n; ++k)
      scale += exact.tap[i].value[k] * exact.tap[i].value[k] / (double)n;
    const double floor = 4e-7 * sqrt(scale); /* f32 inside operators */
    const double allowed = limit * rms(mirror.tap[i].value, exact.tap[i].value, n) + floor;
    const double found = rms(device.tap[i].value, exact.tap[i].value, n);
    if (found <= allowed) continue;
    if (bad++ == 0)
      (void)snprintf(first, size, "%s: RMS of the error %.3g, allowed %.3g", exact.tap[i].name, found, allowed);
  }
  return bad;
}

static void open_model(int number) {
  c = small_model(number);
  c.weight_dtype = c.act_dtype;
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_seed(&c, 7, &w, &error), ASSAY_OK, "%s", error.text);
  assay_model_prompt(&c, 7, 0, IDS, ids);
}

static void close_model(void) {
  forget(&exact);
  forget(&mirror);
  forget(&device);
  assay_model_weights_free(&w);
}

static void setup(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(device, .init = setup);

Test(device, every_stage_is_as_near_as_rounding_allows) {
  char first[200];
  for (int number = 0; number < SMALL_MODELS; ++number) {
    open_model(number);
    run(assay_model_ref(), ASSAY_MODEL_EXACT, &exact);
    run(assay_model_ref(), ASSAY_MODEL_MIRROR, &mirror);
    run(assay_model_simt(), ASSAY_MODEL_MIRROR, &device);
    const int64_t bad = compare(1.5, first, sizeof first);
    cr_expect_eq(bad, 0, "model %d (%s): %lld of %lld stages; %s", number, assay_model_arch_name(c.arch),
                 (long long)bad, (long long)exact.count, first);
    close_model();
  }
}

/* The comparison sees a wrong constant. */
Test(device, another_eps_or_gate_shows) {
  char first[200];
  for (int number = 1; number <= 2; ++number) {
    open_model(number);
    run(assay_model_ref(), ASSAY_MODEL_EXACT, &exact);
    run(assay_model_ref(), ASSAY_MODEL_MIRROR, &mirror);
    c.eps = 0.05;
    c.gate_hi = 0.5;
    run(assay_model_simt(), ASSAY_MODEL_MIRROR, &device);
    cr_expect_gt(compare(1.5, first, sizeof first), 0, "model %d", number);
    close_model();
  }
}

Test(device, refusals) {
  assay_model_session *session = NULL;
  const assay_model_limits limits = {16, 64, 4, 64};
  open_model(1);
  c.weight_dtype = ASSAY_F32;
  assay_model_weights_free(&w);
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK, "%s", error.text);
  error.text[0] = '\0';
  cr_expect_eq(assay_model_simt()->open(&c, &w, &limits, ASSAY_MODEL_MIRROR, &session, &error), ASSAY_ERR_UNSUPPORTED);
  cr_expect_not_null(strstr(error.text, "weight_dtype"));
  cr_expect_null(session);
  close_model();
}
