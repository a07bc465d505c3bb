/* rows.cuh: a query row of an attention call: its request, the keys it sees, and the place of its queries. */
#ifndef ASSAY_GPU_LIB_ROWS_CUH
#define ASSAY_GPU_LIB_ROWS_CUH

#include "gpu/lib/attention.h"

namespace ASSAY_NS {

/* Returns the last request whose rows start at or before `row`; this skips requests without rows. Returns B if the row
 * lies after all requests. cu_q[0] must be 0, and cu_q must not decrease. It takes ceil(log2(B + 1)) reads. */
__device__ __forceinline__ int32_t request_of_row(const int32_t *cu_q, int32_t B, int64_t row) {
  int32_t low = 0, high = B + 1; /* cu_q[low] <= row < cu_q[high] */
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (cu_q[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* The keys that a row sees: first <= t <= last, or none if last < first. The row's own position is `last`. */
struct row_keys {
  int32_t request, first, last;
};

__device__ __forceinline__ row_keys keys_of_row(const attention_params &a, int64_t row) {
  row_keys keys = {static_cast<int32_t>(row), 0, -1};
  if (a.row_request != nullptr) {
    keys.request = a.row_request[row];
    keys.last = a.row_last[row];
  } else if (a.cu_q == nullptr) {
    keys.last = a.length[row] - 1;
  } else {
    keys.request = request_of_row(a.cu_q, a.B, row);
    if (keys.request >= a.B) return keys; /* after all requests: sees nothing */
    const int32_t first_row = a.cu_q[keys.request];
    const int32_t new_tokens = a.cu_q[keys.request + 1] - first_row;
    const int32_t cached = a.length[keys.request] - new_tokens;
    keys.last = cached + (static_cast<int32_t>(row) - first_row);
  }
  if (a.window > 0) keys.first = max(keys.last - a.window + 1, 0);
  return keys;
}

__device__ __forceinline__ int32_t kv_head_of(const attention_params &a, int32_t head) {
  return head / a.G;
}

/* Returns the offset of channel 0 of a row and head in q. */
__device__ __forceinline__ int64_t query_offset(const attention_params &a, int64_t row, int32_t head) {
  return row * a.q_row + static_cast<int64_t>(head) * a.D;
}

} // namespace ASSAY_NS
#endif
