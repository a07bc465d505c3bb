#!/usr/bin/env bash
# no_memory.sh BUILD CC: assay report and assay compare with each of their first allocations failing in turn. The answer is
# the same, or the exit status is 2 with a reason: no answer is better than a shorter one.
set -uo pipefail

build=$1 cc=$2
root=$(cd "$(dirname "$0")/.." && pwd)
assay=$(cd "$build" && pwd)/assay
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 2
failed=0

# The shim makes the N-th allocation of the program itself fail, not those of libraries.
cat >"$work/fail.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static long count, wanted = -1;
__attribute__((constructor)) static void begin(void) {
  const char *text = getenv("FAIL_AT");
  if (text != NULL) wanted = atol(text);
}
static int fails(void *from) {
  Dl_info about;
  if (wanted < 0 || (dladdr(from, &about) && about.dli_fname != NULL && strstr(about.dli_fname, "assay") == NULL)) return 0;
  return ++count == wanted && (errno = ENOMEM);
}
void *malloc(size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size); }
END
"$cc" -shared -fPIC -o "$work/fail.so" "$work/fail.c" -ldl || exit 2
"$assay" run conformance/suites/reglu.yaml --jsonl "$work/a.jsonl" >/dev/null || exit 2

# hold NAME MOST COMMAND...: the command alone, and with allocation 1 to MOST failing.
hold() {
  local name=$1 most=$2 wanted got status refused=0
  shift 2
  wanted=$("$@" 2>/dev/null)
  for n in $(seq "$most"); do
    got=$(FAIL_AT=$n LD_PRELOAD=$work/fail.so "$@" 2>"$work/err")
    status=$?
    [ "$status" -ne 0 ] || [ "$got" = "$wanted" ] || { echo "no_memory: $name: allocation $n: exit 0 and another answer"; failed=1; }
    [ "$status" -eq 0 ] || [ "$status" -eq 2 ] || { echo "no_memory: $name: allocation $n: exit $status"; failed=1; }
    [ "$status" -eq 0 ] || [ -s "$work/err" ] || { echo "no_memory: $name: allocation $n: no reason"; failed=1; }
    [ "$status" -eq 0 ] || refused=$((refused + 1))
  done
  [ "$refused" -gt 5 ] || { echo "no_memory: $name: $refused of $most allocations failed, the shim fails none"; failed=1; }
}

hold report 90 "$assay" report "$work/a.jsonl" -o "$work/page.html"
hold 'report of two' 30 "$assay" report "$work/a.jsonl" "$work/a.jsonl" -o "$work/page.html"
hold compare 60 "$assay" compare "$work/a.jsonl" "$work/a.jsonl"
[ "$failed" -eq 0 ] && echo 'a failed allocation never gives a shorter answer'
exit "$failed"
