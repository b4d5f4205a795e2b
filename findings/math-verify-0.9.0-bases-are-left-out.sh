#!/usr/bin/env bash
# math-verify 0.9.0 reads a numeral with its base, 1011_2, as the decimal number 1011 and leaves the base out. So 1011_3 is right
# where 1011_2 is asked for, sums of numerals are decimal sums, and a right conversion is wrong. A subscript of a letter is kept.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q "math-verify==0.9.0" "latex2sympy2_extended==1.11.0" "sympy==1.14.0"
"$folder/env/bin/python" - <<'PY'
import sys
from math_verify import parse, verify

pairs = {
    ("1011_2", "1011_3"): True,
    ("52_8", "52_{9}"): True,
    ("11_2 + 1_2", "12"): True,
    ("11_2 + 1_2", "100_2"): False,
    ("1011_2", "11_{10}"): False,
    ("x_2", "x_3"): False,
}
found = {}
for gold, answer in pairs:
    found[gold, answer] = verify(parse(rf"\boxed{{{gold}}}"), parse(rf"\boxed{{{answer}}}"))
    print(f"{gold} and {answer} are equal:", found[gold, answer])
sys.exit(0 if found == pairs else 1)
PY
