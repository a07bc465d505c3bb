/* draw.c: the number that a case's seed gives in one random stream (streams.h). */
#include "core/rng.h"
#include "logical.h"

uint64_t logical_hash(const assay_case *one, uint64_t stream) {
  const assay_philox x = assay_philox4x32(one->seed, (uint32_t)stream, (uint32_t)(stream >> 32), 0x67656e, 0);
  return (uint64_t)x.x[0] | (uint64_t)x.x[1] << 32;
}
