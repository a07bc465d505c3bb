#!/usr/bin/env bash
# install_test.sh BUILD CXX: installs a build into a folder of its own, builds the plug-in that docs/adding.md
# prints with the project that it prints, and has the installed runner judge it.
set -euo pipefail

build=$1 cxx=$2
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fenced LANGUAGE: the first block of that language on the page.
fenced() { awk -v fence="\`\`\`$1" '$0 == fence && !done { on = 1; next } /^```/ && on { on = 0; done = 1 } on' "$root/docs/adding.md"; }

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
mkdir -p "$work/outside"
cd "$work/outside"
fenced cmake >CMakeLists.txt
fenced cuda >outside.cu
[ -s CMakeLists.txt ] && [ -s outside.cu ] || { echo "install: docs/adding.md has no cmake or no cuda block"; exit 1; }
lines=$(grep -c . CMakeLists.txt)
[ "$lines" -le 10 ] || { echo "install: the outside project has $lines lines, 10 are allowed"; exit 1; }

cmake -G Ninja -S . -B build -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
cmake --build build >"$work/build.log" || { cat "$work/build.log"; exit 1; }

# Nothing of this repository may be needed: run from elsewhere, with the installed suites.
cd "$work"
status=0
prefix/bin/assay run prefix/share/assay/suites/gate_attention.yaml --section check --device simt --plugin outside/build/outside.so \
  --variant gate_attention=one_thread --jsonl run.jsonl >run.log 2>&1 || status=$?
tail -n 3 run.log
[ "$status" -eq 0 ] || { cat run.log; echo "install: the outside variant ends with status $status"; exit 1; }
passes=$(grep -c '"verdict":"PASS"' run.jsonl || true)
[ "$passes" -gt 0 ] || { echo "install: the outside variant has not one PASS"; exit 1; }
# Suites and fixtures are the installed ones, unless the environment says otherwise: here a copy without the first.
listed=$(prefix/bin/assay list suites | sed -n 1p)
[ -n "$listed" ] || { echo "install: the installed program lists no suite"; exit 1; }
mkdir -p other/bin other/share/assay/suites
cp prefix/bin/assay other/bin/
cp prefix/share/assay/suites/reglu.yaml other/share/assay/suites/
found=$(other/bin/assay list suites | grep -c '[.]yaml\|reglu' || true)
[ "$(other/bin/assay list suites | wc -l)" -lt "$(prefix/bin/assay list suites | wc -l)" ] && [ "$found" -gt 0 ] || { other/bin/assay list suites; echo "install: the program does not list the suites beside it"; exit 1; }
echo "install: an outside plug-in built from docs/adding.md: $passes cases pass"
