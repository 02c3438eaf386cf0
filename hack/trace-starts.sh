#!/usr/bin/env bash
# Reports how long the device works in each kind of start in `sheaf-bench load --only start`, to which all arguments
# are passed (--fs ext4 --rounds 11). It prints medians over the rounds in milliseconds: the whole start, the part of
# it with requests at the device, the time before the first request of 64 KiB or more, and the time after the last
# request. It also prints the MB that were read. It needs root. The kernel's trace costs a little time.
# DEVICE: the disk's major,minor, as in 254,0 (default: that of the folder for temporary files).
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "trace-starts: run it as root: it reads the kernel's trace" >&2; exit 1; }
[ -x bin/sheaf ] || { echo "trace-starts: there is no bin/sheaf: make build" >&2; exit 1; }
trace=/sys/kernel/tracing
device="${DEVICE:-$(stat -c '%Hd,%Ld' "${TMPDIR:-/tmp}")}"
mounted=
[ -e $trace/trace_marker ] || { mount -t tracefs nodev $trace && mounted=1; }
log=$(mktemp) buffer=$(awk '{ print $1 }' $trace/buffer_size_kb)
cleanup() {
  echo 0 | tee $trace/events/block/block_rq_{issue,complete}/enable >/dev/null
  echo "$buffer" >$trace/buffer_size_kb
  [ -z "$mounted" ] || umount $trace
  rm -f "$log"
}
trap cleanup EXIT
echo mono >$trace/trace_clock
echo 131072 >$trace/buffer_size_kb
echo >$trace/trace
echo 1 >$trace/tracing_on
echo 1 | tee $trace/events/block/block_rq_{issue,complete}/enable >/dev/null
bin/sheaf-bench load --only start --start 50MiB "$@"

# Convert the trace to lines "seconds what ...". Marks are copied. Requests have the operation, the first sector and
# the number of sectors. A request that the driver returns to its queue is issued again with the same sector, and
# counts once.
sed -nE \
  -e 's/.* ([0-9.]+): tracing_mark_write: sheaf (begins|ends) (.*)/\1 \2 \3/p' \
  -e "s/.* ([0-9.]+): block_rq_(issue|complete): $device ([A-Z]+) .*\(.*\) ([0-9]+) \+ ([0-9]+) .*/\1 \2 \3 \4 \5/p" \
  $trace/trace >"$log"
awk '
  { now = $1 * 1000 }
  $2 == "begins" { begin = last = done = now; large = 0; busy = bytes = flying = 0; split("", sector); inside = 1; next }
  $2 == "ends" && inside {
    inside = 0
    $1 = $2 = ""; sub(/^ +/, "")
    printf "%s\t%.2f %.2f %.2f %.2f %.1f\n", $0, now - begin, busy, large ? large - begin : 0, now - done, bytes / 1e6
    next
  }
  !inside { next }
  { if (flying > 0) busy += now - last; last = now }
  $2 == "issue" && !($4 in sector) {
    sector[$4]; flying++
    if ($3 ~ /^R/) { bytes += $5 * 512; if (!large && $5 >= 128) large = now }
  }
  $2 == "complete" && ($4 in sector) { delete sector[$4]; flying--; done = now }
' "$log" | sort | awk -F'\t' '
  function tell(  i, line) {
    line = sprintf("%-20s", name)
    for (i = 1; i <= 5; i++) line = line sprintf("%9s", median(i))
    if (name != "") print line "  (" count " starts)"
  }
  function median(column,  i, j, t, v) {
    for (i = 1; i <= count; i++) { split(row[i], v, " "); sorted[i] = v[column] + 0 }
    for (i = 2; i <= count; i++) for (j = i; j > 1 && sorted[j - 1] > sorted[j]; j--) { t = sorted[j]; sorted[j] = sorted[j - 1]; sorted[j - 1] = t }
    return sorted[int((count + 1) / 2)]
  }
  BEGIN { print "                         ms   device    first     last       MB" }
  $1 != name { tell(); name = $1; count = 0 }
  { row[++count] = $2 }
  END { tell() }
'
