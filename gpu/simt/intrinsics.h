/* intrinsics.h: atomics, fences, arithmetic. It is part of cuda.h. Threads switch only at a rendezvous, so a plain read
 * and write is atomic. There is no fused multiply-add unless it is asked for. */
#ifndef ASSAY_SIMT_INTRINSICS_H
#define ASSAY_SIMT_INTRINSICS_H

/* ---- atomics: each returns the old value ------------------------------------------------------------- */

/* Plain accesses, because no other thread runs in between. ThreadSanitizer is to see relaxed atomics, whose order comes
 * from fences alone. */
#ifdef ASSAY_SIMT_TSAN_KERNEL
template <class T> inline T assay_simt_load(T *address) {
  T value;
  assay_simt->atomic(address);
  __atomic_load(address, &value, __ATOMIC_RELAXED);
  return value;
}
template <class T> inline void assay_simt_store(T *address, T value) {
  __atomic_store(address, &value, __ATOMIC_RELAXED);
}
inline void assay_simt_fence() {
  assay_simt->fence();
}
#else
template <class T> inline T assay_simt_load(T *address) {
  return *address;
}
template <class T> inline void assay_simt_store(T *address, T value) {
  *address = value;
}
inline void assay_simt_fence() {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
#endif

#define ASSAY_SIMT_ATOMIC(name, type, expression)                                                                      \
  inline type name(type *address, type value) {                                                                        \
    const type old = assay_simt_load(address);                                                                         \
    assay_simt_store(address, static_cast<type>(expression));                                                          \
    return old;                                                                                                        \
  }
/* int wraps around, as on the device. */
ASSAY_SIMT_ATOMIC(atomicAdd, int, static_cast<unsigned>(old) + static_cast<unsigned>(value))
ASSAY_SIMT_ATOMIC(atomicAdd, unsigned, old + value)
ASSAY_SIMT_ATOMIC(atomicAdd, unsigned long long, old + value)
ASSAY_SIMT_ATOMIC(atomicAdd, float, old + value)
ASSAY_SIMT_ATOMIC(atomicAdd, double, old + value)
ASSAY_SIMT_ATOMIC(atomicSub, int, static_cast<unsigned>(old) - static_cast<unsigned>(value))
ASSAY_SIMT_ATOMIC(atomicSub, unsigned, old - value)
ASSAY_SIMT_ATOMIC(atomicMax, int, old > value ? old : value)
ASSAY_SIMT_ATOMIC(atomicMax, unsigned, old > value ? old : value)
ASSAY_SIMT_ATOMIC(atomicMax, long long, old > value ? old : value)
ASSAY_SIMT_ATOMIC(atomicMax, unsigned long long, old > value ? old : value)
ASSAY_SIMT_ATOMIC(atomicMin, int, old < value ? old : value)
ASSAY_SIMT_ATOMIC(atomicMin, unsigned, old < value ? old : value)
ASSAY_SIMT_ATOMIC(atomicMin, long long, old < value ? old : value)
ASSAY_SIMT_ATOMIC(atomicMin, unsigned long long, old < value ? old : value)
ASSAY_SIMT_ATOMIC(atomicAnd, int, old &value)
ASSAY_SIMT_ATOMIC(atomicAnd, unsigned, old &value)
ASSAY_SIMT_ATOMIC(atomicOr, int, old | value)
ASSAY_SIMT_ATOMIC(atomicOr, unsigned, old | value)
ASSAY_SIMT_ATOMIC(atomicXor, unsigned, old ^ value)
ASSAY_SIMT_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1u)
ASSAY_SIMT_ATOMIC(atomicDec, unsigned, old == 0u || old > value ? value : old - 1u)
ASSAY_SIMT_ATOMIC(atomicExch, int, value)
ASSAY_SIMT_ATOMIC(atomicExch, unsigned, value)
ASSAY_SIMT_ATOMIC(atomicExch, unsigned long long, value)
ASSAY_SIMT_ATOMIC(atomicExch, float, value)
#undef ASSAY_SIMT_ATOMIC

#define ASSAY_SIMT_CAS(type)                                                                                           \
  inline type atomicCAS(type *address, type expected, type value) {                                                    \
    const type old = assay_simt_load(address);                                                                         \
    if (old == expected) assay_simt_store(address, value);                                                             \
    return old;                                                                                                        \
  }
ASSAY_SIMT_CAS(int)
ASSAY_SIMT_CAS(unsigned)
ASSAY_SIMT_CAS(unsigned short)
ASSAY_SIMT_CAS(unsigned long long)
#undef ASSAY_SIMT_CAS

inline void __threadfence() {
  assay_simt_fence();
}
inline void __threadfence_block() {
  assay_simt_fence();
}
inline void __threadfence_system() {
  assay_simt_fence();
}

/* ---- min, max: of two floats, the one that is a number ------------------------------------------------ */

#define ASSAY_SIMT_MIN_MAX(type)                                                                                       \
  constexpr type min(type a, type b) {                                                                                 \
    return b < a ? b : a;                                                                                              \
  }                                                                                                                    \
  constexpr type max(type a, type b) {                                                                                 \
    return a < b ? b : a;                                                                                              \
  }
ASSAY_SIMT_MIN_MAX(int)
ASSAY_SIMT_MIN_MAX(unsigned)
ASSAY_SIMT_MIN_MAX(long)
ASSAY_SIMT_MIN_MAX(unsigned long)
ASSAY_SIMT_MIN_MAX(long long)
ASSAY_SIMT_MIN_MAX(unsigned long long)
#undef ASSAY_SIMT_MIN_MAX
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}
inline double min(double a, double b) {
  return fmin(a, b);
}
inline double max(double a, double b) {
  return fmax(a, b);
}

/* ---- bits --------------------------------------------------------------------------------------------- */

inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
template <class T> inline T __ldg(const T *address) {
  return *address;
}

/* ---- floats: correctly rounded where CUDA says _rn, the plain function where it approximates ----------- */

inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fsqrt_rn(float a) {
  return sqrtf(a);
}
inline float __frcp_rn(float a) {
  return 1.0f / a;
}
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float rsqrtf(float x) {
  return static_cast<float>(1.0 / sqrt(static_cast<double>(x)));
}
inline double rsqrt(double x) {
  return 1.0 / sqrt(x);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(rintf(x));
}
inline int __float2int_rz(float x) {
  return static_cast<int>(x);
}
/* The C library declares __expf and __logf for itself. */
#define __expf(x)  expf(x)
#define __logf(x)  logf(x)
#define __log2f(x) log2f(x)

#endif
