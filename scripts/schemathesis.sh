#!/usr/bin/env bash
# Makes .schemathesis-venv, with schemathesis, which asks the dashboard all that its OpenAPI
# description allows and much that it does not (test dashboard.openapi). Quick when there is nothing
# to do; where it cannot be made, it says so, and the test is skipped with that reason.
# PYTHON=… chooses the Python; pip's own variables apply.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

make_tools .schemathesis-venv schemathesis==4.32.5 "for the test of the dashboard's API"
