/* commands.c: the table of commands. */
#include <string.h>

#include "table.h"

enum { LOOK = 1, JUDGE, CASE, FILES, MODELS, OUTSIDE };

static const cli_command rows[] = {
    {"list", cli_list_command, "ops|variants|limits [OP...] | suites | laws | cases [SUITE...]",
     "Shows operators, variants, suites, limits, laws or cases",
     "filter section seed device:list plugin ffi bind ffi-runtime markdown json",
     "ops variants suites limits laws cases",
     "list ops shows every operator by its contract, list ops OP one operator in full. list variants says what each "
     "variant claims, list suites where the suites are, list limits the limits of tier 2, list laws the laws. list "
     "cases prints one descriptor per line; with no suite named it prints those of all. --filter, --section and "
     "--device choose among the cases.",
     "assay list ops rms_norm\nassay list cases rms_norm --section edge\nassay list variants gate_attention --plugin "
     "./outside.so",
     LOOK},
    {"run", cli_run_command, "SUITE|OP... | --list NAME", "Judges every case of suites with every variant",
     "filter section only list thin seed shard device variant plugin ffi bind ffi-runtime in-process workers threads "
     "deadline "
     "power "
     "shrink-budget jsonl junit html resume ledger shrink all maxfail color",
     "@suite",
     "A suite is a YAML file, a folder of them, or the name of an operator, which stands for the operator's own "
     "suite. Section bench runs only if --section asks for it. A failure prints the line that replays it. Suites of "
     "models run alone, and take --filter, --seed, --device, --variant, --plugin, --ffi, --bind, --jsonl, --junit, "
     "--all, "
     "--maxfail "
     "and --color.",
     "assay run rms_norm\nassay run conformance/suites --device cuda --jsonl out.jsonl\n"
     "assay run gate_attention --variant gate_attention=split_keys --section edge",
     JUDGE},
    /* Suites of models take fewer options. */
    {"run with suites of models", cli_run_command, "SUITE...", "Judges suites of models",
     "filter seed device variant plugin ffi bind ffi-runtime jsonl junit all maxfail color", "@suite", NULL, NULL, 0},
    {"bench", cli_bench_command, "SUITE|OP...", "Judges, times and judges again: section bench of suites",
     "filter section seed device:bench variant plugin ffi bind ffi-runtime chosen peers in-process deadline "
     "budget:bench jsonl resume baseline",
     "@suite tables short density scenario online",
     "The words tables, short and density stand for the folders of bench/ with that name. A kernel that is wrong has "
     "no figure. docs/bench.md says how a figure is made.",
     "assay bench swiglu --filter decode_b32\nassay bench short --device cuda --jsonl now.jsonl --baseline "
     "before.jsonl",
     JUDGE},
    {"bench scenario", cli_bench_scenario, "[NAME...]", "Times whole batches through the models",
     "part seed device variant:model model:bench form short-tail invariant weights tokens peers jsonl expected", "",
     NULL, "assay bench scenario --device cuda --model asynct --jsonl scenario.jsonl", JUDGE},
    {"bench online", cli_bench_online, "TRACE...", "Times a model under recorded arrivals",
     "part requests seconds scales seed device variant:model model:bench form short-tail invariant weights tokens "
     "batch "
     "blocks length "
     "jsonl expected",
     "azure_conv azure_code mooncake", NULL, "assay bench online azure_conv --device cuda --seconds 60", JUDGE},
    {"contract", cli_contract_command, "SUITE|OP...", "Finds the narrowest contract that explains a variant's errors",
     "filter section seed cases:contract device variant plugin ffi bind ffi-runtime workers threads deadline", "@suite",
     "Runs each variant over calibrated cases of the suites, and judges the results under other contracts. Prints the "
     "narrowest one that holds beside the declared one, with the largest error ratio under each. Exit status: 0: the "
     "declared contract holds; 1: it does not, and another one does; 4: no contract explains the results. "
     "docs/contract.md describes the search.",
     "assay contract softmax_attention --variant softmax_attention=split_keys\n"
     "assay contract rms_norm --ffi ./lib.so --bind rms_norm.yaml --variant rms_norm=mine",
     JUDGE},
    {"statement", cli_statement_command, "-o FILE", "Judges variants by a must-pass list, and writes a statement",
     "list device variant plugin ffi bind ffi-runtime workers threads deadline o color", "",
     "The list is mustpass-4 if --list names none. The statement has the hashes of the program, the list and the files "
     "under judgement, the device, every result, counts and a digest. assay verify checks it. docs/conformance.md "
     "describes both.",
     "assay statement --plugin ./outside.so --variant gate_attention=one_thread -o statement.json", JUDGE},
    {"verify", cli_verify_command, "FILE", "Checks a statement", "list plugin ffi bind", "@file",
     "The statement must be whole, have every case of its list in order, and the counts of its results. A file that is "
     "named must have the hash that the statement has. Exit status: 0: it is whole and the variants conform; 1: it was "
     "changed, or they do not.",
     "assay verify statement.json --plugin ./outside.so", JUDGE},
    {"fuzz", cli_fuzz_command, "OP...", "Judges drawn cases",
     "cases seed where regressions device variant plugin ffi bind ffi-runtime in-process budget workers threads "
     "deadline jsonl junit ledger "
     "all "
     "maxfail color",
     "@op",
     "Past failures run first, then draws: every boundary value, every pair of them, then at random. Without --budget "
     "and --cases the draws end after a minute.",
     "assay fuzz rope gemm --cases 500\nassay fuzz gate_attention --where D=128 --budget 5m", JUDGE},
    {"mutants", cli_mutants_command, "[MANIFEST]", "Judges kernels that are wrong on purpose",
     "filter:mutants controls again thin shard:mutants list:mutants kills device jobs deadline jsonl", "@file",
     "The table says what kills each kernel. Without a manifest the mutants are those of this build for the device.",
     "assay mutants --filter gate_stale", JUDGE},

    {"replay", cli_replay_command, "DESCRIPTOR", "Judges one case again, as a failure printed it",
     "plugin ffi bind ffi-runtime in-process deadline power jsonl junit dump color", "",
     "The descriptor is one word, in quotes. It holds every choice, the seed included.",
     "assay replay 'rms_norm variant=warp_rows device=simt dtype=f32 N=3 C=88 seed=1' --in-process", CASE},
    {"shrink", cli_shrink_command, "DESCRIPTOR", "Makes a failing case minimal",
     "plugin ffi bind ffi-runtime deadline workers shrink-budget o", "",
     "With -o the minimal case is written as a suite.",
     "assay shrink 'rms_norm variant=warp_rows device=simt dtype=f32 N=3 C=88 seed=1' -o minimal.yaml", CASE},
    {"dump", cli_dump_command, "CASE [DIR]", "Writes inputs and expectation of a case, without any variant",
     "plugin ffi bind ffi-runtime", "@folder",
     "CASE is a case as assay list cases prints it, in quotes. DIR (dump) gets the inputs, the expectation and sigma "
     "as .npy files, and manifest.json, which names the files that an engine has yet to write. With these files in "
     "the folder, assay judge DIR judges them.",
     "assay dump \"$(assay list cases rms_norm | head -n 1)\" out\nassay judge out", CASE},

    {"report", cli_report_command, "RUN.jsonl...", "Makes a page, and one verdict over all files",
     "plugin ffi bind ffi-runtime o", "@file",
     "The files are those of the shards of one run, of runs or of assay mutants; or those of assay bench, which have a "
     "page of their own. Without -o the page is report.html.",
     "assay report shard.1.jsonl shard.2.jsonl -o report.html", FILES},
    {"compare", cli_compare_command, "A.jsonl B.jsonl", "Compares two runs, or two benches", "", "@file",
     "Of runs it shows drifts of accuracy, new and fixed failures, by variant. Of benches it says FASTER, SLOWER, SAME "
     "or AMBIGUOUS, row by row.",
     "assay compare before.jsonl now.jsonl", FILES},
    {"diff", cli_diff_command, "A B", "Compares two tensors element by element, in ulp", "dtype shape", "@file",
     "The files are .npy, or raw, which need --dtype and --shape.", "assay diff out.got.bf16.npy mine.npy", FILES},

    {"generate", cli_generate_command, "--model FILE --steps N --ids N,...", "Generates ids by a forward pass",
     "device:model variant:model model ids prompt-ids-file steps chunk mode sampler form short-tail invariant weights "
     "eager paths",
     "", "docs/models.md describes the files of models.", "assay generate --model stories260K.bin --ids 1 --steps 20",
     MODELS},

    {"judge", cli_judge_command, "DIR...", "Judges tensors that another engine has written",
     "jsonl junit expected:judge tolerance", "@folder",
     "DIR/manifest.json names the operator, its parameters, the inputs and the outputs. A folder from assay dump or "
     "from assay replay --dump has one. docs/truth.md describes it.",
     "assay judge out\nassay judge layers/* --junit judged.xml", OUTSIDE},
    {"explain", cli_explain_command, "DIR", "Finds the sums that gave the bits of recorded products", "over", "@folder",
     "DIR is a folder as assay judge reads it, with cases of gemm. A line per case gives the sum contract that "
     "predicts every bit, or the share that the nearest one predicts. --over adds the classes of rows whose bits are "
     "alike: which contract holds for which M. docs/last-bit.md describes it.",
     "assay explain fixtures/bits\nassay explain recorded --over m=1..4096", OUTSIDE},
    {"truth", cli_truth_command, "onnx DIR | tensors DIR | llama2c MODEL GOLDEN.json | hf DIR",
     "Holds the references against published results", "", "onnx tensors llama2c hf",
     "onnx: node cases of ONNX. tensors: recorded tensors. llama2c: recorded ids and logits of a model. hf: "
     "recorded results of the transformers library. assay truth WORD --help explains each.",
     "assay truth onnx fixtures/onnx", OUTSIDE},
    {"truth onnx", cli_truth_onnx, "DIR", "Holds the references against ONNX node cases", "", "@folder",
     "DIR holds index.json and packed.bin.", "assay truth onnx fixtures/onnx", OUTSIDE},
    {"truth tensors", cli_truth_tensors, "DIR", "Holds the references against recorded tensors", "", "@folder",
     "DIR, or folders in it, hold gpt-nano's forward pass or norms in safetensors.",
     "assay truth tensors fixtures/models", OUTSIDE},
    {"truth llama2c", cli_truth_llama2c, "MODEL GOLDEN.json", "Holds a forward pass against recorded ids and logits",
     "device:model", "@file", "The ids are greedy.", "assay truth llama2c model.bin golden.json --device simt",
     OUTSIDE},
    {"truth hf", cli_truth_hf, "DIR", "Holds forward passes against the transformers library",
     "device:model form dtype:model", "@folder",
     "DIR holds a model as the library writes it beside its recorded results, or folders of them.",
     "assay truth hf llama3-rope --device ref", OUTSIDE},

    {"version", NULL, "", "Prints the version", "", "", NULL, NULL, OUTSIDE + 1},
    {"help", NULL, "[COMMAND]", "Explains the program or a command", "", "@command", NULL, "assay help run",
     OUTSIDE + 1},
};

const cli_command *command_at(int32_t index) {
  return index >= 0 && (size_t)index < sizeof rows / sizeof *rows ? &rows[index] : NULL;
}

const char *command_topic(int topic) {
  static const char *const names[] = {
      [LOOK] = "Look:",     [JUDGE] = "Judge and time:",         [CASE] = "One case:",           [FILES] = "Results:",
      [MODELS] = "Models:", [OUTSIDE] = "Results from outside:", [OUTSIDE + 1] = "This program:"};
  return names[topic];
}

const cli_command *command_find(const char *name) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
    if (strcmp(rows[i].name, name) == 0) return &rows[i];
  return NULL;
}

const cli_option *command_option(const cli_command *command, int32_t n) {
  const char *at = command->options + strspn(command->options, " ");
  for (; n > 0 && *at != '\0'; --n) {
    at += strcspn(at, " ");
    at += strspn(at, " ");
  }
  const size_t length = strcspn(at, " ");
  const cli_option *row = NULL;
  for (int32_t i = 0; length > 0 && (row = option_at(i)) != NULL; ++i)
    if (strlen(row->name) == length && strncmp(row->name, at, length) == 0) return row;
  return NULL;
}
