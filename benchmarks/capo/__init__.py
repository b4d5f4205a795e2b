"""What rewards of tokens are worth: CAPO with a rule's and with a small judge's critiques, against GRPO."""
