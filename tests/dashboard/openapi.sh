#!/usr/bin/env bash
# Tests a running dashboard against its OpenAPI description with schemathesis: no 5xx, and statuses,
# types, headers and bodies as described.
#   openapi.sh TESSERA_DASHBOARD SCHEMATHESIS
# Excluded: event streams, which do not end; real runs, which take seconds; and two checks. Not all
# input that the schema allows is accepted: a JSON schema cannot express the constraints between
# settings and on their text. Not all input that it forbids is refused: settings are parsed as the
# text of flags, so that a number or false is accepted where the same word would be.
set -euo pipefail
if [ ! -x "$2" ]; then
  echo "skipped: there is no $2: scripts/schemathesis.sh makes it"
  exit 77
fi
work="$(mktemp -d)"
"$1" --port 0 >"$work/out" &
server=$!
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 100); do
  grep -q http "$work/out" && break
  kill -0 $server 2>/dev/null || { echo "the dashboard did not start" >&2; exit 1; }
  sleep 0.1
done
url="$(sed -n 's/.*\(http[^ ]*\)/\1/p' "$work/out")"
cd "$work"  # schemathesis writes its reports here
"$2" run "${url}openapi.json" --phases examples,coverage,fuzzing --max-examples 5 \
  --generation-deterministic --request-timeout 20 --no-color \
  --exclude-path-regex '/events$|/api/sync' \
  --exclude-checks positive_data_acceptance,negative_data_rejection
kill -0 $server || { echo "the dashboard ended" >&2; exit 1; }
