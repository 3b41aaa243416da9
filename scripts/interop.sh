#!/usr/bin/env bash
# Creates .interop-venv with the Python packages that tests compare with: transformers, tokenizers,
# safetensors, peft and tensorboard. Its torch is that of .venv, or of TORCH_DIR if that is a Python
# package. Does nothing if the folder is up to date. On failure prints the reason, removes the folder
# and succeeds; the tests that need it are then skipped.
# PYTHON=… selects the Python; pip's variables apply.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

venv=.interop-venv
stamp="$venv/.tessera-interop"
log=build/setup.log
# Only the packages needed to import them. Installed without dependencies, which would add another
# torch, and servers that no test starts.
packages=(
  transformers==5.22.2 tokenizers==0.23.3 safetensors==0.8.0 peft==0.21.2 accelerate==1.15.0
  tensorboard==2.21.0 numpy==2.4.6
  # needed by torch
  filelock==4.2.10 typing_extensions==4.16.0 sympy==1.14.0 mpmath==1.3.0 networkx==3.6.1
  Jinja2==3.1.6 MarkupSafe==3.0.4 fsspec==2026.9.0
  # needed by transformers and peft
  huggingface_hub==2.4.0 httpx2==2.16.0 httpcore2==2.16.0 h11==0.16.0 anyio==4.16.0 idna==3.20
  truststore==0.10.5 tqdm==4.70.1 PyYAML==6.0.3 regex==2026.11.9 packaging==26.3 typer==0.29.0
  click==8.5.1 psutil==7.2.2
  # needed by tensorboard
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
  # A torch package fits one Python version only, so use the Python next to it if there is one.
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
[ -e "$torch/__init__.py" ] || skip "$torch is not a Python package of torch."
[ -n "$(compgen -G "$torch/lib/libtorch_python.so")" ] || skip "$torch has no libtorch_python.so."

say "installing transformers and others into $venv (for tests; torch is that of $(dirname "$torch"))"
quietly "$log" "$python" -m venv --clear "$venv" || skip "$python cannot create a virtual environment."
echo '*' >"$venv/.gitignore"
quietly "$log" "$venv/bin/python" -m pip --disable-pip-version-check --retries 2 install --no-deps \
  --no-compile "${packages[@]}" || skip "pip could not install its packages."
realpath "$(dirname "$torch")" >"$(echo "$venv"/lib/python3*/site-packages)/torch.pth"
quietly "$log" "$venv/bin/python" -c 'import torch, transformers, tokenizers, safetensors.torch' ||
  skip "transformers cannot be imported with this torch."
echo "$want" >"$stamp"
