#!/usr/bin/env bash
# gpus_selftest.sh [CMAKE [CTEST]]: tries gpus.sh and on_gpu.sh under CTest, with GPUs that do not exist. Every test has
# one of them, no GPU has two tests at a time, and all of them work. Faults in this must be noticed. Status 1 otherwise.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cmake=${1:-cmake} ctest=${2:-ctest}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
bad() { printf 'gpus_selftest: %s\n' "$1"; failed=1; }
unset CTEST_RESOURCE_GROUP_0_GPUS CUDA_VISIBLE_DEVICES

mkdir -p "$work/bin" "$work/p" "$work/log"
printf '#!/bin/sh\nprintf "0\\n1\\n"\n' >"$work/bin/nvidia-smi"
# A test: when it began and ended, and what it saw.
cat >"$work/one.sh" <<'ONE'
#!/usr/bin/env bash
begin=$(date +%s%N)
sleep 0.4
printf '%s %s %s\n' "$begin" "$(date +%s%N)" "${CUDA_VISIBLE_DEVICES:-none}" >"$1"
ONE
chmod +x "$work/bin/nvidia-smi" "$work/one.sh"
cat >"$work/p/CMakeLists.txt" <<LISTS
cmake_minimum_required(VERSION 3.25)
project(p LANGUAGES NONE)
enable_testing()
foreach(i RANGE 1 6)
  add_test(NAME t\${i} COMMAND $here/on_gpu.sh $work/one.sh $work/log/\${i})
  set_tests_properties(t\${i} PROPERTIES RESOURCE_GROUPS gpus:1)
endforeach()
LISTS
"$cmake" -G Ninja -S "$work/p" -B "$work/b" >"$work/said" 2>&1 || { cat "$work/said"; exit 1; }

# looks: "GPUS OVERLAPS TOGETHER": how many GPUs were seen, how many pairs of tests had one at once, how many pairs ran at once.
looks() {
  cat "$work"/log/* | awk '{ b[NR] = $1; e[NR] = $2; g[NR] = $3; seen[$3] = 1 }
    END {
      for (i = 1; i <= NR; ++i) for (j = i + 1; j <= NR; ++j) if (b[i] < e[j] && b[j] < e[i]) { ++together; same += g[i] == g[j] }
      for (x in seen) ++n
      print n + 0, same + 0, (together > 0) + 0, NR
    }'
}
# expect WHAT FOUND WANTED
expect() { [ "$2" = "$3" ] || bad "$1: found '$2', expected '$3'"; }
runs() { rm -f "$work"/log/*; "$ctest" --test-dir "$work/b" -j6 "$@" >"$work/said" 2>&1 || { cat "$work/said"; bad "ctest $*"; }; }

PATH=$work/bin:$PATH "$here/gpus.sh" >"$work/two.json"
expect 'two GPUs' "$(grep -o '"id": "[0-9]"' "$work/two.json" | tr '\n' ' ')" '"id": "0" "id": "1" '
runs --resource-spec-file "$work/two.json"
expect 'on two GPUs' "$(looks)" '2 0 1 6'
CUDA_VISIBLE_DEVICES=5,7,9 "$here/gpus.sh" >"$work/three.json"
export CUDA_VISIBLE_DEVICES=5,7,9
runs --resource-spec-file "$work/three.json"
expect 'on three of several' "$(looks)" '3 0 1 6'
expect 'which three' "$(awk '{ print $3 }' "$work"/log/* | sort -u | tr '\n' ' ')" '5 7 9 '
unset CUDA_VISIBLE_DEVICES
# No specification: one at a time.
runs
expect 'without a specification' "$(looks)" '1 0 0 6'
# Would it be noticed? Tests that take no resource, and a GPU with two slots.
sed -i 's/"slots": 1/"slots": 2/g' "$work/two.json"
runs --resource-spec-file "$work/two.json"
case $(looks) in *' 0 '?' 6') bad 'two tests on one GPU are not noticed' ;; esac
CTEST_RESOURCE_GROUP_0_GPUS=id:x,slots:1 "$here/on_gpu.sh" true >/dev/null && bad 'a bad id is taken'
CUDA_VISIBLE_DEVICES=3 CTEST_RESOURCE_GROUP_0_GPUS=id:1,slots:1 "$here/on_gpu.sh" true >/dev/null && bad 'a place that is not there is taken'
[ "$failed" -eq 0 ] && echo 'gpus_selftest: all as expected'
exit "$failed"
