#!/usr/bin/env bash
# Handles .ci/quarantine, which lists tests that are known to fail by chance. It has at most five lines:
#   END-DATE NAME     (2026-12-11 TestSomething; for e2e, words of the scenario)
# The end date is at most fourteen days ahead. CI skips these tests, and the soaks run them.
#   hack/quarantine.sh check     fails if the file breaks a rule, or if a date has passed
#   hack/quarantine.sh pattern   prints a regular expression that matches their names, or nothing if the list is empty
set -euo pipefail
file=${QUARANTINE:-$(dirname "$0")/../.ci/quarantine} # the variable is for tests
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
