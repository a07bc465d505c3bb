#!/usr/bin/env bash
# ptxas.sh: compiles every gpu/**/*.cu for sm_90a and reads what the assembler says of each kernel. Needs nvcc,
# no GPU. Fails on spills, stack frames, remarks C75xx (serialised wgmma, ignored setmaxnreg) and on a kernel
# without a row in docs/kernels/registers.tsv. Registers or shared memory that differ from the table are
# printed. In the machine code of each kernel prefill* or *_wgmma of a file *_wgmma.cu there must be HGMMA or QGMMA:
# tensor cores fed by descriptors.
# docs/kernels/registers_sums.tsv has a checksum of each file that passed: of all that decides the result (sums).
# A file with the same checksum is not compiled again, unless `--all` asks for it.
# `--update` rewrites the tables, or with files their rows. `--selftest` plants a spill and expects the failure.
# Status 77 without nvcc (CTest: skipped). `ci/ptxas.sh FILE.cu...` looks at these only, without the table.
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

nvcc=$(find_nvcc) || { echo "ptxas: no nvcc here: skipped"; exit 77; }
table=$root/docs/kernels/registers.tsv
passed=$root/docs/kernels/registers_sums.tsv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
demangle=$(command -v "$(dirname "$nvcc")/cu++filt" || command -v cu++filt || command -v c++filt || true)

# assemble FILE CUBIN REPORT: writes the machine code and the assembler's report; status 1 with the compiler's words.
assemble() {
  "$nvcc" -gencode=arch=compute_90a,code=sm_90a -std=c++20 -I"$root" -I"$root/include" -I"$root/gpu" -Xptxas -v -cubin -o "$2" "$1" >"$3" 2>&1
}

# short_names: prints the names of kernels, one per line, without the namespace, the return type and the argument list.
short_names() {
  ${demangle:-cat} |
    sed -e 's/^void //; s/assay_cuda_device:://g; s/(anonymous namespace):://g; s/<unnamed>:://g; s/(bool)1/true/g; s/(bool)0/false/g; s/([a-z ]*)\([0-9]\)/\1/g' -e 's/(.*$//'
}

# without_hgmma FILE CUBIN: of a file *_wgmma.cu, prints what in its cubin has no HGMMA and should. An instruction of
# sm_90 has 16 bytes. In HGMMA its lowest 12 bits are 9f0 (both factors in shared memory) or df0 (one in registers), as
# nvdisasm 13 prints them. QGMMA, of 8-bit factors, has 9f3. No other instruction of these kernels has these bits.
without_hgmma() {
  [[ $1 == *_wgmma.cu ]] || return 0
  local kernels=0 name short offset size count
  while read -r name offset size; do
    short=$(short_names <<<"$name")
    [[ $short == prefill* || $short == *_wgmma\<* ]] || continue
    kernels=$((kernels + 1))
    count=$(od -An -v -tx8 -w16 -j $((16#$offset)) -N $((16#$size)) "$2" | awk '{ if (substr($1, 14) ~ /^[9d]f[03]$/) ++n } END { print n + 0 }')
    [ "$count" -gt 0 ] || printf 'ptxas: %s: %s: no HGMMA in its machine code\n' "$1" "$short"
  done < <(readelf -SW "$2" 2>/dev/null | sed -n 's/.* \.text\.\([^ ]*\) *PROGBITS *[0-9a-f]* \([0-9a-f]*\) \([0-9a-f]*\) .*/\1 \2 \3/p')
  [ "$kernels" -gt 0 ] || printf 'ptxas: %s: no kernel prefill or _wgmma in it, nowhere to look for HGMMA\n' "$1"
}

# rows FILE REPORT: kernel, registers, static shared bytes, stack, spill stores, spill loads; tab separated.
rows() {
  awk -v file="$1" '
    function flush() { if (name != "") printf "%s\t%s\t%d\t%d\t%d\t%d\t%d\n", file, name, registers, shared, stack, stores, loads; name = "" }
    /Compiling entry function/ { flush(); split($0, part, "\047"); name = part[2]; registers = shared = stack = stores = loads = 0 }
    /Function properties for/ { other = ($NF != name) }
    /bytes stack frame/ {
      match($0, /[0-9]+ bytes stack frame/); n = substr($0, RSTART) + 0
      match($0, /[0-9]+ bytes spill stores/); s = substr($0, RSTART) + 0
      match($0, /[0-9]+ bytes spill loads/); l = substr($0, RSTART) + 0
      if (n > stack) stack = n
      stores += s; loads += l
    }
    /Used [0-9]+ registers/ {
      match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5) + 0
      if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART) + 0
    }
    END { flush() }' "$2" >"$2.raw"
  cut -f2 "$2.raw" | short_names >"$2.names"
  paste "$2.names" "$2.raw" | awk -F'\t' -v OFS='\t' '{ print $2, $1, $4, $5, $6, $7, $8 }'
}

# faults REPORT ROWS: prints what is not allowed.
faults() {
  awk -F'\t' '$5 > 0 || $6 > 0 || $7 > 0 { printf "ptxas: %s: %s: %d bytes of stack frame, %d of spill stores, %d of spill loads; none is allowed\n", $1, $2, $5, $6, $7 }' "$2"
  grep -E '\(C75[0-9][0-9]\)|C75[0-9][0-9]' "$1" | sed 's/^/ptxas: remark: /' || true
}

# includes FILE...: prints each file with every file of the tree that it includes, through others too; tab separated.
includes() {
  awk 'function scan(path, line, n, state) {
      if (path in known) return known[path]
      while ((state = (getline line <path)) > 0)
        if (match(line, /^[ \t]*#[ \t]*include[ \t]*[<"][^>"]+/)) {
          sub(/^[^<"]*[<"]/, "", line)
          sub(/[>"].*/, "", line)
          name[path, ++n] = line
        }
      close(path)
      count[path] = n + 0
      return known[path] = state == 0
    }
    function visit(top, path, i, k, place, folder) {
      if ((top, path) in met) return
      met[top, path] = 1
      print top "\t" path
      folder = path
      sub(/[^\/]*$/, "", folder)
      for (i = 1; i <= count[path]; ++i) {
        split(folder " include/ gpu/", place, " ")
        if (scan(name[path, i])) visit(top, name[path, i])
        for (k in place) if (scan(place[k] name[path, i])) visit(top, place[k] name[path, i])
      }
    }
    BEGIN { for (f = 1; f < ARGC; ++f) if (scan(ARGV[f])) visit(ARGV[f], ARGV[f]) }' "$@"
}

# sums TABLE FILE...: prints each file with a checksum of the compilers, this script, the file, all that it includes, and
# its rows of the table.
sums() {
  local rows=$1 file common
  shift
  common=$({ "$nvcc" --version; "${CXX:-c++}" --version | head -n 1; cat "$root/ci/ptxas.sh"; } | sha256sum)
  includes "$@" | LC_ALL=C sort >"$work/includes"
  cut -f2 "$work/includes" | LC_ALL=C sort -u | xargs -d '\n' sha256sum >"$work/contents"
  for file in "$@"; do
    printf '%s\t' "$file"
    {
      printf '%s\n' "$common"
      awk -F'\t' -v file="$file" 'FNR == NR { if ($1 == file) mine[$2]; next } substr($0, 67) in mine' "$work/includes" "$work/contents"
      awk -F'\t' -v file="$file" '$1 == file' "$rows"
    } | sha256sum | cut -c1-32
  done
}

# Two thousand bytes that every thread indexes at run time: local memory, surely.
selftest() {
  cat >"$work/spill.cu" <<'CU'
__global__ void spill(float *out, const int *index) {
  float kept[512];
  for (int i = 0; i < 512; ++i) kept[i] = out[i * 7 + threadIdx.x];
  for (int i = 0; i < 512; ++i) kept[index[i] & 511] += kept[index[i + 1] & 511];
  out[threadIdx.x] = kept[index[3] & 511];
}
CU
  cat >"$work/plain.cu" <<'CU'
__global__ void plain(float *out) { out[threadIdx.x] = 1.0f; }
CU
  if ! "$0" "$work/plain.cu" >"$work/said"; then
    cat "$work/said"
    echo "ptxas selftest: a plain kernel fails"
    exit 1
  fi
  if "$0" "$work/spill.cu" >"$work/said"; then
    echo "ptxas selftest: a planted stack frame passes"
    exit 1
  fi
  grep -q 'spill.cu: spill: .*stack frame' "$work/said" || { cat "$work/said"; echo "ptxas selftest: the planted stack frame is not named"; exit 1; }
  printf 'ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n' >"$work/remark"
  : >"$work/none"
  [ -n "$(faults "$work/remark" "$work/none")" ] || { echo "ptxas selftest: a remark C7510 passes"; exit 1; }
  for name in plain prefill; do
    sed "s/plain/$name/" "$work/plain.cu" >"$work/${name}_wgmma.cu"
    if "$0" "$work/${name}_wgmma.cu" >"$work/said" || ! grep -q 'HGMMA' "$work/said"; then
      cat "$work/said"
      echo "ptxas selftest: ${name}_wgmma.cu without HGMMA passes"
      exit 1
    fi
  done
  # A file is compiled again after a change of what it includes, of its rows, or of a line of its own.
  mkdir "$work/lib"
  printf '#include "lib/outer.cuh"\n__global__ void plain(float *out) { out[threadIdx.x] = one; }\n' >"$work/sums.cu"
  echo '#include "inner.cuh"' >"$work/lib/outer.cuh"
  echo 'constexpr float one = 1;' >"$work/lib/inner.cuh"
  printf '%s\tplain\t8\t0\n' "$work/sums.cu" >"$work/sums.tsv"
  sums "$work/sums.tsv" "$work/sums.cu" >"$work/sums.1"
  sums "$work/sums.tsv" "$work/sums.cu" >"$work/sums.2"
  sed -i 's/1;/2;/' "$work/lib/inner.cuh"
  sums "$work/sums.tsv" "$work/sums.cu" >"$work/sums.3"
  sed -i 's/8/9/' "$work/sums.tsv"
  sums "$work/sums.tsv" "$work/sums.cu" >"$work/sums.4"
  echo >>"$work/sums.cu"
  sums "$work/sums.tsv" "$work/sums.cu" >"$work/sums.5"
  if ! cmp -s "$work/sums.1" "$work/sums.2" || [ "$(cat "$work"/sums.[2345] | sort -u | wc -l)" -ne 4 ]; then
    cat "$work"/sums.[12345]
    echo "ptxas selftest: a checksum changes without a change, or does not with one"
    exit 1
  fi
  echo "ptxas selftest: a plain kernel passes; a stack frame, a remark, missing HGMMA and changed files are seen"
  exit 0
}

mode=check
every=0
files=()
for word in "$@"; do
  case $word in
    --update) mode=update ;;
    --all) every=1 ;;
    --selftest) selftest ;;
    -*) die 2 "unknown option $word; allowed: --all, --update, --selftest" ;;
    *) files+=("$word"); [ "$mode" = update ] || mode=named ;;
  esac
done
named=("${files[@]}")
if [ "${#files[@]}" -eq 0 ]; then mapfile -t files < <(cd "$root" && find gpu -name '*.cu' | sort); fi
cd "$root" || exit 2

# The files that passed as they are now.
declare -A same=()
if [ "$every" -eq 0 ] && [ "${#named[@]}" -eq 0 ] && [ -e "$table" ] && [ -e "$passed" ]; then
  sums "$table" "${files[@]}" | LC_ALL=C sort >"$work/now"
  while IFS=$'\t' read -r file _; do
    awk -F'\t' -v file="$file" '$1 == file { found = 1 } END { exit !found }' "$table" && same[$file]=1
  done < <(LC_ALL=C sort "$passed" | LC_ALL=C comm -12 - "$work/now")
fi

# examine FILE NUMBER: writes NUMBER.rows, and to NUMBER.faults what is wrong with the file.
examine() {
  local name=$1 at=$work/$2
  case $1 in /*) name=$(basename "$1") ;; esac
  if ! assemble "$1" "$at.cubin" "$at.report"; then
    { cat "$at.report"; echo "ptxas: $1: does not compile"; } >"$at.faults"
    : >"$at.rows"
    return
  fi
  rows "$name" "$at.report" >"$at.rows"
  faults "$at.report" "$at.rows" >"$at.faults"
  without_hgmma "$name" "$at.cubin" >>"$at.faults"
}

# As many files at once as there are cores; what is said of them comes in their order.
bad=0
number=0
for file in "${files[@]}"; do
  number=$((number + 1))
  if [ -n "${same[$file]:-}" ]; then
    awk -F'\t' -v OFS='\t' -v file="$file" '$1 == file { print $0, 0, 0, 0 }' "$table" >"$work/$number.rows"
    : >"$work/$number.faults"
    continue
  fi
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  examine "$file" "$number" &
done
wait
: >"$work/all"
for ((i = 1; i <= number; ++i)); do
  if [ ! -e "$work/$i.faults" ]; then
    echo "ptxas: ${files[i - 1]}: was not examined"
    bad=1
    continue
  fi
  cat "$work/$i.rows" >>"$work/all"
  if [ -s "$work/$i.faults" ]; then
    cat "$work/$i.faults"
    bad=1
  fi
done

{
  printf 'file\tkernel\tregisters\tshared\n'
  {
    cut -f1-4 "$work/all"
    # The rows of files that were not named stay.
    [ "$mode" != update ] || [ "${#named[@]}" -eq 0 ] ||
      awk -F'\t' -v named="${named[*]}" 'BEGIN { n = split(named, list, " "); for (i = 1; i <= n; ++i) drop[list[i]] = 1 } FNR > 1 && !($1 in drop)' "$table"
  } | LC_ALL=C sort
} >"$work/table"
case $mode in
  update)
    cp "$work/table" "$table"
    good=()
    for ((i = 1; i <= number; ++i)); do
      if [ -e "$work/$i.faults" ] && [ ! -s "$work/$i.faults" ] && [ -s "$work/$i.rows" ]; then good+=("${files[i - 1]}"); fi
    done
    {
      printf 'file\tchecksum\n'
      {
        if [ "${#good[@]}" -gt 0 ]; then sums "$table" "${good[@]}"; fi
        if [ "${#named[@]}" -gt 0 ] && [ -e "$passed" ]; then
          awk -F'\t' -v named="${named[*]}" 'BEGIN { n = split(named, list, " "); for (i = 1; i <= n; ++i) drop[list[i]] = 1 } FNR > 1 && !($1 in drop)' "$passed"
        fi
      } | LC_ALL=C sort
    } >"$work/passed"
    cp "$work/passed" "$passed"
    echo "ptxas: wrote ${table#"$root"/}: $(($(wc -l <"$work/table") - 1)) kernels"
    ;;
  check)
    [ -e "$table" ] || { echo "ptxas: docs/kernels/registers.tsv is missing; write it with: ci/ptxas.sh --update"; exit 1; }
    awk -F'\t' '
      FNR == 1 { next }
      FNR == NR { was[$1 FS $2] = $3 FS $4; next }
      {
        key = $1 FS $2
        seen[key] = 1
        if (!(key in was)) { printf "ptxas: %s: %s: no row in docs/kernels/registers.tsv; add it with: ci/ptxas.sh --update\n", $1, $2; bad = 1 }
        else if (was[key] != $3 FS $4) { split(was[key], old, FS); printf "ptxas: drift: %s: %s: %s registers and %s bytes shared, the table says %s and %s\n", $1, $2, $3, $4, old[1], old[2] }
      }
      END {
        for (key in was) if (!(key in seen)) { split(key, part, FS); printf "ptxas: drift: %s: %s: in the table, but gone\n", part[1], part[2] }
        exit bad
      }' "$table" "$work/table" || bad=1
    ;;
esac
printf 'ptxas: %d kernels in %d files for sm_90a, %d of them unchanged since they passed: %s\n' "$(wc -l <"$work/all")" "${#files[@]}" "${#same[@]}" "$([ $bad -eq 0 ] && echo 'no spill, no stack frame' || echo FAILED)"
exit $bad
