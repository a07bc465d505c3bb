/* gated_delta_rule: linear attention with a matrix for each request and value head. Request i has rows cu_i to
 * cu_{i+1} - 1 and a slot of the state. Value head h reads key head h / r, r = H_v / H_k. For each row in turn:
 *
 *   S <- exp(g) · S                        S [D_k, D_v], from state[slot]; zeros where the request is fresh
 *   d = beta · (v - S^T k)
 *   S <- S + k d^T
 *   o = round(scale · S^T q)
 *
 * With l2, q and k are divided by sqrt(sum of squares + l2_eps) before. scale 0 stands for D_k^-1/2. After its last row
 * a request's S goes to its slot. Slot -1 starts from zeros and writes no state. A request without rows changes
 * nothing, fresh or not (choice). The bytes of a fresh request's slot are dead. cu begins with 0, ends with N and does
 * not fall. A slot outside [-1, S), a slot given twice, and g above 0 are input errors. g = -inf makes exp(g) 0, and 0
 * times a finite S is 0 (choice). Source: docs/definitions.md, section 12. */
#include "ref/lib/delta.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/shared_reference.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

const assay_op *assay_op_gated_delta_rule(void);

enum { OUT_STATE, OUT_O };
enum { SPOILED_CHUNK = 16 }; /* rows of the chunks that planted errors take */
enum { CHUNK = 64 };         /* rows of the chunks that kernels take */

typedef enum rule_spoil {
  SPOIL_NONE = -1,
  SPOIL_STATE_OF_SLOT_BEFORE,    /* a request reads the slot before its own */
  SPOIL_INITIAL_ZERO,            /* every request starts from zeros */
  SPOIL_STALE_STATE_READ,        /* a fresh request reads its slot */
  SPOIL_PAD_SLOT_WRITTEN,        /* slot -1 writes the last slot */
  SPOIL_STATE_LOST_AT_CHUNK,     /* S is zeros where a chunk begins */
  SPOIL_LAST_GATE_OF_FULL_CHUNK, /* rows after the last one, in its chunk, let S decay */
  SPOIL_GATES_OF_OTHER_ROW,      /* g and beta of the row before */
  SPOIL_DELTA_BEFORE_DECAY,      /* S^T k of the S that has not decayed */
  SPOIL_DECAY_LOST,
  SPOIL_BETA_LOST,
  SPOIL_BETA_ON_V, /* d = beta v - S^T k */
  SPOIL_NO_DELTA,  /* d = beta v */
  SPOIL_OUTPUT_BEFORE_UPDATE,
  SPOIL_ALPHA_FLOOR, /* exp(g) + 1e-10, in f32 */
  SPOIL_L2_LOST,
  SPOIL_L2_EPS_OUTSIDE,   /* sqrt(sum) + l2_eps */
  SPOIL_HEADS_TILED,      /* value head h reads key head h mod H_k */
  SPOIL_STATE_TRANSPOSED, /* a slot holds [D_v, D_k] */
  SPOIL_SCALE_LOST
} rule_spoil;

typedef struct rule {
  const assay_call *call;
  const assay_contract *contract;
  int64_t N, H_k, H_v, D_k, D_v, B, S;
  double scale, l2_eps;
  bool l2, exact;
  rule_spoil spoil;
  double *state;     /* [D_k, D_v], S of the running request and head */
  double *q, *k, *v; /* the running row */
  double *p, *d, *o; /* [D_v] S^T k, the update, the result */
  /* The error model, for the running request and head: see "the error model". */
  double *size, *wide, *spread, *q_low, *k_low, *next, *sums, *per_square;
  double *faint, *late, *given, *taken; /* see "Subnormal numbers" */
  double q_factor, k_factor, tiny, length2;
} rule;

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Divides x by its length, in place. */
static void normalise(const rule *r, double *x) {
  double sum = 0;
  for (int64_t i = 0; i < r->D_k; ++i)
    sum += x[i] * x[i];
  const double length = r->spoil == SPOIL_L2_EPS_OUTSIDE ? sqrt(sum) + r->l2_eps : sqrt(sum + r->l2_eps);
  for (int64_t i = 0; i < r->D_k; ++i)
    x[i] /= length;
}

static void load_head(const assay_tensor *t, int64_t n, int64_t h, double *to) {
  const int64_t D = t->shape[2], row = t->shape[0] > 1 ? t->stride[0] : 0;
  assay_load_f64_row(t->data, t->dtype, n * row + h * D, 1, D, to);
}

static double gate(const rule *r, int32_t arg, int64_t n, int64_t h) {
  const assay_tensor *t = &r->call->arg[arg];
  const int64_t row = t->shape[0] > 1 ? t->stride[0] : 0;
  if (r->spoil == SPOIL_GATES_OF_OTHER_ROW && n > 0) --n;
  return assay_load_f64(t->data, t->dtype, n * row + h);
}

static void load_row(const rule *r, int64_t n, int64_t h) {
  const int64_t ratio = r->H_v / r->H_k, key = r->spoil == SPOIL_HEADS_TILED ? h % r->H_k : h / ratio;
  load_head(&r->call->arg[DELTA_Q], n, key, r->q);
  load_head(&r->call->arg[DELTA_K], n, key, r->k);
  load_head(&r->call->arg[DELTA_V], n, h, r->v);
}

/* p = S^T k. */
static void read_state(const rule *r, const double *k, double *p) {
  memset(p, 0, (size_t)r->D_v * sizeof *p);
  for (int64_t i = 0; i < r->D_k; ++i)
    for (int64_t j = 0; j < r->D_v; ++j)
      p[j] += r->state[i * r->D_v + j] * k[i];
}

static void decay(const rule *r, double alpha) {
  for (int64_t i = 0; i < r->D_k * r->D_v; ++i)
    r->state[i] *= alpha;
}

static void update(const rule *r) {
  for (int64_t i = 0; i < r->D_k; ++i)
    for (int64_t j = 0; j < r->D_v; ++j)
      r->state[i * r->D_v + j] += r->k[i] * r->d[j];
}

static double alpha_of(const rule *r, double g) {
  const double alpha = exp(g) < 0x1p-150 ? 0 : exp(g);
  /* A larger alpha has its bits from the sum in f32. */
  if (r->spoil == SPOIL_ALPHA_FLOOR && (float)alpha + 1e-10f > (float)alpha) return alpha + 1e-10;
  return r->spoil == SPOIL_DECAY_LOST ? 1 : alpha;
}

/* Takes one row of one head: S moves on, and o is scale · S^T q. */
static void take_row(const rule *r, double g, double beta) {
  const double alpha = alpha_of(r, g);
  if (r->spoil == SPOIL_DELTA_BEFORE_DECAY) read_state(r, r->k, r->p);
  decay(r, alpha);
  if (r->spoil != SPOIL_DELTA_BEFORE_DECAY) read_state(r, r->k, r->p);
  for (int64_t j = 0; j < r->D_v; ++j) {
    const double read = r->spoil == SPOIL_NO_DELTA ? 0 : r->p[j];
    r->d[j] = r->spoil == SPOIL_BETA_ON_V ? beta * r->v[j] - read : beta * (r->v[j] - read);
    if (r->spoil == SPOIL_BETA_LOST) r->d[j] = r->v[j] - read;
  }
  if (r->spoil == SPOIL_OUTPUT_BEFORE_UPDATE) read_state(r, r->q, r->o);
  update(r);
  if (r->spoil != SPOIL_OUTPUT_BEFORE_UPDATE) read_state(r, r->q, r->o);
  for (int64_t j = 0; j < r->D_v; ++j)
    r->o[j] *= r->spoil == SPOIL_SCALE_LOST ? 1 : r->scale;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* The errors e_j of column j of S obey e_j <- alpha (I - beta k k^T) e_j + what a row adds. Their covariance is bounded
 * for all columns at once: cov(e_j) <= size_j^2 · spread, with spread [D_k, D_k]. size_j is the largest length of the
 * column and of v_j so far. Each addition to `spread` is therefore the largest over the columns. Errors of d go in the
 * direction k; roundings of elements go to the diagonal. Below the least normal f32 a rounding has a variance of its
 * own, `underflow`, whatever the number is. `tiny` is what the rows so far have added to each element of S. */

static const double underflow = 0x1p-298 / 12;

static double largest_share(const rule *r, const double *variance) {
  double most = 0;
  for (int64_t j = 0; j < r->D_v; ++j) {
    const double share = variance[j] * r->per_square[j];
    most = share > most ? share : most;
  }
  return most;
}

static void grow_sizes(const rule *r, bool reset) {
  double *const square = r->next;
  memset(square, 0, (size_t)r->D_v * sizeof *square);
  for (int64_t i = 0; i < r->D_k; ++i)
    for (int64_t j = 0; j < r->D_v; ++j)
      square[j] += r->state[i * r->D_v + j] * r->state[i * r->D_v + j];
  for (int64_t j = 0; j < r->D_v; ++j) {
    r->size[j] = fmax(reset ? 0 : r->size[j], fmax(sqrt(square[j]), fabs(r->v[j])));
    r->per_square[j] = r->size[j] > 0 ? 1 / (r->size[j] * r->size[j]) : 0;
  }
}

/* Adds the relative variance `relative` of every element of S to the diagonal. */
static void add_elements(const rule *r, double relative) {
  for (int64_t i = 0; i < r->D_k; ++i) {
    for (int64_t j = 0; j < r->D_v; ++j)
      r->next[j] = relative * r->state[i * r->D_v + j] * r->state[i * r->D_v + j];
    r->spread[i * r->D_k + i] += largest_share(r, r->next);
  }
}

static void spread_decay(const rule *r, double g) {
  const double alpha = exp(g);
  const double own = g < 0 ? function_variance(r->contract->exp_ulp) + rounding_variance(g, r->contract->gates) : 0;
  for (int64_t i = 0; i < r->D_k * r->D_k; ++i)
    r->spread[i] *= alpha * alpha;
  if (!(alpha > 0)) return;
  for (int64_t i = 0; i < r->D_k; ++i)
    r->spread[i * r->D_k + i] += own;
  if (g < 0) add_elements(r, f32_variance);
}

/* Puts M x into `wide` and returns x^T M x. M [D_k, D_k] is symmetric. */
static double spread_times(const rule *r, const double *M, const double *x) {
  const int64_t D = r->D_k;
  double inner = 0;
  memset(r->wide, 0, (size_t)D * sizeof *r->wide);
  for (int64_t i = 0; i < D; ++i)
    for (int64_t l = 0; l < D; ++l)
      r->wide[l] += M[i * D + l] * x[i];
  for (int64_t l = 0; l < D; ++l)
    inner += x[l] * r->wide[l];
  return inner;
}

/* M <- (I - beta k k^T) M (I - beta k k^T) + w k k^T. */
static void spread_update(const rule *r, double *M, double beta, double w) {
  const int64_t D = r->D_k;
  const double inner = spread_times(r, M, r->k);
  for (int64_t i = 0; i < D; ++i)
    for (int64_t l = 0; l < D; ++l)
      M[i * D + l] +=
          (w + beta * beta * inner) * r->k[i] * r->k[l] - beta * (r->k[i] * r->wide[l] + r->wide[i] * r->k[l]);
}

/* Returns the relative variance of rounding what a chunk multiplies. */
static double chunk_variance(const rule *r) {
  return r->contract->chunk == ASSAY_NONE ? 0 : storing_variance(1.5, r->contract->chunk);
}

static double length2_of(const rule *r, const double *x) {
  double sum = 0;
  for (int64_t i = 0; i < r->D_k; ++i)
    sum += x[i] * x[i];
  return sum;
}

/* Subnormal numbers. Below the least normal number of its type, a chunk's rounding has the variance `low`, whatever the
 * number is. These errors do not depend on a column's size, and so they have bounds of their own, for all columns at
 * once. cov(e_j) <= faint + late.
 *   faint   from d, of which a row rounds beta (v - S^T k), and from the S that is read for it. It obeys the recurrence
 *           of e_j.
 *   late    from d as it is multiplied by keys and by weights of q. No later row of the chunk reads it, and so it
 *           neither decays nor shrinks before the chunk ends. A key that has not been divided by its length
 *           multiplies the update of S. It is `length2` long, squared.
 * Two matrices of a chunk have elements of the type too. Those of (I + L)^-1 multiply beta (v - S^T k) of the chunk's
 * rows: `given` is the sum of its squares. They are made from L in two halves, and count twice. Those of the weights of
 * q multiply d: `taken` is the sum of d^2. */

/* Returns the variance of rounding a subnormal number of what a chunk multiplies. */
static double chunk_low(const rule *r) {
  return r->contract->chunk == ASSAY_NONE ? 0 : storing_variance(0, r->contract->chunk);
}

static void begin_chunk(const rule *r) {
  for (int64_t i = 0; i < r->D_k * r->D_k; ++i) {
    r->faint[i] += r->late[i];
    r->late[i] = 0;
  }
  memset(r->given, 0, 2 * (size_t)r->D_v * sizeof *r->given); /* and taken */
}

/* Takes a row between its decay and its update. p and d are known. */
static void faint_row(const rule *r, double g, double beta) {
  const int64_t D = r->D_k;
  const double low = chunk_low(r), alpha = exp(g), late = low * fmax(r->length2, 1);
  for (int64_t i = 0; i < D * D; ++i)
    r->faint[i] *= alpha * alpha;
  spread_update(r, r->faint, beta, low * (1 + beta * beta * length2_of(r, r->k)));
  for (int64_t i = 0; i < D; ++i)
    for (int64_t l = 0; l < D; ++l)
      r->late[i * D + l] += late * r->k[i] * r->k[l];
  for (int64_t j = 0; j < r->D_v; ++j) {
    r->given[j] += beta * beta * (r->v[j] * r->v[j] + r->p[j] * r->p[j]);
    r->taken[j] += r->d[j] * r->d[j];
  }
}

/* Puts the variance of sum_i S_ij x_i in f32 into variance[j]: of its additions, of x's elements, and of x's common
 * factor. A chunk multiplies a rounded S. */
static void read_variance(const rule *r, const double *x, const double *low, double factor, double *variance) {
  const double chunk = chunk_variance(r), lanes = r->contract->qk_lanes > 0 ? r->contract->qk_lanes : 1;
  const double additions = accumulation_variance((double)r->D_k, lanes);
  double *const size = r->sums, *const sum = size + r->D_v;
  memset(size, 0, 2 * (size_t)r->D_v * sizeof *size);
  memset(variance, 0, (size_t)r->D_v * sizeof *variance);
  for (int64_t i = 0; i < r->D_k; ++i)
    for (int64_t j = 0; j < r->D_v; ++j) {
      const double s = r->state[i * r->D_v + j], term = s * x[i];
      size[j] += fabs(term);
      sum[j] += term;
      variance[j] += s * s * low[i] + chunk * term * term;
    }
  for (int64_t j = 0; j < r->D_v; ++j)
    variance[j] += additions * size[j] * size[j] + factor * sum[j] * sum[j];
}

/* Prepares the variances of q and k: of their elements, and of the factor that l2 gives to all of them. */
static void measure_row(rule *r) {
  const double lanes = r->contract->lanes > 0 ? r->contract->lanes : 1;
  r->q_factor = r->k_factor = 0;
  if (r->l2)
    r->q_factor = r->k_factor =
        2 * function_variance(r->contract->exp_ulp) + f32_variance + accumulation_variance((double)r->D_k, lanes) / 4;
  for (int64_t i = 0; i < r->D_k; ++i) {
    r->q_low[i] = (r->l2 ? rounding_variance(r->q[i], ASSAY_F32) : 0) + rounding_variance(r->q[i], r->contract->qk);
    r->k_low[i] = (r->l2 ? rounding_variance(r->k[i], ASSAY_F32) : 0) + rounding_variance(r->k[i], r->contract->qk);
  }
}

/* Takes the errors of a row between its decay and its update. p and d are known. */
static void spread_row(rule *r, double beta) {
  const double share = rounding_variance(beta, r->contract->gates), chunk = chunk_variance(r);
  read_variance(r, r->k, r->k_low, r->k_factor, r->next);
  for (int64_t j = 0; j < r->D_v; ++j) {
    const double rest = r->v[j] - r->p[j], d = r->d[j];
    const double variance =
        r->next[j] + f32_variance * rest * rest + 3 * chunk * (r->v[j] * r->v[j] + r->p[j] * r->p[j]);
    r->next[j] = beta * beta * variance + share * rest * rest + (f32_variance + r->k_factor) * d * d +
                 2 * chunk_low(r) * r->given[j];
  }
  spread_update(r, r->spread, beta, largest_share(r, r->next));
  r->tiny += ((double)r->D_k + 4) * underflow;
  for (int64_t j = 0; j < r->D_v; ++j)
    r->next[j] = r->d[j] * r->d[j];
  const double d_share = largest_share(r, r->next);
  for (int64_t i = 0; i < r->D_k; ++i)
    r->spread[i * r->D_k + i] += d_share * (f32_variance * r->k[i] * r->k[i] + r->k_low[i]);
}

/* Puts into variance[j] what rounding products of scale, S_ij and q_i below the normal numbers of f32 adds. They are
 * multiplied in any order. Two of them may give such a product, times the third, and all three may; scale may also
 * follow the sum. */
static void product_variance(const rule *r, double *variance) {
  const double least = 0x1p-126, scale = r->scale;
  memset(variance, 0, (size_t)r->D_v * sizeof *variance);
  for (int64_t i = 0; i < r->D_k; ++i) {
    const double q = r->q[i], first = scale * q;
    for (int64_t j = 0; j < r->D_v; ++j) {
      const double s = r->state[i * r->D_v + j];
      double most = scale * scale;
      if (scale != 1 && q != 0 && s != 0) {
        if (fabs(first) < least) most = fmax(most, s * s);
        if (fabs(scale * s) < least) most = fmax(most, q * q);
        if (fabs(first * s) < least) most += 1;
      }
      variance[j] += most * underflow;
    }
  }
}

/* Puts the standard deviations of a row's result into sigma. */
static void output_sigma(const rule *r, double *sigma) {
  const assay_dtype out = r->call->arg[DELTA_O].dtype;
  const double chunk = chunk_variance(r), low = chunk_low(r), spread = fmax(spread_times(r, r->spread, r->q), 0);
  const double square = length2_of(r, r->q);
  double faint = 0;
  if (low > 0) faint = fmax(spread_times(r, r->faint, r->q) + spread_times(r, r->late, r->q), 0) + low * square;
  read_variance(r, r->q, r->q_low, r->q_factor, r->next);
  product_variance(r, r->sums);
  for (int64_t j = 0; j < r->D_v; ++j) {
    const double sum = r->scale != 0 ? r->o[j] / r->scale : 0, size = r->size[j] * r->size[j];
    const double inner = spread * size + r->next[j] + 2 * f32_variance * sum * sum + square * r->tiny;
    sigma[j] = sqrt(r->scale * r->scale * (inner + faint + 2 * chunk * square * size) + low * r->taken[j] + r->sums[j] +
                    storing_variance(r->o[j], out));
  }
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Every row proves that its numbers are exact in f32 whatever the order of a sum. They must also fit the types to which
 * the contract rounds. Lengths are 1 or 0, and gates leave S as it is or clear it. */
static assay_status admit_sum(const rule *r, int64_t n, int64_t j, const double *x, const char *what,
                              assay_error *error) {
  double size = 0;
  int low = LATTICE_ZERO;
  for (int64_t i = 0; i < r->D_k; ++i) {
    const double term = r->state[i * r->D_v + j] * x[i];
    const int own = lattice_low(term);
    size += fabs(term);
    low = own < low ? own : low;
  }
  if (lattice_admits(size, low, 24)) return ASSAY_OK;
  return rowwise_refuse(r->call, n, j, what, size, ldexp(1, low + 24), error);
}

static assay_status admit_gates(const rule *r, int64_t n, int64_t h, double g, double beta, assay_error *error) {
  if (!(g >= 0 || g <= -200)) return rowwise_refuse(r->call, n, h, "g between -200 and 0", g, 0, error);
  if (lattice_bits(beta) > lattice_width(r->contract->gates))
    return rowwise_refuse(r->call, n, h, "beta with too many bits", beta, 0, error);
  double square[2] = {0, 0};
  for (int64_t i = 0; i < r->D_k; ++i) {
    square[0] += r->q[i] * r->q[i];
    square[1] += r->k[i] * r->k[i];
  }
  for (int i = 0; i < 2 && r->l2; ++i)
    if (square[i] != 0 && square[i] != 1) return rowwise_refuse(r->call, n, h, "length", square[i], 1, error);
  if (r->l2 && r->l2_eps > 0x1p-30) return rowwise_refuse(r->call, n, h, "l2_eps", r->l2_eps, 0x1p-30, error);
  return ASSAY_OK;
}

/* Proves that S fits what a chunk multiplies where a chunk begins. Chunks of 64 rows are what kernels take. A row that
 * clears S leaves nothing of its bits. */
static assay_status admit_chunk(const rule *r, int64_t n, int64_t t, double g, assay_error *error) {
  if (t % CHUNK != 0 || g < 0 || r->contract->chunk == ASSAY_NONE) return ASSAY_OK;
  for (int64_t i = 0; i < r->D_k * r->D_v; ++i)
    if (lattice_bits(r->state[i]) > lattice_width(r->contract->chunk))
      return rowwise_refuse(r->call, n, i % r->D_v, "S of a chunk with too many bits", r->state[i], 0, error);
  return ASSAY_OK;
}

/* Asked between decay and update. */
static assay_status admit_update(const rule *r, int64_t n, assay_error *error) {
  const int d_bits = lattice_width(r->contract->chunk), s_bits = lattice_width(r->contract->state);
  assay_status status = ASSAY_OK;
  for (int64_t j = 0; j < r->D_v && status == ASSAY_OK; ++j) {
    status = admit_sum(r, n, j, r->k, "sum of |S k|", error);
    const double rest = r->v[j] - r->p[j];
    if (status == ASSAY_OK && (lattice_bits(rest) > 24 || lattice_bits(r->d[j]) > d_bits))
      status = rowwise_refuse(r->call, n, j, "d with too many bits", r->d[j], 0, error);
    for (int64_t i = 0; i < r->D_k && status == ASSAY_OK; ++i) {
      const double s = r->state[i * r->D_v + j], add = r->k[i] * r->d[j];
      if (lattice_bits(add) > 24 || lattice_bits(s + add) > s_bits)
        status = rowwise_refuse(r->call, n, j, "S with too many bits", s + add, 0, error);
    }
  }
  return status;
}

static assay_status admit_output(const rule *r, int64_t n, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int64_t j = 0; j < r->D_v && status == ASSAY_OK; ++j) {
    status = admit_sum(r, n, j, r->q, "sum of |S q|", error);
    if (status == ASSAY_OK && lattice_bits(r->o[j]) > 24)
      status = rowwise_refuse(r->call, n, j, "o with too many bits", r->o[j], 0, error);
  }
  return status;
}

/* ---- requests ---------------------------------------------------------------------------------------- */

static double stored(const rule *r, int64_t slot, int64_t at) {
  const assay_tensor *state = &r->call->arg[DELTA_STATE];
  return assay_load_f64(state->data, state->dtype, slot * (r->S > 1 ? state->stride[0] : 0) + at);
}

/* Loads S of a head. */
static void open_state(const rule *r, const delta_request *request, int64_t h) {
  const int64_t width = r->D_k * r->D_v;
  bool read = request->slot >= 0 && (!request->fresh || r->spoil == SPOIL_STALE_STATE_READ);
  int64_t slot = request->slot;
  if (r->spoil == SPOIL_STATE_OF_SLOT_BEFORE && slot > 0) --slot;
  if (r->spoil == SPOIL_INITIAL_ZERO) read = false;
  for (int64_t i = 0; i < width; ++i) {
    const int64_t at = r->spoil == SPOIL_STATE_TRANSPOSED ? i % r->D_v * r->D_k + i / r->D_v : i;
    r->state[i] = read ? stored(r, slot, h * width + at) : 0;
  }
}

static void close_state(const rule *r, const delta_request *request, int64_t h, const assay_expected *to) {
  const int64_t width = r->D_k * r->D_v, pad = r->spoil == SPOIL_PAD_SLOT_WRITTEN ? r->S - 1 : -1;
  const int64_t slot = request->slot < 0 ? pad : request->slot, end = request->first + request->rows;
  const assay_dtype type = r->call->arg[DELTA_STATE].dtype;
  if (slot < 0) return;
  double late = 0;
  for (int64_t t = request->rows; t % SPOILED_CHUNK != 0 && end + t - request->rows < r->N; ++t)
    late += gate(r, DELTA_G, end + t - request->rows, h);
  if (r->spoil == SPOIL_LAST_GATE_OF_FULL_CHUNK) decay(r, exp(late));
  for (int64_t i = 0; i < width; ++i) {
    const int64_t at = r->spoil == SPOIL_STATE_TRANSPOSED ? i % r->D_v * r->D_k + i / r->D_v : i;
    const int64_t place = (slot * r->H_v + h) * width + at, row = i / r->D_v;
    const double size = to->sigma != NULL ? r->size[i % r->D_v] : 0;
    to->value[place] = r->state[i];
    if (fabs(r->state[i]) < 0.5 * assay_ulp(0, ASSAY_F32)) to->value[place] = 0;
    const int64_t own = row * r->D_k + row;
    if (to->sigma != NULL)
      to->sigma[place] = sqrt(size * size * fmax(r->spread[own], 0) + fmax(r->faint[own], 0) + r->late[own] + r->tiny +
                              storing_variance(r->state[i], type));
  }
}

static assay_status take_head(rule *r, const delta_request *request, int64_t h, const assay_expected *o,
                              const assay_expected *state, assay_error *error) {
  const bool model = o->sigma != NULL;
  assay_status status = ASSAY_OK;
  open_state(r, request, h);
  r->tiny = 0;
  memset(r->size, 0, (size_t)r->D_v * sizeof *r->size);
  memset(r->spread, 0, 3 * (size_t)(r->D_k * r->D_k) * sizeof *r->spread); /* faint and late follow */
  for (int64_t t = 0; t < request->rows && status == ASSAY_OK; ++t) {
    const int64_t n = request->first + t;
    const double g = gate(r, DELTA_G, n, h), beta = gate(r, DELTA_BETA, n, h);
    load_row(r, n, h);
    r->length2 = r->l2 ? length2_of(r, r->k) + r->l2_eps : 1;
    if (r->exact) status = admit_gates(r, n, h, g, beta, error);
    if (r->exact && status == ASSAY_OK) status = admit_chunk(r, n, t, g, error);
    if (r->l2 && r->spoil != SPOIL_L2_LOST) normalise(r, r->q);
    if (r->l2 && r->spoil != SPOIL_L2_LOST) normalise(r, r->k);
    if (r->spoil == SPOIL_STATE_LOST_AT_CHUNK && t > 0 && t % SPOILED_CHUNK == 0) decay(r, 0);
    if (model || r->exact) {
      /* The state between decay and update is needed: take_row goes over it again, from the same numbers. */
      memcpy(r->wide + r->D_k, r->state, (size_t)(r->D_k * r->D_v) * sizeof *r->state);
      if (model && t == 0) grow_sizes(r, true);
      decay(r, alpha_of(r, g));
      read_state(r, r->k, r->p);
      for (int64_t j = 0; j < r->D_v; ++j)
        r->d[j] = beta * (r->v[j] - r->p[j]);
      if (r->exact && status == ASSAY_OK) status = admit_update(r, n, error);
      if (model) {
        measure_row(r);
        grow_sizes(r, exp(g) <= 0);
        spread_decay(r, g);
        if (t % CHUNK == 0) begin_chunk(r);
        spread_row(r, beta);
        if (chunk_low(r) > 0) faint_row(r, g, beta);
      }
      memcpy(r->state, r->wide + r->D_k, (size_t)(r->D_k * r->D_v) * sizeof *r->state);
    }
    take_row(r, g, beta);
    if (r->exact && status == ASSAY_OK) status = admit_output(r, n, error);
    if (model) {
      grow_sizes(r, false);
      add_elements(r,
                   f32_variance + (r->contract->state != ASSAY_NONE ? storing_variance(1.5, r->contract->state) : 0));
      output_sigma(r, o->sigma + (n * r->H_v + h) * r->D_v);
    }
    for (int64_t j = 0; j < r->D_v; ++j) {
      const int64_t at = (n * r->H_v + h) * r->D_v + j;
      o->value[at] = fabs(r->o[j]) < 0.5 * assay_ulp(0, ASSAY_F32) ? 0 : r->o[j];
    }
  }
  if (request->rows > 0) close_state(r, request, h, state);
  return status;
}

/* Expects that no slot's head h changes. */
static void keep_state(const rule *r, int64_t h, const assay_expected *to) {
  const int64_t width = r->D_k * r->D_v;
  for (int64_t slot = 0; slot < r->S; ++slot)
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = (slot * r->H_v + h) * width + i;
      to->value[at] = stored(r, slot, h * width + i);
      if (to->sigma != NULL) to->sigma[at] = ASSAY_UNCHANGED;
    }
}

/* Computes heads first to end - 1. No head needs another. */
static assay_status compute(const assay_call *call, const assay_contract *contract, int64_t first, int64_t end,
                            bool exact, rule_spoil spoil, assay_expected *expected, assay_error *error) {
  const assay_tensor *arg = call->arg;
  rule r = {.call = call,
            .contract = contract != NULL ? contract : &default_contract,
            .N = arg[DELTA_K].shape[0],
            .H_k = arg[DELTA_K].shape[1],
            .D_k = arg[DELTA_K].shape[2],
            .H_v = arg[DELTA_V].shape[1],
            .D_v = arg[DELTA_V].shape[2],
            .B = arg[DELTA_SLOTS].shape[0],
            .S = arg[DELTA_STATE].shape[0],
            .scale = call->param[DELTA_SCALE],
            .l2 = call->param[DELTA_L2] != 0,
            .l2_eps = call->param[DELTA_L2_EPS],
            .exact = exact,
            .spoil = spoil};
  double *memory;
  assay_status status = delta_check_contents(call, error);
  const int64_t K = r.D_k, V = r.D_v;
  if (status == ASSAY_OK) status = rowwise_reserve(call, 2 * K * V + 3 * K * K + 5 * K + 11 * V, &memory, error);
  if (status != ASSAY_OK) return status;
  double **const part[] = {&r.state, &r.spread, &r.faint,      &r.late,  &r.wide, &r.q, &r.k,
                           &r.q_low, &r.k_low,  &r.v,          &r.p,     &r.d,    &r.o, &r.size,
                           &r.next,  &r.sums,   &r.per_square, &r.given, &r.taken};
  const int64_t count[] = {K * V, K * K, K * K, K * K, K + K * V, K, K, K, K, V, V, V, V, V, V, 2 * V, V, V, V};
  double *at = memory;
  for (size_t i = 0; i < sizeof part / sizeof part[0]; at += count[i], ++i)
    *part[i] = at;
  if (!(r.scale > 0)) r.scale = 1 / sqrt((double)K);
  for (int64_t h = first; h < end; ++h)
    keep_state(&r, h, &expected[OUT_STATE]);
  for (int64_t i = 0; i < r.B && status == ASSAY_OK; ++i) {
    const delta_request request = delta_request_of(call, i);
    for (int64_t h = first; h < end && status == ASSAY_OK; ++h)
      status = take_head(&r, &request, h, &expected[OUT_O], &expected[OUT_STATE], error);
  }
  free(memory);
  return status;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const int64_t H_k = call->arg[DELTA_K].shape[1], H_v = call->arg[DELTA_V].shape[1];
  if (H_v % H_k != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "H_v: found %lld, allowed multiples of H_k, %lld", (long long)H_v,
                      (long long)H_k);
  return ASSAY_OK;
}

static int64_t head_count(const assay_call *call) {
  return call->arg[DELTA_V].shape[1];
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)rows; /* both outputs are computed whole */
  (void)seen;
  return compute(call, contract, 0, head_count(call), exact, SPOIL_NONE, expected, error);
}

static assay_status reference_of_heads(const assay_call *call, const assay_contract *contract, int64_t begin,
                                       int64_t end, bool exact, assay_expected *expected, assay_error *error) {
  return compute(call, contract, begin, end, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)rows;
  assay_expected values[2] = {{expected[OUT_STATE].value, NULL}, {expected[OUT_O].value, NULL}};
  return compute(call, contract, 0, head_count(call), false, (rule_spoil)index, values, error);
}

/* Counts how often a slot's state is read or written: a fresh request only writes it, and slot -1 has none. */
static double state_passes(const assay_call *call) {
  const int64_t B = call->arg[DELTA_SLOTS].shape[0];
  double passes = 0;
  for (int64_t i = 0; i < B && call->arg[DELTA_SLOTS].data != NULL; ++i) {
    const delta_request request = delta_request_of(call, i);
    if (request.slot >= 0 && request.rows > 0) passes += request.fresh ? 1 : 2;
  }
  return passes;
}

/* Counts three products and sums per element of S and row. Bytes: rows once, gates, and the states as they move. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *k = &call->arg[DELTA_K], *v = &call->arg[DELTA_V], *state = &call->arg[DELTA_STATE];
  const double N = (double)k->shape[0], key = (double)(k->shape[1] * k->shape[2]);
  const double value = (double)(v->shape[1] * v->shape[2]), S = value * (double)k->shape[2];
  return (assay_cost){6 * N * S, N * (2 * key + 2 * value) * (double)assay_dtype_size(k->dtype) +
                                     8 * N * (double)v->shape[1] +
                                     state_passes(call) * S * (double)assay_dtype_size(state->dtype)};
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 8, 1, "rows of all requests"},
    {"H_k", 1, 256, 2, 1, "key heads"},
    {"H_v", 1, 256, 2, 1, "value heads: a multiple of H_k"},
    {"D_k", 1, 256, 16, 1, "channels of a key"},
    {"D_v", 1, 256, 16, 1, "channels of a value"},
    {"B", 1, 65536, 3, 1, "requests"},
    {"S", 1, 65536, 4, 1, "slots of the state"},
};

static const assay_arg args[DELTA_ARGS] = {
    {"q", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,H_k,D_k", "queries; the row stride is free", true},
    {"k", ASSAY_IN, ASSAY_VALUES, false, "=q", "N,H_k,D_k", "keys; the row stride is free", true},
    {"v", ASSAY_IN, ASSAY_VALUES, false, "=q", "N,H_v,D_v", "values; the row stride is free", true},
    {"g", ASSAY_IN, ASSAY_VALUES, false, "f32", "N,H_v", "logarithm of the decay, at most 0", true},
    {"beta", ASSAY_IN, ASSAY_VALUES, false, "f32", "N,H_v", "share of an update", true},
    {"cu", ASSAY_IN, ASSAY_VALUES, false, "i32", "B+1", "first row of each request, and N", false},
    {"slots", ASSAY_IN, ASSAY_VALUES, false, "i32", "B", "slot of each request; -1: none", false},
    {"fresh", ASSAY_IN, ASSAY_VALUES, false, "i32", "B", "not 0: the request starts from zeros", false},
    {"state", ASSAY_INOUT, ASSAY_VALUES, false, "f32,bf16", "S,H_v,D_k,D_v", "a matrix for each slot and head", true},
    {"o", ASSAY_OUT, ASSAY_RESULT, false, "=q", "N,H_v,D_v", "the result", true},
};

static const assay_param params[] = {
    {"scale", ASSAY_REAL, 0, 65536, 0, NULL, "factor of the result; 0: 1 / sqrt(D_k)"},
    {"l2", ASSAY_BOOL, 0, 1, 1, NULL, "q and k are divided by their lengths"},
    {"l2_eps", ASSAY_REAL, 1e-30, 1, 1e-6, NULL, "added to a sum of squares"},
};

static const assay_op op = {
    .name = "gated_delta_rule",
    .title = "linear attention with a gated delta rule and a state for each request",
    .source = "docs/definitions.md, section 12",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = DELTA_ARGS,
    .params = params,
    .param_count = (int32_t)(sizeof params / sizeof params[0]),
    .laws = "run_to_run,dead_bytes,cut,slots",
    .spoils = "state_of_slot_before,initial_zero,stale_state_read,pad_slot_written,state_lost_at_chunk,"
              "last_gate_of_full_chunk,gates_of_other_row,delta_before_decay,decay_lost,beta_lost,beta_on_v,no_delta,"
              "output_before_update,alpha_floor,l2_lost,l2_eps_outside,heads_tiled,state_transposed,scale_lost",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .confirmed_by =
        "chunks in matrix form, which share no code with the recurrence; requests cut anywhere; a memory of "
        "unit keys (ref_delta_test)",
    .extreme_args = "q,v",
    .largest = 0x1p40,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = delta_fill,
    .spoil = spoil,
};

const assay_op *assay_op_gated_delta_rule(void) {
  return &op;
}

const assay_shared_reference assay_shared_gated_delta_rule = {head_count, reference_of_heads};
