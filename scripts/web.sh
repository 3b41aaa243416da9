#!/usr/bin/env bash
# Builds the page of `tessera dashboard` from web/ into a folder: index.html, page.js, others.js,
# page.css, icon.svg and inter.woff2, always these six files. If Node.js or its packages are missing,
# index.html states what is missing, the other files are empty, and the next build tries again.
#   scripts/web.sh DIR         the page of `tessera dashboard`
#   scripts/web.sh DIR site    the page of the static site (scripts/site.sh): also worker.js, which loads
#                              the WebAssembly module; fails if Node.js is missing
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mode="${2:-production}"
[ $# -ge 1 ] || fail "web.sh: the output folder is missing: scripts/web.sh DIR [site]"
mkdir -p "$1"
out="$(cd "$1" && pwd)"
cd "$root/web"
log="$out/build.log"
files=(index.html page.js others.js page.css icon.svg inter.woff2)
if [ "$mode" = site ]; then files+=(worker.js); fi

missing() {
  if [ "$mode" = site ]; then fail "the page of the site cannot be built: $*"; fi
  say "the page of tessera dashboard is not built: $*"
  for file in "${files[@]}"; do : >"$out/$file"; done
  cat >"$out/index.html" <<HTML
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Tessera</title>
<h1>The page is not in this build</h1>
<p>$*</p>
<p>Install Node.js 18 or newer with npm, and build again. The API under /api, described in
<a href="openapi.json">openapi.json</a>, and all commands work without the page.</p>
</html>
HTML
  # Older than the sources, so that the next build runs this script again.
  for file in "${files[@]}"; do touch -d 2000-01-01 "$out/$file"; done
  exit 0
}

command -v node >/dev/null || missing "Node.js was not found."
command -v npm >/dev/null || missing "npm was not found."
version="$(node -p 'process.versions.node')"
[ "${version%%.*}" -ge 18 ] || missing "Node.js $version is too old: 18 or newer is required."

# Build folders share the npm packages.
exec 9>>"$root/web/.lock"
flock 9
stamp=node_modules/.tessera
want="$version $(cksum <package-lock.json)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  quietly "$log" npm ci --no-audit --no-fund --fetch-retries=1 ||
    missing "npm could not install the packages of web/package-lock.json."
  echo "$want" >"$stamp"
fi
quietly "$log" node node_modules/vite/bin/vite.js build --mode "$mode" --outDir "$out" --emptyOutDir false \
  --logLevel warn || fail "the page does not build"
for file in "${files[@]}"; do
  [ -s "$out/$file" ] || fail "the build of the page did not write $file"
  touch "$out/$file"
done
