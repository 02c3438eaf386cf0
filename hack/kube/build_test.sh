#!/usr/bin/env bash
# Tests the messages of hack/kube/build.sh during a build, with a slow `go` that compiles nothing. `make lint` runs
# it.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/repo/hack/kube" "$dir/bin"
cp hack/ticks.sh "$dir/repo/hack/"
cp -r hack/kube/build.sh hack/kube/pause hack/kube/probe "$dir/repo/hack/kube/"
cat >"$dir/bin/go" <<'GO'
#!/usr/bin/env bash
case "$*" in
env*) echo go1; exit ;;
list*) for i in $(seq 30); do echo x; done; exit ;;
esac
for i in $(seq 25); do echo "example.org/package$i" >&2; done
if [ -n "${FAKE_FAILS-}" ]; then echo "main.go:1:1: expected 'package'" >&2; exit 1; fi
sleep 2
out=${!#} # in `go run -exec cp PACKAGE OUT`
echo '#!/bin/true' >"$out"
chmod +x "$out"
GO
chmod +x "$dir/bin/go"
fail() {
  echo "hack/kube/build_test.sh: $1:" >&2
  cat "$dir/said" >&2
  exit 1
}
run() { PATH="$dir/bin:$PATH" TICK=0.5 "$dir/repo/hack/kube/build.sh" pause probe >"$dir/said" 2>&1; }

run || fail "it fails"
grep -q 'building bin/kube/probe; 1 of 2 programs are built, .* of 60 packages compiled in .*s, about .*s left$' "$dir/said" || fail "no line says how far it is"
[ "$(grep -c 'building bin/kube/pause' "$dir/said")" -ge 3 ] || fail "it is silent while it builds"
! grep -q 'example.org' "$dir/said" || fail "it lists packages"
! grep -qP '[\x00-\x08\x0b-\x1f]' "$dir/said" || fail "there are control characters"
grep -q '^built bin/kube/pause in [0-9]*s$' "$dir/said" || fail "it does not say what it has built"

run || fail "it fails where all is built"
[ ! -s "$dir/said" ] || fail "it speaks where there is nothing to do"

rm "$dir/repo/bin/kube/probe"
! FAKE_FAILS=1 run || fail "it does not fail with the compiler"
grep -q "main.go:1:1: expected 'package'" "$dir/said" || fail "it does not say what the compiler said"

# ticks waits for a WORDS function that is still running when the command ends.
source hack/ticks.sh
late() { said=$(touch "$dir/begun"; sleep 0.5; echo late >&2); }
until_begun() { until [ -e "$dir/begun" ]; do sleep 0.05; done; }
TICK=0.1 ticks late until_begun 2>"$dir/said"
grep -q late "$dir/said" || fail "it ends before what it says"
