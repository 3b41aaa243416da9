#!/usr/bin/env bash
# Packs what is built in a folder: tessera-planner and tessera as .deb, and a tarball of both.
#   scripts/package.sh [build folder] [output folder]       build and build/packages, if not told
# A build without LibTorch gives the planner alone. docs/install.md says how to install them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

build="${1:-build}"
out="$(realpath -m "${2:-$build/packages}")"
[ -f "$build/CPackConfig.cmake" ] || fail "package.sh: $build is no build folder; run make build first"
for program in dpkg-deb dpkg-shlibdeps file gzip strip; do
  command -v "$program" >/dev/null || fail "package.sh: $program is missing (Debian: dpkg-dev file gzip binutils)"
done
mkdir -p "$out"
for kind in DEB TGZ; do
  quietly "$build/package.log" cpack -G "$kind" --config "$build/CPackConfig.cmake" -B "$out"
done
rm -rf "$out/_CPack_Packages"
ls -lh "$out" | awk 'NR > 1 {print "   " $5, $9}'
