# Functions for the scripts in this folder, which source this file. Sets `root`, the top of the
# repository.
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

say() { printf '\033[1m==\033[0m %s\n' "$*"; }
fail() {
  printf 'tessera: %s\n' "$*" >&2
  exit 1
}

# quietly <log> <command…>: appends the output to the log, and prints its end if the command fails.
quietly() {
  local log="$1"
  shift
  mkdir -p "$(dirname "$log")"
  if "$@" >>"$log" 2>&1; then return 0; fi
  tail -n 20 "$log" >&2
  printf 'tessera: the full log is %s\n' "$log" >&2
  return 1
}

# make_tools <venv> <package> <purpose>: creates a virtual environment with one pinned package, using
# $PYTHON. Does nothing if it exists. On failure prints the reason and leaves no folder.
make_tools() {
  local venv="$1" package="$2" python="${PYTHON:-python3}" log="$root/build/setup.log"
  if [ "$(cat "$venv/.tessera" 2>/dev/null)" = "$python $package" ]; then return 0; fi
  say "installing ${package%%=*} into $venv ($3)"
  if quietly "$log" "$python" -m venv --clear "$venv" &&
    quietly "$log" "$venv/bin/python" -m pip --disable-pip-version-check --retries 2 install \
      --no-compile "$package"; then
    echo "$python $package" >"$venv/.tessera"
  else
    rm -rf "$venv"
    say "no $venv: $python could not create it, or pip could not install $package. Its test is skipped."
  fi
}

# Prints the system's Python rather than one of a version manager, because Debian's python3-venv
# works with the system's only. PYTHON=… overrides it.
default_python() {
  if [ -n "${PYTHON:-}" ]; then
    echo "$PYTHON"
  elif [ -x /usr/bin/python3 ]; then
    echo /usr/bin/python3
  else
    echo python3
  fi
}

has_gpu() { compgen -G '/dev/nvidia[0-9]*' >/dev/null; }

# Prints the number of parallel compiler processes: JOBS if set, otherwise the number of cores, but at
# most one per 2 GiB of memory, the peak of a source that includes torch.
jobs_count() {
  if [ -n "${JOBS:-}" ]; then
    [[ "$JOBS" =~ ^[1-9][0-9]*$ ]] || fail "JOBS is \"$JOBS\"; must be a number of at least 1"
    echo "$JOBS"
    return
  fi
  local cores kib limit
  cores="$(nproc)"
  kib="$(awk '/^MemTotal:/ {print $2}' /proc/meminfo)"
  limit="$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)"
  if [[ "$limit" =~ ^[0-9]+$ ]] && [ $((limit / 1024)) -lt "$kib" ]; then kib=$((limit / 1024)); fi
  local by_memory=$((kib / (2 * 1024 * 1024)))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}
