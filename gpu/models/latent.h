/* latent.h: what the files of latent attention share: sizes of an entry, and views. Private to gpu/models/latent*.c. */
#ifndef ASSAY_GPU_MODELS_LATENT_H
#define ASSAY_GPU_MODELS_LATENT_H

#include <math.h>

#include "core/dtype.h"
#include "gpu/models/pass.h"

enum { LATENT_C = 512, LATENT_PE = 64, LATENT_ENTRY = LATENT_C + LATENT_PE };

/* Returns `count` columns of rows from column `first` on. */
static inline assay_tensor latent_columns(const assay_tensor *rows, int64_t first, int64_t count) {
  assay_tensor part = *rows;
  part.data = (unsigned char *)rows->data + first * assay_dtype_size(rows->dtype);
  part.shape[1] = count;
  return part;
}

/* Returns `count` rows, or elements of a vector, from `first` on. */
static inline assay_tensor latent_rows(const assay_tensor *all, int64_t first, int64_t count) {
  assay_tensor part = *all;
  part.data = (unsigned char *)all->data + first * all->stride[0] * assay_dtype_size(all->dtype);
  part.shape[0] = count;
  return part;
}

/* Returns rows of `heads` heads as heads [N, heads, width] of the channels from `first` on. The last head of the last
 * row goes `first` channels past it: one row more is allocated. */
static inline assay_tensor latent_heads(const assay_tensor *rows, int64_t first, int64_t heads, int64_t width) {
  assay_tensor view = latent_columns(rows, first, heads);
  view.rank = 3;
  view.shape[2] = view.stride[1] = width;
  view.stride[2] = 1;
  return view;
}

/* Returns rows [N, H width] as rows of one head, [N H, width]. */
static inline assay_tensor latent_by_head(const assay_tensor *rows, int64_t heads) {
  assay_tensor view = *rows;
  view.shape[0] *= heads;
  view.shape[1] = view.stride[0] = rows->shape[1] / heads;
  return view;
}

static inline double latent_scale(const pass *m) {
  return m->config.score_scale > 0 ? m->config.score_scale : 1 / sqrt((double)m->config.head_size);
}

#endif
