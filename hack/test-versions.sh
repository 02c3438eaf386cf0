#!/usr/bin/env bash
# Builds an older version of the program from this repository's history, and runs the tests of two versions
# with it.
# $1: a commit or tag. Default: the newest tag before this commit; there may be none yet.
set -euo pipefail
cd "$(dirname "$0")/.."
ref="${1:-$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null || true)}"
if [ -z "$ref" ]; then
  echo "test-versions: NOT RUN: there is no tag before this commit; name one: make test-versions REF=COMMIT"
  exit 0
fi
dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/tree" 2>/dev/null || true; rm -rf "$dir"; git worktree prune' EXIT
git worktree add --quiet --detach "$dir/tree" "$ref"
(cd "$dir/tree" && CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(git rev-parse --short HEAD)" -o "$dir/sheaf" ./cmd/sheaf)
echo "older: $("$dir/sheaf" --version)"
format=$(sed -n 's/^\tFormatVersion = //p' "$dir/tree/internal/storage/volume/superblock.go")
restores=$(grep -ls '"restore,omitempty"' "$dir/tree/internal/placement/placement.go" || true)
SHEAF_OLDER="$dir/sheaf" SHEAF_OLDER_SUPERBLOCK="$format" SHEAF_OLDER_RESTORES="$restores" \
  go test -count=1 -timeout 15m -run '^(TestTwoVersions|TestOlderProgramsRefuseARestoredStore)$' -v ./cmd/sheaf
