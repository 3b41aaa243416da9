#!/usr/bin/env bash
# Builds the static site in build/site: the documentation, and in calculators/ the calculators of `tessera
# dashboard`, which compute in the browser. Any web server can serve the folder, from any path.
#   scripts/site.sh           installs what is missing, builds the site, prints its sizes
#   scripts/site.sh module    only the WebAssembly module, in build-wasm/bin
#   scripts/site.sh test      builds the site and tests it: against the program, and in Chromium: `make site`
# QUESTIONS=n: number of random questions of the test (default 5000).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
log=build/setup.log
site=build/site

# Where Debian installs modules of Node.js, for a Node.js of another origin.
export NODE_PATH=/usr/share/nodejs

# install <command> <Debian packages…>
install() {
  local command="$1" as_root=()
  shift
  if command -v "$command" >/dev/null; then return 0; fi
  command -v apt-get >/dev/null || fail "site.sh: $command is missing, and there is no apt-get to install $*"
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  say "installing $*"
  quietly "$log" "${apt[@]}" install -y --no-install-recommends "$@" ||
    { quietly "$log" "${apt[@]}" update && quietly "$log" "${apt[@]}" install -y --no-install-recommends "$@"; } ||
    fail "site.sh: could not install $*. Install them by hand: sudo apt-get install $*"
}

build_module() {
  scripts/setup.sh packages
  install emcmake emscripten
  mkdir -p build-wasm
  if [ ! -f build-wasm/build.ninja ]; then
    quietly build-wasm/configure.log emcmake cmake --preset wasm || fail "site.sh: cannot configure build-wasm"
  fi
  python3 scripts/progress.py "building wasm" build-wasm/build.log \
    cmake --build build-wasm -j "$(jobs_count)" --target tessera_module
}

# Prints the sizes of the files that the calculators load.
print_sizes() {
  local gzipped=0 brotlied=0 file
  for file in "$site"/calculators/*; do
    gzipped=$((gzipped + $(gzip -9 -c "$file" | wc -c)))
    brotlied=$((brotlied + $(node -e '
      const { brotliCompressSync } = require("node:zlib");
      console.log(brotliCompressSync(require("node:fs").readFileSync(process.argv[1])).length)' "$file")))
  done
  say "$site: calculators of $gzipped bytes gzipped, $brotlied with brotli"
}

build_site() {
  build_module
  install npm nodejs npm
  scripts/docs.sh
  # The calculators replace the page docs/calculators.md, so that its links lead to them.
  scripts/web.sh "$site/calculators" site
  # The page of mkdocs for missing files has absolute links.
  rm -f "$site/calculators/build.log" "$site/404.html"
  cp build-wasm/bin/planner.js build-wasm/bin/planner.wasm "$site/calculators/"
  print_sizes
}

# The program that the module is compared with. It needs no torch.
build_program() {
  if [ -f build/build.ninja ]; then
    quietly build/build.log cmake --build build -j "$(jobs_count)" --target site_answers
  else
    TESSERA_TORCH=OFF scripts/build.sh release site_answers
  fi
}

test_site() {
  build_program
  node tests/site/answers_test.mjs --program build/tests/site_answers --module build-wasm/bin \
    --questions "${QUESTIONS:-5000}"
  scripts/browser.sh
  node tests/site/page_test.mjs --site "$site"
}

case "${1:-all}" in
  module) build_module ;;
  all) build_site ;;
  test)
    build_site
    test_site
    ;;
  *) fail "site.sh: \"$1\": must be module, test or nothing" ;;
esac
