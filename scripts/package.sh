#!/usr/bin/env bash
# Packages a build: tessera-planner and tessera as .deb, and a tarball of both.
#   scripts/package.sh [build folder] [output folder]       default: build and build/packages
# A build without LibTorch gives only the planner. docs/install.md explains how to install them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

build="${1:-build}"
out="$(realpath -m "${2:-$build/packages}")"
[ -f "$build/CPackConfig.cmake" ] || fail "package.sh: $build is not a build folder; run make build first"
for program in dpkg-deb dpkg-shlibdeps file gzip strip; do
  command -v "$program" >/dev/null || fail "package.sh: $program is missing (Debian: dpkg-dev file gzip binutils)"
done
mkdir -p "$out"
for kind in DEB TGZ; do
  quietly "$build/package.log" cpack -G "$kind" --config "$build/CPackConfig.cmake" -B "$out"
done
rm -rf "$out/_CPack_Packages"
ls -lh "$out" | awk 'NR > 1 {print "   " $5, $9}'
