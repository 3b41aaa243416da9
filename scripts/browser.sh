#!/usr/bin/env bash
# Brings what the test of the page wants: Debian's Chromium, and the packages of tests/web. Quick
# when there is nothing to do; where it cannot be done it says so, and the test is skipped with
# that reason.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
log=build/setup.log

skip() {
  say "$* The test of the page will be skipped."
  exit 0
}

command -v node >/dev/null && command -v npm >/dev/null || skip "Node.js and npm were not found."

if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then
  line="apt-get install -y --no-install-recommends chromium"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  command -v apt-get >/dev/null || skip "There is no Chromium, and no apt-get to install it."
  say "installing chromium (for the test of the page)"
  quietly "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -o DPkg::Lock::Timeout=300 update || true
  quietly "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends chromium ||
    skip "Chromium could not be installed; by hand: sudo $line."
fi

cd tests/web
stamp=node_modules/.tessera
want="$(node -p process.versions.node) $(cksum <package-lock.json)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  quietly "$root/$log" npm ci --no-audit --no-fund --fetch-retries=1 ||
    skip "npm could not install the packages of tests/web/package-lock.json."
  echo "$want" >"$stamp"
fi
