#!/usr/bin/env bash
# readme_test.sh BUILD [FILE]: every command of README.md (fenced sh blocks) is run by a test, here or by the one named
# below. A command that is neither is a failure, so that what the page says is what works.
set -uo pipefail
build=$(cd "$1" && pwd) || exit 2
cd "$(dirname "$0")/.." || exit 2
page=${2:-README.md}
assay=$build/assay
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ran=0 elsewhere=0 failed=0

bad() {
  printf 'readme: %s\n' "$*"
  failed=$((failed + 1))
}
# by WORD FILE: another test runs it, and that file still says so.
by() {
  elsewhere=$((elsewhere + 1))
  grep -qF -- "$1" "$2" || bad "'$1' is not in $2 any more"
}
# first SUITE: the descriptor of its first case, with the first variant that takes it (3: declined).
first() {
  local op=$1 line variant one
  line=$("$assay" list cases "conformance/suites/$op.yaml" | sed -n '1s/^[^:]*: //p')
  for variant in $("$assay" list variants | awk -v op="$op" '$1 == op { print $2 }'); do
    one=$(printf '%s variant=%s device=simt%s' "$op" "$variant" "${line#"$op"}")
    "$assay" replay "$one" >/dev/null 2>&1
    [ $? -eq 3 ] || break
  done
  printf '%s' "$one"
}
# here COMMAND: without build/cpu, in a shell of its own; no such device (77) will do where it asks for one.
here() {
  local command=$1 op status=0
  ran=$((ran + 1))
  command=${command//build\/cpu\/assay/\"$assay\"}
  if [[ $command =~ \'([a-z_]+)\ …\' ]]; then
    op=${BASH_REMATCH[1]}
    command=${command//"'$op …'"/"'$(first "$op")'"}
  fi
  command=${command//--dump out/--dump \"$work/out\"}
  command=${command//judge out/judge \"$work/out\"}
  command=${command//--jsonl out.jsonl/--jsonl \"$work/out.jsonl\"}
  bash -c "$command" >"$work/said" 2>&1 </dev/null || status=$?
  if [ "$status" -eq 0 ] || { [ "$status" -eq 77 ] && [[ $command == *cuda* ]]; }; then return; fi
  bad "$1: status $status: $(tail -n 3 "$work/said")"
}

while IFS= read -r line; do
  command=$(sed -E 's/ +#.*$//; s/ +$//' <<<"$line")
  case $command in
    '') ;;
    'ci/conform.sh' | 'ci/test.sh') by "$command" .ci/run ;;
    'ci/hopper.sh') by "$command" ci/scripts_selftest.sh ;;
    'cmake --preset cpu && cmake --build --preset cpu && ctest --preset cpu '*) by 'ctest --preset cpu -LE' ci/test.sh ;;
    'cmake --install build/cpu '*) by 'cmake --install' ci/install_test.sh ;;
    'build/cpu/assay run conformance/suites') by 'assay run conformance/suites' ci/conform.sh ;;
    'build/cpu/assay mutants') by 'COMMAND assay mutants' conformance/mutants/CMakeLists.txt ;;
    'build/cpu/assay '*) here "$command" ;;
    *) bad "$command: no test runs it" ;;
  esac
done < <(awk '/^```sh$/ { on = 1; next } /^```/ { on = 0 } on' "$page")
printf 'readme: %d commands run here, %d by other tests, %d failed\n' "$ran" "$elsewhere" "$failed"
[ "$ran" -gt 0 ] && [ "$failed" -eq 0 ]
