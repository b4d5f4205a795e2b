"""A head that works in chunks is widened once for all of them, in every train engine that computes through float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.engines.train.support import make_spec, random_task, update
from tests.needs import NEEDS_MEGATRON
from yatt_core.bfloat16 import choice
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.train.model import chunk_sizes
from yatt_core.engines.train.ranks.process_group import close_process_group
from yatt_core.protocols.engines import RankContext

VOCABULARY, WIDTH, ROWS = 2048, 16, 8
ENGINES: list[Any] = [
    pytest.param({"kind": "torch", "ranks": 1, "kernels": "general"}, id="torch"),
    pytest.param({"kind": "torch", "ranks": 1}, id="dense"),
    pytest.param({"kind": "fsdp2", "ranks": 1}, id="fsdp2"),
    pytest.param({"kind": "megatron", "data_parallel_size": 1}, id="megatron", marks=NEEDS_MEGATRON),
]


CASTS = (torch.ops.aten.to, torch.ops.aten._to_copy)


class Widenings(TorchDispatchMode):
    """Counts how often a matrix becomes float32; enter it before anything else."""

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__()
        self._matrix = matrix.bfloat16()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        widens = func.overloadpacket in CASTS and made.dtype == torch.float32
        if widens and args[0].dtype == torch.bfloat16 and args[0].dim() == 2:
            self.count += any(torch.equal(given, self._matrix) for given in (args[0], args[0].t()))
        return made


@pytest.fixture
def no_group() -> Iterator[None]:
    yield
    close_process_group()


def widenings(engine_spec: dict[str, Any], folder: Path, model: Path, head: torch.Tensor) -> int:
    """Returns how often preparing and making the first update widen the head."""
    spec = make_spec(exact=False, trainer={"engine": engine_spec | {"dtype": "bfloat16"}})
    engine: Any = build_train_engine(spec, RankContext(folder, folder / "inputs", str(model), 0))
    engine.connect(0, 1, "")
    engine.initialise()
    with Widenings(head) as seen:
        update(engine, random_task(folder, 1, vocabulary=VOCABULARY))
    return seen.count


@pytest.mark.parametrize("engine_spec", ENGINES)
def test_a_head_is_widened_as_often_for_many_chunks_as_for_one(
    engine_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_group: None
) -> None:
    monkeypatch.setattr(choice, "way_of_processor", lambda: "widened")
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=1, tie_word_embeddings=False, **sizes)
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(tmp_path / "model")
    head = model.lm_head.weight.detach()
    one = widenings(engine_spec, tmp_path / "one", tmp_path / "model", head)
    monkeypatch.setattr(chunk_sizes, "CHUNK_LOGITS", 1)
    monkeypatch.setattr(chunk_sizes, "FEWEST", ROWS)
    assert widenings(engine_spec, tmp_path / "many", tmp_path / "model", head) == one > 0
