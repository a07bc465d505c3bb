/* judge_laws_test.c: the law `graph` against a launcher that looks at lengths. */
#include <criterion/criterion.h>

#include "conformance/judge.h"
#include "conformance/judge_parts.h"
#include "fake.h"

static bool recording, looks_at_lengths;
static const assay_call *recorded_call;
static assay_env *recorded_env;
static int32_t recorded_length;

static int32_t longest(const assay_call *call) {
  const assay_tensor *length = &call->arg[FAKE_ARG_KV_LEN];
  int32_t most = 0;
  for (int64_t b = 0; b < length->shape[0]; ++b)
    if (((const int32_t *)length->data)[b] > most) most = ((const int32_t *)length->data)[b];
  return most;
}

static assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  if (!recording) return fake_variant.launch(call, env, error);
  recorded_call = call;
  recorded_env = env;
  recorded_length = longest(call);
  return ASSAY_OK;
}

static assay_status begin(void **stream, assay_error *error) {
  (void)error;
  *stream = NULL;
  recording = true;
  return ASSAY_OK;
}
static assay_status end(void **graph, assay_error *error) {
  (void)error;
  *graph = &recording;
  recording = false;
  return ASSAY_OK;
}
static assay_status replay(void *graph, assay_error *error) {
  (void)graph;
  if (looks_at_lengths && recorded_length != longest(recorded_call)) fake_broken = FAULT_LAST_KEY;
  const assay_status status = fake_variant.launch(recorded_call, recorded_env, error);
  fake_broken = FAULT_NONE;
  return status;
}
static void release(void *graph) {
  (void)graph;
}

/* Some of these seeds are asked for the law. */
static int count_graph(verdict wanted) {
  assay_device device = fake_device;
  assay_variant variant = fake_variant;
  int count = 0;
  variant.launch = launch;
  device.graph_capture_begin = begin;
  device.graph_capture_end = end;
  device.graph_replay = replay;
  device.graph_release = release;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    assay_case one = fake_case(TIER_EXACT);
    case_result r;
    one.seed = seed;
    judge_case(&one, &variant, &device, &r);
    if (wanted == VERDICT_PASS) cr_expect_eq(r.verdict, VERDICT_PASS, "%s: %s", r.check, r.message);
    count += wanted == VERDICT_PASS ? strstr(r.laws, "graph") != NULL : strcmp(r.check, "graph") == 0;
    case_free(&one);
  }
  return count;
}

Test(laws, a_launcher_that_looks_at_lengths_is_found) {
  looks_at_lengths = false;
  const int asked = count_graph(VERDICT_PASS);
  cr_expect_gt(asked, 0);
  looks_at_lengths = true;
  cr_expect_eq(count_graph(VERDICT_FAIL), asked);
}
