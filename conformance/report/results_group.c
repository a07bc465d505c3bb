/* results_group.c: one pass over the cases. */
#include "results_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/text/text.h"
#include "core/registry.h"
#include "results_power.h"

enum { MAX_GROUPS = 4096 };

double group_ratio(const results_case *one) {
  double worst = one->ratio_element;
  if (one->ratio_row > worst) worst = one->ratio_row;
  if (one->ratio_request > worst) worst = one->ratio_request;
  return worst;
}

static results_group *group_of(results_groups *g, const results_case *one, assay_error *error) {
  for (int64_t i = 0; i < g->count; ++i)
    if (g->list[i].op == one->op && g->list[i].variant == one->variant && g->list[i].device == one->device)
      return &g->list[i];
  group_cell *cells = g->count < MAX_GROUPS ? calloc(GROUP_MAX_CELLS, sizeof *cells) : NULL;
  if (cells == NULL) {
    (void)assay_fail(error, ASSAY_ERR_MEMORY, "results: more than %d variants, or out of memory", MAX_GROUPS);
    return NULL;
  }
  results_group *made = &g->list[g->count++];
  const assay_variant *known = assay_variant_find(one->op, one->variant, one->device);
  *made = (results_group){.op = one->op, .variant = one->variant, .device = one->device, .cells = cells};
  made->claims = known != NULL ? known->claims : NULL;
  made->about = assay_op_find(one->op);
  made->axes = made->about == NULL ? GROUP_AXES : 0;
  char name[32];
  while (made->about != NULL && made->axes < GROUP_AXES && case_axis_name(made->about, made->axes, name, sizeof name))
    ++made->axes;
  return made;
}

static bool cell_is(const group_cell *cell, const char *const axis[GROUP_AXES]) {
  for (int a = 0; a < GROUP_AXES; ++a)
    if (strcmp(cell->axis[a], axis[a]) != 0) return false;
  return true;
}

static void add_pass(results_group *g, const results_case *one) {
  int32_t i = 0;
  while (i < g->cell_count && !cell_is(&g->cells[i], one->axis))
    ++i;
  if (i == GROUP_MAX_CELLS) return;
  if (i == g->cell_count) {
    memcpy(g->cells[i].axis, one->axis, sizeof one->axis);
    ++g->cell_count;
  }
  ++g->cells[i].passes;
}

assay_status groups_make(const results *r, results_groups *made, assay_error *error) {
  *made = (results_groups){NULL, 0, NULL};
  made->list = calloc(MAX_GROUPS, sizeof *made->list);
  made->of_case = calloc((size_t)r->case_count + 1, sizeof *made->of_case);
  if (made->list == NULL || made->of_case == NULL) {
    groups_free(made);
    return assay_fail(error, ASSAY_ERR_MEMORY, "results: out of memory");
  }
  for (int64_t i = 0; i < r->case_count; ++i) {
    const results_case *one = &r->cases[i];
    results_group *g = group_of(made, one, error);
    if (g == NULL) {
      groups_free(made);
      return ASSAY_ERR_MEMORY;
    }
    made->of_case[i] = (int32_t)(g - made->list);
    ++g->cases;
    ++g->verdicts[one->verdict];
    g->reference_ms += one->reference_ms;
    g->run_ms += one->run_ms;
    g->own_suite = g->own_suite || strcmp(one->suite, one->op) == 0;
    if (group_ratio(one) > g->worst) g->worst = group_ratio(one);
    if (one->verdict == VERDICT_PASS) add_pass(g, one);
  }
  return ASSAY_OK;
}

void groups_free(results_groups *g) {
  for (int64_t i = 0; g->list != NULL && i < g->count; ++i)
    free(g->list[i].cells);
  free(g->list);
  free(g->of_case);
  *g = (results_groups){NULL, 0, NULL};
}

int64_t group_passes(const results_group *g, const char *const axis[GROUP_AXES]) {
  for (int32_t i = 0; i < g->cell_count; ++i)
    if (cell_is(&g->cells[i], axis)) return g->cells[i].passes;
  return 0;
}

typedef void (*claim_each)(void *context, const results_group *g, const char *const *axis);

static void walk(const results_group *g, const char *rest, int at, char value[GROUP_AXES][16], claim_each each,
                 void *context) {
  if (at == g->axes) {
    const char *const axis[GROUP_AXES] = {value[0], value[1], value[2], value[3]};
    each(context, g, axis);
    return;
  }
  char name[32], list[256];
  const char *end = rest + strcspn(rest, "|");
  (void)snprintf(list, sizeof list, "%.*s", (int)(end - rest), rest);
  const bool out =
      at > 0 && g->about != NULL && case_axis_name(g->about, at, name, sizeof name) && strcmp(name, "out_dtype") == 0;
  for (const char *item = rest; item < end;) {
    size_t length = strcspn(item, ",|");
    (void)snprintf(value[at], sizeof value[at], "%.*s", (int)length, item);
    /* The type itself is "same" in a case, and claimed once. */
    const bool same = out && strcmp(value[at], value[0]) == 0;
    if (same) (void)snprintf(value[at], sizeof value[at], "same");
    if (!same || !results_listed(list, "same")) walk(g, *end == '|' ? end + 1 : end, at + 1, value, each, context);
    item += length + (item[length] == ',');
  }
}

void group_claims(const results_group *g, claim_each each, void *context) {
  char value[GROUP_AXES][16] = {""};
  if (g->claims != NULL) walk(g, g->claims, 0, value, each, context);
}

void group_axes_text(const char *const axis[GROUP_AXES], char *text, size_t size) {
  size_t used = 0;
  if (size > 0) text[0] = '\0';
  for (int a = 0; a < GROUP_AXES && axis[a][0] != '\0' && used < size; ++a)
    used += (size_t)snprintf(text + used, size - used, "%s%s", a > 0 ? " " : "", axis[a]);
}

/* ---- campaigns --------------------------------------------------------------------------------------- */

static void say(char *text, size_t size, int32_t *gaps, const char *file, const char *what) {
  const size_t used = strlen(text);
  (void)snprintf(text + used, size - used, "%s%s: %s", used > 0 ? "\n" : "", text_shown(file), text_shown(what));
  ++*gaps;
}

/* Shards of one seed on one device are parts of one run. */
static bool of_one_campaign(const results_run *a, const results_run *b) {
  return a->shard[0] != '\0' && b->shard[0] != '\0' && a->seed == b->seed && a->device == b->device;
}

/* Says which of `of` shards are missing from the campaign of `run`, neighbours in one sentence. Returns false if there
 * is no memory. */
static bool find_missing(const results *r, const results_run *run, int32_t of, char *text, size_t size, int32_t *gaps) {
  char what[400];
  bool *there = calloc((size_t)of + 2, sizeof *there);
  if (there == NULL) return false;
  for (int64_t i = 0; i < r->run_count; ++i) {
    int32_t shard = 0, shards = 0;
    if (of_one_campaign(run, &r->runs[i]) && results_shard(r->runs[i].shard, &shard, &shards) && shards == of)
      there[shard] = true;
  }
  for (int32_t s = 1, last; s <= of; s = last + 1) {
    last = s;
    while (!there[s] && last < of && !there[last + 1])
      ++last;
    if (there[s]) continue;
    if (last > s)
      (void)snprintf(what, sizeof what, "shards %d/%d to %d/%d are missing (seed %llu on %s)", s, of, last, of,
                     (unsigned long long)run->seed, run->device);
    else
      (void)snprintf(what, sizeof what, "shard %d/%d is missing (seed %llu on %s)", s, of,
                     (unsigned long long)run->seed, run->device);
    say(text, size, gaps, "campaign", what);
    *gaps += last - s;
  }
  free(there);
  return true;
}

int32_t groups_gaps(const results *r, char *text, size_t size) {
  int32_t gaps = 0, of = 0;
  char what[400];
  text[0] = '\0';
  for (int64_t i = 0; i < r->run_count; ++i) {
    const results_run *run = &r->runs[i];
    int32_t shard = 0, shards = 0;
    results_lacks(run, what, sizeof what);
    if (what[0] != '\0') say(text, size, &gaps, run->file, what);
    if (strcmp(run->commit, r->runs[0].commit) != 0) say(text, size, &gaps, run->file, "of another commit");
    const int agrees = results_power_adds_up(r, i, what, sizeof what);
    if (agrees < 0) return -1;
    if (agrees == 0) say(text, size, &gaps, run->file, what);
    if (!results_shard(run->shard, &shard, &shards)) continue;
    if (of != 0 && of != shards) say(text, size, &gaps, run->file, "shard of another number of shards");
    of = shards;
    const results_run *other = NULL;
    for (int64_t j = 0; j < i; ++j) {
      if (!of_one_campaign(run, &r->runs[j])) continue;
      if (strcmp(run->shard, r->runs[j].shard) == 0) say(text, size, &gaps, run->file, "a shard given twice");
      if (other == NULL) other = &r->runs[j];
    }
    if (other != NULL && strcmp(run->plan, other->plan) != 0) {
      (void)snprintf(what, sizeof what, "shard of other suites or variants than %s", other->file);
      say(text, size, &gaps, run->file, what);
    }
    if (other != NULL && strcmp(run->power, other->power) != 0) {
      (void)snprintf(what, sizeof what, "ran with --power %s, %s with --power %s", run->power, other->file,
                     other->power);
      say(text, size, &gaps, run->file, what);
    }
  }
  /* Every seed and device that has one shard needs all of them. */
  for (int64_t i = 0; i < r->run_count; ++i) {
    const results_run *run = &r->runs[i];
    bool first = run->shard[0] != '\0';
    for (int64_t j = 0; j < i && first; ++j)
      first = !of_one_campaign(run, &r->runs[j]);
    if (first && !find_missing(r, run, of, text, size, &gaps)) return -1;
  }
  return gaps;
}

typedef struct unclaimed {
  char *text;
  size_t size;
  int64_t count;
} unclaimed;

static void note_claim(void *context, const results_group *g, const char *const *axis) {
  unclaimed *u = context;
  if (group_passes(g, axis) > 0) return;
  const size_t used = strlen(u->text);
  char combination[80];
  group_axes_text(axis, combination, sizeof combination);
  ++u->count;
  (void)snprintf(u->text + used, u->size - used, "%s%s/%s on %s: %s", used > 0 ? "\n" : "", text_shown(g->op),
                 text_shown(g->variant), text_shown(g->device), text_shown(combination));
}

int64_t groups_unclaimed(const results *r, const results_groups *g, char *text, size_t size) {
  unclaimed u = {text, size, 0};
  bool whole = r->run_count > 0;
  text[0] = '\0';
  for (int64_t i = 0; i < r->run_count; ++i)
    whole = whole && r->runs[i].whole;
  for (int64_t i = 0; whole && i < g->count; ++i)
    if (g->list[i].own_suite) group_claims(&g->list[i], note_claim, &u);
  return u.count;
}
