/* dump.c: assay dump: inputs and expectation of a case, without any variant. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "conformance/text/text.h"
#include "conformance/trial/trial.h"

/* Returns the descriptor in a line of assay list cases, which begins with suite/section/name. */
static const char *descriptor_of(const char *line) {
  const char *colon = strstr(line, ": "), *blank = strchr(line, ' ');
  return colon != NULL && blank == colon + 1 && memchr(line, '/', (size_t)(colon - line)) != NULL ? colon + 2 : line;
}

/* Writes the case's tensors and the expectation. The contract is the one that assay judge assumes by default. */
static assay_status write_case(const assay_case *one, assay_error *error) {
  static foreign_call usual;
  case_result result = {.verdict = VERDICT_PASS};
  assay_status status = foreign_begin(&usual, one->op->name, error);
  if (status != ASSAY_OK) return status;
  const assay_variant definition = {.struct_size = sizeof definition,
                                    .op = one->op->name,
                                    .name = "definition",
                                    .device = "ref",
                                    .contract = usual.contract};
  foreign_free(&usual);
  trial t = {.one = one, .variant = &definition};
  if (!trial_shape(&t, &result) || !trial_reference(&t, &result) || !trial_dump(&t, NULL, &result))
    status = assay_fail(error, ASSAY_ERR_INPUT, "dump: %s: %.1500s", result.check, result.message);
  for (int32_t o = 0; o < t.count && status == ASSAY_OK; ++o) {
    const char *name = one->op->args[t.output[o].arg].name;
    (void)printf("%s: %s.got.%s.npy\n", o == 0 ? "an engine writes" : "and", name,
                 npy_type_name((int)t.output[o].dtype));
  }
  trial_free(&t);
  return status;
}

int cli_dump_command(int argc, char **argv) {
  assay_error error = {""};
  cli_options options;
  assay_case one;
  memset(&one, 0, sizeof one);
  assay_status status = cli_parse(argc, argv, "dump", &options, &error);
  if (status == ASSAY_OK && (options.words.count < 1 || options.words.count > 2))
    status = assay_fail(&error, ASSAY_ERR_INPUT, "dump: needs a case in quotes, and at most a folder; found %d words",
                        options.words.count);
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  if (status == ASSAY_OK) status = cli_case_parse(descriptor_of(options.words.item[0]), &one, &error);
  if (status == ASSAY_OK && one.section == SECTION_REFUSE)
    status = assay_fail(&error, ASSAY_ERR_INPUT,
                        "dump: found a case of section refuse, which has no expectation, allowed: check, edge, bench");
  const char *folder = options.words.count > 1 ? options.words.item[1] : "dump";
  if (status == ASSAY_OK) status = trial_dump_to(folder, &error);
  if (status == ASSAY_OK) status = write_case(&one, &error);
  case_free(&one);
  if (status != ASSAY_OK) return cli_leave(status, &error);
  (void)printf("%s holds inputs, expectation and %s; then: assay judge %s\n", text_shown(folder), DUMP_MANIFEST,
               text_shown(folder));
  return cli_written(EXIT_GOOD);
}
