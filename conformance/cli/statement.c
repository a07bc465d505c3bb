/* statement.c: assay statement and assay verify: a run over a must-pass list as a file that others can check. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "choose.h"
#include "conformance/report/report.h"
#include "conformance/run/run.h"
#include "conformance/text/text.h"
#include "core/registry.h"

static const char usual_list[] = "mustpass-4";

typedef struct stating {
  report *out;
  statement made;
  const assay_variant *variant[STATEMENT_VARIANTS];
  int32_t variants;
  assay_status status;
  assay_error error;
} stating;

/* Returns the name of a list: the file's, without folder and ending. */
static const char *list_name(const char *path, char *name, size_t size) {
  const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
  const char *dot = strrchr(base, '.');
  (void)snprintf(name, size, "%.*s", (int)(dot != NULL ? dot - base : (ptrdiff_t)strlen(base)), base);
  return name;
}

static assay_status add_parts(const char *role, const cli_list *paths, statement_part *parts, int32_t *count,
                              assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < paths->count && status == ASSAY_OK; ++i) {
    if (*count == STATEMENT_PARTS)
      return assay_fail(error, ASSAY_ERR_INPUT, "statement: found more than %d files", STATEMENT_PARTS);
    status = statement_part_of(role, paths->item[i], &parts[*count], error);
    ++*count;
  }
  return status;
}

static assay_status given_parts(const cli_options *options, statement_part *parts, int32_t *count, assay_error *error) {
  assay_status status = add_parts("plugin", &options->plugins, parts, count, error);
  if (status == ASSAY_OK) status = add_parts("ffi", &options->ffi, parts, count, error);
  if (status == ASSAY_OK) status = add_parts("bind", &options->binds, parts, count, error);
  return status;
}

static void on_done(void *context, int64_t index, const assay_case *one, const case_result *result) {
  stating *s = context;
  int32_t number = 0;
  (void)index;
  report_add(s->out, one, result);
  while (number < s->variants &&
         (strcmp(s->variant[number]->op, one->op->name) != 0 || strcmp(s->variant[number]->name, one->variant) != 0))
    ++number;
  if (s->status == ASSAY_OK) s->status = statement_add(&s->made, one, number, result, &s->error);
}

/* Lists the variants that have a case. The order is that of the registry, as in cli_cross. */
static assay_status list_variants(stating *s, const cli_options *options, const assay_case *cases, int64_t count,
                                  assay_error *error) {
  for (int32_t v = 0; v < assay_variant_count(); ++v) {
    const assay_variant *variant = assay_variant_at(v);
    bool used = false;
    for (int64_t i = 0; i < count && !used; ++i)
      used = strcmp(cases[i].op->name, variant->op) == 0 && strcmp(cases[i].variant, variant->name) == 0;
    if (!used || !cli_variant_chosen(options, variant)) continue;
    if (s->variants == STATEMENT_VARIANTS)
      return assay_fail(error, ASSAY_ERR_INPUT, "statement: found more than %d variants, allowed: fewer by --variant",
                        STATEMENT_VARIANTS);
    s->variant[s->variants++] = variant;
  }
  return ASSAY_OK;
}

/* Keeps the cases of operators that --variant names: a statement is about the kernels of one engine. */
static void keep_named(const cli_options *options, assay_case *cases, int64_t *count) {
  int64_t kept = 0;
  for (int64_t i = 0; i < *count; ++i) {
    const size_t length = strlen(cases[i].op->name);
    bool named = options->variants.count == 0;
    for (int32_t v = 0; v < options->variants.count && !named; ++v)
      named = strncmp(options->variants.item[v], cases[i].op->name, length) == 0 &&
              options->variants.item[v][length] == '=';
    if (named) cases[kept++] = cases[i];
  }
  *count = kept;
}

static assay_status state(const cli_options *options, stating *s, const char *list_path, const case_list *list,
                          assay_case *cases, int64_t count, int *code, assay_error *error) {
  static statement_part parts[STATEMENT_PARTS];
  assay_device_info info;
  char name[128];
  int32_t part_count = 2;
  bool conforms = false;
  assay_status status = cli_probe(options->device, &info, error);
  if (status == ASSAY_OK) status = statement_part_of("program", "/proc/self/exe", &parts[0], error);
  parts[0].path = "assay";
  if (status == ASSAY_OK) status = statement_part_of("list", list_path, &parts[1], error);
  if (status == ASSAY_OK) status = given_parts(options, parts, &part_count, error);
  if (status == ASSAY_OK) status = list_variants(s, options, cases, count, error);
  if (status == ASSAY_OK)
    status = statement_open(&s->made, options->output, &info, options->device, list_name(list_path, name, sizeof name),
                            list->count, parts, part_count, s->variant, s->variants, error);
  const report_options choice = {.text = stdout,
                                 .colour = cli_colour(options),
                                 .device = options->device,
                                 .info = &info,
                                 .total = count,
                                 .deadline_s = cli_own_deadline(options)};
  if (status == ASSAY_OK) status = report_open(&choice, &s->out, error);
  if (status != ASSAY_OK) return status;
  power_set(POWER_OFF);
  const execute_options execution = {options->workers, options->deadline_s, false, options->threads};
  status = execute_cases(cases, count, &execution, on_done, s, error);
  if (status == ASSAY_OK && s->status != ASSAY_OK) status = assay_fail(error, s->status, "%s", s->error.text);
  if (status == ASSAY_OK) status = statement_close(&s->made, &conforms, error);
  if (status != ASSAY_OK) {
    report_abandon(s->out);
    return status;
  }
  *code = report_close(s->out, error);
  (void)printf("statement %s: %s\n", text_shown(options->output),
               conforms ? "the variants conform" : "the variants do not conform");
  if (!conforms && *code == EXIT_GOOD) *code = EXIT_BAD;
  return error->text[0] != '\0' ? ASSAY_ERR_IO : ASSAY_OK;
}

int cli_statement_command(int argc, char **argv) {
  static stating s;
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  case_list list = {NULL, 0};
  assay_case *cases = NULL;
  int64_t count = 0;
  char path[4096] = "";
  assay_status status = cli_parse(argc, argv, "statement", &options, &error);
  if (status == ASSAY_OK && options.words.count > 0)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "statement: found '%.200s', allowed: options", options.words.item[0]);
  if (status == ASSAY_OK && options.output == NULL)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "statement: needs -o FILE, found none");
  if (status == ASSAY_OK) status = cli_check_writable("-o", options.output, &error);
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  if (status == ASSAY_OK) status = cli_check_variants(&options, &error);
  if (status == ASSAY_OK)
    status = cli_read_list(options.list != NULL ? options.list : usual_list, path, sizeof path, &list, &error);
  if (status == ASSAY_OK) status = cli_cross(&options, &list, &cases, &count, &error);
  if (status == ASSAY_OK) keep_named(&options, cases, &count);
  if (status == ASSAY_OK && count == 0)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "statement: found no case of the list for these variants");
  if (status == ASSAY_OK) status = state(&options, &s, path, &list, cases, count, &code, &error);
  if (status != ASSAY_OK) {
    statement_discard(&s.made);
    code = cli_leave_run(status, &error);
  }
  free(cases);
  case_list_free(&list);
  return cli_written(code);
}

int cli_verify_command(int argc, char **argv) {
  static statement_part parts[STATEMENT_PARTS];
  assay_error error = {""};
  cli_options options;
  case_list list = {NULL, 0};
  statement_facts facts;
  statement_part of_list;
  char name[256] = "", path[4096] = "";
  int32_t count = 0;
  assay_status status = cli_parse(argc, argv, "verify", &options, &error);
  if (status == ASSAY_OK && options.words.count != 1)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "verify: needs one file, found %d", options.words.count);
  if (status == ASSAY_OK) status = statement_list(options.words.item[0], name, sizeof name, &error);
  if (status == ASSAY_OK && options.list == NULL && strchr(name, '/') != NULL)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "%s: list: found '%s', allowed a name", options.words.item[0], name);
  if (status == ASSAY_OK)
    status = cli_read_list(options.list != NULL ? options.list : name, path, sizeof path, &list, &error);
  if (status == ASSAY_OK) status = statement_part_of("list", path, &of_list, &error);
  if (status == ASSAY_OK) status = given_parts(&options, parts, &count, &error);
  if (status != ASSAY_OK) {
    case_list_free(&list);
    return cli_leave(status, &error);
  }
  status = statement_check(options.words.item[0], list.cases, list.count, of_list.hash, parts, count, &facts, &error);
  case_list_free(&list);
  if (status != ASSAY_OK) {
    (void)cli_leave(status, &error);
    return EXIT_BAD;
  }
  (void)printf("verified: %s, %lld results on %s, %lld PASS, %lld declined, %d of the given files; commit %s\n",
               text_shown(facts.list), (long long)facts.results, text_shown(facts.device_name), (long long)facts.passes,
               (long long)facts.declined, count, text_shown(facts.commit));
  (void)printf("%s\n", facts.conforms ? "the variants conform" : "the variants do not conform");
  return cli_written(facts.conforms ? EXIT_GOOD : EXIT_BAD);
}
