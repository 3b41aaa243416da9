# A small run of 120 steps.
mkdir -p "$HOME/safe"
tessera train --ranks 1 --layers 1 --hidden 32 --heads 2 --micro-batch 1 --steps 120 --samples 0 --save runs/a
