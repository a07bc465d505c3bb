/* mla_attention: absorbed attention over a cache of latent entries. Request b has L = kv_len_b keys, and rows cu_b to
 * cu_{b+1} - 1 of q. These T rows are its last T tokens. Its row n sees keys 0 to L - T + n. All heads read the same
 * entries: key j is the whole entry (c_j, pe_j) of 512 + 64 channels, and its value is c_j. For row n and head h:
 *
 *   s_j = scale · (sum_512 q_d c_jd + sum_64 q_{512+i} pe_ji)
 *   m = max s_j      l = sum_j exp(s_j - m)      out = sum_j exp(s_j - m) c_j / l      lse = m + ln l
 *
 * A row without keys has out = 0, lse = -inf. Key j lies in block table_b[j / S], at offset j mod S. Entries are of
 * the type of q, or of 656 bytes (ref/lib/mla.h), where c_j is code · scale. scale has no default in a call: models
 * give (128 + 64)^-1/2 m^2, and never 576^-1/2. Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1;
 * docs/definitions.md, section 14. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/wide.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/mla.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"
#include "ref/lib/vector.h"

const assay_op *assay_op_mla_attention(void);

static const double far_below = -800; /* exact tier: exp is surely 0 in f32 */
static const double least_normal = 0x1p-126;

typedef enum mla_spoil {
  SPOIL_NONE = -1,
  SPOIL_SCALE_576,              /* 576^-1/2 for the scale (SGLang#15522) */
  SPOIL_PE_LOST,                /* scores without the rotated part */
  SPOIL_PE_QUANTISED,           /* pe as e4m3 (SGLang#15522) */
  SPOIL_SCALE_OF_TILE_BEFORE,   /* 656 bytes: each tile has its neighbour's scale */
  SPOIL_BASE_2_LSE,             /* lse to base 2 (vLLM#47079) */
  SPOIL_NAN_OF_OTHER_PAGE,      /* 0 times the dead rest of the last block is added (FlashInfer#942) */
  SPOIL_PAGE_OFFSET_IGNORED,    /* every key is the first one of its block (FlashInfer#810) */
  SPOIL_CAUSAL_ONE_OFF,         /* a row sees the next key as well */
  SPOIL_CAUSAL_LOST,            /* all rows see all keys */
  SPOIL_LATER_ROWS_ONE_OFF,     /* rows after the first of a request see one key less */
  SPOIL_ROW_OF_REQUEST_BEFORE,  /* the first row of a request is taken for one more of the request before */
  SPOIL_LAST_KEY_DROPPED,       /* a row does not see its own key */
  SPOIL_V_READS_PE,             /* values are channels 64 to 575 */
  SPOIL_EMPTY_ROW_NAN,          /* a row without keys is 0 / 0 (SGLang#22688) */
  SPOIL_SECOND_QUERY_ROW_NAN,   /* rows after the first one are NaN (FlashMLA-ETAP#2) */
  SPOIL_TABLE_OF_REQUEST_BEFORE /* keys are those of the request before, where that has as many */
} mla_spoil;

/* One row of one head. */
typedef struct mla_row {
  int64_t keys, first_value; /* first_value: the channel of an entry where its value begins, 0 */
  double scale;
  const double *q, *entry;  /* [576], [keys, 576] */
  double *s, *e, *p;        /* [keys] score, exp(s - m), e / l */
  double max, sum, lse, *y; /* y [512] */
} mla_row;

/* ---- the definition ---------------------------------------------------------------------------------- */

ASSAY_WIDE static void mla_attention(mla_row *row) {
  row->max = -(double)INFINITY;
  row->sum = 0;
  vector_zero(row->y, MLA_C);
  for (int64_t j = 0; j < row->keys; ++j) {
    row->s[j] = row->scale * vector_dot(row->q, row->entry + j * MLA_ENTRY, MLA_ENTRY);
    if (!(row->s[j] <= row->max)) row->max = row->s[j]; /* a NaN stays */
  }
  for (int64_t j = 0; j < row->keys; ++j) {
    row->e[j] = exp(row->s[j] - row->max);
    row->sum += row->e[j];
  }
  for (int64_t j = 0; j < row->keys; ++j) {
    row->p[j] = row->e[j] / row->sum;
    vector_add(row->y, row->p[j], row->entry + j * MLA_ENTRY + row->first_value, MLA_C);
  }
  row->lse = row->keys > 0 ? row->max + log(row->sum) : -(double)INFINITY;
}

/* ---- the error model --------------------------------------------------------------------------------- */

typedef struct mla_error {
  const assay_contract *contract;
  assay_dtype out;
  bool rounded;           /* entries are rounded after dequantisation */
  key_sum sum, total;     /* sums of exp(s - m) c and of exp(s - m) */
  equal_terms equal;      /* terms of the second that are alike */
  double *split, *memory; /* [512] */
  void *slots;
} mla_error;

/* Returns the relative variance of exp(s_j - m). The dot product, its scale, the argument in base e and in base 2, and
 * exp have their parts in it. */
ASSAY_WIDE static double weight_variance(const mla_row *row, const mla_error *e, int64_t j) {
  const assay_contract *c = e->contract;
  const double *k = row->entry + j * MLA_ENTRY, s = row->s[j], argument = s - row->max;
  double variance = row->scale * row->scale * dot_variance(c, MLA_ENTRY, row->q, k, e->out, e->rounded);
  variance += 2 * f32_variance * s * s;
  if (c->score != ASSAY_NONE) variance += storing_variance(s, c->score);
  return variance + 2 * f32_variance * argument * argument + function_variance(c->exp_ulp);
}

/* Adds the variance of stored partial results o_i and lse_i of pieces of the keys to variance[512], and returns that of
 * lse. y = sum_i W_i o_i with W_i = exp(lse_i - lse). An error of W_i moves y by W_i (o_i - y). */
ASSAY_WIDE static double split_variance(const mla_row *row, const mla_error *e, double *variance) {
  const assay_contract *c = e->contract;
  double of_lse = 0;
  for (int64_t j = 0; j < row->keys;) {
    const int64_t piece = j / c->keys_per_split;
    double W = 0;
    vector_zero(e->split, MLA_C);
    for (; j < row->keys && j / c->keys_per_split == piece; ++j) {
      W += row->p[j];
      vector_add(e->split, row->p[j], row->entry + j * MLA_ENTRY, MLA_C);
    }
    if (!(W > 0)) continue;
    const double lse = row->lse + log(W), argument = lse - row->lse;
    const double weight = storing_variance(lse, ASSAY_F32) + storing_variance(row->lse, ASSAY_F32) +
                          2 * f32_variance * argument * argument + 2 * function_variance(c->exp_ulp);
    of_lse += W * W * weight;
    for (int64_t d = 0; d < MLA_C; ++d) {
      const double Y = e->split[d], moved = Y - W * row->y[d];
      double stored = f32_variance * Y * Y;
      if (c->partial != ASSAY_NONE && c->partial != ASSAY_F32) stored += W * W * rounding_variance(Y / W, c->partial);
      variance[d] += weight * moved * moved + 2 * stored;
    }
  }
  return of_lse;
}

/* Computes sigma^2 = sum_j weight_j p_j^2 (c_j - y)^2 + sum_j (r(p_j)^2 + p_j^2 r(c)^2) c_j^2 + A + y^2 · denominator
 * + splits + r(y)^2, as softmax attention has it (docs/verification.md, tier 2), with 576 channels in a score. */
ASSAY_WIDE static void mla_sigma(const mla_row *row, mla_error *e, double *sigma, double *lse_sigma) {
  const assay_contract *c = e->contract;
  const double one = 1;
  double of_sum = 0, total = 0, splits = 0; /* relative variances of the sum of weights: its terms, its additions */
  vector_zero(sigma, MLA_C);
  if (lse_sigma != NULL) *lse_sigma = 0;
  if (row->keys == 0) return;
  key_sum_start(&e->sum, row->y, row->sum);
  key_sum_start(&e->total, &one, row->sum);
  equal_terms_start(&e->equal, row->keys, e->slots);
  const double of_c = e->rounded ? f32_variance * ldexp(1, 2 * (24 - lattice_width(c->v))) : 0;
  const double least = c->exp_ulp * 0x1p-149 / row->sum;
  for (int64_t j = 0; j < row->keys; ++j) {
    const double p = row->p[j], *v = row->entry + j * MLA_ENTRY;
    if (!(p != 0)) continue;
    const double weight = weight_variance(row, e, j), moves = weight * p * p;
    double own = p * p * of_c;
    if (row->e[j] < least_normal) own += exp_may_flush(c) ? p * p : least * least / 3;
    if (c->p != ASSAY_NONE)
      own += (row->keys > 1 ? storing_variance(row->e[j], c->p) : rounding_variance(row->e[j], c->p)) /
             (row->sum * row->sum);
    of_sum += moves;
    for (int64_t d = 0; d < MLA_C; ++d) {
      const double from_mean = v[d] - row->y[d];
      sigma[d] += moves * (from_mean * from_mean) + own * (v[d] * v[d]);
    }
    key_sum_add(&e->sum, j, row->e[j], v);
    key_sum_add(&e->total, j, row->e[j], &one);
    equal_terms_add(&e->equal, row->e[j], key_sum_running(&e->total));
  }
  key_sum_finish(&e->total, row->keys, &total);
  total += equal_terms_additions(&e->equal) / (row->sum * row->sum);
  of_sum += function_variance(c->exp_ulp) * equal_terms_shared(&e->equal) / (row->sum * row->sum);
  if (c->keys_per_split > 0 && row->keys > c->keys_per_split) splits = split_variance(row, e, sigma);
  key_sum_finish(&e->sum, row->keys, sigma);
  for (int64_t d = 0; d < MLA_C; ++d) {
    const double y = row->y[d];
    if (e->sum.abs[d] != 0) sigma[d] += y * y * (total + 2 * f32_variance) + storing_variance(y, e->out);
    sigma[d] = sqrt(sigma[d]);
  }
  if (lse_sigma == NULL) return;
  const double logarithm = row->lse - row->max;
  *lse_sigma = sqrt(of_sum + splits + total + function_variance(c->exp_ulp) * logarithm * logarithm +
                    storing_variance(logarithm, ASSAY_F32) + 2 * storing_variance(row->lse, ASSAY_F32));
}

/* Writes lse as the contract gives it, and its sigma. The definition's is natural, and -inf for a row without keys. */
static void give_lse(const mla_row *row, const assay_contract *c, double *value, double *sigma) {
  static const double log2_e = 1.4426950408889634;
  const bool empty = row->keys == 0, base_2 = c->lse_base == ASSAY_LSE_BASE_2;
  *value = row->lse * (base_2 ? log2_e : 1);
  if (empty) *value = c->lse_empty == ASSAY_LSE_EMPTY_PLUS ? (double)INFINITY : -(double)INFINITY;
  if (sigma == NULL) return;
  if (base_2) *sigma = sqrt(*sigma * *sigma * log2_e * log2_e + 2 * storing_variance(*value, ASSAY_F32));
  if (empty) *sigma = 0;
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

static assay_status refuse(int64_t request, int64_t row, int64_t head, const char *what, double found, double allowed,
                           assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT,
                    "exact tier: request %lld, row %lld, head %lld: %s: found %.17g, allowed %.17g", (long long)request,
                    (long long)row, (long long)head, what, found, allowed);
}

/* Admits a row to the exact tier. Scores are exact, and 0 for 2^m keys. All others are at -800 or below. Values of
 * those keys are positive, their sum is exact, and their mean is a number of the result's type. */
static assay_status admit(const mla_row *row, const mla_error *e, int64_t request, int64_t n, int64_t head,
                          assay_error *error) {
  int low = LATTICE_ZERO;
  int64_t live = 0;
  const int q_low = lattice_low_row(row->q, MLA_ENTRY);
  vector_zero(e->split, MLA_C);
  for (int64_t j = 0; j < row->keys; ++j) {
    const double *k = row->entry + j * MLA_ENTRY, size = vector_dot_abs(row->q, k, MLA_ENTRY);
    if (!lattice_admits(size, q_low + lattice_low_row(k, MLA_ENTRY), 24))
      return refuse(request, n, head, "sum |q k|, which 24 bits must hold", size, 0, error);
    if (row->s[j] != 0 && !(row->s[j] <= far_below))
      return refuse(request, n, head, "score below the largest", row->s[j], far_below, error);
    if (row->s[j] != 0) continue;
    ++live;
    const int own = lattice_low_row(k, MLA_C);
    if (own < low) low = own;
    vector_add(e->split, 1, k, MLA_C);
    for (int64_t d = 0; d < MLA_C; ++d)
      if (!(k[d] > 0)) return refuse(request, n, head, "least c of a key at the maximum", k[d], 0, error);
  }
  if (row->keys > 0 && (live == 0 || (live & (live - 1)) != 0))
    return refuse(request, n, head, "keys with score 0 (allowed: a power of two)", (double)live, 1, error);
  for (int64_t d = 0; d < MLA_C && live > 0; ++d) {
    const double stored = assay_round_f64(row->y[d], e->out);
    if (!lattice_admits(e->split[d], low, lattice_width(e->contract->partial)) || stored != row->y[d])
      return refuse(request, n, head, "out in its type, and its sum in that of partials", row->y[d], stored, error);
  }
  return ASSAY_OK;
}

static assay_status admit_call(const assay_call *call, assay_error *error) {
  const assay_dtype type = call->arg[MLA_OUT].dtype;
  if (type != ASSAY_F16 && type != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: out: found type %s, allowed f16, bf16",
                      assay_dtype_name(type));
  if (call->arg[MLA_LSE].data != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: lse: found one, allowed none");
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct mla_run {
  const assay_call *call;
  int64_t N, B, H, S, W;
  mla_row row;
  mla_error error;
  double *entry, *q; /* the memory of one request */
  mla_spoil spoil;
  bool exact, lse;
} mla_run;

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const int32_t given = (call->arg[MLA_CACHE].data != NULL) + (call->arg[MLA_WORDS_ARG].data != NULL);
  if (given == 1) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "cache: found %d of cache, words, allowed exactly one", given);
}

static int64_t length_of(const mla_run *run, int64_t request) {
  return plain_integer(&run->call->arg[MLA_LENGTHS], request);
}

/* Returns the first row of a request in q, or N after the last request. */
static int64_t begin_of(const mla_run *run, int64_t request) {
  return plain_integer(&run->call->arg[MLA_CU], request);
}

static assay_status check_rows(const mla_run *run, assay_error *error) {
  for (int64_t b = 0; b <= run->B; ++b) {
    const int64_t found = begin_of(run, b), least = b > 0 ? begin_of(run, b - 1) : 0;
    const int64_t low = b == run->B ? run->N : least, high = b == 0 && run->B > 0 ? 0 : run->N;
    if (found < low || found > high)
      return assay_fail(error, ASSAY_ERR_INPUT, "cu_q: found %lld at [%lld], allowed %lld to %lld", (long long)found,
                        (long long)b, (long long)low, (long long)high);
  }
  return ASSAY_OK;
}

/* Returns the request of a row. */
static int64_t request_of(const mla_run *run, int64_t row) {
  int64_t b = 0;
  while (begin_of(run, b + 1) <= row)
    ++b;
  const bool first = row == begin_of(run, b);
  return run->spoil == SPOIL_ROW_OF_REQUEST_BEFORE && first && b > 0 ? b - 1 : b;
}

static assay_status check_contents(const mla_run *run, int64_t request, assay_error *error) {
  const int64_t L = length_of(run, request), P = mla_pool(run->call)->shape[0];
  if (L < 0 || L > run->W * run->S)
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_len: found %lld at [%lld], allowed 0 to %lld", (long long)L,
                      (long long)request, (long long)(run->W * run->S));
  for (int64_t i = 0; i * run->S < L; ++i) {
    const int64_t block = plain_integer(&run->call->arg[MLA_TABLE], request * run->W + i);
    if (block < 0 || block >= P)
      return assay_fail(error, ASSAY_ERR_INPUT, "table: found %lld at [%lld, %lld], allowed 0 to %lld",
                        (long long)block, (long long)request, (long long)i, (long long)(P - 1));
  }
  return ASSAY_OK;
}

/* Loads the entry of key t, in f64. */
static void load_entry(const mla_run *run, int64_t request, int64_t t, double *entry) {
  const assay_tensor *pool = mla_pool(run->call);
  const int64_t block = plain_integer(&run->call->arg[MLA_TABLE], request * run->W + t / run->S);
  const int64_t offset = run->spoil == SPOIL_PAGE_OFFSET_IGNORED ? 0 : t % run->S;
  const int64_t at = mla_entry(pool, block * run->S + offset);
  if (pool->dtype == ASSAY_I32)
    mla_unpack((const uint32_t *)pool->data + at, run->spoil == SPOIL_SCALE_OF_TILE_BEFORE ? 1 : 0, entry);
  else
    assay_load_f64_row(pool->data, pool->dtype, at, 1, MLA_ENTRY, entry);
  for (int i = MLA_C; i < MLA_ENTRY && run->spoil == SPOIL_PE_QUANTISED; ++i)
    entry[i] = assay_round_f64(entry[i], ASSAY_E4M3);
}

static bool is_power_of_two(double scale) {
  int e;
  return frexp(fabs(scale), &e) == 0.5;
}

/* Tells whether some entry of the request has a scale that is no power of two. */
static bool is_rounded(const mla_run *run, int64_t request, int64_t L) {
  const assay_tensor *pool = mla_pool(run->call);
  for (int64_t t = 0; t < L && pool->dtype == ASSAY_I32; ++t) {
    const int64_t block = plain_integer(&run->call->arg[MLA_TABLE], request * run->W + t / run->S);
    const uint32_t *word = (const uint32_t *)pool->data + mla_entry(pool, block * run->S + t % run->S);
    for (int g = 0; g < MLA_TILES; ++g) {
      float scale;
      memcpy(&scale, &word[MLA_SCALE_WORD + g], sizeof scale);
      if (!is_power_of_two((double)scale)) return true;
    }
  }
  return false;
}

static void release(mla_run *run) {
  free(run->entry);
  free(run->error.memory);
  free(run->error.slots);
  run->entry = run->error.memory = NULL;
  run->error.slots = NULL;
}

static assay_status reserve(mla_run *run, int64_t keys, assay_error *error) {
  const assay_contract *c = run->error.contract;
  const int64_t own = 4 * keys + 2 * MLA_ENTRY, room = key_sum_room(c, MLA_C), one = key_sum_room(c, 1);
  run->entry = malloc((size_t)(keys * MLA_ENTRY + own + 8) * sizeof *run->entry);
  run->error.memory = malloc((size_t)(MLA_C + room + one) * sizeof *run->error.memory);
  run->error.slots = malloc((size_t)equal_terms_room(keys + 1));
  if (run->entry == NULL || run->error.memory == NULL || run->error.slots == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "mla_attention reference: %lld keys do not fit in memory",
                      (long long)keys);
  run->row.entry = run->entry;
  run->q = run->entry + keys * MLA_ENTRY;
  run->row.q = run->q;
  run->row.s = run->q + MLA_ENTRY;
  run->row.e = run->row.s + keys;
  run->row.p = run->row.e + keys;
  run->error.split = run->error.memory;
  key_sum_place(&run->error.sum, c, MLA_C, run->error.memory + MLA_C);
  run->error.sum.bits = cut_bits(run->error.out);
  key_sum_place(&run->error.total, c, 1, run->error.memory + MLA_C + room);
  return ASSAY_OK;
}

/* Returns the number of keys that row n of the T rows of a request with L keys sees. */
static int64_t seen_keys(const mla_run *run, int64_t L, int64_t T, int64_t n) {
  int64_t keys = L - T + n + 1;
  if (keys > L) keys = L; /* only by a planted error */
  if (run->spoil == SPOIL_LATER_ROWS_ONE_OFF && n > 0 && keys > 1) --keys;
  if (run->spoil == SPOIL_CAUSAL_ONE_OFF && keys < L) ++keys;
  if (run->spoil == SPOIL_CAUSAL_LOST && keys > 0) keys = L;
  if (run->spoil == SPOIL_LAST_KEY_DROPPED && keys > 1) --keys;
  return keys > 0 ? keys : 0;
}

/* Applies planted errors to a finished row. */
static void spoil_row(mla_run *run, int64_t request, int64_t L, int64_t n) {
  mla_row *row = &run->row;
  bool none = run->spoil == SPOIL_EMPTY_ROW_NAN && row->keys == 0;
  none = none || (run->spoil == SPOIL_SECOND_QUERY_ROW_NAN && n > 0);
  for (int64_t d = 0; d < MLA_C && none; ++d)
    row->y[d] = (double)NAN;
  if (run->spoil == SPOIL_BASE_2_LSE) row->lse *= 1.4426950408889634;
  if (run->spoil != SPOIL_NAN_OF_OTHER_PAGE || L % run->S == 0) return;
  double dead[MLA_ENTRY];
  load_entry(run, request, L, dead);
  vector_add(row->y, 0, dead, MLA_C);
}

/* Loads the entries of a request, for the rows that follow. */
static assay_status take_request(mla_run *run, int64_t request, assay_error *error) {
  const int64_t L = length_of(run, request);
  const bool before = run->spoil == SPOIL_TABLE_OF_REQUEST_BEFORE && request > 0 && length_of(run, request - 1) >= L;
  assay_status status = check_contents(run, request, error);
  if (before && status == ASSAY_OK) status = check_contents(run, request - 1, error);
  if (status == ASSAY_OK) status = reserve(run, L, error);
  for (int64_t t = 0; t < L && status == ASSAY_OK; ++t)
    load_entry(run, before ? request - 1 : request, t, run->entry + t * MLA_ENTRY);
  if (status == ASSAY_OK) run->error.rounded = is_rounded(run, request, L);
  return status;
}

/* Computes all heads of one row, whose results go to row `at` of the expectation. */
static assay_status take_row(mla_run *run, int64_t request, int64_t row, int64_t at, const assay_expected *out,
                             const assay_expected *lse, assay_error *error) {
  const assay_tensor *q = &run->call->arg[MLA_Q];
  const int64_t L = length_of(run, request), apart = run->N > 1 ? q->stride[0] : 0;
  const int64_t first = begin_of(run, request), T = begin_of(run, request + 1) - first, n = row - first;
  assay_status status = ASSAY_OK;
  for (int64_t head = 0; head < run->H && status == ASSAY_OK; ++head) {
    const int64_t place = at * run->H + head;
    assay_load_f64_row(q->data, q->dtype, row * apart + head * MLA_ENTRY, 1, MLA_ENTRY, run->q);
    for (int d = MLA_C; d < MLA_ENTRY && run->spoil == SPOIL_PE_LOST; ++d)
      run->q[d] = 0;
    run->row.keys = seen_keys(run, L, T, n);
    run->row.y = out->value + place * MLA_C;
    mla_attention(&run->row);
    if (run->spoil != SPOIL_NONE) spoil_row(run, request, L, n);
    if (run->exact) status = admit(&run->row, &run->error, request, n, head, error);
    double *const lse_sigma = run->lse && lse->sigma != NULL ? lse->sigma + place : NULL;
    if (out->sigma != NULL) mla_sigma(&run->row, &run->error, out->sigma + place * MLA_C, lse_sigma);
    if (run->lse) give_lse(&run->row, run->error.contract, lse->value + place, lse_sigma);
  }
  return status;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            mla_spoil spoil, assay_expected *expected, assay_error *error) {
  const assay_tensor *q = &call->arg[MLA_Q];
  mla_run run = {.call = call,
                 .N = q->shape[0],
                 .B = call->arg[MLA_LENGTHS].shape[0],
                 .H = q->shape[1],
                 .S = mla_pool(call)->shape[1],
                 .W = call->arg[MLA_TABLE].shape[1],
                 .spoil = spoil,
                 .exact = exact,
                 .lse = call->arg[MLA_LSE].data != NULL,
                 .error = {.contract = contract != NULL ? contract : &default_contract, .out = q->dtype}};
  run.row.scale = (double)(float)call->param[MLA_SCALE];
  run.row.first_value = spoil == SPOIL_V_READS_PE ? MLA_PE : 0;
  if (spoil == SPOIL_SCALE_576) run.row.scale = 1 / 24.0;
  const int64_t count = rowwise_count(rows, run.N);
  int64_t loaded = -1;
  assay_status status = exact ? admit_call(call, error) : ASSAY_OK;
  if (status == ASSAY_OK) status = check_rows(&run, error);
  for (int64_t b = 0; b < run.B && status == ASSAY_OK; ++b)
    status = check_contents(&run, b, error);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const int64_t row = rowwise_index(rows, i), request = request_of(&run, row);
    if (request != loaded) {
      release(&run);
      status = take_request(&run, request, error);
      loaded = request;
    }
    if (status == ASSAY_OK) status = take_row(&run, request, row, i, &expected[0], &expected[1], error);
  }
  release(&run);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values[2] = {{expected[0].value, NULL}, {NULL, NULL}};
  if (call->arg[MLA_LSE].data != NULL) values[1].value = expected[1].value;
  return compute(call, contract, rows, false, (mla_spoil)index, values, error);
}

/* Counts 576 products and sums for each score, 512 for each value, and 5 operations for exp and its sum. Entries are
 * read once, whatever the number of heads and rows. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *q = &call->arg[MLA_Q], *pool = mla_pool(call), *lengths = &call->arg[MLA_LENGTHS];
  const double rows = (double)(q->shape[0] * q->shape[1]);
  double entries = 0, pairs = 0;
  for (int64_t b = 0; b < lengths->shape[0] && lengths->data != NULL && call->arg[MLA_CU].data != NULL; ++b) {
    const double most = (double)(call->arg[MLA_TABLE].shape[1] * pool->shape[1]); /* kv_len may not be filled yet */
    const double L = fmin(fmax((double)plain_integer(lengths, b), 0), most);
    const double first = (double)plain_integer(&call->arg[MLA_CU], b);
    const double T = fmin(fmax((double)plain_integer(&call->arg[MLA_CU], b + 1) - first, 0), (double)q->shape[0]);
    entries += T > 0 ? L : 0;
    pairs += fmax(0, T * L - T * (T - 1) / 2) * (double)q->shape[1];
  }
  const double lse = call->arg[MLA_LSE].data != NULL ? 4 : 0;
  return (assay_cost){.flops = pairs * (2 * (MLA_ENTRY + MLA_C) + 5),
                      .bytes = rows * ((double)((MLA_ENTRY + MLA_C) * assay_dtype_size(q->dtype)) + lse) +
                               entries * (double)(pool->shape[2] * assay_dtype_size(pool->dtype))};
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 65536, 2, 1, "rows: the last tokens of all requests"},
    {"B", 1, 65536, 2, 1, "requests"},
    {"H", 1, 256, 8, 1, "query heads"},
    {"P", 1, INT32_MAX, 8, 1, "blocks of the pool"},
    {"S", 1, 1024, 16, 1, "entries of a block"},
    {"W", 1, 1 << 20, 4, 1, "blocks in a row of the table"},
};

static const assay_arg args[MLA_ARGS] = {
    {"q", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,H,576", "queries: 512 absorbed channels, 64 rotated ones",
     true},
    {"cache", ASSAY_IN, ASSAY_VALUES, true, "=q", "P,S,576", "entries of one type", true},
    {"words", ASSAY_IN, ASSAY_VALUES, true, "i32", "P,S,164", "entries of 656 bytes: codes, scales, bf16", true},
    {"table", ASSAY_IN, ASSAY_VALUES, false, "i32", "B,W", "blocks of each request", false},
    {"kv_len", ASSAY_IN, ASSAY_VALUES, false, "i32", "B", "keys of each request, its new ones included", false},
    {"cu_q", ASSAY_IN, ASSAY_VALUES, false, "i32", "B+1", "first row of each request, and N", false},
    {"out", ASSAY_OUT, ASSAY_RESULT, false, "=q", "N,H,512", "the mean of the values", true},
    {"lse", ASSAY_OUT, ASSAY_RESULT, true, "f32", "N,H", "natural logarithm of the sum of exp(s)", false},
};

static const assay_param params[MLA_PARAMS] = {
    {"scale", ASSAY_REAL, 0x1p-64, 65536, 0.0721687836487032, NULL,
     "factor of the scores; cases that are silent have 192^-1/2, a call has no default"},
};

static const assay_op op = {
    .name = "mla_attention",
    .title = "absorbed attention over a cache of latent entries",
    .source = "DeepSeek-AI 2024 (DeepSeek-V2), section 2.1; docs/definitions.md, section 14",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = MLA_ARGS,
    .params = params,
    .param_count = MLA_PARAMS,
    .laws = "run_to_run,dead_bytes,cut",
    .spoils = "scale_576,pe_lost,pe_quantised,scale_of_tile_before,base_2_lse,nan_of_other_page,page_offset_ignored,"
              "causal_one_off,causal_lost,later_rows_one_off,row_of_request_before,last_key_dropped,v_reads_pe,empty_"
              "row_nan,second_query_row_nan,"
              "table_of_request_before",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .axes = "dtype,words",
    .confirmed_by = "scores of keys and values that are not absorbed; one key; equal keys; shifted scores "
                    "(ref_mla_attention_test)",
    .extreme_args = "",
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = mla_fill,
    .spoil = spoil,
};

const assay_op *assay_op_mla_attention(void) {
  return &op;
}
