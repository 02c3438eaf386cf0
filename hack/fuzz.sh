#!/usr/bin/env bash
# Fuzzes every fuzz target in the tree for about the given number of seconds each (default 30s). It runs as many
# targets at a time as there are processors, with one worker each. A crasher is stored in the package's folder
# testdata/fuzz, so that `go test` repeats it.
#
# A target runs for a measured number of executions and not for a duration. At the end of a duration, Go's fuzzer
# sometimes reports "context deadline exceeded" instead of success, without an input (internal/fuzz compares with the
# error of a context that is canceled a moment later).
set -eu -o pipefail
cd "$(dirname "$0")/.."
seconds="${1:-30s}"
seconds="${seconds%s}"
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "hack/fuzz.sh: \"$1\" is no number of seconds, such as 30s" >&2; exit 2; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

cache=$(go env GOCACHE)/fuzz

# run PACKAGE NAME BINARY EXECUTIONS fuzzes one target. It limits the steps that minimize an interesting input: with
# the default of 60 s, inputs of some KiB would take all the time.
run() {
  (cd "$1" && "$3" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$4x" -test.fuzzminimizetime 20x -test.parallel 1 -test.timeout 30m \
    -test.fuzzcachedir "$cache/$(go list .)")
}

# fuzz PACKAGE NAME BINARY runs a target repeatedly. The duration of each run determines how many executions the next
# one has. It ends when little time remains.
fuzz() {
  local count=2000 left=$((seconds * 1000)) start spent
  go test -c -vet=off -fuzz "^$2\$" -o "$3" "$1" || return 1
  while :; do
    start=$(date +%s%N)
    run "$@" $count || return 1
    spent=$((($(date +%s%N) - start) / 1000000 + 1)) # in ms
    left=$((left - spent))
    [ $left -gt $((seconds * 100)) ] || return 0
    count=$((left / spent < 20 ? count * left / spent : count * 20))
  done
}

executions() { # executions LOG: the total of all runs, each of which ends with its number
  awk '/execs: / {n = $5} /^PASS/ {all += n} END {print all + 0}' "$1"
}

one() { # one FILE:NAME
  local package name log start=$SECONDS
  package="./$(dirname "${1%:*}")" name=${1##*:} log="$logs/${1//\//_}"
  if fuzz "$package" "$name" "$log.test" >"$log" 2>&1; then
    echo "fuzz $package $name: $((SECONDS - start))s, $(executions "$log") executions"
  else
    echo "fuzz $package $name: FAILED after $((SECONDS - start))s"
    cat "$log"
    touch "$log.failed"
  fi
}

mapfile -t targets < <(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' . | sed -E 's/^\.\/(.*):[0-9]+:func (Fuzz.*)$/\1:\2/' | sort)
[ ${#targets[@]} -gt 0 ] || { echo "hack/fuzz.sh: there is nothing to fuzz" >&2; exit 1; }
for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
  one "$target" &
done
wait
failed=$(find "$logs" -name '*.failed' | wc -l)
echo "fuzzed ${#targets[@]} decoders, $failed failed"
[ "$failed" -eq 0 ]
