#!/usr/bin/env bash
# Builds the page of `tessera dashboard` out of web/ into a folder: index.html, page.js, others.js,
# page.css, icon.svg and inter.woff2, always these six. Where there is no Node.js, or its packages cannot be
# had, index.html says what is missing, the others are empty, and the next build tries again: the
# rest of Tessera does not wait for it.
#   scripts/web.sh DIR
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -eq 1 ] || fail "web.sh: wanted the folder to write to"
mkdir -p "$1"
out="$(cd "$1" && pwd)"
cd "$root/web"
log="$out/build.log"
files=(index.html page.js others.js page.css icon.svg inter.woff2)

missing() {
  say "the page of tessera dashboard is left out: $*"
  for file in "${files[@]}"; do : >"$out/$file"; done
  cat >"$out/index.html" <<HTML
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Tessera</title>
<h1>The page is not in this build</h1>
<p>$*</p>
<p>Install Node.js 18 or newer with npm, and build again. Everything else works: the API under /api,
described in <a href="openapi.json">openapi.json</a>, and every command.</p>
</html>
HTML
  # Older than its sources, so that the next build comes here again.
  for file in "${files[@]}"; do touch -d 2000-01-01 "$out/$file"; done
  exit 0
}

command -v node >/dev/null || missing "Node.js was not found."
command -v npm >/dev/null || missing "npm was not found."
version="$(node -p 'process.versions.node')"
[ "${version%%.*}" -ge 18 ] || missing "Node.js $version is too old: 18 or newer is wanted."

# Build folders share the packages.
exec 9>>"$root/web/.lock"
flock 9
stamp=node_modules/.tessera
want="$version $(cksum <package-lock.json)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  quietly "$log" npm ci --no-audit --no-fund --fetch-retries=1 ||
    missing "npm could not install the packages of web/package-lock.json."
  echo "$want" >"$stamp"
fi
quietly "$log" node node_modules/vite/bin/vite.js build --outDir "$out" --emptyOutDir false \
  --logLevel warn || fail "the page does not build"
for file in "${files[@]}"; do
  [ -s "$out/$file" ] || fail "the page's build left no $file"
  touch "$out/$file"
done
