#!/usr/bin/env bash
# Runs the e2e suite (e2e/README.md) on the cluster of KUBECONFIG, where the images E2E_IMAGE and E2E_OPERATOR_IMAGE must be, and
# what they are upgraded to, E2E_NEXT_IMAGE and E2E_NEXT_OPERATOR_IMAGE; by default on a cluster of its own, which it starts, gives
# the images to, and removes. FOCUS=words runs only matching scenarios, LABELS=smoke those with that label; SKIP=words leaves some
# out. PROCS=n run at once (3). A scenario that fails is tried FLAKE_ATTEMPTS times in all (1). KEEP=1 leaves that cluster running.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=hack/cluster/cluster
own=
mkdir -p .cache
export E2E_FAILURES=$PWD/.cache/e2e-failures.txt
rm -f "$E2E_FAILURES"
finish() {
  local code=$?
  if [ -n "$own" ] && [ "${KEEP-}" != 1 ]; then
    $cluster down && $cluster leftovers || code=1
  fi
  [ ! -s "$E2E_FAILURES" ] || cat "$E2E_FAILURES"
  [ $code -eq 0 ] && echo "e2e: passed" || echo "e2e: FAILED with code $code" >&2
  exit $code
}
trap finish EXIT

tag=${IMAGE_TAG:-e2e}
export E2E_IMAGE=${E2E_IMAGE:-localhost/sheaf:$tag} E2E_OPERATOR_IMAGE=${E2E_OPERATOR_IMAGE:-localhost/sheaf-operator:$tag}
# Scenarios that are marked smoke upgrade nothing.
next=-next
if [ "${LABELS-}" = smoke ]; then
  next=
else
  export E2E_NEXT_IMAGE=${E2E_NEXT_IMAGE:-localhost/sheaf:$tag-next} E2E_NEXT_OPERATOR_IMAGE=${E2E_NEXT_OPERATOR_IMAGE:-localhost/sheaf-operator:$tag-next}
fi

# A cluster that starts waits more than it works: what the scenarios need is built meanwhile.
up=
if [ -z "${KUBECONFIG-}" ]; then
  own=1
  KUBECONFIG=$PWD/.cache/cluster/kubeconfig
  $cluster up "${NODES:-3}" >/dev/null &
  up=$!
fi
export KUBECONFIG CGO_ENABLED=0
pack() { make --no-print-directory image IMAGES='sheaf sheaf-operator' IMAGE_TAG="$tag$1" ${1:+REVISION="$tag$1"}; } # pack SUFFIX
local=
[ "$KUBECONFIG" != "$PWD/.cache/cluster/kubeconfig" ] || local=1
[ -z "$local" ] || pack "$next"
# alerts-watch evaluates the chart's alerts on the operators' metrics by Prometheus' own packages, which are not in the
# main module.
(cd hack/alerts && go build -trimpath -ldflags '-s -w' -o ../../bin/alerts-watch ./cmd/alerts-watch)
# The suite, and Ginkgo's own command.
go test -c -tags e2e -vet=off -ldflags '-s -w' -o e2e/e2e.test ./e2e
go run github.com/onsi/ginkgo/v2/ginkgo version
[ -z "$up" ] || wait "$up"

# Images named localhost/... were built here, for the cluster of this machine; a cluster elsewhere pulls its own.
if [ -n "$local" ]; then
  export E2E_CLUSTER=$PWD/$cluster
  load() { for archive in sheaf sheaf-operator; do $cluster load bin/images/$archive.tar >/dev/null; done; }
  load
  # The next images hold the same binaries: another label gives them another digest. Those under test come last, and stay there.
  [ -z "$next" ] || { pack '' && load; }
fi
# Scenarios call the plugin of `make build` as people do: `kubectl sheaf`, which kubectl looks for in PATH.
export PATH=$PWD/bin:$PATH
most=50m
[ -z "${E2E_LONG-}" ] || most=4h
# Each scenario has its own namespace and disks, so some run at once, in processes of Ginkgo's own command. Those marked Serial, which
# break nodes or the operator, follow one by one.
go run github.com/onsi/ginkgo/v2/ginkgo run --procs "${PROCS:-3}" --timeout "$most" --no-color -v --flake-attempts "${FLAKE_ATTEMPTS:-1}" \
  ${FOCUS:+--focus "$FOCUS"} ${SKIP:+--skip "$SKIP"} ${LABELS:+--label-filter "$LABELS"} e2e/e2e.test
