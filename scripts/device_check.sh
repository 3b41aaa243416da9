#!/usr/bin/env bash
# Builds Tessera on a machine with a GPU and a CUDA build of torch, runs the tests of comm/ and prints
# the times of collectives. Installs nothing.
#   scripts/device_check.sh [build folder]
# TORCH_DIR=…       LibTorch; default: the torch of python3
# JOBS=…            number of parallel compiler processes
# NCCL_LIBRARY=…    libnccl.so.2 for a second run of the GPU tests. From NCCL 2.30 on, two ranks can
#                   share a GPU, so that one GPU is enough for all tests.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
build="${1:-build-device}"
torch="${TORCH_DIR:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')}"
[ -n "$torch" ] || fail "device_check.sh: python3 has no torch; set TORCH_DIR"
status=0

step() {
  local name="$1" began=$SECONDS
  shift
  say "$name"
  if "$@"; then
    say "$name: ok, $((SECONDS - began)) s"
  else
    status=1
    say "$name: FAILED, $((SECONDS - began)) s"
    return 1
  fi
}

machine() {
  uname -srm
  grep -h PRETTY_NAME /etc/os-release
  lscpu | grep -E '^(Model name|CPU\(s\)|Thread|L2|L3|NUMA node\(s\))'
  lscpu | grep -oE 'avx512_bf16|amx_bf16|avx512f|avx2' | sort -u | tr '\n' ' '
  echo
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
  c++ --version | head -1
  cmake --version | head -1
  sed -n "s/^__version__ = /torch /p" "$torch/version.py"
  echo "dependencies of libtorch_cpu.so:"
  readelf -d "$torch/lib/libtorch_cpu.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/  \1/p' | tr '\n' ' '
  echo
  echo "NCCL: $(find "$torch/.." / -xdev -name 'libnccl.so*' 2>/dev/null | sort -u | tr '\n' ' ')"
}

# Torch uses the shared libstdc++. Programs linked with a static one as well have two, and crash at
# exit.
shares_libstdcxx() {
  local program
  program="$(mktemp)"
  echo '#include <iostream>
int main() { std::cout << 1; }' | "$1" -x c++ - -o "$program" 2>/dev/null &&
    readelf -d "$program" | grep -q 'NEEDED.*libstdc++'
  local result=$?
  rm -f "$program"
  return $result
}

configure() {
  local generator=() compiler
  for compiler in "${CXX:-c++}" c++ g++ /usr/bin/c++; do
    if shares_libstdcxx "$compiler"; then break; fi
    echo "not using $(command -v "$compiler"), which links libstdc++ statically"
  done
  echo "compiler: $(command -v "$compiler"), CXX=${CXX:-} LDFLAGS=${LDFLAGS:-}"
  export CXX="$compiler"
  command -v ninja >/dev/null && generator=(-G Ninja)
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTORCH_DIR="$torch" \
    -DTESSERA_BENCHMARKS=OFF | grep -E '^-- (LibTorch|hwloc|Config|Generat|Build files)|rror'
}

build_it() {
  cmake --build "$build" -j "$(jobs_count)" --target "${targets[@]}"
}

targets=(tessera reduce_test shm_test process_test group_test cuda_test cuda_timing)
tests='^(reduce_test|shm_test|process_test|group_test)\.'

step "machine" machine
step "configure" configure || exit 1
step "build" build_it || exit 1
step "comm tests on the CPU" ctest --test-dir "$build" -R "$tests" -j 4 --output-on-failure
step "tests on the GPU" timeout 300 "$build/tests/cuda_test" --gtest_color=no
step "times" timeout 120 "$build/tests/cuda_timing" --gtest_color=no
if [ -n "${NCCL_LIBRARY:-}" ]; then
  step "tests on the GPU with $NCCL_LIBRARY" \
    env LD_PRELOAD="$NCCL_LIBRARY" timeout 300 "$build/tests/cuda_test" --gtest_color=no
  step "times with $NCCL_LIBRARY" \
    env LD_PRELOAD="$NCCL_LIBRARY" timeout 120 "$build/tests/cuda_timing" --gtest_color=no
fi
exit "$status"
