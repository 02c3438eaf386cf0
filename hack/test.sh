#!/usr/bin/env bash
# Runs Go tests: hack/test.sh PACKAGE... (make test). FOCUS=regexp runs only tests of such a name, SKIP=names leaves those of
# .ci/quarantine out, TESTFLAGS are flags of go test.
#
# Packages whose tests run in virtual time or compute are never tried again: a failure there is a find. Those that run
# processes, servers or real file systems (PROCESS) have one counted retry of at most two tests, alone; each test that
# needed it is printed as FLAKE. They wait more than they compute, so that three of them run at once.
set -euo pipefail
cd "$(dirname "$0")/.."
PROCESS='^sheaf\.dev/sheaf/(cmd/.*|bench|bench/.*|internal/(test/(chaos|powercut|faultdisk|scaletest)|placement/etcd|local/dev|security/ratelimit|storage/wipe|local/doctor))$'
[ $# -gt 0 ] || { echo "usage: hack/test.sh PACKAGE..." >&2; exit 2; }

listed=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "$@")
mapfile -t alone < <(grep -vE "$PROCESS" <<<"$listed" | awk NF || true)
mapfile -t processes < <(grep -E "$PROCESS" <<<"$listed" || true)

flags=(-timeout 30m)
eval "flags+=(${TESTFLAGS-})" # it holds quoted words
[ -z "${CI-}" ] || flags+=(-count=1) # a gate runs what it says, also where a result is in the cache
[ -z "${FOCUS-}" ] || flags+=(-run "$FOCUS")
[ -z "${SKIP-}" ] || flags+=(-skip "^($SKIP)\$")
summary=(bin/tools/gotestsum --format pkgname --format-hide-empty-pkg --hide-summary=skipped)
code=0
if [ ${#alone[@]} -gt 0 ]; then
  # Memory is not short, and collecting garbage less often takes a quarter off their processor time. What runs Sheaf's
  # programs runs them as users do.
  GOGC=${GOGC:-400} "${summary[@]}" -- -p 2 "${flags[@]}" "${alone[@]}" || code=$?
fi
if [ ${#processes[@]} -gt 0 ]; then
  report=$(mktemp)
  trap 'rm -f "$report"' EXIT
  again=0
  "${summary[@]}" --rerun-fails=1 --rerun-fails-max-failures=2 --rerun-fails-abort-on-data-race --rerun-fails-report "$report" \
    --packages "${processes[*]}" -- -p 3 "${flags[@]}" || again=$?
  [ $again -ne 0 ] || sed -nE 's/^([^ ]+): [0-9]+ runs, [0-9]+ failures.*/FLAKE \1/p' "$report"
  [ $again -eq 0 ] || code=$again
fi
exit $code
