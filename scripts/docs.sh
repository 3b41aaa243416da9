#!/usr/bin/env bash
# The documents as a site, with the reference of the library in it, in build/site.
#   scripts/docs.sh           installs what it takes, writes both, fails on any warning
#   scripts/docs.sh tools     only installs: Doxygen (apt) and .docs-venv with mkdocs. Where that cannot
#                             be, it says so and goes on; the tests that need them are skipped then
# PYTHON=… chooses the Python; pip's own variables apply.
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
    say "no doxygen here, and no right to install it (Debian: apt-get install doxygen)"
    return 0
  fi
  say "installing doxygen (for the reference of the library)"
  local apt=(quietly "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  "${apt[@]}" install -y --no-install-recommends doxygen ||
    { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends doxygen; } ||
    say "apt could not install doxygen: the test of the library's reference will be skipped"
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
    [ -x "$venv/bin/mkdocs" ] || fail "docs.sh: no mkdocs; see above"
    "$venv/bin/mkdocs" build --strict --quiet
    "$python" scripts/library_reference.py build/site/reference
    say "build/site/index.html"
    ;;
  *) fail "docs.sh: got \"$1\", wanted tools or nothing" ;;
esac
