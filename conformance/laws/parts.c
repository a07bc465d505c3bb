/* parts.c: the law `parts`: an operator that stands for several (assay_op.parts) has the bits of these, called one
 * after the other on the same device. The law is asked of built-in variants; a plug-in's own arithmetic is judged by
 * the tier alone. */
#include <stdio.h>
#include <string.h>

#include "conformance/trial/trial.h"
#include "core/dtype.h"
#include "core/registry.h"
#include "laws_internal.h"

enum { MOST_PARTS = 4 };

/* The arguments of the call by name, as the parts so far have changed them. */
typedef struct parts_run {
  const trial *t;
  const assay_call *outer;          /* on the device */
  assay_tensor now[ASSAY_MAX_ARGS]; /* the outer operator's arguments, as the next part sees them */
  void *scratch[MOST_PARTS];
  int32_t scratches;
} parts_run;

static int32_t named_arg(const assay_op *op, const char *name, size_t size) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strlen(op->args[i].name) == size && strncmp(op->args[i].name, name, size) == 0) return i;
  return -1;
}

/* Takes dense memory for a tensor of the shape of `like`. */
static bool take_scratch(parts_run *p, const assay_tensor *like, assay_tensor *tensor) {
  assay_error error = {""};
  int64_t elements = 1;
  if (p->scratches == MOST_PARTS) return false;
  *tensor = *like;
  for (int32_t a = like->rank - 1; a >= 0; --a) {
    tensor->stride[a] = elements;
    elements *= like->shape[a] > 0 ? like->shape[a] : 1;
  }
  if (p->t->device->alloc(elements * assay_dtype_size(like->dtype), &p->scratch[p->scratches], &error) != ASSAY_OK)
    return false;
  tensor->data = p->scratch[p->scratches++];
  return true;
}

/* Fills one part's call. If it writes X_out and X is an input of the whole, later parts read X_out as X. If X is an
 * in-out argument of the whole and X_out is given, later parts work in place in X_out. Returns false where the call
 * cannot be made. */
static bool fill_part(parts_run *p, const assay_op *op, assay_tensor *arg, double *param) {
  const assay_op *whole = p->t->one->op;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const assay_arg *about = &op->args[i];
    const size_t size = strlen(about->name);
    const int32_t own = named_arg(whole, about->name, size);
    if (own >= 0) arg[i] = p->now[own];
    const int32_t input =
        size > 4 && strcmp(about->name + size - 4, "_out") == 0 ? named_arg(whole, about->name, size - 4) : -1;
    if (about->role != ASSAY_OUT || input < 0 || whole->args[input].role == ASSAY_OUT) continue;
    if (whole->args[input].role == ASSAY_INOUT) {
      if (arg[i].data == NULL) continue;
      p->now[input] = arg[i];
      p->now[own].data = NULL;
      continue;
    }
    if (arg[i].data == NULL && !take_scratch(p, &p->now[input], &arg[i])) return false;
    p->now[input] = arg[i];
  }
  for (int32_t i = 0; i < op->param_count; ++i) {
    const double given = assay_find_param(p->outer, op->params[i].name);
    param[i] = given == given ? given : op->params[i].fallback;
  }
  return true;
}

/* Returns the first built-in variant that takes the call without a workspace, or NULL. */
static const assay_variant *variant_for(const parts_run *p, const assay_call *call) {
  for (int32_t v = 0; v < assay_variant_count(); ++v) {
    const assay_variant *candidate = assay_variant_at(v);
    assay_error error = {""};
    int64_t bytes = 1;
    if (strcmp(candidate->op, call->op->name) != 0 || strcmp(candidate->device, p->t->device->name) != 0) continue;
    if (strcmp(assay_variant_origin(v), "built-in") != 0 || variant_supports(candidate, call, &error) != ASSAY_OK)
      continue;
    if (variant_workspace(candidate, call, &bytes, &error) == ASSAY_OK && bytes == 0) return candidate;
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
  return device_status(variant_launch(variant, &call, &own, &error), text, false, &error, result);
}

/* Tells whether the variant is built in. "rows@id", a kernel of this library that is wrong on purpose, is held to what
 * `rows` promises. */
static bool is_built_in(const trial *t) {
  const size_t size = strcspn(t->variant->name, "@");
  for (int32_t v = 0; v < assay_variant_count(); ++v) {
    const assay_variant *candidate = assay_variant_at(v);
    if (strcmp(candidate->op, t->variant->op) == 0 && strcmp(candidate->device, t->variant->device) == 0 &&
        strlen(candidate->name) == size && strncmp(candidate->name, t->variant->name, size) == 0)
      return strcmp(assay_variant_origin(v), "built-in") == 0;
  }
  return false;
}

bool parts_applies(const trial *t) {
  return trial_has_law(t, "parts") && t->one->op->parts != NULL && is_built_in(t);
}

bool parts_check(const trial *t, const outputs *base, case_result *result) {
  const assay_op *op = t->one->op;
  device_call on;
  outputs got = {{NULL}};
  bool possible = true, good;
  if (!outputs_make(t, &got)) {
    (void)verdict_no_memory(result);
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
      good = rerun_same_output(t, o, base->bits[o], got.bits[o], "parts", op->parts, result);
    if (good) result_add_law(result, "parts");
  }
  for (int32_t i = 0; i < p.scratches; ++i)
    t->device->release(p.scratch[i]);
  outputs_free(&got);
  return good;
}
