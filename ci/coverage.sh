#!/usr/bin/env bash
# coverage.sh [BUILD] [--keep]: which lines of gpu/, ref/, core/ and conformance/ the suites (check, edge, refuse) and
# some unit tests run on simt. Built with gcc --coverage in BUILD (build/coverage); gcov counts. Prints a line a file of
# gpu/ and a sum a folder; BUILD/coverage/uncovered.txt has every line that nothing ran, coverage.tsv the figures.
# Status 1 when a file of gpu/ lies below its floor, 77 without gcc and gcov. --keep: the counts of the last run again.
# A template's or a header's line counts as run when one instance of it ran.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
root=$PWD
build=build/coverage
keep=
for word; do case $word in --keep) keep=1 ;; *) build=$word ;; esac; done
mkdir -p "$build" && build=$(cd "$build" && pwd) || exit 2
jobs=${ASSAY_JOBS:-$(nproc 2>/dev/null || echo 2)}
cc=${CC:-gcc}
cxx=${CXX:-g++}
gcov=${GCOV:-gcov}
if ! command -v "$gcov" >/dev/null || ! grep -q 'Free Software' < <("$cc" --version 2>/dev/null); then
  echo "coverage: needs gcc and its gcov: skipped"
  exit 77
fi
tests=(simt_test simt_philox_test simt_sampler_test simt_model_test simt_plain_test kv_test judge_test execute_test ref_check_test)
out=$build/coverage
mkdir -p "$out"

# The floor of a file of gpu/, in percent of its lines: docs/simt.md says what the rest is.
floor_of() {
  case $1 in
    gpu/simt/race.*) echo 0 ;; # compiled for ThreadSanitizer alone
    gpu/simt/*) echo 80 ;;
    gpu/models/*) echo 85 ;;
    gpu/lib/*.h) echo 80 ;; # refusals, most of what they are
    gpu/lib/*) echo 90 ;;
    *) echo 95 ;;
  esac
}

make_it() {
  # Workers end by _exit, which writes no counts.
  cat >"$out/ends.c" <<'C'
void __gcov_dump(void);
void __real__exit(int status) __attribute__((noreturn));
void __wrap__exit(int status) __attribute__((noreturn));
void __wrap__exit(int status) {
  __gcov_dump();
  __real__exit(status);
}
C
  "$cc" -O1 -fPIC -c "$out/ends.c" -o "$out/ends.o" &&
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DASSAY_CUDA=OFF "-DCMAKE_C_COMPILER=$cc" "-DCMAKE_CXX_COMPILER=$cxx" \
      "-DCMAKE_C_FLAGS_DEBUG=-O1 -g1 --coverage" "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1 --coverage" \
      "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--wrap=_exit $out/ends.o --coverage" &&
    cmake --build "$build" -j "$jobs" --target assay "${tests[@]}"
}

if [ -z "$keep" ]; then
  if ! make_it >"$out/build.log" 2>&1; then
    tail -n 40 "$out/build.log"
    exit 1
  fi
  find "$build" -name '*.gcda' -delete
  for section in check edge refuse; do
    # A verdict is not asked here: the suites' own tests do.
    "$build/assay" run conformance/suites --section "$section" --device simt --deadline 600 >"$out/$section.log" 2>&1
    tail -n 1 "$out/$section.log"
  done
  for test in "${tests[@]}"; do
    "$build/conformance/selftest/$test" --verbose=0 >"$out/$test.log" 2>&1 || echo "coverage: $test failed: $out/$test.log"
  done
fi

# Counts of one line from all objects that have it: run once is run.
(cd "$out" && find "$build" -name '*.gcda' -print0 | xargs -0 -n 16 "$gcov" -t -r -s "$root" 2>/dev/null) |
  awk -v tsv="$out/coverage.tsv" -v missed="$out/uncovered.txt" -v OFS='\t' '
    {
      first = index($0, ":")
      if (first == 0) next
      count = substr($0, 1, first - 1)
      rest = substr($0, first + 1)
      second = index(rest, ":")
      if (second == 0) next
      number = substr(rest, 1, second - 1) + 0
      text = substr(rest, second + 1)
      gsub(/[ *]/, "", count)
      if (number == 0) {
        if (text ~ /^Source:/) { file = substr(text, 8); wanted = file ~ /^(gpu|ref|core|conformance)\// && file !~ /^conformance\/selftest/ }
        next
      }
      if (!wanted || count == "-" || count == "") next
      key = file SUBSEP number
      if (!(key in seen)) { seen[key] = 0; words[key] = text; ++lines[file]; if (number > last[file]) last[file] = number }
      if (count !~ /^[#=]/ && !seen[key]) { seen[key] = 1; ++ran[file] }
    }
    END {
      for (file in lines) print file, lines[file], ran[file] + 0 >tsv
      for (file in lines)
        for (n = 1; n <= last[file]; ++n)
          if (((file, n) in seen) && !seen[file, n]) print file ":" n ":" words[file, n] | ("LC_ALL=C sort -t: -k1,1 -k2,2n >" missed)
    }'
if [ ! -s "$out/coverage.tsv" ]; then
  echo "coverage: no counts"
  exit 1
fi
LC_ALL=C sort -o "$out/coverage.tsv" "$out/coverage.tsv"

failed=0
while IFS=$'\t' read -r file lines ran; do
  case $file in gpu/*) ;; *) continue ;; esac
  floor=$(floor_of "$file")
  mark=
  if [ $((ran * 100)) -lt $((floor * lines)) ]; then
    mark="  below $floor %"
    failed=1
  fi
  printf '%-40s %5d of %5d lines  %5.1f %%%s\n' "$file" "$ran" "$lines" "$(awk -v a="$ran" -v b="$lines" 'BEGIN { print 100 * a / b }')" "$mark"
done <"$out/coverage.tsv"
for folder in core ref gpu conformance; do
  awk -F'\t' -v folder="$folder" 'index($1, folder "/") == 1 { lines += $2; ran += $3 } END { if (lines > 0) printf "%s/: %d of %d lines, %.1f %%\n", folder, ran, lines, 100 * ran / lines }' "$out/coverage.tsv"
done
printf 'not run: %s\n' "$out/uncovered.txt"
exit $failed
