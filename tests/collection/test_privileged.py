"""Self-distillation in a collector: what the policy sees as its own teacher is part of the experience."""

from __future__ import annotations

from pathlib import Path

from tests.collection.local import collect, spec_with
from yatt_core.experience.batch import load_table
from yatt_core.protocols.receipts import ShardRef
from yatt_core.spec.sections.distillation import DistillationSpec, PrivilegedSpec


def test_experience_has_the_prompt_that_shows_the_answer(tmp_path: Path) -> None:
    plain = spec_with()
    shown = DistillationSpec(privileged=PrivilegedSpec(template="{prompt}? {answer}!"))
    algorithm = plain.algorithm.model_copy(update={"distillation": shown})
    receipts, _ = collect(tmp_path, plain.model_copy(update={"algorithm": algorithm}))
    table = load_table(tmp_path, [ShardRef(receipt.folder, receipt.manifest_sha256) for receipt in receipts])
    rows = table.to_pylist()
    assert rows
    for row in rows:
        assert bytes(row["teacher_prompt_tokens"]).decode() == f"{row['prompt']}? a!"
        assert bytes(row["prompt_tokens"]).decode() == row["prompt"]
