#!/usr/bin/env bash
# Runs Go tests for `make test`: hack/test.sh PACKAGE... FOCUS=regexp runs only tests with matching names, SKIP=names
# skips the tests in .ci/quarantine, and TESTFLAGS are flags for go test.
#
# Packages that only compute, or whose tests run in virtual time, are never retried, because a failure there is a real
# finding. Packages that run processes, servers or real file systems (PROCESS) retry at most two failed tests, once
# and separately. Each test that passed only then is printed as FLAKE. These packages wait more than they compute, so
# four of them run at a time. Of the others, three run at a time, because some wait for disks, peers or the linker.
set -euo pipefail
cd "$(dirname "$0")/.."
PROCESS='^sheaf\.dev/sheaf/(cmd/.*|bench|bench/.*|internal/(test/(chaos|powercut|faultdisk|scaletest)|placement/etcd|local/dev|security/ratelimit|storage/wipe))$'
[ $# -gt 0 ] || { echo "usage: hack/test.sh PACKAGE..." >&2; exit 2; }

listed=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "$@")
mapfile -t alone < <(grep -vE "$PROCESS" <<<"$listed" | awk NF || true)
mapfile -t processes < <(grep -E "$PROCESS" <<<"$listed" || true)

flags=(-timeout 30m)
eval "flags+=(${TESTFLAGS-})" # TESTFLAGS may contain quoted words
[ -z "${CI-}" ] || flags+=(-count=1) # a gate must run the tests even if the cache has a result
[ -z "${FOCUS-}" ] || flags+=(-run "$FOCUS")
[ -z "${SKIP-}" ] || flags+=(-skip "^($SKIP)\$")
summary=(bin/tools/gotestsum --format pkgname --format-hide-empty-pkg --hide-summary=skipped)
run_alone() {
  [ ${#alone[@]} -gt 0 ] || return 0
  # Memory is plentiful, and less frequent garbage collection saves a quarter of the processor time of these packages.
  # The packages below, which run Sheaf's programs, use the default that users have.
  GOGC=${GOGC:-400} "${summary[@]}" -- -p 3 "${flags[@]}" "${alone[@]}"
}
run_processes() {
  [ ${#processes[@]} -gt 0 ] || return 0
  local code=0
  "${summary[@]}" --rerun-fails=1 --rerun-fails-max-failures=2 --rerun-fails-abort-on-data-race --rerun-fails-report "$work/report" \
    --packages "${processes[*]}" -- -p 4 "${flags[@]}" || code=$?
  [ $code -ne 0 ] || sed -nE 's/^([^ ]+): [0-9]+ runs, [0-9]+ failures.*/FLAKE \1/p' "$work/report"
  return $code
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/report"
code=0
if [ -n "${SHEAF_API-}" ]; then
  # Both wait for API servers.
  run_alone >"$work/alone" 2>&1 &
  run_processes || code=$?
  wait $! || code=$?
  cat "$work/alone"
else
  run_alone || code=$?
  run_processes || code=$?
fi
exit $code
