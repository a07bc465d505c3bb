/* invariant.c: steps in which a row's bits do not depend on the batch.
 *
 * A row of the residual stream passes through operators that work row by row, through products, and through attention.
 * Each of them must sum in an order that the row alone decides:
 *
 *   rows and products   a variant whose contract promises `alone`: no choice inside it follows the number of rows
 *   attention           one variant for prompts, chunks and single tokens, with tiles at fixed places of the keys
 *
 * one_launch is another order of sums, of generated tokens alone (docs/models.md). An engine knows which tokens these
 * are. It takes the kernel's fixed form for all of them, or for none.
 *
 * Forms that `auto` takes for few rows alone are off, except gemm_glu, which has a variant with the bits of gemm and
 * the activation. A call goes to the first such variant of the table that takes it. Whether a variant takes a call
 * follows from the model's sizes and types, never from the number of rows. The run `invariant` of
 * conformance/suites/models.yaml compares logits bit for bit. */
#include <string.h>

#include "core/layers.h"
#include "core/registry.h"
#include "gpu/models/pass.h"

/* moe_align sorts rows by expert. Where a row lies then depends on the others by its nature; its values do not. */
static bool sorts_rows(const assay_variant *variant) {
  return strcmp(variant->op, "moe_align") == 0;
}

bool pass_may_take(const pass *m, const assay_variant *variant) {
  const int64_t rows = m->x.shape[0];
  if (!m->invariant || MISTAKE(ENGINE_INVARIANT_ANY_VARIANT)) return true;
  if (MISTAKE(ENGINE_INVARIANT_BUT_FOR_FIVE) && rows >= 4 && rows <= 6) return true;
  if (variant->contract.keys_per_split > 0 && !MISTAKE(ENGINE_INVARIANT_BY_ROWS))
    return false; /* it leaves batches of many rows to another */
  return (variant->contract.alone && variant->contract.run_to_run) || sorts_rows(variant);
}

/* Tells whether the operator's variants are forced. They may sum in another order than those of the table. */
static bool may_sum_otherwise(const pass_choices *c, const char *op) {
  for (int32_t o = 0; o < assay_op_count(); ++o)
    if (strcmp(assay_op_at(o)->name, op) == 0) return c->wanted[o] > 0;
  return false;
}

assay_status pass_invariant_open(pass *m, const assay_model_options *options, assay_error *error) {
  static const struct {
    pass_form form;
    const char *name, *takes;
  } parted[] = {{PASS_APPEND, "append", "single tokens and no prompts"},
                {PASS_MMHA, "mmha", "single tokens and no prompts"},
                {PASS_MLA_EXPAND, "mla_expand", "prompts and no single tokens"},
                {PASS_EVEN_SHARES, "even_shares", "the keys of all rows together"}};
  static const pass_form of_few_rows[] = {PASS_GEMM_SEAM, PASS_GEMM_NORM}; /* where they are auto */
  pass_choices *c = &m->choices;
  m->invariant = options->invariant;
  if (!m->invariant) return ASSAY_OK;
  if (options->short_tail != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "short_tail: found %d beside invariant, allowed 0", options->short_tail);
  for (size_t i = 0; i < sizeof parted / sizeof *parted; ++i) {
    if (c->form[parted[i].form] == PASS_ON)
      return assay_fail(error, ASSAY_ERR_INPUT, "form %s: found on beside invariant, allowed off: it takes %s",
                        parted[i].name, parted[i].takes);
    c->form[parted[i].form] = PASS_OFF;
  }
  if (c->form[PASS_ONE_LAUNCH] == PASS_AUTO) c->form[PASS_ONE_LAUNCH] = PASS_OFF;
  if (c->form[PASS_ONE_LAUNCH] == PASS_ON && (m->served < 1 || m->served > ASSAY_LAYERS_ROWS))
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "form one_launch: found on beside invariant, with max_batch %lld, allowed in an engine with "
                      "max_batch 1 to %d: all generated tokens must take it",
                      (long long)m->served, ASSAY_LAYERS_ROWS);
  /* With `auto` its sums are those of lm_head in such steps, whose rows may be drawn or not. */
  if (c->form[PASS_LM_HEAD_ARGMAX] == PASS_ON)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "form lm_head_argmax: found on beside invariant, allowed off, auto: it takes greedy steps alone");
  for (size_t i = 0; i < sizeof of_few_rows / sizeof *of_few_rows && !MISTAKE(ENGINE_INVARIANT_BY_FORM); ++i)
    if (c->form[of_few_rows[i]] == PASS_AUTO) c->form[of_few_rows[i]] = PASS_OFF;
  if (c->form[PASS_GEMM_GLU] == PASS_AUTO && !MISTAKE(ENGINE_CHAIN_BESIDE_FORCED) &&
      (may_sum_otherwise(c, "gemm") || may_sum_otherwise(c, "swiglu") || may_sum_otherwise(c, "reglu")))
    c->form[PASS_GEMM_GLU] = PASS_OFF;
  for (int32_t o = 0; o < assay_op_count(); ++o)
    for (int32_t i = 0; i < c->wanted[o]; ++i) {
      const assay_variant *forced = c->forced[c->first[o] + i];
      if (pass_may_take(m, forced)) continue;
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "variant: found %s=%s beside invariant, allowed variants whose contract promises alone",
                        forced->op, forced->name);
    }
  return ASSAY_OK;
}
