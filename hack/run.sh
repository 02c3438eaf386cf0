#!/usr/bin/env bash
# Implements `make run`: starts a store, imports a tree that every machine with Go has, kills the process and starts
# it again. It reports how long this takes compared with reading the same bytes as one file per record. Then the store
# keeps running; with --once the script ends.
set -euo pipefail
cd "$(dirname "$0")/.."

program=bin/sheaf-bench
once=false
listen=127.0.0.1:7600
http=127.0.0.1:7601
residency=resident
trees=()
usage() {
	echo "usage: hack/run.sh [--once] [--listen host:port] [--http host:port] [--residency index|resident] [DIR...]" >&2
	exit 2
}
while [ $# -gt 0 ]; do
	case "$1" in
	--once) once=true ;;
	--listen | --http | --residency)
		[ $# -ge 2 ] || usage
		printf -v "${1#--}" '%s' "$2"
		shift
		;;
	-*) usage ;;
	*) trees+=("$1") ;;
	esac
	shift
done
[ -x "$program" ] || { echo "run: $program is missing: make build" >&2; exit 1; }
if [ ${#trees[@]} -eq 0 ]; then
	trees=("$(go env GOROOT)/src" "$(go env GOMODCACHE)")
fi

exec "$program" demo --listen "$listen" --http "$http" --residency "$residency" --once="$once" "${trees[@]}"
