#!/usr/bin/env bash
# packages.sh LANGUAGE... installs the Debian packages that `make test-clients` needs for these languages and that
# this machine lacks. Without apt-get it prints their names.
set -euo pipefail
missing=()
for language in "$@"; do
  case "$language" in
  python) python3 -c "import ensurepip, venv" 2>/dev/null || missing+=(python3 python3-venv) ;;
  node)
    command -v node >/dev/null || missing+=(nodejs)
    command -v npm >/dev/null || missing+=(npm)
    ;;
  java)
    command -v javac >/dev/null || missing+=(openjdk-17-jdk-headless)
    command -v mvn >/dev/null || missing+=(maven)
    ;;
  jre) command -v java >/dev/null || missing+=(default-jre-headless) ;;
  grpcurl) command -v jq >/dev/null || missing+=(jq) ;;
  *)
    echo "packages.sh: no language: $language" >&2
    exit 2
    ;;
  esac
done
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || {
  echo "test-clients: missing here, and there is no apt-get to install it: ${missing[*]}" >&2
  exit 1
}
echo "test-clients: installing ${missing[*]}"
for i in 1 2 3; do
  apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null && exit 0
  echo "test-clients: apt-get: attempt $i of 3 failed" >&2
  sleep $((i * 5))
done
echo "test-clients: cannot install ${missing[*]}; see apt-get's messages above" >&2
exit 1
