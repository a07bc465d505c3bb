/* hopper.h: what kernels need from simt beyond plain CUDA: the bodies of gpu/lib/ptx_*.cuh. It is part of cuda.h. */
#ifndef ASSAY_SIMT_HOPPER_H
#define ASSAY_SIMT_HOPPER_H

/* The type of 8-bit factors; ASSAY_SIMT_SIXTEEN: factors have 16 bits. */
typedef enum assay_simt_eight { ASSAY_SIMT_SIXTEEN, ASSAY_SIMT_E4M3, ASSAY_SIMT_E5M2 } assay_simt_eight;

/* Operands of one lane at a warp's rendezvous. The last lane to arrive computes for all. */
typedef struct assay_simt_mma {
  float *d;              /* 4 elements */
  const uint32_t *a, *b; /* 4 and 2 elements */
  bool half;             /* f16; otherwise bf16 */
  assay_simt_eight eight_a, eight_b;
} assay_simt_mma;

typedef struct assay_simt_matrix {
  uint32_t row[4]; /* 16 bytes, input of ldmatrix, output of stmatrix: the row whose address this lane has */
  uint32_t *r;     /* `count` elements */
  int32_t count;   /* number of matrices */
  bool transposed;
} assay_simt_matrix;

/* A copy that arrives; the thread itself writes it. */
typedef struct assay_simt_copy {
  void *to;
  uint32_t data[4];
} assay_simt_copy;

/* A copy of the copy engine. Tensor copies use `map` and `at`, bulk copies `global` and `bytes`. */
typedef struct assay_simt_bulk {
  void *shared;
  uint64_t *barrier; /* only for loads */
  const void *map;   /* a tensor_map; NULL: a bulk copy */
  int32_t rank, at[5];
  void *global;
  uint32_t bytes;
} assay_simt_bulk;

/* A product of a warpgroup, as one thread issues it. The targets of the pointers must live until its wait. */
typedef struct assay_simt_wgmma {
  float *d;          /* n / 2 elements */
  const uint32_t *a; /* 4 elements; NULL: descriptor_a */
  uint64_t descriptor_a, descriptor_b;
  int32_t n;
  bool half, trans_b, accumulate;
  assay_simt_eight eight_a, eight_b;
} assay_simt_wgmma;

typedef struct assay_simt_hopper {
  /* cp.async, with a queue per thread. */
  void (*copy_begin)(const assay_simt_copy *copy);
  void (*copy_commit)(void);
  /* Takes the next copy that is not in the youngest `pending` groups. */
  bool (*copy_arrives)(int32_t pending, assay_simt_copy *copy);
  void (*copy_arrive)(uint64_t *barrier, const char *file, int32_t line);
  /* Barriers (mbarrier). */
  void (*mbarrier_init)(uint64_t *barrier, uint32_t count, const char *file, int32_t line);
  void (*mbarrier_arrive)(uint64_t *barrier, bool expect, uint32_t bytes, const char *file, int32_t line);
  void (*mbarrier_wait)(uint64_t *barrier, uint32_t parity, const char *file, int32_t line);
  /* The copy engine and its view of shared memory. bulk_check comes before bulk_load, and returns the bytes. */
  uint32_t (*bulk_check)(const assay_simt_bulk *copy, const char *file, int32_t line);
  void (*bulk_load)(const assay_simt_bulk *copy, const char *file, int32_t line);
  void (*bulk_store)(const assay_simt_bulk *copy, const char *file, int32_t line);
  void (*bulk_commit)(void);
  void (*bulk_wait)(int32_t pending, bool only_read);
  void (*proxy_fence)(void);
  /* Products of a warpgroup (wgmma). */
  uint64_t (*wgmma_address)(const void *shared, const char *file, int32_t line);
  void (*wgmma_fence)(void);
  void (*wgmma_issue)(const assay_simt_wgmma *product, const char *file, int32_t line);
  void (*wgmma_commit)(void);
  void (*wgmma_wait)(int32_t pending, const char *file, int32_t line);
  /* Blocks and launches. */
  uint32_t (*cluster_rank)(void);
  uint32_t (*cluster_size)(void);
  void (*cluster_arrive)(const char *file, int32_t line);
  void (*cluster_wait)(const char *file, int32_t line);
  void *(*cluster_shared)(const void *shared, uint32_t rank, const char *file, int32_t line);
  void (*dependency_wait)(const char *file, int32_t line);
  void (*registers)(int32_t count, bool more, const char *file, int32_t line);
  void (*poll)(const char *file, int32_t line);
  /* Named barriers. */
  void (*named_barrier)(assay_simt_op op, uint32_t id, uint32_t threads, const char *file, int32_t line);
} assay_simt_hopper;

#endif
