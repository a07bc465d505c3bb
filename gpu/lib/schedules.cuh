/* schedules.cuh: the three schedules of an attention operator, whatever it does with a score.
 *
 *   decode_rows         one block per query row and head; one row per request
 *   prefill_as_decode   the same over the rows of a ragged batch, which expand_rows turns into requests of one row
 *   split_keys          the key axis in splits of keys_per_split keys, one block each, and a sum over the splits
 *
 * Each is a strategy (gpu/lib/variant.cuh) over the type Kernels. An operator's .cu defines its kernels and that type:
 *
 *   plan                     the operator's attention_plan
 *   floats_beside            f32 that a split leaves for a row and head beside its D_v channels
 *   read(call, plan, error)  reads the operator's parameters
 *   rows<Q, KV>              launches one block per query row and head
 *   splits<Q, KV>            launches the splits and their sum */
#ifndef ASSAY_GPU_LIB_SCHEDULES_CUH
#define ASSAY_GPU_LIB_SCHEDULES_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/paged.cuh"
#include "gpu/lib/rows.cuh"
#include "gpu/lib/types.cuh"
#include "gpu/lib/variant.cuh"

namespace ASSAY_NS {

constexpr int max_tile = 128;       /* keys of a tile, and threads, of decode_rows */
constexpr int keys_per_split = 256; /* keys of a split; the contract of split_keys names it */

/* Launches one block per query row and head. */
template <class Kernels>
assay_status start_rows(const typename Kernels::plan &made, assay_env *env, assay_error *error) {
  return with_types(made.types.q, made.types.kv, [&](auto q, auto kv) {
    return Kernels::template rows<typename decltype(q)::type, typename decltype(kv)::type>(made.p, env, error);
  });
}

/* ---- decode_rows ------------------------------------------------------------------------------------ */

inline assay_status expect_decode(const attention_params &a, assay_error *error) {
  if (a.cu_q == NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cu_q: found a tensor, allowed none: one row a request");
}

template <class Kernels> struct decode_rows {
  using plan = typename Kernels::plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(Kernels::read(call, made, error));
    return expect_decode(made->p.a, error);
  }
  static void path(const plan &made, assay_env *env) {
    const attention_params &a = made.p.a;
    (void)snprintf(env->path, sizeof env->path, "decode_rows tile=%d D=%d%s", attention_tile(a, max_tile), a.D,
                   cache_word(a));
  }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    return start_rows<Kernels>(made, env, error);
  }
};

/* ---- prefill_as_decode ------------------------------------------------------------------------------ */

/* Refuses calls without ragged rows. Workspace: row_request[N], row_last[N]. */
inline assay_status expect_ragged(const attention_params &a, int64_t *workspace, assay_error *error) {
  *workspace = a.N * 2 * static_cast<int64_t>(sizeof(int32_t));
  if (a.cu_q != NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cu_q: found no data, allowed a tensor: rows are expanded by it");
}

/* expand_rows: writes the request and the last key of every query row.
 * Grid:   (ceil(N / 128)). Block: 128. Shared: none. Arch: any. Limit: 8 bytes written per row. */
static __global__ void __launch_bounds__(max_tile)
    expand_rows(attention_params a, int32_t *row_request, int32_t *row_last) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * max_tile + threadIdx.x;
  if (row >= a.N) return;
  const row_keys keys = keys_of_row(a, row);
  row_request[row] = keys.request;
  row_last[row] = keys.last;
}

/* Expands the rows into the workspace and points *a to them. */
static inline assay_status launch_expand_rows(attention_params *a, assay_env *env, assay_error *error) {
  int32_t *const request = static_cast<int32_t *>(env->workspace), *const last = request + a->N;
  const int64_t blocks = (a->N + max_tile - 1) / max_tile;
  ASSAY_TRY(ASSAY_LAUNCH(error, expand_rows, blocks, max_tile, 0, env->stream, *a, request, last));
  a->row_request = request;
  a->row_last = last;
  return ASSAY_OK;
}

template <class Kernels> struct prefill_as_decode {
  using plan = typename Kernels::plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(Kernels::read(call, made, error));
    return expect_ragged(made->p.a, &made->workspace, error);
  }
  static void path(const plan &made, assay_env *env) {
    const attention_params &a = made.p.a;
    (void)snprintf(env->path, sizeof env->path, "prefill_as_decode tile=%d D=%d%s", attention_tile(a, max_tile), a.D,
                   cache_word(a));
  }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    ASSAY_TRY(launch_expand_rows(&made.p.a, env, error));
    return start_rows<Kernels>(made, env, error);
  }
};

/* ---- split_keys ------------------------------------------------------------------------------------- */

/* Rows times heads of a ragged batch from which on split_keys declines. Many rows that share a tile of keys are faster
 * there: query_tile, which comes after split_keys in the table and takes all. */
constexpr int64_t few_lines = 4096;

inline assay_status expect_few_lines(const attention_params &a, assay_error *error) {
  if (a.cu_q == NULL || a.N < (few_lines + a.H - 1) / a.H) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "N: found %" PRId64 " ragged rows of %d heads, allowed fewer than %" PRId64 " rows and heads", a.N,
                    a.H, few_lines);
}

/* Refuses calls that split_keys cannot run, and sets the workspace: `floats` f32 for each (row, head, split). */
inline assay_status expect_split(const attention_params &a, int32_t floats, int32_t *splits, int64_t *workspace,
                                 assay_error *error) {
  if (a.D != 64 && a.D != 128) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, allowed 64, 128", a.D);
  ASSAY_TRY(expect_few_lines(a, error));
  return attention_splits(a, keys_per_split, floats, splits, workspace, error);
}

/* Says whether split_keys takes a call. */
inline bool splits_take(const attention_params &a) {
  int32_t splits;
  int64_t workspace;
  assay_error ignored;
  return expect_split(a, attention_max_D + 1, &splits, &workspace, &ignored) == ASSAY_OK;
}

template <class Kernels> struct split_keys {
  using plan = typename Kernels::plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(Kernels::read(call, made, error));
    const attention_params &a = made->p.a;
    return expect_split(a, a.D_v + Kernels::floats_beside, &made->p.splits, &made->workspace, error);
  }
  static void path(const plan &made, assay_env *env) {
    (void)snprintf(env->path, sizeof env->path, "split_keys keys=%d splits=%d D=%d%s", keys_per_split, made.p.splits,
                   made.p.a.D, cache_word(made.p.a));
  }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    return with_types(made.types.q, made.types.kv, [&](auto q, auto kv) {
      return Kernels::template splits<typename decltype(q)::type, typename decltype(kv)::type>(made.p, env, error);
    });
  }
};

/* Rows of the variant table of these schedules, which take every type and layout. */
#define SCHEDULE_VARIANT(op, name, why, modes, contract, ...)                                                          \
  ATTENTION_VARIANT(op, name, why, "any", ASSAY_TYPE_CLAIMS "|nhd,hnd,x|" modes, contract, __VA_ARGS__)

} // namespace ASSAY_NS
#endif
