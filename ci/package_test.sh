#!/usr/bin/env bash
# package_test.sh BUILD: packs a build as a .deb and unpacks it with dpkg-deb into a folder. Runs the runner from there
# with the suites and fixtures of the package. Looks at the files, the dependencies and, where it is installed, at what
# lintian says. Needs dpkg-deb and the targets assay and assay_pages; status 77 without dpkg-deb.
set -euo pipefail

build=$(cd "$1" && pwd)
command -v dpkg-deb >/dev/null || { echo "package: skipped, dpkg-deb is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "package: $*"; exit 1; }

cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/made" >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log"; fail "cpack failed"; }
deb=$(ls "$work"/made/*.deb)
dpkg-deb -x "$deb" "$work/root"
cd "$work"

# The files that the package must hold.
usr=root/usr
for file in bin/assay include/assay/plugin.h include/assay/kernel/gpu/lib/launch.h include/assay/simt/cuda.h lib/cmake/assay/assayConfig.cmake \
  share/pkgconfig/assay.pc share/assay/suites/reglu.yaml share/assay/fixtures/traces/README.md share/assay/bench/expected.jsonl \
  share/assay/bench/short/swiglu.yaml share/doc/assay/docs/adding.md \
  share/man/man1/assay.1.gz share/man/man1/assay-run.1.gz share/bash-completion/completions/assay share/zsh/vendor-completions/_assay \
  share/doc/assay/copyright share/doc/assay/changelog.gz share/doc/assay/changelog.Debian.gz; do
  [ -s "$usr/$file" ] || fail "has no usr/$file"
done
# A man page for each that the runner has to write, with what it writes now.
$usr/bin/assay --man "$work/man1" >man.log 2>&1 || { cat man.log; fail "assay --man failed"; }
pages=0
for page in "$work"/man1/*.1; do
  name=$(basename "$page")
  [ -s "$usr/share/man/man1/$name.gz" ] || fail "has no man page $name"
  gzip -dc "$usr/share/man/man1/$name.gz" | cmp -s - "$page" || fail "has an old man page $name"
  pages=$((pages + 1))
done
[ "$(find "$usr/share/man" -type f | wc -l)" -eq "$pages" ] || fail "has a man page that the runner does not write"
for shell in bash:bash-completion/completions/assay zsh:zsh/vendor-completions/_assay; do
  $usr/bin/assay --completion "${shell%%:*}" | cmp -s - "$usr/share/${shell#*:}" || fail "has an old completion for ${shell%%:*}"
done
strays=$(find root -type f ! -path 'root/usr/*')
[ -z "$strays" ] || fail "has files outside usr: $strays"

# Dependencies: each library that the program is linked with belongs to a package that is named.
depends=$(dpkg-deb -f "$deb" Depends)
for library in libc6 libyaml-0-2 libopenblas0; do
  case ", $depends" in *", $library"*) ;; *) fail "does not depend on $library: $depends" ;; esac
done

# The runner finds the suites and fixtures of the package by its own place. The traces suite reads fixtures; without them
# it must not fall back to the folder it was built in.
unset ASSAY_SUITES ASSAY_FIXTURES
suites=$(find $usr/share/assay/suites -name '*.yaml' | wc -l)
$usr/bin/assay list suites >list.log || { cat list.log; fail "assay list suites failed"; }
mv $usr/share/assay/suites/reglu.yaml .
$usr/bin/assay list suites >fewer.log
[ "$(wc -l <fewer.log)" -lt "$(wc -l <list.log)" ] || { cat fewer.log; fail "the runner lists other suites than those of the package"; }
mv reglu.yaml $usr/share/assay/suites/
# judged SUITE ARGUMENT...: the runner's last line; fails unless something passed and nothing else happened.
judged() {
  local status=0 suite=$1
  shift
  $usr/bin/assay run "$usr/share/assay/suites/$suite.yaml" --device simt "$@" >run.log 2>&1 || status=$?
  [ "$status" -eq 0 ] && grep -qE '^[1-9][0-9,]* PASS, 0 FAIL' run.log || { cat run.log; fail "$suite: status $status"; }
  tail -n 1 run.log
}
judged reglu --section check
judged traces --section check --filter code_completion --power off
mv $usr/share/assay/fixtures/traces .
if $usr/bin/assay run $usr/share/assay/suites/traces.yaml --device simt --section check --filter code_completion --power off >run.log 2>&1; then
  cat run.log
  fail "traces: passes without the fixtures of the package"
fi
mv traces $usr/share/assay/fixtures/
# The tables of `assay bench` likewise: a filter that no row matches ends with 3, a folder that is missing with 2.
bench_status() {
  local status=0
  $usr/bin/assay bench short --device simt --filter no_such_row >bench.log 2>&1 || status=$?
  echo "$status"
}
[ "$(bench_status)" -eq 3 ] || { cat bench.log; fail "bench: does not read the tables of the package"; }
mv $usr/share/assay/bench/short .
[ "$(bench_status)" -eq 2 ] || { cat bench.log; fail "bench: reads other tables than those of the package"; }
mv short $usr/share/assay/bench/

if command -v lintian >/dev/null; then
  lintian --fail-on error,warning "$deb" >lintian.log 2>&1 || { cat lintian.log; fail "lintian finds something"; }
  echo "package: lintian is content"
else
  echo "package: lintian: skipped, it is not installed"
fi
echo "package: $(basename "$deb"): $suites suites, $(dpkg-deb -c "$deb" | grep -c '^-') files, $(wc -c <"$deb") bytes; depends on $depends"
