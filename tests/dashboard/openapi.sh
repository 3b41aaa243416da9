#!/usr/bin/env bash
# Asks a started dashboard what its description allows, and what it does not, with schemathesis:
# never a 5xx, and statuses, types, headers and bodies as described.
#   openapi.sh TESSERA_DASHBOARD SCHEMATHESIS
# Left out: event streams, which do not end; real runs, which take seconds; and two checks. That
# all the schema allows is accepted: what settings demand of one another, and of the text in them,
# stands in no JSON schema. That all it forbids is refused: settings are read as the text of flags,
# so that a number or a false passes for a word where the word would.
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
cd "$work"  # where schemathesis leaves what it found
"$2" run "${url}openapi.json" --phases examples,coverage,fuzzing --max-examples 5 \
  --generation-deterministic --request-timeout 20 --no-color \
  --exclude-path-regex '/events$|/api/sync' \
  --exclude-checks positive_data_acceptance,negative_data_rejection
kill -0 $server || { echo "the dashboard ended" >&2; exit 1; }
