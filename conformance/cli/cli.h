/* cli.h: parts that all commands share: parsed options, exit codes, and how an error leaves the program. */
#ifndef ASSAY_CONFORMANCE_CLI_H
#define ASSAY_CONFORMANCE_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/device.h"
#include "conformance/case/case.h"

enum { EXIT_GOOD = 0, EXIT_BAD = 1, EXIT_INPUT = 2, EXIT_NOTHING = 3, EXIT_UNEXPLAINED = 4, EXIT_NO_DEVICE = 77 };
enum { CLI_MAX_LIST = 64, CLI_MAX_MODELS = 4, CLI_MAX_SCALES = 16, CLI_NEAR = 160, CLI_DEADLINE_S = 120 };

/* Allocates memory that stays reachable until the process ends, and is never freed. Returns NULL if there is none. */
void *cli_keep(size_t size);

/* `item` grows as words come. Its memory is that of cli_keep. */
typedef struct cli_list {
  const char **item;
  int32_t count;
} cli_list;

typedef struct cli_options {
  cli_list words;    /* words that are no options */
  cli_list plugins;  /* --plugin FILE */
  cli_list ffi;      /* --ffi FILE */
  cli_list binds;    /* --bind FILE: all of one library, or one for each */
  cli_list variants; /* --variant op=name */
  cli_list filters;  /* --filter TEXT: all must occur in suite/section/name */
  cli_list where;    /* --where key=value */
  cli_list models;   /* --model NAME of assay bench */
  cli_list forms;    /* --form name=on */
  const char *device, *section, *jsonl, *junit;
  bool device_given, reference, in_process, seed_given, thin, markdown, json, peers, chosen, eager, paths, invariant;
  bool write_expected; /* --expected of assay judge */
  double tolerance[2]; /* --tolerance: relative, absolute; 0, 0: not given */
  bool all;            /* --all: every failure is printed */
  int64_t maxfail;     /* --maxfail; 0: not given */
  int32_t controls;    /* --controls; 0: not given */
  int32_t again;       /* --again; 0: not given */
  int color;           /* --color auto|always|never: 0, 1, 2 */
  uint64_t seed;
  int32_t workers, threads;
  double deadline_s, budget_s; /* --budget; 0: not given */
  int64_t cases;               /* --cases; 0: not given */
  const char *ledger, *regressions, *baseline;
  const char *over;        /* --over m=LEAST..MOST */
  const char *only;        /* --only FILE */
  const char *list;        /* --list NAME */
  const char *kills;       /* --kills FILE */
  int32_t shard, shards;   /* --shard i/n; 0, 0: not given */
  int power;               /* --power off|sample|all, a power_mode; -1: not given */
  const char *shrink;      /* --shrink DIR */
  const char *ffi_runtime; /* --ffi-runtime FILE */
  double shrink_budget_s;  /* --shrink-budget S, for each failure */
  const char *resume, *html, *output, *dump, *dtype, *shape;
  const char *model, *ids, *ids_file, *sampler, *mode, *weights, *expected;
  int64_t steps, chunk, short_tail, part, requests, blocks, batch, tokens, length; /* 0: not given */
  double scale[CLI_MAX_SCALES], seconds;                                           /* 0: not given */
  int32_t scales;
} cli_options;

/* Reads what follows a command's name. `command`: a name of the table of commands, which says what is allowed. An
 * unknown option, an abbreviated one, a missing or malformed value gives ASSAY_ERR_INPUT. --help prints the command's
 * help and ends the program. */
assay_status cli_parse(int argc, char **argv, const char *command, cli_options *options, assay_error *error);
/* Writes " (did you mean 'X'?)" into `text`, X the word of `list` ("a, b, c") nearest to `word`; "" where none is near.
 * Returns `text`. */
const char *cli_did_you_mean(const char *word, const char *list, char text[CLI_NEAR]);
/* Refuse an operator, or a variant of one, with what is nearest and what is allowed; return ASSAY_ERR_INPUT. `what`
 * begins the message. */
assay_status cli_unknown_op(const char *what, const char *word, assay_error *error);
assay_status cli_unknown_variant(const char *what, const char *op, const char *word, const char *device,
                                 assay_error *error);
/* As case_parse; an operator that is unknown is refused with the nearest one. */
assay_status cli_case_parse(const char *descriptor, assay_case *made, assay_error *error);
/* Writes the path of a suite or of a folder of suites. A word that is a path stands for itself. Any other word is the
 * name of a suite; an operator's own suite has the operator's name. Returns ASSAY_ERR_INPUT, with the nearest name, if
 * there is neither. `more` lists further words that the caller takes.
 */
assay_status cli_suite_path(const char *word, const char *more, char *path, size_t size, assay_error *error);
/* Replaces the words from `first` on by such paths, which stay as long as the process. */
assay_status cli_suite_words(cli_list *words, int32_t first, assay_error *error);
/* The case that is nearest to a filter. Zero-initialised. */
typedef struct cli_nearest {
  char id[256];
  size_t distance;
} cli_nearest;
void cli_nearest_note(cli_nearest *near, const char *word, const char *id);
/* Says on standard error that no case matches the section and the filters, and which case is nearest. `id` gives the
 * suite/section/name of case `index`, NULL after the last. */
typedef const char *(*cli_case_name)(const void *context, int64_t index);
void cli_say_no_case(const cli_options *options, cli_case_name id, const void *context);
/* As cli_leave after a run: 130 or 143 if it was interrupted by SIGINT or SIGTERM. */
int cli_leave_run(assay_status status, const assay_error *error);
/* Prints "assay: <text>" to stderr. Returns EXIT_INPUT, EXIT_NO_DEVICE, or EXIT_BAD for other failures. */
int cli_leave(assay_status status, const assay_error *error);
/* Returns the exit status, or EXIT_BAD instead of EXIT_GOOD where standard output could not be written: it may be a
 * file on a full disk. The first such call says so. */
int cli_written(int code);
/* Refuses a device that this build lacks, with ASSAY_ERR_NO_DEVICE. */
assay_status cli_check_device(const char *name, assay_error *error);
/* Asks the device for its facts in a child process, so that this process stays free to fork. */
assay_status cli_probe(const char *name, assay_device_info *info, assay_error *error);
/* "gate_attention/check/decode_types" */
void cli_case_id(const assay_case *one, char *text, size_t size);
const char *cli_section_name(case_section section);
const char *cli_suites_dir(void);
/* Check --plugin, --ffi, --variant and the paths of reports before anything runs; return ASSAY_ERR_INPUT on a bad one.
 */
assay_status cli_load_plugins(const cli_options *options, assay_error *error);
assay_status cli_check_variants(const cli_options *options, assay_error *error);
/* Refuses a variant by its name, and by the field of its contract that is not believed. */
assay_status cli_check_contract(const assay_variant *v, assay_error *error);
assay_status cli_check_writable(const char *option, const char *path, assay_error *error);
/* Are verdicts printed in colours? By --color; auto: on a terminal, unless NO_COLOR is set or TERM is dumb. */
bool cli_colour(const cli_options *options);
/* The deadline where it is not the usual one, which replay takes anyway; else 0. */
double cli_own_deadline(const cli_options *options);
bool cli_variant_chosen(const cli_options *options, const assay_variant *v);

int cli_list_command(int argc, char **argv);
/* Print every operator by its contract (`markdown`: as docs/operators.md), and one operator in full. */
void cli_list_ops(bool markdown);
/* Prints an operator as one line of JSON: its dimensions, arguments, parameters and axes. */
void cli_list_op_json(const assay_op *op);
void cli_list_op(const assay_op *op);
/* Keeps the cases whose descriptors, without variant and device, are lines of the file. Refuses a file that names none
 * of them. */
assay_status cli_keep_only(const char *path, assay_case *cases, int64_t *count, assay_error *error);
/* Prints the table of laws. */
void cli_list_laws(void);
int cli_run_command(int argc, char **argv);
int cli_contract_command(int argc, char **argv);
int cli_statement_command(int argc, char **argv);
int cli_verify_command(int argc, char **argv);
int cli_dump_command(int argc, char **argv);
/* Runs suites of models. */
int cli_models_command(const cli_options *options);
int cli_replay_command(int argc, char **argv);
int cli_bench_command(int argc, char **argv);
int cli_bench_scenario(int argc, char **argv);
int cli_bench_online(int argc, char **argv);
int cli_fuzz_command(int argc, char **argv);
int cli_shrink_command(int argc, char **argv);
int cli_diff_command(int argc, char **argv);
int cli_report_command(int argc, char **argv);
/* Writes the results of one file as a page. */
assay_status cli_write_page(const char *jsonl, const char *html, assay_error *error);
int cli_compare_command(int argc, char **argv);
int cli_judge_command(int argc, char **argv);
int cli_explain_command(int argc, char **argv);
int cli_generate_command(int argc, char **argv);
int cli_truth_command(int argc, char **argv);
int cli_truth_onnx(int argc, char **argv);
int cli_truth_tensors(int argc, char **argv);
int cli_truth_llama2c(int argc, char **argv);
int cli_truth_hf(int argc, char **argv);
int cli_mutants_command(int argc, char **argv);

#endif
