#!/usr/bin/env bash
# circles.sh BUILD: finds circles of calls, by the symbols that objects define and use:
#   - among the files of core/, ref/, ref/models/, gpu/models/, conformance/ and bench/, and of gpu/device/ where the build
#     has the CUDA device;
#   - among the folders of the whole tree. The operators that ref/ registers (assay_op_NAME, ops.def) are no calls.
# It also finds circles of includes among the headers, which are all there is of gpu/lib.
# It names the files of a circle and the symbols that close it. A folder of conformance/ that uses a symbol of a later one
# (conformance/CMakeLists.txt has the order) is named as well.
# circles.sh --selftest COMPILER plants a circle of each kind and a use that goes up, and expects each to be named.
# Status 1 when something is found, 2 when there are no objects.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=${ASSAY_CIRCLES_ROOT:-$(dirname "$here")}
build=${1:?circles.sh BUILD}
command -v nm >/dev/null || { echo "circles: nm: not found; it is part of binutils" >&2; exit 2; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
found=0

# object FOLDER LIBRARY FILE TEXT: a source file of the planted tree, and its object.
object() {
  local made=$scratch/build/$1/CMakeFiles/$2.dir/$3.o
  mkdir -p "$(dirname "$scratch/$1/$3")" "$(dirname "$made")"
  printf '%s\n' "$4" >"$scratch/$1/$3"
  "$compiler" -x c -c "$scratch/$1/$3" -o "$made"
}

# header FILE TEXT: a header of the planted tree.
header() {
  mkdir -p "$(dirname "$scratch/$1")"
  printf '%s\n' "$2" >"$scratch/$1"
}

# expect WHAT STATUS TEXT: a run over the planted tree ends with this status and says TEXT.
expect() {
  local out status=0
  out=$(ASSAY_CIRCLES_ROOT=$scratch "$here/circles.sh" "$scratch/build" 2>&1) || status=$?
  if [ "$status" -ne "$2" ] || ! grep -qF -e "$3" <<<"$out"; then
    printf 'circles: selftest: %s: status %d, expected %d and "%s":\n%s\n' "$1" "$status" "$2" "$3" "$out" >&2
    exit 1
  fi
  passed=$((passed + 1))
}

if [ "$build" = --selftest ]; then
  compiler=${2:?circles.sh --selftest COMPILER}
  passed=0
  mkdir -p "$scratch/conformance" "$scratch/include/assay"
  printf 'foreach(floor low high)\n' >"$scratch/conformance/CMakeLists.txt"
  printf 'ASSAY_OP(one, "", "")\n' >"$scratch/include/assay/ops.def"
  engine() { object conformance assay_engine "$@"; }
  engine low/a.c 'int a(void) { return 1; }'
  engine high/b.c 'int a(void); int b(void) { return a(); }'
  object core assay_core k.c 'int k(void) { return 1; }'
  object core assay_core l.c 'int k(void); int l(void) { return k(); }'
  object ref assay_ref one.c 'int assay_op_one; int whole(void) { return 1; }'
  object ref assay_ref two.c 'int part(void); int two(void) { return part(); }'
  object ref assay_ref lib/part.c 'extern int assay_op_one; int part(void) { return assay_op_one; }'
  object ref assay_models models/m.c 'int part(void); int m(void) { return part(); }'
  object gpu assay_gpu_models models/g.c 'int k(void); int g(void) { return k(); }'
  object gpu assay_kernels_cuda device/d.cu 'int d(void) { return 1; }'
  object bench assay_bench t.c 'int a(void); int t(void) { return a(); }'
  header gpu/lib/low.cuh '#include "gpu/lib/lower.cuh"'
  header gpu/lib/lower.cuh '#include <assay/low.h>'
  header include/assay/low.h '#include <stdint.h>'
  expect 'a clean tree, with an operator that is registered' 0 'circles: none'

  engine low/a.c 'int b(void); int a(void) { return b(); }'
  expect 'a use that goes up' 1 'circles: conformance: low/a.c uses b of high/b.c, a later folder'
  engine low/a.c 'int c(void); int a(void) { return c(); }'
  engine low/c.c 'int d3(void); int c(void) { return d3(); }'
  engine low/d.c 'int a(void); int d3(void) { return a(); }'
  expect 'a circle of three' 1 'circles: conformance: low/d.c uses a of low/a.c'
  engine low/d.c 'int d3(void) { return 1; }'

  object core assay_core k.c 'int l(void); int k(void) { return l(); }'
  expect 'a circle in core' 1 'circles: core: k.c uses l of l.c'
  object core assay_core k.c 'int k(void) { return 1; }'
  object gpu assay_gpu_models models/g.c 'int h(void); int g(void) { return h(); }'
  object gpu assay_gpu_models models/h.c 'int g(void); int h(void) { return g(); }'
  expect 'a circle in gpu/models' 1 'circles: gpu/models: models/h.c uses g of models/g.c'
  object gpu assay_gpu_models models/h.c 'int h(void) { return 1; }'
  object gpu assay_kernels_cuda device/d.cu 'int e(void); int d(void) { return e(); }'
  object gpu assay_kernels_cuda device/e.cu 'int d(void); int e(void) { return d(); }'
  expect 'a circle in gpu/device' 1 'circles: gpu/device: device/e.cu uses d of device/d.cu'
  object gpu assay_kernels_cuda device/e.cu 'int e(void) { return 1; }'

  object core assay_core k.c 'int a(void); int k(void) { return a(); }'
  engine high/b.c 'int k(void); int b(void) { return k(); }'
  expect 'no circle: two folders that are used by a third' 0 'circles: none'
  engine low/a.c 'int g(void); int a(void) { return g(); }'
  object gpu assay_gpu_models models/h.c 'int k(void); int h(void) { return k(); }'
  expect 'a circle of three folders' 1 'circles: folders: gpu/models/h.c uses k of core/k.c'
  expect 'a circle of three folders, at its other side' 1 'circles: folders: core/k.c uses a of conformance/low/a.c'
  object core assay_core k.c 'int k(void) { return 1; }'
  object ref assay_ref lib/part.c 'int whole(void); int part(void) { return whole(); }'
  expect 'a circle of folders beside an operator' 1 'circles: folders: ref/lib/part.c uses whole of ref/one.c'
  object ref assay_ref lib/part.c 'int part(void) { return 1; }'

  header gpu/lib/lower.cuh '#include "low.cuh"'
  expect 'a circle of includes' 1 'circles: headers: gpu/lib/lower.cuh includes gpu/lib/low.cuh'
  header gpu/lib/lower.cuh '#include <assay/low.h>'
  header include/assay/low.h '#include "lib/low.cuh"'
  expect 'a circle of includes over two folders' 1 'circles: headers: include/assay/low.h includes gpu/lib/low.cuh'
  header include/assay/low.h '#include <stdint.h>'
  expect 'all taken back' 0 'circles: none'

  rm -r "$scratch/build/core"
  expect 'a build without objects of core' 2 'no objects'
  rm -r "$scratch/build"
  expect 'a build without objects' 2 'no objects'
  echo "circles: selftest: $passed passed"
  exit 0
fi

# objects OBJECTS SOURCES: the objects whose source is still there. Objects of files that are gone stay in a build.
# A kernel's object for the CPU comes from a generated file simt/NAME.cpp, whose source is gpu/NAME.cu.
objects() {
  local object source
  find "$1" -name '*.o' 2>/dev/null | sort | while IFS= read -r object; do
    source=${object##*.dir/}
    source=${source%.o}
    case $1 in *assay_kernels_simt.dir) source=${source#simt/} source=${source%.cpp}.cu ;; esac
    [ ! -e "$root/$2/$source" ] || printf '%s %s/%s\n' "$object" "$2" "$source"
  done
}

# uses LIST: lines `user definer symbol` between different files, by nm. LIST has lines `object file`.
uses() {
  cut -d' ' -f1 "$1" | xargs -d '\n' nm -A 2>/dev/null | awk '
    NR == FNR { name[$1] = $2; next }
    {
      file = name[substr($0, 1, index($0, ".o:") + 1)]
      kind = $(NF - 1)
      symbol = $NF
      if (kind ~ /^[TDBRC]$/) home[symbol] = file
      else if (kind == "U") { count++; user[count] = file; used[count] = symbol }
    }
    END { for (i = 1; i <= count; i++) if (used[i] in home && home[used[i]] != user[i]) print user[i], home[used[i]], used[i] }' "$1" -
}

# closed: of lines `from to`, those pairs, sorted, that reach each other.
closed() {
  awk '
    function number(file) { if (!(file in index_of)) { index_of[file] = ++files; name[files] = file } return index_of[file] }
    { reach[number($1), number($2)] = 1 }
    END {
      for (k = 1; k <= files; k++)
        for (i = 1; i <= files; i++)
          if ((i, k) in reach)
            for (j = 1; j <= files; j++)
              if ((k, j) in reach) reach[i, j] = 1
      for (i = 1; i <= files; i++)
        for (j = 1; j <= files; j++)
          if (i != j && (i, j) in reach && (j, i) in reach) print name[i], name[j]
    }' | sort
}

# say NAME FORMAT: the lines `from to what` of $scratch/uses whose from and to are a pair of $scratch/left, without STRIP.
say() {
  local user definer what
  while read -r user definer what; do
    grep -qxF "$user $definer" "$scratch/left" || continue
    # shellcheck disable=SC2059
    printf "circles: $1: $2\n" "${user#"${3:-}"}" "$what" "${definer#"${3:-}"}"
    found=$((found + 1))
  done <"$scratch/uses"
}

# circles NAME SOURCES OBJECTS: says the circles of files of one library.
circles() {
  objects "$3" "$2" >"$scratch/objects"
  [ -s "$scratch/objects" ] || { echo "circles: no objects in $3" >&2; exit 2; }
  cat "$scratch/objects" >>"$scratch/all"
  uses "$scratch/objects" >"$scratch/uses"
  cut -d' ' -f1,2 "$scratch/uses" | sort -u | closed >"$scratch/left"
  say "$1" '%s uses %s of %s' "$2/"
}

floors=$(sed -n 's/^foreach(floor \(.*\))$/\1/p' "$root/conformance/CMakeLists.txt")
[ -n "$floors" ] || { echo "circles: conformance/CMakeLists.txt: found no foreach(floor ...)" >&2; exit 2; }
: >"$scratch/all"
circles conformance conformance "$build/conformance/CMakeFiles/assay_engine.dir"
awk -v floors="$floors" '
  BEGIN { count = split(floors, name, " "); for (i = 1; i <= count; i++) rank[name[i]] = i }
  {
    sub(/^conformance\//, "", $1); sub(/^conformance\//, "", $2)
    from = $1; sub(/\/.*/, "", from)
    to = $2; sub(/\/.*/, "", to)
    if (rank[to] > rank[from]) printf "circles: conformance: %s uses %s of %s, a later folder\n", $1, $3, $2
  }' "$scratch/uses" >"$scratch/up"
cat "$scratch/up"
found=$((found + $(wc -l <"$scratch/up")))
circles core core "$build/core/CMakeFiles/assay_core.dir"
circles ref ref "$build/ref/CMakeFiles/assay_ref.dir"
circles ref/models ref "$build/ref/CMakeFiles/assay_models.dir"
circles gpu/models gpu "$build/gpu/CMakeFiles/assay_gpu_models.dir"
circles bench bench "$build/bench/CMakeFiles/assay_bench.dir"
cuda=$build/gpu/CMakeFiles/assay_kernels_cuda.dir
[ ! -d "$cuda/device" ] || circles gpu/device gpu "$cuda/device"

# Folders. The commands of conformance/cli and the parts of the simulated device call each other, as one folder each.
for more in conformance:assay gpu:assay_simt gpu:assay_kernels_simt; do
  objects "$build/${more%:*}/CMakeFiles/${more#*:}.dir" "${more%:*}" >>"$scratch/all"
done
sed -n 's/^ASSAY_OP(\([a-z0-9_]*\).*/assay_op_\1/p' "$root/include/assay/ops.def" >"$scratch/hooks"
sort -u "$scratch/all" >"$scratch/objects"
uses "$scratch/objects" | awk 'NR == FNR { hook[$1] = 1; next } !($3 in hook)' "$scratch/hooks" - >"$scratch/calls"
awk '
  {
    from = $1; sub(/\/[^\/]*$/, "", from)
    to = $2; sub(/\/[^\/]*$/, "", to)
    if (from != to) print from, to, $1, $2, $3
  }' "$scratch/calls" >"$scratch/between"
cut -d' ' -f1,2 "$scratch/between" | sort -u | closed >"$scratch/folders"
awk 'NR == FNR { pair[$1 " " $2] = 1; next } ($1 " " $2) in pair { print $3, $4, $5 }' "$scratch/folders" "$scratch/between" >"$scratch/uses"
cut -d' ' -f1,2 "$scratch/uses" | sort -u >"$scratch/left"
say folders '%s uses %s of %s'

# Headers. A name is looked for beside the file, then from the folders that the build looks in.
(cd "$root" && find core ref gpu conformance bench include fuzz \( -name '*.h' -o -name '*.cuh' \) 2>/dev/null | sort) >"$scratch/headers"
(cd "$root" && xargs -d '\n' grep -oE '^#include [<"][^>"]+[>"]' /dev/null <"$scratch/headers") | awk '
  NR == FNR { there[$1] = 1; next }
  {
    file = $0; sub(/:.*/, "", file)
    name = $0; sub(/^[^<"]*[<"]/, "", name); sub(/[>"]$/, "", name)
    folder = file; sub(/[^\/]*$/, "", folder)
    if (!((folder name) in there) && !(name in there)) {
      if (("gpu/" name) in there) name = "gpu/" name
      else if (("include/" name) in there) name = "include/" name
      else next
    } else if ((folder name) in there) name = folder name
    print file, name, "-"
  }' "$scratch/headers" - >"$scratch/uses"
cut -d' ' -f1,2 "$scratch/uses" | sort -u | closed >"$scratch/left"
say headers '%s includes%.0s %s'

if [ "$found" -gt 0 ]; then
  printf 'circles: %d uses close a circle or go up\n' "$found"
  exit 1
fi
echo "circles: none"
