#!/usr/bin/env bash
# Runs the e2e suite (e2e/README.md) on the cluster of KUBECONFIG. That cluster must have the images E2E_IMAGE,
# E2E_OPERATOR_IMAGE and E2E_ARCHIVE_IMAGE, and the images to upgrade to, E2E_NEXT_IMAGE and E2E_NEXT_OPERATOR_IMAGE.
# Without KUBECONFIG, the script starts a cluster, loads the images into it, and removes it at the end.
# FOCUS=words runs only matching scenarios. LABELS=smoke runs only those with that label. SKIP=words skips scenarios.
# PROCS=n runs n scenarios at a time (default 3). FLAKE_ATTEMPTS=n tries a failing scenario n times in all (default 1).
# KEEP=1 keeps the script's own cluster running.
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
export E2E_ARCHIVE_IMAGE=${E2E_ARCHIVE_IMAGE:-localhost/sheaf-archive:$tag}
# Scenarios with the label smoke do not upgrade anything.
next=-next
if [ "${LABELS-}" = smoke ]; then
  next=
else
  export E2E_NEXT_IMAGE=${E2E_NEXT_IMAGE:-localhost/sheaf:$tag-next} E2E_NEXT_OPERATOR_IMAGE=${E2E_NEXT_OPERATOR_IMAGE:-localhost/sheaf-operator:$tag-next}
fi

# The start of a cluster mostly waits, so build what the scenarios need in the meantime.
up=
if [ -z "${KUBECONFIG-}" ]; then
  own=1
  KUBECONFIG=$PWD/.cache/cluster/kubeconfig
  $cluster up "${NODES:-3}" >/dev/null &
  up=$!
fi
export KUBECONFIG CGO_ENABLED=0
images='sheaf sheaf-operator sheaf-archive'
pack() { make --no-print-directory image IMAGES="$images" IMAGE_TAG="$tag$1" ${1:+REVISION="$tag$1"}; } # pack SUFFIX
local=
[ "$KUBECONFIG" != "$PWD/.cache/cluster/kubeconfig" ] || local=1
[ -z "$local" ] || pack "$next"
# alerts-watch evaluates the chart's alerts on the operators' metrics with the packages of Prometheus, which are not
# in the main module.
(cd hack/alerts && go build -trimpath -ldflags '-s -w' -o ../../bin/alerts-watch ./cmd/alerts-watch)
# Build the suite, and Ginkgo's command.
go test -c -tags e2e -vet=off -ldflags '-s -w' -o e2e/e2e.test ./e2e
go run github.com/onsi/ginkgo/v2/ginkgo version
[ -z "$up" ] || wait "$up"

# Images named localhost/... were built here and are for the cluster on this machine. A cluster elsewhere pulls its
# images.
if [ -n "$local" ]; then
  export E2E_CLUSTER=$PWD/$cluster
  load() { for archive in $images; do $cluster load bin/images/$archive.tar >/dev/null; done; }
  load
  # The next images contain the same binaries. A different label gives them a different digest. The images under test
  # are built last, so that they remain in bin/images.
  [ -z "$next" ] || { pack '' && load; }
fi
# Scenarios call the plugin from `make build` as users do: `kubectl sheaf`, which kubectl finds in PATH.
export PATH=$PWD/bin:$PATH
most=50m
[ -z "${E2E_LONG-}" ] || most=4h
# Each scenario has its own namespace and disks, so several run at a time, in processes of Ginkgo's command. Scenarios
# marked Serial, which break nodes or the operator, run one by one.
go run github.com/onsi/ginkgo/v2/ginkgo run --procs "${PROCS:-3}" --timeout "$most" --no-color -v --flake-attempts "${FLAKE_ATTEMPTS:-1}" \
  ${FOCUS:+--focus "$FOCUS"} ${SKIP:+--skip "$SKIP"} ${LABELS:+--label-filter "$LABELS"} e2e/e2e.test
