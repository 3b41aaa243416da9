#!/usr/bin/env bash
# Creates .peers-venv with the libraries that Tessera is compared with: torch (Gloo, DDP, FSDP) and
# DeepSpeed, which is optional. (Open MPI is Debian's.) Does nothing if it is up to date. PYTHON=…
# selects the Python; pip's variables apply, such as PIP_INDEX_URL for an index with smaller builds of
# torch.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

torch=(torch==2.13.0 numpy)
deepspeed=deepspeed==0.19.8
# Packages that DeepSpeed's setup imports without declaring them.
deepspeed_setup=(setuptools wheel ninja psutil py-cpuinfo)
venv=.peers-venv
stamp="$venv/.tessera-peers"
deepspeed_stamp="$venv/.tessera-deepspeed"

install() { "$venv/bin/python" -m pip --disable-pip-version-check install --no-compile "$@"; }
stamped() { [ -x "$venv/bin/python" ] && [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }

install_torch() {
  local python="${PYTHON:-}"
  if [ -z "$python" ]; then
    if [ -x /usr/bin/python3 ]; then python=/usr/bin/python3; else python=python3; fi
  fi
  say "installing ${torch[*]} into $venv (the peers to compare with)"
  if ! "$venv/bin/python" -c pass 2>/dev/null; then
    "$python" -m venv --clear "$venv" || fail "$python cannot create a virtual environment"
  fi
  rm -f "$stamp" "$deepspeed_stamp"
  echo '*' >"$venv/.gitignore"
  install "${torch[@]}" ||
    fail "pip could not install ${torch[*]}; check the connection and run make bench again"
  "$venv/bin/python" -c 'import torch.distributed as d; assert d.is_gloo_available()' ||
    fail "the torch in $venv cannot be imported, or has no Gloo; remove $venv and try again"
  echo "${torch[*]}" >"$stamp"
}

# DeepSpeed's setup imports torch, so it cannot be built in isolation. Its kernels are for GPUs and
# offloading; none is compiled.
install_deepspeed() {
  say "installing $deepspeed into $venv"
  install "${deepspeed_setup[@]}" &&
    DS_BUILD_OPS=0 install --no-build-isolation "$deepspeed" "${torch[@]}" &&
    DS_ACCELERATOR=cpu "$venv/bin/python" -c 'import deepspeed' &&
    echo "$deepspeed" >"$deepspeed_stamp"
}

stamped "$stamp" "${torch[*]}" || install_torch
stamped "$deepspeed_stamp" "$deepspeed" || install_deepspeed ||
  say "$deepspeed could not be installed: the benchmarks run without it"
