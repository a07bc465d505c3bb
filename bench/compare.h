/* compare.h: two benches of the same cases, row by row. */
#ifndef ASSAY_BENCH_COMPARE_H
#define ASSAY_BENCH_COMPARE_H

#include "rows.h"

typedef enum bench_verdict { BENCH_SAME, BENCH_FASTER, BENCH_SLOWER, BENCH_AMBIGUOUS } bench_verdict;

typedef struct bench_pair {
  const bench_row *a, *b;  /* NULL: not in this run, or without a figure in it */
  double ratio, low, high; /* b over a, and what the two intervals leave open */
  double launch;           /* by how many us an empty launch in the same form is dearer in b; 0: not known */
  bool broken;             /* a figure before, a failure now */
  bench_verdict verdict;
} bench_pair;

typedef struct bench_comparison {
  bench_pair *pair;
  int64_t pairs, joined, count[BENCH_AMBIGUOUS + 1], broken;
  double noise[BENCH_MODES]; /* differences up to this share are none */
} bench_comparison;

const char *bench_verdict_name(bench_verdict v);
/* ratio within noise, and what is left open within 5 %: SAME. All of what is left open beyond the noise: FASTER,
 * SLOWER. Else AMBIGUOUS. */
bench_verdict bench_decide(double ratio, double low, double high, double noise);
/* A difference that empty launches show too is none of the kernel's: it is taken off before bench_decide.
 * noise, for each mode: what the same binary showed against itself. In a run: the distance
 * between the halves of a row's samples, its 95th percentile over the mode's rows of both files, at most 4 %. From
 * process to process: at least 1 %, warm 2 %; any at least 3 % with BENCH_CARDS: a file that may be of another card of
 * the same name. Refuses runs of different devices. */
typedef enum bench_against { BENCH_ONE_CARD, BENCH_CARDS } bench_against;
assay_status bench_compare(const bench_rows_list *a, const bench_rows_list *b, bench_against against,
                           bench_comparison *made, assay_error *error);
void bench_compare_free(bench_comparison *c);
void bench_compare_print(const bench_comparison *c, FILE *to);

#endif
