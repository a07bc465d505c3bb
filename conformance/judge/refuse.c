/* refuse.c: calls that must be refused: with a status and a message that names the parameter, and without a write. */
#include "conformance/text/text.h"
#include "conformance/trial/trial.h"
#include "judge.h"
#include "judge_internal.h"

static int32_t find_content(const assay_op *op, assay_content content) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == content) return i;
  return 0;
}

/* Returns a result, else the first argument that is written. */
static int32_t find_written(const assay_op *op) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == ASSAY_RESULT) return i;
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].role != ASSAY_IN) return i;
  return 0;
}

/* Returns the argument that the case names, else the usual one. */
static int32_t find_broken(const assay_case *one) {
  if (one->argument > 0) return one->argument - 1;
  if (one->broken == BREAK_SHAPE) return find_written(one->op);
  return find_content(one->op,
                      one->broken == BREAK_DTYPE && one->op->form == ASSAY_PAGED ? ASSAY_K_CACHE : ASSAY_QUERY);
}

/* Breaks the call: changes `arg`, its tensors, in place. */
static void break_call(const assay_case *one, assay_tensor *arg) {
  assay_tensor *const hit = &arg[find_broken(one)];
  const uintptr_t size = (uintptr_t)assay_dtype_size(hit->dtype);
  switch (one->broken) {
  case BREAK_NULL:
    hit->data = NULL;
    break;
  case BREAK_MISALIGNED:
    hit->data = (void *)((uintptr_t)hit->data + (size > 1 ? size / 2 : 1));
    break;
  case BREAK_DTYPE:
    hit->dtype = hit->dtype == ASSAY_I32 || hit->dtype == ASSAY_I64 ? ASSAY_F32 : ASSAY_I32;
    break;
  case BREAK_SHAPE:
    --hit->shape[0];
    break;
  case BREAK_STRIDE:
    hit->stride[hit->rank - 1] = 2;
    break;
  case BREAK_NEGATIVE:
    hit->shape[0] = -1;
    break;
  case BREAK_OVERFLOW:
    hit->stride[0] = INT64_MAX;
    break;
  case BREAK_NOTHING:
  case BREAK_EXTRA:     /* done by the generator: the argument is given */
  case BREAK_WORKSPACE: /* the environment's, not the call's */
  case BREAK_WORKSPACE_NULL:
    break;
  }
}

static bool breaks_workspace(const assay_case *one) {
  return one->broken == BREAK_WORKSPACE || one->broken == BREAK_WORKSPACE_NULL;
}

static bool refused(assay_status status) {
  return status == ASSAY_ERR_INPUT || status == ASSAY_ERR_UNSUPPORTED;
}

bool judge_must_refuse(const trial *t, assay_error *why) {
  assay_tensor arg[ASSAY_MAX_ARGS];
  const assay_call call = {t->one->op, arg, t->first.param};
  memcpy(arg, t->first.arg, sizeof arg);
  break_call(t->one, arg);
  return t->one->op->check(&call, why) != ASSAY_OK;
}

/* Checks that the definition itself refuses, unless the workspace is wrong. */
static bool reference_refuses(const trial *t, case_result *result) {
  assay_error error = {""};
  if (breaks_workspace(t->one) || judge_must_refuse(t, &error)) return true;
  verdict_set(result, VERDICT_FAIL, "refusal", "the reference accepts a call that must be refused for '%s'",
              t->one->expect);
  return false;
}

/* Tells whether `name` is a whole word before the text's colon. */
static bool has_word(const char *text, const char *name) {
  return word_is_in(text, strcspn(text, ":"), name);
}

/* Tells whether the text names an argument or a dimension of the operator before its colon. */
static bool has_any(const assay_op *op, const char *text) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (has_word(text, op->args[i].name)) return true;
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (has_word(text, op->dims[i].name)) return true;
  return false;
}

/* Tells whether the message names the error. "+" stands for any argument or dimension. If the case names the broken
 * argument, the expected name must be a whole word before the colon. In "k_cache: found dtype f32, allowed that of q",
 * for example, "q" does not count. Where a shape is broken, the expected name is that of an argument which then does
 * not fit. The broken one is right too. */
static bool names(const assay_case *one, const char *text) {
  if (strcmp(one->expect, "+") == 0) return has_any(one->op, text);
  if (one->argument == 0) return strstr(text, one->expect) != NULL;
  if (has_word(text, one->expect)) return true;
  return one->broken == BREAK_SHAPE && has_word(text, one->op->args[one->argument - 1].name);
}

/* Returns true if the status decided the case. A variant may be unable to do the call for another reason. */
static bool decided(const trial *t, const char *step, assay_status status, const assay_error *error,
                    case_result *result) {
  if (status == ASSAY_OK || (refused(status) && names(t->one, error->text))) return false;
  if (status == ASSAY_ERR_UNSUPPORTED)
    verdict_set(result, VERDICT_UNSUPPORTED, "refusal", "%s", error->text);
  else if (status == ASSAY_ERR_INPUT)
    verdict_set(result, VERDICT_FAIL, "refusal", "%s refuses without naming '%s': %s", step, t->one->expect,
                error->text);
  else
    verdict_set(result, VERDICT_FAIL, "refusal", "%s ends with status %d where it should refuse for '%s': %s", step,
                (int)status, t->one->expect, error->text);
  return true;
}

/* Fails a call that was launched although it must be refused, whatever the call did. */
static void accepted(const assay_case *one, case_result *result) {
  verdict_set(result, VERDICT_FAIL, "refusal", "launch() accepts a call that must be refused for '%s'", one->expect);
}

void refuse_judge(trial *t, case_result *result) {
  const assay_variant *variant = t->variant;
  const unsigned char *after = NULL;
  assay_error error = {""};
  device_call on;
  if (!reference_refuses(t, result)) return;

  /* Asking is safe, and the answers may be yes; the launcher must refuse. */
  if (!device_place(t, &t->first, 0, &on, result)) return;
  break_call(t->one, on.arg);
  if (decided(t, "supports()", variant_supports(variant, &on.call, &error), &error, result)) return;
  error.text[0] = '\0';
  int64_t bytes = 0;
  const assay_status asked = variant_workspace(variant, &on.call, &bytes, &error);
  if (decided(t, "workspace()", asked, &error, result)) return;
  if (breaks_workspace(t->one) && (asked != ASSAY_OK || bytes < 1)) {
    verdict_set(result, VERDICT_UNSUPPORTED, "refusal", "has no workspace that could be too small");
    return;
  }
  t->workspace_bytes = asked == ASSAY_OK && bytes > 0 ? bytes : 0;
  if (!device_place(t, &t->first, 0, &on, result)) return;
  break_call(t->one, on.arg);
  if (t->one->broken == BREAK_WORKSPACE) --on.env.workspace_bytes;
  if (t->one->broken == BREAK_WORKSPACE_NULL) on.env.workspace = NULL;
  if (!device_upload(t, &t->first, &on, result)) return;

  error.text[0] = '\0';
  const assay_status status = variant_launch(variant, &on.call, &on.env, &error);
  if (!device_collect(t, &t->first, true, &on, &after, result)) {
    if (status == ASSAY_OK && result->verdict == VERDICT_FAIL)
      accepted(t->one, result);
    else if (strcmp(result->check, "input") == 0)
      (void)snprintf(result->check, sizeof result->check, "refusal");
    return;
  }
  if (decided(t, "launch()", status, &error, result)) return;
  if (status == ASSAY_OK)
    accepted(t->one, result);
  else
    verdict_set(result, VERDICT_REFUSED, "refusal", "%s", error.text);
}
