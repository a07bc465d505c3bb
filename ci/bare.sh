#!/usr/bin/env bash
# bare.sh FOLDER: fills FOLDER with links to the commands of a bare Debian (debootstrap --variant=minbase) on which
# need_packages of lib.sh has installed what is missing. It holds no other command; awk is mawk. A script that runs with
# PATH=FOLDER can use nothing that the scripts do not install. CMakeLists.txt runs tests with it. Returns 77 and leaves no
# folder where there is no dpkg or a package is not installed.
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
folder=${1:?bare.sh: needs a folder}
rm -rf "$folder"

command -v dpkg-query >/dev/null || { echo "bare: no dpkg here"; exit 77; }
mapfile -t wanted < <(declare -f missing_packages | grep -oE '\|\| echo [a-z0-9+ -]+' | sed 's/.*echo //' | tr ' ' '\n' | grep .)
[ "${#wanted[@]}" -gt 5 ] || die 2 "found ${#wanted[@]} packages in missing_packages of lib.sh"

# Lists what minbase has, what is wanted, and all that these depend on. It takes the first alternative that is
# installed.
packages=$(dpkg-query -W -f '${db:Status-Abbrev}\t${Package}\t${Essential}\t${Priority}\t${Provides}\t${Pre-Depends}, ${Depends}\n' |
  awk -F '\t' -v wanted="${wanted[*]}" '
    function plain(name) { sub(/^ +/, "", name); sub(/[ :(].*$/, "", name); return name }
    function take(name) { if (!(name in taken)) { taken[name] = 1; queue[++end] = name } }
    $1 ~ /^ii/ {
      installed[$2] = 1
      needs[$2] = $6
      if ($3 == "yes" || $4 == "required" || $2 == "apt" || $2 == "mawk") first[$2] = 1
      count = split($5, provided, ",")
      for (i = 1; i <= count; ++i) if (plain(provided[i]) != "") provider[plain(provided[i])] = $2
    }
    END {
      for (name in first) take(name)
      count = split(wanted, word, " ")
      for (i = 1; i <= count; ++i) {
        if (!(word[i] in installed)) { print "missing " word[i]; exit }
        take(word[i])
      }
      for (at = 1; at <= end; ++at) {
        count = split(needs[queue[at]], groups, ",")
        for (i = 1; i <= count; ++i) {
          choices = split(groups[i], choice, "|")
          for (j = 1; j <= choices; ++j) if (plain(choice[j]) in installed) { take(plain(choice[j])); break }
          if (j > choices) for (j = 1; j <= choices; ++j) if (plain(choice[j]) in provider) { take(provider[plain(choice[j])]); break }
        }
      }
      for (at = 1; at <= end; ++at) print queue[at]
    }')
case $packages in *"missing "*) echo "bare: not installed: ${packages##*missing }"; exit 77 ;; esac

mkdir -p "$folder"
# shellcheck disable=SC2086 # a list of words
dpkg -L $packages 2>/dev/null | grep -E '^(/usr)?/s?bin/[^/]+$' | sort -u | while read -r file; do
  if [ -x "$file" ]; then printf '%s\n' "$file"; fi
done | xargs ln -sf -t "$folder"
# The choice of update-alternatives, if it is one of those.
find /usr/bin/ /usr/sbin/ -maxdepth 1 -lname '/etc/alternatives/*' | while read -r link; do
  target=$(readlink -f "$link" || true)
  if [ -n "$target" ] && [ -e "$folder/${target##*/}" ]; then ln -sf "$link" "$folder/"; fi
done
if [ -x /usr/bin/mawk ]; then ln -sf /usr/bin/mawk "$folder/awk"; fi
printf 'bare: %d commands of %d packages\n' "$(find "$folder" -type l | wc -l)" "$(wc -l <<<"$packages")"
