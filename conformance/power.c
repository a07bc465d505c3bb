/* power.c: planted errors on one case: unchanged (void), seen, or unseen; and whether the exact tier would see what
 * this case does not. */
#include "power.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "generate_logical.h"
#include "judge_parts.h"

enum { STREAM_POWER = 0x6741, STREAM_TWIN = 0x6742 };
/* A twin in which the spoil changes nothing says nothing: others are drawn. */
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

typedef enum spoil_answer { SPOIL_VOID, SPOIL_SEEN, SPOIL_UNSEEN, SPOIL_FAILED } spoil_answer;

/* Unchanged but for f64's own rounding, which the order of a sum moves. */
static bool changed(double before, double after) {
  if (before == after || (assay_is_nan(before) && assay_is_nan(after))) return false;
  return !(fabs(before - after) <= 0x1p-44 * fabs(before));
}

/* The bits that element `from` of an in-out argument had before the call; what is no element is left as it is. */
static void store_moved(const trial *t, int32_t o, int64_t to, double from, outputs *made) {
  const trial_output *out = &t->output[o];
  const int64_t size = assay_dtype_size(out->dtype);
  if (!(from >= 0 && from < (double)(out->rows * out->width))) return;
  memcpy(made->bits[o] + to * size, t->initial.bits[o] + (int64_t)from * size, (size_t)size);
}

/* The spoiled values as a kernel's outputs. False: they are what they were. */
static bool store(const trial *t, const assay_expected *spoiled, outputs *made) {
  bool any = false;
  for (int32_t o = 0; o < t->count; ++o)
    for (int64_t r = 0; r < outputs_judged(t, o); ++r) {
      const trial_output *out = &t->output[o];
      const int64_t row = outputs_row(t, o, r);
      for (int64_t e = 0; e < out->width; ++e) {
        const double right = t->expected[o].value[r * out->width + e], value = spoiled[o].value[r * out->width + e];
        const double sigma = t->expected[o].sigma[r * out->width + e];
        any = any || changed(right, value);
        if (sigma == ASSAY_MOVED)
          store_moved(t, o, row * out->width + e, value, made);
        else if (sigma == ASSAY_UNCHANGED && !changed(right, value))
          store_moved(t, o, row * out->width + e, (double)(row * out->width + e), made);
        else
          assay_store_f64(made->bits[o], out->dtype, row * out->width + e, value);
      }
    }
  return any;
}

static spoil_answer judge_spoil(const trial *t, int32_t index, assay_expected *spoiled, outputs *made,
                                assay_error *error) {
  const assay_op *op = t->one->op;
  finding found;
  for (int32_t o = 0; o < t->count; ++o) /* what the mistake does not touch */
    memcpy(spoiled[o].value, t->expected[o].value,
           (size_t)(outputs_judged(t, o) * t->output[o].width) * sizeof(double));
  if (op->spoil(&t->first.call, &t->variant->contract, &t->rows, index, spoiled, error) != ASSAY_OK)
    return SPOIL_FAILED;
  if (!store(t, spoiled, made)) return SPOIL_VOID;
  values_judge(t, made, &found);
  return found.wrong ? SPOIL_SEEN : SPOIL_UNSEEN;
}

typedef struct bench {
  assay_expected spoiled[ASSAY_MAX_OUTPUTS];
  outputs made;
} bench;

static bool bench_make(const trial *t, bench *b) {
  *b = (bench){0};
  bool good = outputs_make(t, &b->made);
  for (int32_t o = 0; o < t->count; ++o) {
    b->spoiled[o].value = calloc((size_t)(outputs_judged(t, o) * t->output[o].width) + 1, sizeof(double));
    good = good && b->spoiled[o].value != NULL;
  }
  return good;
}

static void bench_free(bench *b) {
  outputs_free(&b->made);
  for (int32_t o = 0; o < ASSAY_MAX_OUTPUTS; ++o)
    free(b->spoiled[o].value);
}

/* ---- the exact twin ---------------------------------------------------------------------------------- */

static void set_param(assay_case *one, const char *name, double value) {
  for (int32_t i = 0; i < one->op->param_count; ++i)
    if (strcmp(one->op->params[i].name, name) == 0) one->param[i] = value;
}

/* The same case on the lattice: its scale a power of two and, where that does not admit it, `plain`: a 16-bit type,
 * no optional arguments, real parameters and taps as they are where a suite is silent. Shares its lists. */
static assay_case twin_of(const assay_case *one, bool plain, uint64_t round) {
  assay_case twin = *one;
  const double given = logical_param(one, "scale", 1);
  const double scale = given > 0 ? given : 1 / sqrt((double)logical_dim(one, "D", 1));
  twin.tier = TIER_EXACT;
  twin.values = ASSAY_LATTICE;
  twin.seed = logical_hash(one, STREAM_TWIN + (round << 16));
  if (plain) {
    const bool same = one->kv_dtype == one->dtype;
    twin.dtype = ASSAY_BF16;
    if (same) twin.kv_dtype = ASSAY_BF16;
    twin.present = 0;
    twin.sigma = 0.25 * (double)logical_dim(one, "F", 1);
    twin.tap_skew = 0;
    for (int32_t i = 0; i < one->op->param_count; ++i)
      if (one->op->params[i].kind == ASSAY_REAL) twin.param[i] = one->op->params[i].fallback;
  }
  set_param(&twin, "scale", ldexp(1, (int)rint(log2(scale))));
  return twin;
}

/* Of `wanted`, the spoils that this twin sees. False: it is not on the lattice. */
static bool ask_twin(const trial *origin, const assay_case *twin, uint32_t wanted, uint32_t *seen) {
  trial t = {.one = twin, .variant = origin->variant, .device = origin->device};
  case_result result = {.verdict = VERDICT_PASS};
  assay_error error = {""};
  bench b = {0};
  const bool admitted = trial_shape(&t, &result) && trial_reference(&t, &result);
  if (admitted && bench_make(&t, &b))
    for (int32_t i = 0; i < power_count(twin->op); ++i)
      if ((wanted & 1u << i) != 0 && judge_spoil(&t, i, b.spoiled, &b.made, &error) == SPOIL_SEEN) *seen |= 1u << i;
  bench_free(&b);
  trial_free(&t);
  return admitted;
}

/* Of the spoils that a case does not see, those that its twins see. */
static uint32_t seen_by_twins(const trial *t, uint32_t unseen) {
  uint32_t seen = 0;
  for (int plain = 0; plain < 2; ++plain)
    for (uint64_t round = 0; round < TWIN_DRAWS && (unseen & ~seen) != 0; ++round) {
      const assay_case twin = twin_of(t->one, plain == 1, round);
      if (!ask_twin(t, &twin, unseen & ~seen, &seen) && plain == 0) break;
    }
  return seen;
}

/* ---- a case ------------------------------------------------------------------------------------------ */

/* What a planted error costs is another run of the reference: large cases are asked about a few each. */
static uint64_t share_of(const trial *t) {
  const assay_op *op = t->one->op;
  const double flops = op->cost != NULL ? op->cost(&t->first.call, &t->seen).flops : 0;
  const uint64_t large = flops > POWER_LARGE_FLOPS ? POWER_SAMPLE_LARGE : 1;
  return chosen == POWER_ALL || large > POWER_SAMPLE ? large : POWER_SAMPLE;
}

static bool is_drawn(const trial *t, int32_t index) {
  const uint64_t share = share_of(t);
  if (share == 1) return true;
  uint64_t name = 1469598103934665603U;
  for (const char *at = t->variant->name; *at != '\0'; ++at)
    name = (name ^ (unsigned char)*at) * 1099511628211U;
  return (logical_hash(t->one, STREAM_POWER + ((uint64_t)index << 16)) + name) % share == 0;
}

void power_judge(const trial *t, case_result *result) {
  const int32_t count = chosen != POWER_OFF ? power_count(t->one->op) : 0;
  assay_error error = {""};
  bench b = {0};
  if (count == 0 || result->verdict != VERDICT_PASS) return;
  if (!bench_make(t, &b)) {
    judge_verdict(result, VERDICT_FAIL, "launch", "judge: out of memory");
    goto done;
  }
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t bit = 1u << i;
    if (!is_drawn(t, i)) continue;
    switch (judge_spoil(t, i, b.spoiled, &b.made, &error)) {
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
      judge_verdict(result, VERDICT_WEAK, "power", "the reference cannot spoil its result: %s", error.text);
      goto done;
    }
  }
  if (result->spoils_unseen != 0)
    result->spoils_weak = result->spoils_unseen & ~seen_by_twins(t, result->spoils_unseen);
done:
  bench_free(&b);
}
