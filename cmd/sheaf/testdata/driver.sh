# Drives the client of examples/grpcurl; clients_test.go and clients_answers_test.go say how.
set -eu
SHEAF_ADDRESS=$1
cd "$(dirname "$0")"
. ./sheaf_client.sh

# live writes until standard input says "stop", a round a line, then reads everything back.
live() {
  local id version
  declare -A known=()
  for ((id = 0; ; id++)); do
    ! read -r -t 0 || break
    version=$(printf 'one %d' $id | sheaf_put $id '{"condition": {"ifAbsent": true}}')
    known[$id]="one $id"
    if ((id % 3 == 0)); then # and again, as another version
      printf 'two %d' $id | sheaf_put $id "{\"condition\": {\"ifVersion\": \"$version\"}}" >version
      known[$id]="two $id"
    fi
    echo "round $id"
  done
  for id in "${!known[@]}"; do
    got=$(sheaf_get "$id")
    [ "$got" = "${known[$id]}" ] || {
      echo "record $id is $got, not ${known[$id]}" >&2
      exit 1
    }
  done
  echo "all ${#known[@]}"
}

# answers makes the calls that a script answers, and prints what came of them.
answers() {
  local id got
  for id in 1 2 3 4 5 8 9; do
    if printf hello | sheaf_put $id >version 2>failed; then
      echo "put $id: stored"
    else
      sed -n "s/^Put: /put $id: /p" failed
    fi
  done
  for id in 6 7; do
    got=$(sheaf_get $id 2>failed) || got=$(sed -n 's/.*its bytes were changed.*/harmed/p' failed)
    echo "get $id: $got"
  done
}

if [ $# -gt 1 ]; then answers; else live; fi
