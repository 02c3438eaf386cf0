#!/usr/bin/env bash
# Runs a command that may be silent for long, and says every 10 s (TICK) that it goes on, in plain lines on standard
# error.
#   hack/ticks.sh WORDS COMMAND...      as a program: WORDS is what the command does
#   source hack/ticks.sh                for the functions

# ticks WORDS COMMAND...: WORDS is a function that prints one line; it is given the seconds since the start.
ticks() {
  local words=$1 start=$SECONDS code=0 clock
  shift
  ( # it must hold neither a lock nor a pipe of the caller for longer than the command
    exec 9>&- <&-
    trap 'kill "$!" 2>/dev/null; exit' TERM # while words speaks, when it has ended: nothing is said behind the end
    while sleep "${TICK:-10}" >/dev/null 2>&1 & wait "$!"; do "$words" $((SECONDS - start)) >&2; done
  ) >/dev/null &
  clock=$!
  "$@" || code=$?
  kill "$clock" 2>/dev/null || true
  wait "$clock" 2>/dev/null || true
  return $code
}

# duration SECONDS: such as 45s or 3m20s.
duration() { if [ "$1" -lt 60 ]; then echo "$1s"; else echo "$(($1 / 60))m$(($1 % 60))s"; fi; }

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  [ $# -gt 1 ] || { echo "usage: hack/ticks.sh WORDS COMMAND..." >&2; exit 2; }
  what=$1
  shift
  say() { echo "$what: $(duration "$1") so far"; }
  ticks say "$@"
fi
