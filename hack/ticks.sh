#!/usr/bin/env bash
# Runs a command that may be silent for long. Every 10 s (TICK) it prints a plain line to standard error that says
# that the command is still running.
#   hack/ticks.sh WORDS COMMAND...      as a program: WORDS is what the command does
#   source hack/ticks.sh                for the functions

# ticks WORDS COMMAND... runs a command. WORDS is a function that prints one line; its argument is the number of
# seconds since the start.
ticks() {
  local words=$1 start=$SECONDS code=0 clock
  shift
  ( # must not hold a lock or a pipe of the caller after the command has ended
    exec 9>&- <&-
    trap 'kill "$!" 2>/dev/null; exit' TERM # if WORDS is running when the command ends, wait for it, so that nothing is printed afterwards
    while sleep "${TICK:-10}" >/dev/null 2>&1 & wait "$!"; do "$words" $((SECONDS - start)) >&2; done
  ) >/dev/null &
  clock=$!
  "$@" || code=$?
  kill "$clock" 2>/dev/null || true
  wait "$clock" 2>/dev/null || true
  return $code
}

# duration SECONDS formats a duration, such as 45s or 3m20s.
duration() { if [ "$1" -lt 60 ]; then echo "$1s"; else echo "$(($1 / 60))m$(($1 % 60))s"; fi; }

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  [ $# -gt 1 ] || { echo "usage: hack/ticks.sh WORDS COMMAND..." >&2; exit 2; }
  what=$1
  shift
  say() { echo "$what: $(duration "$1") so far"; }
  ticks say "$@"
fi
