/* lm_head.h: what the variants of lm_head have in common. */
#ifndef ASSAY_GPU_LIB_LM_HEAD_H
#define ASSAY_GPU_LIB_LM_HEAD_H

#include "gpu/lib/plain.h"

namespace ASSAY_NS {

/* Declines a cap of logits, which `tiles` takes. */
inline assay_status expect_uncapped(const plain_call &c, assay_error *error) {
  if (!(c.number("softcap") > 0.0)) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "softcap: found %.9g, allowed 0: off", c.number("softcap"));
}

} // namespace ASSAY_NS
#endif
