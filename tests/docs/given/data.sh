# A text as a file, as JSON lines and as a folder; a small tokenizer in place of GPT-2's.
yes "the ab the 12" | head -n 2000 > book.txt
mkdir gpt2 wiki
cp book.txt wiki/a.txt
sed 's/<s>/<|endoftext|>/' "$ROOT/tests/data/fuzz/tokenizer/gpt2.json" > gpt2/tokenizer.json
echo '{"eos_token": "<|endoftext|>"}' > gpt2/tokenizer_config.json
head -n 100 book.txt | sed 's/.*/{"text": "&"}/' | gzip > web.jsonl.gz
