#!/usr/bin/env bash
# Tests hack/commit-subjects.sh in a temporary repository. `make lint` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v git >/dev/null; then
  echo "hack/commit-subjects_test.sh: NOT RUN: there is no git" >&2
  exit 0
fi
# If a git hook runs this test, these variables point to the repository of the caller.
unset "${!GIT_@}"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.org GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@example.org
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GIT_CEILING_DIRECTORIES=$dir # do not use a repository above this folder
mkdir -p "$dir/repo/hack"
cp hack/commit-subjects.sh "$dir/repo/hack/"
git="git -C $dir/repo"
fail() {
  echo "hack/commit-subjects_test.sh: $1:" >&2
  cat "$dir/said" >&2
  exit 1
}
run() { "$dir/repo/hack/commit-subjects.sh" "$@" >"$dir/said" 2>&1; }
commit() { $git commit -q --allow-empty -m "$1"; }
long=$(printf 'x%.0s' {1..73}) umlauts=$(printf 'ä%.0s' {1..72})

run || fail "it fails where there is no repository"
grep -q 'NOT RUN: .*this is no clone' "$dir/said" || fail "it does not say that there is no repository"

$git init -q -b main
commit "$long"
start=$($git rev-parse HEAD)
run "$start" || fail "it fails at the commit from before"
[ ! -s "$dir/said" ] || fail "it speaks where there is nothing to say"

commit "$umlauts"
run "$start" || fail "it counts bytes"
$git checkout -q -b side
commit "side"
$git checkout -q main
$git merge -q --no-ff -m "$long" side
run "$start" || fail "it looks at merges"

run || fail "it fails where the commit is unknown"
grep -q 'NOT RUN: .*does not have the commit' "$dir/said" || fail "it does not say that the commit is unknown"
$git checkout -q --orphan other
commit "other $long"
run "$start" || fail "it fails on a branch that does not begin there"
grep -q 'NOT RUN: .*does not begin at' "$dir/said" || fail "it does not say that the branch does not begin there"
$git checkout -q main

commit "$long"
! run "$start" || fail "it takes 73 characters"
grep -q "73 characters" "$dir/said" || fail "it does not say how long the subject is"

git clone -q --depth 1 "file://$dir/repo" "$dir/shallow"
mkdir -p "$dir/shallow/hack" && cp hack/commit-subjects.sh "$dir/shallow/hack/"
"$dir/shallow/hack/commit-subjects.sh" "$start" >"$dir/said" 2>&1 || fail "it fails in a shallow clone"
grep -q 'NOT RUN: .*is shallow' "$dir/said" || fail "it does not say that the clone is shallow"
