#!/usr/bin/env bash
# Runs one part of the soak: tests that load the whole machine, draw random cases or take long. `make soak-PART` calls
# it. Each step runs even if an earlier one has failed. The report bin/soak/PART.txt contains the commit, the date,
# the machine, each seed and count that tests report (internal/test/soaktest), and for each step whether it passed and
# how long it took.
# PKG and FOCUS restrict the run to the long tests of these packages and names. SHEAF_SEED repeats a seed from a report.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit
part=${1-}
export GOFLAGS=${GOFLAGS--buildvcs=false -trimpath} CGO_ENABLED=${CGO_ENABLED-0}
export SHEAF_SOAK=$part SHEAF_SOAK_REPORT=$PWD/bin/soak/$part.txt
failed=0

step() { # step NAME COMMAND...
  local name="$1" start=$SECONDS word=passed
  shift
  printf '\n=== %s\n' "$name"
  "$@" || { word=FAILED failed=$((failed + 1)); }
  printf '=== %s: %s after %d s\n' "$name" "$word" $((SECONDS - start)) | tee -a "$SHEAF_SOAK_REPORT"
}

# suite PACKAGE... runs the tests of the packages, one package after another, in random order.
suite() {
  bin/tools/gotestsum --format pkgname --format-hide-empty-pkg --hide-summary=skipped -- -vet=off -ldflags '-s -w' \
    -count=1 -p 1 -shuffle on -timeout 12h ${FOCUS:+-run "$FOCUS"} "$@"
}

chaos() { # half an hour with all faults
  internal/test/chaos/packages.sh && hack/kube/build.sh slowdisk &&
    SHEAF_CHAOS=required go test -vet=off -ldflags '-s -w' -count=1 -timeout 3h -run 'TestChaos$' -v ./internal/test/chaos -binary "$PWD/bin/sheaf"
}

soak_log() {
  step "tests of the log and the disks below it" suite ./internal/storage/group/... ./internal/storage/journal/... ./internal/storage/volume/... \
    ./internal/storage/vfs/... ./internal/storage/index/... ./internal/test/powercut/... ./internal/test/faultdisk/...
  step "walks under the race detector" make race RACE_SKIP='^$$' PKG=./internal/storage/group
  step "fuzzing, 60 s each decoder" hack/fuzz.sh 60s
}

soak_raft() {
  step "tests of replicas, shards and placement" suite ./internal/test/sim/... ./internal/consensus/replica/... ./internal/shard/... ./internal/consensus/peer/... \
    ./internal/placement/... ./internal/consensus/move/... ./internal/test/clienttest ./internal/shard/quota/... ./internal/security/access/... ./internal/archive/...
  step "the simulation under the race detector" make race RACE_SKIP='^$$' PKG='./internal/test/sim ./internal/test/vfstest'
  step "whole shards and stores under the race detector" make race RACE_SKIP='^$$' PKG='./internal/shard ./internal/test/storetest'
  step "walks of archives under the race detector" make race RACE_SKIP='^$$' PKG='./internal/archive/archiver ./internal/archive/prune ./internal/archive/reader ./internal/archive/restore'
}

soak_proc() {
  step "make build" make build
  step "chaos" chaos
  step "tests of processes" suite ./cmd/sheaf/... ./internal/gateway/... ./internal/local/dev/... ./internal/security/ratelimit/... \
    ./internal/local/cli/... ./bench/... ./sheaftest ./internal/test/clienttest
  step "gateways under the race detector" make race RACE_SKIP='^$$' PKG=./internal/gateway
  # Virtual time hides the effects of a process that is stopped, so these steps stop real processes.
  for package in ./internal/consensus/peer ./internal/test/livenesstest ./internal/consensus/replica ./internal/gateway ./internal/shard ./internal/test/clienttest; do
    step "starved: $package" hack/starve.sh "$package"
  done
  # Bubbles on an idle machine run their goroutines in few orders, so this step delays what reads from connections.
  step "noise in the connections of bubbles" hack/noise.sh ./internal/shard ./internal/gateway ./internal/local/dev ./internal/test/storetest ./internal/placement/registry \
    ./internal/placement/etcd ./internal/test/clienttest ./internal/test/livenesstest
}

soak_kube() {
  export SHEAF_API=all
  step "tests of the operator" suite ./controllers/... ./api/... ./internal/kube/workload/... ./internal/operator/...
  step "make e2e" env E2E_LONG="${E2E_LONG:-10}" make e2e
  step "make scale-test" make scale-test SHARDS=1000
}

soak_eco() {
  step "make test-clients" make test-clients
  step "make test-sheafdb" make test-sheafdb
  step "make bench-layouts" make bench-layouts
  step "make bench-readers" make bench-readers
  step "make bench-peers-test" make bench-peers-test
  step "make test-versions" make test-versions
  step "make check-image" make check-image COLD=1
}

case "$part" in
  log | raft | proc | kube | eco) ;;
  *) echo "hack/soak.sh: \"$part\" is no part of the soak: log, raft, proc, kube or eco" >&2; exit 2 ;;
esac
mkdir -p bin/soak
{
  echo "make soak-$part"
  echo "commit: $(git rev-parse HEAD)$(git diff --quiet HEAD -- || echo ', with changes that are not committed')"
  echo "date: $(date -u '+%Y-%m-%d %H:%M:%S UTC')"
  echo "machine: $(nproc) processors, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(awk '/^MemTotal/ {print int($2 / 1024)}' /proc/meminfo) MiB, Linux $(uname -r)"
} >"$SHEAF_SOAK_REPORT"
if [ -n "${PKG-}" ]; then
  # shellcheck disable=SC2086 # several packages
  step "tests of $PKG${FOCUS:+, $FOCUS}" suite $PKG
else
  soak_"$part"
fi
[ $failed -eq 0 ] && word=passed || word="FAILED: $failed steps"
echo "soak-$part: $word after $SECONDS s" | tee -a "$SHEAF_SOAK_REPORT"
[ $failed -eq 0 ]
