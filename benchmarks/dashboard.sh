#!/usr/bin/env bash
# Measures the requests/s of `tessera dashboard` with wrk (Debian: wrk) and 32 clients: first with a
# different request every time, so that no response is cached, then with the same 200 requests
# repeatedly, like a slider that moves back and forth.
#   benchmarks/dashboard.sh [BUILD] [SECONDS]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
build="${1:-$root/build}"
seconds="${2:-10}"
command -v wrk >/dev/null || fail "wrk is missing (Debian: wrk)"
work="$(mktemp -d)"
"$build/bin/tessera-dashboard" --port 0 >"$work/out" &
server=$!
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
until grep -q http "$work/out"; do
  kill -0 $server 2>/dev/null || fail "the server did not start"
  sleep 0.1
done
url="$(sed -n 's/.*\(http[^ ]*\)/\1/p' "$work/out")"

# Requests of the memory view: values of a slider, and a sequence length that is always different.
cat >"$work/ask.lua" <<'LUA'
local thread_number = 0
function setup(thread)
  thread:set("offset", thread_number * 100000000)
  thread_number = thread_number + 1
end
local n = 0
local again = false
function init(args) again = args[1] == "again" end
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
function request()
  n = n + 1
  local price = again and 1 or offset + n
  local body = string.format(
    '{"model":"llama2-7b","dp":%d,"zero":%d,"micro_batch":%d,"seq":%d,"price_per_hour":%d}',
    2 ^ (n % 8), n % 4, 1 + n % 4, 512 + 64 * (n % 50), price)
  return wrk.format(nil, nil, nil, body)
end
local bad = 0
function response(status) if status ~= 200 then bad = bad + 1 end end
function done(summary, latency)
  io.write(string.format("%d answers in %.1f s, %.0f/s; p50 %.2f ms, p99 %.2f ms, worst %.2f ms; %d not 200, %d errors\n",
    summary.requests, summary.duration / 1e6, summary.requests / summary.duration * 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3,
    summary.errors.status, summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
LUA
for questions in new again; do
  for path in api/plan api/zero; do
    printf '%-10s %-6s ' "$path" "$questions"
    wrk -t1 -c32 -d"$seconds" -s "$work/ask.lua" "$url$path" -- "$questions" | grep answers
  done
done
