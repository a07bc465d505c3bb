/* simt_closed_test.c: what is asked of a call on the host may not read the device's memory. A GPU's memory has no
 * address on the host, and simt's has. Here it is closed while supports(), workspace(), sums() and an operator's cost
 * run: such a read raises SIGSEGV. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance/builtin.h"
#include "conformance/judge/judge.h"
#include "conformance/laws/laws_internal.h"
#include "conformance/laws/vast_internal.h"
#include "conformance/suite/suite.h"
#include "core/registry.h"

static assay_error error;

static void fill(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(simt_closed, .init = fill, .timeout = 120);

/* ---- a device whose memory can be closed ---------------------------------------------------------------- */

enum { MOST_BLOCKS = 64 };

static struct {
  void *at;
  size_t bytes;
} block[MOST_BLOCKS];
static int64_t closures;

static assay_status closable_alloc(int64_t bytes, void **memory, assay_error *why) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = ((size_t)bytes + page) / page * page;
  for (int i = 0; i < MOST_BLOCKS; ++i) {
    if (block[i].at != NULL) continue;
    void *const at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) break;
    block[i].at = *memory = at;
    block[i].bytes = whole;
    return ASSAY_OK;
  }
  return assay_fail(why, ASSAY_ERR_MEMORY, "closed: no memory for %lld bytes", (long long)bytes);
}

static void closable_release(void *memory) {
  for (int i = 0; i < MOST_BLOCKS; ++i)
    if (block[i].at != NULL && block[i].at == memory) {
      (void)munmap(memory, block[i].bytes);
      block[i].at = NULL;
    }
}

static void protect(int rights) {
  closures += rights == PROT_NONE;
  for (int i = 0; i < MOST_BLOCKS; ++i)
    if (block[i].at != NULL && mprotect(block[i].at, block[i].bytes, rights) != 0) abort();
}

/* As on a GPU, no window of blocks: the law `vast` asks the operator's cost instead. */
static assay_device closable_device(void) {
  assay_device device = *assay_device_find("simt");
  device.alloc = closable_alloc;
  device.release = closable_release;
  device.window = NULL;
  return device;
}

/* ---- a variant and an operator that close it ------------------------------------------------------------ */

static const assay_variant *inner;
static const assay_op *inner_op;
static int64_t costs, taken;

static assay_status closed_supports(const assay_call *call, assay_error *why) {
  protect(PROT_NONE);
  const assay_status status = inner->supports(call, why);
  protect(PROT_READ | PROT_WRITE);
  return status;
}

static assay_status closed_workspace(const assay_call *call, int64_t *bytes, assay_error *why) {
  protect(PROT_NONE);
  const assay_status status = inner->workspace(call, bytes, why);
  protect(PROT_READ | PROT_WRITE);
  return status;
}

static assay_status closed_sums(const assay_call *call, const assay_env *env, assay_sums *sums, assay_error *why) {
  protect(PROT_NONE);
  const assay_status status = inner->sums(call, env, sums, why);
  protect(PROT_READ | PROT_WRITE);
  return status;
}

/* Costs so much that the law `vast` asks and never launches. */
static assay_cost closed_cost(const assay_call *call, const assay_seen *seen) {
  protect(PROT_NONE);
  (void)inner_op->cost(call, seen);
  protect(PROT_READ | PROT_WRITE);
  ++costs;
  return (assay_cost){INFINITY, INFINITY};
}

/* Asks a variant of a call on the device, and what the call costs. Then it asks as the law `vast` does. Nothing is
 * launched. planted: the cost is asked of the call as it is. */
static void ask(const assay_case *of, const assay_variant *variant, bool planted, case_result *result) {
  assay_case one = *of;
  assay_op op = *one.op;
  assay_variant closed = *variant;
  const assay_device device = closable_device();
  trial t = {.one = &one, .variant = &closed, .device = &device, .facts = {.multiprocessors = 4}};
  device_call on;
  assay_sums sums;
  inner = variant;
  inner_op = of->op;
  closed.supports = closed_supports;
  closed.workspace = closed_workspace;
  if (closed.sums != NULL) closed.sums = closed_sums;
  if (op.cost != NULL) op.cost = closed_cost;
  one.op = &op;
  *result = (case_result){.verdict = VERDICT_PASS};
  if (trial_shape(&t, result) && trial_contents(&t, result) && device_place(&t, &t.first, 0, &on, result) &&
      device_upload(&t, &t.first, &on, result) && variant_supports(&closed, &on.call, &error) == ASSAY_OK &&
      variant_workspace(&closed, &on.call, &t.workspace_bytes, &error) == ASSAY_OK) {
    (void)variant_sums(&closed, &on.call, &on.env, &sums, &error);
    if (op.cost != NULL && vast_applies(&t)) (void)(planted ? op.cost(&on.call, &t.seen).flops : vast_flops(&t, &on));
    if (vast_applies(&t)) (void)vast_check(&t, NULL, result);
    ++taken;
  }
  trial_free(&t);
  judge_release();
}

/* ---- the tests ------------------------------------------------------------------------------------------ */

/* Cases of an operator that are asked. */
enum { CASES = 20 };

/* Asks all variants of an operator. Returns the number of cases. */
static int ask_all(const case_list *list, const assay_op *op, bool planted) {
  int cases = 0;
  for (int64_t i = 0; i < list->count && cases < CASES; ++i) {
    const assay_case *const one = &list->cases[i];
    if (one->op != op || one->section != SECTION_CHECK || !case_runs_on(one, "simt")) continue;
    ++cases;
    for (int32_t v = 0; v < assay_variant_count(); ++v) {
      const assay_variant *const variant = assay_variant_at(v);
      if (strcmp(variant->op, op->name) != 0 || strcmp(variant->device, "simt") != 0) continue;
      case_result result;
      ask(one, variant, planted, &result);
      cr_expect_eq(result.verdict, VERDICT_PASS, "%s/%s: %s: %s", variant->op, variant->name, result.check,
                   result.message);
    }
  }
  return cases;
}

static void read_suites(const char *name, case_list *list) {
  char path[400];
  (void)snprintf(path, sizeof path, ASSAY_SOURCE_DIR "/conformance/suites%s", name);
  cr_assert_eq(expand_suite(path, 1, list, &error), ASSAY_OK, "%s", error.text);
}

Test(simt_closed, no_operator_reads_the_memory_of_a_device) {
  case_list list = {0};
  read_suites("", &list);
  for (int32_t o = 0; o < assay_op_count(); ++o)
    cr_expect_gt(ask_all(&list, assay_op_at(o), false), 0, "%s: no case", assay_op_at(o)->name);
  cr_expect(taken > 500 && closures >= 3 * taken && costs > 500, "%lld taken, %lld closures, %lld costs",
            (long long)taken, (long long)closures, (long long)costs);
  case_list_free(&list);
}

/* A cost that is asked of the call as it is reads the lengths of requests, as an H200 found. */
Test(simt_closed, a_cost_that_reads_lengths_is_seen, .signal = SIGSEGV) {
  case_list list = {0};
  read_suites("/mla_attention.yaml", &list);
  (void)ask_all(&list, assay_op_find("mla_attention"), true);
}
