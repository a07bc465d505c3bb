/* selected.c: rows of x that row_index selects. */
#include "ref/lib/selected.h"

#include "ref/lib/plain.h"

assay_status selected_check(const assay_tensor *x, const assay_tensor *index, assay_error *error) {
  const int64_t T = x->shape[0];
  for (int64_t r = 0; r < index->shape[0]; ++r) {
    const int64_t found = plain_integer(index, r);
    if (found < 0 || found >= T)
      return assay_fail(error, ASSAY_ERR_INPUT, "row_index: found %lld at %lld, allowed 0 to %lld", (long long)found,
                        (long long)r, (long long)(T - 1));
  }
  return ASSAY_OK;
}

int64_t selected_row(const assay_tensor *x, const assay_tensor *index, int64_t r, selected_spoil spoil) {
  const int64_t R = index->shape[0], T = x->shape[0];
  switch (spoil) {
  case SELECTED_NOT:
    return r % T;
  case SELECTED_ONE_OFF:
    return (plain_integer(index, r) + 1) % T;
  case SELECTED_EXCHANGED:
    return plain_integer(index, (r ^ 1) < R ? r ^ 1 : r);
  case SELECTED_RIGHT:
    break;
  }
  return plain_integer(index, r);
}
