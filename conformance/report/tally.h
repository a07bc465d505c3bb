/* tally.h: results that are alike, counted: failures by their kind, UNSUPPORTED by its reason. Private to the report.
 */
#ifndef ASSAY_CONFORMANCE_REPORT_TALLY_H
#define ASSAY_CONFORMANCE_REPORT_TALLY_H

#include "conformance/judge/judge.h"

enum { TALLY_REASON = 160 };

/* Results of one variant that are alike, and where the first of them was. */
typedef struct tally_row {
  const assay_op *op;
  char variant[64], device[16];
  verdict verdict;
  char check[24];
  char reason[TALLY_REASON]; /* a failure: the kind of its wrong values; UNSUPPORTED: the message without numbers */
  char first[192];           /* suite/section/name of the first case */
  int64_t count;
} tally_row;

typedef struct tally {
  tally_row *row;
  int32_t count, room, most; /* most: rows at most; 0: no limit */
  int64_t over;              /* results that found no row, for want of room or memory */
} tally;

/* Writes "suite section/name". A descriptor that was typed may have no suite and no name. */
void tally_place(const assay_case *one, char *text, size_t size);
/* Counts a result and returns its row, whose count is 1 for the first of a kind. Returns NULL where no row is left; the
 * result is then counted in `over`. The row is valid until the next call. */
const tally_row *tally_add(tally *t, const assay_case *one, const case_result *result);
void tally_free(tally *t);
/* Sorts by count, the largest first; equal counts keep their order. */
void tally_sort(tally *t);
/* Copies `message`, each number of it as N; a digit inside a word, such as that of bf16, stays. */
void tally_reason(const char *message, char *text, size_t size);

#endif
