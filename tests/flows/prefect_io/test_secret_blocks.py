"""Which Prefect blocks a run's actors need: those of all endpoints of all judges, each read once."""

from __future__ import annotations

import pytest

from flows.prefect_io import secret_blocks
from tests.spec.trees import spec


def test_the_keys_of_fallbacks_are_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def read(name: str) -> str:
        asked.append(name)
        return f"value of {name}"

    monkeypatch.setattr(secret_blocks, "read_block", read)
    part = {
        "kind": "endpoint", "name": "judge", "url": "https://a.example/v1", "model": "m", "template": "{response}",
        "credential": {"prefect_block": "one"},
        "fallbacks": [
            {"url": "https://b.example/v1", "credential": {"prefect_block": "two"}},
            {"url": "https://c.example/v1", "credential": {"prefect_block": "one"}},
            {"url": "https://d.example/v1", "credential": {"env": "KEY"}},
        ],
    }  # fmt: skip
    rule = {"name": "exact", "function": "exact_match", "weight": 0.0}
    made = spec(rewards__parts=[rule, part], exact=False)
    assert secret_blocks.blocks_of(made) == {"one": "value of one", "two": "value of two"}
    assert asked == ["one", "two"]
