/* vectors.h: CUDA's vector types and dim3, with CUDA's alignments. Part of cuda.h. */
#ifndef ASSAY_SIMT_VECTORS_H
#define ASSAY_SIMT_VECTORS_H

/* A GPU faults where a vector is stored beside a multiple of its size, and the host mostly does not. An assignment
 * therefore looks at its address (cuda.h). The types stay aggregates, as CUDA's are, so a copy is made without a look.
 */
inline void assay_simt_expect_aligned(const void *at, size_t size);

#define ASSAY_SIMT_VECTOR2(type, name, align)                                                                          \
  struct alignas(align) name##2 {                                                                                      \
    type x, y;                                                                                                         \
    name##2 &operator=(const name##2 & from) {                                                                         \
      assay_simt_expect_aligned(this, align);                                                                          \
      x = from.x, y = from.y;                                                                                          \
      return *this;                                                                                                    \
    }                                                                                                                  \
  };                                                                                                                   \
  inline name##2 make_##name##2(type x, type y) {                                                                      \
    return {x, y};                                                                                                     \
  }
#define ASSAY_SIMT_VECTOR3(type, name)                                                                                 \
  struct name##3 {                                                                                                     \
    type x, y, z;                                                                                                      \
  };                                                                                                                   \
  inline name##3 make_##name##3(type x, type y, type z) {                                                              \
    return {x, y, z};                                                                                                  \
  }
#define ASSAY_SIMT_VECTOR4(type, name, align)                                                                          \
  struct alignas(align) name##4 {                                                                                      \
    type x, y, z, w;                                                                                                   \
    name##4 &operator=(const name##4 & from) {                                                                         \
      assay_simt_expect_aligned(this, align);                                                                          \
      x = from.x, y = from.y, z = from.z, w = from.w;                                                                  \
      return *this;                                                                                                    \
    }                                                                                                                  \
  };                                                                                                                   \
  inline name##4 make_##name##4(type x, type y, type z, type w) {                                                      \
    return {x, y, z, w};                                                                                               \
  }

ASSAY_SIMT_VECTOR2(unsigned char, uchar, 2)
ASSAY_SIMT_VECTOR4(unsigned char, uchar, 4)
ASSAY_SIMT_VECTOR2(unsigned short, ushort, 4)
ASSAY_SIMT_VECTOR4(unsigned short, ushort, 8)
ASSAY_SIMT_VECTOR2(int, int, 8)
ASSAY_SIMT_VECTOR3(int, int)
ASSAY_SIMT_VECTOR4(int, int, 16)
ASSAY_SIMT_VECTOR2(unsigned, uint, 8)
ASSAY_SIMT_VECTOR3(unsigned, uint)
ASSAY_SIMT_VECTOR4(unsigned, uint, 16)
ASSAY_SIMT_VECTOR2(long long, longlong, 16)
ASSAY_SIMT_VECTOR2(unsigned long long, ulonglong, 16)
ASSAY_SIMT_VECTOR2(float, float, 8)
ASSAY_SIMT_VECTOR3(float, float)
ASSAY_SIMT_VECTOR4(float, float, 16)
ASSAY_SIMT_VECTOR2(double, double, 16)

#undef ASSAY_SIMT_VECTOR2
#undef ASSAY_SIMT_VECTOR3
#undef ASSAY_SIMT_VECTOR4

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#endif
