#!/usr/bin/env bash
# Puts DeepSpeed, and what it needs beyond torch and numpy, into build/peers-extra, for a machine
# that has torch but cannot install anything. Carry the folder there and say
#   python3 benchmarks/compare_train.py --python python3 --extra-path build/peers-extra
# The target is x86_64 with Python 3.12, unless PLATFORM=… and PYTHON_VERSION=… say otherwise.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

platform="${PLATFORM:-manylinux2014_x86_64}"
version="${PYTHON_VERSION:-3.12}"
target=build/peers-extra
scripts/peers.sh
deepspeed="$(cat .peers-venv/.tessera-deepspeed 2>/dev/null)" ||
  fail "DeepSpeed is not in .peers-venv; scripts/peers.sh says why"

rm -rf "$target"
mkdir -p "$target"
wheels="$(mktemp -d)"
trap 'rm -rf "$wheels"' EXIT
pip=(.peers-venv/bin/python -m pip --disable-pip-version-check)
DS_BUILD_OPS=0 "${pip[@]}" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$wheels" \
  "$deepspeed"
"${pip[@]}" install --quiet --no-compile --no-deps --target "$target" "$wheels"/*.whl
# The rest has compiled parts, so it is asked for by platform. Not torch, and not what torch brings.
"${pip[@]}" install --quiet --no-compile --no-deps --upgrade --target "$target" --only-binary=:all: \
  --platform "$platform" --python-version "$version" \
  annotated-types einops hjson msgpack ninja packaging psutil py-cpuinfo pydantic pydantic-core \
  setuptools tqdm typing-extensions typing-inspection
# The sources of its kernels, which nothing compiles there.
rm -rf "$target/bin" "$target/deepspeed/ops/csrc" "$target/share"
say "$target: $(du -sh "$target" | cut -f1), for $platform and Python $version"
