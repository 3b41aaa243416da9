# A small model of the same kind in place of the downloaded one.
yes "It was a dark night, and the rain fell." | head -n 2000 > book.txt
tessera data prepare --tokenizer bytes book.txt --out tokens
tessera train --ranks 1 --model llama-tiny --vocab 257 --data tokens --micro-batch 2 --steps 1 --samples 0 --save first
tessera checkpoint export first Llama-3.2-1B --format huggingface
rm -r first
