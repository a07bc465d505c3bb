/* generate.c: makes an image from a case and a draw; logical.c, place.c and bytes.c do the parts. */
#include "image.h"

#include <stdlib.h>

#include "place.h"

static assay_status shape_over(logical *l, const draw *choice, image *img, assay_error *error) {
  *img = (image){.origin = l->origin, .chosen = *choice, .logical = logical_keep(l)};
  const assay_status status = place_image(img, error);
  if (status != ASSAY_OK) {
    image_free(img);
    return status;
  }
  bytes_guards(img);
  bytes_small(img);
  return ASSAY_OK;
}

assay_status image_layout(const assay_case *one, const draw *choice, image *img, assay_error *error) {
  logical *l = NULL;
  *img = (image){0};
  assay_status status = logical_make(one, &l, error);
  if (status != ASSAY_OK) return status;
  *img = (image){.origin = one, .chosen = *choice, .logical = l};
  status = place_image(img, error);
  if (status != ASSAY_OK) image_free(img);
  return status;
}

assay_status image_shape(const assay_case *one, const draw *choice, image *img, assay_error *error) {
  logical *l = NULL;
  *img = (image){0};
  assay_status status = logical_make(one, &l, error);
  if (status == ASSAY_OK) status = shape_over(l, choice, img, error);
  logical_drop(l);
  return status;
}

/* The operator is asked about the case's own order, whatever the image's order is. */
static assay_status make_values(image *img, assay_error *error) {
  logical *l = img->logical;
  if (img->chosen.order == 0) return logical_fill(l, &img->call, error);
  draw in_order = img->chosen;
  in_order.order = 0;
  image own;
  assay_status status = shape_over(l, &in_order, &own, error);
  if (status == ASSAY_OK) status = logical_fill(l, &own.call, error);
  image_free(&own);
  return status;
}

/* Layout x cuts D into chunks of 16 bytes. If a rest remains, tensors of that shape cannot hold the values. */
static assay_status check_chunks(const image *img, assay_error *error) {
  for (int32_t i = 0; i < img->origin->op->arg_count; ++i) {
    if (img->origin->op->args[i].content != ASSAY_K_CACHE || img->arg[i].data == NULL) continue;
    const cache_strides s = place_strides(img, i);
    if (img->logical->D % s.x != 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "D: found %lld, layout x of %s needs a multiple of x = %lld",
                        (long long)img->logical->D, assay_dtype_name(img->arg[i].dtype), (long long)s.x);
  }
  return ASSAY_OK;
}

assay_status image_fill(image *img, const unsigned char *v_needed, assay_error *error) {
  assay_status status = ASSAY_OK;
  if (img->origin->section != SECTION_REFUSE) {
    status = check_chunks(img, error);
    if (status == ASSAY_OK && !img->logical->filled) status = make_values(img, error);
  }
  if (status == ASSAY_OK) status = bytes_values(img, v_needed, error);
  return status;
}

assay_status image_make(const assay_case *one, const draw *choice, const unsigned char *v_needed, image *img,
                        assay_error *error) {
  assay_status status = image_shape(one, choice, img, error);
  if (status == ASSAY_OK) status = image_fill(img, v_needed, error);
  if (status != ASSAY_OK) image_free(img);
  return status;
}

assay_status image_vary(const image *first, const draw *choice, const unsigned char *v_needed, image *img,
                        assay_error *error) {
  *img = (image){0};
  assay_status status = shape_over(first->logical, choice, img, error);
  if (status == ASSAY_OK) status = image_fill(img, v_needed, error);
  if (status != ASSAY_OK) image_free(img);
  return status;
}

void image_free(image *img) {
  image_give(img->host);
  free(img->request_of_slot);
  free(img->row_of);
  free(img->request_of_row);
  free(img->position_of_row);
  free(img->physical);
  free(img->first_row);
  logical_drop(img->logical);
  *img = (image){0};
}

assay_call image_rebase(const image *img, void *base, assay_tensor *args) {
  for (int32_t i = 0; i < ASSAY_MAX_ARGS; ++i) {
    args[i] = img->arg[i];
    if (args[i].data != NULL)
      args[i].data = (void *)((uintptr_t)base + ((uintptr_t)args[i].data - (uintptr_t)img->host));
  }
  return (assay_call){img->origin->op, args, img->param};
}
