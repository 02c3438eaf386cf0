#!/usr/bin/env bash
# Builds Kubernetes' own programs from their published Go modules into bin/kube, pinned by the go.mod and go.sum of
# the folders beside this script. What is built already, from the same pins by the same Go, is left alone.
#   hack/kube/build.sh NAME...     (make envtest-assets, make kube-tools)
set -euo pipefail
cd "$(dirname "$0")/../.."
pins=$PWD/hack/kube out=$PWD/bin/kube
export CGO_ENABLED=0 GOWORK=off GOFLAGS=-buildvcs=false

# version FOLDER MODULE: the version that the folder's go.mod pins.
version() { awk -v module="$2" '$1 == "require" && $2 == module {print $3; exit} $1 == module {print $2; exit}' "$pins/$1/go.mod"; }

# describe NAME: sets folder, package and ldflags.
describe() {
  ldflags='-s -w'
  case $1 in
  kube-apiserver | kube-controller-manager | kube-scheduler | kubelet | kubectl | kube-proxy)
    folder=kubernetes package=k8s.io/kubernetes/cmd/$1
    local v minor p
    v=$(version kubernetes k8s.io/kubernetes)
    minor=${v#v1.} minor=${minor%%.*}
    for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      ldflags+=" -X $p.gitVersion=$v -X $p.gitMajor=1 -X $p.gitMinor=$minor -X $p.gitTreeState=clean"
    done
    ;;
  etcd) folder=etcd package=go.etcd.io/etcd/server/v3 ;;
  coredns) folder=coredns package=. ;;
  pause | probe | slowdisk) folder=$1 package=. ;;
  *)
    echo "hack/kube/build.sh: there is no program \"$1\"; see describe() in this script for those there are" >&2
    return 1
    ;;
  esac
}

# retry COMMAND...: the module proxy may hiccup in CI.
retry() {
  local i
  for i in 1 2 3; do
    "$@" && return
    echo "hack/kube/build.sh: attempt $i of 3 failed: $*" >&2
    sleep $((i * 5))
  done
  return 1
}

# fresh NAME: it was built from the same pins by the same Go. Sets what describe does, and stamp.
fresh() {
  describe "$1" || exit
  stamp=$({ go env GOVERSION GOOS GOARCH; echo "$package $ldflags"; find "$pins/$folder" -type f | sort | xargs cat; } | sha256sum)
  [ -x "$out/$1" ] && [ "$(cat "$out/.$1.stamp" 2>/dev/null)" = "$stamp" ]
}

build() {
  local folder package ldflags stamp start=$SECONDS
  fresh "$1" && return
  exec 9>"$out/.lock" # two callers at once would build everything twice; who finds all built waits for nobody
  flock 9
  if ! fresh "$1"; then
    (cd "$pins/$folder" && retry go list -deps "$package" >/dev/null && nice -n 5 go build -trimpath -ldflags "$ldflags" -o "$out/.$1.new" "$package")
    mv "$out/.$1.new" "$out/$1"
    echo "$stamp" >"$out/.$1.stamp"
    echo "built bin/kube/$1 in $((SECONDS - start))s"
  fi
  exec 9>&-
}

[ $# -gt 0 ] || { echo "usage: hack/kube/build.sh NAME..." >&2; exit 2; }
mkdir -p "$out"
for name in "$@"; do build "$name"; done
