/* calls.c: calls of variants, between a look at the modes and another. */
#include "core/calls.h"

#include "core/contract.h"
#include "core/modes.h"
#include "core/registry.h"

static void look(const char *what) {
  char text[160];
  if (modes_changed(text, sizeof text)) modes_note(what, text);
}

/* Returns the call as a variant sees it: its operator cannot be asked for the right results. Several calls may be under
 * way, and a launcher may read its call until then: the last ones of this thread stay as they are. */
static const assay_call *shown(const assay_call *call) {
  enum { KEPT = 64 };
  static _Thread_local assay_call seen[KEPT];
  static _Thread_local unsigned count;
  if (call == NULL || call->op == NULL) return call;
  assay_call *made = &seen[count++ % KEPT];
  *made = *call;
  made->op = assay_op_shown(call->op);
  return made;
}

assay_status variant_supports(const assay_variant *v, const assay_call *call, assay_error *error) {
  const assay_status believed = contract_check(&v->contract, error);
  if (believed != ASSAY_OK) return believed;
  modes_set();
  const assay_status status = v->supports(shown(call), error);
  look("after supports()");
  return status;
}

assay_status variant_workspace(const assay_variant *v, const assay_call *call, int64_t *bytes, assay_error *error) {
  modes_set();
  const assay_status status = v->workspace(shown(call), bytes, error);
  look("after workspace()");
  return status;
}

assay_status variant_sums(const assay_variant *v, const assay_call *call, const assay_env *env, assay_sums *sums,
                          assay_error *error) {
  *sums = (assay_sums){.unit = ASSAY_SUM_NONE};
  if (v->sums == NULL) return ASSAY_ERR_UNSUPPORTED;
  modes_set();
  const assay_status status = v->sums(shown(call), env, sums, error);
  look("after sums()");
  return status;
}

assay_status variant_plan(const assay_variant *v, const assay_call *call, assay_env *env, assay_error *error) {
  const assay_plugin_door *door = assay_plugin_door_of(v);
  if (door == NULL || door->plan == NULL) return ASSAY_OK;
  modes_set();
  const assay_status status = door->plan(door->context, v, shown(call), env, error);
  look("after the plan");
  return status;
}

assay_status variant_launch(const assay_variant *v, const assay_call *call, assay_env *env, assay_error *error) {
  const assay_status status = variant_plan(v, call, env, error);
  return status == ASSAY_OK ? variant_launch_planned(v, call, env, error) : status;
}

assay_status variant_launch_planned(const assay_variant *v, const assay_call *call, assay_env *env,
                                    assay_error *error) {
  modes_set();
  const assay_status status = v->launch(shown(call), env, error);
  look("after launch()");
  return status;
}
