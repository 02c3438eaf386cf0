#!/usr/bin/env bash
# Checks what the e2e suite relies on. It starts the cluster, uses it as Sheaf would, stops it, and checks that
# nothing is left.
# KEEP=1 keeps the cluster running at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
cluster=hack/cluster/cluster
fail() {
  echo "smoke: FAILED: $*" >&2
  k -n smoke get pods,pvc,events -o wide 2>/dev/null | tail -40 >&2 || true
  exit 1
}
say() { printf 'smoke: %4ds  %s\n' $SECONDS "$*"; }
k() { bin/kube/kubectl "$@"; }
expect() { # expect TEXT ANSWER
  [[ $2 == *"$1"* ]] || fail "wanted \"$1\" in the answer \"$2\""
}
# eventually SECONDS WHAT COMMAND...
eventually() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || fail "waited in vain: $what"
    sleep 0.2
  done
}
not() { ! "$@"; }
ask() { k -n smoke exec "$1" -- /probe get "$2"; }
# answers POD URL TEXT waits for the text, because names and Services are updated a little later than the objects.
answers() { [[ $(ask "$1" "$2") = *"$3"* ]]; }
host_reaches() { [[ $(bin/kube/probe get "$1") = *host=probe-* ]]; }

finish() {
  local code=$?
  [ "${KEEP-}" = 1 ] || { $cluster down && $cluster leftovers || code=1; }
  [ $code -eq 0 ] && say "passed" || echo "smoke: FAILED with code $code" >&2
  exit $code
}
trap finish EXIT

KUBECONFIG=$($cluster up 3 | tail -1)
export KUBECONFIG
say "three nodes are Ready"
$cluster up 3 >/dev/null
say "up once more changed nothing"

archive=$(mktemp)
$cluster image localhost/probe:1 bin/kube/probe "$archive"
$cluster load "$archive" >/dev/null
rm "$archive"
n=0
for fs in xfs btrfs ext4; do
  n=$((n + 1))
  [ "$($cluster disk add n$n smoke-$fs 400M)" = /dev/disk/by-id/virtio-smoke-$fs ] || fail "the disk for $fs has another path"
done
warnings=$(k apply --server-side -f hack/cluster/smoke.yaml 2>&1 >/dev/null)
[ -z "$warnings" ] || fail "the API server warned: $warnings"
k -n smoke rollout status statefulset/probe --timeout=180s >/dev/null || fail "the pods did not become ready"
n=0
for fs in xfs btrfs ext4; do
  eventually 60 "probe-$n on $fs, written by uid 65532 under seccomp, to answer by name" \
    answers probe-0 "http://probe-$n.probes.smoke.svc.cluster.local:8080" "host=probe-$n uid=65532 starts=1 fs=$fs seccomp=2"
  n=$((n + 1))
done
say "xfs, btrfs and ext4 were made by the kubelet and written by uid 65532; pods on other nodes were reached by name"
eventually 60 "the Service to answer a pod by its short name" answers probe-1 http://probe host=probe-
eventually 60 "the Service to answer this machine" host_reaches "http://$(k -n smoke get service probe -o jsonpath='{.spec.clusterIP}')"
expect "serving on :8080" "$(k -n smoke logs probe-2)"
say "the Service answered a pod and this machine; logs and exec work"
if k -n smoke run refused --image=localhost/probe:1 --image-pull-policy=Never >/dev/null 2>&1; then
  fail "Pod Security let a pod in that is not restricted"
fi

$cluster crash smoke probe-2 probe >/dev/null
eventually 90 "a killed container to start again" answers probe-0 http://probe-2.probes:8080 starts=2
say "a killed container started again and found its data"

$cluster node-stop n2
k wait --for=condition=Ready=Unknown node/n2 --timeout=180s >/dev/null || fail "the stopped node did not become NotReady"
uid=$(k -n smoke get pod probe-1 -o jsonpath='{.metadata.uid}')
say "n2 is stopped and NotReady"
$cluster node-start n2
k wait --for=condition=Ready node/n2 --timeout=180s >/dev/null || fail "n2 did not come back"
eventually 120 "the pod of n2 to serve again" answers probe-0 http://probe-1.probes:8080 "starts=2 fs=btrfs"
[ "$(k -n smoke get pod probe-1 -o jsonpath='{.metadata.uid}')" = "$uid" ] || fail "the pod of n2 is another one"
say "n2 is back; its pod is the same and found its data"

# A slow disk takes 2 s for 2 MiB at 1 MiB/s, and much less without a limit. The check compares the disk with itself,
# with a wide margin.
device=$($cluster disk add n3 smoke-slow 32M slow)
took() { # prints the milliseconds for reading 2 MiB past the page cache
  local start
  start=$(date +%s%N)
  $cluster exec n3 dd if="$device" of=/dev/null bs=1M count=2 iflag=direct status=none || return
  echo $((($(date +%s%N) - start) / 1000000))
}
$cluster disk throttle n3 smoke-slow 1M
sleep 0.3 # slowdisk reads the rate ten times a second
slow=$(took)
[ "$slow" -ge 1000 ] || fail "2 MiB at 1 MiB/s took only $slow ms"
$cluster disk throttle n3 smoke-slow error
eventually 20 "the disk to answer errors" not took
say "a slow disk is slow (2 MiB in $slow ms), and a failing one fails"
