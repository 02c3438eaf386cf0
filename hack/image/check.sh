#!/usr/bin/env bash
# Checks that the images are reproducible. It builds them twice, from two copies of the source in folders with
# different names, and with different time zone, umask and locale, and compares the archives byte by byte. With COLD=1
# the second build has an empty build cache, so that every package is compiled again, which takes minutes. Otherwise
# it repeats only linking and packing.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d "${TMPDIR:-/tmp}/sheaf-check-image.XXXXXX")
trap 'rm -rf "$work"' EXIT

one="$work/one" two="$work/a longer/name"
mkdir -p "$one" "$two"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done |
  tar --null -T - -cf "$work/source.tar"
tar -xf "$work/source.tar" -C "$one"
(umask 077 && tar -xmf "$work/source.tar" -C "$two")

OUT="$work/out1" TZ=UTC "$one/hack/image/build.sh"
(
  umask 077
  if [ -n "${COLD:-}" ]; then export GOCACHE="$work/cache"; fi
  OUT="$work/out 2" TZ=Asia/Tokyo LC_ALL=C "$two/hack/image/build.sh"
)
for archive in "$work"/out1/*.tar; do
  cmp "$archive" "$work/out 2/$(basename "$archive")" || {
    echo "two builds of $(basename "$archive") differ: something of the machine or the time got in" >&2
    exit 1
  }
done
echo "images are reproducible"
