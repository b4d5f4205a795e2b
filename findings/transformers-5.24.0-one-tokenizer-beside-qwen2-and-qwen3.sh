#!/usr/bin/env bash
# transformers 5.24.0: AutoTokenizer splits the same tokenizer.json in another way beside a config of model_type qwen2 than beside
# qwen3 or llama, without a message, although tokenizer_config.json names PreTrainedTokenizerFast in all three; 4.57.6 does not.
# Seen: 5.24.0 reads the qwen2 folder as Qwen2Tokenizer, which puts its own byte-level splitting in place of the file's words:
# "red green" is [0, 1] in the others and no tokens at all there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/look.py" <<'PY'
import json, sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

core = Tokenizer(models.WordLevel({"red": 0, "green": 1, "?": 2}, unk_token="?"))
core.pre_tokenizer = pre_tokenizers.Whitespace()
found = {}
for kind in ("qwen2", "qwen3", "llama"):
    place = Path(sys.argv[1]) / transformers.__version__ / kind
    place.mkdir(parents=True)
    core.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"}))
    (place / "config.json").write_text(json.dumps({"model_type": kind}))
    tokenizer = AutoTokenizer.from_pretrained(place)
    found[kind] = tokenizer("red green", add_special_tokens=False)["input_ids"]
    print(transformers.__version__, kind, type(tokenizer).__name__, found[kind])
new = transformers.__version__.startswith("5.")
right = all(found[kind] == [0, 1] for kind in ("qwen3", "llama"))
sys.exit(0 if right and (found["qwen2"] == [0, 1]) != new else 1)
PY
for version in 5.24.0 4.57.6; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q "transformers==$version"
  HF_HUB_OFFLINE=1 "$folder/$version/bin/python" "$folder/look.py" "$folder" 2> "$folder/messages" || { cat "$folder/messages"; exit 1; }
done
