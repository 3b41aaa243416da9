# One configuration per line, and three measured steps.
echo '{"model": "gpt2-xl", "dp": 8, "zero": 1}' > rows.jsonl
echo '{"params": "13B", "dp": 8, "zero": 2}' >> rows.jsonl
cat > runs.csv <<END
model,dp,zero,micro_batch,step_ms
gpt2-xl,8,1,4,900
gpt2-xl,8,2,4,910
gpt2-xl,4,1,4,890
END
