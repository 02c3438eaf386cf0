#!/usr/bin/env bash
# Runs the tests of packages with noise in the connections of their bubbles (internal/test/bubbletest/noise.go): on 1, 2
# and 3 processors, ROUNDS times each (5 by default), and each time with another random seed. With noise, goroutines run
# in orders that are rare on an idle machine, so a test whose result depends on the order fails here. Each seed is
# printed, and added to the report of the soak. SHEAF_NOISE repeats a seed. FOCUS restricts the run to tests by name.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit
[ $# -gt 0 ] || { echo "hack/noise.sh: name packages, such as ./internal/shard" >&2; exit 2; }
unset SHEAF_SOAK # the tests of `make test`, with their fixed seeds
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0 runs=0
for package; do
  go test -c -vet=off -ldflags '-s -w' -o "$dir/tests" "$package" || exit
  for ((round = 1; round <= ${ROUNDS:-5}; round++)); do
    for processors in 1 2 3; do
      seed=${SHEAF_NOISE:-$SRANDOM}
      (cd "$package" && SHEAF_NOISE=$seed GOMAXPROCS=$processors "$dir/tests" -test.short -test.timeout 30m ${FOCUS:+-test.run "$FOCUS"}) \
        >"$dir/out" 2>&1
      code=$?
      runs=$((runs + 1))
      echo "noise $package: seed $seed, $processors processors, exit code $code" | tee -a ${SHEAF_SOAK_REPORT:+"$SHEAF_SOAK_REPORT"}
      [ $code -eq 0 ] || { failed=$((failed + 1)); cat "$dir/out"; }
    done
  done
done
echo "noise: $failed of $runs runs failed" | tee -a ${SHEAF_SOAK_REPORT:+"$SHEAF_SOAK_REPORT"}
[ $failed -eq 0 ]
