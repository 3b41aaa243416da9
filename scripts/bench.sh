#!/usr/bin/env bash
# Builds Tessera, installs its peers, and compares them; see docs/benchmarks.md.
#   scripts/bench.sh [--rounds N] [--quick] [--no-docs]     all parts below except gpu
#   scripts/bench.sh comm [--time SECONDS] …                only the collectives
#   scripts/bench.sh train [--stages 0,3] [--dtype fp32] …  only training
#   scripts/bench.sh parallel [--widths 256] …              only tensor and pipeline parallelism
#   scripts/bench.sh checkpoint [--dir D] …                 only saving and loading
#   scripts/bench.sh plan [--rounds 3] …                    only predicted and measured step times
#   scripts/bench.sh peers [--quick] [--table] …           training of 3 sizes on 1, 2, 4 ranks, all
#                                                           peers, as one table and a chart
#   scripts/bench.sh gpu [--quick] [--curves] …             on a GPU, compared with PyTorch
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

parts=(comm train parallel checkpoint plan)
what=all
for part in "${parts[@]}" peers gpu; do
  if [ "${1:-}" = "$part" ]; then what="$part" && shift && break; fi
done
for word in "$@"; do
  case "$word" in
    -h | --help)
      sed -n '2,11s/^# //p' scripts/bench.sh
      if [ "$what" = peers ]; then exec python3 benchmarks/peers.py --help; fi
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
      *) fail "bench.sh: \"$word\" is not an option. Use --rounds N, --quick or --no-docs, or name one part first: ${parts[*]} peers gpu" ;;
    esac
    if [ "$word" = --rounds ]; then previous="number "; else previous=; fi
  done
fi
# The peer is the CUDA build of torch that is installed on the machine.
if [ "$what" = gpu ]; then
  scripts/build.sh release tessera_cli tessera_torch_cli
  exec python3 benchmarks/compare_gpu.py --build "$(realpath "${TESSERA_BUILD_DIR:-build}")" "$@"
fi
scripts/build.sh release all bench_programs
scripts/peers.sh
if [ "$what" = peers ]; then exec python3 benchmarks/peers.py "$@"; fi
for part in "${parts[@]}"; do
  case "$what" in
    all | "$part") python3 "benchmarks/compare_$part.py" "$@" ;;
  esac
done
if [ "$what" = all ]; then
  python3 benchmarks/peers.py --parts train "$@"
  python3 benchmarks/notice_death.py
  build/bin/simulate_bench
fi
