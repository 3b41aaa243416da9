# book.txt, and the same text as tokens in three folders.
yes "It was a dark night, and the rain fell." | head -n 2000 > book.txt
for name in tokens web books; do tessera data prepare --tokenizer bytes book.txt --out $name; done
