#!/usr/bin/env bash
# Installs Debian's packages that the chaos test needs and this machine lacks. Without apt-get it says which these are.
set -euo pipefail
missing=()
for pair in ip=iproute2 nft=nftables nsenter=util-linux mount=mount losetup=mount mkfs.ext4=e2fsprogs; do
  command -v "${pair%%=*}" >/dev/null || missing+=("${pair##*=}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || {
  echo "chaos: missing here, and there is no apt-get to install it: ${missing[*]}" >&2
  exit 1
}
echo "chaos: installing ${missing[*]}"
for i in 1 2 3; do
  apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null && exit 0
  echo "chaos: apt-get: attempt $i of 3 failed" >&2
  sleep $((i * 5))
done
echo "chaos: cannot install ${missing[*]}; see apt-get's messages above" >&2
exit 1
