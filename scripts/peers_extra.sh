#!/usr/bin/env bash
# Collects DeepSpeed and its dependencies except torch and numpy in build/peers-extra, for a machine
# that has torch but cannot install packages. Copy the folder there and run
#   python3 benchmarks/compare_train.py --python python3 --extra-path build/peers-extra
# PLATFORM=… and PYTHON_VERSION=… set the target; default: x86_64 with Python 3.12.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

platform="${PLATFORM:-manylinux2014_x86_64}"
version="${PYTHON_VERSION:-3.12}"
target=build/peers-extra
scripts/peers.sh
deepspeed="$(cat .peers-venv/.tessera-deepspeed 2>/dev/null)" ||
  fail "DeepSpeed is not in .peers-venv; run scripts/peers.sh to see why"

rm -rf "$target"
mkdir -p "$target"
wheels="$(mktemp -d)"
trap 'rm -rf "$wheels"' EXIT
pip=(.peers-venv/bin/python -m pip --disable-pip-version-check)
DS_BUILD_OPS=0 "${pip[@]}" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$wheels" \
  "$deepspeed"
"${pip[@]}" install --quiet --no-compile --no-deps --target "$target" "$wheels"/*.whl
# The other packages have compiled parts, so their wheels are selected by platform. torch and its
# dependencies are omitted.
"${pip[@]}" install --quiet --no-compile --no-deps --upgrade --target "$target" --only-binary=:all: \
  --platform "$platform" --python-version "$version" \
  annotated-types einops hjson msgpack ninja packaging psutil py-cpuinfo pydantic pydantic-core \
  setuptools tqdm typing-extensions typing-inspection
# Sources of kernels, which are not compiled there.
rm -rf "$target/bin" "$target/deepspeed/ops/csrc" "$target/share"
say "$target: $(du -sh "$target" | cut -f1), for $platform and Python $version"
