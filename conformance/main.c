/* main.c: the command line. Knows the order of things and nothing else. */
#include <stdio.h>
#include <string.h>

#include "builtin.h"
#include "cli/cli.h"

#ifndef ASSAY_VERSION
#define ASSAY_VERSION "0.1.0"
#endif

static const char usage[] =
    "assay: reference and conformance suite for LLM inference kernels\n"
    "\n"
    "  assay list ops | variants | suites | limits | cases [SUITE...]   [--plugin SO]\n"
    "  assay run SUITE...        judge every case of the suites (files or folders) with every variant\n"
    "      --device cuda|simt    where the variants run (simt)\n"
    "      --variant OP=NAME[,NAME]  only these variants of the operator; may be repeated; models: forced, "
    "docs/models.md\n"
    "      --filter TEXT         only cases whose suite/section/name contains TEXT; may be repeated\n"
    "      --section NAME        check, edge, refuse or bench\n"
    "      --seed N              of every draw (1)\n"
    "      --jsonl F, --junit F  results as files\n"
    "      --plugin SO           variants from outside; may be repeated\n"
    "      --workers N, --deadline S, --in-process\n"
    "      --power all|sample|off  planted errors that the judge must see: in every case (the usual), each in a\n"
    "                            quarter of the cases, none\n"
    "      --shard i/n           the i-th of n parts of the cases, for runs spread over hosts\n"
    "      --resume F            goes on where the run with --jsonl F was interrupted\n"
    "      --html F              a page (docs/campaigns.md); its data are the JSONL, or F.jsonl\n"
    "      --shrink DIR          the first failures made minimal, as suites in DIR; --shrink-budget S: seconds for "
    "each\n"
    "      --ledger FILE         failures that are expected of a variant, with their reasons\n"
    "  assay bench SUITE|OP...   section bench: judged, timed, judged again (docs/bench.md); tables, short, density: "
    "folders\n"
    "                            of bench/; --peers: other libraries in the same run\n"
    "  assay bench scenario [NAME...]   whole batches through the models; assay bench online TRACE...: recorded "
    "arrivals\n"
    "      --device cuda|simt|ref, --jsonl F, --baseline F, --budget S a figure (1s); others as for run\n"
    "  assay shrink 'DESCRIPTOR' [-o F.yaml] [--plugin SO] [--shrink-budget S]   a failing case made minimal\n"
    "  assay fuzz OP...          drawn cases: every boundary value, every pair of them, then at random\n"
    "      --budget 60s|5m|1h, --cases N, --seed N; past failures first: --regressions DIR (fixtures/regressions)\n"
    "      --where KEY=VALUE     draws of this value of a key alone; a key may come again with another value\n"
    "      --device, --variant, --plugin, --jsonl, --junit, --ledger, --workers, --deadline, --in-process as for run\n"
    "  assay replay 'DESCRIPTOR' [--in-process] [--plugin SO]   one case again, as printed with a failure\n"
    "      --dump DIR            its tensors, expectation and sigma as .npy files\n"
    "  assay mutants [MANIFEST]  every kernel that is wrong on purpose, and what kills it\n"
    "      --filter TEXT         its name contains TEXT, or TEXT is one of its catalogue ids; --jobs N, --jsonl F\n"
    "  assay report RUN.jsonl... [-o report.html] [--plugin SO]   a page, and one verdict over all files\n"
    "  assay compare A.jsonl B.jsonl    drifts of accuracy, new and fixed failures, by variant; of two benches: "
    "FASTER,\n"
    "                            SLOWER, SAME or AMBIGUOUS, row by row\n"
    "  assay judge DIR           tensors of another engine: DIR/manifest.json names operator, parameters, inputs, "
    "outputs;\n"
    "                            a folder from replay --dump is one (docs/truth.md)\n"
    "  assay truth onnx DIR      ONNX node cases (DIR/index.json, packed.bin) against the references\n"
    "  assay truth tensors DIR   recorded tensors: gpt-nano's forward pass, norms in safetensors; DIR or folders in "
    "it\n"
    "  assay truth llama2c MODEL GOLDEN.json [--device ref|simt|cuda]   recorded greedy ids and logits of a model\n";

static const char usage_models[] =
    "  assay generate --model F --ids 1,2,3 --steps N   ids that a forward pass gives (docs/models.md)\n"
    "      --model F             F.json: flat manifest; F.yaml: configuration with a seed; else a llama2.c checkpoint\n"
    "      --prompt-ids-file F   instead of --ids: a prompt a line, all in one batch\n"
    "      --device D            ref, simt or cuda, as far as built (ref); --chunk N: prompt tokens a step\n"
    "      --eager               simt, cuda: no graphs; --paths: which variants were called how often, on standard "
    "error\n"
    "      --short-tail N        simt, cuda: steps of up to N new tokens a request attend row by row, as decode does\n"
    "      --variant OP=NAME[,NAME]  forces variants of an operator: each call takes the first that takes it, none: an "
    "error;\n"
    "                            one that no call took: an error; may be repeated, and adds to the list\n"
    "      --form NAME=off|on|auto   fused operators, for A/B; on: an error where the model cannot have it, or no step "
    "is for it\n"
    "      --mode exact|mirror   ref: f64 throughout (the usual), or rounded where a device stores\n"
    "      --sampler S           "
    "temperature=0.8,top_k=40,top_p=0.95,min_p=0,repetition=1,frequency=0,presence=0,seed=1;\n"
    "                            left out: the largest logit\n"
    "  assay diff A B [--dtype T] [--shape N,N...]   two tensors (.npy or raw), element by element, in ulp\n"
    "  assay version\n"
    "\n"
    "exit: 0 all good and something ran, 1 failure, 2 bad input, 3 nothing ran, 77 no such device here\n";

static int print_usage(FILE *to) {
  return fputs(usage, to) < 0 || fputs(usage_models, to) < 0;
}

int main(int argc, char **argv) {
  assay_error error = {""};
  const assay_status status = builtin_register(&error);
  if (status != ASSAY_OK) return cli_leave(status, &error);
  const char *command = argc > 1 ? argv[1] : "";
  if (strcmp(command, "list") == 0) return cli_list_command(argc - 2, argv + 2);
  if (strcmp(command, "run") == 0) return cli_run_command(argc - 2, argv + 2);
  if (strcmp(command, "bench") == 0) return cli_bench_command(argc - 2, argv + 2);
  if (strcmp(command, "fuzz") == 0) return cli_fuzz_command(argc - 2, argv + 2);
  if (strcmp(command, "replay") == 0) return cli_replay_command(argc - 2, argv + 2);
  if (strcmp(command, "shrink") == 0) return cli_shrink_command(argc - 2, argv + 2);
  if (strcmp(command, "mutants") == 0) return cli_mutants_command(argc - 2, argv + 2);
  if (strcmp(command, "report") == 0) return cli_report_command(argc - 2, argv + 2);
  if (strcmp(command, "compare") == 0) return cli_compare_command(argc - 2, argv + 2);
  if (strcmp(command, "diff") == 0) return cli_diff_command(argc - 2, argv + 2);
  if (strcmp(command, "judge") == 0) return cli_judge_command(argc - 2, argv + 2);
  if (strcmp(command, "generate") == 0) return cli_generate_command(argc - 2, argv + 2);
  if (strcmp(command, "truth") == 0) return cli_truth_command(argc - 2, argv + 2);
  if (strcmp(command, "version") == 0 || strcmp(command, "--version") == 0) return puts("assay " ASSAY_VERSION) < 0;
  if (strcmp(command, "help") == 0 || strcmp(command, "--help") == 0) return print_usage(stdout);
  (void)print_usage(stderr);
  (void)assay_fail(
      &error, ASSAY_ERR_INPUT,
      "command: found '%s', allowed: list, run, bench, fuzz, replay, shrink, mutants, report, compare, diff, "
      "judge, truth, generate, version, "
      "help",
      command);
  return cli_leave(ASSAY_ERR_INPUT, &error);
}
