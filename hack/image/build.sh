#!/usr/bin/env bash
# Builds the static binaries and packs each into an OCI archive. `make image` sets these variables:
#   IMAGE_PREFIX IMAGE_TAG   the images are IMAGE_PREFIX:IMAGE_TAG, IMAGE_PREFIX-operator:IMAGE_TAG,
#                            IMAGE_PREFIX-bench:IMAGE_TAG and IMAGE_PREFIX-archive:IMAGE_TAG
#   IMAGES                   the images to build: "sheaf sheaf-operator sheaf-bench sheaf-archive", or some of them
#   PLATFORMS                such as "linux/amd64 linux/arm64"
#   VERSION REVISION         written into binaries and labels
#   SOURCE_DATE_EPOCH        the time of everything in the images, which is that of the commit
#   OUT                      folder for the archives
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${IMAGES:?}" "${IMAGE_PREFIX:?}" "${IMAGE_TAG:?}" "${PLATFORMS:?}" "${VERSION:?}" "${SOURCE_DATE_EPOCH:?}" "${OUT:?}"
out=$(mkdir -p "$OUT" && cd "$OUT" && pwd)

(cd hack/image && CGO_ENABLED=0 go build -trimpath -o "$out/.pack" .)

pack() { # pack FOLDER IMAGE DESCRIPTION
  local folder="$1" binary="${1##*/}" image="$2" description="$3" platform file binaries=()
  [[ " $IMAGES " = *" $binary "* ]] || return 0
  for platform in $PLATFORMS; do
    file="$out/.${platform//\//-}/$binary"
    # Start with the binary of `make build`, if there is one. If it was linked from the same source and version, go
    # recognizes this by its inputs and does not link it again.
    mkdir -p "${file%/*}" && cp "bin/$binary" "$file" 2>/dev/null || true
    CGO_ENABLED=0 GOOS="${platform%/*}" GOARCH="${platform#*/}" \
      go build -C "$folder" -trimpath -ldflags "-s -w -X main.version=$VERSION" -o "$file" . # it may be a module of its own
    binaries+=(--binary "$platform=$file")
  done
  "$out/.pack" --name "$image:$IMAGE_TAG" "${binaries[@]}" --entrypoint "/$binary" --output "$out/$binary.tar" \
    --title "$binary" --description "$description" --version "$VERSION" --revision "${REVISION:-}" --created "$SOURCE_DATE_EPOCH"
}

pack cmd/sheaf "$IMAGE_PREFIX" "Sheaf: shard, gateway, etcd and command line"
pack cmd/sheaf-operator "$IMAGE_PREFIX-operator" "Sheaf: the Kubernetes operator"
pack bench/sheaf-bench "$IMAGE_PREFIX-bench" "Sheaf: measures a machine and its disks"
pack cmd/sheaf-archive "$IMAGE_PREFIX-archive" "Sheaf: archives of stores in buckets"
