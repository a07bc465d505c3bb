/* cli.h: what the commands share: parsed options, exit codes, and how an error leaves the program. */
#ifndef ASSAY_CONFORMANCE_CLI_H
#define ASSAY_CONFORMANCE_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/device.h"
#include "conformance/case.h"

enum { EXIT_GOOD = 0, EXIT_BAD = 1, EXIT_INPUT = 2, EXIT_NOTHING = 3, EXIT_NO_DEVICE = 77 };
enum { CLI_MAX_LIST = 64 };

typedef struct cli_list {
  const char *item[CLI_MAX_LIST];
  int32_t count;
} cli_list;

typedef struct cli_options {
  cli_list words;    /* what is no option */
  cli_list plugins;  /* --plugin SO */
  cli_list variants; /* --variant op=name */
  cli_list filters;  /* --filter TEXT: all must occur in suite/section/name */
  cli_list where;    /* --where key=value */
  const char *device, *section, *jsonl, *junit;
  bool device_given, in_process, seed_given, markdown, peers;
  uint64_t seed;
  int32_t workers, threads;
  double deadline_s, budget_s; /* --budget; 0: not given */
  int64_t cases;               /* --cases; 0: not given */
  const char *ledger, *regressions, *baseline;
  int32_t shard, shards;  /* --shard i/n; 0, 0: not given */
  int power;              /* --power off|sample|all, a power_mode; -1: not given */
  const char *shrink;     /* --shrink DIR */
  double shrink_budget_s; /* --shrink-budget S, for each failure */
  const char *resume, *html, *output, *dump, *dtype, *shape;
} cli_options;

/* Strict: unknown options, missing or malformed values are refused, `allowed` names what the command takes. */
assay_status cli_parse(int argc, char **argv, const char *allowed, cli_options *options, assay_error *error);
/* Prints "assay: <text>" to stderr; gives EXIT_INPUT (or EXIT_NO_DEVICE, EXIT_BAD for other failures). */
int cli_leave(assay_status status, const assay_error *error);
/* Facts about the device, asked in a child process so that this one stays free to fork. */
assay_status cli_probe(const char *name, assay_device_info *info, assay_error *error);
/* "gate_attention/check/decode_types" */
void cli_case_id(const assay_case *one, char *text, size_t size);
const char *cli_section_name(case_section section);
const char *cli_suites_dir(void);
/* run.c: what --plugin, --variant, and the paths of reports say, checked before anything runs. */
assay_status cli_load_plugins(const cli_options *options, assay_error *error);
assay_status cli_check_variants(const cli_options *options, assay_error *error);
assay_status cli_check_writable(const char *option, const char *path, assay_error *error);
bool cli_variant_chosen(const cli_options *options, const assay_variant *v);

int cli_list_command(int argc, char **argv);
/* list_ops.c: what the contracts say, for people; `markdown`: docs/operators.md. */
void cli_list_ops(bool markdown);
int cli_run_command(int argc, char **argv);
/* models.c: a run whose words are suites of models. */
int cli_models_command(const cli_options *options);
int cli_replay_command(int argc, char **argv);
int cli_bench_command(int argc, char **argv);
int cli_fuzz_command(int argc, char **argv);
int cli_shrink_command(int argc, char **argv);
int cli_diff_command(int argc, char **argv);
int cli_report_command(int argc, char **argv);
/* report.c: the results of one file as a page. */
assay_status cli_write_page(const char *jsonl, const char *html, assay_error *error);
int cli_compare_command(int argc, char **argv);
int cli_judge_command(int argc, char **argv);
int cli_generate_command(int argc, char **argv);
int cli_truth_command(int argc, char **argv);
int cli_mutants_command(int argc, char **argv);

#endif
