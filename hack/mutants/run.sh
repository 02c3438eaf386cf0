#!/usr/bin/env bash
# Runs mutants. A mutant is a patch that removes one fix, and a test must find it (README.md in this folder).
#
#   hack/mutants/run.sh [NAME...]      without names: all of them
#   LANES="test race"                  only mutants of these lanes; LANES=none runs none and checks that all of them can run
#   ONLY_CHANGED=1 [REF=origin/main]   only mutants whose files, test or patch differ from the merge base with REF
#   TIMES=10                           runs each mutant ten times, and counts how often it was found
#
# The sources are those of HEAD, in a separate git worktree. The patches are those of the working tree. The script
# fails if a mutant survives, does not apply or does not compile, or if its test fails or is skipped without the
# mutant.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
root=$PWD
export GOFLAGS="${GOFLAGS:--buildvcs=false -trimpath}" CGO_ENABLED="${CGO_ENABLED:-0}"
export KUBEBUILDER_ASSETS="${KUBEBUILDER_ASSETS:-$root/bin/kube}"
flags=(-vet=off -ldflags '-s -w') # the same as TESTFLAGS in the Makefile
lanes=' test test-api race soak-log soak-raft soak-proc soak-kube soak-eco '
times=${TIMES:-1}

die() { echo "hack/mutants/run.sh: $*" >&2; exit 2; }

header() { # header NAME KEY: prints its value, or nothing
  awk -v key="$2: " '/^diff --git /{exit} index($0, key) == 1 {print substr($0, length(key) + 1); exit}' "hack/mutants/$1.diff"
}

# files NAME prints the files that the patch changes, one path a line.
files() { sed -n 's/^diff --git a\/.* b\///p' "hack/mutants/$1.diff"; }

# changed NAME succeeds if a file of the mutant, the file of its test, or the patch itself is in $touched.
changed() {
  local package test
  package=$(header "$1" Package) test=$(header "$1" Test)
  test=$(grep -oE '[A-Z][A-Za-z0-9_]*' <<<"$test" | head -1)
  { files "$1"; echo "hack/mutants/$1.diff"; (cd "$tree" && grep -lE "^func $test" "$package"/*_test.go || true) | sed 's/^\.\///'; } |
    grep -qxFf "$touched"
}

work=$(mktemp -d)
tree=$work/tree
cleanup() {
  git -C "$root" worktree remove --force "$work/tree" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
if [ "${LANES:-}" = none ]; then tree=$root; else git worktree add --quiet --detach "$tree" HEAD; fi
touched=$work/touched
if [ -n "${ONLY_CHANGED:-}" ]; then
  base=$(git merge-base HEAD "${REF:-origin/main}") || die "there is no ${REF:-origin/main} to compare with: fetch it, or name another by REF="
  git diff --name-only "$base" >"$touched"
fi

# compile BINARY PACKAGE LANE builds the tests of a package.
compile() {
  local race=()
  if [ "$3" = race ]; then race=(-race); fi
  (cd "$tree/$2" && CGO_ENABLED=$([ "$3" = race ] && echo 1 || echo "$CGO_ENABLED") go test -c "${flags[@]}" "${race[@]}" -o "$1" .)
}

# run BINARY NAME LOG runs the mutant's test in the folder of its package. It returns 0 if the test passed, 1 if it
# failed, 2 if no test ran or one was skipped, and 3 if it hung.
run() {
  local soak='' api='' args=() code=0 limit test package
  test=$(header "$2" Test) package=$(header "$2" Package) limit=$(header "$2" Timeout)
  limit=${limit:-300}
  case $(header "$2" Lane) in
  test-api) api=required ;;
  soak-kube) soak=1 api=all ;;
  soak-*) soak=1 ;;
  esac
  if [ "$(header "$2" Lane)" = race ]; then args=(-test.short); fi
  eval "args+=($(header "$2" Args))"
  (
    cd "$tree/$package"
    SHEAF_SOAK=$soak SHEAF_API=$api timeout -k 10 $((limit + 60)) "$1" -test.v -test.count=1 -test.timeout "${limit}s" \
      -test.run "$test" "${args[@]}"
  ) >"$3" 2>&1 || code=$?
  if [ "$code" -ge 124 ] || grep -q '^panic: test timed out after' "$3"; then return 3; fi
  if [ "$code" -ne 0 ]; then return 1; fi
  if grep -qE '^ *--- SKIP: ' "$3" || ! grep -q '^--- PASS: ' "$3"; then return 2; fi
}

# clean NAME checks that the test passes without the mutant. It does this once for each test.
clean() {
  local package lane key binary code=0
  package=$(header "$1" Package) lane=$(header "$1" Lane)
  binary="$work/clean-$(tr -c 'a-z0-9\n' - <<<"$package-$([ "$lane" = race ] && echo race || echo plain)")"
  key="$work/$(sha256sum <<<"$package $lane $(header "$1" Test) $(header "$1" Args)" | cut -c1-16)"
  if [ -e "$key.passed" ]; then return 0; fi
  if [ ! -e "$binary" ]; then
    compile "$binary" "$package" "$lane" >"$key.log" 2>&1 || { tail -n 20 "$key.log"; echo "FAILED $1: $package does not compile without the mutant"; return 1; }
  fi
  run "$binary" "$1" "$key.log" || code=$?
  case $code in
  0) touch "$key.passed" ;;
  2) grep -E -A3 -- '--- SKIP' "$key.log" || true; echo "FAILED $1: without the mutant its test does not run, or is skipped in part"; return 1 ;;
  *) tail -n 40 "$key.log"; echo "FAILED $1: its test fails without the mutant, too"; return 1 ;;
  esac
}

# mutant NAME runs a mutant and prints a line. It returns 0 if the mutant was found.
mutant() {
  local name=$1 log="$work/$1.log" test lane runs code began found=0 round try at=''
  test=$(header "$name" Test) lane=$(header "$name" Lane) runs=$(header "$name" Runs)
  clean "$name" || return 1
  if ! git -C "$tree" apply --whitespace=nowarn "$root/hack/mutants/$name.diff" 2>"$log"; then
    cat "$log"
    echo "FAILED $name: the patch does not apply: write it again for the code of today"
    return 1
  fi
  if ! compile "$work/mutated" "$(header "$name" Package)" "$lane" >"$log" 2>&1; then
    tail -n 20 "$log"
    echo "FAILED $name: it does not compile, which no test can be thanked for"
    return 1
  fi
  began=$SECONDS
  for ((round = 1; round <= times; round++)); do
    for ((try = 1; try <= ${runs:-1}; try++)); do
      code=0
      run "$work/mutated" "$name" "$log" || code=$?
      if [ $code -eq 1 ] || { [ $code -eq 3 ] && [ "$(header "$name" Hang)" = found ]; }; then
        found=$((found + 1)) at=$try
        break
      fi
    done
  done
  if [ $found -lt "$times" ]; then
    tail -n 5 "$log"
    echo "SURVIVED $name: $test found it $found times of $times, ${runs:-1} run(s) each$([ $code -eq 3 ] && echo '; it hung' || true)"
    return 1
  fi
  echo "found $name by $test in $((SECONDS - began)) s$([ "$times" -gt 1 ] && echo ", $found times of $times")$([ "${runs:-1}" -gt 1 ] && echo ", run $at of ${runs:-1}" || true)"
  if [ -n "${VERBOSE:-}" ]; then { grep -vE '^(=== |--- PASS|PASS)' "$log" || true; } | sed -n "1,${VERBOSE}p"; fi
}

# check NAME checks that the headers are complete, that the test exists, that the patch applies, and that it changes only
# production code.
check() {
  [ -e "hack/mutants/$1.diff" ] || die "there is no hack/mutants/$1.diff; hack/mutants/README.md lists what there is"
  local key
  for key in Test Package Lane Why Cure; do
    [ -n "$(header "$1" $key)" ] || die "hack/mutants/$1.diff has no line \"$key: ...\" before its diff; README.md says what stands there"
  done
  [[ $lanes == *" $(header "$1" Lane) "* ]] || die "hack/mutants/$1.diff: Lane is one of$lanes"
  grep -qF "| \`$1\` |" hack/mutants/README.md || die "hack/mutants/README.md has no row for $1: add one to its tables"
  if files "$1" | grep -E '_test\.go$'; then die "hack/mutants/$1.diff changes a test: a mutant takes back a cure alone"; fi
  git -C "$tree" apply --check --whitespace=nowarn "$root/hack/mutants/$1.diff" ||
    die "hack/mutants/$1.diff does not apply: write it again for the code of today"
  key=$(header "$1" Test | grep -oE '[A-Z][A-Za-z0-9_]*' | head -1)
  grep -qE "^func $key[A-Za-z0-9_]*\\(" "$tree/$(header "$1" Package)"/*_test.go || die "hack/mutants/$1.diff names the test $key, which does not exist"
}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then mapfile -t names < <(cd hack/mutants && ls -- *.diff | sed 's/\.diff$//'); fi
all=0 good=0
for name in "${names[@]}"; do check "$name"; done
for name in "${names[@]}"; do
  if [ -n "${LANES:-}" ] && [[ " $LANES " != *" $(header "$name" Lane) "* ]]; then continue; fi
  if [ -n "${ONLY_CHANGED:-}" ] && ! changed "$name"; then continue; fi
  all=$((all + 1))
  if mutant "$name"; then good=$((good + 1)); fi
  git -C "$tree" checkout --quiet --force -- . && git -C "$tree" clean -fdq
done
echo "$all mutants, $good found"
[ $all -eq $good ]
