#!/usr/bin/env bash
# Runs `sheaf-bench layouts` at quick scale. It fails if the command fails or leaves anything behind: a file, a mount
# or a loop device. Missed targets do not count, because a machine under load misses them. Arguments are passed on.
# FS: the file systems, which must be available. OUT: the folder of the report.
set -euo pipefail
cd "$(dirname "$0")/.."
fs="${FS:-ext4,xfs,btrfs}" out="${OUT:-bin/bench-layouts}"

# These are the Debian packages of the tools that are missing.
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
left() { # prints what a run has left behind, except the folder itself
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
