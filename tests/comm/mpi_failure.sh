#!/bin/sh
# One rank of four goes wrong; the others must say so, naming it, in time, and the job must end.
#
#   mpi_failure.sh PROGRAM BACKEND WAY MESSAGE [LAUNCHER …]
#
# MESSAGE is what every other rank must print. LAUNCHER: how to run four ranks, default mpirun.
set -u
program=$1 backend=$2 way=$3 message=$4
shift 4
[ $# -gt 0 ] || set -- "${MPIRUN:-mpirun}" --oversubscribe -n 4
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 60 "$@" "$program" "$way" "$folder/note" "$backend" >"$folder/out" 2>&1
status=$?
cat "$folder/out"
[ $status = 77 ] && exit 77
wrong=0
complain() {
  echo "WRONG: $1"
  wrong=1
}
[ $status = 124 ] && complain "the job did not end"
[ $status = 0 ] && complain "the job ended as if nothing had happened"
for rank in 0 2 3; do
  grep "^rank $rank: $message" "$folder/out" >/dev/null || complain "rank $rank did not say: $message"
done
limit=2
[ "$way" = stop ] && limit=4 # 1.5 s of timeout come first
case $way in
  kill | exit | stop)
    awk -v limit=$limit '/^rank [023]: PeerError/ && $7 > limit { late = 1 } END { exit late }' \
      "$folder/out" || complain "it took more than $limit s"
    ;;
esac
exit $wrong
