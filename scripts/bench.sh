#!/usr/bin/env bash
# Builds, installs the peers, and measures Tessera beside them; see docs/benchmarks.md.
#   scripts/bench.sh [--rounds N] [--quick] [--no-docs]     collectives, then training
#   scripts/bench.sh comm [--time SECONDS] …                only the collectives
#   scripts/bench.sh train [--stages 0,3] [--dtype fp32] …  only training
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

what=all
case "${1:-}" in comm | train) what="$1" && shift ;; esac
for word in "$@"; do
  case "$word" in
    -h | --help)
      sed -n '2,5s/^# //p' scripts/bench.sh
      if [ "$what" != all ]; then exec python3 "benchmarks/compare_$what.py" --help; fi
      exit 0
      ;;
  esac
done
if [ "$what" = all ]; then
  previous=
  for word in "$@"; do
    case "$previous$word" in
      --rounds | --rounds=* | --quick | --no-docs | "number "*) ;;
      *) fail "bench.sh: got \"$word\"; wanted --rounds N, --quick or --no-docs, or first \"comm\" or \"train\"" ;;
    esac
    if [ "$word" = --rounds ]; then previous="number "; else previous=; fi
  done
fi
scripts/build.sh release
scripts/peers.sh
if [ "$what" != train ]; then python3 benchmarks/compare_comm.py "$@"; fi
if [ "$what" != comm ]; then python3 benchmarks/compare_train.py "$@"; fi
