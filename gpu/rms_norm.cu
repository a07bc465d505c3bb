/* rms_norm.cu: divides every row by its root mean square, then multiplies it by a weight. y = round(x / sqrt(mean(x^2)
 * + eps)) g. The kernel is norm_rows of gpu/lib/norm.cuh. Gates, groups and weights of another kind have a kernel of
 * their own, norm_form_rows of gpu/lib/norm_forms.cuh. docs/kernels/rms_norm.md has the arithmetic. */
#include "gpu/lib/norm_forms.cuh"
#include "gpu/lib/norm_vectors.cuh"

namespace ASSAY_NS {
namespace {

template <int lanes> assay_status launch_rows(const assay_call *call, assay_env *env, assay_error *error) {
  norm_form_params p;
  ASSAY_TRY(read_norm_form(call, &p, error));
  return p.form ? launch_norm_form<lanes>(call, env, error) : launch_norm<false, false, lanes>(call, env, error);
}

/* Declines the forms. */
assay_status read_vectors(const assay_call *call, norm_params *p, assay_error *error) {
  norm_form_params form;
  ASSAY_TRY(read_norm_form(call, &form, error));
  if (form.form)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "call: found z, plus_one, group or a weight of f32, taken here: none of these");
  return read_norm_vectors(call, p, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  norm_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  return launch_norm_vectors<false, false>(call, env, error);
}

/* expf of a gate has 2 ulp. */
constexpr assay_contract gated_contract(int32_t lanes) {
  assay_contract contract = norm_contract(lanes);
  contract.exp_ulp = 2.0;
  return contract;
}
constexpr assay_contract warp_contract = gated_contract(32), block_contract = gated_contract(256);

} // namespace
} // namespace ASSAY_NS

#define VECTORS                                                                                                        \
  PLAIN_VARIANT("rms_norm", "vectors", "a row in registers, 16 bytes a load", PLAIN_TYPE_CLAIMS, warp_rows_contract,   \
                norm_params, read_vectors, launch_vectors)
#define WARP_ROWS                                                                                                      \
  PLAIN_VARIANT("rms_norm", "warp_rows", "short rows: a warp each, no barrier", PLAIN_TYPE_CLAIMS, warp_contract,      \
                norm_form_params, read_norm_form, launch_rows<32>)
#define BLOCK_ROWS                                                                                                     \
  PLAIN_VARIANT("rms_norm", "block_rows", "long rows: 256 threads each", PLAIN_TYPE_CLAIMS, block_contract,            \
                norm_form_params, read_norm_form, launch_rows<256>)

ASSAY_VARIANTS(rms_norm, VECTORS, WARP_ROWS, BLOCK_ROWS)
