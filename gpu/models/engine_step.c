/* engine_step.c: one step: reserves blocks, uploads inputs during the previous step, runs calls or a graph, sends for
 * tokens. */
#include <string.h>

#include "core/prefer.h"
#include "gpu/models/engine_parts.h"

typedef long long ll; /* for messages */

typedef struct step_plan {
  const assay_engine_part *part;
  int64_t parts, N, sampled, copies, state_copies;
  int64_t front, front_rows, front_sampled; /* by_role: of the parts with prompt tokens, where others follow; else 0 */
  int64_t runs, run_blocks;                 /* a step with prompts has runs; 0: none */
  int half;
  bool decode, arranged;
  int kind;              /* ENGINE_EVEN, ENGINE_GREEDY */
  engine_bucket *bucket; /* NULL: call by call */
} step_plan;

/* ---- needs of the step ----------------------------------------------------------------------------------- */

static assay_status check_part(const assay_engine *e, const step_plan *p, int64_t i, assay_error *error) {
  const assay_engine_part *part = &p->part[i];
  if (part->request < 0 || part->request >= e->B || !e->request[part->request].open)
    return assay_fail(error, ASSAY_ERR_INPUT, "part %lld: found request %d, which is not open", (ll)i, part->request);
  const engine_request *r = &e->request[part->request];
  const int64_t left = r->prompt - r->computed, most = left > 0 ? left : 1;
  if (part->tokens < 1 || part->tokens > most)
    return assay_fail(error, ASSAY_ERR_INPUT, "part %lld: tokens: found %lld, allowed 1 to %lld", (ll)i,
                      (ll)part->tokens, (ll)most);
  const int64_t longest = e->options.max_length - MISTAKE(ENGINE_LAST_POSITION_REFUSED);
  if (assay_kv_length(e->kv, r->kv) + part->tokens > longest)
    return assay_fail(error, ASSAY_ERR_INPUT, "part %lld: length: found %lld, allowed 0 to %lld", (ll)i,
                      (ll)(assay_kv_length(e->kv, r->kv) + part->tokens), (ll)e->options.max_length);
  if (part->forced != NULL && left == 0 && (*part->forced < 0 || *part->forced >= e->m->config.vocab))
    return assay_fail(error, ASSAY_ERR_INPUT, "part %lld: forced: found id %d, allowed 0 to %lld", (ll)i, *part->forced,
                      (ll)(e->m->config.vocab - 1));
  for (int64_t j = 0; j < i; ++j)
    if (p->part[j].request == part->request)
      return assay_fail(error, ASSAY_ERR_INPUT, "part %lld: request %d is in part %lld already", (ll)i, part->request,
                        (ll)j);
  return ASSAY_OK;
}

static assay_status make_plan(assay_engine *e, step_plan *p, assay_error *error) {
  p->half = (int)(e->stats.steps & 1);
  p->decode = true;
  p->kind = ENGINE_GREEDY;
  if (p->parts < 1 || p->parts > e->B)
    return assay_fail(error, ASSAY_ERR_INPUT, "parts: found %lld, allowed 1 to %lld", (ll)p->parts, (ll)e->B);
  for (int64_t i = 0; i < p->parts; ++i) {
    const assay_status status = check_part(e, p, i, error);
    if (status != ASSAY_OK) return status;
    const engine_request *r = &e->request[p->part[i].request];
    const int64_t left = r->prompt - r->computed;
    p->N += p->part[i].tokens;
    p->decode = p->decode && left == 0;
    p->sampled += left <= p->part[i].tokens;
    if (left <= p->part[i].tokens && (float)r->sampling.temperature != 0 && !MISTAKE(ENGINE_ALWAYS_GREEDY))
      p->kind &= ~ENGINE_GREEDY;
  }
  if (p->N > e->N)
    return assay_fail(error, ASSAY_ERR_INPUT, "parts: found %lld tokens, allowed 1 to %lld", (ll)p->N, (ll)e->N);
  p->bucket = p->decode && !e->eager ? engine_bucket_of(e, p->parts) : NULL;
  return ASSAY_OK;
}

/* Tells whether a part is a generated token. */
static bool generates(const assay_engine *e, const assay_engine_part *part) {
  const engine_request *r = &e->request[part->request];
  return r->computed == r->prompt;
}

/* Puts parts with prompt tokens before those with generated ones, where the step has both. */
static void turn_parts(assay_engine *e, step_plan *p) {
  const assay_engine_part *const from = p->part;
  int64_t count = 0, sampled = 0, row = 0;
  e->turned = false;
  for (int64_t i = 0; i < p->parts && e->by_role && !MISTAKE(ENGINE_ROLES_FORGOTTEN); ++i)
    p->front += !generates(e, &from[i]);
  if (p->front == p->parts) p->front = 0;
  if (p->front == 0) return;
  for (int generated = 0; generated < 2; ++generated) {
    for (int64_t i = 0, k = 0; i < p->parts; ++i) {
      const engine_request *r = &e->request[from[i].request];
      const bool samples = r->prompt - r->computed <= from[i].tokens;
      if (generates(e, &from[i]) == (generated == 1)) {
        e->turned_part[count++] = from[i];
        row += from[i].tokens;
        if (samples) e->logit_row[k] = sampled++;
      }
      k += samples;
    }
    if (generated == 1) continue;
    p->front_rows = row;
    p->front_sampled = sampled;
  }
  p->part = e->turned_part;
  e->turned = true;
}

/* Returns the number of blocks that the parts need, including clones of shared last blocks. */
static int64_t blocks_needed(const assay_engine *e, const step_plan *p) {
  const int64_t size = e->m->config.block_size;
  int64_t need = 0;
  for (int64_t i = 0; i < p->parts; ++i) {
    const engine_request *r = &e->request[p->part[i].request];
    const int64_t length = assay_kv_length(e->kv, r->kv), have = (length + size - 1) / size;
    const int32_t *table = assay_kv_table(e->kv, r->kv, NULL);
    need += (length + p->part[i].tokens + size - 1) / size - have;
    need += length % size != 0 && assay_kv_count(e->kv, table[have - 1]) > 1;
  }
  return need;
}

static assay_status have_blocks(assay_engine *e, const step_plan *p, assay_error *error) {
  const int64_t need = blocks_needed(e, p);
  for (;;) {
    assay_kv_stats s;
    assay_kv_get_stats(e->kv, &s);
    if (need <= s.free + s.idle - s.held) return ASSAY_OK;
    if (e->collected == e->stats.steps)
      return assay_fail(error, ASSAY_ERR_MEMORY, "step: pool exhausted: %lld blocks needed, %lld of %lld can be had",
                        (ll)need, (ll)(s.free + s.idle - s.held), (ll)e->options.num_blocks);
    const assay_status status = engine_collect(e, true, error);
    if (status != ASSAY_OK) return status;
  }
}

/* ---- inputs ---------------------------------------------------------------------------------------------- */

/* Fills a row of the host's table with the entries that are new since the row was last this request's. Returns whether
 * the row changed. */
static bool put_table(assay_engine *e, int half, int64_t row, const engine_request *r) {
  int64_t blocks = 0, from = 0;
  const int32_t *table = assay_kv_table(e->kv, r->kv, &blocks);
  int32_t *to = e->host[half].table + row * e->W;
  if (e->row_serial[half][row] == r->serial) {
    from = e->row_blocks[half][row]; /* the last one may have been cloned */
    from -= from > 0 && !MISTAKE(ENGINE_STALE_TABLE);
  }
  e->row_serial[half][row] = r->serial;
  e->row_blocks[half][row] = blocks;
  bool changed = false;
  for (int64_t j = from; j < blocks; ++j) {
    changed = changed || to[j] != table[j];
    to[j] = table[j];
  }
  return changed;
}

static void put_row(const engine_input *in, int64_t i, const engine_request *r) {
  in->step[i] = MISTAKE(ENGINE_STEP_NUMBER_STALE) ? 0 : (int32_t)r->steps;
  in->seed[i] = (int64_t)r->sampling.seed;
  in->id[i] = (int64_t)r->sampling.id;
  in->temperature[i] = (float)r->sampling.temperature;
  in->top_p[i] = (float)r->sampling.top_p;
  in->min_p[i] = (float)r->sampling.min_p;
  in->top_k[i] = (int32_t)r->sampling.top_k;
}

/* Gives row i the slot of its request's state. It begins with zeros if the request has no tokens yet. */
static void put_state(const assay_engine *e, const engine_input *in, int64_t i, const engine_request *r,
                      int64_t length) {
  if (e->S == 0) return;
  in->states[i] = MISTAKE(ENGINE_STATE_OF_FIRST) && i > 0 ? in->states[0] : assay_kv_state_slot(e->kv, r->kv);
  in->fresh_states[i] = MISTAKE(ENGINE_STATE_NEVER_FRESH)    ? 0
                        : MISTAKE(ENGINE_STATE_FRESH_CHUNKS) ? r->computed < r->prompt
                                                             : length == 0;
}

static void put_pads(const assay_engine *e, const engine_input *in, const step_plan *p) {
  for (int64_t i = p->parts; p->bucket != NULL && i < p->bucket->rows; ++i) {
    in->slots[i] = MISTAKE(ENGINE_PAD_WRITES) ? in->slots[0] : -1;
    in->kv_len[i] = MISTAKE(ENGINE_PAD_WRITES) ? 1 : 0;
    in->positions[i] = in->step[i] = in->top_k[i] = 0;
    in->seed[i] = in->id[i] = 0;
    in->rows[i] = (int32_t)i;
    in->cu_q[i + 1] = (int32_t)i + 1;
    in->temperature[i] = in->min_p[i] = 0;
    in->top_p[i] = 1;
    if (e->S == 0) continue;
    in->states[i] = MISTAKE(ENGINE_PAD_HAS_STATE) ? in->states[0] : -1;
    in->fresh_states[i] = 1;
  }
}

/* Makes rows n, n + 1, ... of part i requests of their own. */
static void put_tails(const engine_input *in, int64_t n, int64_t i, int64_t length, int64_t tokens) {
  for (int64_t t = 0; t < tokens; ++t)
    in->tail_request[n + t] = MISTAKE(ENGINE_TAIL_OF_FIRST) ? 0 : (int32_t)i;
  pass_tail_lengths((int32_t)(length + tokens), tokens, in->tail_len + n);
  if (MISTAKE(ENGINE_TAIL_SEES_ALL)) in->tail_len[n] = (int32_t)(length + tokens);
}

/* Cuts the step into runs. */
static void put_runs(assay_engine *e, step_plan *p) {
  const engine_input *in = &e->host[p->half];
  const latent_batch step = {p->parts, in->cu_q, in->kv_len, in->table, e->W};
  const latent_lists lists = {in->run_cu_q, in->run_cu_k, in->run_blocks};
  p->run_blocks = pass_expand_plan(e->m, &step, &lists);
  p->runs = e->m->runs;
}

/* Fills slots, positions, lengths and tables. *low .. *high become the rows of the table that changed. */
static assay_status put_inputs(assay_engine *e, step_plan *p, int64_t *low, int64_t *high, assay_error *error) {
  const engine_input *in = &e->host[p->half];
  int64_t n = 0, sampled = 0;
  in->cu_q[0] = 0;
  *low = p->parts;
  *high = -1;
  for (int64_t i = 0; i < p->parts; ++i) {
    engine_request *r = &e->request[p->part[i].request];
    const int64_t tokens = p->part[i].tokens, length = assay_kv_length(e->kv, r->kv), left = r->prompt - r->computed;
    int64_t *slots = (p->decode ? in->slots : in->wide_slots) + n;
    int32_t *positions = (p->decode ? in->positions : in->wide_positions) + n;
    assay_kv_copy *const pairs = e->copies + (MISTAKE(ENGINE_COPIES_APART) ? p->copies : 0);
    const assay_status status = assay_kv_reserve_append(e->kv, r->kv, tokens, slots, pairs, &p->copies, error);
    if (status != ASSAY_OK) return status;
    if (MISTAKE(ENGINE_SLOT_OF_NEIGHBOUR) && i > 0) slots[0] = (p->decode ? in->slots : in->wide_slots)[0];
    for (int64_t t = 0; t < tokens; ++t)
      positions[t] = (int32_t)(length + t);
    if (!MISTAKE(ENGINE_STALE_LENGTH) || e->stats.steps < 4) in->kv_len[i] = (int32_t)(length + tokens);
    if (e->m->short_tail > 0 && !p->decode) put_tails(in, n, i, length, tokens);
    put_state(e, in, i, r, length);
    n += tokens;
    in->cu_q[i + 1] = (int32_t)n;
    if (put_table(e, p->half, i, r)) {
      if (i < *low) *low = i;
      *high = i;
    }
    if (left > tokens) continue;
    in->rows[sampled] = (int32_t)(n - 1 - (i >= p->front ? p->front_rows : 0));
    put_row(in, MISTAKE(ENGINE_SAMPLING_OF_PART) ? i : sampled, r);
    ++sampled;
  }
  put_pads(e, in, p);
  if (e->m->expand_memory != NULL && !p->decode) put_runs(e, p);
  if (e->S > 0) p->state_copies = engine_put_state_copies(e, p->half);
  for (int64_t c = 0; c < p->copies; ++c) {
    in->copies[2 * c] = e->copies[c].source;
    in->copies[2 * c + 1] = e->copies[c].target;
  }
  return ASSAY_OK;
}

/* ---- copies of states -------------------------------------------------------------------------------------- */

int64_t engine_put_state_copies(assay_engine *e, int half) {
  int64_t count = 0;
  const assay_kv_copy *copy = assay_kv_state_copies(e->kv, &count);
  for (int64_t i = 0; i < count; ++i) {
    e->host[half].state_copies[2 * i] = copy[i].source;
    e->host[half].state_copies[2 * i + 1] = copy[i].target;
  }
  return count;
}

void engine_copy_states(assay_engine *e, int half, int64_t count) {
  pass *m = e->m;
  m->state_copies.data = e->on[half].state_copies;
  m->state_copies.shape[0] = count;
  pass_copy_states(m);
  e->stats.copied_states += count;
}

/* ---- ids ------------------------------------------------------------------------------------------------- */

static bool in_halves(const assay_engine *e, int64_t place) {
  return place < 2 * e->N;
}

static bool takes_part(const step_plan *p, int32_t request) {
  for (int64_t i = 0; i < p->parts; ++i)
    if (p->part[i].request == request) return true;
  return false;
}

/* Returns whether the ids of the step's rows are where they must be, and no request's next id is where it would be
 * overwritten. */
static bool in_place(const assay_engine *e, const step_plan *p) {
  if (!p->decode) return false;
  if (MISTAKE(ENGINE_NOT_ARRANGED) && e->stats.steps > 2) return true;
  for (int64_t i = 0; i < p->parts; ++i)
    if ((p->part[i].forced != NULL && !MISTAKE(ENGINE_GIVEN_IDS_LOST)) ||
        e->request[p->part[i].request].place != p->half * e->N + i)
      return false;
  for (int32_t r = 0; r < e->B; ++r)
    if (e->request[r].open && e->request[r].sampled && in_halves(e, e->request[r].place) && !takes_part(p, r))
      return MISTAKE(ENGINE_NOT_CARRIED);
  return true;
}

/* Fills the places of all the step's ids, in order, then those of the requests that pause. Returns the total number. */
static int64_t put_index(assay_engine *e, const step_plan *p) {
  const engine_input *in = &e->host[p->half];
  const int64_t to = e->scratch[1 - e->which], rows = p->bucket != NULL ? p->bucket->rows : p->N;
  int64_t n = 0, fresh = 0;
  for (int64_t i = 0; i < p->parts; ++i) {
    const engine_request *r = &e->request[p->part[i].request];
    const bool prompt = r->computed < r->prompt;
    const int32_t *text = prompt ? r->text + r->computed : p->part[i].forced;
    for (int64_t t = 0; t < p->part[i].tokens; ++t) {
      if (text != NULL) in->fresh[fresh] = text[t];
      in->index[n++] = (int32_t)(text != NULL ? e->fresh[p->half] + fresh++ : r->place);
    }
  }
  for (; n < rows; ++n)
    in->index[n] = (int32_t)e->zero;
  for (int64_t i = 0; i < rows && p->bucket != NULL; ++i)
    in->behind[i] = (int32_t)(to + i);
  for (int32_t q = 0; q < e->B; ++q) {
    engine_request *r = &e->request[q];
    if (!r->open || !r->sampled || takes_part(p, q)) continue;
    in->index[n] = (int32_t)r->place;
    if (!MISTAKE(ENGINE_NOT_CARRIED)) r->place = to + n;
    ++n;
  }
  return n;
}

/* Moves words: the operator takes them as a table of single f32. */
static void gather(assay_engine *e, int32_t *index, int64_t count, int64_t to) {
  const assay_tensor table = {
      .data = e->ids, .dtype = ASSAY_F32, .rank = 2, .shape = {e->ids_count, 1}, .stride = {1, 1}};
  const assay_tensor places = {.data = index, .dtype = ASSAY_I32, .rank = 1, .shape = {count}, .stride = {1}};
  const assay_tensor y = {.data = e->ids + to, .dtype = ASSAY_F32, .rank = 2, .shape = {count, 1}, .stride = {1, 1}};
  const pass_arg args[] = {{"table", table}, {"ids", places}, {"y", y}, {.name = NULL}};
  const pass_param none[] = {{NULL, 0}};
  e->m->stage = "ids";
  pass_call(e->m, "embedding", args, none);
}

/* ---- the step ---------------------------------------------------------------------------------------------- */

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    const assay_status try_status = (call);                                                                            \
    if (try_status != ASSAY_OK) return try_status;                                                                     \
  } while (0)

static assay_status upload(assay_engine *e, const step_plan *p, int64_t low, int64_t high, assay_error *error) {
  const assay_device_flow *f = e->flow;
  const engine_input *from = &e->host[p->half], *to = &e->on[MISTAKE(ENGINE_OTHER_HALF) ? 1 - p->half : p->half];
  if (!MISTAKE(ENGINE_UPLOAD_TOO_EARLY)) TRY(f->after(ASSAY_LANE_UP, MARK_DONE + p->half, error));
  TRY(f->copy(ASSAY_LANE_UP, to->base, from->base, from->row_bytes, error));
  if (high >= low)
    TRY(f->copy(ASSAY_LANE_UP, to->table + low * e->W, from->table + low * e->W, 4 * (high - low + 1) * e->W, error));
  if (p->arranged || p->copies > 0 || p->state_copies > 0 || !p->decode)
    TRY(f->copy(ASSAY_LANE_UP, to->wide_slots, from->wide_slots, from->wide_bytes, error));
  if (p->runs > 0 && (!MISTAKE(ENGINE_RUNS_OF_ONE_STEP) || e->stats.steps < 2)) {
    const int64_t bytes = (unsigned char *)(from->run_blocks + p->run_blocks) - (unsigned char *)from->run_cu_q;
    TRY(f->copy(ASSAY_LANE_UP, to->run_cu_q, from->run_cu_q, bytes, error));
  }
  if (p->arranged) TRY(f->copy(ASSAY_LANE_UP, to->fresh, from->fresh, 4 * p->N, error));
  TRY(f->mark(ASSAY_LANE_UP, MARK_UP + p->half, error));
  return MISTAKE(ENGINE_STEP_TOO_EARLY) ? ASSAY_OK : f->after(ASSAY_LANE_OWN, MARK_UP + p->half, error);
}

/* Computes a step with prompt tokens and generated ones: a pass for each. ids: the place of the step's first id. */
static assay_status compute_by_role(assay_engine *e, const step_plan *p, int64_t ids, assay_error *error) {
  pass *m = e->m;
  void *const logits = m->logits.data;
  const int64_t generated = p->parts - p->front;
  engine_aim(e, p->half, p->front_rows, p->front, p->front_sampled, true, ids, error);
  const assay_status status = engine_compute(e, p->half, 0);
  e->no_logits = false;
  if (status != ASSAY_OK) return status;
  engine_aim_generated(e, p->half, p->front, p->front_rows, p->front_sampled, generated, ids, error);
  m->logits.data = (float *)logits + p->front_sampled * m->config.vocab;
  const assay_status last = engine_compute(e, p->half, p->front_sampled);
  m->logits.data = logits;
  return last;
}

static assay_status compute(assay_engine *e, const step_plan *p, int64_t gathered, assay_error *error) {
  const int64_t rows = p->bucket != NULL ? p->bucket->rows : p->N, own = p->half * e->N;
  const int64_t scratch = e->scratch[e->which];
  pass *m = e->m;
  engine_aim(e, p->half, rows, p->bucket != NULL ? rows : p->parts, p->bucket != NULL ? rows : p->sampled, !p->decode,
             p->arranged && p->bucket == NULL ? scratch : own, error);
  if (p->arranged) gather(e, e->on[p->half].index, gathered, scratch);
  if (p->arranged && p->bucket != NULL) gather(e, e->on[p->half].behind, rows, own);
  if (p->copies > 0 && !MISTAKE(ENGINE_COPIES_LOST)) {
    m->copies.data = e->on[p->half].copies;
    m->copies.shape[0] = p->copies;
    pass_copy_blocks(m);
  }
  if (p->state_copies > 0 && !MISTAKE(ENGINE_STATE_COPIES_LOST)) engine_copy_states(e, p->half, p->state_copies);
  m->tails = !p->decode && pass_short(m, e->host[p->half].cu_q, p->parts);
  if (m->tails) {
    m->tail_request.data = e->on[p->half].tail_request;
    m->tail_len.data = e->on[p->half].tail_len;
    pass_tails(m);
  }
  if (p->runs > 0) {
    const engine_input *lists = &e->on[MISTAKE(ENGINE_RUNS_OF_OTHER_HALF) ? 1 - p->half : p->half];
    m->runs = p->runs;
    m->run_cu_q.data = lists->run_cu_q;
    m->run_cu_k.data = lists->run_cu_k;
    m->run_blocks.data = lists->run_blocks;
  }
  if (m->status != ASSAY_OK) return m->status;
  if (p->front > 0) return compute_by_role(e, p, p->arranged ? scratch : own, error);
  m->ragged = (p->kind & ENGINE_EVEN) != 0;
  m->greedy = (p->kind & ENGINE_GREEDY) != 0;
  if (p->bucket != NULL) {
    e->no_logits = (p->kind & p->bucket->kinds & ENGINE_GREEDY) != 0;
    return engine_replay(e, engine_graph_of(p->bucket, p->half, p->kind), error);
  }
  const assay_status status = engine_compute(e, p->half, 0);
  e->no_logits = m->argmax;
  return status;
}

/* Sends the tokens down, in the order of the rows that were sampled. */
static assay_status send_tokens(assay_engine *e, const step_plan *p, assay_error *error) {
  const int32_t at = (int32_t)(e->stats.steps % ENGINE_RING);
  TRY(e->flow->mark(ASSAY_LANE_OWN, MARK_DONE + p->half, error));
  TRY(e->flow->after(ASSAY_LANE_DOWN, MARK_DONE + p->half, error));
  TRY(e->flow->copy(ASSAY_LANE_DOWN, e->ring + at * e->B, e->ids + (1 - p->half) * e->N, 4 * p->sampled, error));
  return e->flow->mark(ASSAY_LANE_DOWN, MARK_DOWN + at, error);
}

/* Sets the state of the requests after the step. */
static assay_status advance(assay_engine *e, const step_plan *p, assay_error *error) {
  engine_sent *sent = &e->sent[e->stats.steps % ENGINE_RING];
  sent->rows = 0;
  for (int64_t i = 0; i < p->parts; ++i) {
    engine_request *r = &e->request[p->part[i].request];
    const bool prompt = r->computed < r->prompt;
    if (prompt)
      r->computed += p->part[i].tokens;
    else if (p->part[i].forced != NULL) {
      /* The token that continues the request is known now, whatever was chosen. */
      r->text[r->prompt + r->steps - 1] = *p->part[i].forced;
      r->known = r->prompt + r->steps;
    }
    TRY(engine_commit(e, r, error));
    if (prompt && r->computed < r->prompt) continue;
    sent->request[sent->rows] = p->part[i].request;
    sent->serial[sent->rows] = r->serial;
    r->place = (1 - p->half) * e->N + sent->rows++;
    r->sampled = true;
    ++r->steps;
  }
  return ASSAY_OK;
}

static assay_status run_step(assay_engine *e, step_plan *p, assay_error *error) {
  const int32_t at = (int32_t)(e->stats.steps % ENGINE_RING);
  int64_t low, high, gathered = 0;
  bool reached;
  if (!MISTAKE(ENGINE_PINNED_TOO_EARLY)) TRY(e->flow->reached(MARK_UP + p->half, true, &reached, error));
  TRY(put_inputs(e, p, &low, &high, error));
  if (p->decode && pass_ragged(e->host[p->half].kv_len, p->parts)) p->kind |= ENGINE_EVEN;
  p->arranged = !in_place(e, p);
  if (p->arranged) {
    gathered = put_index(e, p);
    e->which = 1 - e->which;
  }
  e->sent[at].kv_step = assay_kv_step_begin(e->kv);
  TRY(upload(e, p, low, high, error));
  if (e->stats.steps >= 2 && !MISTAKE(ENGINE_TOKENS_OVERWRITTEN))
    TRY(e->flow->after(ASSAY_LANE_OWN, MARK_DOWN + (int32_t)((e->stats.steps - 2) % ENGINE_RING), error));
  /* Arranging for a graph writes where the previous step's tokens are. */
  if (e->stats.steps >= 1 && p->arranged && p->bucket != NULL && !MISTAKE(ENGINE_ARRANGED_TOO_EARLY))
    TRY(e->flow->after(ASSAY_LANE_OWN, MARK_DOWN + (int32_t)((e->stats.steps - 1) % ENGINE_RING), error));
  TRY(compute(e, p, gathered, error));
  TRY(send_tokens(e, p, error));
  return advance(e, p, error);
}

/* Returns the bucket whose graph can repeat the step, or NULL. Call by call there are no pad rows, and arranged ids are
 * in another place than a graph's. */
static engine_bucket *bucket_again(assay_engine *e, const step_plan *p) {
  if (p->bucket != NULL || !p->decode || p->arranged || e->options.eager) return p->bucket;
  engine_bucket *bucket = engine_bucket_of(e, p->parts);
  return bucket->rows == p->parts ? bucket : NULL;
}

assay_status assay_engine_step(assay_engine *e, const assay_engine_part *part, int64_t count, assay_error *error) {
  step_plan p = {.part = part, .parts = count};
  TRY(engine_collect(e, MISTAKE(ENGINE_WAITS_FOR_TOKENS), error));
  TRY(make_plan(e, &p, error));
  turn_parts(e, &p);
  while (e->stats.steps - e->collected >= ENGINE_RING)
    TRY(engine_collect(e, true, error));
  for (int64_t i = 0; i < count; ++i) {
    const engine_request *r = &e->request[part[i].request];
    while (part[i].forced != NULL && r->sampled && r->known < r->prompt + r->steps - 1)
      TRY(engine_collect(e, true, error)); /* the previous tokens are not known yet */
  }
  TRY(have_blocks(e, &p, error));
  e->broken = run_step(e, &p, error);
  if (e->broken != ASSAY_OK) return e->broken;
  if (MISTAKE(ENGINE_WAITS_FOR_DEVICE)) TRY(e->device->synchronize(error));
  if (MISTAKE(ENGINE_READS_BACK)) TRY(e->device->download(e->m->host, e->status, (int64_t)sizeof *e->status, error));
  ++e->stats.steps;
  e->stats.rows += p.N;
  e->stats.pad_rows += p.bucket != NULL ? p.bucket->rows - p.parts : 0;
  e->stats.prompt_tokens += p.decode ? 0 : p.N;
  e->stats.copied_blocks += p.copies;
  e->stats.arranged += p.arranged;
  e->logit_rows = p.sampled;
  e->again = bucket_again(e, &p);
  e->again_kind = p.kind;
  return ASSAY_OK;
}
