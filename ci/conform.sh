#!/usr/bin/env bash
# shellcheck source=ci/lib.sh
# conform.sh: the main job. Verifies every operator on the CPU: installs what is missing, builds, runs all
# suites on simt, thinned (docs/suites.md), with each planted error in a quarter of the cases; the night has them in
# every case. Of the forward passes it runs five small models; forward.models of the tests runs every architecture.
# Further arguments go to `assay run`: ci/conform.sh --seed 7 --filter gate
# Status: that of `assay run` (docs/judging.md); 2 when something is missing.
. "$(dirname "$0")/lib.sh"

need_packages
step configure configure cpu
step build build cpu --target assay assay_pages
cd "$root" || exit 2
status=0
# Forward passes have options of their own. They fill one core, and run beside the suites: their lines come last.
models=
if [ $# -eq 0 ]; then
  said=$(mktemp)
  build/cpu/assay run conformance/suites/models.yaml --filter small_ --device simt --jsonl build/cpu/models.jsonl --junit build/cpu/models.xml >"$said" 2>&1 &
  models=$!
  trap 'kill "$models" 2>/dev/null || true; rm -f "$said"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
fi
build/cpu/assay run conformance/suites --device simt --thin --power sample --jsonl build/cpu/conform.jsonl --junit build/cpu/conform.xml "$@" || status=$?
if [ -n "$models" ]; then
  wait "$models" || status=$?
  cat "$said"
fi
exit "$status"
