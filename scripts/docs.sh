#!/usr/bin/env bash
# Builds the documentation as a site, with the library reference, in build/site.
#   scripts/docs.sh           installs the tools, writes both, fails on any warning
#   scripts/docs.sh tools     only installs Doxygen (apt) and .docs-venv with mkdocs. On failure prints
#                             the reason and succeeds; the tests that need them are then skipped
# PYTHON=… selects the Python; pip's variables apply.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

venv=.docs-venv
log=build/setup.log
python="${PYTHON:-python3}"

install_doxygen() {
  local as_root=()
  if command -v doxygen >/dev/null; then return 0; fi
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
    say "doxygen is not installed, and installing it needs root (Debian: apt-get install doxygen)"
    return 0
  fi
  say "installing doxygen (for the library reference)"
  local apt=(quietly "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  "${apt[@]}" install -y --no-install-recommends doxygen ||
    { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends doxygen; } ||
    say "apt could not install doxygen: the test of the library reference will be skipped"
}

install_mkdocs() { make_tools "$venv" mkdocs==1.6.1 "for the site"; }

case "${1:-all}" in
  tools)
    install_doxygen
    install_mkdocs
    ;;
  all)
    install_doxygen
    install_mkdocs
    [ -x "$venv/bin/mkdocs" ] || fail "docs.sh: mkdocs is not installed; see above"
    "$venv/bin/mkdocs" build --strict --quiet
    "$python" scripts/library_reference.py build/site/reference
    say "build/site/index.html"
    ;;
  *) fail "docs.sh: \"$1\": must be tools or nothing" ;;
esac
