/* tolerance.c: the planted errors of an operator that a tolerance lets through, on the tensors of a given call. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/planted/planted.h"
#include "conformance/trial/trial.h"
#include "core/dtype.h"
#include "truth_internal.h"

typedef long long ll; /* for messages */

/* The effect of one planted error on the call. */
typedef struct planted_effect {
  bool changed; /* beyond f64's own rounding */
  bool passes;  /* every element lies within the tolerance */
  bool seen;    /* our limits see it */
} planted_effect;

static int64_t elements_of(const foreign_call *f, int32_t o) {
  return foreign_rows(f, o) * foreign_width(f, o);
}

/* Tells whether elements of the output keep bits that they had: such outputs are left out. */
static bool keeps_bits(const foreign_call *f, int32_t o) {
  for (int64_t i = 0; i < elements_of(f, o); ++i)
    if (f->expected[o].sigma[i] < 0) return true;
  return false;
}

static bool within(double got, double want, const double tolerance[2]) {
  if (assay_is_nan(want) || !assay_is_finite(want)) return (assay_is_nan(got) && assay_is_nan(want)) || got == want;
  return fabs(got - want) <= tolerance[1] + tolerance[0] * fabs(want);
}

/* Rounds the spoiled values to the type, as an engine stores them, and looks at them with both eyes. */
static assay_status look(const foreign_call *f, int32_t o, const double *spoiled, const double tolerance[2],
                         planted_effect *effect, assay_error *error) {
  const assay_dtype dtype = f->arg[f->output[o]].dtype;
  const int64_t count = elements_of(f, o);
  foreign_verdict v;
  unsigned char *bits = malloc((size_t)(count * assay_dtype_size(dtype)) + 1);
  if (bits == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "tolerance: out of memory");
  for (int64_t i = 0; i < count; ++i) {
    const double want = f->expected[o].value[i];
    assay_store_f64(bits, dtype, i, spoiled[i]);
    if (!(fabs(spoiled[i] - want) <= 0x1p-44 * fabs(want)) && !(spoiled[i] == want)) effect->changed = true;
    if (!within(assay_load_f64(bits, dtype, i), assay_round_f64(want, dtype), tolerance)) effect->passes = false;
  }
  const assay_status status = foreign_judge(f, o, bits, foreign_is_cache(f, o), &v, error);
  effect->seen = effect->seen || (status == ASSAY_OK && v.wrong);
  free(bits);
  return status;
}

static assay_status try_spoil(const foreign_call *f, int32_t index, const double tolerance[2], planted_effect *effect,
                              assay_error *error) {
  assay_expected spoiled[ASSAY_MAX_OUTPUTS] = {{NULL, NULL}};
  const assay_call call = {f->op, f->arg, f->param};
  assay_status status = ASSAY_OK;
  *effect = (planted_effect){.passes = true};
  for (int32_t o = 0; o < f->count; ++o) {
    const size_t bytes = (size_t)elements_of(f, o) * sizeof(double);
    spoiled[o] = (assay_expected){malloc(bytes + 1), malloc(bytes + 1)};
    if (spoiled[o].value == NULL || spoiled[o].sigma == NULL)
      status = assay_fail(error, ASSAY_ERR_MEMORY, "tolerance: out of memory");
    else /* values that the mistake does not touch */
      memcpy(spoiled[o].value, f->expected[o].value, bytes);
  }
  if (status == ASSAY_OK) status = f->op->spoil(&call, &f->contract, &f->rows, index, spoiled, error);
  for (int32_t o = 0; o < f->count && status == ASSAY_OK; ++o)
    if (!keeps_bits(f, o)) status = look(f, o, spoiled[o].value, tolerance, effect, error);
  for (int32_t o = 0; o < f->count; ++o) {
    free(spoiled[o].value);
    free(spoiled[o].sigma);
  }
  return status;
}

/* The names found so far, with commas. */
typedef struct name_list {
  char text[1600];
  int32_t count;
} name_list;

static void add_name(name_list *list, const char *name) {
  const size_t used = strlen(list->text);
  (void)snprintf(list->text + used, sizeof list->text - used, "%s%s", list->count++ > 0 ? ", " : "", name);
}

assay_status truth_tolerance(const foreign_call *f, const char *name, const double tolerance[2], truth_log *log,
                             assay_error *error) {
  name_list passed = {"", 0}, unseen = {"", 0};
  int32_t effective = 0;
  for (int32_t i = 0; i < power_count(f->op); ++i) {
    char spoil[64];
    planted_effect effect;
    const assay_status status = try_spoil(f, i, tolerance, &effect, error);
    if (status != ASSAY_OK) return status;
    power_name(f->op, i, spoil, sizeof spoil);
    if (!effect.changed) continue;
    ++effective;
    if (effect.passes) add_name(&passed, spoil);
    if (!effect.seen) add_name(&unseen, spoil);
  }
  truth_planted(log, name, tolerance, effective, passed.count, passed.text, unseen.count, unseen.text);
  return ASSAY_OK;
}
