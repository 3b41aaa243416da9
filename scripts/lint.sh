#!/usr/bin/env bash
# Runs all checks that need no build. --fix formats the sources in place instead.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

# Versions of clang-format differ in places, so one is authoritative.
required=14
formatter="$(command -v clang-format-$required || command -v clang-format || true)"
[ -n "$formatter" ] || fail "clang-format is missing (Debian: clang-format)"
version="$("$formatter" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')"

sources() {
  git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' |
    while IFS= read -r -d '' name; do if [ -f "$name" ]; then printf '%s\0' "$name"; fi; done
}

if [ "${1:-}" = --fix ]; then
  sources | xargs -0 -r "$formatter" -i --style=file
  exit 0
fi

status=0
if ! sources | xargs -0 -r "$formatter" --style=file --dry-run -Werror --ferror-limit=3; then
  if [ "$version" = "$required" ]; then
    echo "lint: not formatted; run: make format" >&2
    status=1
  else
    say "lint: clang-format $version differs from the tree, which follows version $required (not an error)"
  fi
fi
python3 scripts/check_includes.py || status=1
python3 scripts/check_sources.py || status=1
if [ "$status" -eq 0 ]; then say "lint: clean"; fi
exit "$status"
