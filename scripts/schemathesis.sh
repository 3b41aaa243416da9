#!/usr/bin/env bash
# Makes .schemathesis-venv, with schemathesis, which asks the dashboard all that its OpenAPI
# description allows and much that it does not (test dashboard.openapi). Quick when there is nothing
# to do; where it cannot be made, it says so, and the test is skipped with that reason.
# PYTHON=… chooses the Python; pip's own variables apply.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

venv=.schemathesis-venv
stamp="$venv/.tessera"
log=build/setup.log
python="${PYTHON:-python3}"
package=schemathesis==4.32.5

skip() {
  rm -rf "$venv"
  say "no $venv: $* The test of the OpenAPI description will be skipped."
  exit 0
}

if [ "$(cat "$stamp" 2>/dev/null)" = "$python $package" ]; then exit 0; fi
say "installing schemathesis into $venv (for the test of the dashboard's API)"
quietly "$log" "$python" -m venv --clear "$venv" || skip "$python cannot make a virtual environment."
quietly "$log" "$venv/bin/python" -m pip --disable-pip-version-check --retries 2 install \
  --no-compile "$package" || skip "pip could not install $package."
echo "$python $package" >"$stamp"
