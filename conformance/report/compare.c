/* compare.c: join by descriptor, then counts and a sign test for each variant. */
#include "compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/text/text.h"
#include "results_group.h"

enum { DRIFTS_SHOWN = 10, FAILURES_SHOWN = 50, FEW_PAIRS = 10 };

/* A shift of the median below 2 % is no shift. Above it, a p-value below 1 in 1,000 is evidence, below 1 in 20 a doubt.
 */
static const double SHIFT = 1.02, SURE = 1e-3, DOUBT = 0.05;

const char *compare_verdict_name(compare_verdict v) {
  static const char *const name[] = {"SAME", "BETTER", "WORSE", "AMBIGUOUS"};
  return name[v];
}

double compare_sign_test(int64_t up, int64_t down) {
  const int64_t n = up + down, few = up < down ? up : down;
  if (n == 0) return 1;
  double sum = 0;
  for (int64_t k = 0; k <= few; ++k)
    sum += exp(lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma((double)(n - k) + 1) - (double)n * log(2.0));
  return 2 * sum < 1 ? 2 * sum : 1;
}

/* ---- joining ----------------------------------------------------------------------------------------- */

typedef struct keyed {
  char *key;
  const results_case *one;
  int64_t order;
} keyed;

static bool left_out(const char *word) {
  static const char *const noise[] = {"device=", "suite=", "section=", "name="};
  for (size_t i = 0; i < sizeof noise / sizeof *noise; ++i)
    if (strncmp(word, noise[i], strlen(noise[i])) == 0) return true;
  return false;
}

static char *key_of(const char *descriptor) {
  char *key = malloc(strlen(descriptor) + 1), *to = key;
  for (const char *at = descriptor; key != NULL && *at != '\0';) {
    const size_t length = strcspn(at, " ");
    if (!left_out(at)) {
      if (to > key) *to++ = ' ';
      memcpy(to, at, length);
      to += length;
    }
    at += length + (at[length] == ' ');
  }
  if (key != NULL) *to = '\0';
  return key;
}

static int by_key(const void *a, const void *b) {
  const keyed *x = a, *y = b;
  const int order = strcmp(x->key, y->key);
  return order != 0 ? order : (x->order > y->order) - (x->order < y->order);
}

static void free_keys(keyed *list, int64_t count) {
  for (int64_t i = 0; list != NULL && i < count; ++i)
    free(list[i].key);
  free(list);
}

static keyed *sorted(const results *r) {
  keyed *list = calloc((size_t)r->case_count + 1, sizeof *list);
  for (int64_t i = 0; list != NULL && i < r->case_count; ++i) {
    list[i] = (keyed){key_of(r->cases[i].descriptor), &r->cases[i], i};
    if (list[i].key == NULL) {
      free_keys(list, i);
      return NULL;
    }
  }
  if (list != NULL) qsort(list, (size_t)r->case_count, sizeof *list, by_key);
  return list;
}

static int32_t group_of(comparison *c, const results_case *one) {
  int32_t i = 0;
  while (i < c->group_count &&
         (strcmp(c->groups[i].op, one->op) != 0 || strcmp(c->groups[i].variant, one->variant) != 0))
    ++i;
  if (i == c->group_count) c->groups[c->group_count++] = (compare_group){.op = one->op, .variant = one->variant};
  return i;
}

static void add_pair(comparison *c, const results_case *a, const results_case *b) {
  const int32_t at = group_of(c, a != NULL ? a : b);
  compare_group *g = &c->groups[at];
  c->pairs[c->pair_count++] = (compare_pair){a, b, at};
  g->joined += a != NULL && b != NULL;
  g->only_a += b == NULL;
  g->only_b += a == NULL;
  if (a == NULL || b == NULL) return;
  const bool was = results_good(a), is = results_good(b);
  g->new_failures += was && !is;
  g->fixed += !was && is;
  c->new_failures += was && !is;
}

static void join(comparison *c, const keyed *a, int64_t a_count, const keyed *b, int64_t b_count) {
  for (int64_t i = 0, j = 0; i < a_count || j < b_count;) {
    const int order = i == a_count ? 1 : j == b_count ? -1 : strcmp(a[i].key, b[j].key);
    add_pair(c, order <= 0 ? a[i].one : NULL, order >= 0 ? b[j].one : NULL);
    i += order <= 0;
    j += order >= 0;
  }
}

/* ---- drift ------------------------------------------------------------------------------------------- */

static bool is_rated(const compare_pair *pair) {
  if (pair->a == NULL || pair->b == NULL) return false;
  const double x = group_ratio(pair->a), y = group_ratio(pair->b);
  return x > 0 && y > 0 && x < HUGE_VAL && y < HUGE_VAL;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *list, int64_t count) {
  if (count == 0) return 0;
  qsort(list, (size_t)count, sizeof *list, by_value);
  return count % 2 != 0 ? list[count / 2] : 0.5 * (list[count / 2 - 1] + list[count / 2]);
}

static compare_verdict decide(const compare_group *g) {
  const bool moved = g->shift > SHIFT || (g->shift > 0 && g->shift < 1 / SHIFT);
  if (g->new_failures > 0) return COMPARE_WORSE;
  if (g->joined == 0) return COMPARE_AMBIGUOUS;
  if (g->up + g->down > 0 && g->rated < FEW_PAIRS && moved) return COMPARE_AMBIGUOUS;
  if (moved && g->p < SURE) return g->shift > 1 ? COMPARE_WORSE : COMPARE_BETTER;
  if (g->fixed > 0) return COMPARE_BETTER;
  return moved && g->p < DOUBT ? COMPARE_AMBIGUOUS : COMPARE_SAME;
}

static void measure(comparison *c, double *list) {
  for (int32_t i = 0; i < c->group_count; ++i) {
    compare_group *g = &c->groups[i];
    double *medians[3] = {&g->median_a, &g->median_b, &g->shift};
    for (int what = 0; what < 3; ++what) {
      int64_t count = 0;
      for (int64_t p = 0; p < c->pair_count; ++p) {
        if (c->pairs[p].group != i || !is_rated(&c->pairs[p])) continue;
        const double x = group_ratio(c->pairs[p].a), y = group_ratio(c->pairs[p].b);
        list[count++] = what == 0 ? x : what == 1 ? y : y / x;
        g->rated += what == 0;
        g->up += what == 0 && y > x;
        g->down += what == 0 && y < x;
      }
      *medians[what] = median(list, count);
    }
    g->p = compare_sign_test(g->up, g->down);
    g->verdict = decide(g);
  }
}

/* ---- what one side lacks ------------------------------------------------------------------------------ */

assay_status compare_check(const results *side, const char *name, assay_error *error) {
  char what[200];
  for (int64_t i = 0; i < side->run_count; ++i) {
    results_lacks(&side->runs[i], what, sizeof what);
    if (what[0] != '\0')
      return assay_fail(error, ASSAY_ERR_INPUT, "compare: %s: %s: %s", name, side->runs[i].file, what);
  }
  if (side->case_count == 0) return assay_fail(error, ASSAY_ERR_INPUT, "compare: %s: no cases", name);
  if (side->strange > 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "compare: %s: verdict: found '%.60s', which is not known here", name,
                      side->strange_names);
  return ASSAY_OK;
}

/* Tells whether every run of `a` has one of the same cases in `b`. */
static bool same_plans(const results *a, const results *b) {
  for (int64_t i = 0; i < a->run_count; ++i) {
    bool there = false;
    for (int64_t j = 0; j < b->run_count && !there; ++j)
      there = strcmp(a->runs[i].plan, b->runs[j].plan) == 0 && strcmp(a->runs[i].shard, b->runs[j].shard) == 0;
    if (!there) return false;
  }
  return true;
}

/* A variant that one device does not have has no case to lose. */
static void count_lost(comparison *c) {
  const bool one_device = strcmp(c->a->runs[0].device, c->b->runs[0].device) == 0;
  for (int32_t i = 0; i < c->group_count; ++i) {
    if (!one_device && c->groups[i].joined == 0) continue;
    c->lost += c->groups[i].only_a;
    c->gained += c->groups[i].only_b;
  }
  c->other_plan = one_device && !(same_plans(c->a, c->b) && same_plans(c->b, c->a));
}

assay_status compare_make(const results *a, const results *b, comparison *made, assay_error *error) {
  assay_status status = ASSAY_OK;
  const size_t room = (size_t)(a->case_count + b->case_count) + 1;
  *made = (comparison){
      .a = a, .b = b, .groups = calloc(room, sizeof(compare_group)), .pairs = calloc(room, sizeof(compare_pair))};
  double *scratch = malloc(room * sizeof *scratch);
  keyed *x = sorted(a), *y = sorted(b);
  if (made->groups == NULL || made->pairs == NULL || scratch == NULL || x == NULL || y == NULL) {
    status = assay_fail(error, ASSAY_ERR_MEMORY, "compare: out of memory");
    compare_free(made);
  } else {
    join(made, x, a->case_count, y, b->case_count);
    measure(made, scratch);
    count_lost(made);
  }
  free_keys(x, a->case_count);
  free_keys(y, b->case_count);
  free(scratch);
  return status;
}

void compare_free(comparison *c) {
  free(c->groups);
  free(c->pairs);
  *c = (comparison){0};
}

/* ---- text -------------------------------------------------------------------------------------------- */

static void print_replay(const results *r, const results_case *one, FILE *to) {
  char file[3 * 4096 + 8]; /* an origin has up to three paths */
  replay again;
  results_replay(r, one, file, sizeof file, &again);
  replay_write(to, &again);
  (void)fputc('\n', to);
}

static void print_failures(const comparison *c, bool fixed, FILE *to) {
  int64_t shown = 0;
  for (int64_t i = 0; i < c->pair_count; ++i) {
    const results_case *a = c->pairs[i].a, *b = c->pairs[i].b;
    if (a == NULL || b == NULL || results_good(a) != !fixed || results_good(b) != fixed) continue;
    if (shown++ >= FAILURES_SHOWN) continue;
    (void)fprintf(to, "%s %s -> %s: %s\n  ", fixed ? "fixed:" : "NEW:", verdict_name(a->verdict),
                  verdict_name(b->verdict), text_shown(fixed ? a->check : b->check));
    print_replay(c->b, b, to);
  }
  if (shown > FAILURES_SHOWN) (void)fprintf(to, "and %lld more\n", (long long)(shown - FAILURES_SHOWN));
}

static double drift(const compare_pair *pair) {
  return fabs(log(group_ratio(pair->b) / group_ratio(pair->a)));
}

static void print_drifts(const comparison *c, FILE *to) {
  const compare_pair *top[DRIFTS_SHOWN];
  int count = 0;
  for (int64_t i = 0; i < c->pair_count; ++i) {
    const compare_pair *pair = &c->pairs[i];
    if (!is_rated(pair) || !(drift(pair) > log(SHIFT))) continue;
    if (group_ratio(pair->a) < 0.1 && group_ratio(pair->b) < 0.1) continue; /* far inside the limits */
    if (count == DRIFTS_SHOWN && !(drift(pair) > drift(top[count - 1]))) continue;
    int at = count < DRIFTS_SHOWN ? count++ : count - 1;
    for (; at > 0 && drift(pair) > drift(top[at - 1]); --at)
      top[at] = top[at - 1];
    top[at] = pair;
  }
  if (count > 0) (void)fputs("largest drifts (error ratio before, after):\n", to);
  for (int i = 0; i < count; ++i) {
    (void)fprintf(to, "%8.3f %8.3f  ", group_ratio(top[i]->a), group_ratio(top[i]->b));
    print_replay(c->b, top[i]->b, to);
  }
}

void compare_print(const comparison *c, FILE *to) {
  print_failures(c, false, to);
  print_failures(c, true, to);
  print_drifts(c, to);
  (void)fprintf(to, "%-20s %-24s %8s %7s %7s %5s %5s %8s %8s %7s %8s  %s\n", "operator", "variant", "joined", "only A",
                "only B", "new", "fixed", "median A", "median B", "shift", "p", "verdict");
  for (int32_t i = 0; i < c->group_count; ++i) {
    const compare_group *g = &c->groups[i];
    (void)fprintf(to, "%-20s %-24s %8lld %7lld %7lld %5lld %5lld %8.3g %8.3g %7.3f %8.2g  %s\n", text_shown(g->op),
                  text_shown(g->variant), (long long)g->joined, (long long)g->only_a, (long long)g->only_b,
                  (long long)g->new_failures, (long long)g->fixed, g->median_a, g->median_b, g->shift, g->p,
                  compare_verdict_name(g->verdict));
  }
  if (c->other_plan) (void)fputs("A and B are of different plans: other suites, variants, filters or shards\n", to);
  if (c->lost > 0) (void)fprintf(to, "B lacks %lld cases of A\n", (long long)c->lost);
  if (c->gained > 0) (void)fprintf(to, "A lacks %lld cases of B\n", (long long)c->gained);
}
