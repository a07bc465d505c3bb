/* simt_shared_reference_test.c: a reference that threads share gives the bits of one thread. */
#include <criterion/criterion.h>
#include <string.h>

#include "conformance/builtin.h"
#include "conformance/case/case.h"
#include "conformance/text/threads.h"
#include "conformance/trial/trial.h"

static assay_error error;

static void fill(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(shared_reference, .init = fill, .timeout = 60);

/* Computes the reference of a case by `threads` threads. */
static void ask(const assay_case *one, const assay_variant *variant, int32_t threads, trial *t) {
  case_result said = {.verdict = VERDICT_PASS};
  *t = (trial){.one = one, .variant = variant};
  threads_use(threads);
  cr_assert(trial_shape(t, &said) && trial_reference(t, &said), "%s: %s", one->op->name, said.message);
  threads_use(1);
}

static bool same(const trial *a, const trial *b) {
  bool equal = a->count == b->count;
  for (int32_t o = 0; o < a->count && equal; ++o) {
    const size_t bytes = (size_t)(outputs_judged(a, o) * a->output[o].width) * sizeof(double);
    equal = memcmp(a->expected[o].value, b->expected[o].value, bytes) == 0 &&
            memcmp(a->expected[o].sigma, b->expected[o].sigma, bytes) == 0;
  }
  return equal;
}

static const char *const lines[] = {
    "gated_delta_rule section=check tier=calibrated dtype=bf16 N=37 H_k=2 H_v=6 D_k=16 D_v=24 B=3 S=4 l2=true seed=5",
    "gated_delta_rule section=check tier=exact dtype=f32 l2=false N=9 H_k=1 H_v=5 D_k=16 D_v=16 B=2 S=2 seed=6",
    "gemm section=check tier=calibrated dtype=bf16 M=7 N=32 K=48 seed=7",
    "softmax_attention section=check tier=calibrated mode=prefill dtype=bf16 D=32 H=4 H_kv=2 kv_len=5,17 seed=8",
};

static assay_variant variant_of(const assay_op *op) {
  return (assay_variant){.op = op->name, .name = "none", .device = "simt", .contract = {.exp_ulp = 2}};
}

Test(shared_reference, has_the_bits_of_one_thread) {
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; ++i) {
    assay_case one;
    cr_assert_eq(case_parse(lines[i], &one, &error), ASSAY_OK, "%s", error.text);
    const assay_variant variant = variant_of(one.op);
    trial whole, shared;
    ask(&one, &variant, 1, &whole);
    for (int32_t threads = 2; threads < 10; threads += 3) {
      ask(&one, &variant, threads, &shared);
      cr_expect(same(&whole, &shared), "%s by %d threads", lines[i], (int)threads);
      trial_free(&shared);
    }
    trial_free(&whole);
    case_free(&one);
  }
}

/* The parts of the delta rule are its value heads. Without the last one its elements stay as they were. */
Test(shared_reference, computes_its_own_parts_alone) {
  enum { HEADS = 6 };
  assay_case one;
  cr_assert_eq(case_parse(lines[0], &one, &error), ASSAY_OK, "%s", error.text);
  const assay_variant variant = variant_of(one.op);
  const assay_shared_reference *shared = trial_shared_reference(one.op);
  trial whole, part;
  ask(&one, &variant, 1, &whole);
  ask(&one, &variant, 1, &part);
  cr_assert_eq(shared->parts(&part.first.call), HEADS);
  for (int64_t head = 0; head < HEADS; ++head) {
    for (int32_t o = 0; o < part.count; ++o)
      memset(part.expected[o].value, 0xff, (size_t)(outputs_judged(&part, o) * part.output[o].width) * sizeof(double));
    cr_assert_eq(shared->reference(&part.first.call, &variant.contract, head, head + 1, false, part.expected, &error),
                 ASSAY_OK, "%s", error.text);
    for (int32_t o = 0; o < part.count; ++o)
      for (int64_t i = 0; i < outputs_judged(&part, o) * part.output[o].width; ++i) {
        const int64_t of = o == 0 ? i / (16 * 24) % HEADS : i / 24 % HEADS; /* state, then o */
        const double value = part.expected[o].value[i];
        cr_assert(of == head ? value == whole.expected[o].value[i] : value != value, "head %d, output %d, element %d",
                  (int)head, (int)o, (int)i);
      }
  }
  trial_free(&part);
  trial_free(&whole);
  case_free(&one);
}
