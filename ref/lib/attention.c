/* attention.c: the call by name, the keys that a row sees, the walk over (row, head), and the roofline's counts. */
#include "ref/lib/attention.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/lattice.h"

double attention_real(double parameter) {
  return (double)(float)parameter;
}

static const assay_tensor *given(const assay_call *call, int32_t arg) {
  return call->arg[arg].data != NULL ? &call->arg[arg] : NULL;
}

static int64_t whole(double parameter) {
  return parameter == parameter ? (int64_t)parameter : 0;
}

double attention_scale(const assay_call *call) {
  const double scale = call->param[PARAM_SCALE];
  return attention_real(scale > 0 ? scale : 1 / sqrt((double)call->arg[ARG_Q].shape[2]));
}

int64_t attention_block(const assay_call *call) {
  const paged_layout layout = (paged_layout)(int)call->param[PARAM_LAYOUT];
  return call->arg[ARG_K].shape[layout == LAYOUT_NHD ? 1 : layout == LAYOUT_HND ? 2 : 3];
}

int64_t attention_capacity(const assay_call *call) {
  if (call->arg[ARG_CU_K].data != NULL) return call->arg[ARG_K].shape[0];
  return call->arg[ARG_TABLE].shape[1] * attention_block(call);
}

/* Parameters that only some operators have. Their places are kept for the last table asked for. */
enum { SPARSE_BLOCK, SPARSE_LOCAL, SPARSE_STRIDE, SPARSE_SLIDE, TP_RANK, CHUNK, NAMED };

static int64_t named(const assay_call *call, int which) {
  static const char *const name[NAMED] = {"sparse_block", "sparse_local", "sparse_stride",
                                          "sparse_slide", "tp_rank",      "chunk"};
  static _Thread_local const assay_param *table;
  static _Thread_local int32_t place[NAMED];
  const assay_op *op = call->op;
  if (op->param_count < 1) return 0;
  if (table != op->params) {
    for (int n = 0; n < NAMED; ++n) {
      place[n] = -1;
      for (int32_t i = 0; i < op->param_count; ++i)
        if (strcmp(op->params[i].name, name[n]) == 0) place[n] = i;
    }
    table = op->params;
  }
  return place[which] < 0 ? 0 : whole(call->param[place[which]]);
}

attention attention_of(const assay_call *call) {
  const assay_tensor *q = &call->arg[ARG_Q], *k = &call->arg[ARG_K], *table = &call->arg[ARG_TABLE];
  attention a = {.B = call->arg[ARG_KV_LEN].shape[0],
                 .N = q->shape[0],
                 .H = q->shape[1],
                 .D = q->shape[2],
                 .num_blocks = k->shape[0],
                 .max_blocks = table->shape[1],
                 .layout = (paged_layout)(int)call->param[PARAM_LAYOUT],
                 .fp8 = k->dtype == ASSAY_E4M3 || k->dtype == ASSAY_E5M2,
                 .q = q,
                 .k = k,
                 .v = &call->arg[ARG_V],
                 .k_scale = given(call, ARG_K_SCALE),
                 .v_scale = given(call, ARG_V_SCALE),
                 .table = table,
                 .kv_len = &call->arg[ARG_KV_LEN],
                 .cu_q = given(call, ARG_CU_Q),
                 .cu_k = given(call, ARG_CU_K),
                 .parent = assay_find_arg(call, "parent"),
                 .mask = assay_find_arg(call, "mask"),
                 .mask_ptr = assay_find_arg(call, "mask_ptr"),
                 .window = whole(call->param[PARAM_WINDOW]),
                 .sparse_block = named(call, SPARSE_BLOCK),
                 .sparse_local = named(call, SPARSE_LOCAL),
                 .sparse_stride = named(call, SPARSE_STRIDE),
                 .sparse_slide = named(call, SPARSE_SLIDE),
                 .tp_rank = named(call, TP_RANK),
                 .chunk = named(call, CHUNK)};
  a.H_kv = k->shape[a.layout == LAYOUT_NHD ? 2 : 1];
  a.block_size = attention_block(call);
  a.D_v = check_takes_D_v(call->op) ? a.v->shape[a.layout == LAYOUT_X ? 2 : 3] : a.D;
  a.scale = attention_scale(call);
  return a;
}

static int64_t entry(const assay_tensor *t, int64_t index) {
  return ((const int32_t *)t->data)[index];
}

int64_t attention_length(const attention *a, int64_t request) {
  return entry(a->kv_len, request);
}

int64_t attention_first_row(const attention *a, int64_t request) {
  return a->cu_q != NULL ? entry(a->cu_q, request) : request;
}

int64_t attention_slot(const attention *a, int64_t request, int64_t t) {
  if (a->cu_k != NULL) {
    const int64_t L = attention_length(a, request), next = request + 1 < a->B ? request + 1 : 0;
    if (!a->neighbour || t != L - 1) return entry(a->cu_k, request) + t;
    return t > 0 ? entry(a->cu_k, request) + t - 1 : entry(a->cu_k, attention_length(a, next) > 0 ? next : request);
  }
  const int64_t block = entry(a->table, request * a->table->stride[0] + t / a->block_size);
  return block * a->block_size + t % a->block_size;
}

int64_t attention_first_key(const attention *a, int64_t last) {
  if (last < 0) return 0;
  const int64_t window = a->window > 0 && last + 1 > a->window ? last + 1 - a->window : 0;
  const int64_t chunk = a->chunk > 0 ? last - last % a->chunk : 0;
  return window > chunk ? window : chunk;
}

/* Applies the mask. Window: t > last - w. Chunk: t / c = last / c. Block-sparse: kb = t / sb, qb = last / sb. A key is
 * kept if kb > qb - local, or if (kb + off) mod stride = 0. There off = (tp_rank·H + h)·slide + 1; for slide < 0 it is
 * (tp_rank·H_kv + h / G)·(-slide) + 1. */
bool attention_sees(const attention *a, int64_t h, int64_t last, int64_t t) {
  if (t < 0 || t > last + a->reach || t < attention_first_key(a, last)) return false;
  if (a->sparse_block == 0) return true;
  const int64_t kb = t / a->sparse_block, qb = last / a->sparse_block;
  const int64_t G = a->H / a->H_kv;
  const int64_t off = a->sparse_slide >= 0 ? (a->tp_rank * a->H + h) * a->sparse_slide + 1
                                           : (a->tp_rank * a->H_kv + h / G) * -a->sparse_slide + 1;
  return kb > qb - a->sparse_local || (kb + off) % a->sparse_stride == 0;
}

int64_t attention_depth(const int32_t *parent, int64_t n) {
  int64_t depth = 0;
  for (; parent[n] >= 0; n = parent[n])
    ++depth;
  return depth;
}

/* Finds the bits of row n of a request of T rows: row after row, without gaps. */
static void place_bits(const attention *a, int64_t request, int64_t n, int64_t T, attention_place *place) {
  const int64_t *start = a->mask_ptr->data, L = attention_length(a, request);
  const int64_t whole = 32 * a->mask->shape[0], row = a->mask_error == MASK_ROW_PADDED ? (L + 7) / 8 * 8 : L;
  const bool before = a->mask_error == MASK_REQUEST_BEFORE && request > 0;
  const int64_t begin = 8 * start[before ? request - 1 : request];
  place->bits = a->mask->data;
  place->keys = L;
  place->first_bit = begin + n * row;
  place->end_bit = begin + T * L;
  if (a->mask_error == MASK_LAST_BYTE_LOST) place->end_bit = begin + T * L / 8 * 8;
  if (before || a->mask_error == MASK_ROW_PADDED) place->end_bit = whole;
}

static bool bit_at(const attention *a, const attention_place *place, int64_t t) {
  const int64_t bit = place->first_bit + t, in_byte = a->mask_error == MASK_BITS_REVERSED ? 7 - bit % 8 : bit % 8;
  return bit < place->end_bit && (place->bits[bit / 8] >> in_byte & 1) != 0;
}

int64_t attention_last_key(const attention *a, const attention_place *place, int64_t length) {
  return a->mask != NULL ? length - 1 : place->own;
}

attention_place attention_place_of(const attention *a, int64_t request, int64_t n) {
  const int64_t first_row = attention_first_row(a, request);
  const int64_t next_row = a->cu_q != NULL ? attention_first_row(a, request + 1) : request + 1;
  const int64_t P = attention_length(a, request) - (next_row - first_row);
  attention_place place = {.cached = P, .own = P + n, .last = P + n};
  if (a->mask != NULL && a->mask_ptr != NULL) place_bits(a, request, n, next_row - first_row, &place);
  if (a->parent == NULL || place.own < 0) return place;
  place.parent = (const int32_t *)a->parent->data + first_row;
  place.last = attention_position(a, &place, place.own);
  return place;
}

int64_t attention_position(const attention *a, const attention_place *place, int64_t t) {
  if (place->parent == NULL || t < place->cached || a->by_index) return t;
  return place->cached + attention_depth(place->parent, t - place->cached);
}

bool attention_place_sees(const attention *a, const attention_place *place, int64_t h, int64_t t) {
  if (place->bits != NULL) {
    const bool kept = t == place->own ? a->reach >= 0 && bit_at(a, place, t)
                                      : (a->reach > 0 && t == place->own + 1) || bit_at(a, place, t);
    return place->own >= 0 && t >= attention_first_key(a, place->last) && t < place->keys && kept &&
           (a->chunk == 0 || t / a->chunk == place->last / a->chunk);
  }
  if (place->parent == NULL) return attention_sees(a, h, place->last, t);
  if (t < 0 || t > place->own + a->reach) return false;
  if (t >= place->cached && t <= place->own) {
    int64_t row = place->own - place->cached;
    while (row > t - place->cached)
      row = place->parent[row];
    if (row != t - place->cached) return false;
  }
  if (a->prefix && t >= place->cached) return true;
  const int64_t position = attention_position(a, place, t);
  if (a->window > 0 && position <= place->last - a->window) return false;
  return a->chunk == 0 || position / a->chunk == place->last / a->chunk;
}

/* Asks one row. Window, chunk and local blocks all favour the first row at or after the token, and the strided blocks
 * do not depend on the row. Thus, if any row sees the token, that row does. */
bool attention_visible(const assay_call *call, int64_t request, int64_t length, int64_t first_position, int64_t token) {
  (void)request;
  const int64_t row = token > first_position ? token : first_position;
  if (token < 0 || row >= length) return false;
  /* Without a mask no more is to be asked. This is called for every token of every case. */
  if (whole(call->param[PARAM_WINDOW]) == 0 && named(call, CHUNK) == 0 && named(call, SPARSE_BLOCK) == 0) return true;
  const attention a = attention_of(call);
  for (int64_t h = 0; h < a.H; ++h)
    if (attention_sees(&a, h, row, token)) return true;
  return false;
}

/* ---- the walk ---------------------------------------------------------------------------------------- */

typedef struct workspace {
  double *q, *k, *v; /* [D], [capacity, D], [capacity, D_v] */
  int64_t *slot;     /* [capacity] */
  int *k_low, *v_low;
  int64_t capacity;
} workspace;

static void release(workspace *w) {
  free(w->q);
  free(w->k);
  free(w->v);
  free(w->slot);
  free(w->k_low);
  free(w->v_low);
}

static assay_status reserve(workspace *w, int64_t keys, int64_t D, int64_t D_v, assay_error *error) {
  if (w->q != NULL && keys <= w->capacity) return ASSAY_OK;
  release(w);
  *w = (workspace){.capacity = keys};
  const size_t count = (size_t)(keys > 0 ? keys : 1), width = (size_t)D;
  w->q = malloc(width * sizeof *w->q);
  w->k = malloc(count * width * sizeof *w->k);
  w->v = malloc(count * (size_t)D_v * sizeof *w->v);
  w->slot = malloc(count * sizeof *w->slot);
  w->k_low = malloc(count * sizeof *w->k_low);
  w->v_low = malloc(count * sizeof *w->v_low);
  if (w->q == NULL || w->k == NULL || w->v == NULL || w->slot == NULL || w->k_low == NULL || w->v_low == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "attention reference: %lld keys of %lld channels do not fit in memory",
                      (long long)keys, (long long)(D + D_v));
  return ASSAY_OK;
}

static double scale_of(const assay_tensor *scale, int64_t kv_head) {
  if (scale == NULL) return 1;
  return (double)((const float *)scale->data)[scale->shape[0] > 1 ? kv_head : 0];
}

/* Loads a planted error's V of a key. Its numbers lie where V would be if tokens, or heads, lay D channels apart. The
 * places count through the request's own tokens, and begin again after the last one. */
static void load_misplaced(const attention *a, const paged_pool *v, int64_t request, int64_t kv_head, int64_t t,
                           double factor, double *value) {
  const int64_t L = attention_length(a, request), row = a->H_kv * a->D_v;
  const int64_t first = t * a->H_kv * (a->v_token_by_D ? a->D : a->D_v) + kv_head * (a->v_head_by_D ? a->D : a->D_v);
  for (int64_t d = 0; d < a->D_v; ++d) {
    const int64_t place = (first + d) % (L * row), slot = attention_slot(a, request, place / row);
    value[d] = factor * assay_load_f64(v->data, v->dtype,
                                       slot / a->block_size * v->s_block + slot % a->block_size * v->s_token +
                                           place % row / a->D_v * v->s_head + place % a->D_v * v->s_element);
  }
}

static void load_keys(const attention *a, int64_t request, int64_t kv_head, int64_t origin, int64_t end, bool lattice,
                      workspace *w) {
  const paged_pool k = paged_k_pool(a->k, a->layout, a->D), v = paged_v_pool(a->v, a->layout, a->D_v);
  const double k_scale = scale_of(a->k_scale, kv_head), v_scale = scale_of(a->v_scale, kv_head);
  for (int64_t t = origin; t < end; ++t) {
    const int64_t i = t - origin, slot = attention_slot(a, request, t);
    const int64_t block = slot / a->block_size, offset = slot % a->block_size;
    w->slot[i] = slot;
    paged_load(&k, block, offset, kv_head, a->D, k_scale, w->k + i * a->D);
    paged_load(&v, block, offset, kv_head, a->D_v, v_scale, w->v + i * a->D_v);
    if (a->v_token_by_D || a->v_head_by_D) load_misplaced(a, &v, request, kv_head, t, v_scale, w->v + i * a->D_v);
    if (lattice) {
      w->k_low[i] = lattice_low_row(w->k + i * a->D, a->D);
      w->v_low[i] = lattice_low_row(w->v + i * a->D_v, a->D_v);
    }
  }
}

static int64_t row_at(const assay_rows *rows, int64_t i) {
  return rows->index != NULL ? rows->index[i] : i;
}

assay_status attention_walk(const attention *a, const assay_rows *rows, bool lattice, attention_visit visit,
                            void *context, assay_error *error) {
  assay_status status = ASSAY_OK;
  workspace w = {0};
  int64_t request = 0;
  for (int64_t begin = 0, end; begin < rows->count; begin = end) {
    /* rows begin .. end - 1 of the subset belong to one request */
    while (request + 1 < a->B && attention_first_row(a, request + 1) <= row_at(rows, begin))
      ++request;
    const int64_t L = attention_length(a, request), first_row = attention_first_row(a, request);
    const int64_t next_row = a->cu_q != NULL ? attention_first_row(a, request + 1) : request + 1;
    const int64_t P = L - (next_row - first_row);
    for (end = begin; end < rows->count && row_at(rows, end) < next_row; ++end)
      ;
    int64_t highest = P + row_at(rows, end - 1) - first_row + a->reach;
    if (highest >= L || a->mask != NULL) highest = L - 1;
    const int64_t nearest = a->parent != NULL ? P : P + row_at(rows, begin) - first_row;
    const int64_t origin = attention_first_key(a, nearest);
    const int64_t keys = highest >= origin ? highest + 1 - origin : 0;
    status = reserve(&w, keys, a->D, a->D_v, error);
    if (status != ASSAY_OK) goto done;

    for (int64_t kv_head = 0; kv_head < a->H_kv; ++kv_head) {
      load_keys(a, request, kv_head, origin, origin + keys, lattice, &w);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = row_at(rows, i), own = P + n - first_row;
        const attention_place place = attention_place_of(a, request, n - first_row);
        for (int64_t h = kv_head * (a->H / a->H_kv); h < (kv_head + 1) * (a->H / a->H_kv); ++h) {
          assay_load_f64_row(a->q->data, a->q->dtype, n * a->q->stride[0] + h * a->q->stride[1], 1, a->D, w.q);
          const attention_row row = {.output = i * a->H + h,
                                     .request = request,
                                     .head = h,
                                     .kv_head = kv_head,
                                     .last = own < 0 ? -1 : place.last,
                                     .first = attention_first_key(a, a->parent != NULL ? P : own),
                                     .end = own < 0                                 ? 0
                                            : a->mask == NULL && own + a->reach < L ? own + 1 + a->reach
                                                                                    : L,
                                     .place = place,
                                     .origin = origin,
                                     .keys = keys,
                                     .q = w.q,
                                     .k = w.k,
                                     .v = w.v,
                                     .slot = w.slot,
                                     .k_low = w.k_low,
                                     .v_low = w.v_low};
          status = visit(context, &row, error);
          if (status != ASSAY_OK) goto done;
        }
      }
    }
  }
done:
  release(&w);
  return status;
}

bool attention_scales_exact(const assay_tensor *scale) {
  for (int64_t i = 0; scale != NULL && i < scale->shape[0]; ++i)
    if (lattice_bits((double)((const float *)scale->data)[i]) != 1) return false;
  return true;
}

assay_status attention_refuse(const attention_row *row, const char *what, double found, double allowed,
                              assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT,
                    "exact tier: request %lld, head %lld, position %lld: %s: found %.17g, allowed %.17g",
                    (long long)row->request, (long long)row->head, (long long)row->last, what, found, allowed);
}

void attention_need(const attention *a, const attention_row *row, int64_t t, assay_seen *seen) {
  if (seen == NULL || seen->v_needed == NULL) return;
  const int64_t slot = row->slot[t - row->origin] - seen->first_slot;
  if (slot >= 0 && slot < seen->slots) seen->v_needed[slot * a->H_kv + row->kv_head] = 1;
}

/* ---- flops and bytes --------------------------------------------------------------------------------- */

/* Returns the tokens of the pool that some row sees. A shared prefix block counts once if its slots are known. */
static double seen_tokens(const assay_call *call, const attention *a, const assay_seen *seen) {
  double tokens = 0;
  unsigned char *met = seen->slots > 0 ? calloc((size_t)seen->slots, 1) : NULL;
  for (int64_t i = 0; i < a->B; ++i) {
    const int64_t L = attention_length(a, i);
    const int64_t next = a->cu_q != NULL ? attention_first_row(a, i + 1) : i + 1;
    const int64_t P = L - (next - attention_first_row(a, i));
    for (int64_t t = attention_first_key(a, P); t < L; ++t) {
      if (!attention_visible(call, i, L, P, t)) continue;
      const int64_t slot = attention_slot(a, i, t) - seen->first_slot;
      if (met != NULL && slot >= 0 && slot < seen->slots) {
        if (met[slot]) continue;
        met[slot] = 1;
      }
      tokens += 1;
    }
  }
  free(met);
  return tokens;
}

/* Returns the number of (row, head, key) triples inside the mask, where a row's keys are neighbours; -1 elsewhere. */
static double seen_triples(const attention *a) {
  if (a->parent != NULL || a->mask != NULL || a->sparse_block > 0) return -1;
  double keys = 0;
  for (int64_t i = 0; i < a->B; ++i) {
    const int64_t T = a->cu_q != NULL ? attention_first_row(a, i + 1) - attention_first_row(a, i) : 1;
    for (int64_t n = 0; n < T; ++n) {
      const int64_t last = attention_length(a, i) - T + n;
      if (last >= 0) keys += (double)(last - attention_first_key(a, last) + 1);
    }
  }
  return keys * (double)a->H;
}

/* Returns the roofline's cost. The reference may have seen some rows alone. Keys of all rows are counted therefore,
 * with the share of live ones that the seen rows have. q·k has 2 D flops and the sum of p v 2 D_v, the latter for live
 * keys only. Bytes: q and out once, K of every visible token once, V where it is needed, and the small arguments. */
assay_cost attention_cost(const assay_call *call, const assay_seen *seen, double flops_per_key) {
  const attention a = attention_of(call);
  const double D = (double)a.D, D_v = (double)a.D_v, element = (double)assay_dtype_size(a.k->dtype);
  const double rows = (double)a.N * (double)a.H * (D + D_v) * (double)assay_dtype_size(a.q->dtype);
  const double k_rows = seen_tokens(call, &a, seen) * (double)a.H_kv;
  double v_rows = k_rows;
  if (seen->v_needed != NULL) {
    v_rows = 0;
    for (int64_t i = 0; i < seen->slots * a.H_kv; ++i)
      v_rows += seen->v_needed[i] != 0;
  }
  double small = 0;
  for (int32_t i = 0; i < call->op->arg_count; ++i) {
    if (i <= ARG_V || call->arg[i].data == NULL || call->op->args[i].role == ASSAY_OUT) continue;
    double elements = 1;
    for (int32_t r = 0; r < call->arg[i].rank; ++r)
      elements *= (double)call->arg[i].shape[r];
    small += elements * (double)assay_dtype_size(call->arg[i].dtype);
  }
  const assay_tensor *lse = assay_find_arg(call, "lse");
  if (lse != NULL) small += (double)a.N * (double)a.H * 4;
  const double all = seen_triples(&a), known = (double)seen->visible_keys;
  const double visible = all >= 0 && known > 0 ? all : known;
  const double live = known > 0 ? (double)seen->live_keys * visible / known : 0;
  return (assay_cost){.flops = 2 * (D * visible + D_v * live) + flops_per_key * visible,
                      .bytes = rows + (D * k_rows + D_v * v_rows) * element + small};
}
