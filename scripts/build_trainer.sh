#!/usr/bin/env bash
# Sets up and builds only what `make train` runs: tests and benchmarks take three times as long to
# compile. In a fresh clone, pip installs torch while apt installs packages and while
# the libraries that do not need torch are compiled.
#   JOBS=… TORCH_DIR=… PYTHON=… as in scripts/build.sh and scripts/setup.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

# CUDA kernels take two minutes of CPU time. make build and make test compile them on every machine.
if ! has_gpu; then export TESSERA_NVCC=OFF; fi

torch_pid=""
stop() { if [ -n "$torch_pid" ]; then kill "$torch_pid" 2>/dev/null || true; fi; }
trap stop EXIT
start_torch() {
  scripts/setup.sh torch &
  torch_pid=$!
}

if [ -z "${TORCH_DIR:-}" ] && [ ! -e .venv/.tessera-torch ] && [ ! -e build/build.ninja ]; then
  if "$(default_python)" -c 'import ensurepip, venv' 2>/dev/null; then start_torch; fi
  scripts/setup.sh packages
  if [ -z "$torch_pid" ]; then start_torch; fi
  # Not the commands: they contain the version of torch.
  TESSERA_TORCH=OFF scripts/build.sh release tessera_process tessera_checkpoint tessera_data \
    tessera_huggingface tessera_kernels
  wait "$torch_pid" || exit 1
  torch_pid=""
fi
scripts/setup.sh train
scripts/build.sh release tessera_cli tessera_torch_cli
