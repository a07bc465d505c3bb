/* image.h: a case as bytes: tensors in one arena, guards between them, dead bytes, poison. */
#ifndef ASSAY_CONFORMANCE_GENERATE_IMAGE_H
#define ASSAY_CONFORMANCE_GENERATE_IMAGE_H

#include "assay/device.h"
#include "conformance/case/case.h"
#include "streams.h"

/* Guards are written around every allocation. Allocations on a device, and the workspace, start at a multiple of
 * DEVICE_ALIGNMENT bytes. */
enum { GUARD_BYTES = 512, DEVICE_ALIGNMENT = 256 };

/* Choices that must not show in the result. */
typedef struct draw {
  case_dead dead;
  /* also NaN in V where v_needed is 0 (contract: V of dead keys is skipped). v_needed is indexed by the physical slots
   * of the draw with placement 0 */
  bool dead_v;
  uint64_t placement; /* physical numbering of blocks; contiguous: what lies between the requests' rows */
  bool paged;         /* a contiguous case too gets a block table */
  uint64_t order;     /* order of requests in the batch; 0: as in the case */
  uint8_t poison;     /* byte pattern of outputs and guards */
  /* 0: each argument begins at a multiple of DEVICE_ALIGNMENT. Else it draws up to 15 elements after that, for one
   * argument or for all */
  uint64_t bases;
  /* Elements added between rows, or blocks, of argument apart_argument alone; 0: none. */
  int32_t apart, apart_argument;
} draw;

typedef struct span {
  int64_t offset, bytes; /* inside the arena */
} span;

/* An arena in host memory. The tensors' data pointers point into `host`; image_rebase() moves them. */
typedef struct image {
  const assay_case *origin;
  draw chosen;
  unsigned char *host;              /* arena_bytes */
  int64_t arena_bytes, spare_bytes; /* spare: bytes after the arena that any user may write */
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
  /* [block identities] place in the pool, from 0; contiguous: place of its first token */
  int32_t *physical;
  int32_t *first_row;      /* contiguous: [B + 1] first row of each request in the pool, from 0 */
  struct logical *logical; /* the contents that are placed; shared by all draws of a case */
} image;

/* Returns the 16-bit pattern that fills outputs, guards and workspace before a call. It is NaN in f32, f16 and bf16. */
static inline uint16_t poison_half(uint8_t poison) {
  return (uint16_t)(0x7FC0u | (poison & 0x3Fu));
}
void poison_fill(void *bytes, int64_t count, uint8_t poison);

/* Makes an image, which the caller frees with image_free. After a failure there is nothing to free. `v_needed` may be
 * NULL. Fails with ASSAY_ERR_MEMORY, or as the operator's fill() does. */
assay_status image_make(const assay_case *one, const draw *choice, const unsigned char *v_needed, image *img,
                        assay_error *error);
/* Makes tensors without writing any byte: shapes, strides, extents. */
assay_status image_layout(const assay_case *one, const draw *choice, image *img, assay_error *error);
/* image_shape and image_fill are image_make in two steps. The first makes tensors without contents, enough to ask
 * whether a variant takes the call. */
assay_status image_shape(const assay_case *one, const draw *choice, image *img, assay_error *error);
assay_status image_fill(image *img, const unsigned char *v_needed, assay_error *error);
/* Makes another draw of the case of `first` without making the values again. v_needed is that of `first`, or NULL. */
assay_status image_vary(const image *first, const draw *choice, const unsigned char *v_needed, image *img,
                        assay_error *error);
void image_free(image *img);

/* Sets where this thread's arenas lie: in host memory that the device copies from directly if it has such, else on the
 * heap. */
void image_memory(const assay_device *device);
void image_memory_release(void); /* frees the arenas kept between cases */
unsigned char *image_take(int64_t bytes, int64_t *spare);
void image_give(unsigned char *memory);

/* Returns the same call with every data pointer moved to an arena at `base`. `args` [ASSAY_MAX_ARGS] is the
 * caller's. */
assay_call image_rebase(const image *img, void *base, assay_tensor *args);

#endif
