/* prefill_step.cuh: a step of single rows of a ragged prefill, by the kernel that has room for its rows. Both give a
 * row the bits that it has in a prompt. */
#ifndef ASSAY_GPU_LIB_PREFILL_STEP_CUH
#define ASSAY_GPU_LIB_PREFILL_STEP_CUH

#include "gpu/lib/prefill_few.cuh"
#include "gpu/lib/prefill_rows.cuh"

namespace ASSAY_NS {

/* Returns whether a step of single tokens is faster by these kernels than by a prompt's tiles. multiprocessors: some
 * 132. With 65 to 132 rows times heads of keys and long rows it is not, nor with more than 264 and long rows. Between
 * them it is for rows that are not much longer than others (docs/log/2026-11-29-h200-invariant-few.md). A prompt's
 * tiles have two heads, and read K and V again for the others of a larger group. */
inline bool step_is_faster(const attention_params &a) {
  constexpr int64_t few = 64, one_each = 132, two_each = 264, short_rows = 512, rows_of_two = 1536;
  const int64_t rows = a.N * a.H_kv;
  if (rows <= few || a.capacity <= short_rows) return true;
  return rows <= two_each && (a.G > 2 || (rows > one_each && a.capacity <= rows_of_two));
}

template <class T, class Rule>
assay_status step_start(const typename Rule::params &p, assay_env *env, assay_error *error) {
  if (few_blocks(p.a, env->multiprocessors) > 1)
    return few_start<T, Rule>(few_shape<Rule>(p, env->multiprocessors), env, error);
  return single_start<T, Rule>(single_shape<Rule>(p), env, error);
}

template <class Rule> void step_path(const typename Rule::params &p, assay_env *env) {
  if (few_blocks(p.a, env->multiprocessors) > 1) return few_path<Rule>(p, env);
  single_path<Rule>(p, env);
}

} // namespace ASSAY_NS
#endif
