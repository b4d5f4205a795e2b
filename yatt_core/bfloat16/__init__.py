"""Products of bfloat16 matrices on a CPU: with the processor's own instructions or, where it has none, through float32."""
