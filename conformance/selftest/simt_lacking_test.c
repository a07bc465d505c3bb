/* simt_lacking_test.c: a device that lacks memory, as a GPU does that other processes fill. Each of its calls in turn
 * has none, from the first to the last of a case. The verdict is then about the host, never about a kernel. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "conformance/builtin.h"
#include "conformance/judge/judge.h"
#include "conformance/suite/suite.h"
#include "core/registry.h"

static assay_error error;

static void fill(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(simt_lacking, .init = fill, .timeout = 200);

/* ---- a device whose N-th call has no memory ------------------------------------------------------------------ */

static const assay_device *whole;
static int64_t calls, lacking; /* calls of a case so far; the number of the one without memory */
static assay_status says;      /* its status */

static char failed[400]; /* the functions that have failed */

/* Counts a call. Returns false, and fails as a GPU does, if it is the one. */
static bool has_memory(const char *doing, assay_error *why) {
  if (++calls != lacking) return true;
  char word[40];
  (void)snprintf(word, sizeof word, " %s,", doing);
  if (strstr(failed, word) == NULL) (void)strncat(failed, word, sizeof failed - strlen(failed) - 1);
  (void)assay_fail(why, says, "lacking: %s: no memory", doing);
  return false;
}

static assay_status lacking_alloc(int64_t bytes, void **memory, assay_error *why) {
  return has_memory("alloc", why) ? whole->alloc(bytes, memory, why) : says;
}
static assay_status lacking_guarded(int64_t bytes, void **memory, int64_t *capacity, assay_error *why) {
  return has_memory("alloc_guarded", why) ? whole->alloc_guarded(bytes, memory, capacity, why) : says;
}
static assay_status lacking_host(int64_t bytes, void **memory, assay_error *why) {
  return has_memory("alloc_host", why) ? whole->alloc_host(bytes, memory, why) : says;
}
static assay_status lacking_upload(void *to, const void *from, int64_t bytes, assay_error *why) {
  return has_memory("upload", why) ? whole->upload(to, from, bytes, why) : says;
}
static assay_status lacking_download(void *to, const void *from, int64_t bytes, assay_error *why) {
  return has_memory("download", why) ? whole->download(to, from, bytes, why) : says;
}
static assay_status lacking_synchronize(assay_error *why) {
  return has_memory("synchronize", why) ? whole->synchronize(why) : says;
}
static assay_status lacking_copy(void *to, const void *from, int64_t bytes, assay_error *why) {
  return has_memory("copy", why) ? whole->copy(to, from, bytes, why) : says;
}
static assay_status lacking_compare(const void *a, const void *b, const assay_piece *piece, int32_t count,
                                    int32_t *differ, assay_error *why) {
  return has_memory("compare", why) ? whole->compare(a, b, piece, count, differ, why) : says;
}
static assay_status lacking_begin(void **stream, assay_error *why) {
  return has_memory("graph_capture_begin", why) ? whole->graph_capture_begin(stream, why) : says;
}
static assay_status lacking_end(void **graph, assay_error *why) {
  const bool has = has_memory("graph_capture_end", why);
  const assay_status status = whole->graph_capture_end(graph, has ? why : NULL);
  if (has) return status;
  if (status == ASSAY_OK && *graph != NULL) whole->graph_release(*graph);
  *graph = NULL;
  return says;
}
static assay_status lacking_replay(void *graph, assay_error *why) {
  return has_memory("graph_replay", why) ? whole->graph_replay(graph, why) : says;
}
static assay_status lacking_side(int32_t number, void **stream, assay_error *why) {
  return has_memory("side_stream", why) ? whole->side_stream(number, stream, why) : says;
}
static assay_status lacking_busy(void *stream, int32_t blocks, int32_t microseconds, assay_error *why) {
  return has_memory("keep_busy", why) ? whole->keep_busy(stream, blocks, microseconds, why) : says;
}
static assay_status lacking_sides(assay_error *why) {
  return has_memory("side_synchronize", why) ? whole->side_synchronize(why) : says;
}

static assay_device lacking_device(void) {
  assay_device device = *whole;
  device.alloc = lacking_alloc;
  if (device.alloc_guarded != NULL) device.alloc_guarded = lacking_guarded;
  if (device.alloc_host != NULL) device.alloc_host = lacking_host;
  device.upload = lacking_upload;
  device.download = lacking_download;
  device.synchronize = lacking_synchronize;
  if (device.copy != NULL) device.copy = lacking_copy;
  if (device.compare != NULL) device.compare = lacking_compare;
  if (device.graph_capture_begin != NULL) device.graph_capture_begin = lacking_begin;
  if (device.graph_capture_end != NULL) device.graph_capture_end = lacking_end;
  if (device.graph_replay != NULL) device.graph_replay = lacking_replay;
  if (device.side_stream != NULL) device.side_stream = lacking_side;
  if (device.keep_busy != NULL) device.keep_busy = lacking_busy;
  if (device.side_synchronize != NULL) device.side_synchronize = lacking_sides;
  return device;
}

/* ---- the tests ----------------------------------------------------------------------------------------------- */

enum { CASES = 24, MOST_CALLS = 400 };

/* Judges a case until no call lacks memory. Says which runs should have been the host's, or should not. */
static void judge_all(const assay_case *one, const assay_variant *variant, int64_t *runs) {
  const assay_device device = lacking_device();
  for (lacking = 1; lacking <= MOST_CALLS; ++lacking) {
    case_result result;
    calls = 0;
    judge_case(one, variant, &device, &result);
    judge_release();
    if (calls < lacking) break; /* the case has no such call */
    ++*runs;
    cr_expect((result.verdict == VERDICT_HOST) == (says == ASSAY_ERR_MEMORY) && result.verdict != VERDICT_PASS,
              "%s/%s: call %lld: %s: %s: %s", variant->op, variant->name, (long long)lacking,
              verdict_name(result.verdict), result.check, result.message);
  }
  cr_expect_leq(lacking, MOST_CALLS);
}

/* Judges cases of an operator. Returns how many runs had a call without memory. */
static int64_t judge_cases(const char *op, const char *name) {
  char path[400];
  case_list list = {0};
  int64_t cases = 0, runs = 0;
  const assay_variant *const variant = assay_variant_find(op, name, "simt");
  cr_assert_not_null(variant, "%s/%s", op, name);
  (void)snprintf(path, sizeof path, ASSAY_SOURCE_DIR "/conformance/suites/%s.yaml", op);
  cr_assert_eq(expand_suite(path, 1, &list, &error), ASSAY_OK, "%s", error.text);
  whole = assay_device_find("simt");
  cr_assert_eq(whole->open(&error), ASSAY_OK, "%s", error.text);
  for (int64_t i = 0; i < list.count && cases < CASES; ++i) {
    if (list.cases[i].section != SECTION_CHECK || !case_runs_on(&list.cases[i], "simt")) continue;
    judge_all(&list.cases[i], variant, &runs);
    ++cases;
  }
  case_list_free(&list);
  return runs;
}

/* Looks whether all functions have failed that simt has. */
static void expect_all(void) {
  static const char *const names[] = {
      "alloc",       "alloc_guarded", "upload", "download", "synchronize", "graph_capture_begin", "graph_capture_end",
      "graph_replay"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char word[40];
    (void)snprintf(word, sizeof word, " %s,", names[i]);
    cr_expect_not_null(strstr(failed, word), "%s never failed:%s", names[i], failed);
  }
}

Test(simt_lacking, a_lack_of_memory_is_the_hosts) {
  says = ASSAY_ERR_MEMORY;
  const int64_t rows = judge_cases("rms_norm", "vectors");
  cr_expect_gt(rows, 60, "%lld", (long long)rows);
  cr_expect_gt(judge_cases("gate_attention", "split_keys"), 200);
  expect_all();
}

/* Another failure of the same calls is not: it would hide a kernel that breaks its device. */
Test(simt_lacking, another_failure_is_not_the_hosts) {
  says = ASSAY_ERR_DEVICE;
  cr_expect_gt(judge_cases("rms_norm", "vectors"), 60);
}
