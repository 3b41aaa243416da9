#!/usr/bin/env bash
# Creates .schemathesis-venv with schemathesis, which sends the dashboard valid and invalid requests
# derived from its OpenAPI description (test dashboard.openapi). Does nothing if it is up to date. On
# failure prints the reason and succeeds; the test is then skipped.
# PYTHON=… selects the Python; pip's variables apply.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

make_tools .schemathesis-venv schemathesis==4.32.5 "for the test of the dashboard's API"
