#!/usr/bin/env bash
# Runs libFuzzer on each parser, under AddressSanitizer and UBSan. Needs clang.
#   scripts/fuzz.sh [--runs N] [--seconds N] [fuzzer…]     defaults: 1000000, 600, all
# Stores new inputs in build-fuzz/corpus and failing ones in build-fuzz/found.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

runs=1000000
seconds=600
only=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,4s/^# //p' scripts/fuzz.sh && exit 0 ;;
    --runs | --seconds)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || fail "fuzz.sh: $1 \"${2:-}\": must be a number of at least 1"
      if [ "$1" = --runs ]; then runs="$2"; else seconds="$2"; fi
      shift 2
      ;;
    -*) fail "fuzz.sh: $1 is not an option. Use --runs N, --seconds N or names of fuzzers" ;;
    *) only+=("${1%_fuzzer}") && shift ;;
  esac
done

# Clang alone is not enough: libFuzzer is a separate package.
compiler=
for candidate in clang++ clang++-{20..14}; do
  if command -v "$candidate" >/dev/null &&
    echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    "$candidate" -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null; then
    compiler="$candidate"
    break
  fi
done
if [ -z "$compiler" ]; then
  say "libFuzzer is skipped: no clang++ has it (Debian: clang-14 libclang-rt-14-dev)"
  exit 0
fi

dir=build-fuzz
if [ ! -f "$dir/build.ninja" ]; then
  say "configuring fuzz in $dir/ with $compiler"
  mkdir -p "$dir"
  cmake --preset fuzz -DCMAKE_CXX_COMPILER="$compiler" >"$dir/configure.log" 2>&1 ||
    { cat "$dir/configure.log" >&2 && exit 1; }
fi
cmake --build "$dir" -j "$(jobs_count)" --target fuzzers

status=0
for seeds in tests/data/fuzz/*/; do
  kind="$(basename "$seeds")"
  if [ "${#only[@]}" -gt 0 ] && [[ " ${only[*]} " != *" $kind "* ]]; then continue; fi
  mkdir -p "$dir/corpus/$kind" "$dir/found"
  log="$dir/$kind.log"
  if "$dir/tests/${kind}_fuzzer" -runs="$runs" -max_total_time="$seconds" -max_len=4096 -timeout=25 \
    -print_final_stats=1 -artifact_prefix="$dir/found/$kind-" "$dir/corpus/$kind" "$seeds" \
    >"$log" 2>&1; then
    say "$kind: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, nothing found"
  else
    tail -40 "$log" >&2
    say "$kind: FAILED, see $log and $dir/found"
    status=1
  fi
done
exit "$status"
