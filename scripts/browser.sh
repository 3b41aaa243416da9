#!/usr/bin/env bash
# Installs what the page test needs: Debian's Chromium and the npm packages of tests/web. Does nothing
# if they are installed. On failure prints the reason and succeeds; the test is then skipped.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
log=build/setup.log

skip() {
  say "$* The page test will be skipped."
  exit 0
}

command -v node >/dev/null && command -v npm >/dev/null || skip "Node.js and npm were not found."

if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then
  line="apt-get install -y --no-install-recommends chromium"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  command -v apt-get >/dev/null || skip "Chromium is not installed, and there is no apt-get to install it."
  say "installing chromium (for the page test)"
  quietly "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -o DPkg::Lock::Timeout=300 update || true
  quietly "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends chromium ||
    skip "Chromium could not be installed. To install it by hand: sudo $line."
fi

cd tests/web
stamp=node_modules/.tessera
want="$(node -p process.versions.node) $(cksum <package-lock.json)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  quietly "$root/$log" npm ci --no-audit --no-fund --fetch-retries=1 ||
    skip "npm could not install the packages of tests/web/package-lock.json."
  echo "$want" >"$stamp"
fi
