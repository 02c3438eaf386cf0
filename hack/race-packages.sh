#!/usr/bin/env bash
# Lists the packages in which the race detector may find something: those whose code or tests start goroutines or use
# locks or atomics. Other packages would cost some seconds each to compile and link, without a benefit. Packages that
# link the Kubernetes client are also omitted, because its 500 packages take minutes to compile.
set -euo pipefail
cd "$(dirname "$0")/.."
go list -f '{{.Dir}} {{.ImportPath}} {{join .Deps ","}}' ./internal/... sheaf.dev/sheaf/client/... | while read -r dir path deps; do
  case ",$deps," in *,k8s.io/client-go/rest,*) continue ;; esac
  if cat "$dir"/*.go | sed 's|//.*||' | grep -E '\bgo func|\bgo [a-z]+\.|\.Go\(|\bsync\.|\batomic\.' >/dev/null; then
    echo "$path"
  fi
done
