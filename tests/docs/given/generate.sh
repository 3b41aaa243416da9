# A small run on a text, and the text as tokens.
yes "It was a dark night, and the rain fell." | head -n 2000 > book.txt
tessera data prepare --tokenizer bytes book.txt --out tokens/val
tessera train --ranks 1 --layers 2 --hidden 32 --heads 2 --micro-batch 2 --data tokens/val --vocab 257 --steps 2 --samples 0 --save runs/a
printf 'Once\nIt was\n' > prompts.txt
