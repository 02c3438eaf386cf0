#!/usr/bin/env bash
# A client of Sheaf for scripts, which retries calls and checks data. You can source this file. If you run it, it puts
# and gets a record. It needs grpcurl, jq, base64 and sha256sum. SHEAF_ADDRESS is the address of the store.
sheaf_address=${SHEAF_ADDRESS:-127.0.0.1:7600}

# sheaf_call METHOD: sends the request on standard input, and prints the answer. It retries the call for at most
# a minute. If the call fails, it prints the reason to standard error.
sheaf_call() {
  local request answer exit code reason wait told pause=20 doubt='' end=$((SECONDS + 60))
  request=$(cat)
  while :; do
    exit=0
    answer=$(printf '%s' "$request" |
      grpcurl -plaintext -format-error -connect-timeout 2 -max-time 5 -max-msg-sz 16777216 -d @ \
        "$sheaf_address" "sheaf.record.v1.RecordService/$1" 2>&1) || exit=$?
    if [ $exit -eq 0 ]; then
      printf '%s\n' "$answer"
      return 0
    elif [ $exit -lt 64 ]; then # the server or its reflection does not answer, so the call was not sent
      code=14 reason=NOT_SENT wait=0
    else # the answer is a google.rpc.Status
      read -r code reason wait < <(jq -r '
        "\(.code) \([.details[]? | select(.domain == "sheaf.dev").reason][0] // "-") " +
        "\([.details[]?.retryDelay // empty | rtrimstr("s") | tonumber * 1000 | ceil][0] // 0)"' <<<"$answer")
    fi
    case "$code $reason" in
    # 14 is UNAVAILABLE; without a reason, the connection failed. 4 is DEADLINE_EXCEEDED.
    "14 -" | "4 "* | *" OUTCOME_UNKNOWN") doubt=', maybe done' ;;
    # A group sends these reasons after it has looked for the request id, so they show whether the write was applied.
    *" VERSION_MISMATCH" | *" RECORD_EXISTS" | *" REQUEST_ID_REUSED") doubt='' ;;
    esac
    pause=$((pause < 500 ? 2 * pause : 500))
    told=$wait
    wait=$((wait > pause ? wait : pause - RANDOM % (pause / 2)))
    case "$code $reason" in
    "14 "* | "4 "* | *" OVERLOADED" | *" WRONG_SHARD" | *" NOT_LEADER" | *" OUTCOME_UNKNOWN") ;;
    # An answer about a rate quota has RetryInfo. An answer about a storage quota has none, and a retry is useless.
    *" QUOTA_EXCEEDED") [ "$told" -gt 0 ] || end=0 ;;
    *) end=0 ;; # a retry is useless
    esac
    if [ $((SECONDS + wait / 1000)) -ge $end ]; then
      printf '%s: %s%s\n%s\n' "$1" "$reason" "$doubt" "$answer" >&2
      return 1
    fi
    sleep "$((wait / 1000)).$(printf '%03d' $((wait % 1000)))"
  done
}

# sheaf_put ID [FIELDS]: stores standard input, at most 1 MiB, and prints the version. FIELDS are more fields of the
# request in JSON, such as {"condition": {"ifAbsent": true}}. A shell cannot compute CRC32C, so sheaf_put stores a
# SHA-256 in an attribute of the record.
sheaf_put() {
  local data sum
  data=$(base64 -w0)
  sum=$(printf '%s' "$data" | base64 -d | sha256sum | cut -c 1-64)
  printf '%s' "$data" |
    jq -Rs --arg id "$1" --arg request_id "$(head -c 16 /dev/urandom | base64)" --arg sum "$sum" \
      --argjson more "${2:-null}" \
      '{key: {id: $id}, requestId: $request_id, attributes: {sha256: $sum | @base64}, data: .} + $more' |
    sheaf_call Put | jq -r .version
  return "${PIPESTATUS[2]}"
}

# sheaf_get ID: prints the data of a record.
sheaf_get() {
  local answer data sum
  answer=$(jq -n --arg id "$1" '{key: {id: $id}}' | sheaf_call Get) || return 1
  data=$(jq -r '.record.data // ""' <<<"$answer")
  sum=$(jq -r '.record.attributes.sha256 // "" | @base64d' <<<"$answer")
  if [ -n "$sum" ] && [ "$(base64 -d <<<"$data" | sha256sum | cut -c 1-64)" != "$sum" ]; then
    echo "record $1: its bytes were changed on the way" >&2
    return 2
  fi
  base64 -d <<<"$data"
}

if [ "$0" = "${BASH_SOURCE[0]}" ]; then # this file is run, not sourced
  echo hello | sheaf_put 1
  sheaf_get 1
fi
