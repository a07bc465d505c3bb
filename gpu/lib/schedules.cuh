/* schedules.cuh: what the three schedules of an attention operator have in common, whatever it does with a score:
 *   decode_rows        one block a query row and head; one row a request
 *   prefill_as_decode  the same over the rows of a ragged batch, which expand_rows turns into requests of one row
 *   split_keys         the key axis in splits of 256 keys, one block each, and a sum over the splits
 * Their sizes, what they refuse, the workspace they need, their rows in the variant table. An operator's .cu holds
 * its kernels, a function that reads the operator's own parameters, and the launches. */
#ifndef ASSAY_GPU_LIB_SCHEDULES_CUH
#define ASSAY_GPU_LIB_SCHEDULES_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/paged.cuh"
#include "gpu/lib/rows.cuh"
#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

constexpr int max_tile = 128; /* keys of a tile, and threads, of decode_rows */
constexpr int keys_per_split = 256;

/* ---- plans ------------------------------------------------------------------------------------------ */

/* What a launcher makes of a call. params: the kernels' own, with `attention_params a` among them. */
template <class params> struct attention_plan {
  params p;
  attention_types types;
  int64_t workspace; /* bytes */
};

/* supports and workspace of a variant whose function `plan` fills a plan, or refuses. */
template <class params, assay_status (*plan)(const assay_call *, attention_plan<params> *, assay_error *)>
assay_status supports_by(const assay_call *call, assay_error *error) {
  attention_plan<params> made;
  return plan(call, &made, error);
}

template <class params, assay_status (*plan)(const assay_call *, attention_plan<params> *, assay_error *)>
assay_status workspace_by(const assay_call *call, int64_t *bytes, assay_error *error) {
  attention_plan<params> made;
  *bytes = 0;
  ASSAY_TRY(plan(call, &made, error));
  *bytes = made.workspace;
  return ASSAY_OK;
}

/* A row of the variant table, of this operator's `params`, `plan`, contract and launch. */
#define ATTENTION_VARIANT(op, name, why, modes, contract, params, plan, launch)                                        \
  {                                                                                                                    \
    sizeof(assay_variant), op, name ASSAY_VARIANT_SUFFIX, why, ASSAY_DEVICE_NAME, "any",                               \
        ASSAY_TYPE_CLAIMS "|nhd,hnd,x|" modes, ::ASSAY_NS::contract,                                                   \
        ::ASSAY_NS::supports_by<::ASSAY_NS::params, ::ASSAY_NS::plan>,                                                 \
        ::ASSAY_NS::workspace_by<::ASSAY_NS::params, ::ASSAY_NS::plan>, ::ASSAY_NS::launch                             \
  }

/* ---- decode_rows ------------------------------------------------------------------------------------ */

inline assay_status expect_decode(const attention_params &a, assay_error *error) {
  if (a.cu_q == NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cu_q: found a tensor, allowed none: one row a request");
}

/* ---- prefill_as_decode ------------------------------------------------------------------------------ */

/* Workspace: row_request[N], row_last[N]. */
inline assay_status expect_ragged(const attention_params &a, int64_t *workspace, assay_error *error) {
  *workspace = a.N * 2 * static_cast<int64_t>(sizeof(int32_t));
  if (a.cu_q != NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cu_q: found no data, allowed a tensor: rows are expanded by it");
}

/* expand_rows: request and last key of every query row.
 * Grid: (ceil(N / 128)). Block: 128. Shared: none. Arch: any. Limit: 8 bytes written a row. */
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

/* ---- split_keys ------------------------------------------------------------------------------------- */

/* Rows times heads of a ragged batch that splits of each row and head are for. From here on many rows that share a tile
 * of keys are faster (query_tile, which stands behind split_keys and takes all). */
constexpr int64_t few_lines = 4096;

inline assay_status expect_few_lines(const attention_params &a, assay_error *error) {
  if (a.cu_q == NULL || a.N < (few_lines + a.H - 1) / a.H) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "N: found %" PRId64 " ragged rows of %d heads, allowed fewer than %" PRId64 " rows and heads", a.N,
                    a.H, few_lines);
}

/* Workspace: `floats` f32 for each (row, head, split). */
inline assay_status expect_split(const attention_params &a, int32_t floats, int32_t *splits, int64_t *workspace,
                                 assay_error *error) {
  if (a.D != 64 && a.D != 128) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, allowed 64, 128", a.D);
  ASSAY_TRY(expect_few_lines(a, error));
  return attention_splits(a, keys_per_split, floats, splits, workspace, error);
}

/* Does split_keys take a call? */
inline bool splits_take(const attention_params &a) {
  int32_t splits;
  int64_t workspace;
  assay_error ignored;
  return expect_split(a, attention_max_D + 1, &splits, &workspace, &ignored) == ASSAY_OK;
}

} // namespace ASSAY_NS
#endif
