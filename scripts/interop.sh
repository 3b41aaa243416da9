#!/usr/bin/env bash
# Makes .interop-venv, with the Python packages that tests compare with: transformers, tokenizers,
# safetensors, peft and tensorboard. Its torch is the one of .venv, or of TORCH_DIR where that is a
# Python package. Quick when there is nothing to do; where it cannot be made, it says so, removes
# the folder, and the tests that need it are skipped with that reason.
# PYTHON=… chooses the Python; pip's own variables apply.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

venv=.interop-venv
stamp="$venv/.tessera-interop"
log=build/setup.log
# All that importing them takes, and no more: installed without dependencies, which would bring
# another torch, and servers that no test starts.
packages=(
  transformers==5.22.2 tokenizers==0.23.3 safetensors==0.8.0 peft==0.21.2 accelerate==1.15.0
  tensorboard==2.21.0 numpy==2.4.6
  # of torch
  filelock==4.2.10 typing_extensions==4.16.0 sympy==1.14.0 mpmath==1.3.0 networkx==3.6.1
  Jinja2==3.1.6 MarkupSafe==3.0.4 fsspec==2026.9.0
  # of transformers and peft
  huggingface_hub==2.4.0 httpx2==2.16.0 httpcore2==2.16.0 h11==0.16.0 anyio==4.16.0 idna==3.20
  truststore==0.10.5 tqdm==4.70.1 PyYAML==6.0.3 regex==2026.11.9 packaging==26.3 typer==0.29.0
  click==8.5.1 psutil==7.2.2
  # of tensorboard
  absl-py==2.5.1 protobuf==7.36.2
)

skip() {
  rm -rf "$venv"
  say "no $venv: $* The tests against Python packages will be skipped."
  exit 0
}

torch="${TORCH_DIR:-$(echo .venv/lib/python3*/site-packages/torch)}"
python="${PYTHON:-}"
if [ -z "$python" ]; then
  # The Python whose package this torch is, if it is beside it: torch fits one version only.
  beside="$(dirname "$torch")/../../../bin/python3"
  if [ -n "${TORCH_DIR:-}" ] && [ -x "$beside" ]; then
    python="$(realpath -s "$beside")"
  elif [ -x /usr/bin/python3 ]; then
    python=/usr/bin/python3
  else
    python=python3
  fi
fi

want="$python $torch $(declare -p packages | cksum)"
if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && [ -x "$venv/bin/python" ]; then exit 0; fi
[ -e "$torch/__init__.py" ] || skip "$torch is no Python package of torch."
[ -n "$(compgen -G "$torch/lib/libtorch_python.so")" ] || skip "$torch has no libtorch_python.so."

say "installing transformers and others into $venv (for tests; torch is that of $(dirname "$torch"))"
quietly "$log" "$python" -m venv --clear "$venv" || skip "$python cannot make a virtual environment."
echo '*' >"$venv/.gitignore"
quietly "$log" "$venv/bin/python" -m pip --disable-pip-version-check --retries 2 install --no-deps \
  --no-compile "${packages[@]}" || skip "pip could not install its packages."
realpath "$(dirname "$torch")" >"$(echo "$venv"/lib/python3*/site-packages)/torch.pth"
quietly "$log" "$venv/bin/python" -c 'import torch, transformers, tokenizers, safetensors.torch' ||
  skip "transformers cannot be imported with this torch."
echo "$want" >"$stamp"
