/* space.h: the axes of a fuzzed case with the values worth trying, and a choice of them as a case. Private to the
 * fuzzer. */
#ifndef ASSAY_CONFORMANCE_FUZZ_SPACE_H
#define ASSAY_CONFORMANCE_FUZZ_SPACE_H

#include "core/rng.h"
#include "fuzz.h"
#include "conformance/case/case.h"

/* An axis is a key of the case, or a property that no key gives alone. The properties are the number of
 * requests, the length of one request, its new part, and whether some share a prefix. The length is a class, since
 * block sizes differ. */
typedef enum axis_kind { AXIS_KEY, AXIS_BATCH, AXIS_LENGTH, AXIS_NEW, AXIS_SHARE } axis_kind;
typedef enum new_choice { NEW_IMPLIED, NEW_ONE, NEW_ALL, NEW_HALF, NEW_BLOCK, NEW_NONE, NEW_CHOICES } new_choice;

typedef struct fuzz_axis {
  const char *name;
  size_t name_length;
  axis_kind kind;
  case_key key;
  bool narrowed; /* to the values asked for: no illegal call leaves them */
  int32_t count;
  double value[FUZZ_MAX_VALUES]; /* AXIS_LENGTH: keys; from LENGTH_BLOCKS on: blocks of the case and a rest */
} fuzz_axis;

/* Returns a length of n blocks plus r, -1 <= r <= 1, as a value of AXIS_LENGTH. */
enum { LENGTH_BLOCKS = 1 << 24 };
static inline double length_in_blocks(int32_t n, int32_t r) {
  return LENGTH_BLOCKS + 4 * n + r;
}

typedef struct fuzz_space {
  const assay_op *op;
  assay_case base;                           /* all fallbacks */
  int32_t axes, batch, kv_len, fresh, share; /* number of axes; indices of those that are no keys */
  fuzz_axis axis[FUZZ_MAX_AXES];
  bool plain;                                       /* no requests: batch, kv_len, fresh and share are -1 */
  bool large;                                       /* a GPU: longer lists, larger cases */
  int32_t typical;                                  /* the longest request outside AXIS_LENGTH */
  int32_t dim_H, dim_H_kv, dim_D, dim_block, dim_F; /* indices of dimensions, or -1 */
} fuzz_space;

/* Makes the axes of an operator. `splits`: the `split_count` distinct keys per split of the variants. */
assay_status space_make(const assay_op *op, bool large, const int32_t *splits, int32_t split_count, fuzz_space *space,
                        assay_error *error);
/* Restricts the axes that "key=value" names to the named values, also to values that would not be tried otherwise. */
assay_status space_narrow(fuzz_space *s, const char *const *where, int32_t wheres, assay_error *error);
int32_t space_axis(const fuzz_space *s, const char *name, size_t length);
void space_print_value(const fuzz_space *s, int32_t axis, int32_t value, char *text, size_t size);
/* Tells whether the case is as small as a case of the second effort. */
bool space_fits(const fuzz_space *s, const assay_case *one);
/* Makes the case of a choice. `effort`, below FUZZ_EFFORTS, bounds its size. Fails if the choice gives no legal case.
 * The message then begins with the name of what does not fit, "size: " where the case is too large. Fails with
 * ASSAY_ERR_UNSUPPORTED where the operator had to be asked, which takes time. Lists are drawn from `rng`, passed by
 * value: they are the same for every trial of one draw. */
assay_status space_case(const fuzz_space *s, assay_rng rng, int32_t effort, fuzz_draw *draw, assay_error *error);

#endif
