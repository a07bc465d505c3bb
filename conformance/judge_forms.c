/* judge_forms.c: laws about other forms of the same call. in_place: results that an argument X takes, or an optional
 * X_out in its place: the same bits either way. parts: the operators that the operator stands for, called one after the
 * other on the same device: the same bits, where all are built in; a plug-in's own arithmetic is judged by the tier
 * alone. */
#include <stdlib.h>

#include "core/dtype.h"
#include "core/registry.h"
#include "judge_parts.h"

/* ---- in place and out of place ------------------------------------------------------------------------- */

/* The optional output that takes the result of in-out argument `arg`, and the other way round; -1: none. */
static int32_t apart_of(const assay_op *op, int32_t arg) {
  char name[64];
  if (op->args[arg].role != ASSAY_INOUT) return -1;
  (void)snprintf(name, sizeof name, "%s_out", op->args[arg].name);
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strcmp(op->args[i].name, name) == 0 && op->args[i].role == ASSAY_OUT && op->args[i].optional) return i;
  return -1;
}

static int32_t home_of(const assay_op *op, int32_t arg) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (apart_of(op, i) == arg) return i;
  return -1;
}

static int32_t output_of(const trial *t, int32_t arg) {
  for (int32_t o = 0; o < t->count; ++o)
    if (t->output[o].arg == arg) return o;
  return -1;
}

/* What argument of the other form takes the result of output o; -1: it is no result here. */
static int32_t taken_by(const trial *t, int32_t o) {
  const assay_op *op = t->one->op;
  const int32_t arg = t->output[o].arg, apart = apart_of(op, arg), home = home_of(op, arg);
  if (apart >= 0) return t->first.arg[apart].data != NULL ? -1 : apart;
  return home >= 0 ? home : arg;
}

static bool set_different(const trial *t, int32_t o, const unsigned char *plain, const unsigned char *got,
                          const char *check, const char *changed, case_result *result) {
  const trial_output *out = &t->output[o];
  const int64_t size = assay_dtype_size(out->dtype), elements = out->rows * out->width;
  int64_t first = -1, count = 0;
  char at[400];
  for (int64_t i = 0; i < elements; ++i) {
    if (memcmp(plain + i * size, got + i * size, (size_t)size) == 0) continue;
    if (first < 0) first = i;
    ++count;
  }
  if (first < 0) return true;
  values_describe(t, (place){o, first / out->width, first % out->width}, at, sizeof at);
  judge_verdict(result, VERDICT_FAIL, check, "%s: %.9g, and %.9g %s; %lld elements differ", at,
                assay_load_f64(plain, out->dtype, first), assay_load_f64(got, out->dtype, first), changed,
                (long long)count);
  return false;
}

static bool same_results(const trial *t, const trial *other, const outputs *plain, const outputs *got,
                         case_result *result) {
  for (int32_t o = 0; o < t->count; ++o) {
    const int32_t arg = taken_by(t, o), there = arg >= 0 ? output_of(other, arg) : -1;
    if (there < 0 || other->output[there].rows != t->output[o].rows) continue;
    if (!set_different(t, o, plain->bits[o], got->bits[there], "in_place", "in the other form, in place or out of it",
                       result))
      return false;
  }
  return true;
}

static bool ready(trial *other, case_result *unused) {
  assay_error error = {""};
  device_call on;
  if (!trial_shape(other, unused) || image_fill(&other->first, NULL, &error) != ASSAY_OK) return false;
  if (other->one->op->check(&other->first.call, &error) != ASSAY_OK) return false;
  if (!device_place(other, &other->first, 0, &on, unused)) return false;
  return other->variant->supports(&on.call, &error) == ASSAY_OK &&
         other->variant->workspace(&on.call, &other->workspace_bytes, &error) == ASSAY_OK &&
         other->workspace_bytes >= 0;
}

bool in_place_check(const trial *t, const outputs *plain, case_result *result) {
  const assay_op *op = t->one->op;
  assay_case one = *t->one;
  case_result unused = {.verdict = VERDICT_PASS};
  outputs got = {{NULL}};
  bool good = true;
  if (!judge_has_law(t, "in_place") || !t->variant->contract.run_to_run) return true;
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (apart_of(op, i) >= 0) one.present ^= UINT32_C(1) << apart_of(op, i);
  trial other = {.one = &one, .variant = t->variant, .device = t->device, .facts = t->facts};
  if (one.present != t->one->present && ready(&other, &unused)) {
    good = outputs_make(&other, &got);
    if (!good) judge_verdict(result, VERDICT_FAIL, "launch", "judge: out of memory");
    good = good && device_run(&other, &other.first, t->one->seed, &got, result) &&
           same_results(t, &other, plain, &got, result);
    if (good) judge_add_law(result, "in_place");
  }
  outputs_free(&got);
  trial_free(&other);
  return good;
}

/* ---- the operators that it stands for ------------------------------------------------------------------- */

enum { MOST_PARTS = 4 };

/* Arguments of the call by name, as far as the parts have changed them. */
typedef struct parts_run {
  const trial *t;
  const assay_call *outer;          /* on the device */
  assay_tensor now[ASSAY_MAX_ARGS]; /* of the outer operator's arguments, as the next part sees them */
  void *scratch[MOST_PARTS];
  int32_t scratches;
} parts_run;

static int32_t named_arg(const assay_op *op, const char *name, size_t size) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strlen(op->args[i].name) == size && strncmp(op->args[i].name, name, size) == 0) return i;
  return -1;
}

/* Dense memory for a tensor of that shape. */
static bool take_scratch(parts_run *p, const assay_tensor *like, assay_tensor *made) {
  assay_error error = {""};
  int64_t elements = 1;
  if (p->scratches == MOST_PARTS) return false;
  *made = *like;
  for (int32_t a = like->rank - 1; a >= 0; --a) {
    made->stride[a] = elements;
    elements *= like->shape[a] > 0 ? like->shape[a] : 1;
  }
  if (p->t->device->alloc(elements * assay_dtype_size(like->dtype), &p->scratch[p->scratches], &error) != ASSAY_OK)
    return false;
  made->data = p->scratch[p->scratches++];
  return true;
}

/* One part's call. What it gives as X_out, X being an input of the whole, is X from here on. False: it cannot be. */
static bool fill_part(parts_run *p, const assay_op *op, assay_tensor *arg, double *param) {
  const assay_op *whole = p->t->one->op;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const assay_arg *about = &op->args[i];
    const size_t size = strlen(about->name);
    const int32_t own = named_arg(whole, about->name, size);
    if (own >= 0) arg[i] = p->now[own];
    const int32_t input =
        size > 4 && strcmp(about->name + size - 4, "_out") == 0 ? named_arg(whole, about->name, size - 4) : -1;
    if (about->role != ASSAY_OUT || input < 0 || whole->args[input].role != ASSAY_IN) continue;
    if (arg[i].data == NULL && !take_scratch(p, &p->now[input], &arg[i])) return false;
    p->now[input] = arg[i];
  }
  for (int32_t i = 0; i < op->param_count; ++i) {
    const double given = assay_find_param(p->outer, op->params[i].name);
    param[i] = given == given ? given : op->params[i].fallback;
  }
  return true;
}

/* The first built-in variant that takes the call without a workspace. */
static const assay_variant *variant_for(const parts_run *p, const assay_call *call) {
  for (int32_t v = 0; v < assay_variant_count(); ++v) {
    const assay_variant *one = assay_variant_at(v);
    assay_error error = {""};
    int64_t bytes = 1;
    if (strcmp(one->op, call->op->name) != 0 || strcmp(one->device, p->t->device->name) != 0) continue;
    if (strcmp(assay_variant_origin(v), "built-in") != 0 || one->supports(call, &error) != ASSAY_OK) continue;
    if (one->workspace(call, &bytes, &error) == ASSAY_OK && bytes == 0) return one;
  }
  return NULL;
}

static bool run_part(parts_run *p, const char *name, size_t size, const assay_env *env, bool *possible,
                     case_result *result) {
  char text[64];
  assay_tensor arg[ASSAY_MAX_ARGS] = {{.data = NULL}};
  double param[ASSAY_MAX_PARAMS] = {0};
  assay_error error = {""};
  (void)snprintf(text, sizeof text, "%.*s", (int)size, name);
  const assay_op *op = assay_op_find(text);
  const assay_call call = {op, arg, param};
  const assay_variant *variant = op != NULL && fill_part(p, op, arg, param) ? variant_for(p, &call) : NULL;
  assay_env own = *env;
  *possible = variant != NULL;
  if (variant == NULL) return true;
  return device_status(variant->launch(&call, &own, &error), text, false, &error, result);
}

/* "rows@id", a kernel of this library that is wrong on purpose, is held to what `rows` promises. */
static bool is_built_in(const trial *t) {
  const size_t size = strcspn(t->variant->name, "@");
  for (int32_t v = 0; v < assay_variant_count(); ++v) {
    const assay_variant *one = assay_variant_at(v);
    if (strcmp(one->op, t->variant->op) == 0 && strcmp(one->device, t->variant->device) == 0 &&
        strlen(one->name) == size && strncmp(one->name, t->variant->name, size) == 0)
      return strcmp(assay_variant_origin(v), "built-in") == 0;
  }
  return false;
}

bool parts_check(const trial *t, const outputs *plain, case_result *result) {
  const assay_op *op = t->one->op;
  device_call on;
  outputs got = {{NULL}};
  bool possible = true, good;
  if (!judge_has_law(t, "parts") || op->parts == NULL || !is_built_in(t)) return true;
  if (!outputs_make(t, &got)) {
    judge_verdict(result, VERDICT_FAIL, "launch", "judge: out of memory");
    return false;
  }
  good = device_place(t, &t->first, 0, &on, result) && device_upload(t, &t->first, &on, result);
  parts_run p = {.t = t, .outer = &on.call};
  memcpy(p.now, on.arg, sizeof p.now);
  on.launch_ms = 0;
  t->device->schedule(t->one->seed);
  for (const char *at = op->parts; *at != '\0' && good && possible; at += *at == ',') {
    const size_t size = strcspn(at, ",");
    good = run_part(&p, at, size, &on.env, &possible, result);
    at += size;
  }
  const unsigned char *after = NULL;
  good = good && device_collect(t, &t->first, false, &on, &after, result);
  if (good && possible) {
    outputs_gather(t, &t->first, after, &got);
    for (int32_t o = 0; o < t->count && good; ++o)
      good = set_different(t, o, plain->bits[o], got.bits[o], "parts", op->parts, result);
    if (good) judge_add_law(result, "parts");
  }
  for (int32_t i = 0; i < p.scratches; ++i)
    t->device->release(p.scratch[i]);
  outputs_free(&got);
  return good;
}
