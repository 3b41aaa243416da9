#!/usr/bin/env bash
# Runs tests, and builds what they need.
#   scripts/test.sh            lint, release build and tests: `make test`
#   scripts/test.sh programs   compiles benchmarks and, for a LibTorch without CUDA, the tests that need
#                              a GPU, which the release build leaves out: `make programs`
#   scripts/test.sh sanitize   the torch-free tests under AddressSanitizer and UBSan, and under
#                              ThreadSanitizer: `make sanitize`
#   scripts/test.sh soak       every test of the release build including the long matrices, the
#                              sanitizers and libFuzzer: `make soak`
# CI runs the first three (.ci/run).
# Expects scripts/setup.sh to have run.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

summary=()
skipped=()
status=0

# step <name> <command…>: runs and times a command. A failure sets the final status.
step() {
  local name="$1" began=$SECONDS result=ok
  shift
  say "$name"
  "$@" || result=FAILED
  [ "$result" = ok ] || status=1
  summary+=("$(printf '%-34s %-7s %4d s' "$name" "$result" $((SECONDS - began)))")
  [ "$result" = ok ]
}

# Programs that tests compare with, installed in the background while the compilers run. One after the
# other, because two of them call apt. A script that cannot install its program reports that and
# succeeds; its tests are skipped.
install_tools() (
  set -e
  scripts/interop.sh
  scripts/browser.sh
  scripts/schemathesis.sh
  scripts/docs.sh tools
)
tools_pid=""
start_tools() {
  mkdir -p build
  install_tools >build/tools.log 2>&1 &
  tools_pid=$!
  trap 'kill "$tools_pid" 2>/dev/null' EXIT
}
wait_for_tools() {
  local status=0
  wait "$tools_pid" || status=1
  trap - EXIT
  cat build/tools.log
  return "$status"
}

# tests <preset> <build folder> <ctest arguments…>
# One test more than cores, because tests also wait: for ranks that die, and for deadlines.
tests() {
  local preset="$1" report="$root/$2/tests.xml" result=0 names
  shift 2
  rm -f "$report"
  # Tests run beside each other, so idle OpenMP threads must sleep instead of spinning.
  OMP_WAIT_POLICY=passive \
    ctest --preset "$preset" -j $(($(jobs_count) + 1)) --no-tests=error --output-junit "$report" \
    --test-output-size-passed 1000000 "$@" || result=1
  names="$(python3 scripts/skipped_tests.py "$preset" "$report")" || result=1
  if [ -n "$names" ]; then skipped+=("$names"); fi
  return "$result"
}

finish() {
  say "summary"
  printf '   %s\n' "${summary[@]}"
  if [ "${#skipped[@]}" -gt 0 ]; then
    say "skipped tests"
    printf '%s\n' "${skipped[@]}"
  else
    say "no test was skipped"
  fi
  if [ "$status" -eq 0 ]; then say "all passed"; else say "FAILED"; fi
  exit "$status"
}

sanitizers() {
  for preset in asan tsan; do
    if step "build, $preset" scripts/build.sh "$preset"; then
      step "tests, $preset" tests "$preset" "build-$preset" -LE soak
    fi
  done
}

# The label "soak" marks the long matrices, which ordinary runs exclude.
case "${1:-all}" in
  all)
    start_tools
    step "lint" scripts/lint.sh
    if step "build, release" scripts/build.sh release; then
      step "tools of the tests" wait_for_tools
      step "tests, release" tests release build -LE soak
    fi
    ;;
  programs) step "build, programs" scripts/build.sh release all bench_programs gpu_programs ;;
  sanitize) sanitizers ;;
  soak)
    start_tools
    if step "build, release" scripts/build.sh release all soak_programs bench_programs gpu_programs; then
      step "tools of the tests" wait_for_tools
      step "tests, release and soak" tests release build
    fi
    sanitizers
    step "libFuzzer" scripts/fuzz.sh
    ;;
  *) fail "test.sh: \"$1\": must be programs, sanitize, soak or nothing" ;;
esac
finish
