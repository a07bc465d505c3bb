#!/usr/bin/env bash
# plant_selftest.sh: plant.sh replaces what a list says, and refuses lists that do not fit their sources.
set -uo pipefail
cd "$(dirname "$0")" || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/root"
printf 'int a;\n  int b;\nint c;\n  int c;\n' >"$work/root/x.c"
bad=0

# expect STATUS TEXT: plant.sh ends with STATUS for the list on standard input, and its messages contain TEXT.
expect() {
  cat >"$work/list"
  rm -rf "$work/out"
  said=$(./plant.sh "$work/list" "$work/root" "$work/out" 2>&1)
  status=$?
  if [ "$status" -ne "$1" ] || [[ $said != *"$2"* ]] || { [ "$1" -ne 0 ] && [ -e "$work/out" ]; }; then
    printf 'plant_selftest.sh: status %s, not %s with "%s": %s\n' "$status" "$1" "$2" "$said"
    bad=1
  fi
}

expect 0 '' <<'LIST'
# two places of one file
file x.c
-int b;
+int b = MISTAKE(B);
+int more;

file x.c
-int a;
+int z;
LIST
if [ "$(cat "$work/out/x.c")" != "$(printf 'int z;\nint b = MISTAKE(B);\nint more;\nint c;\n  int c;')" ]; then
  echo "plant_selftest.sh: the copy is not what the list says"
  bad=1
fi
expect 1 'found 0 times in x.c, allowed once: int d;' <<<$'file x.c\n-int d;\n+int e;'
expect 1 'found 2 times in x.c, allowed once: int c;' <<<$'file x.c\n-int c;\n+int e;'
expect 1 'cannot read' <<<$'file y.c\n-int a;\n+int e;'
expect 1 'no line to look for' <<<$'file x.c\n+int e;'
expect 1 'lines to look for come first' <<<$'file x.c\n-int a;\n+int e;\n-int b;'
expect 1 'line 1: found "int a;"' <<<'int a;'
exit $bad
