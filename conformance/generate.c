/* generate.c: a case and a draw to an image; the pieces are in generate_{logical,place,bytes}.c. */
#include "generate.h"

#include <stdlib.h>

#include "generate_parts.h"

static assay_status shape_over(logical *l, const draw *choice, image *made, assay_error *error) {
  *made = (image){.origin = l->origin, .chosen = *choice, .logical = logical_keep(l)};
  const assay_status status = place_image(made, error);
  if (status != ASSAY_OK) {
    image_free(made);
    return status;
  }
  bytes_guards(made);
  bytes_small(made);
  return ASSAY_OK;
}

assay_status image_layout(const assay_case *one, const draw *choice, image *made, assay_error *error) {
  logical *l = NULL;
  *made = (image){0};
  assay_status status = logical_make(one, &l, error);
  if (status != ASSAY_OK) return status;
  *made = (image){.origin = one, .chosen = *choice, .logical = l};
  status = place_image(made, error);
  if (status != ASSAY_OK) image_free(made);
  return status;
}

assay_status image_shape(const assay_case *one, const draw *choice, image *made, assay_error *error) {
  logical *l = NULL;
  *made = (image){0};
  assay_status status = logical_make(one, &l, error);
  if (status == ASSAY_OK) status = shape_over(l, choice, made, error);
  logical_drop(l);
  return status;
}

/* The operator is asked about the case's own order, whatever the image's. */
static assay_status make_values(image *made, assay_error *error) {
  logical *l = made->logical;
  if (made->chosen.order == 0) return logical_fill(l, &made->call, error);
  draw plain = made->chosen;
  plain.order = 0;
  image own;
  assay_status status = shape_over(l, &plain, &own, error);
  if (status == ASSAY_OK) status = logical_fill(l, &own.call, error);
  image_free(&own);
  return status;
}

/* Layout x cuts D into chunks of 16 bytes; with a rest, tensors of that shape cannot hold the values. */
static assay_status check_chunks(const image *made, assay_error *error) {
  for (int32_t i = 0; i < made->origin->op->arg_count; ++i) {
    if (made->origin->op->args[i].content != ASSAY_K_CACHE || made->arg[i].data == NULL) continue;
    const cache_strides s = place_strides(made, i);
    if (made->logical->D % s.x != 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "D: found %lld, layout x of %s needs a multiple of x = %lld",
                        (long long)made->logical->D, assay_dtype_name(made->arg[i].dtype), (long long)s.x);
  }
  return ASSAY_OK;
}

assay_status image_fill(image *made, const unsigned char *v_needed, assay_error *error) {
  assay_status status = ASSAY_OK;
  if (made->origin->section != SECTION_REFUSE) {
    status = check_chunks(made, error);
    if (status == ASSAY_OK && !made->logical->filled) status = make_values(made, error);
  }
  if (status == ASSAY_OK) status = bytes_values(made, v_needed, error);
  return status;
}

assay_status image_make(const assay_case *one, const draw *choice, const unsigned char *v_needed, image *made,
                        assay_error *error) {
  assay_status status = image_shape(one, choice, made, error);
  if (status == ASSAY_OK) status = image_fill(made, v_needed, error);
  if (status != ASSAY_OK) image_free(made);
  return status;
}

assay_status image_vary(const image *first, const draw *choice, const unsigned char *v_needed, image *made,
                        assay_error *error) {
  *made = (image){0};
  assay_status status = shape_over(first->logical, choice, made, error);
  if (status == ASSAY_OK) status = image_fill(made, v_needed, error);
  if (status != ASSAY_OK) image_free(made);
  return status;
}

void image_free(image *made) {
  image_give(made->host);
  free(made->request_of_slot);
  free(made->row_of);
  free(made->request_of_row);
  free(made->position_of_row);
  free(made->physical);
  free(made->first_row);
  logical_drop(made->logical);
  *made = (image){0};
}

assay_call image_rebase(const image *made, void *base, assay_tensor *args) {
  for (int32_t i = 0; i < ASSAY_MAX_ARGS; ++i) {
    args[i] = made->arg[i];
    if (args[i].data != NULL)
      args[i].data = (void *)((uintptr_t)base + ((uintptr_t)args[i].data - (uintptr_t)made->host));
  }
  return (assay_call){made->origin->op, args, made->param};
}
