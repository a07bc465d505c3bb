/* ptx_words.cuh: words of global memory that say by themselves that they have come, each with a second body for simt. A
 * word is 4 bytes. Other blocks write it while this block asks for it. Each word is whole; nothing orders one word with
 * another, nor with other memory. */
#ifndef ASSAY_GPU_LIB_PTX_WORDS_CUH
#define ASSAY_GPU_LIB_PTX_WORDS_CUH

#include "gpu/lib/ptx_async.cuh"

namespace ASSAY_NS {

constexpr uint32_t empty_word = 0xFFFFFFFFu;

#ifdef ASSAY_SIMT
inline void simt_words_aligned(const void *address, uintptr_t bytes, const char *file, int32_t line) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0)
    assay_simt->fault("words: address is not a multiple of their size", file, line);
}
inline void simt_word_store(uint32_t *address, uint32_t value) {
  (void)assay_simt_load(address);
  assay_simt_store(address, value);
}
#endif

/* Loads four words. They come from L2, and the load is not moved across others. */
__device__ __forceinline__ uint4 load_words_16(const uint4 *address ASSAY_AT) {
#ifdef ASSAY_SIMT
  simt_words_aligned(address, 16, file, line);
  uint32_t *const word = const_cast<uint32_t *>(reinterpret_cast<const uint32_t *>(address));
  return make_uint4(assay_simt_load(word), assay_simt_load(word + 1), assay_simt_load(word + 2),
                    assay_simt_load(word + 3));
#else
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
#endif
}

__device__ __forceinline__ uint2 load_words_8(const uint2 *address ASSAY_AT) {
#ifdef ASSAY_SIMT
  simt_words_aligned(address, 8, file, line);
  uint32_t *const word = const_cast<uint32_t *>(reinterpret_cast<const uint32_t *>(address));
  return make_uint2(assay_simt_load(word), assay_simt_load(word + 1));
#else
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address) : "memory");
  return v;
#endif
}

__device__ __forceinline__ void store_words_16(uint4 *address, uint4 v ASSAY_AT) {
#ifdef ASSAY_SIMT
  simt_words_aligned(address, 16, file, line);
  uint32_t *const word = reinterpret_cast<uint32_t *>(address);
  simt_word_store(word, v.x);
  simt_word_store(word + 1, v.y);
  simt_word_store(word + 2, v.z);
  simt_word_store(word + 3, v.w);
#else
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
#endif
}

__device__ __forceinline__ void store_words_8(uint2 *address, uint2 v ASSAY_AT) {
#ifdef ASSAY_SIMT
  simt_words_aligned(address, 8, file, line);
  uint32_t *const word = reinterpret_cast<uint32_t *>(address);
  simt_word_store(word, v.x);
  simt_word_store(word + 1, v.y);
#else
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(v.x), "r"(v.y) : "memory");
#endif
}

__device__ __forceinline__ void store_word(uint32_t *address, uint32_t v) {
#ifdef ASSAY_SIMT
  simt_word_store(address, v);
#else
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
#endif
}

/* Comes between two questions for the same words. After some seconds it ends the launch with a fault: a block that is
 * asked for words does not run. On simt it lets other threads run. */
__device__ __forceinline__ void ask_again(uint32_t *asked ASSAY_AT) {
#ifdef ASSAY_SIMT
  ++*asked;
  assay_simt->hopper->poll(file, line);
#else
  if (++*asked > 1u << 22) asm volatile("trap;");
#endif
}

__device__ __forceinline__ bool has_empty(uint4 v) {
  return max(max(v.x, v.y), max(v.z, v.w)) == empty_word;
}

__device__ __forceinline__ bool has_empty(uint2 v) {
  return max(v.x, v.y) == empty_word;
}

/* Returns the bits of an f32 as a word that is not the empty one. */
__device__ __forceinline__ uint32_t word_of(float value) {
  const uint32_t bits = bits_of(value);
  return bits == empty_word ? 0x7FC00000u : bits;
}

/* Returns the value, hiding from the compiler that it is the same as before. Results that a loop computes from it are
 * then not kept in registers for the whole loop. */
__device__ __forceinline__ int computed_anew(int value) {
#ifndef ASSAY_SIMT
  asm volatile("" : "+r"(value));
#endif
  return value;
}

} // namespace ASSAY_NS
#endif
