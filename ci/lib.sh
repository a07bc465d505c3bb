# shellcheck shell=bash
# lib.sh: what the scripts of this folder share. Sourced, never run. bash.
#
# The scripts say little in a pipe and show everything on a terminal. A step that fails shows its whole
# output; the logs of all steps stay under build/log/.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${ASSAY_JOBS:-$(nproc 2>/dev/null || echo 2)}
# Some tests wait for deadlines, pipes and signals: half as many again fill the cores.
export CTEST_PARALLEL_LEVEL=$((jobs + (jobs + 1) / 2)) CMAKE_BUILD_PARALLEL_LEVEL=$jobs

die() { # die STATUS MESSAGE...
  local status=$1
  shift
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit "$status"
}

# step NAME COMMAND...: runs it, shows its output on a terminal or when it fails, and the time it took.
step() {
  local name=$1 log start status=0
  shift
  mkdir -p "$root/build/log"
  log=$root/build/log/$name.log
  start=$SECONDS
  if [ -t 1 ]; then
    "$@" 2>&1 | tee "$log" || status=$?
  else
    "$@" >"$log" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then cat "$log"; fi
  fi
  if [ "$status" -ne 0 ]; then
    printf '%s: failed with status %d; log: %s\n' "$name" "$status" "${log#"$root"/}" >&2
    return "$status"
  fi
  printf '%-10s %4d s\n' "$name" $((SECONDS - start))
}

# at_least FOUND WANTED: dotted versions.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

cmake_is_new() { command -v cmake >/dev/null && at_least "$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')" 3.25; }

# compiles LANGUAGE TEXT FLAGS...: does the host compiler build and link this? Folders of CMAKE_PREFIX_PATH
# count, as they do for CMake.
compiles() {
  local language=$1 text=$2 prefix flags=() status=0 object compiler=${CC:-cc}
  shift 2
  if [ "$language" = c++ ]; then compiler=${CXX:-c++}; fi
  local IFS=':;'
  for prefix in ${CMAKE_PREFIX_PATH:-}; do
    flags+=("-I$prefix/include" "-L$prefix/lib" "-L$prefix/lib/x86_64-linux-gnu" "-L$prefix/lib64")
  done
  unset IFS
  object=$(mktemp)
  printf '%s\n' "$text" | "$compiler" -x "$language" - "${flags[@]}" "$@" -o "$object" 2>/dev/null || status=1
  rm -f "$object"
  return $status
}

# Prints the Debian packages of what is missing, one per line. Without a compiler the libraries cannot be tried; asking
# for an installed package does no harm.
missing_packages() {
  cmake_is_new || echo cmake
  command -v ninja >/dev/null || command -v ninja-build >/dev/null || echo ninja-build
  command -v "${CC:-cc}" >/dev/null || echo gcc libc6-dev
  command -v "${CXX:-c++}" >/dev/null || echo g++
  compiles c '#include <yaml.h>
int main(void) { return yaml_get_version_string() == 0; }' -lyaml || echo libyaml-dev
  compiles c 'void cblas_dgemm(void); int main(void) { cblas_dgemm(); return 0; }' -lopenblas || echo libopenblas-dev
  compiles c '#include <criterion/criterion.h>
Test(a, b) { cr_assert(1); }' -lcriterion || echo libcriterion-dev
  compiles c++ '#include <boost/context/detail/fcontext.hpp>
int main() { return boost::context::detail::make_fcontext(nullptr, 0, nullptr) == nullptr; }' \
    -lboost_context || echo libboost-context-dev
}

# Installs what is missing, as root with apt; otherwise prints the one line to run and ends with status 2.
need_packages() {
  local missing
  missing=$(missing_packages | tr '\n' ' ')
  [ -n "${missing// /}" ] || return 0
  local line="apt-get update && apt-get install -y --no-install-recommends ${missing% }"
  if ! command -v apt-get >/dev/null; then
    printf 'missing, and there is no apt here; on Debian it would be:\n%s\n' "$line" >&2
    exit 2
  fi
  if [ "$(id -u)" -ne 0 ]; then
    printf 'missing packages; run this, then this script again:\nsudo sh -c "%s"\n' "$line" >&2
    exit 2
  fi
  # shellcheck disable=SC2086 # a list of words
  step packages sh -c 'export DEBIAN_FRONTEND=noninteractive; apt-get update -q && apt-get install -q -y --no-install-recommends "$@"' sh $missing
  missing=$(missing_packages | tr '\n' ' ')
  [ -z "${missing// /}" ] || die 2 "still missing after the installation: $missing"
}

# Puts the wheels that tests need into build/wheels, with pip; ends with status 2 where pip is missing and there is no
# way to get it.
need_wheels() {
  [ ! -e "$root/build/wheels/tvm_ffi/lib/libtvm_ffi.so" ] || return 0
  if ! python3 -m pip --version >/dev/null 2>&1; then
    { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; } || die 2 'missing: python3 with pip; on Debian: apt-get install python3-pip'
    step pip sh -c 'export DEBIAN_FRONTEND=noninteractive; apt-get update -q && apt-get install -q -y --no-install-recommends python3-pip'
  fi
  step wheels python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$root/build/wheels" 'apache-tvm-ffi==0.1.15.post2'
}

# nvcc may lie outside PATH.
find_nvcc() {
  command -v nvcc 2>/dev/null && return 0
  local place
  for place in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    if [ -n "$place" ] && [ -x "$place/bin/nvcc" ]; then
      echo "$place/bin/nvcc"
      return 0
    fi
  done
  return 1
}

configure() { (cd "$root" && cmake --preset "$1" "${@:2}"); }
build() { (cd "$root" && cmake --build --preset "$1" "${@:2}"); }

# Runs CTest and leaves out the lines of tests that passed, unless this is a terminal. Status is CTest's.
quiet_ctest() {
  if [ -t 1 ]; then
    (cd "$root" && ctest "$@")
  else
    (cd "$root" && ctest "$@") | awk '!/^ *Start +[0-9]+: / && !/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: .*  Passed / { print; fflush() }'
  fi
}
