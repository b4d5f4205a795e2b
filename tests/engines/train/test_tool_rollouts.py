"""Rollouts with a calculator on torch engines: SFT, collecting, preparing and learning, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.train.support import prepare, weights_of
from yatt_core.collection.collector import Collector
from yatt_core.dispatch.stream import Arrival, nothing
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.engines.train.roles.sft import encode_demonstrations
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.experience.batch import load_batch, load_table
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.reader import Inputs
from yatt_core.keys import WorkKey
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.prompt_codec import PromptCodec
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.protocols.engines import RankContext, RolloutEngine
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest
from yatt_core.protocols.receipts import BatchTask, ShardReceipt, ShardRef, ShardTask
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.sections.rollout import TorchRollout
from yatt_core.tools.toolbox import Toolbox

SPEC = Path(__file__).parents[2] / "specs" / "calculator.yaml"
CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "3*4"}}</tool_call>'


class EngineStream:
    """Decode batches answered one after another by an engine in this process."""

    peak_bytes = 0

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self._queue: list[tuple[Any, GenerateRequest]] = []

    def submit(self, tag: Any, request: GenerateRequest, ahead: bool = False) -> int:
        self._queue.append((tag, request))
        return 0

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Any]]:
        while self._queue:
            tag, request = self._queue.pop(0)
            piece = GeneratePiece(tuple(range(request.seeds.size)), self._engine.generate(request))
            yield Arrival(0, tag, piece, complete=True)


class SharedStream(EngineStream):
    """Decode batches that an engine with continuous batching answers together.

    most: the most of them that it has worked on at once.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        super().__init__(engine)
        self._submitted = 0
        self.most = 0

    def submit(self, tag: Any, request: GenerateRequest, ahead: bool = False) -> int:
        self._queue.append(((self._submitted, tag), request))
        self._submitted += 1
        return self._submitted - 1

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Any] | None]:
        going: dict[int, tuple[Any, int, Iterator[GeneratePiece | None]]] = {}
        while going or self._queue or beside():
            for (number, tag), request in self._queue:
                going[number] = (tag, request.seeds.size, self._engine.stream(request))
            self._queue.clear()
            self.most = max(self.most, len(going))
            for number, (tag, left, pieces) in list(going.items()):
                piece = next(pieces, None)
                if piece is not None:
                    going[number] = (tag, left - len(piece.rows), pieces)
                    if left == len(piece.rows):
                        del going[number]
                    yield Arrival(number, tag, piece, complete=number not in going)
            yield None


class Bench:
    """A run's inputs and engines after SFT."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        self.spec = load_spec(SPEC)
        self.receipt = materialise(self.spec, folder)
        self.inputs = Inputs.open(folder / self.receipt.folder, self.spec)
        self.codec = open_codec(self.spec, self.receipt.model_path)
        context = RankContext(folder, folder / self.receipt.folder, self.receipt.model_path, 0)
        self.trainer = TorchTrainEngine(self.spec, context)
        self.trainer.connect(0, 1, "")
        self.trainer.initialise()
        self.trainer.sft()
        self.engine = build_rollout_engine(self.spec, self.receipt.model_path, folder / self.receipt.folder)
        self.engine.update_weights(weights_of(self.trainer), 0)

    def collect(self, spec: RunSpec, codec: Any, run: str, stream: EngineStream | None = None) -> ShardReceipt:
        """Collects all of iteration 1 as one shard."""
        refs, _ = draw(spec.data, spec.seed, Cursor.start(spec.data), spec.data.prompts_per_iteration)
        task = ShardTask(WorkKey("r", 0, 1, "collect"), 1, refs, 0)
        with closing(Toolbox(spec.rollout.tools)) as toolbox:
            collector = Collector(spec, self.folder / run, self.inputs, codec, RewardScorer(spec.rewards), toolbox)
            (receipt,) = collector.collect([task], stream or EngineStream(self.engine))
        return receipt


class CallingCodec(PromptCodec):
    """A codec that reads every first turn as a call, since the policy has hardly learned to write one."""

    def decode(self, tokens: Any) -> str:
        return CALL if tokens[0] % 2 else super().decode(tokens)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def test_demonstrations_count_only_the_policys_tokens(bench: Bench) -> None:
    (first, *_) = prompts = bench.inputs.demonstrations(2)
    encoded = encode_demonstrations(prompts, bench.codec, several_turns=True)
    stop = encoded.response_offsets[1]
    tokens = encoded.response_tokens[:stop]
    mask = encoded.loss_mask[:stop]
    assert first.answer is not None
    call, _, rest = first.answer.partition("<tool_result>")
    result, _, answer = rest.partition("</tool_result>")
    ends = np.flatnonzero(tokens == bench.codec.stop_tokens[0])
    assert bench.codec.decode(tokens[: ends[0] + 1]) == call
    assert bench.codec.decode(tokens[~mask]) == result == answer
    assert bench.codec.decode(tokens[mask][ends[0] + 1 :]) == answer
    assert len(tokens) < 24, "the syntax of a call takes few tokens"


def test_an_iteration_from_warm_up_to_update(bench: Bench) -> None:
    """The trainer's log-probabilities agree with the sampler's over all turns, since both saw the same contexts."""
    codec = bench.codec
    assert isinstance(codec, PromptCodec)
    codec.__class__ = CallingCodec
    receipt = bench.collect(bench.spec, codec, ".")
    shard = ShardRef(receipt.folder, receipt.manifest_sha256)
    rows = load_table(bench.folder, [shard]).to_pylist()
    several = [row for row in rows if row["turns"] > 1]
    assert several and receipt.sums["tool_calls"] == sum(row["turns"] - 1 for row in rows)
    assert all(sum(row["loss_mask"]) <= bench.spec.rollout.max_new_tokens for row in rows)
    assert any(row["response"].startswith(f"{CALL}<tool_result>12</tool_result>") for row in several)
    task = BatchTask(WorkKey("r", 0, 1, "learn"), 1, (shard,))
    update = bench.trainer.learn(task, prepare(bench.trainer, task))
    assert 0 < update.metrics["train_rollout_logprob_diff_max"] < 1e-4
    assert update.metrics["tokens"] == np.count_nonzero(load_batch(bench.folder, [shard]).loss_mask)


def test_turns_that_join_what_is_decoded_have_the_bits_of_planned_ones(bench: Bench) -> None:
    bench.codec.__class__ = CallingCodec

    def spec_with(**changes: object) -> RunSpec:
        rollout = bench.spec.rollout.model_copy(update={"samples_per_prompt": 8, **changes})
        return bench.spec.model_copy(update={"rollout": rollout})

    planned = bench.collect(spec_with(), bench.codec, "planned")
    spec = spec_with(engine=TorchRollout(instances=1, continuous=True, max_num_seqs=12))
    engine = build_rollout_engine(spec, bench.receipt.model_path, bench.folder / bench.receipt.folder)
    engine.update_weights(weights_of(bench.trainer), 0)
    stream = SharedStream(engine)
    joined = bench.collect(spec, bench.codec, "joined", stream)
    assert joined.group_digests == planned.group_digests
    assert planned.sums["tool_calls"] > 4 and stream.most > 2
