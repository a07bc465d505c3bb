/* prefer.c: variants that come before the first of the table, by the lengths of a step, which no launcher knows
 * (core/prefer.h), and by its rows.
 *
 * Decode whose lengths differ much: a kernel with a row for each block ends when its longest row does. One that divides
 * all keys evenly (stream_k) ends at once, and costs more where all rows are equal. It reads the lengths on the device,
 * so that a graph of it holds for any lengths.
 *
 * Long prompts of eight heads per group and 64 channels: packed_wgmma is faster there, and slower for short ones.
 *
 * Products of nearly 128 rows: two tiles of 64 rows by wgmma are faster than `parts`, where the sums are short.
 *
 * Products with gates of more than 32 rows: `parts` is faster than `skinny`, which takes as many as 64. In an invariant
 * step `chain` takes them from 9 rows on, since more rows than it takes go to gemm and the activation. */
#include <string.h>

#include "core/prefer.h"
#include "gpu/models/pass.h"

bool pass_ragged(const int32_t *kv_len, int64_t requests) {
  return prefer_even_shares(kv_len, requests);
}

bool pass_shares_evenly(const assay_variant *variant) {
  return strncmp(variant->name, "stream_k", 8) == 0;
}

/* Rows of a layer with a window have equal lengths as soon as the window is full. */
static bool has_window(const assay_call *call) {
  for (int32_t i = 0; i < call->op->param_count; ++i)
    if (strcmp(call->op->params[i].name, "window") == 0) return call->param[i] > 0;
  return false;
}

static bool wants_shares(const pass *m, const assay_call *call) {
  const pass_switch form = m->choices.form[PASS_EVEN_SHARES];
  if (MISTAKE(ENGINE_NEVER_EVEN)) return false;
  return form == PASS_ON || (form == PASS_AUTO && m->ragged && !has_window(call));
}

/* In an invariant step the variant must not follow from the step's lengths. */
static bool wants_packed(const pass *m, const assay_call *call) {
  const assay_model_config *c = &m->config;
  const int64_t requests = m->cu_q.shape[0] - 1;
  if (m->decode || m->tails || m->invariant || strcmp(call->op->name, "softmax_attention") != 0) return false;
  return !has_window(call) && prefer_packed(c->head_size, c->heads, c->kv_heads, m->x.shape[0], requests);
}

/* With 128 rows the products of a step took 321 us by wgmma and 404 by parts
 * (docs/log/2026-11-28-h200-pairs-of-tiles.md).
 */
enum { PAIR_ROWS = 120, PAIR_MOST_ROWS = 128, PAIR_CHANNELS = 4096, PAIR_TERMS = 3072 };

static bool wants_pair(const pass *m, const assay_call *call) {
  const assay_tensor *a = &call->arg[0], *b = &call->arg[1];
  return !m->invariant && strcmp(call->op->name, "gemm") == 0 && a->shape[0] >= PAIR_ROWS &&
         a->shape[0] <= PAIR_MOST_ROWS && b->shape[0] <= PAIR_CHANNELS && b->shape[1] <= PAIR_TERMS;
}

enum { GLU_ROWS = 32 }; /* most rows for skinny */

/* With 64 rows parts took 5.7 us where skinny took 8.9 (docs/log/2026-11-28-h200-shared-terms.md). */
static bool wants_parts(const pass *m, const assay_call *call) {
  return !m->invariant && strcmp(call->op->name, "gemm_glu") == 0 && call->arg[0].shape[0] > GLU_ROWS;
}

/* With 4 rows chain took 6.9 us where two calls took 5.8, with 64 rows 6.4 for 7.4, with 128 rows 6.8 for 9.5
 * (docs/log/2026-11-28-h200-invariant-look.md). The bits are the same. */
enum { CHAIN_ROWS = 8 };

bool pass_wants_chain(const pass *m) {
  return m->invariant && m->choices.form[PASS_GEMM_GLU] == PASS_AUTO && !MISTAKE(ENGINE_INVARIANT_BY_FORM);
}

bool pass_prefers(const pass *m, const assay_call *call, const assay_variant *variant) {
  if (pass_shares_evenly(variant)) return wants_shares(m, call);
  if (strncmp(variant->name, "parts", 5) == 0) return wants_parts(m, call);
  if (strncmp(variant->name, "chain", 5) == 0)
    return strcmp(variant->op, "gemm_glu") == 0 && pass_wants_chain(m) && call->arg[0].shape[0] > CHAIN_ROWS;
  if (strncmp(variant->name, "wgmma", 5) == 0 && strcmp(variant->op, "gemm") == 0) return wants_pair(m, call);
  return strncmp(variant->name, "packed_wgmma", 12) == 0 && wants_packed(m, call);
}
