/* mutants.c: assay mutants: every kernel that is wrong on purpose against its suite, and the kill matrix; one for each
 * device. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "choose.h"
#include "conformance/kill/kill.h"
#include "conformance/report/report.h"
#include "conformance/text/text.h"

#ifndef ASSAY_MUTANTS_DIR
#define ASSAY_MUTANTS_DIR "."
#endif

/* A list must kill this share of the mutants that suites kill. */
enum { LEAST_SHARE = 95 };

typedef struct matrix {
  text_file jsonl;
  int64_t mutants, killed, controls, clean, absent, cases, compared;
  const char *list;  /* --list; NULL: none */
  const char *kills; /* --kills; NULL: none */
  const case_list *listed;
  int64_t suites_kill, list_kills, unlisted; /* unlisted: killed mutants of operators that the list has no case of */
  int64_t caught[ALLCLOSE_COUNT], unseen;    /* by each judge; killed here and caught by none of them */
  double deadline_s;                         /* 0: the usual one */
  bool bad;
} matrix;

static bool list_has(const case_list *listed, const char *op) {
  for (int64_t i = 0; i < listed->count; ++i)
    if (strcmp(listed->cases[i].op->name, op) == 0) return true;
  return false;
}

static void print_head(void) {
  printf("%-28s %-12s %-13s %6s %7s  ", "mutant", "catalogue", "killed by", "cases", "seconds");
  for (int32_t j = 0; j < ALLCLOSE_COUNT; ++j)
    printf(" %s", allclose_name(j));
  printf("\n");
}

static const char *outcome(const mutant *m, const mutant_result *r) {
  if (mutant_is_absent(m)) return "not shown";
  if (r->status != ASSAY_OK) return "NOT RUN";
  if (mutant_is_control(m)) return r->killed || r->listed ? "FALSE ALARM" : r->passes > 0 ? "pass" : "NOTHING RAN";
  return !r->killed ? "SURVIVES" : r->check;
}

static bool is_good(const mutant *m, const mutant_result *r) {
  if (mutant_is_absent(m)) return true;
  if (r->status != ASSAY_OK) return false;
  if (m->by_list) return r->listed;
  if (mutant_is_control(m)) return !r->killed && !r->listed && r->passes > 0;
  return r->killed && r->expected && (r->replayed || m->brief) && !r->seen_otherwise;
}

/* Returns the command that runs the kill again, which the caller frees; NULL if there is no kill, or no memory. */
static char *replay_line(const matrix *all, const mutant *m, const mutant_result *r) {
  if (r->replay[0] == '\0') return NULL;
  return replay_text(&(replay){.descriptor = r->replay,
                               .op = m->op,
                               .variant = r->variant,
                               .device = m->device,
                               .suite = m->suite,
                               .name = r->name,
                               .check = r->check,
                               .verdict = r->verdict,
                               .plugins = m->plugin,
                               .forced = "",
                               .deadline_s = all->deadline_s});
}

static void print_row(const mutant *m, const mutant_result *r, const char *line, bool listed) {
  if (mutant_is_absent(m)) {
    printf("%-28s %-12s %-13s %s\n", text_shown(m->id), text_shown(m->ids[0] != '\0' ? m->ids : "-"), outcome(m, r),
           text_shown(m->absent));
    return;
  }
  printf("%-28s %-12s %-13s %6lld %7.2f  ", text_shown(m->id), text_shown(m->ids[0] != '\0' ? m->ids : "-"),
         outcome(m, r), (long long)r->cases, r->seconds);
  for (int32_t j = 0; j < ALLCLOSE_COUNT; ++j)
    printf(" %-*s", (int)strlen(allclose_name(j)), !r->compared ? "?" : r->allclose.caught[j] ? "yes" : "no");
  printf("\n");
  if (listed && r->killed && !r->listed && !mutant_is_control(m)) printf("  no case of the list kills it\n");
  if (is_good(m, r)) return;
  printf("  %s\n", text_shown(m->why));
  if (r->status != ASSAY_OK || r->killed) printf("  %s\n", text_shown(r->message));
  if (r->killed && !r->expected && !mutant_is_control(m)) printf("  it was made for: %s\n", text_shown(m->expect));
  if (r->killed && r->expected && !r->replayed && !m->by_list && !m->brief)
    printf("  its replay is not decided by %s again\n", r->check);
  if (r->seen_otherwise) printf("  it was made for predicted alone, and is seen without it\n");
  if (line != NULL) printf("  %s\n", line);
}

static void json_list(FILE *to, const char *key, const char *list) {
  (void)fprintf(to, ",\"%s\":[", key);
  for (const char *at = list; *at != '\0';) {
    const size_t size = strcspn(at, ",");
    char word[128];
    (void)snprintf(word, sizeof word, "%.*s", (int)size, at);
    text_json(to, word);
    at += size + (at[size] == ',');
    if (*at != '\0') (void)fputc(',', to);
  }
  (void)fputc(']', to);
}

static void json_text(FILE *to, const char *key, const char *value) {
  (void)fprintf(to, ",\"%s\":", key);
  text_json(to, value);
}

static void json_allclose(FILE *to, const bool *caught, const int64_t *count) {
  (void)fputs(",\"allclose\":{", to);
  for (int32_t j = 0; j < ALLCLOSE_COUNT; ++j) {
    (void)fprintf(to, "%s\"%s\":", j > 0 ? "," : "", allclose_name(j));
    if (count != NULL)
      (void)fprintf(to, "%lld", (long long)count[j]);
    else
      (void)fputs(caught[j] ? "true" : "false", to);
  }
  (void)fputc('}', to);
}

/* `listed`: a list was tried. */
static void write_row(FILE *to, const mutant *m, const mutant_result *r, const char *line, bool listed) {
  (void)fputs("{\"mutant\":", to);
  text_json(to, m->id);
  json_text(to, "op", m->op);
  json_text(to, "device", m->device);
  if (mutant_is_absent(m)) json_text(to, "not_shown", m->absent);
  json_list(to, "variant", m->variants);
  json_list(to, "ids", m->ids);
  json_text(to, "why", m->why);
  (void)fprintf(to, ",\"control\":%s,\"killed\":%s,\"good\":%s", mutant_is_control(m) ? "true" : "false",
                r->killed ? "true" : "false", is_good(m, r) ? "true" : "false");
  if (listed) (void)fprintf(to, ",\"listed\":%s", r->listed ? "true" : "false");
  json_text(to, "check", r->check);
  json_list(to, "expected", m->expect);
  json_text(to, "case", r->name);
  (void)fprintf(to, ",\"cases\":%lld,\"deaths\":%lld,\"seconds\":%.3f", (long long)r->cases, (long long)r->deaths,
                r->seconds);
  json_text(to, "message", r->message);
  json_text(to, "replay", line != NULL ? line : "");
  if (r->compared) json_allclose(to, r->allclose.caught, NULL);
  (void)fputs("}\n", to);
}

static void on_done(void *context, int32_t index, const mutant *m, const mutant_result *r) {
  matrix *all = context;
  const bool good = is_good(m, r), control = mutant_is_control(m);
  (void)index;
  all->bad = all->bad || !good;
  if (mutant_is_absent(m)) {
    ++all->absent;
  } else {
    *(control ? &all->controls : &all->mutants) += 1;
    *(control ? &all->clean : &all->killed) += good;
  }
  all->cases += r->cases;
  if (all->list != NULL && !control && r->killed && !list_has(all->listed, m->op)) {
    ++all->unlisted;
  } else if (all->list != NULL && !control && r->killed) {
    ++all->suites_kill;
    all->list_kills += r->listed;
  }
  if (!control && r->compared) {
    bool any = false;
    ++all->compared;
    for (int32_t j = 0; j < ALLCLOSE_COUNT; ++j) {
      all->caught[j] += r->allclose.caught[j];
      any = any || r->allclose.caught[j];
    }
    all->unseen += r->killed && !any;
  }
  char *line = replay_line(all, m, r);
  print_row(m, r, line, all->list != NULL);
  (void)fflush(stdout);
  if (all->jsonl.stream != NULL) write_row(all->jsonl.stream, m, r, line, all->list != NULL);
  free(line);
}

static void print_sum(const matrix *all, FILE *jsonl) {
  printf("mutants: %lld of %lld killed by the check they were made for, %lld of %lld controls pass, %lld cases;"
         " %lld not shown here; plain allclose, asked of %lld, catches",
         (long long)all->killed, (long long)all->mutants, (long long)all->clean, (long long)all->controls,
         (long long)all->cases, (long long)all->absent, (long long)all->compared);
  for (int32_t j = 0; j < ALLCLOSE_COUNT; ++j)
    printf("%s %s %lld", j > 0 ? "," : "", allclose_name(j), (long long)all->caught[j]);
  printf("; %lld are caught by none of these\n", (long long)all->unseen);
  if (jsonl == NULL) return;
  (void)fprintf(jsonl, "{\"summary\":\"mutants\",\"mutants\":%lld,\"killed\":%lld,\"controls\":%lld,\"clean\":%lld",
                (long long)all->mutants, (long long)all->killed, (long long)all->controls, (long long)all->clean);
  (void)fprintf(jsonl, ",\"not_shown\":%lld,\"cases\":%lld,\"compared\":%lld,\"caught_by_none\":%lld",
                (long long)all->absent, (long long)all->cases, (long long)all->compared, (long long)all->unseen);
  json_allclose(jsonl, NULL, all->caught);
  (void)fputs("}\n", jsonl);
}

/* Prints the power of the list: how many of the mutants that suites kill its cases kill. A list is frozen, so mutants
 * of operators that came later are counted apart. Returns false where the share is too small and more than one is
 * missed. It returns false as well where the list has no case of any mutant's operator. */
static bool print_list(const matrix *all, FILE *jsonl) {
  const double share = all->suites_kill > 0 ? 100.0 * (double)all->list_kills / (double)all->suites_kill : 0;
  printf("list %s: %lld cases kill %lld of the %lld mutants that suites kill (%.1f %%, at least %d %%)",
         text_shown(all->list), (long long)all->listed->count, (long long)all->list_kills, (long long)all->suites_kill,
         share, LEAST_SHARE);
  printf("; it has no case of the operators of %lld more\n", (long long)all->unlisted);
  if (jsonl != NULL)
    (void)fprintf(jsonl, "{\"summary\":\"list\",\"cases\":%lld,\"kills\":%lld,\"of\":%lld,\"unlisted\":%lld}\n",
                  (long long)all->listed->count, (long long)all->list_kills, (long long)all->suites_kill,
                  (long long)all->unlisted);
  if (all->suites_kill == 0 && all->unlisted > 0) return false;           /* nothing was asked */
  return share >= LEAST_SHARE || all->suites_kill - all->list_kills <= 1; /* a sample is small */
}

/* Prints how many of the mutants that a file says the list kills it has killed. Each of them must die. */
static void print_kills(const matrix *all, FILE *jsonl) {
  printf("list %s: %lld cases kill %lld of the %lld mutants that %s names here, all of them must die\n",
         text_shown(all->list), (long long)all->listed->count, (long long)all->killed, (long long)all->mutants,
         text_shown(all->kills));
  if (jsonl != NULL)
    (void)fprintf(jsonl, "{\"summary\":\"kills\",\"cases\":%lld,\"kills\":%lld,\"of\":%lld}\n",
                  (long long)all->listed->count, (long long)all->killed, (long long)all->mutants);
}

static assay_status choose(const cli_options *options, const mutant_list *list, bool *chosen, assay_error *error) {
  int32_t count = 0;
  for (int32_t i = 0; i < list->count; ++i) {
    mutant *m = &list->items[i];
    m->every = options->controls;
    m->thin = options->thin;
    m->brief = options->again > 1 && i % options->again != 0;
    chosen[i] = options->shards == 0 || i % options->shards == options->shard - 1;
    if (options->kills != NULL && !m->by_list) chosen[i] = false;
    for (int32_t f = 0; f < options->filters.count; ++f)
      if (strstr(m->id, options->filters.item[f]) == NULL && !mutants_list_has(m->ids, options->filters.item[f]))
        chosen[i] = false;
    count += chosen[i];
  }
  if (count > 0) return ASSAY_OK;
  if (options->filters.count == 0)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "--shard, --kills: no mutant has this place in the shards and is in the list");
  return assay_fail(error, ASSAY_ERR_INPUT,
                    "--filter: found '%.100s'%s: no mutant has this in its name or among its catalogue ids",
                    options->filters.item[0],
                    options->filters.count > 1 || options->shards > 0 || options->kills != NULL ? " and more" : "");
}

/* The manifest given, or that of this build for the device; all of it for one device, which is here. */
static assay_status read_manifest(const cli_options *options, mutant_list *list, assay_error *error) {
  char path[4096];
  assay_device_info info;
  if (options->words.count > 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "mutants: takes at most one manifest, found %d words",
                      options->words.count);
  (void)snprintf(path, sizeof path, "%s/%s.tsv", ASSAY_MUTANTS_DIR, options->device_given ? options->device : "simt");
  const char *manifest = options->words.count > 0 ? options->words.item[0] : path;
  assay_status status = mutants_read(manifest, list, error);
  for (int32_t i = 1; i < list->count && status == ASSAY_OK; ++i)
    if (strcmp(list->items[i].device, list->items[0].device) != 0)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: names several devices, allowed one", manifest);
  if (status == ASSAY_OK && options->device_given && strcmp(list->items[0].device, options->device) != 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--device: found %s, the manifest's is %s", options->device,
                        list->items[0].device);
  if (status == ASSAY_OK && options->kills != NULL && options->list == NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--kills: found no --list, allowed: the list that kills them");
  if (status == ASSAY_OK && options->kills != NULL) status = mutants_read_kills(options->kills, list, error);
  return status == ASSAY_OK ? cli_probe(list->items[0].device, &info, error) : status;
}

int cli_mutants_command(int argc, char **argv) {
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  mutant_list list = {NULL, 0, NULL};
  bool *chosen = NULL;
  matrix all;
  memset(&all, 0, sizeof all);
  assay_status status = cli_parse(argc, argv, "mutants", &options, &error);
  if (status == ASSAY_OK) status = read_manifest(&options, &list, &error);
  if (status == ASSAY_OK) {
    chosen = calloc((size_t)list.count, sizeof *chosen);
    status = chosen != NULL ? choose(&options, &list, chosen, &error)
                            : assay_fail(&error, ASSAY_ERR_MEMORY, "mutants: out of memory");
  }
  case_list listed = {NULL, 0};
  char list_path[4096];
  all.list = options.list;
  all.kills = options.kills;
  if (status == ASSAY_OK && all.list != NULL)
    status = cli_read_list(all.list, list_path, sizeof list_path, &listed, &error);
  all.listed = &listed;
  if (status == ASSAY_OK && options.jsonl != NULL) status = text_open(&all.jsonl, options.jsonl, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    goto done;
  }
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  const int32_t jobs = options.workers > 0 ? options.workers : cores > 0 ? (int32_t)cores : 1;
  print_head();
  (void)fflush(stdout);
  all.deadline_s = cli_own_deadline(&options);
  status = mutants_run_all(&list, chosen, cli_suites_dir(), all.list != NULL ? &listed : NULL, jobs, options.deadline_s,
                           on_done, &all, &error);
  if (status == ASSAY_OK && all.kills != NULL)
    print_kills(&all, all.jsonl.stream);
  else if (status == ASSAY_OK)
    print_sum(&all, all.jsonl.stream);
  if (status == ASSAY_OK && all.list != NULL && all.kills == NULL && !print_list(&all, all.jsonl.stream))
    all.bad = true;
  if (status == ASSAY_OK && all.jsonl.stream != NULL) status = text_close(&all.jsonl, &error);
  code = status != ASSAY_OK ? cli_leave(status, &error) : all.bad ? EXIT_BAD : EXIT_GOOD;
done:
  if (all.jsonl.stream != NULL) text_discard(&all.jsonl);
  free(chosen);
  case_list_free(&listed);
  mutants_free(&list);
  return code;
}
