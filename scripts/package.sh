#!/usr/bin/env bash
# Makes tessera-planner and tessera as .deb, and a tarball of both.
#   scripts/package.sh                                      builds for all GPUs, then packages build/
#   scripts/package.sh BUILD-FOLDER [OUTPUT-FOLDER]         packages a build; default: its packages/
# The CUDA kernels of a package have code for the architectures in $cuda_architectures. Such a build takes
# four times as long to compile the kernels as one for a single GPU.
# A build without LibTorch gives only the planner. docs/install.md explains how to install them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

cuda_architectures="80 90 100 120"
if [ "$#" -eq 0 ]; then TESSERA_CUDA_ARCHITECTURES="${cuda_architectures// /;}" scripts/build.sh release; fi
build="${1:-${TESSERA_BUILD_DIR:-build}}"
out="$(realpath -m "${2:-$build/packages}")"
[ -f "$build/CPackConfig.cmake" ] || fail "package.sh: $build is not a build folder; run make build first"
for program in dpkg-deb dpkg-shlibdeps file gzip strip; do
  command -v "$program" >/dev/null || fail "package.sh: $program is missing (Debian: dpkg-dev file gzip binutils)"
done
code="$(sed -n 's/^TESSERA_CUDA_CODE:INTERNAL=//p' "$build/CMakeCache.txt")"
if grep -qE '^TESSERA_TORCH:[A-Z]+=OFF' "$build/CMakeCache.txt"; then
  :  # no kernels in the planner's package
elif [ -z "$code" ]; then
  say "the packages have no CUDA kernels: $(sed -n 's/^-- CUDA kernels: //p' "$build/configure.log" 2>/dev/null)"
else
  for architecture in $cuda_architectures; do
    case ";$code;" in
      *";$architecture;"*) ;;
      *) fail "package.sh: the CUDA kernels in $build have code for $code; must be ${cuda_architectures// /;}. Run make package, or configure with -DTESSERA_CUDA_ARCHITECTURES=\"${cuda_architectures// /;}\"" ;;
    esac
  done
fi
mkdir -p "$out"
for kind in DEB TGZ; do
  quietly "$build/package.log" cpack -G "$kind" --config "$build/CPackConfig.cmake" -B "$out"
done
rm -rf "$out/_CPack_Packages"
ls -lh "$out" | awk 'NR > 1 {print "   " $5, $9}'
