#!/usr/bin/env bash
# Lists the packages that the race detector may find something in: those whose code or tests start goroutines, or guard
# what they share. The others would be compiled and linked anew for nothing, some seconds each. Left out too is what
# links the Kubernetes client, of which 500 packages take minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
go list -f '{{.Dir}} {{.ImportPath}} {{join .Deps ","}}' ./internal/... ./client/... | while read -r dir path deps; do
  case ",$deps," in *,k8s.io/client-go/rest,*) continue ;; esac
  if grep -qE '\bgo func|\bgo [a-z]+\.|\.Go\(|\bsync\.|\batomic\.' "$dir"/*.go; then
    echo "$path"
  fi
done
