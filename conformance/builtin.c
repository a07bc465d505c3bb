/* builtin.c: the one place that knows the operators of ref/, the variants of gpu/, and the devices. */
#include "builtin.h"

#include "core/registry_add.h"
#include "conformance/laws/laws.h"

#define ASSAY_OP(stem) const assay_op *assay_op_##stem(void);
#include "assay/ops.def"
#undef ASSAY_OP

#ifdef ASSAY_HAVE_SIMT
const assay_device *assay_device_simt(void);
const assay_layers *assay_layers_simt(void);
const struct assay_simt_api *assay_simt_host_api(void);
#define ASSAY_OP(stem) const assay_variant *assay_variants_simt_##stem(int32_t *count);
#include "assay/ops.def"
#undef ASSAY_OP
#define ASSAY_STRATEGY(op, name) const assay_variant *assay_variants_simt_##op##_##name(int32_t *count);
#include "assay/strategies.def"
#undef ASSAY_STRATEGY
#endif

#ifdef ASSAY_HAVE_CUDA
const assay_device *assay_device_cuda(void);
const assay_layers *assay_layers_cuda(void);
const assay_sparse *assay_sparse_cuda(void);
#define ASSAY_OP(stem) const assay_variant *assay_variants_cuda_##stem(int32_t *count);
#include "assay/ops.def"
#undef ASSAY_OP
#define ASSAY_STRATEGY(op, name) const assay_variant *assay_variants_cuda_##op##_##name(int32_t *count);
#include "assay/strategies.def"
#undef ASSAY_STRATEGY
#endif

typedef const assay_variant *(*variant_table)(int32_t *count);

static assay_status add_table(variant_table table, assay_error *error) {
  int32_t count = 0;
  const assay_variant *rows = table(&count);
  return assay_registry_add_variants(rows, count, "built-in", error);
}

assay_status builtin_register(assay_error *error) {
  assay_status status = ASSAY_OK;
#define ASSAY_OP(stem)                                                                                                 \
  if (status == ASSAY_OK) status = assay_registry_add_op(assay_op_##stem(), error);
#include "assay/ops.def"
#undef ASSAY_OP
#ifdef ASSAY_HAVE_SIMT
  assay_registry_set_simt(assay_simt_host_api());
  if (status == ASSAY_OK) status = assay_registry_add_device(assay_device_simt(), error);
  assay_registry_add_layers(assay_layers_simt());
#define ASSAY_STRATEGY(op, name)                                                                                       \
  if (status == ASSAY_OK) status = add_table(assay_variants_simt_##op##_##name, error);
#include "assay/strategies.def"
#undef ASSAY_STRATEGY
#define ASSAY_OP(stem)                                                                                                 \
  if (status == ASSAY_OK) status = add_table(assay_variants_simt_##stem, error);
#include "assay/ops.def"
#undef ASSAY_OP
#define ASSAY_STRATEGY(op, name)
#define ASSAY_BEHIND(op, name, other)                                                                                  \
  if (status == ASSAY_OK) status = assay_registry_put_behind(#op, #name, #other, "simt", error);
#include "assay/strategies.def"
#undef ASSAY_BEHIND
#undef ASSAY_STRATEGY
#endif
#ifdef ASSAY_HAVE_CUDA
  if (status == ASSAY_OK) status = assay_registry_add_device(assay_device_cuda(), error);
  assay_registry_add_layers(assay_layers_cuda());
  far_memory("cuda", assay_sparse_cuda());
#define ASSAY_STRATEGY(op, name)                                                                                       \
  if (status == ASSAY_OK) status = add_table(assay_variants_cuda_##op##_##name, error);
#include "assay/strategies.def"
#undef ASSAY_STRATEGY
#define ASSAY_OP(stem)                                                                                                 \
  if (status == ASSAY_OK) status = add_table(assay_variants_cuda_##stem, error);
#include "assay/ops.def"
#undef ASSAY_OP
#define ASSAY_STRATEGY(op, name)
#define ASSAY_BEHIND(op, name, other)                                                                                  \
  if (status == ASSAY_OK) status = assay_registry_put_behind(#op, #name, #other, "cuda", error);
#include "assay/strategies.def"
#undef ASSAY_BEHIND
#undef ASSAY_STRATEGY
#endif
  return status;
}
