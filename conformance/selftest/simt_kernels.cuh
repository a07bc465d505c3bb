/* simt_kernels.cuh: small kernels, right and wrong, for simt_test.cpp. */
#include "lib/warp.cuh"

namespace ASSAY_NS {

constexpr unsigned all_lanes = 0xffffffffu;

/* out[i] = sum of all in[]: a tree over shared memory, blockDim.x a power of two up to 256. */
__global__ void block_sum(const float *in, float *out) {
  ASSAY_SHARED(float, tree, 256);
  tree[threadIdx.x] = in[threadIdx.x];
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) tree[threadIdx.x] += tree[threadIdx.x + half];
  }
  __syncthreads();
  out[threadIdx.x] = tree[0];
}

/* Every neighbour's value, with or without the barrier that makes it right. */
template <bool with_barrier> __global__ void neighbour(int *out) {
  ASSAY_SHARED(int, value, 128);
  value[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = value[(threadIdx.x + 1) % blockDim.x];
}

/* kind: 0 indexed, 1 up, 2 down, 3 xor. */
template <class T> __global__ void shuffle(int kind, int operand, int width, const T *in, T *out) {
  T v = in[threadIdx.x];
  const unsigned delta = static_cast<unsigned>(operand);
  if (kind == 0) v = __shfl_sync(all_lanes, v, operand, width);
  if (kind == 1) v = __shfl_up_sync(all_lanes, v, delta, width);
  if (kind == 2) v = __shfl_down_sync(all_lanes, v, delta, width);
  if (kind == 3) v = __shfl_xor_sync(all_lanes, v, operand, width);
  out[threadIdx.x] = v;
}

/* Stores a vector of zeros at an address of any alignment. */
template <class V> __global__ void store_vector_at(unsigned char *to) {
  *reinterpret_cast<V *>(to) = V{};
}

__global__ void votes(const int *in, unsigned *ballot, int *any, int *all) {
  const int p = in[threadIdx.x];
  ballot[threadIdx.x] = __ballot_sync(all_lanes, p);
  any[threadIdx.x] = __any_sync(all_lanes, p);
  all[threadIdx.x] = __all_sync(all_lanes, p);
}

/* Lanes below `lanes` alone. */
__global__ void reductions(int lanes, const int *in, int *sum, int *most) {
  const unsigned mask = all_lanes >> (32 - lanes);
  if (static_cast<int>(threadIdx.x) >= lanes) return;
  sum[threadIdx.x] = __reduce_add_sync(mask, in[threadIdx.x]);
  most[threadIdx.x] = __reduce_max_sync(mask, in[threadIdx.x]);
}

__global__ void barrier_votes(const int *in, int *count, int *all, int *any) {
  const int p = in[threadIdx.x];
  if (threadIdx.x >= 40) return;
  count[threadIdx.x] = __syncthreads_count(p);
  all[threadIdx.x] = __syncthreads_and(p);
  any[threadIdx.x] = __syncthreads_or(p);
}

/* Groups of lanes that go different ways, each with its own mask. */
template <int lanes> __global__ void group_sums(const int *in, int *sum, int *most) {
  if (threadIdx.x / lanes % 2 == 0) {
    sum[threadIdx.x] = group_sum<lanes>(in[threadIdx.x]);
    most[threadIdx.x] = group_max<lanes>(in[threadIdx.x]);
  } else {
    most[threadIdx.x] = group_max<lanes>(in[threadIdx.x]);
    sum[threadIdx.x] = group_sum<lanes>(in[threadIdx.x]);
  }
}

/* Lanes 4 to 7 of a group of 8 read lanes that are not in their mask. */
__global__ void read_outside_mask(float *out) {
  const unsigned mask = 0xffu << (threadIdx.x & 24u);
  out[threadIdx.x] = __shfl_down_sync(mask, 1.0f, 4);
}

/* Chained pairs of lanes, 0 and 1, then 1 and 2. The masks differ and name the same lane, but in turn. */
__global__ void chained_pairs(int *out) {
  int v = static_cast<int>(threadIdx.x);
  if (threadIdx.x < 2) v += __shfl_xor_sync(0x3u, v, 1);
  if (threadIdx.x == 1 || threadIdx.x == 2) v += __shfl_sync(0x6u, v, 1);
  out[threadIdx.x] = v;
}

__global__ void indices(int *out) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] += static_cast<int>(block * threads + thread + lane_id() * 0x10000u);
}

/* Half of the threads leave; the barrier and a shuffle among the others still work. */
__global__ void some_leave(int *out) {
  if (threadIdx.x % 64 >= 32) return;
  ASSAY_SHARED(int, value, 128);
  value[threadIdx.x] = 1;
  __syncthreads();
  int sum = 0;
  for (unsigned i = 0; i < blockDim.x; ++i)
    sum += i % 64 < 32 ? value[i] : 0;
  out[threadIdx.x] = group_max<32>(sum);
}

/* order[k] = the k-th thread, or block, that came. */
__global__ void who_comes_first(unsigned *next, unsigned *order) {
  const unsigned at = atomicAdd(next, 1u);
  order[at] = blockIdx.x * blockDim.x + threadIdx.x;
}

template <class T> __global__ void fresh_shared(T *static_out, T *dynamic_out) {
  ASSAY_SHARED(T, memory, 64);
  ASSAY_DYNAMIC_SHARED(T, scratch);
  static_out[threadIdx.x] = memory[threadIdx.x];
  dynamic_out[threadIdx.x] = scratch[threadIdx.x];
  memory[threadIdx.x] = T();
  scratch[threadIdx.x] = T();
}

__global__ void two_arrays(int *out, int index) {
  ASSAY_SHARED(int, first, 32);
  ASSAY_SHARED(int, second, 32);
  ASSAY_DYNAMIC_SHARED(int, last);
  volatile int *at = first;
  if (index >= 2000) at = second;
  if (index >= 4000) at = last;
  if (threadIdx.x == 0) at[index % 1000] = 7;
  out[0] = 1;
}

template <int bytes> __global__ void big_shared(unsigned char *out) {
  ASSAY_SHARED(unsigned char, big, bytes);
  big[threadIdx.x] = 1;
  out[threadIdx.x] = big[threadIdx.x];
}

/* ---- wrong on purpose; the lines are what the tests look for ------------------------------------------ */

enum { LINE_NOT_IN_MASK = __LINE__ + 3 };
__global__ void not_in_mask(int *out) {
  const unsigned mask = 0x7fffffffu;
  out[threadIdx.x] = __shfl_xor_sync(mask, 1, 1);
}

enum { LINE_EXITED_LANE = __LINE__ + 4 };
__global__ void exited_lane(int *out) {
  if (threadIdx.x == 9) return;
  if (out == nullptr) return;
  __syncwarp();
  out[threadIdx.x] = 1;
}

enum { LINE_SHUFFLE_A = __LINE__ + 4, LINE_SHUFFLE_B = LINE_SHUFFLE_A + 2 };
__global__ void different_operations(int *out) {
  int v = 1;
  if (threadIdx.x < 16)
    v = __shfl_xor_sync(all_lanes, v, 1);
  else
    v = __shfl_down_sync(all_lanes, v, 1);
  out[threadIdx.x] = v;
}

enum { LINE_MASK_A = __LINE__ + 4, LINE_MASK_B = LINE_MASK_A + 2 };
__global__ void different_masks(int *out) {
  int v = 1;
  if (threadIdx.x < 8)
    v = __shfl_xor_sync(0x0000ffffu, v, 1);
  else if (threadIdx.x < 16)
    v = __shfl_xor_sync(0x0001ffffu, v, 1);
  __syncthreads();
  out[threadIdx.x] = v;
}

enum { LINE_HANG_SHUFFLE = __LINE__ + 2, LINE_HANG_BARRIER = LINE_HANG_SHUFFLE + 1 };
__global__ void hangs(int *out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(all_lanes, 1, 1);
  __syncthreads();
  if (threadIdx.x == 0) out[0] = 0;
}

enum { LINE_BARRIER_A = __LINE__ + 3, LINE_BARRIER_B = LINE_BARRIER_A + 2 };
__global__ void two_barriers(int *out) {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
  out[threadIdx.x] = 1;
}

} /* namespace ASSAY_NS */
