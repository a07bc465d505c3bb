/* judge_laws_test.c: the law `graph` against a launcher that looks at lengths. */
#include <criterion/criterion.h>

#include "conformance/judge/judge.h"
#include "conformance/trial/trial.h"
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

/* ---- two calls at once, and a busy device ------------------------------------------------------------- */

/* Launches on the two side streams wait for each other, as on a GPU where the two overlap. */
static struct {
  const assay_call *call;
  assay_env *env;
} queue[2];
static bool shares_a_buffer, sees_the_load, loaded;

static assay_status launch_later(const assay_call *call, assay_env *env, assay_error *error) {
  for (int i = 0; i < 2; ++i)
    if (env->stream == &queue[i]) {
      queue[i].call = call;
      queue[i].env = env;
      return ASSAY_OK;
    }
  fake_broken = loaded && sees_the_load ? FAULT_LAST_KEY : FAULT_NONE;
  const assay_status status = fake_variant.launch(call, env, error);
  fake_broken = FAULT_NONE;
  return status;
}

static assay_status side_stream(int32_t number, void **stream, assay_error *error) {
  (void)error;
  *stream = &queue[number];
  return ASSAY_OK;
}
static assay_status keep_busy(void *stream, int32_t blocks, int32_t microseconds, assay_error *error) {
  (void)blocks, (void)microseconds, (void)error;
  if (stream == NULL) loaded = true;
  return ASSAY_OK;
}

/* A kernel keeps its result in a buffer of the program before it writes it. All calls share the buffer, and the first
 * call's result becomes the second's. */
static assay_status side_synchronize(assay_error *error) {
  assay_status status = ASSAY_OK;
  loaded = false;
  for (int i = 0; i < 2 && status == ASSAY_OK; ++i)
    if (queue[i].call != NULL) status = fake_variant.launch(queue[i].call, queue[i].env, error);
  if (shares_a_buffer && queue[0].call != NULL && queue[1].call != NULL) {
    const assay_tensor *to = &queue[0].call->arg[FAKE_ARG_OUT], *from = &queue[1].call->arg[FAKE_ARG_OUT];
    memcpy(to->data, from->data, (size_t)(to->shape[0] * to->shape[1] * to->shape[2]) * sizeof(float));
  }
  queue[0].call = queue[1].call = NULL;
  return status;
}

/* Over 64 seeds: PASS that name the law, or failures by the check that say `text`. */
static int count_side(const char *law, const char *check, const char *text) {
  assay_device device = fake_device;
  assay_variant variant = fake_variant;
  int count = 0;
  variant.launch = launch_later;
  device.side_stream = side_stream;
  device.keep_busy = keep_busy;
  device.side_synchronize = side_synchronize;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    assay_case one = fake_case(TIER_EXACT);
    case_result r;
    one.seed = seed;
    judge_case(&one, &variant, &device, &r);
    if (check == NULL) cr_expect_eq(r.verdict, VERDICT_PASS, "%s: %s", r.check, r.message);
    count +=
        check == NULL ? strstr(r.laws, law) != NULL : strcmp(r.check, check) == 0 && strstr(r.message, text) != NULL;
    case_free(&one);
  }
  return count;
}

Test(laws, a_buffer_that_two_calls_share_is_found) {
  const int asked = count_side("streams", NULL, NULL);
  cr_expect_gt(asked, 0);
  shares_a_buffer = true;
  cr_expect_eq(count_side("streams", "streams", "two calls run at once"), asked);
}

Test(laws, a_result_that_depends_on_the_load_is_found) {
  const int asked = count_side("busy", NULL, NULL);
  cr_expect_gt(asked, 0);
  sees_the_load = true;
  cr_expect_eq(count_side("busy", "run_to_run", "keeps the device busy"), asked);
}
