#!/usr/bin/env bash
# Builds Kubernetes' own programs from their published Go modules into bin/kube. go.mod and go.sum in the folders next
# to this script pin the versions. A program that was already built from the same pins with the same Go is not built
# again.
#   hack/kube/build.sh NAME...     (make envtest-assets, make kube-tools)
set -euo pipefail
cd "$(dirname "$0")/../.."
pins=$PWD/hack/kube out=$PWD/bin/kube
export CGO_ENABLED=0 GOWORK=off GOFLAGS="${GOFLAGS:--buildvcs=false -trimpath}"
source hack/ticks.sh

# version FOLDER MODULE prints the version that the folder's go.mod pins.
version() { awk -v module="$2" '$1 == "require" && $2 == module {print $3; exit} $1 == module {print $2; exit}' "$pins/$1/go.mod"; }

# describe NAME sets folder, package and ldflags.
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

# retry COMMAND... runs a command again if it fails, because the module proxy may fail for a moment in CI.
retry() {
  local i
  for i in 1 2 3; do
    "$@" && return
    echo "hack/kube/build.sh: attempt $i of 3 failed: $*" >&2
    sleep $((i * 5))
  done
  return 1
}

# fresh NAME succeeds if the program was built from the same pins with the same Go. It sets the variables of describe,
# and stamp.
fresh() {
  describe "$1" || exit
  stamp=$({ go env GOVERSION GOOS GOARCH; echo "$package $ldflags"; find "$pins/$folder" -type f | sort | xargs cat; } | sha256sum)
  [ -x "$out/$1" ] && [ "$(cat "$out/.$1.stamp" 2>/dev/null)" = "$stamp" ]
}

# These variables hold what is to be built and how much of it is done: programs and packages. $compiled, if set, is a
# file to which the names of compiled packages are written.
programs=0 built=0 packages=0 began=$SECONDS compiled='' now=''

# count NAME... sets programs to the number of programs that are not yet built, and packages to the number of their
# packages that must be compiled. Programs in one module share packages, so count queries each module only once.
count() {
  local name folder package ldflags stamp stale
  declare -A wanted=()
  for name in "$@"; do
    fresh "$name" && continue
    programs=$((programs + 1))
    wanted[$folder]+=" $package"
  done
  for folder in "${!wanted[@]}"; do
    now="looking at the module $folder"
    # shellcheck disable=SC2086 # several packages
    stale=$(cd "$pins/$folder" && ticks far retry go list -deps -trimpath -f '{{if .Stale}}x{{end}}' ${wanted[$folder]} | grep -c x || true)
    packages=$((packages + stale))
  done
}

# far prints one line with the progress, and an estimate of the time left that is based on the time spent so far. The
# first packages are many small ones and a few huge ones, which allow no estimate. Before a tenth of the packages is
# compiled, far therefore prints no time left.
far() {
  local spent=$((SECONDS - began)) done=0 left=''
  [ ! -f "$compiled" ] || done=$(wc -l <"$compiled")
  if [ "$packages" -gt 0 ] && [ "$done" -gt 0 ] && [ $((done * 10)) -ge "$packages" ] && [ "$done" -le "$packages" ]; then
    left=", about $(duration $((spent * (packages - done) / done + 1))) left"
  fi
  echo "hack/kube/build.sh: $now; $built of $programs programs are built, $done of $packages packages compiled in $(duration "$spent")$left"
}

# compile FOLDER PACKAGE LDFLAGS OUT builds a program. It appends the packages that the compiler names to $compiled,
# and prints everything else to standard error. `go run` keeps linked programs in the build cache, so a fresh clone
# only copies them; `go build` would link again.
compile() {
  cd "$1" && nice -n 5 go run -v -trimpath -ldflags "$3" -exec cp "$2" "$4" 2>&1 >/dev/null |
    while IFS= read -r line; do
      case $line in
      *' '* | '#'* | *:*) echo "$line" >&2 ;;
      *) echo "$line" >>"$compiled" ;;
      esac
    done
}

build() {
  local folder package ldflags stamp start=$SECONDS
  fresh "$1" && return
  now="waiting for another build of bin/kube"
  exec 9>"$out/.lock" # two callers at a time would build everything twice; if nothing is to be built, nobody waits here
  ticks far flock 9
  if ! fresh "$1"; then
    now="building bin/kube/$1"
    far >&2
    (ticks far compile "$pins/$folder" "$package" "$ldflags" "$out/.$1.new")
    mv "$out/.$1.new" "$out/$1"
    echo "$stamp" >"$out/.$1.stamp"
    echo "built bin/kube/$1 in $((SECONDS - start))s"
  fi
  built=$((built + 1))
  exec 9>&-
}

[ $# -gt 0 ] || { echo "usage: hack/kube/build.sh NAME..." >&2; exit 2; }
mkdir -p "$out"
compiled=$(mktemp)
trap 'rm -f "$compiled"' EXIT
count "$@"
for name in "$@"; do build "$name"; done
