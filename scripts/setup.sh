#!/usr/bin/env bash
# Prepares a Debian or Ubuntu machine for building Tessera: packages, LibTorch in .venv unless
# TORCH_DIR is set, and nvcc in .venv if the machine has none. Does nothing if all are installed.
#   scripts/setup.sh [packages|torch|nvcc|train]     default: the first three
# train: what `make train` needs, which includes nvcc only on a machine with a GPU.
# PYTHON=… selects the Python that creates .venv.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

log=build/setup.log
torch_version=2.13.0
safetensors_version=0.8.0
# The CUDA compiler (90 MB), without the libraries of a CUDA toolkit.
nvcc_packages=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-nvvm==13.0.88)

# Each package, and a command or header that shows that it is installed, perhaps without dpkg.
packages=(
  "g++ g++"
  "cmake cmake"
  "ninja-build ninja"
  "ccache ccache"
  "pkg-config pkg-config"
  "git git"
  "python3 python3"
  "python3-venv ensurepip"
  "clang-format clang-format"
  "libcli11-dev CLI/CLI.hpp"
  "nlohmann-json3-dev nlohmann/json.hpp"
  "libtomlplusplus-dev toml++/toml.h"
  "libhwy-dev hwy/highway.h"
  "libfmt-dev fmt/format.h"
  "libgtest-dev gtest/gtest.h"
  "libbenchmark-dev benchmark/benchmark.h"
  "libssl-dev openssl/evp.h"
  "libhwloc-dev hwloc.h"
  "libpcre2-dev pcre2.h"
  "zlib1g-dev zlib.h"
  "libzstd-dev zstd.h"
  "iproute2 ip"
  "dpkg-dev dpkg-shlibdeps"
  "file file"
)

# Open MPI, which Tessera does not use: tests start ranks with mpirun, and `make bench` compares with its
# collectives.
openmpi=("libopenmpi-dev mpi.h" "openmpi-bin mpirun")
[ "${1:-}" = train ] || packages+=("${openmpi[@]}")

python="$(default_python)"

present() {
  case "$1" in
    ensurepip) "$python" -c 'import ensurepip, venv' 2>/dev/null ;;
    */* | *.h) [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ] ;;
    *) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] ;;
  esac
}

missing_packages() {
  local names=() installed entry name
  for entry in "${packages[@]}"; do names+=("${entry%% *}"); done
  installed="$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${names[@]}" 2>/dev/null || true)"
  for entry in "${packages[@]}"; do
    name="${entry%% *}"
    if ! grep -qxF "$name installed" <<<"$installed" && ! present "${entry#* }"; then
      echo "$name"
    fi
  done
}

install_packages() {
  local missing line as_root=()
  mapfile -t missing < <(missing_packages)
  [ "${#missing[@]}" -gt 0 ] || return 0
  line="apt-get install -y --no-install-recommends ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    fail "missing: ${missing[*]} (Debian's names). This system has no apt-get: install their equivalents, then run make again."
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    else
      printf 'tessera: packages are missing, and installing them needs root. Run this, then make again:\n\n  sudo %s\n\n' "$line" >&2
      exit 1
    fi
  fi
  say "installing ${missing[*]}"
  local apt=(quietly "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update || say "apt-get update failed; using the existing package lists"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
    fail "could not install packages. Try to install them by hand: $line"
}

not_found() { ldd "$1" 2>/dev/null | awk '/=> not found/ {print $1}' | sort -u | tr '\n' ' '; }

# Prints the requirements of the installed torch that contain CUDA libraries, one per line.
cuda_requirements() {
  sed -n 's/^Requires-Dist: \(\(cuda-toolkit\|nvidia-\)[^;]*\).*/\1/p' \
    "$1"/torch-*.dist-info/METADATA | tr -d ' '
}

make_venv() { .venv/bin/python -c pass 2>/dev/null || "$python" -m venv --clear .venv; }

install_torch() {
  local stamp=.venv/.tessera-torch want packages_dir cpu cuda toolkit cuda_packages
  want="$torch_version $(declare -f cuda_requirements install_torch | cksum)"
  if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && [ -x .venv/bin/python ]; then return 0; fi

  say "installing torch $torch_version into .venv (as the source of LibTorch)"
  make_venv || fail "$python cannot make a virtual environment"
  rm -f "$stamp"
  # Without its Python dependencies, because no Python code of torch is run.
  local pip=(quietly "$log" .venv/bin/python -m pip --disable-pip-version-check install --no-compile
    --no-warn-conflicts)
  local reinstall=()
  if [ -d "$(echo .venv/lib/python3*/site-packages/torch)" ]; then reinstall=(--force-reinstall); fi
  "${pip[@]}" --no-deps "${reinstall[@]}" "torch==$torch_version" ||
    fail "pip could not install torch $torch_version. Mend the connection, or set TORCH_DIR to a LibTorch of 2.11 to 2.13."

  # A CUDA build of torch needs the CUDA runtime and profiler (some megabytes) even without a GPU. All
  # CUDA libraries (gigabytes) are installed only if there is a GPU.
  packages_dir="$(echo .venv/lib/python3*/site-packages)"
  cpu="$packages_dir/torch/lib/libtorch_cpu.so"
  cuda="$packages_dir/torch/lib/libtorch_cuda.so"
  if [ -e "$cuda" ] && has_gpu && [ -n "$(not_found "$cuda")" ]; then
    say "this torch is a CUDA build and there is a GPU: installing its CUDA libraries"
    mapfile -t cuda_packages < <(cuda_requirements "$packages_dir")
    "${pip[@]}" "${cuda_packages[@]}"
  elif [ -e "$cuda" ] && [ -n "$(not_found "$cpu")" ]; then
    say "this torch is a CUDA build and there is no GPU: installing only what loading it takes"
    toolkit="$(cuda_requirements "$packages_dir" | sed -n 's/^cuda-toolkit\[[^]]*\]/cuda-toolkit[cudart,cupti]/p')"
    if [ -n "$toolkit" ]; then "${pip[@]}" "$toolkit"; fi
  fi
  if [ -n "$(not_found "$cpu")" ]; then
    say "libtorch_cpu.so still needs $(not_found "$cpu"): installing all that torch depends on"
    "${pip[@]}" "torch==$torch_version"
    [ -z "$(not_found "$cpu")" ] || fail "libtorch_cpu.so needs $(not_found "$cpu"), which pip does not bring. Set TORCH_DIR to another LibTorch of 2.11 to 2.13."
  fi
  echo "$want" >"$stamp"
}

# These programs import torch in Python, which fails without its dependencies.
remove_torch_programs() { rm -f .venv/bin/torchrun .venv/bin/torchfrtrace; }

# Half a megabyte, for tests only. Without it they are skipped.
install_safetensors() {
  if compgen -G ".venv/lib/python3*/site-packages/safetensors-$safetensors_version.dist-info" \
    >/dev/null; then return 0; fi
  quietly "$log" .venv/bin/python -m pip --disable-pip-version-check install --no-deps --no-compile \
    "safetensors==$safetensors_version" ||
    say "pip could not install safetensors $safetensors_version: the tests against it will be skipped"
}

# If the machine has an nvcc, CMake checks whether it is new enough.
install_nvcc() {
  local stamp=.venv/.tessera-nvcc bin
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then return 0; fi
  if [ "$(cat "$stamp" 2>/dev/null)" = "${nvcc_packages[*]}" ]; then return 0; fi
  say "installing nvcc into .venv (to compile the CUDA kernels)"
  if make_venv && quietly "$log" .venv/bin/python -m pip --disable-pip-version-check install \
    --no-deps --no-compile "${nvcc_packages[@]}"; then
    # The packages make these executable for the owner only.
    for bin in .venv/lib/python3*/site-packages/nvidia/cu13/{bin,nvvm/bin}/*; do
      if [ -f "$bin" ]; then chmod a+rx "$bin"; fi
    done
    echo "${nvcc_packages[*]}" >"$stamp"
  else
    say "pip could not install nvcc: the build omits the CUDA kernels"
  fi
}

case "${1:-all}" in
  packages) install_packages ;;
  torch)
    install_torch
    remove_torch_programs
    ;;
  nvcc) install_nvcc ;;
  train)
    install_packages
    if [ -z "${TORCH_DIR:-}" ]; then
      install_torch
      remove_torch_programs
    fi
    if has_gpu; then install_nvcc; fi
    ;;
  all)
    install_packages
    if [ -z "${TORCH_DIR:-}" ]; then
      install_torch
      remove_torch_programs
      install_safetensors
    fi
    install_nvcc
    ;;
  *) fail "setup.sh: \"$1\": must be packages, torch, nvcc, train or nothing" ;;
esac
