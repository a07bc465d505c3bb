/* device_cuda_compare.cu: compares memory with what was uploaded. It does so on the device, so that nothing needs to
 * come back. */
#include <cuda_runtime.h>

#include "gpu/device/device_cuda.h"

namespace assay_cuda_host {

constexpr int compare_threads = 256, compare_blocks = 132;

struct Pieces {
  int64_t begin[ASSAY_MAX_PIECES], end[ASSAY_MAX_PIECES];
  int32_t count;
};

/* compare_bytes: *differ = 1 if a piece has other bytes in `a` than in `b`; both begin at a multiple of 16.
 * Grid: any. Block: compare_threads. Shared: none. Arch: any. Limit: HBM, every byte of both once. */
static __global__ void __launch_bounds__(compare_threads)
    compare_bytes(const unsigned char *a, const unsigned char *b, const __grid_constant__ Pieces list,
                  int32_t *differ) {
  const int64_t self = static_cast<int64_t>(blockIdx.x) * compare_threads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * compare_threads;
  bool same = true;
  for (int32_t p = 0; p < list.count; ++p) {
    const int64_t begin = list.begin[p], end = list.end[p];
    const int64_t up = (begin + 15) / 16 * 16, first = up < end ? up : end;
    const int64_t down = end / 16 * 16, last = down > first ? down : first;
    for (int64_t i = begin + self; i < first; i += threads)
      same = same && a[i] == b[i];
    for (int64_t i = first + 16 * self; i < last; i += 16 * threads) {
      const uint4 x = *reinterpret_cast<const uint4 *>(a + i), y = *reinterpret_cast<const uint4 *>(b + i);
      same = same && x.x == y.x && x.y == y.y && x.z == y.z && x.w == y.w;
    }
    for (int64_t i = last + self; i < end; i += threads)
      same = same && a[i] == b[i];
  }
  if (!same) *differ = 1;
}

assay_status compare_pieces(const void *a, const void *b, const assay_piece *piece, int32_t count, int32_t *differ,
                            cudaStream_t stream, assay_error *error) {
  Pieces list = {};
  if (count < 0 || count > ASSAY_MAX_PIECES)
    return assay_fail(error, ASSAY_ERR_INPUT, "cuda: compare: found %d pieces, allowed 0 to %d", count,
                      ASSAY_MAX_PIECES);
  for (int32_t i = 0; i < count; ++i) {
    list.begin[i] = piece[i].offset;
    list.end[i] = piece[i].offset + piece[i].bytes;
  }
  list.count = count;
  compare_bytes<<<compare_blocks, compare_threads, 0, stream>>>(static_cast<const unsigned char *>(a),
                                                                static_cast<const unsigned char *>(b), list, differ);
  const cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) return ASSAY_OK;
  return assay_fail(error, status_of(code), "cuda: comparing: %s (%s)", cudaGetErrorName(code),
                    cudaGetErrorString(code));
}

} // namespace assay_cuda_host
