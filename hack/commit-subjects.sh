#!/usr/bin/env bash
# Fails if the subject of a commit has more than 72 characters, which is the limit in CONTRIBUTING.md. It checks the
# commits on this branch since $start, where the rule was introduced. Merges are exempt. In a shallow clone or without
# git it cannot know these commits; then it says so and does not fail.
#   hack/commit-subjects.sh [START]     (make lint)
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8 # count characters and not bytes
start=${1:-b5d07b27239ebb327dd6d98bfecfb0a86a2f56c2} most=72

not_run() {
  echo "hack/commit-subjects.sh: NOT RUN: $1" >&2
  exit 0
}
command -v git >/dev/null || not_run "there is no git"
shallow=$(git rev-parse --is-shallow-repository) || not_run "this is no clone that git reads"
[ "$shallow" = false ] || not_run "this clone is shallow"
git cat-file -e "$start^{commit}" 2>/dev/null || not_run "this clone does not have the commit $start"
git merge-base --is-ancestor "$start" HEAD || not_run "this branch does not begin at the commit $start"

bad=0
commits=$(git log --no-merges --format='%h %s' "$start..HEAD")
while read -r commit subject; do
  if [ ${#subject} -gt $most ]; then
    echo "$commit has a subject of ${#subject} characters, at most $most: $subject" >&2
    bad=1
  fi
done <<<"$commits"
exit $bad
