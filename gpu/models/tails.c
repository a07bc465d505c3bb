/* tails.c: steps that attend row by row. If every request has only a few new tokens, a tile of prefill would be almost
 * empty. Each row is then a request of its own for a decode kernel, with its request's table and its own length. */
#include "gpu/models/pass.h"

assay_status pass_tails_open(pass *m, int32_t short_tail, assay_error *error) {
  const int64_t most = (int64_t)short_tail * m->limits.max_requests;
  const int64_t rows = most < m->limits.max_tokens ? most : m->limits.max_tokens, width = m->table.shape[1];
  if (short_tail < 0 || short_tail > ASSAY_MODEL_SHORT_TAIL)
    return assay_fail(error, ASSAY_ERR_INPUT, "short_tail: found %d, allowed 0 to %d", short_tail,
                      ASSAY_MODEL_SHORT_TAIL);
  pass_tails_close(m);
  if (short_tail == 0) return ASSAY_OK;
  const assay_status status = m->device->alloc((2 + width) * rows * (int64_t)sizeof(int32_t), &m->tail_memory, error);
  if (status != ASSAY_OK) return status;
  int32_t *const at = m->tail_memory;
  m->tail_request = m->tail_len =
      (assay_tensor){.data = at, .dtype = ASSAY_I32, .rank = 1, .shape = {rows}, .stride = {1}};
  m->tail_len.data = at + rows;
  m->tail_table = m->table;
  m->tail_table.data = at + 2 * rows;
  m->short_tail = short_tail;
  return ASSAY_OK;
}

void pass_tails_close(pass *m) {
  if (m->tail_memory != NULL) m->device->release(m->tail_memory);
  m->tail_memory = NULL;
  m->short_tail = 0;
}

bool pass_short(const pass *m, const int32_t *cu_q, int64_t requests) {
  for (int64_t i = 0; i < requests; ++i)
    if (cu_q[i + 1] - cu_q[i] > m->short_tail) return false;
  return m->short_tail > 0;
}

void pass_tail_lengths(int32_t length, int64_t count, int32_t *to) {
  for (int64_t t = 0; t < count; ++t)
    to[t] = length == 0 ? 0 : length - (int32_t)(count - 1 - t);
}

/* Moves words: the operator takes them as a table of f32. */
void pass_tails(pass *m) {
  const int64_t N = m->x.shape[0], width = m->table.shape[1];
  assay_tensor table = m->table;
  assay_tensor *const rows = &m->tail_table;
  m->tail_request.shape[0] = m->tail_len.shape[0] = rows->shape[0] = N;
  rows->shape[1] = rows->stride[0] = width;
  assay_tensor y = *rows;
  table.dtype = y.dtype = ASSAY_F32;
  const pass_arg args[] = {{"table", table}, {"ids", m->tail_request}, {"y", y}, {.name = NULL}};
  const pass_param none[] = {{NULL, 0}};
  m->stage = "tails";
  pass_call(m, "embedding", args, none);
}
