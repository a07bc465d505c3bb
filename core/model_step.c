/* model_step.c: checks the ids, lengths, tables, slots and copies of one step. */
#include "core/model_step.h"

static assay_status bad(assay_error *error, const char *what, int64_t number, const char *field, int64_t found,
                        int64_t min, int64_t max) {
  return assay_fail(error, ASSAY_ERR_INPUT, "%s %lld: %s: found %lld, allowed %lld to %lld", what, (long long)number,
                    field, (long long)found, (long long)min, (long long)max);
}

static assay_status check_sizes(const assay_model_limits *limits, const assay_model_batch *b, assay_error *error) {
  if (b->requests < 0 || b->requests > limits->max_requests)
    return assay_fail(error, ASSAY_ERR_INPUT, "requests: found %lld, allowed 0 to %lld", (long long)b->requests,
                      (long long)limits->max_requests);
  if (b->cu_q == NULL || b->cu_q[0] != 0) return assay_fail(error, ASSAY_ERR_INPUT, "cu_q: does not start with 0");
  for (int64_t i = 0; i < b->requests; ++i)
    if (b->cu_q[i + 1] < b->cu_q[i] || b->cu_q[i + 1] > limits->max_tokens)
      return bad(error, "request", i, "cu_q", b->cu_q[i + 1], b->cu_q[i], limits->max_tokens);
  if (b->logit_count < 0 || b->logit_count > limits->max_logits)
    return assay_fail(error, ASSAY_ERR_INPUT, "logit_count: found %lld, allowed 0 to %lld", (long long)b->logit_count,
                      (long long)limits->max_logits);
  for (int64_t i = 0; i < b->logit_count; ++i)
    if (b->logit_rows[i] < 0 || b->logit_rows[i] >= b->cu_q[b->requests])
      return bad(error, "logit", i, "row", b->logit_rows[i], 0, b->cu_q[b->requests] - 1);
  return ASSAY_OK;
}

static assay_status check_copies(const assay_model_limits *limits, const assay_model_batch *b, assay_error *error) {
  if (b->copy_count < 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "copy_count: found %lld, allowed 0 and more", (long long)b->copy_count);
  for (int64_t i = 0; i < 2 * b->copy_count; ++i)
    if (b->copies[i] < 0 || b->copies[i] >= limits->num_blocks)
      return bad(error, "copy", i / 2, i % 2 == 0 ? "source" : "target", b->copies[i], 0, limits->num_blocks - 1);
  /* Copies happen in any order: a target must not appear in any other place. */
  for (int64_t i = 0; i < b->copy_count; ++i)
    for (int64_t j = 0; j < b->copy_count; ++j)
      if (b->copies[2 * i + 1] == b->copies[2 * j] || (i != j && b->copies[2 * i + 1] == b->copies[2 * j + 1]))
        return assay_fail(error, ASSAY_ERR_INPUT, "copy %lld: target %lld is also the %s of copy %lld", (long long)i,
                          (long long)b->copies[2 * i + 1],
                          b->copies[2 * i + 1] == b->copies[2 * j] ? "source" : "target", (long long)j);
  return ASSAY_OK;
}

/* Checks the copies of states. */
static assay_status check_state_copies(const assay_model_limits *limits, const assay_model_batch *b,
                                       assay_error *error) {
  const int32_t *c = b->state_copies;
  if (b->state_copy_count < 0 || b->state_copy_count > limits->num_states)
    return assay_fail(error, ASSAY_ERR_INPUT, "state_copy_count: found %lld, allowed 0 to %lld",
                      (long long)b->state_copy_count, (long long)limits->num_states);
  for (int64_t i = 0; i < 2 * b->state_copy_count; ++i)
    if (c[i] < 0 || c[i] >= limits->num_states)
      return bad(error, "state copy", i / 2, i % 2 == 0 ? "source" : "target", c[i], 0, limits->num_states - 1);
  for (int64_t i = 0; i < b->state_copy_count; ++i)
    for (int64_t j = 0; j < b->state_copy_count; ++j)
      if (c[2 * i + 1] == c[2 * j] || (i != j && c[2 * i + 1] == c[2 * j + 1]))
        return assay_fail(error, ASSAY_ERR_INPUT, "state copy %lld: target %lld is also the %s of state copy %lld",
                          (long long)i, (long long)c[2 * i + 1], c[2 * i + 1] == c[2 * j] ? "source" : "target",
                          (long long)j);
  return ASSAY_OK;
}

/* Checks that each request with new tokens has a state of its own. */
static assay_status check_states(const assay_model_limits *limits, const assay_model_batch *b, model_step *step,
                                 assay_error *error) {
  if (b->requests > 0 && b->states == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "states: found none, allowed a slot for each request");
  for (int64_t i = 0; i < b->requests; ++i) {
    const int64_t rows = b->cu_q[i + 1] - b->cu_q[i], state = b->states[i];
    const bool pad = b->kv_len[i] == 0;
    if (rows == 0) continue;
    if (pad ? state != -1 : state < 0 || state >= limits->num_states)
      return bad(error, "request", i, pad ? "state of a pad row" : "state", state, pad ? -1 : 0,
                 pad ? -1 : limits->num_states - 1);
    if (!pad && step->stated[state] == step->number)
      return assay_fail(error, ASSAY_ERR_INPUT, "request %lld: state %lld: another request of the same step has it",
                        (long long)i, (long long)state);
    if (!pad) step->stated[state] = step->number;
  }
  return check_state_copies(limits, b, error);
}

/* Checks that a token's slot is where its request's table puts it, and that no other token writes to that slot. */
static assay_status check_row(const assay_model_config *config, const assay_model_batch *b, model_step *step,
                              int64_t request, int64_t n, int64_t position, assay_error *error) {
  const int64_t size = config->block_size, slot = b->slots[n];
  if (b->ids[n] < 0 || b->ids[n] >= config->vocab) return bad(error, "row", n, "id", b->ids[n], 0, config->vocab - 1);
  step->request[n] = (int32_t)request;
  step->position[n] = position;
  if (position < 0) {
    if (slot == -1) return ASSAY_OK;
    return bad(error, "row", n, "slot of a pad row", slot, -1, -1);
  }
  const int64_t own = b->block_table[request * b->max_blocks + position / size] * size + position % size;
  if (slot != own) return bad(error, "row", n, "slot (by its block table)", slot, own, own);
  if (step->written[slot] == step->number)
    return assay_fail(error, ASSAY_ERR_INPUT, "row %lld: slot %lld: written by another row of the same step",
                      (long long)n, (long long)slot);
  step->written[slot] = step->number;
  return ASSAY_OK;
}

static assay_status check_request(const assay_model_config *config, const assay_model_limits *limits,
                                  const assay_model_batch *b, model_step *step, int64_t i, assay_error *error) {
  const int64_t size = config->block_size, length = b->kv_len[i], new_tokens = b->cu_q[i + 1] - b->cu_q[i];
  if (new_tokens == 0) return ASSAY_OK;
  const bool pad = length == 0 && new_tokens == 1;
  if (!pad && (length < new_tokens || length > config->max_pos))
    return bad(error, "request", i, "kv_len", length, new_tokens, config->max_pos);
  const int64_t blocks = (length + size - 1) / size;
  if (blocks > b->max_blocks) return bad(error, "request", i, "blocks of kv_len", blocks, 0, b->max_blocks);
  for (int64_t j = 0; j < blocks; ++j) {
    const int64_t block = b->block_table[i * b->max_blocks + j];
    if (block < 0 || block >= limits->num_blocks)
      return bad(error, "request", i, "block table entry", block, 0, limits->num_blocks - 1);
  }
  if (length > step->longest) step->longest = length;
  for (int64_t n = 0; n < new_tokens; ++n) {
    const assay_status status =
        check_row(config, b, step, i, b->cu_q[i] + n, pad ? -1 : length - new_tokens + n, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

assay_status model_step_check(const assay_model_config *config, const assay_model_limits *limits,
                              const assay_model_batch *b, model_step *step, assay_error *error) {
  ++step->number;
  step->longest = 1;
  assay_status status = check_sizes(limits, b, error);
  if (status == ASSAY_OK) status = check_copies(limits, b, error);
  for (int64_t i = 0; i < b->requests && status == ASSAY_OK; ++i)
    status = check_request(config, limits, b, step, i, error);
  if (status == ASSAY_OK && assay_model_has_states(config)) status = check_states(limits, b, step, error);
  return status;
}

assay_status model_limits_check(const assay_model_config *c, const assay_model_limits *limits, assay_error *error) {
  const bool states = assay_model_has_states(c);
  if (limits->num_states < states || limits->num_states > (states ? 65536 : 0))
    return assay_fail(error, ASSAY_ERR_INPUT, "num_states: found %lld, allowed %d to %d", (long long)limits->num_states,
                      (int)states, states ? 65536 : 0);
  const struct {
    const char *name;
    int64_t value, max;
  } limit[] = {{"num_blocks", limits->num_blocks, INT32_MAX / c->block_size},
               {"max_tokens", limits->max_tokens, 1 << 20},
               {"max_requests", limits->max_requests, 1 << 20},
               {"max_logits", limits->max_logits, limits->max_tokens}};
  for (size_t i = 0; i < sizeof limit / sizeof limit[0]; ++i)
    if (limit[i].value < 1 || limit[i].value > limit[i].max)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld, allowed 1 to %lld", limit[i].name,
                        (long long)limit[i].value, (long long)limit[i].max);
  return ASSAY_OK;
}
