#!/usr/bin/env bash
# Builds a preset. Configures it first if it is new or was configured with other options.
#   scripts/build.sh [preset] [target…]      JOBS=… TORCH_DIR=… TESSERA_UNITY=ON|OFF TESSERA_NVCC=OFF
# TESSERA_UNITY=OFF compiles each source separately: slower from scratch, faster after an edit.
# TESSERA_NVCC=OFF omits the CUDA kernels. TESSERA_CUDA_ARCHITECTURES="80;90" selects the GPUs that they
# have code for; default: this machine's. TESSERA_BUILD_DIR=… is the folder of the release build; default:
# build/. TESSERA_CMAKE_OPTIONS="-D… -D…" are passed to cmake. TESSERA_TORCH=OFF configures release without LibTorch; objects of torch-free libraries stay
# valid when the next call configures it with LibTorch. Without ninja, make builds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

preset="${1:-release}"
shift || true
case "$preset" in
  release) dir="${TESSERA_BUILD_DIR:-build}" ;;
  debug | asan | tsan) dir="build-$preset" ;;
  *) fail "build.sh: preset \"$preset\": must be release, debug, asan or tsan" ;;
esac

jobs="$(jobs_count)"
torch_dir=""
unity="${TESSERA_UNITY:-ON}"
generator=Ninja
command -v ninja >/dev/null || generator="Unix Makefiles"
key="presets $(cksum <CMakePresets.json) unity $unity generator $generator"
options=(-DTESSERA_UNITY="$unity")
# Such as -DTESSERA_HIGHWAY=dir, for headers in an unusual folder.
read -ra more <<<"${TESSERA_CMAKE_OPTIONS:-}"
options+=("${more[@]}")
key+=" ${more[*]}"
if [ "$preset" = release ] || [ "$preset" = debug ]; then
  options+=(-DTESSERA_TORCH="${TESSERA_TORCH:-ON}" -DTESSERA_NVCC="${TESSERA_NVCC:-}"
    -DTESSERA_CUDA_ARCHITECTURES="${TESSERA_CUDA_ARCHITECTURES:-}")
  key+=" ${options[*]}"
  if [ -n "${TORCH_DIR:-}" ]; then
    torch_dir="$(realpath -m "$TORCH_DIR")"
    key+=" torch $torch_dir"
  else
    key+=" torch .venv $(cat .venv/.tessera-torch 2>/dev/null || true)"
  fi
  key+=" nvcc $(cat .venv/.tessera-nvcc 2>/dev/null || true)"
fi

stamp="$dir/.tessera-configured"
if [ ! -f "$dir/CMakeCache.txt" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$key" ]; then
  say "configuring $preset in $dir/"
  fresh=()
  # A build folder of another source folder (a copied tree) or generator cannot be reused.
  if [ -f "$dir/CMakeCache.txt" ] &&
    ! { grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$dir/CMakeCache.txt" &&
      grep -qxF "CMAKE_GENERATOR:INTERNAL=$generator" "$dir/CMakeCache.txt"; }; then
    fresh=(--fresh)
  fi
  mkdir -p "$dir"
  rm -f "$stamp"
  if ! cmake --preset "$preset" -B "$dir" -G "$generator" "${fresh[@]}" -DTORCH_DIR="$torch_dir" \
    "${options[@]}" >"$dir/configure.log" 2>&1; then
    cat "$dir/configure.log" >&2
    exit 1
  fi
  grep -E '^-- (LibTorch|hwloc|CUDA kernels):' "$dir/configure.log" | sed 's/^-- /   /' || true
  echo "$key" >"$stamp"
fi

targets=()
if [ "$#" -gt 0 ]; then targets=(--target "$@"); fi
python3 scripts/progress.py "building $preset" "$dir/build.log" \
  cmake --build "$dir" -j "$jobs" "${targets[@]}"
