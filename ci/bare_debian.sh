#!/usr/bin/env bash
# bare_debian.sh FOLDER [CTEST ARGUMENTS...]: runs both commands of the README on a bare Debian 12. debootstrap makes it in
# FOLDER (variant minbase: no make, no git, no compiler) unless it exists. The files of HEAD go to FOLDER/root/assay.
# There conform.sh runs in a chroot, with two jobs at a time, and then test.sh without the suites, which have just run.
# The arguments go to test.sh. Needs root and debootstrap. It is run by hand: it installs from the network and takes as
# long as the two commands do. Status: that of the first command that fails.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?bare_debian.sh: needs a folder}
shift
[ "$(id -u)" -eq 0 ] || { echo "bare_debian.sh: needs root, for debootstrap and chroot" >&2; exit 2; }
if [ ! -x "$folder/bin/bash" ]; then
  command -v debootstrap >/dev/null || { echo "bare_debian.sh: needs debootstrap: apt-get install debootstrap" >&2; exit 2; }
  debootstrap --variant=minbase bookworm "$folder"
fi
unmount() { for place in dev/pts dev/shm dev proc; do umount "$folder/$place" 2>/dev/null || true; done; }
trap unmount EXIT
mountpoint -q "$folder/proc" || mount -t proc proc "$folder/proc"
# Without dev/pts no program gets a terminal; a bind of /dev has not what is mounted below it.
for place in dev dev/pts dev/shm; do mountpoint -q "$folder/$place" || mount --bind "/$place" "$folder/$place"; done
cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
rm -rf "$folder/root/assay"
mkdir -p "$folder/root/assay"
git archive HEAD | tar -x -C "$folder/root/assay"
inside() { chroot "$folder" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin ASSAY_JOBS=2 bash -c 'cd /root/assay && "$@"' inside "$@"; }
status=0
inside ci/conform.sh || status=$?
inside ci/test.sh -E '^suite\.' "$@" || { last=$?; [ "$status" -ne 0 ] || status=$last; }
exit "$status"
