#!/usr/bin/env bash
# The whole test run: lint, release build and tests, then the torch-free tests under the sanitizers.
#   scripts/test.sh            all of it, what `make test` and CI run
#   scripts/test.sh soak       every test of the release build, the long matrices among them, and
#                              libFuzzer
# Expects scripts/setup.sh to have run.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

summary=()
skipped=()
status=0

# step <name> <command…>: runs it, times it, keeps going when it fails.
step() {
  local name="$1" began=$SECONDS result=ok
  shift
  say "$name"
  "$@" || result=FAILED
  [ "$result" = ok ] || status=1
  summary+=("$(printf '%-34s %-7s %4d s' "$name" "$result" $((SECONDS - began)))")
  [ "$result" = ok ]
}

# tests <preset> <build folder> <ctest arguments…>
tests() {
  local preset="$1" report="$root/$2/tests.xml" result=0 names
  shift 2
  rm -f "$report"
  ctest --preset "$preset" --no-tests=error --output-junit "$report" \
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

# Labels: "soak" marks the long matrices, left out of the ordinary run.
case "${1:-all}" in
  all)
    step "lint" scripts/lint.sh
    if step "build, release" scripts/build.sh release; then
      step "tests, release" tests release build -LE soak
    fi
    for preset in asan tsan; do
      if step "build, $preset" scripts/build.sh "$preset"; then
        step "tests, $preset" tests "$preset" "build-$preset" -LE soak
      fi
    done
    ;;
  soak)
    if step "build, release" scripts/build.sh release; then
      step "tests, release and soak" tests release build
    fi
    step "libFuzzer" scripts/fuzz.sh
    ;;
  *) fail "test.sh: got \"$1\", wanted soak or nothing" ;;
esac
finish
