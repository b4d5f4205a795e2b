#!/usr/bin/env bash
# math-verify 0.9.0: different numbers count as equal if their difference is tiny, and 1e-7 is read as Euler's number.
# Seen: verify(1/2^98, 1/2^99) is True; parse("1e-7") holds E, so a right 0.0000001 is wrong and a wrong e - 7 is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q "math-verify==0.9.0" "latex2sympy2_extended==1.11.0" "sympy==1.14.0"
"$folder/env/bin/python" - <<'PY'
import sys
from math_verify import parse, verify

def equal(gold, answer):
    return verify(parse(gold), parse(answer))

small = equal(r"\boxed{\frac{1}{2^{98}}}", r"\boxed{\frac{1}{2^{99}}}")
read = [str(value) for value in parse(r"\boxed{1e-7}")]
print("1/2^98 and 1/2^99 are equal:", small)
print("1e-7 is read as:", read)
sys.exit(0 if small and any("E" in value or "e" in value for value in read) else 1)
PY
