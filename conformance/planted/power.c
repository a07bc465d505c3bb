/* power.c: planted errors on one case: without effect (void), seen, or unseen. An unseen one is also tried in the exact
 * tier. */
#include "power.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "core/hash.h"

/* A twin in which the spoil changes nothing tells nothing, so others are drawn. */
enum { TWIN_DRAWS = 32 };

static power_mode chosen = POWER_OFF;

void power_set(power_mode mode) {
  chosen = mode;
}

power_mode power_get(void) {
  return chosen;
}

static const char *const modes[] = {[POWER_OFF] = "off", [POWER_SAMPLED] = "sample", [POWER_ALL] = "all"};

const char *power_mode_name(power_mode mode) {
  return modes[mode];
}

int power_mode_find(const char *name) {
  for (int i = 0; i <= POWER_ALL; ++i)
    if (strcmp(name, modes[i]) == 0) return i;
  return -1;
}

int32_t power_count(const assay_op *op) {
  if (op->spoil == NULL || op->spoils == NULL || op->spoils[0] == '\0') return 0;
  int32_t count = 1;
  for (const char *at = op->spoils; *at != '\0'; ++at)
    count += *at == ',';
  return count < POWER_MAX_SPOILS ? count : POWER_MAX_SPOILS;
}

void power_name(const assay_op *op, int32_t index, char *name, size_t size) {
  const char *at = op->spoils != NULL ? op->spoils : "";
  for (; index > 0 && *at != '\0'; --index) {
    at += strcspn(at, ",");
    at += *at == ',';
  }
  (void)snprintf(name, size, "%.*s", (int)strcspn(at, ","), at);
}

uint32_t power_bits(const assay_op *op, const char *names) {
  uint32_t bits = 0;
  char name[64];
  for (const char *at = names; *at != '\0'; at += *at == ',') {
    const size_t length = strcspn(at, ",");
    for (int32_t i = 0; i < power_count(op); ++i) {
      power_name(op, i, name, sizeof name);
      if (strlen(name) == length && strncmp(name, at, length) == 0) bits |= 1u << i;
    }
    at += length;
  }
  return bits;
}

/* ---- one spoil --------------------------------------------------------------------------------------- */

typedef enum spoil_answer { SPOIL_VOID, SPOIL_SEEN, SPOIL_UNSEEN, SPOIL_FAILED, SPOIL_NO_MEMORY } spoil_answer;

/* Tells whether a value changed by more than f64's own rounding, which the order of a sum moves. An infinity that
 * became a number has changed. */
static bool changed(double before, double after) {
  if (before == after || (assay_is_nan(before) && assay_is_nan(after))) return false;
  if (fabs(before) == (double)INFINITY) return true;
  return !(fabs(before - after) <= 0x1p-44 * fabs(before));
}

/* Stores the bits that element `from` of an in-out argument had before the call. If `from` is no element, nothing is
 * stored. */
static void store_moved(const trial *t, int32_t o, int64_t to, double from, outputs *got) {
  const trial_output *out = &t->output[o];
  const int64_t size = assay_dtype_size(out->dtype);
  if (!(from >= 0 && from < (double)(out->rows * out->width))) return;
  memcpy(got->bits[o] + to * size, t->initial.bits[o] + (int64_t)from * size, (size_t)size);
}

/* Stores an element of an in-out argument that keeps its bits or gets those of another element. */
static void store_bits(const trial *t, int32_t o, int64_t at, double sigma, bool moved, double value, outputs *got) {
  if (sigma == ASSAY_MOVED)
    store_moved(t, o, at, value, got);
  else if (sigma == ASSAY_UNCHANGED && !moved)
    store_moved(t, o, at, (double)at, got);
  else
    assay_store_f64(got->bits[o], t->output[o].dtype, at, value);
}

/* Stores one row of spoiled values as a kernel's. Returns whether one of them has changed. */
static bool store_row(const trial *t, int32_t o, int64_t r, const double *spoiled, outputs *got) {
  const trial_output *out = &t->output[o];
  const int64_t first = outputs_row(t, o, r) * out->width;
  const double *right = t->expected[o].value + r * out->width, *sigma = t->expected[o].sigma + r * out->width;
  bool any = false, bits = false;
  for (int64_t e = 0; e < out->width; ++e) {
    any = any || changed(right[e], spoiled[e]);
    bits = bits || sigma[e] < 0;
  }
  if (!bits) assay_store_f64_row(got->bits[o], out->dtype, first, 1, out->width, spoiled);
  for (int64_t e = 0; bits && e < out->width; ++e)
    store_bits(t, o, first + e, sigma[e], changed(right[e], spoiled[e]), spoiled[e], got);
  return any;
}

/* Stores the spoiled values as a kernel's outputs. Returns false where none has changed. */
static bool store(const trial *t, const assay_expected *spoiled, outputs *got) {
  bool any = false;
  for (int32_t o = 0; o < t->count; ++o)
    for (int64_t r = 0; r < outputs_judged(t, o); ++r)
      any = store_row(t, o, r, spoiled[o].value + r * t->output[o].width, got) || any;
  return any;
}

static spoil_answer judge_spoil(const trial *t, int32_t index, assay_expected *spoiled, outputs *got,
                                assay_error *error) {
  const assay_op *op = t->one->op;
  finding found;
  for (int32_t o = 0; o < t->count; ++o) /* values that the mistake does not touch */
    memcpy(spoiled[o].value, t->expected[o].value,
           (size_t)(outputs_judged(t, o) * t->output[o].width) * sizeof(double));
  const assay_status status = op->spoil(&t->first.call, &t->variant->contract, &t->rows, index, spoiled, error);
  if (status != ASSAY_OK) return status == ASSAY_ERR_MEMORY ? SPOIL_NO_MEMORY : SPOIL_FAILED;
  if (!store(t, spoiled, got)) return SPOIL_VOID;
  values_ask(t, got, &found);
  return found.no_memory ? SPOIL_NO_MEMORY : found.wrong ? SPOIL_SEEN : SPOIL_UNSEEN;
}

typedef struct bench {
  assay_expected spoiled[ASSAY_MAX_OUTPUTS];
  outputs got;
} bench;

static bool bench_make(const trial *t, bench *b) {
  *b = (bench){0};
  bool good = outputs_make(t, &b->got);
  for (int32_t o = 0; o < t->count; ++o) {
    b->spoiled[o].value = calloc((size_t)(outputs_judged(t, o) * t->output[o].width) + 1, sizeof(double));
    good = good && b->spoiled[o].value != NULL;
  }
  return good;
}

static void bench_free(bench *b) {
  outputs_free(&b->got);
  for (int32_t o = 0; o < ASSAY_MAX_OUTPUTS; ++o)
    free(b->spoiled[o].value);
}

/* ---- the exact twin ---------------------------------------------------------------------------------- */

static void set_param(assay_case *one, const char *name, double value) {
  for (int32_t i = 0; i < one->op->param_count; ++i)
    if (strcmp(one->op->params[i].name, name) == 0) one->param[i] = value;
}

/* Returns the bit of an optional argument by name, where the operator has it. */
static uint32_t option(const assay_op *op, const char *name) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strcmp(op->args[i].name, name) == 0) return UINT32_C(1) << i;
  return 0;
}

/* Makes the same case on the lattice, with a power of two as its scale. `simplified` also gives it a 16-bit type, and
 * the default real parameters and taps. It keeps optional sinks, trees and masks. It is tried next. The
 * twin shares the case's lists. A sink of 800 that is scaled shows in the exact tier where the scale is small: one draw
 * in four. */
static assay_case twin_of(const assay_case *one, bool simplified, uint64_t round) {
  assay_case twin = *one;
  const double given = logical_param(one, "scale", 1);
  const double scale = given > 0 ? given : 1 / sqrt((double)logical_dim(one, "D", 1));
  twin.tier = TIER_EXACT;
  twin.values = ASSAY_LATTICE;
  twin.magnitude = ASSAY_USUAL;
  twin.seed = logical_hash(one, STREAM_TWIN + (round << 16));
  if (simplified) {
    const bool same = one->kv_dtype == one->dtype, same_out = one->out_dtype == one->dtype;
    twin.dtype = ASSAY_BF16;
    if (same) twin.kv_dtype = ASSAY_BF16;
    if (same_out) twin.out_dtype = ASSAY_BF16;
    twin.present &= option(one->op, "sink") | option(one->op, "parent") | option(one->op, "mask");
    twin.sigma = 0.25 * (double)logical_dim(one, "F", 1);
    twin.tap_skew = 0;
    for (int32_t i = 0; i < one->op->param_count; ++i)
      if (one->op->params[i].kind == ASSAY_REAL) twin.param[i] = one->op->params[i].fallback;
  }
  const bool small = round % 4 == 3 && (twin.present & option(one->op, "sink")) != 0;
  set_param(&twin, "scale", small ? 0x1p-10 : ldexp(1, (int)rint(log2(scale))));
  return twin;
}

/* Adds the spoils of `wanted` that this twin sees to `seen`. Returns false where the twin is not on the lattice. */
static bool ask_twin(const trial *origin, const assay_case *twin, uint32_t wanted, uint32_t *seen) {
  trial t = {.one = twin, .variant = origin->variant, .device = origin->device};
  case_result result = {.verdict = VERDICT_PASS};
  assay_error error = {""};
  bench b = {0};
  const bool admitted = trial_shape(&t, &result) && trial_reference(&t, &result);
  if (admitted && bench_make(&t, &b))
    for (int32_t i = 0; i < power_count(twin->op); ++i)
      if ((wanted & 1u << i) != 0 && judge_spoil(&t, i, b.spoiled, &b.got, &error) == SPOIL_SEEN) *seen |= 1u << i;
  bench_free(&b);
  trial_free(&t);
  return admitted;
}

/* Returns the spoils that a case does not see but its twins see. */
static uint32_t seen_by_twins(const trial *t, uint32_t unseen) {
  uint32_t seen = 0;
  for (int simplified = 0; simplified < 2; ++simplified)
    for (uint64_t round = 0; round < TWIN_DRAWS && (unseen & ~seen) != 0; ++round) {
      const assay_case twin = twin_of(t->one, simplified == 1, round);
      if (!ask_twin(t, &twin, unseen & ~seen, &seen) && simplified == 0) break;
    }
  return seen;
}

/* ---- a case ------------------------------------------------------------------------------------------ */

/* Returns the share of cases in which a planted error is tried. Each try is another run of the reference, so large
 * cases are asked about a few errors each. */
static uint64_t share_of(const trial *t) {
  const assay_op *op = t->one->op;
  const double flops = op->cost != NULL ? op->cost(&t->first.call, &t->seen).flops : 0;
  const uint64_t large = flops > POWER_LARGE_FLOPS ? POWER_SAMPLE_LARGE : 1;
  return chosen == POWER_ALL || large > POWER_SAMPLE ? large : POWER_SAMPLE;
}

static bool is_drawn(const trial *t, int32_t index) {
  const uint64_t share = share_of(t);
  if (share == 1) return true;
  const uint64_t name = hash_text(HASH_OLD_START, t->variant->name);
  return (logical_hash(t->one, STREAM_POWER + ((uint64_t)index << 16)) + name) % share == 0;
}

void power_judge(const trial *t, case_result *result) {
  const int32_t count = chosen != POWER_OFF ? power_count(t->one->op) : 0;
  assay_error error = {""};
  bench b = {0};
  /* Among subnormal or very large numbers many spoils are as small as a rounding: such a case is about the numbers. */
  if (count == 0 || result->verdict != VERDICT_PASS || t->one->magnitude != ASSAY_USUAL) return;
  if (!bench_make(t, &b)) {
    (void)verdict_no_memory(result);
    goto done;
  }
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t bit = 1u << i;
    if (!is_drawn(t, i)) continue;
    switch (judge_spoil(t, i, b.spoiled, &b.got, &error)) {
    case SPOIL_VOID:
      result->spoils_void |= bit;
      break;
    case SPOIL_SEEN:
      result->spoils_seen |= bit;
      break;
    case SPOIL_UNSEEN:
      result->spoils_unseen |= bit;
      break;
    case SPOIL_FAILED:
      verdict_set(result, VERDICT_WEAK, "power", "the reference cannot spoil its result: %s", error.text);
      goto done;
    case SPOIL_NO_MEMORY:
      (void)verdict_no_memory(result);
      goto done;
    }
  }
  if (result->spoils_unseen != 0)
    result->spoils_weak = result->spoils_unseen & ~seen_by_twins(t, result->spoils_unseen);
done:
  bench_free(&b);
}
