#!/usr/bin/env bash
# Installs Debian's packages that a virtual environment of Python needs and this machine lacks. Without apt-get it says which these are.
set -euo pipefail
! python3 -c "import ensurepip, venv" 2>/dev/null || exit 0
command -v apt-get >/dev/null || {
  echo "test-python: missing here, and there is no apt-get to install it: python3-venv" >&2
  exit 1
}
echo "test-python: installing python3-venv"
for i in 1 2 3; do
  apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends python3 python3-venv >/dev/null && exit 0
  echo "test-python: apt-get: attempt $i of 3 failed" >&2
  sleep $((i * 5))
done
echo "test-python: cannot install python3-venv; see apt-get's messages above" >&2
exit 1
