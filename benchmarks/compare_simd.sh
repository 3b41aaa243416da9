#!/usr/bin/env bash
# Compares the speed of the kernels and reductions of this tree with those of another one, such as an
# older revision. Needs only a compiler, neither CMake nor LibTorch:
#   benchmarks/compare_simd.sh OLD [SAMPLES [PART OF A CASE NAME]]
# OLD is a folder with tessera/, or a git revision. CXX and CXXFLAGS are used if set.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
old="${1:?give a folder with tessera/, or a git revision}"
shift
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
if [ ! -d "$old/tessera" ]; then
  mkdir "$work/tree"
  git -C "$here" archive "$old" tessera benchmarks | tar -x -C "$work/tree"
  old="$work/tree"
fi
flags=(-std=c++20 -O3 -DNDEBUG -DFMT_HEADER_ONLY -fPIC -Wno-psabi)
read -r -a more <<<"${CXXFLAGS:-}"

build() {  # tree, library
  local tree="$1" sources=() cases="$1/benchmarks/simd_cases.cpp" source
  [ -e "$cases" ] || cases="$here/benchmarks/simd_cases.cpp"
  for source in "$tree"/tessera/kernels/*.cpp "$tree"/tessera/comm/{copy,dtype,reduce*}.cpp \
    "$tree"/tessera/core/{dtype,errors,text}*.cpp; do
    if [ -e "$source" ]; then sources+=("$source"); fi
  done
  "${CXX:-g++}" "${flags[@]}" "${more[@]}" -shared -Wl,-Bsymbolic -I"$tree" -o "$2" "$cases" \
    "${sources[@]}"
}
build "$old" "$work/old.so" &
build "$here" "$work/new.so"
wait %1
"${CXX:-g++}" -std=c++20 -O2 -o "$work/compare" "$here/benchmarks/compare_simd.cpp" -ldl
"$work/compare" "$work/old.so" "$work/new.so" "$@"
