#!/usr/bin/env bash
# Runs the tests of a package while their process is stopped and continued repeatedly, as on a machine that stalls.
# Each stop is shorter than an election timeout and a lease, so a process that continues must not consider another one
# dead, and no test may fail. The seed for the moments is printed, and added to the report of the soak.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit
package=${1:?hack/starve.sh: name a package, such as ./internal/consensus/peer}
seed=${SHEAF_SEED:-$((SRANDOM % 32768))} # the shell's random numbers have fifteen bits
RANDOM=$seed
echo "starved $package: seed $seed" | tee -a ${SHEAF_SOAK_REPORT:+"$SHEAF_SOAK_REPORT"}
dir=$(mktemp -d)
pid=
finish() {
  [ -z "$pid" ] || kill -CONT "$pid" 2>/dev/null
  rm -rf "$dir"
}
trap finish EXIT
go test -c -vet=off -ldflags '-s -w' -o "$dir/tests" "$package" || exit
(cd "$package" && exec "$dir/tests" -test.short -test.timeout 2h) &
pid=$!
stops=0
while kill -0 "$pid" 2>/dev/null; do
  sleep "$((RANDOM % 3)).$((RANDOM % 10))"
  kill -STOP "$pid" 2>/dev/null || break
  sleep "0.$((3 + RANDOM % 6))"
  kill -CONT "$pid" 2>/dev/null
  stops=$((stops + 1))
done
wait "$pid"
code=$?
pid=
echo "starved $package: stopped $stops times, exit code $code" | tee -a ${SHEAF_SOAK_REPORT:+"$SHEAF_SOAK_REPORT"}
exit $code
