#!/usr/bin/env bash
# shellcheck source=ci/lib.sh
# conform.sh: the main job. Verifies every operator on the CPU: installs what is missing, builds, runs all
# suites on simt. Further arguments go to `assay run`: ci/conform.sh --seed 7 --filter gate
# Status: that of `assay run` (docs/judging.md); 2 when something is missing.
. "$(dirname "$0")/lib.sh"

need_packages
step configure configure cpu
step build build cpu --target assay
cd "$root" || exit 2
status=0
build/cpu/assay run conformance/suites --device simt --jsonl build/cpu/conform.jsonl --junit build/cpu/conform.xml "$@" || status=$?
# Forward passes have options of their own.
if [ $# -eq 0 ]; then
  build/cpu/assay run conformance/suites/models.yaml --device simt --jsonl build/cpu/models.jsonl --junit build/cpu/models.xml || status=$?
fi
exit "$status"
