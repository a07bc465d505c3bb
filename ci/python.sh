#!/usr/bin/env bash
# shellcheck source=ci/lib.sh
# python.sh BUILD [quick|whole]: builds the Python wheel from a build, installs it where there is no compiler, and uses it
# (docs/python.md). It runs the README's lines, the tests of python/tests, and callables that are wrong on purpose.
# Without Python, its venv or a package index it is skipped by name; with ASSAY_NEED_WHEELS=1, as in CI, it fails then.
. "$(dirname "$0")/lib.sh"
build=$(cd "${1:?python.sh: needs a build folder}" && pwd) form=${2:-quick}
case $form in quick | whole) ;; *) die 2 "found '$form', allowed: quick, whole" ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# lack WHAT: skips, or fails where Python must be there.
lack() {
  echo "python: skipped: $1"
  [ "${ASSAY_NEED_WHEELS:-0}" != 1 ] || exit 1
  exit 77
}
say() { printf 'python: %-34s %3d s\n' "$1" $((SECONDS - begin)); begin=$SECONDS; }
begin=$SECONDS

python=$(command -v python3) || lack "no python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || lack "python3 is older than 3.10"
"$python" -m venv "$work/make" >"$work/log" 2>&1 || lack "no venv (python3-venv)"
"$work/make/bin/pip" install -q scikit-build-core wheel ninja >"$work/log" 2>&1 || lack "no scikit-build-core from a package index"
say 'what builds the wheel'

# The objects of the build are used: what is left is one link and the plug-in.
cmake --build "$build" --target assay_portable python_door >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# Bytes beside an argument may be the worker's own.
cc -std=c17 -O1 -I "$root/include" -I "$root" "$root/python/tests/around_test.c" "$root/python/door/memory.c" -o "$work/around" \
  >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/around" || die 1 'the door writes beside an argument'
say 'program and plug-in'
"$work/make/bin/pip" wheel -q "$root/python" --no-deps --no-build-isolation -w "$work/wheel" -C cmake.define.ASSAY_BUILD="$build" \
  -C build-dir="$work/wheel-build" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# The C library's version that the files need, which the wheel's name says.
mapfile -t files < <("$python" - "$work" <<'END'
import glob, sys, zipfile
for wheel in glob.glob(sys.argv[1] + "/wheel/*.whl"):
    zipfile.ZipFile(wheel).extractall(sys.argv[1] + "/inside")
print("\n".join(glob.glob(sys.argv[1] + "/inside/assay/engine/**/*", recursive=True)))
END
)
needs=$(for file in "${files[@]}"; do [ -f "$file" ] && grep -aoE 'GLIBC_2\.[0-9]+' "$file"; done | sort -uV | tail -n 1 | cut -d. -f2)
[ -n "$needs" ] || die 1 "no file of the wheel names a version of the C library"
"$work/make/bin/python" -m wheel tags --remove --platform-tag "manylinux_2_${needs}_x86_64" "$work"/wheel/*.whl >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
wheel=$(echo "$work"/wheel/*-py3-none-manylinux_2_"$needs"_x86_64.whl)
[ -f "$wheel" ] || die 1 "found $(ls "$work/wheel"), allowed: one py3-none wheel"
if [ -n "${ASSAY_WHEEL_TO:-}" ]; then cp "$wheel" "$ASSAY_WHEEL_TO/"; fi
say "$(basename "$wheel" | cut -c1-20)…, $(($(wc -c <"$wheel") >> 20)) MB"

# Installed where nothing else is: no compiler, no build, no variable of this project.
"$python" -m venv "$work/clean"
mkdir "$work/home"
clean() { (cd "$work/home" && env -i HOME="$work/home" PATH="$work/clean/bin" LANG=C.UTF-8 "$@"); }
"$work/clean/bin/pip" install -q pytest "$wheel" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for tool in cc gcc g++ cmake; do
  if clean "$tool" --version >/dev/null 2>&1; then die 1 "$tool can be called"; fi
done
say 'installed without a compiler'

# The README's three lines.
awk '/^```python$/ && !done { on = 1; next } /^```/ && on { done = 1; on = 0 } on' "$root/README.md" >"$work/home/three.py"
lines=$(grep -c . "$work/home/three.py" || true)
[ "$lines" -ge 3 ] || die 1 "README.md has no python block"
clean python -W ignore three.py >"$work/log" 2>&1 || { cat "$work/log"; die 1 "the lines of README.md fail"; }
grep -qE '^[0-9]+ PASS' "$work/log" || { cat "$work/log"; die 1 "the lines of README.md judge nothing"; }
say "README: $(grep -m 1 -oE '[0-9]+ PASS' "$work/log")"

# The tests, with NumPy alone and then with the types of ml_dtypes.
cp -r "$root/python/tests" "$root/python/examples" "$work/home/"
tests() { clean python -m pytest -q -p no:cacheprovider "$@" >"$work/log" 2>&1 || { tail -n 80 "$work/log"; die 1 "tests of the package fail"; }; }
tests tests
say "tests: $(tail -n 1 "$work/log" | grep -oE '[0-9]+ passed')"
if "$work/clean/bin/pip" install -q ml_dtypes >"$work/log" 2>&1; then
  tests tests/test_api.py
  ! grep -q skipped "$work/log" || die 1 "a test of fp8 is skipped although ml_dtypes is installed"
  say 'types of ml_dtypes'
else
  lack "no ml_dtypes from a package index"
fi

# Callables that are wrong on purpose die by the checks that kill the same mistakes in C.
clean python -W ignore tests/judge_mutants.py "--$form" >"$work/log" 2>&1 || { cat "$work/log"; die 1 "a mutant survives"; }
grep -qE '^[0-9]{2,} callables, 0 wrong$' "$work/log" || { cat "$work/log"; die 1 "too few mutants were judged"; }
say "$(tail -n 1 "$work/log")"
