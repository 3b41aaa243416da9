#!/bin/sh
# Runs an MPI program on two "hosts": network namespaces of this machine, joined by a cable, each
# with a host name of its own. Whatever happens, they are gone afterwards.
#
#   two_hosts.sh RANKS_PER_HOST [mpirun option …] -- PROGRAM [ARGUMENT …]
#
# {link} in an argument is replaced by the name of the network interface between the hosts.
# It may take TWO_HOSTS_SECONDS, 200 unless set.
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

per_host=$1
shift
mpirun=${MPIRUN:-mpirun}
[ "$(id -u)" = 0 ] || skip "this is not root"
for tool in ip unshare "$mpirun"; do
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
for word in "$mpirun" --hostfile "$folder/hostfile" --map-by slot -n $((2 * per_host)) \
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
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# A limit of our own: whoever kills this script leaves the namespaces behind.
status=0
timeout -k 5 "${TWO_HOSTS_SECONDS:-200}" \
  sh "$0" --enter "$prefix" "$folder/hosts" left "$words" || status=$?
exit $status
