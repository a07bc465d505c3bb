/* vast_internal.h: declarations that the files of the law `vast` share. */
#ifndef ASSAY_CONFORMANCE_LAWS_VAST_INTERNAL_H
#define ASSAY_CONFORMANCE_LAWS_VAST_INTERNAL_H

#include "assay/sparse.h"
#include "conformance/trial/trial.h"

/* A range of addresses that can all be read and written. Only some pieces are memory of their own; all the rest is one
 * small memory, seen again and again. Addresses before the range are not mapped. */
typedef struct vast_range {
  unsigned char *reserved, *memory; /* NULL: none */
  int64_t reserved_bytes, bytes;
} vast_range;

/* Takes r->bytes addresses, with memory of their own at the `count` pieces, in ascending order. vast_give gives them
 * back, also after a failure. */
assay_status vast_take(const trial *t, vast_range *r, const assay_piece *piece, int32_t count, assay_error *error);
void vast_give(const trial *t, vast_range *r);

/* A dimension that may grow: what the case has of it is judged, and the rest is ignored. `index` names the argument
 * that holds numbers along it. NULL: the call computes all of it. `also` names an optional argument that holds more of
 * them; NULL: none. */
typedef struct vast_axis {
  const char *dim, *index, *also;
} vast_axis;

/* One argument with that dimension. Its elements are [outer, extent, inner]. */
typedef struct vast_arg {
  int32_t arg, axis;
  assay_tensor grown; /* its shape and strides in the large call */
  int64_t outer, inner;
  vast_range memory;
} vast_arg;

/* A call in which one dimension has grown. The first `low` of its extent keep their numbers. The others are its
 * end. */
typedef struct vast {
  const image *img;
  const char *dim;
  bool close;          /* no elements between rows */
  int32_t index, also; /* -1: no argument holds numbers along the dimension */
  int64_t extent, grown, low, elements;
  int32_t count;
  vast_arg list[ASSAY_MAX_ARGS];
  vast_range workspace;
  unsigned char *after; /* the arena after the call */
} vast;

enum { VAST_AXES = 4 };

/* Lists the dimensions of an operator that may grow. Returns their number. */
int32_t vast_axes(const assay_op *op, vast_axis *axis);
/* Tells whether some tensor of the operator can have more than 2^31 elements along one of them. */
bool vast_is_possible(const assay_op *op);
/* Chooses a call whose tensor with the fewest elements along the dimension that can have `elements` has them. Returns
 * false where the definition allows no such call. */
bool vast_choose(const trial *t, const vast_axis *axis, int64_t elements, vast *v);
/* Chooses a call with `elements`, and no more of the dimension than `large`. Its rows lie side by side: it has as many
 * rows as `large`, and so as many blocks, where that has few rows far apart. */
bool vast_choose_small(const trial *t, const vast_axis *axis, int64_t elements, const vast *large, vast *v);
/* Returns the operations of a call whose memory is a device's: counts that an operator reads are left out. */
double vast_flops(const trial *t, const device_call *on);
bool vast_has(const vast *v, int32_t arg);
/* Returns the number that a number along the dimension becomes. */
int64_t vast_place(const vast *v, int64_t number);
/* Takes the ranges and points the call's arguments there. vast_free gives them back, also after a failure. */
assay_status vast_make(const trial *t, vast *v, device_call *on, assay_error *error);
void vast_free(const trial *t, vast *v);
/* Copies the case's elements of every argument in the list from the image to its range, or those that are written back
 * to `after`. */
assay_status vast_copy(const trial *t, const vast *v, bool up, assay_error *error);

#endif
