"""How much longer do responses with tools take if every turn of a decode batch ends at a barrier?

A small model of random weights draws the same responses in two ways, in turn, on one torch engine with continuous batching in
threads of its own: with a barrier behind each turn of a decode batch, or each response for itself. Half of the turns call a tool
that sleeps (`search`). Collector, engine and tool process are the product's own; Prefect and Ray take no part.

    barriers_over_joined  seconds of a collection with barriers over those without, median over pairs; the samples are equal
    seconds_barriers, seconds_joined  medians
    tool_calls, turn_tokens_max_over_mean  what was drawn
"""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import safetensors.numpy
import torch

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.local_runs import StreamWithoutJudges
from yatt_core.collection.collector import Collector
from yatt_core.collection.open_shards import OpenBatch
from yatt_core.dispatch.stream import Arrival, VerdictArrival, nothing
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.experience.batch import load_table
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.keys import WorkKey
from yatt_core.prompts.call_syntaxes import CALL, CALL_END
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.prompt_codec import PromptCodec
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.protocols.engines import RolloutEngine
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest
from yatt_core.protocols.pieces import hold_back
from yatt_core.protocols.receipts import ShardReceipt, ShardRef, ShardTask
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import load_spec
from yatt_core.tools.toolbox import Toolbox

SPEC = Path(__file__).parents[2] / "configs" / "tools.yaml"
WAYS = {
    "barriers": "rollout.engine={kind: torch, instances: 1}",
    "joined": "rollout.engine={kind: torch, instances: 1, continuous: true, max_num_seqs: 64}",
}
"""The engine of the spec, by which the collector chooses the way. What draws in both is the second one."""
COMMON = (
    "model.max_positions=1024",
    "sft=null",
    "data.prompts_per_iteration=16",
    "rollout.samples_per_prompt=8",
    "rollout.batch_samples=32",
    "rollout.max_new_tokens=240",
    "rollout.temperature=1.0",
    'rollout.tools.functions=[{"name": "search", "function": "benchmarks.tool_turns.search:search"}]',
    "rollout.tools.max_turns=4",
    "rollout.tools.parallel_calls=16",
)
MEAN_TOKENS = 40
"""Mean length of a turn, which ends at each token with equal chances."""
PAIRS = 5
THREADS = 128
LOOK_SECONDS = 0.01


class CallingCodec(PromptCodec):
    """A codec that ends a turn at any of many tokens and reads half of the turns as calls; the policy has learnt nothing."""

    def end_at(self, tokens: Sequence[int]) -> None:
        """Takes the tokens that end a turn."""
        self._stop_tokens = tuple(tokens)

    def decode(self, tokens: Any) -> str:
        """Returns a call with the turn's tokens, or the text of them."""
        if tokens[0] % 2:
            return (
                f'{CALL}{{"name": "search", "arguments": {{"expression": "{" ".join(map(str, tokens))}"}}}}{CALL_END}'
            )
        return super().decode(tokens)


class ThreadStream(StreamWithoutJudges):
    """Decode batches that an engine answers together, each call in a thread of its own; `close` waits for the threads."""

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(THREADS)
        self._came: queue.SimpleQueue[tuple[int, OpenBatch, GeneratePiece | BaseException]] = queue.SimpleQueue()
        self._left: dict[int, int] = {}
        self._submitted = 0

    def submit(self, tag: OpenBatch, request: GenerateRequest, ahead: bool = False) -> int:
        """Requests a decode batch; returns its number."""
        self._submitted += 1
        self._left[self._submitted] = request.seeds.size
        call = self._threads.submit(self._answer, self._submitted, tag, request)
        call.add_done_callback(partial(self._hear_error, self._submitted, tag))
        return self._submitted

    def _answer(self, number: int, tag: OpenBatch, request: GenerateRequest) -> None:
        for piece in hold_back(self._engine.stream(request)):
            self._came.put((number, tag, piece))

    def _hear_error(self, number: int, tag: OpenBatch, call: Future[None]) -> None:
        """Hands on the error of a call, so that who waits for its answers gets it."""
        error = None if call.cancelled() else call.exception()
        if error is not None:
            self._came.put((number, tag, error))

    def close(self) -> None:
        """Ends the threads; calls that have not begun are never made."""
        self._threads.shutdown(cancel_futures=True)

    def arrivals(
        self, beside: Callable[[], bool] = nothing
    ) -> Iterator[Arrival[OpenBatch] | VerdictArrival[OpenBatch] | None]:
        """Yields the answers."""
        while self._left or beside():
            try:
                number, tag, piece = self._came.get(timeout=LOOK_SECONDS if beside() else None)
            except queue.Empty:
                yield None
                continue
            if isinstance(piece, BaseException):
                raise piece
            self._left[number] -= len(piece.rows)
            if not self._left[number]:
                del self._left[number]
            yield Arrival(number, tag, piece, complete=number not in self._left)


class Bench:
    """Inputs and an engine in a folder. changes: of the spec, as for `--set`."""

    def __init__(self, folder: Path, changes: Sequence[str] = ()) -> None:
        self._folder = folder
        self._specs = {way: load_spec(SPEC, [*COMMON, *changes, engine]) for way, engine in WAYS.items()}
        spec = self._specs["joined"]
        model = materialise(spec, folder).model_path
        self._inputs = Inputs.open(folder / INPUTS, spec)
        self._codec = open_codec(spec, model)
        self._codec.__class__ = CallingCodec
        assert isinstance(self._codec, CallingCodec)
        weights = safetensors.numpy.load_file(Path(model) / "model.safetensors")
        vocabulary = len(weights["model.embed_tokens.weight"])
        self._codec.end_at(range(0, vocabulary, MEAN_TOKENS))
        self._engine = build_rollout_engine(spec, model, folder / INPUTS)
        self._engine.update_weights(weights, 0)

    def collect(self, way: str, number: int) -> tuple[float, ShardReceipt]:
        """Draws an iteration's responses as one shard; returns the seconds and the receipt."""
        spec = self._specs[way]
        references, _ = draw(spec.data, spec.seed, Cursor.start(spec.data), spec.data.prompts_per_iteration)
        task = ShardTask(WorkKey(run="run", branch=0, iteration=1, phase="collect"), 1, tuple(references), 0)
        folder = self._folder / f"{way}-{number}"
        with closing(Toolbox(spec.rollout.tools)) as toolbox:
            warm_up(toolbox)
            collector = Collector(
                spec=spec,
                run_folder=folder,
                inputs=self._inputs,
                codec=self._codec,
                scorer=RewardScorer(spec.rewards, folder),
                toolbox=toolbox,
            )
            started = time.perf_counter()
            with closing(ThreadStream(self._engine)) as stream:
                (receipt,) = collector.collect([task], stream)
                return time.perf_counter() - started, receipt

    def turns(self, way: str, number: int, receipt: ShardReceipt) -> list[int]:
        """Returns the tokens of each turn of the policy."""
        table = load_table(self._folder / f"{way}-{number}", [ShardRef(receipt.folder, receipt.manifest_sha256)])
        masks = ("".join("01"[each] for each in mask) for mask in table["loss_mask"].to_pylist())
        return [len(turn) for mask in masks for turn in mask.split("0") if turn]


def warm_up(toolbox: Toolbox) -> None:
    """Starts the tool process."""
    list(toolbox.answer({0: ToolCall("search", {"expression": ""})}))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = argument_parser(__doc__).parse_args(arguments)
    torch.set_num_threads(1)
    before = load_average()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place))
        for number in range(PAIRS):
            receipts = {}
            for way in list(WAYS) if number % 2 else list(WAYS)[::-1]:
                took, receipts[way] = bench.collect(way, number)
                seconds[way].append(took)
                progress(f"{way}: {took:.2f} s")
            if receipts["barriers"].group_digests != receipts["joined"].group_digests:
                raise ValueError("the two ways drew different samples")
        lengths = bench.turns("joined", 0, receipts["joined"])
    ratios = [one / other for one, other in zip(seconds["barriers"], seconds["joined"], strict=True)]
    report = Report(
        name="benchmarks.tool_turns",
        figures={
            "barriers_over_joined": median(ratios),
            "seconds_barriers": median(seconds["barriers"]),
            "seconds_joined": median(seconds["joined"]),
            "tool_calls": receipts["joined"].sums["tool_calls"],
            "turn_tokens_max_over_mean": max(lengths) * len(lengths) / sum(lengths),
        },
        seeds=[0],
        load=[before, load_average()],
        details=seconds,
    )
    print_report(report, options.json)


if __name__ == "__main__":
    main()
