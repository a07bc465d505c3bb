/* shares.c: decode whose lengths differ much. A kernel with a row for each block ends when its longest row does. One
 * that divides all keys evenly (stream_k) ends at once, and costs more where all rows are equal. It reads the lengths
 * on the device, so that a graph of it holds for any lengths. */
#include <string.h>

#include "gpu/models/pass.h"

/* Batches with such lengths gained 18 to 62 % by even shares, and shorter or more even ones gained nothing
 * (docs/log/2026-11-28-h200-even-shares.md). */
enum { RAGGED_LENGTH = 1024, RAGGED_RATIO = 2 };

bool pass_ragged(const int32_t *kv_len, int64_t requests) {
  int64_t longest = 0, sum = 0;
  for (int64_t i = 0; i < requests; ++i) {
    longest = kv_len[i] > longest ? kv_len[i] : longest;
    sum += kv_len[i];
  }
  return longest >= RAGGED_LENGTH && longest * requests >= RAGGED_RATIO * sum;
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

bool pass_wants_shares(const pass *m, const assay_call *call) {
  const pass_switch form = m->choices.form[PASS_EVEN_SHARES];
  if (MISTAKE(ENGINE_NEVER_EVEN)) return false;
  return form == PASS_ON || (form == PASS_AUTO && m->ragged && !has_window(call));
}
