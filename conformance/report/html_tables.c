/* html_tables.c: claims, laws, planted errors and paths of the run. */
#include <stdlib.h>
#include <string.h>

#include "html_internal.h"

enum { MAX_NAMES = 64, PATHS_SHOWN = 400 };

/* ---- claims ------------------------------------------------------------------------------------------ */

typedef struct axis_values {
  const char *value[MAX_NAMES];
  int32_t count;
} axis_values;

static void add_value(axis_values *axis, const char *value) {
  for (int32_t i = 0; i < axis->count; ++i)
    if (strcmp(axis->value[i], value) == 0) return;
  if (axis->count < MAX_NAMES) axis->value[axis->count++] = value;
}

typedef struct claim_list {
  char text[GROUP_MAX_CELLS][GROUP_AXES][16];
  int32_t count;
} claim_list;

static void note_claim(void *context, const results_group *g, const char *const *axis) {
  claim_list *list = context;
  (void)g;
  if (list->count == GROUP_MAX_CELLS) return;
  for (int a = 0; a < GROUP_AXES; ++a)
    (void)snprintf(list->text[list->count][a], sizeof list->text[0][0], "%s", axis[a]);
  ++list->count;
}

static bool is_claimed(const claim_list *list, const char *const *axis) {
  for (int32_t i = 0; i < list->count; ++i) {
    bool same = true;
    for (int a = 0; a < GROUP_AXES && same; ++a)
      same = strcmp(list->text[i][a], axis[a]) == 0;
    if (same) return true;
  }
  return false;
}

/* Writes the heading of a matrix: its first two axes run down, the others across. */
static void coverage_head(FILE *to, const results_group *g, const axis_values *axes) {
  const char *const rows = g->axes > 3 ? " rowspan=\"2\"" : "";
  char name[32];
  (void)fputs("<tr>", to);
  for (int32_t a = 0; a < 2 && a < g->axes; ++a) {
    (void)fprintf(to, "<th%s>", rows);
    if (g->about != NULL && case_axis_name(g->about, a, name, sizeof name)) text_xml(to, name);
    (void)fputs("</th>", to);
  }
  for (int32_t l = 0; l < axes[2].count; ++l) {
    (void)fprintf(to, "<th colspan=\"%d\">", axes[3].count);
    text_xml(to, g->axes > 2 ? axes[2].value[l] : "PASS");
    (void)fputs("</th>", to);
  }
  (void)fputs("</tr>", to);
  if (g->axes < 4) return;
  (void)fputs("<tr>", to);
  for (int32_t l = 0; l < axes[2].count; ++l)
    for (int32_t m = 0; m < axes[3].count; ++m) {
      (void)fputs("<th>", to);
      text_xml(to, axes[3].value[m]);
      (void)fputs("</th>", to);
    }
  (void)fputs("</tr>", to);
}

static void coverage_of(FILE *to, const results_group *g, claim_list *claims) {
  axis_values axes[GROUP_AXES] = {{{NULL}, 0}};
  int64_t holes = 0;
  claims->count = 0;
  group_claims(g, note_claim, claims);
  for (int a = 0; a < GROUP_AXES; ++a) {
    for (int32_t i = 0; i < claims->count; ++i)
      add_value(&axes[a], claims->text[i][a]);
    for (int32_t i = 0; i < g->cell_count; ++i)
      add_value(&axes[a], g->cells[i].axis[a]);
  }
  for (int32_t i = 0; i < claims->count; ++i) {
    const char *const axis[GROUP_AXES] = {claims->text[i][0], claims->text[i][1], claims->text[i][2],
                                          claims->text[i][3]};
    holes += group_passes(g, axis) == 0;
  }
  if (axes[0].count == 0) return;
  (void)fputs("<h3>", to);
  text_xml(to, g->op);
  (void)fputc('/', to);
  text_xml(to, g->variant);
  (void)fputs(" on ", to);
  text_xml(to, g->device);
  (void)fputs("</h3><p class=\"dim\">", to);
  if (g->claims == NULL)
    (void)fputs("Its claims are not known to this program: load its plug-in to have them compared.", to);
  else
    (void)fprintf(to, "%d combinations claimed, %lld without a PASS.", claims->count, (long long)holes);
  (void)fputs("</p><div class=\"wide\"><table>", to);
  coverage_head(to, g, axes);
  for (int32_t d = 0; d < axes[0].count; ++d)
    for (int32_t k = 0; k < axes[1].count; ++k) {
      (void)fputs("<tr>", to);
      html_cell(to, NULL, axes[0].value[d]);
      if (g->axes > 1) html_cell(to, NULL, axes[1].value[k]);
      for (int32_t l = 0; l < axes[2].count; ++l)
        for (int32_t m = 0; m < axes[3].count; ++m) {
          const char *const axis[GROUP_AXES] = {axes[0].value[d], axes[1].value[k], axes[2].value[l], axes[3].value[m]};
          const int64_t passes = group_passes(g, axis);
          char text[32];
          (void)snprintf(text, sizeof text, "%lld", (long long)passes);
          if (passes > 0)
            html_cell(to, "c", text);
          else
            html_cell(to, is_claimed(claims, axis) ? "hole" : "off", is_claimed(claims, axis) ? "0" : "·");
        }
      (void)fputs("</tr>", to);
    }
  (void)fputs("</table></div>", to);
}

void html_coverage(FILE *to, const results_groups *g) {
  claim_list *claims = malloc(sizeof *claims);
  if (claims == NULL) html_miss();
  (void)fputs("<h2 id=\"claims\">Claims</h2><p class=\"dim\">PASS counts by what claims of the operator are made over: "
              "types, layout, mode. 0: claimed, but nothing passed. ·: not claimed.</p>",
              to);
  for (int64_t i = 0; i < g->count && claims != NULL; ++i)
    coverage_of(to, &g->list[i], claims);
  free(claims);
}

/* ---- names counted by variant ------------------------------------------------------------------------ */

typedef struct name_list {
  char name[MAX_NAMES][64];
  int32_t count;
} name_list;

/* Returns the index of the name that begins at `at` and ends at a comma; -1: no room. */
static int32_t name_place(name_list *list, const char *at) {
  char name[64];
  (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
  for (int32_t i = 0; i < list->count; ++i)
    if (strcmp(list->name[i], name) == 0) return i;
  if (list->count == MAX_NAMES) return -1;
  memcpy(list->name[list->count], name, sizeof name);
  return list->count++;
}

static void count_names(name_list *list, const char *names, int64_t *count) {
  for (const char *at = names; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
    const int32_t place = name_place(list, at);
    if (place >= 0) ++count[place];
  }
}

void html_laws(FILE *to, const results *r, const results_groups *g) {
  name_list laws = {.count = 0};
  int64_t *count = calloc((size_t)g->count * MAX_NAMES + 1, sizeof *count);
  if (count == NULL) {
    html_miss();
    return;
  }
  for (int64_t i = 0; i < r->case_count; ++i)
    count_names(&laws, r->cases[i].laws, count + g->of_case[i] * MAX_NAMES);
  (void)fputs("<h2 id=\"laws\">Laws checked</h2><div class=\"wide\"><table><tr><th>variant</th>", to);
  for (int32_t l = 0; l < laws.count; ++l) {
    (void)fputs("<th class=\"n\">", to);
    text_xml(to, laws.name[l]);
    (void)fputs("</th>", to);
  }
  (void)fputs("</tr>", to);
  for (int64_t i = 0; i < g->count; ++i) {
    char name[256];
    (void)snprintf(name, sizeof name, "%s/%s on %s", g->list[i].op, g->list[i].variant, g->list[i].device);
    (void)fputs("<tr>", to);
    html_cell(to, NULL, name);
    for (int32_t l = 0; l < laws.count; ++l)
      html_number_cell(to, count[i * MAX_NAMES + l]);
    (void)fputs("</tr>", to);
  }
  (void)fputs("</table></div>", to);
  free(count);
}

/* ---- planted errors ---------------------------------------------------------------------------------- */

static void power_of(FILE *to, const results *r, const char *op) {
  name_list spoils = {.count = 0};
  int64_t seen[MAX_NAMES] = {0}, unseen[MAX_NAMES] = {0}, empty[MAX_NAMES] = {0};
  for (int64_t i = 0; i < r->case_count; ++i)
    if (r->cases[i].op == op) {
      count_names(&spoils, r->cases[i].spoils_seen, seen);
      count_names(&spoils, r->cases[i].spoils_unseen, unseen);
      count_names(&spoils, r->cases[i].spoils_void, empty);
    }
  for (int32_t s = 0; s < spoils.count; ++s) {
    (void)fputs("<tr>", to);
    html_cell(to, NULL, op);
    html_cell(to, NULL, spoils.name[s]);
    html_number_cell(to, seen[s]);
    html_number_cell(to, unseen[s]);
    html_number_cell(to, empty[s]);
    const int64_t effective = seen[s] + unseen[s];
    (void)fprintf(to, "<td class=\"n\">%.1f %%</td></tr>",
                  effective > 0 ? 100.0 * (double)seen[s] / (double)effective : 0.0);
  }
}

void html_power(FILE *to, const results *r) {
  const char *done[MAX_NAMES];
  int32_t count = 0;
  (void)fputs("<h2 id=\"power\">Power</h2>", to);
  for (int64_t i = 0; i < r->case_count; ++i) {
    const results_case *one = &r->cases[i];
    bool known = one->spoils_seen[0] == '\0' && one->spoils_unseen[0] == '\0' && one->spoils_void[0] == '\0';
    for (int32_t d = 0; d < count && !known; ++d)
      known = done[d] == one->op;
    if (known || count == MAX_NAMES) continue;
    if (count == 0)
      (void)fputs(
          "<p class=\"dim\">Errors planted in the reference's result: seen by the judge, unseen, or void because "
          "they change nothing.</p><div class=\"wide\"><table><tr><th>operator</th><th>planted error</th>"
          "<th class=\"n\">seen</th><th class=\"n\">unseen</th><th class=\"n\">void</th><th class=\"n\">of "
          "effective</th></tr>",
          to);
    done[count++] = one->op;
    power_of(to, r, one->op);
  }
  (void)fputs(count > 0 ? "</table></div>" : "<p class=\"dim\">No planted errors in these results.</p>", to);
}

/* ---- paths ------------------------------------------------------------------------------------------- */

typedef struct path_count {
  int32_t group;
  const char *path;
  int64_t count;
} path_count;

static int by_group_and_path(const void *a, const void *b) {
  const path_count *x = a, *y = b;
  if (x->group != y->group) return x->group < y->group ? -1 : 1;
  return strcmp(x->path, y->path);
}

void html_paths(FILE *to, const results *r, const results_groups *g) {
  path_count *list = malloc((size_t)r->case_count * sizeof *list + 1);
  int64_t count = 0, merged = 0;
  if (list == NULL) {
    html_miss();
    return;
  }
  for (int64_t i = 0; i < r->case_count; ++i)
    if (r->cases[i].path[0] != '\0') list[count++] = (path_count){g->of_case[i], r->cases[i].path, 1};
  qsort(list, (size_t)count, sizeof *list, by_group_and_path);
  for (int64_t i = 0; i < count; ++i) {
    if (merged > 0 && by_group_and_path(&list[merged - 1], &list[i]) == 0)
      ++list[merged - 1].count;
    else
      list[merged++] = list[i];
  }
  (void)fputs("<h2 id=\"paths\">Paths</h2><details><summary>", to);
  text_count(to, merged);
  (void)fprintf(to,
                " paths were taken%s</summary><div class=\"wide\"><table><tr><th>variant</th><th>path</th>"
                "<th class=\"n\">cases</th></tr>",
                merged > PATHS_SHOWN ? ", the first 400 of them here" : "");
  for (int64_t i = 0; i < merged && i < PATHS_SHOWN; ++i) {
    char name[256];
    const results_group *group = &g->list[list[i].group];
    (void)snprintf(name, sizeof name, "%s/%s on %s", group->op, group->variant, group->device);
    (void)fputs("<tr>", to);
    html_cell(to, NULL, name);
    (void)fputs("<td><code>", to);
    text_xml(to, list[i].path);
    (void)fputs("</code></td>", to);
    html_number_cell(to, list[i].count);
    (void)fputs("</tr>", to);
  }
  (void)fputs("</table></div></details>", to);
  free(list);
}
