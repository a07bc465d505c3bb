/* generate.h: a concrete case to bytes: tensors in one arena, guards between them, dead bytes, poison. */
#ifndef ASSAY_CONFORMANCE_GENERATE_H
#define ASSAY_CONFORMANCE_GENERATE_H

#include "assay/device.h"
#include "case.h"

enum { GUARD_BYTES = 512 };

/* Choices that may not show in the result. */
typedef struct draw {
  case_dead dead;
  bool dead_v;        /* also NaN in V where v_needed is 0 (contract: V of dead keys is skipped). v_needed is
                       * indexed by the physical slots of the draw with placement 0 */
  uint64_t placement; /* physical numbering of blocks; contiguous: what lies between the requests' rows */
  bool paged;         /* also a contiguous case by a block table */
  uint64_t order;     /* order of requests in the batch; 0: as in the case */
  uint8_t poison;     /* byte pattern of outputs and guards */
} draw;

typedef struct span {
  int64_t offset, bytes; /* inside the arena */
} span;

/* An arena image in host memory. Tensors' data pointers are valid for `base`; rebase() moves them. */
typedef struct image {
  const assay_case *origin;
  draw chosen;
  unsigned char *host;              /* arena_bytes */
  int64_t arena_bytes, spare_bytes; /* spare: behind the arena, anybody's */
  span extent[ASSAY_MAX_ARGS];      /* allocation of each argument; K and V may share one */
  int64_t bias[ASSAY_MAX_ARGS];     /* bytes from the extent to the (possibly unreachable) element 0 */
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
  assay_call call;          /* points into this struct; host addresses */
  int32_t *request_of_slot; /* [batch] identity of the request at each place of the batch */
  int64_t *row_of;          /* [N] row in the case's own order, for comparing permuted outputs */
  int32_t *request_of_row;  /* [N] request identity */
  int64_t *position_of_row; /* [N] position of the row inside its request's new tokens */
  int64_t rows;
  bool contiguous;                  /* K and V are rows of tokens, by cu_k: blocks of the pool are rows */
  int64_t first_block, pool_blocks; /* physical numbers of the pool's blocks: [first_block, +pool_blocks) */
  int32_t *physical;                /* [block identities] place in the pool, from 0; contiguous: of its first token */
  int32_t *first_row;               /* contiguous: [B + 1] where each request's rows begin in the pool, from 0 */
  struct logical *logical;          /* what is placed here; shared by all draws of a case */
} image;

/* What lies in outputs, guards and workspace before a call: 16-bit pattern that is NaN in f32, f16 and bf16. */
static inline uint16_t poison_half(uint8_t poison) {
  return (uint16_t)(0x7FC0u | (poison & 0x3Fu));
}
void poison_fill(void *bytes, int64_t count, uint8_t poison);

assay_status image_make(const assay_case *one, const draw *choice, const unsigned char *v_needed, image *made,
                        assay_error *error);
/* Tensors without any bytes written: shapes, strides, extents. */
assay_status image_layout(const assay_case *one, const draw *choice, image *made, assay_error *error);
/* The same in two steps: first tensors without contents, enough to ask whether a variant takes the call. */
assay_status image_shape(const assay_case *one, const draw *choice, image *made, assay_error *error);
assay_status image_fill(image *made, const unsigned char *v_needed, assay_error *error);
/* Another draw of the case of `first`, whose values are not made again. v_needed: of `first`, or NULL. */
assay_status image_vary(const image *first, const draw *choice, const unsigned char *v_needed, image *made,
                        assay_error *error);
void image_free(image *made);

/* Where this thread's arenas lie: memory that the device copies from as it lies, if it has such, else the heap. */
void image_memory(const assay_device *device);
void image_memory_release(void); /* what is kept between cases */
unsigned char *image_take(int64_t bytes, int64_t *spare);
void image_give(unsigned char *memory);

/* The same call with every data pointer moved to an arena at `base`. args: [ASSAY_MAX_ARGS], caller's. */
assay_call image_rebase(const image *made, void *base, assay_tensor *args);

#endif
