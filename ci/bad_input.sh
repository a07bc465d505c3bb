#!/usr/bin/env bash
# bad_input.sh BUILD CC: tries what a user can get wrong on the command line, in a suite, in a descriptor or with a
# plug-in. Each fault gives exit status 2 and one line that names the place, what was found and what is allowed. Nothing
# may have run, and no report may have begun. Ends by planting a good input into the same check, which must then fail.
set -euo pipefail

build=$1
cc=$2
root=$(cd "$(dirname "$0")/.." && pwd)
assay=$(cd "$build" && pwd)/assay
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

# judge NAME STATUS PATTERN COMMAND...: quiet when the command ends with the status and leaves no report. It must print
# a line on standard error that matches the pattern, and nothing on standard output.
judge() {
  local name=$1 wanted=$2 pattern=$3 status=0
  shift 3
  rm -f "$work"/report.*
  "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
  local why=
  [ "$status" -eq "$wanted" ] || why="exit $status, wanted $wanted"
  grep -qE -- "$pattern" "$work/err" || why="$why; no line matches: $pattern"
  [ ! -s "$work/out" ] || why="$why; something ran: $(head -n 1 "$work/out")"
  ! compgen -G "$work/report.*" >/dev/null || why="$why; a report was begun"
  if [ -z "$why" ]; then
    passed=$((passed + 1))
    return 0
  fi
  failed=$((failed + 1))
  printf 'FAIL %s: %s\n  %s\n' "$name" "$why" "$(head -n 3 "$work/err")"
  return 0
}

run() { # run NAME PATTERN ARGUMENTS...
  local name=$1 pattern=$2
  shift 2
  judge "$name" 2 "$pattern" "$assay" run --jsonl "$work/report.jsonl" --junit "$work/report.xml" "$@"
}

# suite NAME PATTERN: the YAML comes on standard input.
suite() {
  cat >"$work/s.yaml"
  run "$1" "$2" "$work/s.yaml"
}

item='op: gate_attention
check:
  - name: one
    mode: decode
    kv_len: {fixed: 9}
'
good=$root/conformance/suites/gate_attention.yaml

suite 'unknown key' 's\.yaml:6:5: .*densty.*allowed' <<<"${item}    densty: 0.5"
suite 'wrong type' 's\.yaml:6:8: .*H.*allowed' <<<"${item}    H: many"
suite 'out of range' 's\.yaml:6:8: .*D.*264.*allowed' <<<"${item}    D: 264"
suite 'negative window' 's\.yaml:6:13: .*window.*-1.*allowed' <<<"${item}    window: -1"
suite 'duplicate key' 's\.yaml:6:5: .*mode' <<<"${item}    mode: decode"
suite 'alias' 's\.yaml:6:8: found an anchor' <<<"${item}    H: &h 4
    H_kv: *h"
suite 'tag' 's\.yaml:6:8: .*tag' <<<"${item}    H: !!int 4"
suite 'unknown operator' "s\.yaml:1:5: .*flash.*allowed.*gate_attention" <<<'op: flash_attention'
suite 'unknown trace' 's\.yaml:5:[0-9]+: .*trace.*azure_conv' <<<'op: gate_attention
check:
  - name: one
    mode: decode
    kv_len: {trace: burst}'
suite 'two documents' 's\.yaml:[0-9]+:[0-9]+: .*document' <<<"${item}---
${item}"
suite 'not YAML' 's\.yaml:[0-9]+:[0-9]+: ' <<<'op: [gate_attention'
suite 'empty file' 's\.yaml:[0-9]+:[0-9]+: ' <<<''
printf 'op: gate_attention\ncheck:\n  - name: "a\xff\xfe"\n' >"$work/utf8.yaml"
run 'broken UTF-8' 'utf8\.yaml:3:[0-9]+: .*UTF-8' "$work/utf8.yaml"
head -c 52428800 /dev/zero | tr '\0' '#' >"$work/big.yaml"
run '50 MB file' 'big\.yaml.*52428800.*allowed' "$work/big.yaml"
run 'missing file' 'nowhere\.yaml.*' "$work/nowhere.yaml"
mkdir "$work/empty"
run 'folder without suites' 'empty' "$work/empty"

run 'no suite' 'suite'
run 'unknown device' "--device: found 'tpu', allowed: cuda, simt" "$good" --device tpu
run 'unknown option' "run: found option '--devise' .did you mean '--device'\?., allowed: --" "$good" --devise simt
run 'unknown variant' "--variant: found gate_attention variant 'fast', allowed.*split_keys" "$good" --variant gate_attention=fast
run 'variant of an unknown operator' "--variant: found operator 'flash'.*gate_attention" "$good" --variant flash=fast
run 'unknown variant of a list' "--variant: found gate_attention variant 'fast', allowed.*split_keys" "$good" --variant gate_attention=split_keys,fast
run 'list of variants with a gap' "--variant: found 'gate_attention=,split_keys', allowed: operator=variant,variant" "$good" --variant gate_attention=,split_keys
run 'variant of an operator without a case' "--variant: found operator 'rope', which has no case here, allowed: gate_attention" "$good" --variant rope=rows
run 'seed that is no number' "--seed: found 'x'" "$good" --seed x
run 'workers out of range' "--workers: found '0'" "$good" --workers 0
run 'deadline that is not finite' "--deadline: found 'nan'" "$good" --deadline nan
run 'section unknown' "--section: found 'all'.*check, edge" "$good" --section all
judge 'report folder missing' 2 "--jsonl: .*nowhere" "$assay" run "$good" --jsonl "$work/nowhere/r.jsonl"
judge 'no command' 2 "command: found '\(nothing\)', allowed: list, run" "$assay"
judge 'help of two words' 2 "help: found 'more' after 'run', allowed: no further word" "$assay" help run more
judge 'version of what' 2 "version: found 'now', allowed: no further word" "$assay" version now
judge 'unknown command' 2 "found 'fly', allowed: list, run" "$assay" fly
judge 'list: JSON of cases' 2 '--json: found with list cases, allowed with list ops' "$assay" list cases rms_norm --json
judge 'list: two forms' 2 '--json: found with --markdown, allowed without it' "$assay" list ops --json --markdown
judge 'list: device of ops' 2 '--device: found with list ops, allowed with list cases' "$assay" list ops --device simt
judge 'list of what' 2 "list: found 'kernels', allowed: ops" "$assay" list kernels

judge 'replay: unknown operator' 2 'flash.*allowed' "$assay" replay 'flash variant=a device=simt'
judge 'replay: unknown key' 2 'colour.*allowed' "$assay" replay 'gate_attention variant=split_keys device=simt mode=decode kv_len=9 new=1 colour=red'
judge 'replay: unknown variant' 2 "variant: found gate_attention variant 'fast', allowed on simt: .*split_keys" "$assay" replay 'gate_attention variant=fast device=simt mode=decode kv_len=9 new=1'
judge 'replay: exact without what it needs' 2 'kind: found rms, allowed uclip in tier exact' "$assay" replay 'norm_rope_append variant=heads device=simt tier=exact kv_len=9'
judge 'replay: all that is missing' 2 'device, variant: missing in the descriptor' "$assay" replay rms_norm
judge 'replay: two words' 2 'one descriptor' "$assay" replay gate_attention variant=split_keys

# Lists of cases.
judge 'list of no name' 2 "--list: found 'mustpas-4' .did you mean 'mustpass-4'.., allowed: a file, mustpass-1" "$assay" run --list mustpas-4
judge 'list of no file' 2 "--list: found '.*/nowhere', allowed: a file, mustpass-1" "$assay" run --list "$work/nowhere"
printf 'gate_attention suite=x seed=1\n' >"$work/strange.txt"
: >"$work/nothing.txt"
run 'only cases of another run' '--only: .*strange\.txt:1: found no case of this run' "$good" --only "$work/strange.txt"
run 'only of an empty list' '--only: .*nothing\.txt: found no descriptor, allowed one per line' "$good" --only "$work/nothing.txt"
run 'only of no file' '--only: .*nowhere' "$good" --only "$work/nowhere"

# Options that came with threads, shards, results and shrinking.
run 'no threads' "--threads: found '0', allowed: .* 1 to 32" "$good" --threads 0
run 'too many threads' "--threads: found '33', allowed" "$good" --threads 33
run 'threads that are no whole number' "--threads: found '1\.5', allowed: an integer" "$good" --threads 1.5
run 'threads without a number' '--threads: needs a value' "$good" --threads
run 'shard behind the last' "--shard: found '3/2', allowed: i/n" "$good" --shard 3/2
run 'power of what' "--power: found 'some', allowed: off, sample, all" "$good" --power some
run 'budget of nothing' "--shrink-budget: found '0', allowed" "$good" --shrink-budget 0
run 'shrink into nowhere' "--shrink: found '.*nowhere/x'" "$good" --shrink "$work/nowhere/x"
run 'ledger missing' 'nowhere: cannot be read' "$good" --ledger "$work/nowhere"

# refuse NAME PATTERN ARGUMENTS...: any command.
refuse() {
  local name=$1 pattern=$2
  shift 2
  judge "$name" 2 "$pattern" "$assay" "$@"
}
refuse 'fuzz: no operator' 'fuzz: needs at least one operator' fuzz
refuse 'fuzz: unknown operator' "fuzz: found operator 'flash', allowed: gate_attention" fuzz flash
refuse 'fuzz: no cases' "--cases: found '0', allowed" fuzz gemm --cases 0
refuse 'fuzz: half a case' "--cases: found '1\.5', allowed: an integer" fuzz gemm --cases 1.5
refuse 'fuzz: budget without a unit' "--budget: found '60x', allowed: .* 60s" fuzz gemm --budget 60x
refuse 'fuzz: negative budget' "--budget: found '-1s'" fuzz gemm --budget -1s
refuse 'fuzz: unknown device' "--device: found 'tpu', allowed" fuzz gemm --device tpu
refuse 'fuzz: unknown variant' "--variant: found gemm variant 'x', allowed" fuzz gemm --variant gemm=x --cases 1
refuse 'fuzz: variant of another operator' "--variant: found operator 'rope', which has no case here, allowed: gemm" fuzz gemm --variant rope=rows --cases 1
refuse 'bench: variant of another operator' "--variant: found operator 'rope', which has no case here, allowed: gemm" bench gemm --variant rope=rows
refuse 'fuzz: unknown key' "--where: gemm: found 'D=128', allowed key=value, key one of .*dtype" fuzz gemm --where D=128
refuse 'fuzz: value out of range' "--where: gemm: M: found" fuzz gemm --where M=0
refuse 'fuzz: no threads' "--threads: found '0', allowed" fuzz gemm --threads 0
refuse 'fuzz: seed that is no number' "--seed: found 'x', allowed" fuzz gemm --seed x
refuse 'fuzz: past failures missing' 'nowhere: cannot be read' fuzz gemm --regressions "$work/nowhere" --cases 1
refuse 'fuzz: ledger missing' 'nowhere: cannot be read' fuzz gemm --ledger "$work/nowhere" --cases 1
refuse 'fuzz: report folder missing' '--jsonl: .*nowhere' fuzz gemm --jsonl "$work/nowhere/r.jsonl" --cases 1
refuse 'fuzz: option of another command' "fuzz: found option '--filter', allowed: --cases, --seed, --where, .*--budget" fuzz gemm --filter x
refuse 'list: markdown of what' '--markdown: found with list variants, allowed with list ops' list variants --markdown
refuse 'list: markdown with a value' "--markdown: takes no value, found '1'" list ops --markdown=1
refuse 'list: one word too many' "list laws: found 'x', allowed: no further word" list laws x
refuse 'list: variants of an unknown operator' "list variants: found operator 'rms_nrom' .did you mean 'rms_norm'" list variants rms_nrom
refuse 'list: limits of an unknown operator' "list limits: found operator 'flash', allowed: gate_attention" list limits flash
refuse 'list: filter of variants' '--filter: found with list variants, allowed with list cases' list variants --filter x
refuse 'list: section of ops' '--section: found with list ops, allowed with list cases' list ops --section edge
judge 'list: filter that no case has' 3 "--filter: no case matches 'zzz'; the nearest is 'rms_norm/" "$assay" list cases rms_norm --filter zzz
refuse 'list: an operator and the whole page' "list ops: found 'rope' with --markdown" list ops --markdown rope
refuse 'judge: no folder' 'judge: needs a folder, found none' judge
refuse 'judge: two folders' 'a/manifest.json: cannot be read' judge a b
# A path that is no regular file is refused by its name, at once. No process writes the pipe.
mkfifo "$work/pipe" "$work/pipe.npy" "$work/pipe.json" "$work/pipe.yaml" "$work/pipe.csv"
ln -s /dev/zero "$work/zero.npy"
ln -s /dev/zero "$work/zero.jsonl"
mkdir "$work/piped"
printf '{"operator": "rms_norm", "inputs": {"x": "x.npy", "g": "x.npy"}, "outputs": {"y": "x.npy"}}' >"$work/piped/manifest.json"
ln -s "$work/pipe.npy" "$work/piped/x.npy"
while IFS='|' read -r found command; do
  read -ra words <<<"${command//WORK/$work}"
  refuse "$command" "$found, allowed a regular file" "${words[@]}"
done <<'END'
pipe.yaml: found a pipe|run WORK/pipe.yaml
pipe: found a pipe|compare WORK/pipe WORK/pipe
pipe: found a pipe|report WORK/pipe
zero.jsonl: found a device|report WORK/zero.jsonl
pipe.npy: found a pipe|diff WORK/pipe.npy WORK/pipe.npy
zero.npy: found a device|diff WORK/zero.npy WORK/zero.npy
x.npy: found a pipe|judge WORK/piped
--model: .*pipe: found a pipe|generate --model WORK/pipe --ids 1 --steps 1
--model: .*pipe.json: found a pipe|generate --model WORK/pipe.json --ids 1 --steps 1
--model: .*pipe.yaml: found a pipe|generate --model WORK/pipe.yaml --ids 1 --steps 1
--prompt-ids-file: .*pipe: found a pipe|generate --model x --prompt-ids-file WORK/pipe --steps 1
pipe: found a pipe|truth llama2c WORK/pipe WORK/pipe
pipe: found a pipe|mutants WORK/pipe
--ledger: .*pipe: found a pipe|run gemm --ledger WORK/pipe
--resume: .*pipe: found a pipe|run gemm --resume WORK/pipe
--jsonl: /dev/null: found a device|run gemm --jsonl /dev/null
--junit: .*pipe: found a pipe|run gemm --junit WORK/pipe
--html: /dev/null: found a device|run gemm --html /dev/null
--plugin: .*pipe: found a pipe|list variants --plugin WORK/pipe
-o: /dev/null: found a device|report WORK/pipe -o /dev/null
END
refuse 'explain: no folder' 'explain: needs one folder, found 0' explain
refuse 'explain: no manifest' 'empty/manifest\.json: cannot be read' explain "$work/empty"
refuse 'judge: no manifest' 'empty/manifest\.json: cannot be read' judge "$work/empty"
refuse 'judge: unknown option' "judge: found option '--device', allowed: --jsonl, --junit" judge "$work/empty" --device simt
refuse 'truth: of what' "truth: found 'flash', allowed: onnx, tensors, llama2c, hf" truth flash
refuse 'truth: no folder' 'truth onnx: needs one folder' truth onnx
refuse 'truth: no index' 'empty/index\.json: cannot be read' truth onnx "$work/empty"
refuse 'truth: no tensors' 'empty: found no recorded tensors, allowed' truth tensors "$work/empty"
refuse 'truth: no golden file' 'truth llama2c: needs a checkpoint and a JSON file' truth llama2c a
refuse 'truth: no checkpoint' 'nowhere: cannot be read' truth llama2c "$work/nowhere" "$work/nowhere"
refuse 'truth: unknown device' "--device: found 'tpu', allowed: ref, simt, cuda" truth llama2c a b --device tpu
refuse 'generate: no model' '--model: not given' generate
refuse 'generate: no steps' '--steps: not given' generate --model m
refuse 'generate: negative steps' "--steps: found '-1', allowed: an integer from 1" generate --model m --steps -1 --ids 1
refuse 'generate: no ids' '--ids, --prompt-ids-file: found none' generate --model m --steps 1
refuse 'generate: both kinds of ids' '--ids, --prompt-ids-file: found both' generate --model m --steps 1 --ids 1 --prompt-ids-file f
refuse 'generate: ids that are none' "--ids: found 'a', allowed" generate --model m --steps 1 --ids a
refuse 'generate: prompts missing' 'nowhere: cannot' generate --model m --steps 1 --prompt-ids-file "$work/nowhere"
refuse 'generate: unknown mode' "--mode: found 'fast', allowed: exact, mirror" generate --model m --steps 1 --ids 1 --mode fast
refuse 'generate: weights of another type' "--weights: found 'e5m2', allowed: fp8" generate --model m --steps 1 --ids 1 --weights e5m2
refuse 'generate: empty chunks' "--chunk: found '0', allowed" generate --model m --steps 1 --ids 1 --chunk 0
refuse 'generate: unknown choice' "--sampler: found 'q', allowed: name=value with temperature" generate --model m --steps 1 --ids 1 --sampler q
refuse 'generate: share above 1' "--sampler: top_p: found '2', allowed" generate --model m --steps 1 --ids 1 --sampler top_p=2
refuse 'generate: unknown device' "--device: found 'tpu', allowed: ref, simt, cuda" generate --model m --steps 1 --ids 1 --device tpu
refuse 'generate: model missing' 'nowhere: cannot be read' generate --model "$work/nowhere" --steps 1 --ids 1
refuse 'generate: a word' "generate: found 'x', allowed: options" generate x
tiny=(generate --model "$work/tiny.yaml" --steps 2 --ids 1,2 --device simt)
printf 'arch: asynct\nlayers: 1\nhidden: 64\nheads: 4\nkv_heads: 2\nhead_size: 16\nrotated: 16\nintermediate: 96\nvocab: 60\nmax_pos: 32\n' >"$work/tiny.yaml"
refuse 'generate: weights without blocks' 'hidden: found 64, allowed with fp8_weights: multiples of 128' "${tiny[@]}" --weights fp8
refuse 'generate: form that the model cannot have' 'form mmha: found on, which this asynct model with qk_norm cannot have, allowed on: qk_norm, append' "${tiny[@]}" --form mmha=on
refuse 'generate: form that no step is for' 'form append: found on, but this run has no step' "${tiny[@]}" --steps 1 --form append=on
refuse 'generate: forced, never called' 'variant: forced, but no call of this run took it: softmax_attention=stream .the operator was not called' "${tiny[@]}" --variant softmax_attention=stream
refuse 'generate: forced, never taken' 'no call of this run took it: gate_attention=split_keys' "${tiny[@]}" --variant gate_attention=prefill_as_decode,decode_rows,split_keys
judge 'generate: forced, declined by all' 2 'none of the forced variants takes the call; decode_rows: .*; wgmma: ' "$assay" "${tiny[@]}" --variant gate_attention=decode_rows --variant gate_attention=wgmma
refuse 'mutants: no jobs' "--jobs: found '0', allowed" mutants --jobs 0
refuse 'compare: one file' 'compare: needs two files of results, found 1' compare a
refuse 'diff: one file missing' 'nowhere: cannot be read' diff "$work/nowhere" "$work/nowhere"
refuse 'report: nothing' 'report: needs at least one file' report
refuse 'shrink: nothing' 'shrink: needs one descriptor' shrink

refuse 'dump: nothing' 'dump: needs a case in quotes' dump
refuse 'dump: a case that is refused' 'dump: found a case of section refuse' dump 'rms_norm section=refuse expect=C' "$work/dumped"

# Every command: an option that it does not have, one whose value is missing, one whose name is cut short.
eval "$("$assay" --completion bash | grep -v '^complete ')"
commands=0
while IFS= read -r command; do
  read -ra words <<<"$command"
  commands=$((commands + 1))
  refuse "$command: unknown option" "$command: found option '--no-such-option', allowed: (--|-o|no options)" "${words[@]}" --no-such-option
  for option in $(_assay_options "$command"); do
    [ -n "$(_assay_values "$command" "$option")" ] || continue
    refuse "$command: $option without a value" "^assay: $option: needs a value" "${words[@]}" "$option"
    # --mode is an option of its own, and no short form of --model.
    if [[ $option == --* && " $(_assay_options "$command") " != *" ${option%?} "* ]]; then
      refuse "$command: $option cut short" "$command: found option '${option%?}=x'" "${words[@]}" "${option%?}=x"
    fi
  done
done < <(printf '%s\n' list run bench 'bench scenario' 'bench online' fuzz mutants replay shrink dump report compare diff generate judge explain \
  truth 'truth onnx' 'truth tensors' 'truth llama2c' 'truth hf')
# Every command that needs words, without them.
while IFS='|' read -r command pattern; do
  read -ra words <<<"$command"
  refuse "$command: no words" "$pattern" "${words[@]}"
done <<'END'
list|list: found '\(nothing\)', allowed: ops
bench|bench: needs at least one suite
bench online|online: needs a trace, allowed: azure_conv
replay|replay: needs one descriptor
compare|compare: needs two files
diff|diff: needs two files
truth|truth: found '\(nothing\)', allowed: onnx
truth tensors|truth tensors: needs one folder
END
# A word that is wrong by a letter or two, and what it is taken for.
while IFS='|' read -r meant command; do
  eval "words=($command)"
  # shellcheck disable=SC2154 # eval sets words
  refuse "$command" "found .*\(did you mean '$meant'\?\)" "${words[@]}"
done <<'END'
run|rum rms_norm
list|lits ops
bench|help bnech
rms_norm|run rms_nrom
rms_norm|bench rms_nrom
rms_norm|list cases rms_nrom
rms_norm|list ops rms_nrom
rope|fuzz rpoe
variants|list variant
conformance/suites/rope.yaml|run conformance/suites/rpoe.yaml
tables|bench tabels
--device|run rms_norm --devise simt
--steps|generate --step 2
simt|run rms_norm --device smit
ref|bench rms_norm --device refs
edge|run rms_norm --section egde
sample|run rms_norm --power smaple
exact|generate --model m --steps 1 --ids 1 --mode exakt
rms_norm|run rms_norm --variant rms_nrom=vectors
block_rows|run rms_norm --variant rms_norm=blok_rows
block_rows|replay 'rms_norm variant=blok_rows device=simt N=1 C=8'
block_rows|shrink 'rms_norm variant=blok_rows device=simt N=1 C=8'
rms_norm|replay 'rms_nrom variant=vectors device=simt N=1 C=8'
rms_norm|dump 'rms_nrom N=1 C=8'
azure_conv|bench online azure_cnov
balanced_b32|bench scenario balanced_b23
tensors|truth tensor x
END

# A filter that nothing has: status 3, and what was asked for, and what is near to it.
nothing() { # nothing NAME PATTERN ARGUMENTS...
  local name=$1 pattern=$2 status=0
  shift 2
  "$assay" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
  if [ "$status" -eq 3 ] && grep -qE -- "$pattern" "$work/err"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAIL %s: exit %s, wanted 3; says: %s\n' "$name" "$status" "$(head -n 1 "$work/err")"
  fi
}
nothing 'filter that no case has' "--filter: no case matches 'chekc'; the nearest is 'rms_norm/check/" run rms_norm --filter chekc
nothing 'filters that exclude each other' "no case that runs here matches all of this: 'rms_norm' 'gemm'" run rms_norm gemm --filter rms_norm --filter gemm
nothing 'filter of a section' "--filter: no case matches 'types' in section bench; the nearest is 'rms_norm/bench/" run rms_norm --section bench --filter types
nothing 'filter of bench' "--filter: no case matches 'nowhere' in section bench" bench rms_norm --filter nowhere
nothing 'filter of models' "--filter: no case matches 'smal_decode'; the nearest is 'models/check/small_decode" run models --filter smal_decode

# Plug-ins.
plug() { # plug NAME PATTERN: C on standard input
  cat >"$work/p.c"
  "$cc" -shared -fPIC -I "$root/include" -x c "$work/p.c" -o "$work/p.so"
  run "$1" "$2" "$good" --plugin "$work/p.so"
}
plug 'plug-in of another ABI' 'p\.so: ABI 99, this build takes' <<'C'
#include <assay/plugin.h>
static const assay_plugin_table table = {99, sizeof(assay_plugin_table), "old", NULL, 0};
const assay_plugin_table *assay_plugin(const assay_host *host) { (void)host; return &table; }
C
plug 'plug-in with another table' 'p\.so: its table has 8 bytes' <<'C'
#include <assay/plugin.h>
static const assay_plugin_table table = {ASSAY_ABI, 8, "short", NULL, 0};
const assay_plugin_table *assay_plugin(const assay_host *host) { (void)host; return &table; }
C
plug 'plug-in that refuses' 'p\.so: refuses: not today' <<'C'
#include <assay/plugin.h>
const assay_plugin_table *assay_plugin(const assay_host *host) {
  (void)snprintf(host->refusal, host->refusal_size, "not today");
  return NULL;
}
C
plug 'plug-in without variants' 'p\.so: gives no variants' <<'C'
#include <assay/plugin.h>
static const assay_plugin_table table = {ASSAY_ABI, sizeof(assay_plugin_table), "none", NULL, 0};
const assay_plugin_table *assay_plugin(const assay_host *host) { (void)host; return &table; }
C
plug 'plug-in with a row of another size' 'p\.so: a variant row of 4 bytes' <<'C'
#include <assay/plugin.h>
static const assay_variant row = {.struct_size = 4};
static const assay_plugin_table table = {ASSAY_ABI, sizeof(assay_plugin_table), "row", &row, 1};
const assay_plugin_table *assay_plugin(const assay_host *host) { (void)host; return &table; }
C
plug 'object without the symbol' 'p\.so: has no symbol assay_plugin' <<<'int nothing;'
run 'plug-in missing' 'nowhere\.so: cannot be loaded' "$good" --plugin "$work/nowhere.so"
run 'plug-in that is no object' 's\.yaml: cannot be loaded' "$good" --plugin "$work/s.yaml"

# No such device is a status of its own, which CTest takes for a skip. No fault of the call may end with it.
if ! grep -q ' cuda ' < <("$assay" list variants); then
  stories=$root/fixtures/models/stories260K
  for words in "run $good" "bench $root/bench/tables/rope.yaml" "generate --model $stories/stories260K.bin --steps 2 --ids 1" \
    'fuzz rope --budget 1s' mutants "truth llama2c $stories/stories260K.bin $stories/golden_greedy_f32.json"; do
    # shellcheck disable=SC2086 # several words
    judge "no such device: ${words%% *}" 77 "device: found '?cuda'?, this build has:? simt" "$assay" $words --device cuda
  done
  for words in replay shrink; do
    judge "no such device: $words" 77 "device: found 'cuda', this build has: simt" "$assay" "$words" 'rms_norm variant=vectors device=cuda'
  done
fi

# The check itself: a good run must not pass for a refusal.
before=$failed
suite 'planted' 'nothing says this' <<<"$item" >/dev/null
if [ "$failed" -eq "$before" ]; then
  echo 'FAIL the check took a good suite for a refused one'
  failed=$((failed + 1))
else
  failed=$before
fi

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
