#!/usr/bin/env bash
# install_test.sh BUILD CXX: installs a build into a folder of its own. Builds the plug-in that docs/adding.md prints
# with the project that it prints, and has the installed runner judge it. Then it builds the same plug-in with the
# flags of `pkg-config assay` alone; where pkg-config is missing, a line says so.
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
for file in share/doc/assay/docs/adding.md share/doc/assay/README.md share/pkgconfig/assay.pc; do
  [ -s "$work/prefix/$file" ] || { echo "install: $file is not installed"; exit 1; }
done
lines=$(grep -c . CMakeLists.txt)
[ "$lines" -le 10 ] || { echo "install: the outside project has $lines lines, 10 are allowed"; exit 1; }

cmake -G Ninja -S . -B build -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
cmake --build build >"$work/build.log" || { cat "$work/build.log"; exit 1; }
# Without a build type the helper asks for optimisation and for symbols.
cmake -G Ninja -S . -B plain -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
grep -q -- ' -O2 -g ' plain/compile_commands.json || { echo 'install: without a build type the plug-in is not compiled with -O2 -g'; exit 1; }

# judge PLUGIN: sets passes. Nothing of this repository may be needed: run from elsewhere, with the installed suites.
judge() {
  local status=0
  prefix/bin/assay run prefix/share/assay/suites/gate_attention.yaml --section check --device simt --plugin "$1" \
    --variant gate_attention=one_thread --jsonl run.jsonl >run.log 2>&1 || status=$?
  tail -n 3 run.log
  [ "$status" -eq 0 ] || { cat run.log; echo "install: the outside variant of $1 ends with status $status"; exit 1; }
  passes=$(grep -c '"verdict":"PASS"' run.jsonl || true)
  [ "$passes" -gt 0 ] || { echo "install: the outside variant of $1 has not one PASS"; exit 1; }
}
cd "$work"
judge outside/build/outside.so
by_project=$passes
# Suites and fixtures are the installed ones, unless the environment says otherwise: here a copy without the first.
listed=$(prefix/bin/assay list suites | sed -n 1p)
[ -n "$listed" ] || { echo "install: the installed program lists no suite"; exit 1; }
mkdir -p other/bin other/share/assay/suites
cp prefix/bin/assay other/bin/
cp prefix/share/assay/suites/reglu.yaml other/share/assay/suites/
found=$(other/bin/assay list suites | grep -c '[.]yaml\|reglu' || true)
[ "$(other/bin/assay list suites | wc -l)" -lt "$(prefix/bin/assay list suites | wc -l)" ] && [ "$found" -gt 0 ] || { other/bin/assay list suites; echo "install: the program does not list the suites beside it"; exit 1; }
for file in man/man1/assay.1 man/man1/assay-run.1 bash-completion/completions/assay zsh/site-functions/_assay; do
  [ -s "prefix/share/$file" ] || { echo "install: share/$file is missing"; exit 1; }
done
echo "install: an outside plug-in built from docs/adding.md: $by_project cases pass"

# The same source by the command that docs/adding.md prints beside `pkg-config`.
config=$(command -v pkg-config || command -v pkgconf || true)
if [ -z "$config" ]; then
  echo "install: pkg-config: skipped, it is not installed"
  exit 0
fi
export PKG_CONFIG_PATH=$work/prefix/share/pkgconfig
[ "$("$config" --modversion assay)" = "$(prefix/bin/assay --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)" ] ||
  { "$config" --modversion assay; prefix/bin/assay --version; echo "install: assay.pc has another version than the runner"; exit 1; }
for variable in program suites fixtures; do
  [ -e "$("$config" --variable=$variable assay)" ] || { echo "install: assay.pc: $variable names what does not exist"; exit 1; }
done
command=$(awk '/^```sh$/ { on = 1; text = ""; next } /^```/ { if (on && text ~ /pkg-config --cflags assay/) print text; on = 0 } on { text = text $0 "\n" }' "$root/docs/adding.md")
[ "$(printf '%s\n' "$command" | grep -c 'g++ ')" -eq 1 ] || { echo "install: docs/adding.md has not one command with pkg-config"; exit 1; }
mkdir by_pkg_config
(cd by_pkg_config && cp ../outside/outside.cu . && eval "${command/#g++ /"$cxx" }") || { echo "install: $command: failed"; exit 1; }
judge by_pkg_config/outside.so
[ "$passes" -eq "$by_project" ] || { echo "install: $passes cases pass with pkg-config, $by_project with the CMake package"; exit 1; }
echo "install: the same plug-in by pkg-config: $passes cases pass"
