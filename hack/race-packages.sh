#!/usr/bin/env bash
# Lists the packages that the race detector may find something in: those whose code or tests start goroutines, or guard
# what they share. The others would be compiled and linked anew for nothing, some seconds each.
set -euo pipefail
cd "$(dirname "$0")/.."
go list -f '{{.Dir}} {{.ImportPath}}' ./internal/... ./client/... | while read -r dir path; do
  if grep -qE '\bgo func|\bgo [a-z]+\.|\.Go\(|\bsync\.|\batomic\.' "$dir"/*.go; then
    echo "$path"
  fi
done
