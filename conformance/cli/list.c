/* list.c: assay list ops | variants | suites | cases. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "conformance/expand.h"
#include "conformance/folders.h"
#include "conformance/kappa.h"
#include "conformance/model_suite.h"
#include "core/registry.h"

const char *cli_suites_dir(void) {
  return folder_of_suites();
}

static void list_variants(void) {
  printf("%-20s %-24s %-5s %-7s %s\n", "operator", "variant", "on", "arch",
         "claims, along the operator's axes (list ops)");
  for (int32_t i = 0; i < assay_variant_count(); ++i) {
    const assay_variant *v = assay_variant_at(i);
    printf("%-20s %-24s %-5s %-7s %s\n", v->op, v->name, v->device, v->arch != NULL ? v->arch : "any", v->claims);
    printf("    %s%s%s\n", v->why != NULL ? v->why : "",
           strcmp(assay_variant_origin(i), "built-in") != 0 ? " from " : "",
           strcmp(assay_variant_origin(i), "built-in") != 0 ? assay_variant_origin(i) : "");
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
  for (int64_t i = 0; i < list.count && status == ASSAY_OK; ++i) {
    char id[192];
    cli_case_id(&list.cases[i], id, sizeof id);
    status = case_print(&list.cases[i], line, CASE_MAX_LINE, &error);
    if (status == ASSAY_OK) printf("%s: %s\n", id, line);
  }
  if (status != ASSAY_OK)
    code = cli_leave(status, &error);
  else if (list.count == 0)
    code = EXIT_NOTHING;
  case_list_free(&list);
  free(line);
  return code;
}

/* "0 gate_attention 16-bit 8 2.1 1.69": index as in the JSONL's "rms", least elements, limit, clean maximum. */
static void list_limits(void) {
  for (int32_t i = 0; i < kappa_count; ++i)
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
    if (model_suite_is(names[i])) {
      if (code == EXIT_GOOD) printf("%-56s models, run alone\n", names[i]);
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
      printf("%-56s check %lld, edge %lld, refuse %lld, bench %lld\n", names[i], (long long)sections[0],
             (long long)sections[1], (long long)sections[2], (long long)sections[3]);
    case_list_free(&list);
    free(names[i]);
  }
  return code == EXIT_GOOD && count == 0 ? EXIT_NOTHING : code;
}

int cli_list_command(int argc, char **argv) {
  assay_error error = {""};
  cli_options options;
  assay_status status = cli_parse(argc, argv, "--plugin --seed --markdown", &options, &error);
  for (int32_t i = 0; i < options.plugins.count && status == ASSAY_OK; ++i)
    status = assay_plugin_load(options.plugins.item[i], &error);
  if (status != ASSAY_OK) return cli_leave(status, &error);
  const char *what = options.words.count > 0 ? options.words.item[0] : "(nothing)";
  const bool takes_more = strcmp(what, "cases") == 0;
  if (options.markdown && strcmp(what, "ops") != 0) {
    (void)assay_fail(&error, ASSAY_ERR_INPUT, "--markdown: found with list %s, allowed with list ops", what);
    return cli_leave(ASSAY_ERR_INPUT, &error);
  }
  if (options.words.count == 1 || takes_more) {
    if (strcmp(what, "ops") == 0) return cli_list_ops(options.markdown), EXIT_GOOD;
    if (strcmp(what, "variants") == 0) return list_variants(), EXIT_GOOD;
    if (strcmp(what, "suites") == 0) return list_suites();
    if (strcmp(what, "limits") == 0) return list_limits(), EXIT_GOOD;
    if (takes_more) return list_cases(&options);
  }
  (void)assay_fail(&error, ASSAY_ERR_INPUT,
                   "list: found '%s', allowed: ops, variants, suites, limits, cases [SUITE...]", what);
  return cli_leave(ASSAY_ERR_INPUT, &error);
}
