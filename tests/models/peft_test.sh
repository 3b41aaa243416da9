#!/bin/sh
# peft_test.sh PYTHON TESSERA FAMILY...   runs peft_test.py, or prints the reason it cannot
if [ ! -x "$1" ]; then
  echo "skipped: there is no $1; scripts/interop.sh makes it"
  exit 77
fi
python="$1"
shift
exec "$python" "$(dirname "$0")/peft_test.py" "$@"
