#!/usr/bin/env bash
# sanitize.sh KIND [BUILD]: the suites' corners on simt under a sanitizer, built in BUILD (build/PRESET, build/PRESET_few). KIND:
#   asan      AddressSanitizer and UBSan. Compiled by clang, which is several times as fast, or else the host compiler.
#             The types and shapes of ASSAY_FEW_TYPES alone (no f16, no e5m2), and 1 of 64 edge cases that a thinned run has
#             (docs/suites.md). Every change waits for it.
#   asan_all  as asan, with every type, as the preset compiles it, and every edge case
#   tsan      ThreadSanitizer over the kernels, clang; the types of asan, and 1 of 80 edge cases that a thinned run has
#   tsan_all  as tsan, with every type and every edge case
#   msan      MemorySanitizer, clang
#   sample    as tsan_all, and every twentieth case of section check, another twentieth with each SHARD=i/20 (1/20)
#   races_all as tsan, and every __syncthreads(), __syncwarp() and __threadfence() of the operators' .cu and of gpu/lib
#             removed in turn. Each is a race with two source lines, the same in a second run; not luck
#             The kernel of all layers without its proxy fence, by bench/probe_layers.cu
#             races.tsv in the work folder has, for each, the kernel file and the edge item that showed it
#   races     those of these barriers and fences that ci/races.tsv lists, one of twelve at least, and that proxy fence
#   races_list  no build: ci/races.tsv lists enough, and lists that do not are refused
#   uninit    as msan, with a kernel that reads shared memory before it is written
# Status 77 where clang is missing. With SECTIONS="check edge" more is run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
kind=${1:?asan, asan_all, tsan, tsan_all, msan, sample, races, races_all, races_list or uninit}
# barriers: FILE NTH of each barrier and fence of the operators' files and of gpu/lib.
barriers() {
  local file
  for file in $(cd gpu && grep -lE '__(syncthreads|syncwarp|threadfence)\(\);' ./*.cu lib/*.cuh | sed 's,^\./,,'); do
    # The kernel of all layers is no operator. simt_layers_mutant_test judges it.
    [[ $file != lib/layers*.cuh ]] || continue
    awk -v file="$file" '/__(syncthreads|syncwarp|threadfence)\(\);/ { print file, ++n }' "gpu/$file"
  done
}

# listed FILE: the rows of a list like ci/races.tsv. Status 1 where they name fewer than one of twelve barriers and fences.
listed() {
  local rows all
  rows=$(grep -v '^#' "$1" | cut -f 1,2 | sort -u | wc -l)
  all=$(barriers | wc -l)
  grep -v '^#' "$1"
  ((all > 0 && rows * 12 >= all)) && return 0
  printf 'races: %s lists %d of %d barriers and fences, allowed one of 12 and more\n' "$1" "$rows" "$all" >&2
  return 1
}

# The list holds; it does not with one row, with one row many times, or without rows.
if [ "$kind" = races_list ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  listed ci/races.tsv >/dev/null || exit 1
  grep -v '^#' ci/races.tsv | head -n 1 >"$scratch/one"
  for _ in $(seq 100); do cat "$scratch/one"; done >"$scratch/many"
  : >"$scratch/none"
  for wrong in one many none; do
    if listed "$scratch/$wrong" >/dev/null 2>&1; then
      echo "races_list: a list of $wrong passes"
      exit 1
    fi
  done
  exit 0
fi

preset=${kind%_all}
few=()
compilers=()
case $kind in
  asan | tsan | races | races_all) few=(-DCMAKE_CXX_FLAGS=-DASSAY_FEW_TYPES -DCMAKE_C_FLAGS=-DASSAY_FEW_TYPES) ;;
esac
# Optimised, the kernels take eight times as long to compile as they then save. Files in C lose time by it too.
# ThreadSanitizer watches every access to the stack at -O0. The check `function`, of calls through pointers of another
# type, is half of what clang compiles of templates, and `null` an eighth of the rest: both are for the night. A null
# pointer that is used ends the process. Small functions of kernels are called, or expanded where the compiler sees a
# gain.
if [ "$kind" = asan ]; then
  quick='-O0;-DASSAY_CALL_ALL'
  if command -v clang++ >/dev/null; then quick+=';-fno-sanitize=function,null'; fi
  few+=(-DASSAY_C_FLAGS=-O0 "-DASSAY_KERNEL_FLAGS=$quick")
fi
# gcc at -Og compiles for ThreadSanitizer in half of the time that clang takes at -O1.
case $kind in
  tsan | races | races_all)
    few+=('-DASSAY_KERNEL_FLAGS=-Og;-DASSAY_CALL_ALL')
    if command -v g++ >/dev/null; then compilers=(-DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++); fi
    ;;
esac
case $kind in
  races | races_all | sample) preset=tsan ;;
  uninit) preset=msan ;;
esac
# A folder is of one compiler: CMake forgets its settings when another comes.
build=${2:-build/$preset${few:+_few}${compilers:+_gcc}}
jobs=${ASSAY_JOBS:-$(nproc 2>/dev/null || echo 2)}
if [ "$preset" != asan ] && ! command -v clang++ >/dev/null; then
  echo "sanitize: $kind: no clang++ here (Debian: clang libclang-rt-14-dev)"
  exit 77
fi
log=$build.log
mkdir -p "$(dirname "$build")"
if [ "$preset" = asan ] && command -v clang++ >/dev/null; then compilers=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++); fi
if ! { cmake --preset "$preset" -B "$build" -DASSAY_TESTS=OFF "${compilers[@]}" "${few[@]}" && cmake --build "$build" --target assay -j "$jobs"; } >"$log" 2>&1; then
  tail -n 40 "$log"
  exit 1
fi
assay=$build/assay
work=$build/sanitize
mkdir -p "$work"

# run OUT OPTION...: nothing may fail, and no sanitizer may say a word.
clean() {
  local out=$work/$1
  shift
  if ! "$assay" run "$@" --device simt >"$out" 2>"$out.err" || grep -qE 'Sanitizer|runtime error' "$out.err"; then
    tail -n 20 "$out"
    head -n 60 "$out.err"
    return 1
  fi
  tail -n 1 "$out"
}

# op_of STEM: the operator of gpu/STEM.cu.
op_of() {
  local op
  op=$(sed -n 's/^ASSAY_STRATEGY(\([a-z0-9_]*\), *\([a-z0-9_]*\)).*/\1 \1_\2/p' include/assay/strategies.def | awk -v stem="$1" '$2 == stem { print $1 }')
  printf '%s\n' "${op:-$1}"
}

# plugin STEM ID FLAGS...: $work/ID.so from $work/ID/gpu. At -O0 it compiles in a third of the time of -O1.
plugin() {
  local stem=$1 id=$2
  shift 2
  printf '#include "gpu/%s.cu"\n' "$stem" >"$work/$id/plugin.cpp"
  clang++ -std=c++20 -O0 -g1 -fno-omit-frame-pointer -ffp-contract=off "$@" -shared -fPIC -fvisibility=hidden \
    -DASSAY_FEW_TYPES -DASSAY_CALL_ALL "-DASSAY_VARIANT_SUFFIX=\"@$id\"" "-DASSAY_AS_PLUGIN=\"$id\"" -I "$work/$id" -I "$work/$id/gpu" \
    -I include -I . -include "$work/$id/gpu/simt/cuda.h" -x c++ "$work/$id/plugin.cpp" -o "$work/$id.so"
}

# remove FILE N ID: a copy of gpu/ without the Nth barrier or fence of gpu/FILE. Says the line it stood in.
remove() {
  local file=$1 nth=$2 id=$3
  rm -rf "${work:?}/$id" "$work/$id".*
  mkdir -p "$work/$id"
  cp -r gpu "$work/$id/gpu"
  awk -v nth="$nth" -v line="$work/$id/line" '
    /__(syncthreads|syncwarp|threadfence)\(\);/ && ++n == nth { sub(/__[a-z]*\(\);/, ""); print NR > line }
    { print }' "gpu/$file" >"$work/$id/gpu/$file"
  [ -s "$work/$id/line" ]
}

# chosen OP ID: --variant for each of the plug-in's.
chosen() { "$assay" list variants --plugin "$work/$2.so" 2>/dev/null | grep -oE "[a-z0-9_]+@$2" | sort -u | sed "s/^/--variant $1=/"; }

# users FILE: the operators' files, without .cu, that FILE of gpu/ is or that include it, through others of lib/ too.
users() {
  case $1 in *.cu) printf '%s\n' "${1%.cu}" && return ;; esac
  local through
  grep -l "include \"gpu/$1\"" gpu/*.cu | sed 's,^gpu/,,; s,\.cu$,,'
  for through in $(grep -l "include \"gpu/$1\"" gpu/lib/*.cuh | sed 's,^gpu/,,'); do users "$through"; done
}

# cheap_first OP ID NAME: the edge cases in files of 16, $work/ID.cases.000 and so on. Those of item NAME come first, and
# of these and of the others those of small sizes.
cheap_first() {
  "$assay" list cases "$1" --device simt | sed 's/^[^:]*: //' | grep ' section=edge ' | awk -v name=" name=$3 " '
    { cost = index($0, name) > 0 ? 1e-30 : 1
      for (i = 1; i <= NF; ++i) {
        split($i, pair, "=")
        if (pair[1] == "kv_len") {
          count = split(pair[2], each, ",")
          for (sum = j = 1; j <= count; ++j) sum += each[j]
          cost *= sum
        } else if (pair[1] ~ /^[A-Z][A-Za-z_]*$/ && pair[2] ~ /^[1-9][0-9]*$/) cost *= pair[2]
      }
      printf "%g %s\n", cost, $0 }' | sort -s -g -k 1,1 | cut -d ' ' -f 2- | split -l 16 -a 3 -d - "$work/$2.cases."
}

# reports OUT: what a run says of races. A process that turns addresses into lines may still be there when a case ends,
# and the case is then said to have left a child: such words are left out.
reports() { grep -oE '(race|mbarrier): .*' "$1"; }

# same ID: did both runs say the same of races?
same() { diff <(reports "$work/$1.out1") <(reports "$work/$1.out2") >"$work/$1.differ"; }

# race STEM ID NAME: looks in some of the edge cases after the others, for the speed of it, until one has a race; that one
# twice. Those of item NAME come first.
race() {
  local op id=$2 again cases options
  op=$(op_of "$1")
  plugin "$1" "$id" -fsanitize=thread || return 1
  read -r -d '' -a options < <(chosen "$op" "$id"; printf '\0')
  rm -f "$work/$id".cases.*
  cheap_first "$op" "$id" "$3"
  for cases in "$work/$id".cases.*; do
    for again in 1 2; do
      "$assay" run "conformance/suites/$op.yaml" --section edge --only "$cases" --power off --device simt --plugin "$work/$id.so" --workers 1 \
        "${options[@]}" 2>"$work/$id.err$again" | sed 's/ in [0-9.]* s (.*//' >"$work/$id.out$again"
      grep -qE 'race: |mbarrier: used before' "$work/$id.out1" || break
    done
    # ThreadSanitizer forgets accesses now and then, and says nothing of a race that it saw before. Other cases show it.
    grep -qE 'race: |mbarrier: used before' "$work/$id.out1" && same "$id" && return 0
  done
  return 1
}

# removed FILE NTH ID NAME STEM...: what the first of the kernel files says that shows a race without the barrier or fence,
# on one line. A row for ci/races.tsv says where it was shown.
removed() {
  local file=$1 nth=$2 id=$3 name=$4 stem what
  shift 4
  for stem in "$@"; do race "$stem" "$id" "$name" && break; done
  what=$(grep -m 1 -oE 'race: .*: (atomic )?(read|write) by .* at [^ ]+:[0-9]+.*, and before it (atomic )?(read|write) by .* at [^ ]+:[0-9]+.*' "$work/$id.out1")
  # A thread that comes before the one that makes an mbarrier stops the launch: simt says so before ThreadSanitizer.
  [ -n "$what" ] || what=$(grep -m 1 -oE 'mbarrier: used before it was made, .*' "$work/$id.out1")
  # What the copy engine reads is no access of a thread. Another order of threads shows that it was not written yet.
  if [ -z "$what" ] && grep -q 'bulk_store(' "gpu/$file"; then what=$(grep -m 1 -oE 'run_to_run: .*' "$work/$id.out1"); fi
  if [ -z "$what" ]; then
    printf 'races: %s:%s: no race reported without it\n' "$file" "$(cat "$work/$id/line")"
    tail -n 3 "$work/$id.out1"
    return 1
  elif ! same "$id"; then
    printf 'races: %s:%s: two runs differ: %s\n' "$file" "$(cat "$work/$id/line")" "$(head -n 2 "$work/$id.differ")"
    return 1
  fi
  name=$(grep -m 1 -oE ' section=edge name=[a-z0-9_]+ ' "$work/$id.out1" | sed 's/.*name=//; s/ $//')
  printf '%s\t%s\t%s\t%s\n' "$file" "$nth" "$stem" "$name" >"$work/$id.row"
  printf 'races: %s:%s removed, %s by %s: %s\n' "$file" "$(cat "$work/$id/line")" "$stem" "${name:-the launch}" "$what"
}

# races: removes the barriers and fences that standard input lists, FILE NTH, and after them a kernel file and an edge item
# to begin with, if these are known. As many at once as there are cores; said in their order.
races() {
  local file nth id failed=0 stems stem name ids=()
  while read -r file nth stem name; do
    # Barriers in lib/ are shown by the first of the files that include it.
    mapfile -t stems < <(printf '%s\n' ${stem:+"$stem"}; users "$file" | grep -vxF "${stem:-none}")
    id=${file%.*} id=${id//\//_}_barrier_$nth # sampler.cu and lib/sampler.cuh are two files
    if [ "${#stems[@]}" -eq 0 ] || ! remove "$file" "$nth" "$id"; then
      printf 'races: %s: no barrier or fence %s, or no operator includes it\n' "$file" "$nth"
      failed=1
      continue
    fi
    ids+=("$id")
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    { removed "$file" "$nth" "$id" "${name:-none}" "${stems[@]}" && : >"$work/$id.good"; } >"$work/$id.said" 2>&1 </dev/null &
  done
  wait
  for id in "${ids[@]}"; do
    cat "$work/$id.said"
    [ -e "$work/$id.good" ] || failed=1
  done
  for id in "${ids[@]}"; do cat "$work/$id.row" 2>/dev/null; done >"$work/races.tsv"
  printf 'races: %d of %d barriers and fences\n' "${#ids[@]}" "$(barriers | wc -l)"
  [ "${#ids[@]}" -gt 0 ] && [ "$failed" -eq 0 ]
}

# probe ID: bench/probe_layers.cu with the small model, over $work/ID/gpu.
probe() {
  clang++ -std=c++20 -O1 -g1 -fno-omit-frame-pointer -ffp-contract=off -fsanitize=thread -w -DASSAY_FEW_TYPES -I "$work/$1" \
    -I "$work/$1/gpu" -I include -I . -include "$work/$1/gpu/simt/cuda.h" -x c++ bench/probe_layers.cu -x none \
    "$build/gpu/libassay_simt.a" "$build/core/libassay_core.a" -lboost_context -lyaml -lpthread -o "$work/$1.probe" || return 1
  "$work/$1.probe" check >"$work/$1.out" 2>"$work/$1.err"
}

# A worker's loads may be under way when it gives its slot back. Without the proxy fence the copy engine may then write
# what they have not read yet. An mbarrier does not tell the engine of them.
slots() {
  local id
  for id in layers_fenced layers_unfenced; do
    rm -rf "${work:?}/$id" "$work/$id".*
    mkdir -p "$work/$id"
    cp -r gpu "$work/$id/gpu"
  done
  awk '/layers_give_back\(M/ { inside = 1 } inside && sub(/fence_proxy_async\(\);/, "") { inside = 0 } { print }' gpu/lib/layers.cuh \
    >"$work/layers_unfenced/gpu/lib/layers.cuh"
  if cmp -s gpu/lib/layers.cuh "$work/layers_unfenced/gpu/lib/layers.cuh"; then
    echo 'races: lib/layers.cuh: no fence found in layers_give_back'
    return 1
  fi
  if ! probe layers_fenced; then
    tail -n 5 "$work/layers_fenced.out"
    echo 'races: bench/probe_layers.cu: fails with the fence'
    return 1
  fi
  if probe layers_unfenced || ! grep -m 1 -oE 'race: .*: write by the copy engine .*, and before it read by .*' "$work/layers_unfenced.out"; then
    tail -n 5 "$work/layers_unfenced.out"
    echo 'races: lib/layers.cuh: no race reported without the fence of layers_give_back'
    return 1
  fi
}

# Without the first barrier, some thread reads what no thread has written yet.
uninit() {
  local op id
  op=$(sed -n 's/^ASSAY_OP(\([a-z0-9_]*\)).*/\1/p' include/assay/ops.def | head -n 1)
  id=${op}_unwritten
  remove "$op.cu" 1 "$id" && plugin "$op" "$id" -fsanitize=memory || return 1
  local options
  read -r -d '' -a options < <(chosen "$op" "$id"; printf '\0')
  "$assay" run "conformance/suites/$op.yaml" --section edge --device simt --plugin "$work/$id.so" "${options[@]}" >"$work/$id.out" 2>"$work/$id.err"
  if ! grep -q 'MemorySanitizer: use-of-uninitialized-value' "$work/$id.err" || ! grep -q 'exit status 86' "$work/$id.out"; then
    tail -n 5 "$work/$id.out"
    echo "uninit: shared memory read before it is written was not reported"
    return 1
  fi
  grep -m 1 -A 4 'use-of-uninitialized-value' "$work/$id.err"
}

case $kind in
  sample) clean sample conformance/suites --section check --shard "${SHARD:-1/20}" --power off ;;
  races) rows=$(listed ci/races.tsv) && slots && races <<<"$rows" ;;
  races_all) slots && races < <(barriers) ;;
  uninit) uninit ;;
  *)
    status=0
    # Refused calls run no kernel, and ThreadSanitizer watches kernels alone.
    if [ "$kind" = tsan ]; then sections=edge; else sections='edge refuse'; fi
    for section in ${SECTIONS:-$sections}; do
      # ThreadSanitizer grows slower with every fiber that a process has had: several processes, one after the other.
      # A refused call launches nothing. Planted errors, a third of the time, are no work of the kernels, which alone
      # ThreadSanitizer watches; the others see a quarter of them.
      parts=1 step=1 power=sample suites=conformance/suites thin=()
      # Every thread is a fiber of ThreadSanitizer's, which 65,600 blocks of them make slow and nothing else.
      if [ "$preset" = tsan ]; then
        suites=$work/suites
        mkdir -p "$suites"
        cp conformance/suites/*.yaml "$suites"
        sed -i '/name: rows_beyond_16_bits/d' "$suites"/*.yaml
        # One case of 561 blocks would take two fifths of the time.
        if [ "$kind" = tsan ]; then sed -i '/name: more_ids_than_blocks/d' "$suites"/*.yaml; fi
      fi
      case $kind/$section in
        */refuse) ;;
        asan/*) parts=64 step=64 thin=(--thin) ;;
        tsan/*) parts=80 step=80 power=off thin=(--thin) ;;
        tsan_all/*) parts=40 power=off ;;
      esac
      for ((part = 1; part <= parts; part += step)); do
        clean "$section.$part" "$suites" --section "$section" "${thin[@]}" --shard "$part/$parts" --power "$power" || status=1
      done
    done
    exit $status
    ;;
esac
