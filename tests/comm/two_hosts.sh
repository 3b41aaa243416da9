#!/bin/sh
# Runs a program on two "hosts": network namespaces of this machine, joined by a cable, each with a
# host name of its own. Whatever happens, they are gone afterwards.
#
#   two_hosts.sh RANKS_PER_HOST [mpirun option …] -- PROGRAM [ARGUMENT …]
#   two_hosts.sh --as LAUNCHER RANKS_PER_HOST -- PROGRAM [ARGUMENT …]
#
# The second form needs no MPI: it starts the ranks itself, with the variables that torchrun, srun
# or kubernetes (a PyTorchJob: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and nothing else) would set.
# {link} in an argument is replaced by the name of the network interface between the hosts.
# TWO_HOSTS_RATE, if set, limits what each host sends over the cable, in words of tc: 400mbit.
# It may take TWO_HOSTS_SECONDS, 200 unless set. Rank TWO_HOSTS_KILLED, if set, must be killed.
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

launcher=
if [ "${1:-}" = --as ]; then
  launcher=$2
  shift 2
fi
per_host=$1
shift
mpirun=${MPIRUN:-mpirun}
[ "$(id -u)" = 0 ] || skip "this is not root"
for tool in ip unshare ${launcher:-"$mpirun"}; do
  [ "$tool" = "$launcher" ] && continue
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
# Addresses for documentation: nowhere routed, and used in these namespaces only.
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

# The words of mpirun's command line, quoted for the shell that runs it in the namespace.
words=
add() {
  words="$words '$(printf %s "$1" | sed "s/'/'\\\\''/g")'"
}
[ -n "$launcher" ] || for word in "$mpirun" --hostfile "$folder/hostfile" --map-by slot -n $((2 * per_host)) \
  --mca plm_rsh_agent "$here/two_hosts.sh --enter $prefix $folder/hosts" \
  --mca btl tcp,self,vader --mca btl_tcp_if_exclude lo,127.0.0.0/8 \
  --mca oob_tcp_if_exclude lo,127.0.0.0/8; do
  add "$word"
done
for word in "$@"; do
  [ "$word" = -- ] && continue
  [ "$word" = "{link}" ] && word=cable
  add "$word"
done

limit=${TWO_HOSTS_SECONDS:-200}
if [ -n "$launcher" ]; then
  head -c 32 /dev/urandom >"$folder/secret"
  chmod 600 "$folder/secret"
  export TESSERA_SECRET_FILE="$folder/secret"
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
          echo "two_hosts.sh --as $launcher: wanted torchrun, srun or kubernetes"
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
  # The worst of all; that of the rank that is meant to be killed is SIGKILL's.
  status=0 rank=0
  for process in $pids; do
    ended=0 wanted=0
    [ "$rank" = "${TWO_HOSTS_KILLED:-}" ] && wanted=137
    wait "$process" || ended=$?
    [ "$ended" = $wanted ] || { echo "rank $rank ended with $ended, wanted $wanted" && status=1; }
    rank=$((rank + 1))
  done
  exit $status
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# A limit of our own: whoever kills this script leaves the namespaces behind.
status=0
timeout -k 5 "$limit" \
  sh "$0" --enter "$prefix" "$folder/hosts" left "$words" || status=$?
exit $status
