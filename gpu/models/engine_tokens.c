/* engine_tokens.c: takes the tokens that have arrived, and waits for them. */
#include "gpu/models/engine_parts.h"

/* Commits ids up to place `upto`. A prompt would have other keys and values of generated ids. These are committed as
 * their complements, which no prompt has, so that no prompt hits their blocks. */
static assay_status commit_by_role(const assay_engine *e, const engine_request *r, int64_t upto, assay_error *error) {
  const int64_t given = upto < r->prompt ? upto : r->prompt, count = given - r->committed;
  assay_status status = ASSAY_OK;
  if (count > 0) status = assay_kv_commit(e->kv, r->kv, r->text + r->committed, count, error);
  for (int64_t p = count > 0 ? given : r->committed; p < upto && status == ASSAY_OK; ++p) {
    const int32_t id = ~r->text[p];
    status = assay_kv_commit(e->kv, r->kv, &id, 1, error);
  }
  return status;
}

assay_status engine_commit(assay_engine *e, engine_request *r, assay_error *error) {
  int64_t upto = assay_kv_length(e->kv, r->kv);
  if (upto > r->known) upto = r->known;
  assay_status status = ASSAY_OK;
  bool kept = false;
  if (e->by_role && !MISTAKE(ENGINE_ROLES_SHARE))
    status = commit_by_role(e, r, upto, error);
  else if (upto > r->committed)
    status = assay_kv_commit(e->kv, r->kv, r->text + r->committed, upto - r->committed, error);
  if (status == ASSAY_OK && upto > r->committed) r->committed = upto;
  return status == ASSAY_OK && e->S > 0 ? assay_kv_keep_state(e->kv, r->kv, &kept, error) : status;
}

static assay_status take_tokens(assay_engine *e, int32_t at, assay_error *error) {
  const engine_sent *sent = &e->sent[at];
  assay_status status = assay_kv_step_done(e->kv, sent->kv_step, error);
  for (int64_t j = 0; j < sent->rows && status == ASSAY_OK; ++j) {
    engine_request *r = &e->request[sent->request[j]];
    if (!r->open || (r->serial != sent->serial[j] && !MISTAKE(ENGINE_SERIAL_FORGOTTEN))) continue;
    const int32_t token = e->ring[at * e->B + (MISTAKE(ENGINE_TOKEN_OF_NEIGHBOUR) ? (j + 1) % sent->rows : j)];
    const int64_t place = r->prompt + r->arrived;
    if (token < 0) r->bad = true;
    if (place == r->known && place <= e->options.max_length) r->text[r->known++] = token;
    r->chosen[r->arrived++] = token;
    if (!r->bad) status = engine_commit(e, r, error);
  }
  return status;
}

assay_status engine_collect(assay_engine *e, bool wait, assay_error *error) {
  assay_status status = e->broken;
  if (status != ASSAY_OK) return assay_fail(error, status, "engine: a step before failed");
  while (status == ASSAY_OK && e->collected < e->stats.steps) {
    const int32_t at = (int32_t)(e->collected % ENGINE_RING);
    bool reached = false;
    status = e->flow->reached(MARK_DOWN + at, wait, &reached, error);
    if (status != ASSAY_OK || !reached) break;
    status = take_tokens(e, at, error);
    ++e->collected;
    wait = false;
  }
  e->broken = status;
  return status;
}

assay_status assay_engine_wait(assay_engine *e, assay_error *error) {
  assay_status status = e->broken;
  if (status != ASSAY_OK) return assay_fail(error, status, "engine: a step before failed");
  while (status == ASSAY_OK && e->collected < e->stats.steps)
    status = engine_collect(e, true, error);
  return status;
}
