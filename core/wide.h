/* wide.h: ASSAY_WIDE stands before a function, ASSAY_INLINE before the functions that become a part of it. Such a
 * function is compiled for AVX2 and AVX-512 as well, and the processor chooses when the program starts. Its loops do
 * the same roundings in the same order on every machine: nothing is contracted (AssayFlags.cmake) and no sum is
 * reordered. Sanitizers start before such a choice can be made. */
#ifndef ASSAY_CORE_WIDE_H
#define ASSAY_CORE_WIDE_H

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) &&                       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ASSAY_HAVE_WIDE
#if __GNUC__ >= 12
#define ASSAY_WIDE __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define ASSAY_WIDE __attribute__((target_clones("avx2", "default")))
#endif
#define ASSAY_INLINE __attribute__((always_inline)) static inline
#else
#define ASSAY_WIDE
#define ASSAY_INLINE static inline
#endif

#endif
