/* suggest.c: finds the word that a wrong one was most likely meant to be. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "conformance/text/text.h"
#include "core/registry.h"

/* Returns the first word of a list that begins with `word`, if that has three letters; NULL: none. */
static const char *beginning(const char *word, const char *list, char *buffer, size_t size) {
  const size_t length = strlen(word);
  for (const char *at = list; length >= 3 && *at != '\0';) {
    at += strspn(at, ", ");
    const size_t n = strcspn(at, ", ");
    if (n > length && n < size && strncmp(at, word, length) == 0) {
      (void)snprintf(buffer, size, "%.*s", (int)n, at);
      return buffer;
    }
    at += n;
  }
  return NULL;
}

const char *cli_did_you_mean(const char *word, const char *list, char text[CLI_NEAR]) {
  char near[120];
  const char *guess = beginning(word, list, near, sizeof near);
  if (guess == NULL) guess = word_nearest(word, list, near, sizeof near);
  (void)snprintf(text, CLI_NEAR, "%s%s%s", guess != NULL ? " (did you mean '" : "", guess != NULL ? guess : "",
                 guess != NULL ? "'?)" : "");
  return text;
}

assay_status cli_unknown_op(const char *what, const char *word, assay_error *error) {
  char known[1200], near[CLI_NEAR];
  case_op_list(known, sizeof known);
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found operator '%.60s'%s, allowed: %s", what, word,
                    cli_did_you_mean(word, known, near), known);
}

assay_status cli_unknown_variant(const char *what, const char *op, const char *word, const char *device,
                                 assay_error *error) {
  char known[1024] = "", near[CLI_NEAR];
  for (int32_t v = 0; v < assay_variant_count(); ++v)
    if (strcmp(assay_variant_at(v)->op, op) == 0 && strcmp(assay_variant_at(v)->device, device) == 0)
      (void)snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", known[0] != '\0' ? ", " : "",
                     assay_variant_at(v)->name);
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %s variant '%.60s'%s, allowed on %s: %s", what, op, word,
                    cli_did_you_mean(word, known, near), device, known[0] != '\0' ? known : "none");
}

assay_status cli_case_parse(const char *descriptor, assay_case *made, assay_error *error) {
  char op[64];
  (void)snprintf(op, sizeof op, "%.*s", (int)strcspn(descriptor, " "), descriptor);
  if (assay_op_find(op) == NULL && strchr(op, '=') == NULL) return cli_unknown_op("descriptor", op, error);
  return case_parse(descriptor, made, error);
}

/* ---- suites ------------------------------------------------------------------------------------------ */

/* Adds the names of the suites of a folder, with `end` or without, to a list. */
static void add_suites(const char *folder, bool end, char *list, size_t size) {
  DIR *open = opendir(folder);
  if (open == NULL) return;
  for (struct dirent *e = readdir(open); e != NULL; e = readdir(open)) {
    const char *dot = strrchr(e->d_name, '.');
    const size_t used = strlen(list);
    if (dot == NULL || strcmp(dot, ".yaml") != 0 || used + strlen(e->d_name) + 4 > size) continue;
    (void)snprintf(list + used, size - used, "%s%.*s", used > 0 ? ", " : "",
                   (int)(end ? strlen(e->d_name) : (size_t)(dot - e->d_name)), e->d_name);
  }
  (void)closedir(open);
}

/* Refuses a path that is no file or folder. Its last part may be near to the name of a suite, there or among the
 * suites of this program. */
static assay_status no_suite(const char *word, const char *more, assay_error *error) {
  static char list[8192];
  char near[CLI_NEAR] = "", folder[3000];
  const char *slash = strrchr(word, '/'), *name = slash != NULL ? slash + 1 : word;
  if (slash != NULL || strstr(word, ".yaml") != NULL) {
    char guess[120];
    (void)snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - word) + 1 : 0, word);
    list[0] = '\0';
    add_suites(folder[0] != '\0' ? folder : ".", true, list, sizeof list);
    if (word_nearest(name, list, guess, sizeof guess) != NULL)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "suite: found '%.500s' (did you mean '%.500s%s'?), allowed: a file, a folder, the name of a "
                        "suite",
                        word, folder, guess);
  }
  (void)snprintf(list, sizeof list, "%s", more);
  add_suites(cli_suites_dir(), false, list, sizeof list);
  char plain[200];
  (void)snprintf(plain, sizeof plain, "%.*s", (int)strcspn(name, "."), name);
  return assay_fail(error, ASSAY_ERR_INPUT, "suite: found '%.500s'%s, allowed: a file, a folder, the name of a suite",
                    word, cli_did_you_mean(plain, list, near));
}

assay_status cli_suite_path(const char *word, const char *more, char *path, size_t size, assay_error *error) {
  struct stat about;
  (void)snprintf(path, size, "%s", word);
  if (stat(path, &about) == 0) return ASSAY_OK;
  if (strchr(word, '/') == NULL) {
    (void)snprintf(path, size, "%s/%s.yaml", cli_suites_dir(), word);
    if (stat(path, &about) == 0) return ASSAY_OK;
  }
  return no_suite(word, more, error);
}

assay_status cli_suite_words(cli_list *words, int32_t first, assay_error *error) {
  char path[4096];
  assay_status status = ASSAY_OK;
  for (int32_t i = first; i < words->count && status == ASSAY_OK; ++i) {
    status = cli_suite_path(words->item[i], "", path, sizeof path, error);
    char *kept = status == ASSAY_OK ? cli_keep(strlen(path) + 1) : NULL;
    if (kept != NULL)
      words->item[i] = strcpy(kept, path);
    else if (status == ASSAY_OK)
      status = assay_fail(error, ASSAY_ERR_MEMORY, "suite: out of memory");
  }
  return status;
}

/* ---- cases that a filter did not find ---------------------------------------------------------------- */

/* Returns the least number of changes that make `word` a part of `text`. */
static size_t part_distance(const char *word, const char *text) {
  enum { LONGEST = 256 };
  size_t row[LONGEST + 1] = {0};
  const size_t m = strnlen(text, LONGEST);
  for (size_t i = 1; word[i - 1] != '\0'; ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= m; ++j) {
      size_t best = diagonal + (word[i - 1] != text[j - 1]);
      diagonal = row[j];
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      row[j] = best;
    }
  }
  size_t least = row[0];
  for (size_t j = 1; j <= m; ++j)
    if (row[j] < least) least = row[j];
  return least;
}

void cli_nearest_note(cli_nearest *near, const char *word, const char *id) {
  const size_t distance = part_distance(word, id);
  if (near->id[0] != '\0' && distance >= near->distance) return;
  near->distance = distance;
  (void)snprintf(near->id, sizeof near->id, "%s", id);
}

static bool has_section(const cli_options *options, const char *id) {
  char part[24];
  (void)snprintf(part, sizeof part, "/%s/", options->section != NULL ? options->section : "");
  return options->section == NULL || strstr(id, part) != NULL;
}

/* Does a case of the section have the filter's text? If not, the nearest one is noted. */
static bool filter_matches(const cli_options *options, const char *filter, cli_case_name id, const void *context,
                           cli_nearest *near) {
  const char *name = NULL;
  for (int64_t i = 0; (name = id(context, i)) != NULL; ++i) {
    if (!has_section(options, name)) continue;
    if (strstr(name, filter) != NULL) return true;
    cli_nearest_note(near, filter, name);
  }
  return false;
}

void cli_say_no_case(const cli_options *options, cli_case_name id, const void *context) {
  const char *name = NULL;
  int64_t in_section = 0;
  for (int64_t i = 0; (name = id(context, i)) != NULL; ++i)
    in_section += has_section(options, name);
  if (options->section != NULL && in_section == 0) {
    (void)fprintf(stderr, "assay: --section: no case of section '%s' in these suites\n", text_shown(options->section));
    return;
  }
  for (int32_t f = 0; f < options->filters.count; ++f) {
    cli_nearest near = {"", 0};
    if (filter_matches(options, options->filters.item[f], id, context, &near)) continue;
    (void)fprintf(stderr, "assay: --filter: no case matches '%s'%s%s%s%s%s\n", text_shown(options->filters.item[f]),
                  options->section != NULL ? " in section " : "",
                  options->section != NULL ? text_shown(options->section) : "",
                  near.id[0] != '\0' ? "; the nearest is '" : "", text_shown(near.id), near.id[0] != '\0' ? "'" : "");
    return;
  }
  (void)fprintf(stderr, "assay: --filter: no case that runs here matches all of this:");
  for (int32_t f = 0; f < options->filters.count; ++f)
    (void)fprintf(stderr, " '%s'", text_shown(options->filters.item[f]));
  if (options->section != NULL) (void)fprintf(stderr, " in section %s", text_shown(options->section));
  (void)fputc('\n', stderr);
}
