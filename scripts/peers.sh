#!/usr/bin/env bash
# Makes .peers-venv, where the libraries live that Tessera is compared with: torch with its Gloo.
# (Open MPI is Debian's.) Quick when there is nothing to do. PYTHON=… chooses the Python; pip's own
# variables apply, such as PIP_INDEX_URL for an index with smaller builds of torch.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

wanted=(torch==2.13.0 numpy)
venv=.peers-venv
stamp="$venv/.tessera-peers"
if [ "$(cat "$stamp" 2>/dev/null)" = "${wanted[*]}" ] && [ -x "$venv/bin/python" ]; then exit 0; fi

python="${PYTHON:-}"
if [ -z "$python" ]; then
  if [ -x /usr/bin/python3 ]; then python=/usr/bin/python3; else python=python3; fi
fi
say "installing ${wanted[*]} into $venv (the peers to compare with)"
if ! "$venv/bin/python" -c pass 2>/dev/null; then
  "$python" -m venv --clear "$venv" || fail "$python cannot make a virtual environment"
fi
rm -f "$stamp"
echo '*' >"$venv/.gitignore"
"$venv/bin/python" -m pip --disable-pip-version-check install --no-compile "${wanted[@]}" ||
  fail "pip could not install ${wanted[*]}; mend the connection and run make bench again"
"$venv/bin/python" -c 'import torch.distributed as d; assert d.is_gloo_available()' ||
  fail "the torch in $venv cannot be imported, or has no Gloo; remove $venv and try again"
echo "${wanted[*]}" >"$stamp"
