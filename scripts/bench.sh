#!/usr/bin/env bash
# Builds, installs the peers, and measures Tessera beside them; see docs/benchmarks.md.
#   scripts/bench.sh [--rounds N] [--time SECONDS] [--quick] [--no-docs]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

for word in "$@"; do
  case "$word" in -h | --help) exec python3 benchmarks/compare_comm.py --help ;; esac
done
scripts/build.sh release
scripts/peers.sh
exec python3 benchmarks/compare_comm.py "$@"
