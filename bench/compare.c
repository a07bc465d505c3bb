/* compare.c: join by descriptor and mode, and say what a difference is worth. */
#include "compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/text/text.h"

/* The widest interval with which the answer is still SAME. */
static const double WIDE = 0.05, NOISE_MAX = 0.04;
/* Measured with one program on an H200, process after process, in two calls. 95 of 100 cold figures differed by at most
 * 0.4 and 0.9 % (187 and 57 rows). 95 of 100 warm figures differed by at most 1.7 and 1.8 % (112 and 28 rows), and
 * there the halves of a row lay 0.9 % apart. */
static const double NOISE_MIN[BENCH_MODES] = {[BENCH_COLD] = 0.01, [BENCH_WARM] = 0.02, [BENCH_HOST] = 0.01};
/* On two days, perhaps two cards, kernels that had not changed differed by up to 2.7 % on an H200. */
static const double NOISE_OF_CARDS = 0.03;

const char *bench_verdict_name(bench_verdict v) {
  static const char *const name[] = {"SAME", "FASTER", "SLOWER", "AMBIGUOUS"};
  return name[v];
}

bench_verdict bench_decide(double ratio, double low, double high, double noise) {
  if (low > 1 + noise) return BENCH_SLOWER;
  if (high < 1 / (1 + noise)) return BENCH_FASTER;
  const bool near = ratio <= 1 + noise && ratio >= 1 / (1 + noise);
  const bool known = high <= 1 + WIDE && low >= 1 / (1 + WIDE);
  return near && known ? BENCH_SAME : BENCH_AMBIGUOUS;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static bench_mode mode_of(const bench_row *row) {
  bench_mode mode = BENCH_COLD;
  while (mode + 1 < BENCH_MODES && strcmp(row->mode, bench_mode_name(mode)) != 0)
    ++mode;
  return mode;
}

static double noise_of(const bench_rows_list *a, const bench_rows_list *b, bench_mode mode, double *scratch) {
  const bench_rows_list *const list[] = {a, b};
  int64_t count = 0;
  for (int side = 0; side < 2; ++side)
    for (int64_t i = 0; i < list[side]->count; ++i)
      if (!list[side]->row[i].failed && list[side]->row[i].halves > 0 && mode_of(&list[side]->row[i]) == mode)
        scratch[count++] = fabs(log(list[side]->row[i].halves));
  if (count == 0) return NOISE_MIN[mode];
  qsort(scratch, (size_t)count, sizeof *scratch, by_value);
  const double found = expm1(scratch[(count - 1) * 95 / 100]);
  return found < NOISE_MIN[mode] ? NOISE_MIN[mode] : found > NOISE_MAX ? NOISE_MAX : found;
}

/* Suites may rename a case; what it is stays. */
static bool same_case(const bench_row *a, const bench_row *b) {
  if (a->failed || b->failed || strcmp(a->mode, b->mode) == 0) return strcmp(a->descriptor, b->descriptor) == 0;
  return false;
}

static double launch_of(const bench_row *a, const bench_row *b) {
  return a->empty > 0 && b->empty > 0 ? b->empty - a->empty : 0;
}

static bench_pair pair_of(const bench_row *a, const bench_row *b, double noise) {
  bench_pair made = {.a = a, .b = b};
  made.broken = a != NULL && !a->failed && b != NULL && b->failed;
  if (a == NULL || b == NULL || a->failed || b->failed) return made;
  made.ratio = b->median / a->median;
  made.low = b->low / a->high;
  made.high = b->high / a->low;
  made.launch = launch_of(a, b);
  const double of_launch = made.launch / a->median;
  made.verdict = bench_decide(made.ratio - of_launch, made.low - of_launch, made.high - of_launch, noise);
  return made;
}

static void add(bench_comparison *c, const bench_row *a, const bench_row *b) {
  const bench_pair made = pair_of(a, b, c->noise[mode_of(a != NULL ? a : b)]);
  c->pair[c->pairs++] = made;
  c->broken += made.broken;
  if (!(made.ratio > 0)) return;
  ++c->joined;
  ++c->count[made.verdict];
}

assay_status bench_compare(const bench_rows_list *a, const bench_rows_list *b, bench_against against,
                           bench_comparison *made, assay_error *error) {
  *made = (bench_comparison){.pair = NULL};
  if (strcmp(a->device, b->device) != 0 || strcmp(a->device_name, b->device_name) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "compare: found times of %s (%s) and of %s (%s), allowed: of one device",
                      a->device, a->device_name, b->device, b->device_name);
  const size_t room = (size_t)(a->count + b->count) + 1;
  double *scratch = malloc(room * sizeof *scratch);
  bool *taken = calloc(room, sizeof *taken);
  made->pair = calloc(room, sizeof *made->pair);
  if (scratch == NULL || taken == NULL || made->pair == NULL) {
    free(scratch);
    free(taken);
    bench_compare_free(made);
    return assay_fail(error, ASSAY_ERR_MEMORY, "compare: out of memory");
  }
  for (bench_mode mode = BENCH_COLD; mode < BENCH_MODES; ++mode) {
    made->noise[mode] = noise_of(a, b, mode, scratch);
    if (against == BENCH_CARDS && made->noise[mode] < NOISE_OF_CARDS) made->noise[mode] = NOISE_OF_CARDS;
  }
  for (int64_t i = 0; i < a->count; ++i) {
    int64_t found = 0;
    while (found < b->count && (taken[found] || !same_case(&a->row[i], &b->row[found])))
      ++found;
    if (found < b->count) taken[found] = !b->row[found].failed; /* one failure answers all modes */
    add(made, &a->row[i], found < b->count ? &b->row[found] : NULL);
  }
  for (int64_t i = 0; i < b->count; ++i) {
    bool there = taken[i];
    for (int64_t k = 0; k < a->count && !there; ++k)
      there = b->row[i].failed && same_case(&a->row[k], &b->row[i]);
    if (!there) add(made, NULL, &b->row[i]);
  }
  free(scratch);
  free(taken);
  return ASSAY_OK;
}

void bench_compare_free(bench_comparison *c) {
  free(c->pair);
  *c = (bench_comparison){.pair = NULL};
}

void bench_compare_print(const bench_comparison *c, FILE *to) {
  (void)fprintf(to, "%-9s %7s %17s %10s %10s %8s %-4s  %s\n", "verdict", "ratio", "open", "A us", "B us", "launch",
                "mode", "case");
  for (int64_t i = 0; i < c->pairs; ++i) {
    const bench_pair *p = &c->pair[i];
    const bench_row *row = p->b != NULL ? p->b : p->a;
    if (p->ratio > 0)
      (void)fprintf(to, "%-9s %7.3f [%6.3f, %6.3f] %10.3f %10.3f %+8.3f %-4s  %s %s: %s\n",
                    bench_verdict_name(p->verdict), p->ratio, p->low, p->high, p->a->median, p->b->median, p->launch,
                    text_shown(row->mode), text_shown(row->op), text_shown(row->variant), text_shown(row->descriptor));
    else
      (void)fprintf(to, "%-9s %s: %s %s: %s\n", p->broken ? "BROKEN" : "-",
                    p->broken      ? "had a figure, fails now"
                    : p->a == NULL ? "only in B"
                    : p->b == NULL ? "only in A"
                                   : "no figure in one of them",
                    text_shown(row->op), text_shown(row->variant), text_shown(row->descriptor));
  }
  (void)fprintf(to, "%lld rows in both: %lld SAME, %lld FASTER, %lld SLOWER, %lld AMBIGUOUS; %lld broken; noise",
                (long long)c->joined, (long long)c->count[BENCH_SAME], (long long)c->count[BENCH_FASTER],
                (long long)c->count[BENCH_SLOWER], (long long)c->count[BENCH_AMBIGUOUS], (long long)c->broken);
  const char *between = " ";
  for (bench_mode mode = BENCH_COLD; mode < BENCH_MODES; ++mode) {
    bool seen = false;
    for (int64_t i = 0; i < c->pairs && !seen; ++i)
      seen = c->pair[i].ratio > 0 && mode_of(c->pair[i].a) == mode;
    if (!seen) continue;
    (void)fprintf(to, "%s%s %.1f %%", between, bench_mode_name(mode), 100 * c->noise[mode]);
    between = ", ";
  }
  (void)fputs(c->joined == 0 ? ": nothing to compare\n" : "\n", to);
}
