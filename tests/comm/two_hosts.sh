#!/bin/sh
# Runs a program on two "hosts": network namespaces of this machine, joined by a cable, each with a
# host name of its own. They are always removed at the end.
#
#   two_hosts.sh --as LAUNCHER RANKS_PER_HOST -- PROGRAM [ARGUMENT …]
#
# LAUNCHER is mpirun (Open MPI's, with a daemon in each namespace), or the script starts the ranks
# with the variables that torchrun, srun or kubernetes (a PyTorchJob: RANK, WORLD_SIZE, MASTER_ADDR,
# MASTER_PORT and nothing else) would set. The network interface between the hosts is named cable.
# TWO_HOSTS_RATE, if set, limits the rate at which each host sends, in the syntax of tc: 400mbit.
# TWO_HOSTS_SECONDS limits its time; default 200. Rank TWO_HOSTS_KILLED, if set, must be killed.
# Needs root and iproute2; without them it says so and exits with status 77 (skipped).
set -eu

# mpirun starts its daemons with: two_hosts.sh --enter PREFIX HOSTS_FILE HOST COMMAND …
if [ "${1:-}" = --enter ]; then
  prefix=$2 hosts_file=$3 host=$4
  shift 4
  exec ip netns exec "$prefix-$host" unshare --uts --mount sh -c '
    mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec sh -c "$*"
  ' sh "$hosts_file" "$host" "$@"
fi

skip() {
  echo "SKIPPED: two hosts need network namespaces: $1"
  exit 77
}

[ "${1:-}" = --as ] || { echo "two_hosts.sh: the first argument must be --as" && exit 2; }
launcher=$2 per_host=$3
shift 3
[ "$(id -u)" = 0 ] || skip "this is not root"
tools="ip unshare"
[ "$launcher" = mpirun ] && tools="$tools mpirun"
for tool in $tools; do
  command -v "$tool" >/dev/null || skip "there is no $tool"
done

here=$(cd "$(dirname "$0")" && pwd)
prefix=tessera$$
folder=$(mktemp -d)
clean_up() {
  for host in left right; do
    for process in $(ip netns pids "$prefix-$host" 2>/dev/null); do
      kill -9 "$process" 2>/dev/null || true
    done
    ip netns del "$prefix-$host" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

for host in left right; do
  ip netns add "$prefix-$host" 2>"$folder/why" || skip "$(cat "$folder/why")"
done
ip link add cable netns "$prefix-left" type veth peer name cable netns "$prefix-right" \
  2>"$folder/why" || skip "$(cat "$folder/why")"
# Addresses reserved for documentation, which are never routed; used in these namespaces only.
address=1
: >"$folder/hosts"
: >"$folder/hostfile"
for host in left right; do
  ip -n "$prefix-$host" address add "192.0.2.$address/24" dev cable
  ip -n "$prefix-$host" link set lo up
  ip -n "$prefix-$host" link set cable up
  if [ -n "${TWO_HOSTS_RATE:-}" ]; then
    tc -n "$prefix-$host" qdisc add dev cable root tbf rate "$TWO_HOSTS_RATE" burst 64kb \
      latency 100ms 2>"$folder/why" || skip "$(cat "$folder/why")"
  fi
  echo "192.0.2.$address $host" >>"$folder/hosts"
  echo "$host slots=$per_host" >>"$folder/hostfile"
  address=$((address + 1))
done
echo "127.0.0.1 localhost" >>"$folder/hosts"
sh "$0" --enter "$prefix" "$folder/hosts" left true 2>"$folder/why" || skip "$(cat "$folder/why")"

# The arguments of mpirun, quoted for the shell that runs it in the namespace.
words=
add() {
  words="$words '$(printf %s "$1" | sed "s/'/'\\\\''/g")'"
}
[ "$launcher" = mpirun ] && for word in mpirun --hostfile "$folder/hostfile" --map-by slot \
  -n $((2 * per_host)) -x TESSERA_SECRET_FILE --mca plm_rsh_agent "$here/two_hosts.sh --enter $prefix $folder/hosts" \
  --mca oob_tcp_if_exclude lo,127.0.0.0/8; do
  add "$word"
done
for word in "$@"; do
  [ "$word" = -- ] && continue
  add "$word"
done

limit=${TWO_HOSTS_SECONDS:-200}
head -c 32 /dev/urandom >"$folder/secret"
chmod 600 "$folder/secret"
export TESSERA_SECRET_FILE="$folder/secret"
if [ "$launcher" != mpirun ]; then
  rank=0 node=0 pids=
  for host in left right; do
    local_rank=0
    while [ "$local_rank" -lt "$per_host" ]; do
      case $launcher in
        torchrun)
          set -- RANK=$rank WORLD_SIZE=$((2 * per_host)) LOCAL_RANK=$local_rank \
            LOCAL_WORLD_SIZE="$per_host" MASTER_ADDR=left MASTER_PORT=29500
          ;;
        kubernetes)
          set -- RANK=$rank WORLD_SIZE=$((2 * per_host)) MASTER_ADDR=left MASTER_PORT=29500
          ;;
        srun)
          set -- SLURM_PROCID=$rank SLURM_NTASKS=$((2 * per_host)) SLURM_LOCALID=$local_rank \
            SLURM_NODEID=$node SLURM_STEP_ID=0 SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=2 \
            SLURM_STEP_NODELIST=left,right "SLURM_STEP_TASKS_PER_NODE=$per_host(x2)"
          ;;
        *)
          echo "two_hosts.sh --as $launcher: must be mpirun, torchrun, srun or kubernetes"
          exit 2
          ;;
      esac
      env "$@" timeout -k 5 "$limit" \
        sh "$0" --enter "$prefix" "$folder/hosts" "$host" "exec $words" &
      pids="$pids $!"
      rank=$((rank + 1)) local_rank=$((local_rank + 1))
    done
    node=$((node + 1))
  done
  # The worst status of all ranks. That of the rank to be killed must be SIGKILL's.
  status=0 rank=0
  for process in $pids; do
    ended=0 wanted=0
    [ "$rank" = "${TWO_HOSTS_KILLED:-}" ] && wanted=137
    wait "$process" || ended=$?
    [ "$ended" = $wanted ] || { echo "rank $rank ended with status $ended, expected $wanted" && status=1; }
    rank=$((rank + 1))
  done
  exit $status
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# The script's own time limit: if another program killed it, the namespaces would remain.
status=0
timeout -k 5 "$limit" \
  sh "$0" --enter "$prefix" "$folder/hosts" left "$words" || status=$?
exit $status
