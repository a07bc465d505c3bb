#!/usr/bin/env bash
# shellcheck source=ci/lib.sh
# test.sh: the tests. Installs what is missing, builds everything, runs CTest without the labels nightly and
# hopper. Further arguments go to ctest: ci/test.sh -L mutants
. "$(dirname "$0")/lib.sh"

need_packages
step configure configure cpu
step build build cpu
quiet_ctest --preset cpu -LE 'nightly|hopper' "$@"
