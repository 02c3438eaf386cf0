#!/usr/bin/env bash
# Fuzzes every fuzz target of the tree for the given time each (default 30s), one after another. A crasher is left in the
# package's testdata/fuzz folder, from where `go test` repeats it.
set -eu -o pipefail
cd "$(dirname "$0")/.."
time="${1:-30s}"
targets=0
while IFS=: read -r file name; do
  package="./$(dirname "$file")"
  echo "fuzz $package $name for $time"
  # Few steps to minimize each interesting input: with the default of 60 s, inputs of some KiB take all the time there is.
  output=$(mktemp)
  if ! go test -run '^$' -fuzz "^${name}\$" -fuzztime "$time" -fuzzminimizetime 20x "$package" 2>&1 | tee "$output"; then
    # Go's fuzzer ends with this, and no input, where its time is over while a worker is busy.
    if grep -q 'Failing input written' "$output" || ! grep -q 'context deadline exceeded' "$output"; then
      rm "$output"
      exit 1
    fi
    echo "fuzz $package $name: its time was over while a worker was busy; no failing input"
  fi
  rm "$output"
  targets=$((targets + 1))
done < <(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' . | sed -E 's/^(.*):[0-9]+:func (Fuzz.*)$/\1:\2/' | sort)
echo "fuzzed $targets decoders"
[ "$targets" -gt 0 ]
