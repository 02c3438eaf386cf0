#!/usr/bin/env bash
# Runs `sheaf-bench layouts` at quick scale and fails if it fails or leaves anything behind: a file, a mount, a loop
# device.
# Targets that are missed do not count: a machine under load misses them. Arguments are handed on.
# FS: the file systems, which have to be there. OUT: where the report goes.
set -euo pipefail
cd "$(dirname "$0")/.."
fs="${FS:-ext4,xfs,btrfs}" out="${OUT:-bin/bench-layouts}"

# Debian's packages of the tools that are not there.
missing=()
[[ ",$fs," != *,ext* ]] || command -v mke2fs >/dev/null || missing+=(e2fsprogs)
[[ ",$fs," != *,xfs,* ]] || command -v mkfs.xfs >/dev/null || missing+=(xfsprogs)
[[ ",$fs," != *,btrfs,* ]] || command -v mkfs.btrfs >/dev/null || missing+=(btrfs-progs)
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null ||
    echo "bench-layouts: cannot install ${missing[*]}: the report says what is left out" >&2
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
left() { # what is there of ours, beside the folder itself
  find "$dir" -mindepth 1
  grep -F "$dir/" /proc/self/mountinfo || true
  grep -l "$dir/" /sys/block/loop*/loop/backing_file 2>/dev/null || true
}

bin/sheaf-bench layouts --scale quick --fs "$fs" --dir "$dir" --out "$out" "$@"

if [ -n "$(left)" ]; then
  echo "bench-layouts: left behind:" >&2
  left >&2
  exit 1
fi
