/* spec_verify.cu: accepts or rejects drafted tokens by rejection sampling. The definition is in ref/spec_verify.c's
 * head and in docs/definitions.md, section 11.
 *
 * requests: a block per request. One thread decides about the drafts, then the block draws. It makes sums of 1024 ids,
 * finds the piece in which the running mass passes the target, and the id in it. Masses are f64, so that their sums of
 * 24 bits each are exact or nearly so. docs/kernels/spec_verify.md has the arithmetic. */
#include "gpu/lib/philox.cuh"
#include "gpu/lib/plain.h"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int spec_threads = 256, spec_warps = spec_threads / 32;
constexpr int spec_piece = 1024, spec_most_pieces = (1 << 20) / spec_piece; /* V is at most 2^20 */
constexpr int32_t spec_number = 1, spec_draft = 4;                          /* status */

using spec_key = unsigned long long;

struct spec_params {
  const int32_t *draft, *n_draft, *step;
  const float *q, *p, *coins;
  const int64_t *seed, *request;
  int32_t *tokens, *accepted, *status;
  int64_t q_row, p_row, B;
  int32_t n, V;
  bool greedy;
};

/* The values on which the threads of a block agree. */
struct spec_shared {
  double before, target; /* mass before the piece; where the draw falls */
  spec_key best;         /* greedy: the largest p of a row, the lower id first */
  int32_t accepted, status, piece, token;
  uint32_t bad; /* 1: a number that is no probability */
  bool residual;
};

__device__ __forceinline__ bool is_probability(float value) {
  return value >= 0.0f && value < INFINITY;
}

__device__ __forceinline__ float coin_of(const spec_params &p, int64_t b, int32_t i) {
  if (p.coins != nullptr) return p.coins[b * (p.n + 1) + i];
  const uint64_t request = static_cast<uint64_t>(p.request[b]), seed = static_cast<uint64_t>(p.seed[b]);
  const philox_block counter = {{static_cast<uint32_t>(p.step[b]), static_cast<uint32_t>(i),
                                 static_cast<uint32_t>(request), static_cast<uint32_t>(request >> 32)}};
  return philox_unit(philox4x32_10(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)).word[0]);
}

/* A row of probabilities. q: NULL for none; without q, id x has a q of 1 where `one_hot`. */
struct spec_row {
  const float *p, *q;
  int32_t x;
  bool residual;
};

/* Returns the mass of an id, and marks numbers that are no probabilities. */
__device__ __forceinline__ double mass_of(const spec_row &row, int32_t v, bool *bad) {
  const float p = row.p[v];
  if (!is_probability(p)) *bad = true;
  if (!row.residual) return p;
  const float q = row.q != nullptr ? row.q[v] : v == row.x ? 1.0f : 0.0f;
  if (!is_probability(q)) *bad = true;
  const double more = static_cast<double>(p) - static_cast<double>(q);
  return more > 0.0 ? more : 0.0;
}

/* Writes the results of a request, and what the block agrees on. */
__device__ __forceinline__ void finish(const spec_params &p, int64_t b, int32_t accepted, int32_t token,
                                       int32_t status) {
  const bool good = status == 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i <= p.n; i += spec_threads)
    p.tokens[b * (p.n + 1) + i] = !good || i > accepted ? -1 : i == accepted ? token : p.draft[b * p.n + i];
  if (threadIdx.x != 0) return;
  p.accepted[b] = good ? accepted : 0;
  p.status[b] = status;
}

/* Decides about the drafts, in one thread. */
__device__ void decide(const spec_params &p, int64_t b, int32_t drafts, spec_shared *shared) {
  int32_t i = 0, status = 0;
  for (; i < drafts; ++i) {
    const int32_t x = p.draft[b * p.n + i];
    if (x < 0 || x >= p.V) {
      status = spec_draft;
      break;
    }
    const float target = p.p[b * p.p_row + static_cast<int64_t>(i) * p.V + x];
    const float proposed = p.q != nullptr ? p.q[b * p.q_row + static_cast<int64_t>(i) * p.V + x] : 1.0f;
    if (!is_probability(target) || !is_probability(proposed)) {
      status = spec_number;
      break;
    }
    if (!(coin_of(p, b, i) * proposed < target)) break;
  }
  shared->accepted = i;
  shared->status = status;
  shared->residual = i < drafts;
}

/* Sums the pieces of a row, a warp per piece. Begins without and ends with a barrier. */
__device__ void sum_pieces(const spec_row &row, int32_t V, double *piece, spec_shared *shared) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  bool bad = false;
  for (int32_t at = warp; at * spec_piece < V; at += spec_warps) {
    double sum = 0.0;
    for (int32_t v = at * spec_piece + lane; v < V && v < (at + 1) * spec_piece; v += 32)
      sum += mass_of(row, v, &bad);
    sum = warp_sum(sum);
    if (lane == 0) piece[at] = sum;
  }
  if (bad) atomicOr(&shared->bad, 1u);
  __syncthreads(); /* every piece's sum and the flag are written */
}

/* Returns the id at which the running mass passes the target, in one warp. It is the last id with a mass where rounding
 * keeps the sum below the target. */
__device__ int32_t find_in_piece(const spec_row &row, int32_t V, const spec_shared *shared) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, first = shared->piece * spec_piece;
  double before = shared->before;
  int32_t last = 0;
  bool bad = false;
  for (int32_t at = first; at < V && at < first + spec_piece; at += 32) {
    const double mass = at + lane < V ? mass_of(row, at + lane, &bad) : 0.0;
    double running = mass;
    ASSAY_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const double below = __shfl_up_sync(0xffffffffu, running, static_cast<unsigned>(step));
      if (lane >= step) running += below;
    }
    const unsigned passed = __ballot_sync(0xffffffffu, mass > 0.0 && before + running > shared->target);
    if (passed != 0) return at + __ffs(static_cast<int>(passed)) - 1;
    const unsigned some = __ballot_sync(0xffffffffu, mass > 0.0);
    if (some != 0) last = at + 31 - __clz(static_cast<int>(some));
    before += __shfl_sync(0xffffffffu, running, 31);
  }
  return last;
}

/* Goes through the sums of the pieces in one thread. Returns their whole, and where the target falls. */
__device__ double find_piece(const double *piece, int32_t pieces, float coin, spec_shared *shared) {
  double whole = 0.0, running = 0.0;
  for (int32_t i = 0; i < pieces; ++i)
    whole += piece[i];
  shared->target = static_cast<double>(coin) * whole;
  for (int32_t i = 0; i < pieces; ++i) {
    if (piece[i] > 0.0) {
      shared->piece = i;
      shared->before = running;
    }
    running += piece[i];
    if (running > shared->target) break;
  }
  return whole;
}

/* spec_sampled: verifies a request by its coins.
 * Grid:   B. Block: 256 threads.
 * Shared: 8 KB for the sums of at most 1024 pieces, and 48 bytes.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: 4 V per request, 8 V after a rejection. */
__global__ void __launch_bounds__(spec_threads) spec_sampled(spec_params p) {
  ASSAY_SHARED(double, piece, spec_most_pieces);
  ASSAY_SHARED(spec_shared, shared_word, 1);
  spec_shared *const shared = shared_word;
  const int64_t b = blockIdx.x;
  const int32_t given = p.n_draft != nullptr ? p.n_draft[b] : p.n, drafts = min(max(given, 0), p.n);
  if (threadIdx.x == 0) {
    shared->bad = 0;
    decide(p, b, drafts, shared);
  }
  __syncthreads(); /* the decisions are written */
  const int32_t accepted = shared->accepted, status = shared->status;
  if (status != 0) {
    finish(p, b, accepted, -1, status);
    return;
  }
  spec_row row = {p.p + b * p.p_row + static_cast<int64_t>(accepted) * p.V, nullptr, -1, shared->residual};
  if (row.residual) {
    row.x = p.draft[b * p.n + accepted];
    if (p.q != nullptr) row.q = p.q + b * p.q_row + static_cast<int64_t>(accepted) * p.V;
  }
  for (int attempt = 0; attempt < 2; ++attempt) {
    sum_pieces(row, p.V, piece, shared);
    if (shared->bad != 0) {
      finish(p, b, accepted, -1, spec_number);
      return;
    }
    if (threadIdx.x == 0) {
      const double whole = find_piece(piece, (p.V + spec_piece - 1) / spec_piece, coin_of(p, b, drafts), shared);
      shared->status = whole > 0.0 ? 0 : spec_number;
    }
    __syncthreads(); /* the piece is written */
    if (shared->status == 0 || !row.residual) break;
    row.residual = false; /* p has nowhere more than q. The status has been read before the next one is written. */
  }
  if (shared->status == 0 && threadIdx.x < 32) {
    const int32_t token = find_in_piece(row, p.V, shared);
    if (threadIdx.x == 0) shared->token = token;
  }
  __syncthreads(); /* the token is written */
  finish(p, b, accepted, shared->token, shared->status);
}

/* spec_greedy: verifies a request by the largest p of each row, one row after the other.
 * Grid:   B. Block: 256 threads.
 * Shared: 48 bytes.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: 4 V per accepted draft and for the row after them. */
__global__ void __launch_bounds__(spec_threads) spec_greedy(spec_params p) {
  ASSAY_SHARED(spec_shared, shared_word, 1);
  spec_shared *const shared = shared_word;
  const int64_t b = blockIdx.x;
  const int32_t given = p.n_draft != nullptr ? p.n_draft[b] : p.n, drafts = min(max(given, 0), p.n);
  for (int32_t i = 0;; ++i) {
    const int32_t x = i < drafts ? p.draft[b * p.n + i] : -1;
    if (i < drafts && (x < 0 || x >= p.V)) {
      finish(p, b, i, -1, spec_draft);
      return;
    }
    if (threadIdx.x == 0) {
      shared->best = 0;
      shared->bad = 0;
    }
    __syncthreads(); /* the row's values are reset */
    const float *const row = p.p + b * p.p_row + static_cast<int64_t>(i) * p.V;
    spec_key best = 0;
    bool bad = false;
    for (int32_t v = static_cast<int32_t>(threadIdx.x); v < p.V; v += spec_threads) {
      const float value = row[v] + 0.0f;
      if (!is_probability(value)) bad = true;
      if (value > 0.0f) best = max(best, static_cast<spec_key>(bits_of(value)) << 32 | static_cast<uint32_t>(~v));
    }
    if (bad) atomicOr(&shared->bad, 1u);
    atomicMax(&shared->best, best);
    __syncthreads(); /* the row's values are written */
    best = shared->best;
    if (shared->bad != 0 || best == 0) {
      finish(p, b, i, -1, spec_number);
      return;
    }
    const int32_t token = static_cast<int32_t>(~static_cast<uint32_t>(best));
    if (token != x) {
      finish(p, b, i, token, 0);
      return;
    }
    __syncthreads(); /* the row's values have been read */
  }
}

assay_status read_call(const assay_call *call, spec_params *p, assay_error *error) {
  plain_call c;
  *p = spec_params();
  ASSAY_TRY(plain_read(call, &c, error));
  p->draft = c.data<const int32_t>("draft");
  p->n_draft = c.data<const int32_t>("n_draft");
  p->q = c.data<const float>("q");
  p->p = c.data<const float>("p");
  p->coins = c.data<const float>("coins");
  p->seed = c.data<const int64_t>("seed");
  p->step = c.data<const int32_t>("step");
  p->request = c.data<const int64_t>("request");
  p->tokens = c.data<int32_t>("tokens");
  p->accepted = c.data<int32_t>("accepted");
  p->status = c.data<int32_t>("status");
  p->q_row = c.row("q");
  p->p_row = c.row("p");
  p->B = c.dim("B");
  p->n = c.dim32("n");
  p->V = c.dim32("V");
  p->greedy = c.flag("draw");
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  spec_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "requests %s", p.greedy ? "greedy" : "sampled");
  if (p.B == 0) return ASSAY_OK;
  if (p.greedy) return ASSAY_LAUNCH(error, spec_greedy, p.B, spec_threads, 0, env->stream, p);
  return ASSAY_LAUNCH(error, spec_sampled, p.B, spec_threads, 0, env->stream, p);
}

constexpr assay_contract contract = {.qk_lanes = 1,
                                     .pv_lanes = 1,
                                     .run_to_run = true,
                                     .renumbering = true,
                                     .permutation = true,
                                     .lanes = 32,
                                     .alone = true};

} // namespace
} // namespace ASSAY_NS

#define REQUESTS                                                                                                       \
  PLAIN_VARIANT("spec_verify", "requests", "a block per request, running masses in f64", "sampled,greedy", contract,   \
                spec_params, read_call, launch)

ASSAY_VARIANTS(spec_verify, REQUESTS)
