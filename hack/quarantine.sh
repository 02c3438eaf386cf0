#!/usr/bin/env bash
# Tests that are known to fail by chance, for a while: .ci/quarantine has at most five, a line each,
#   END-DATE NAME     (2026-12-11 TestSomething; of e2e: words of the scenario)
# with an end date at most fourteen days ahead. They are left out of CI, and run in the soaks.
#   hack/quarantine.sh check     fails where the file breaks a rule, or a date has passed
#   hack/quarantine.sh pattern   prints a regular expression of their names; nothing where there are none
set -euo pipefail
file=${QUARANTINE:-$(dirname "$0")/../.ci/quarantine} # for its test
lines() { grep -vE '^(#|[[:space:]]*$)' "$file" || true; }

check() {
  local count=0 end name bad=0 today last
  today=$(date -u +%F) last=$(date -u -d '14 days' +%F)
  while read -r end name; do
    count=$((count + 1))
    if ! [[ $end =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2}$ && -n $name ]]; then
      echo "$file: \"$end $name\" is no line \"END-DATE NAME\"" >&2 && bad=1
    elif [[ $end < $today ]]; then
      echo "$file: the time of \"$name\" ended on $end: cure the test, or the product, and take the line out" >&2 && bad=1
    elif [[ $end > $last ]]; then
      echo "$file: \"$name\" until $end: give fourteen days at most, $last" >&2 && bad=1
    fi
  done < <(lines)
  [ $count -le 5 ] || { echo "$file: $count names, five at most: cure one first" >&2 && bad=1; }
  echo "quarantine: $count of at most 5 names"
  lines
  return $bad
}

case ${1-} in
check) check ;;
pattern) lines | cut -d ' ' -f 2- | sed 's/[][\.*^$(){}?+|/]/\\&/g' | paste -sd '|' ;;
*) echo "usage: hack/quarantine.sh check | pattern" >&2 && exit 2 ;;
esac
