/* list.c: assay list. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choose.h"
#include "conformance/suite/suite.h"
#include "conformance/text/text.h"
#include "conformance/trial/trial.h"
#include "conformance/models/models.h"
#include "core/registry.h"

const char *cli_suites_dir(void) {
  return folder_of_suites();
}

/* Tells whether a row of this operator is asked for: no operator is named, or this one. */
static bool op_named(const cli_list *words, const char *op) {
  for (int32_t i = 1; i < words->count; ++i)
    if (strcmp(words->item[i], op) == 0) return true;
  return words->count < 2;
}

static void list_variants(const cli_list *words) {
  printf("%-20s %-24s %-5s %-7s %s\n", "operator", "variant", "on", "arch",
         "claims, along the operator's axes (list ops)");
  for (int32_t i = 0; i < assay_variant_count(); ++i) {
    const assay_variant *v = assay_variant_at(i);
    if (!op_named(words, v->op)) continue;
    printf("%-20s %-24s %-5s %-7s %s\n", text_shown(v->op), text_shown(v->name), text_shown(v->device),
           text_shown(v->arch != NULL ? v->arch : "any"), text_shown(v->claims));
    printf("    %s%s%s\n", text_shown(v->why != NULL ? v->why : ""),
           strcmp(assay_variant_origin(i), "built-in") != 0 ? " from " : "",
           strcmp(assay_variant_origin(i), "built-in") != 0 ? text_shown(assay_variant_origin(i)) : "");
  }
}

static int list_cases(const cli_options *options) {
  int code = EXIT_GOOD;
  assay_error error = {""};
  case_list list = {NULL, 0};
  char *line = malloc(CASE_MAX_LINE);
  assay_status status = line != NULL ? ASSAY_OK : assay_fail(&error, ASSAY_ERR_MEMORY, "out of memory");
  if (status == ASSAY_OK && options->words.count < 2)
    status = expand_suite(cli_suites_dir(), options->seed, &list, &error);
  for (int32_t w = 1; w < options->words.count && status == ASSAY_OK; ++w)
    status = expand_suite(options->words.item[w], options->seed, &list, &error);
  int64_t printed = 0;
  for (int64_t i = 0; i < list.count && status == ASSAY_OK; ++i) {
    char id[192];
    const unsigned bit = strcmp(options->device, "cuda") == 0 ? CASE_ON_CUDA : CASE_ON_SIMT;
    if (options->device_given && (list.cases[i].devices & bit) == 0) continue;
    if (!cli_case_matches(options, &list.cases[i])) continue;
    ++printed;
    cli_case_id(&list.cases[i], id, sizeof id);
    status = case_print(&list.cases[i], line, CASE_MAX_LINE, &error);
    if (status == ASSAY_OK) printf("%s: %s\n", text_shown(id), text_shown(line));
  }
  if (status != ASSAY_OK)
    code = cli_leave(status, &error);
  else if (printed == 0)
    code = EXIT_NOTHING;
  if (status == ASSAY_OK && printed == 0) cli_say_none(options, &list);
  case_list_free(&list);
  free(line);
  return code;
}

static bool has_limits(const char *op) {
  for (int32_t i = 0; i < kappa_count; ++i)
    if (kappa_table[i].op != NULL && strcmp(kappa_table[i].op, op) == 0) return true;
  return false;
}

/* Prints rows such as "0 gate_attention 16-bit 8 2.1 1.69": index as in the JSONL's "rms", least elements, limit, clean
 * maximum. An operator without rows of its own has those of `any`. */
static void list_limits(const cli_list *words) {
  bool any = words->count < 2;
  for (int32_t i = 1; i < words->count; ++i)
    any = any || !has_limits(words->item[i]);
  printf("%2s %-20s %-6s %5s %6s %6s\n", "", "operator", "type", "from", "limit", "clean");
  for (int32_t i = 0; i < kappa_count; ++i)
    if (kappa_table[i].op != NULL ? op_named(words, kappa_table[i].op) : any)
      printf("%2d %-20s %-6s %5lld %6.2f %6.2f\n", i, kappa_table[i].op != NULL ? kappa_table[i].op : "any",
             kappa_table[i].f32 ? "f32" : "16-bit", (long long)kappa_table[i].elements, kappa_table[i].rms,
             kappa_table[i].clean);
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_suites(void) {
  int code = EXIT_GOOD;
  assay_error error = {""};
  char *names[256];
  int32_t count = 0;
  DIR *folder = opendir(cli_suites_dir());
  if (folder == NULL) {
    (void)assay_fail(&error, ASSAY_ERR_INPUT, "suites folder %s: cannot be opened", cli_suites_dir());
    return cli_leave(ASSAY_ERR_INPUT, &error);
  }
  for (struct dirent *e = readdir(folder); e != NULL && count < 256; e = readdir(folder)) {
    const char *dot = strrchr(e->d_name, '.');
    if (dot == NULL || strcmp(dot, ".yaml") != 0) continue;
    const size_t size = strlen(cli_suites_dir()) + strlen(e->d_name) + 2;
    names[count] = malloc(size);
    if (names[count] == NULL) break;
    (void)snprintf(names[count++], size, "%s/%s", cli_suites_dir(), e->d_name);
  }
  (void)closedir(folder);
  qsort(names, (size_t)count, sizeof *names, by_name);
  for (int32_t i = 0; i < count; ++i) {
    if (suite_is_models(names[i])) {
      if (code == EXIT_GOOD) printf("%-56s models, run alone\n", text_shown(names[i]));
      free(names[i]);
      continue;
    }
    case_list list = {NULL, 0};
    const assay_status status = code == EXIT_GOOD ? expand_suite(names[i], 1, &list, &error) : ASSAY_OK;
    if (status != ASSAY_OK) code = cli_leave(status, &error);
    int64_t sections[4] = {0, 0, 0, 0};
    for (int64_t c = 0; c < list.count; ++c)
      ++sections[list.cases[c].section];
    if (code == EXIT_GOOD)
      printf("%-56s check %lld, edge %lld, refuse %lld, bench %lld\n", text_shown(names[i]), (long long)sections[0],
             (long long)sections[1], (long long)sections[2], (long long)sections[3]);
    case_list_free(&list);
    free(names[i]);
  }
  return code == EXIT_GOOD && count == 0 ? EXIT_NOTHING : code;
}

static int list_ops(const cli_options *options) {
  assay_error error = {""};
  assay_status status = ASSAY_OK;
  const cli_list *words = &options->words;
  if (options->markdown && words->count > 1)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "list ops: found '%.60s' with --markdown, which takes no name",
                        words->item[1]);
  if (status != ASSAY_OK) return cli_leave(status, &error);
  for (int32_t i = 0; options->json && words->count == 1 && i < assay_op_count(); ++i)
    cli_list_op_json(assay_op_at(i));
  if (words->count == 1 && !options->json) cli_list_ops(options->markdown);
  for (int32_t i = 1; i < words->count; ++i)
    (options->json ? cli_list_op_json : cli_list_op)(assay_op_find(words->item[i]));
  return EXIT_GOOD;
}

static int refuse_topic(const char *what) {
  char near[CLI_NEAR];
  assay_error error = {""};
  (void)assay_fail(&error, ASSAY_ERR_INPUT,
                   "list: found '%s'%s, allowed: ops [NAME...], variants [NAME...], suites, limits [NAME...], laws, "
                   "cases [SUITE...]",
                   what, cli_did_you_mean(what, "ops, variants, suites, limits, laws, cases", near));
  return cli_leave(ASSAY_ERR_INPUT, &error);
}

int cli_list_command(int argc, char **argv) {
  assay_error error = {""};
  cli_options options;
  assay_status status = cli_parse(argc, argv, "list", &options, &error);
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  const cli_list *words = &options.words;
  const char *what = words->count > 0 ? words->item[0] : "(nothing)";
  const bool ops = strcmp(what, "ops") == 0, cases = strcmp(what, "cases") == 0;
  const bool variants = strcmp(what, "variants") == 0, limits = strcmp(what, "limits") == 0;
  if (status == ASSAY_OK && options.markdown && !ops)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "--markdown: found with list %s, allowed with list ops", what);
  if (status == ASSAY_OK && options.json && !ops)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "--json: found with list %s, allowed with list ops", what);
  if (status == ASSAY_OK && options.json && options.markdown)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "--json: found with --markdown, allowed without it");
  if (status == ASSAY_OK && options.device_given && !cases)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "--device: found with list %s, allowed with list cases", what);
  if (status == ASSAY_OK && !cases && (options.filters.count > 0 || options.section != NULL))
    status = assay_fail(&error, ASSAY_ERR_INPUT, "%s: found with list %s, allowed with list cases",
                        options.section != NULL ? "--section" : "--filter", what);
  for (int32_t i = 1; i < words->count && (ops || variants || limits) && status == ASSAY_OK; ++i) {
    char topic[32];
    (void)snprintf(topic, sizeof topic, "list %s", what);
    if (assay_op_find(words->item[i]) == NULL) status = cli_unknown_op(topic, words->item[i], &error);
  }
  if (status == ASSAY_OK && cases) status = cli_suite_words(&options.words, 1, &error);
  if (status != ASSAY_OK) return cli_leave(status, &error);
  if (ops) return list_ops(&options);
  if (cases) return list_cases(&options);
  if (variants) return list_variants(words), EXIT_GOOD;
  if (limits) return list_limits(words), EXIT_GOOD;
  if (words->count == 1) {
    if (strcmp(what, "suites") == 0) return list_suites();
    if (strcmp(what, "laws") == 0) return cli_list_laws(), EXIT_GOOD;
    return refuse_topic(what);
  }
  static const char *const alone[] = {"suites", "laws"};
  for (size_t i = 0; i < sizeof alone / sizeof *alone && words->count > 1; ++i)
    if (strcmp(what, alone[i]) == 0) {
      (void)assay_fail(&error, ASSAY_ERR_INPUT, "list %s: found '%s', allowed: no further word", what, words->item[1]);
      return cli_leave(ASSAY_ERR_INPUT, &error);
    }
  return refuse_topic(what);
}
