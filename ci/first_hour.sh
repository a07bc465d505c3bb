#!/usr/bin/env bash
# first_hour.sh BUILD [FILE]: runs every sh block of docs/first-hour.md, in order, and checks what the line below it says:
#
#   > exit N, prints `TEXT`, prints `TEXT`       the exit status, and texts that the block prints
#   > needs `TOOL`, exit N, ...                  the same, where TOOL is in PATH and may debug
#   > not run: REASON                            a block that cannot run here
#
# A block without such a line is a failure. build/cpu stands for BUILD, build/hour for a folder of this run.
set -uo pipefail
build=$(cd "$1" && pwd) || exit 2
cd "$(dirname "$0")/.." || exit 2
page=${2:-docs/first-hour.md}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/hour"
ran=0 left=0 failed=0

bad() {
  printf 'first_hour: %s\n' "$*"
  failed=$((failed + 1))
}

# One file per block, N.sh, and the line below it, N.says.
awk -v work="$work" '
  /^```sh$/ { on = 1; file = work "/" ++n ".sh"; printf "" >file; next }
  /^```/ && on { on = 0; close(file); wanted = 1; next }
  on { print >file; next }
  wanted && /^>/ { sub(/^> */, ""); print >(work "/" n ".says"); close(work "/" n ".says"); wanted = 0; next }
  wanted && NF { wanted = 0 }
' "$page"

number=0
while [ -e "$work/$((number += 1)).sh" ]; do
  script=$work/$number.sh
  first=$(head -n 1 "$script")
  says=$(cat "$work/$number.says" 2>/dev/null)
  case $says in
    'not run: '*) left=$((left + 1)); continue ;;
    'needs `'*)
      rest=${says#needs \`}
      tool=${rest%%\`*}
      says=${rest#*\`, }
      # A debugger must be allowed to start a program.
      if ! command -v "$tool" >/dev/null || { [ "$tool" = gdb ] && ! grep -q 'exited normally' < <(gdb --batch -ex run /bin/true 2>&1); }; then
        printf 'first_hour: left out, no %s here: %s\n' "$tool" "$first"
        left=$((left + 1))
        continue
      fi ;;
  esac
  if [[ ! $says =~ ^exit\ ([0-9]+)(,\ prints\ .*)?$ ]]; then
    bad "block $number, '$first': the line below says '$says', allowed: exit N, prints \`TEXT\`"
    continue
  fi
  wanted=${BASH_REMATCH[1]} texts=${BASH_REMATCH[2]} status=0
  sed -i "s,build/cpu,$build,g; s,build/hour,$work/hour,g" "$script"
  bash "$script" >"$work/said" 2>&1 </dev/null || status=$?
  ran=$((ran + 1))
  if [ "$status" -ne "$wanted" ]; then bad "block $number, '$first': status $status, wanted $wanted: $(tail -n 5 "$work/said")"; fi
  while [[ $texts =~ ^,\ prints\ \`([^\`]*)\`(.*)$ ]]; do
    texts=${BASH_REMATCH[2]}
    grep -qF -- "${BASH_REMATCH[1]}" "$work/said" || bad "block $number, '$first': does not print '${BASH_REMATCH[1]}': $(tail -n 5 "$work/said")"
  done
  [ -z "$texts" ] || bad "block $number, '$first': cannot read '$texts'"
done
printf 'first_hour: %d blocks run, %d left out, %d failed\n' "$ran" "$left" "$failed"
[ "$ran" -gt 0 ] && [ "$failed" -eq 0 ]
