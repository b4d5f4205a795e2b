"""A collector in this process: virtual engine, no Ray, tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from tests.spec.trees import spec
from yatt_core.collection.collector import Collector
from yatt_core.dispatch.stream import Arrival, VerdictArrival, nothing
from yatt_core.engines.virtual.rollout import VirtualRolloutEngine
from yatt_core.judges.registry import build_judge
from yatt_core.keys import WorkKey
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.stream import Prompt
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.protocols.judges import JudgeItem, JudgeRequest
from yatt_core.protocols.receipts import PromptRef, ShardReceipt, ShardTask
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import NoStore, RunStore
from yatt_core.tools.toolbox import Toolbox

PROMPTS = 4
"""Prompts per iteration."""


def tool(name: str, function: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "function": function or f"tests.tools.functions:{name}", **more}


def spec_with(*tools: dict[str, Any], **changes: Any) -> RunSpec:
    """Returns a spec in which over half of the turns call a tool; two samples per prompt, two prompts per batch."""
    settings = {
        "seed": 4,
        "rollout__engine__kind": "virtual",
        "trainer__engine__kind": "virtual",
        "rollout__engine__clock_factor": 1e9,
        "rollout__engine__median_tokens": 4.0,
        "rollout__engine__tool_call_fraction": 0.5,
        "rollout__samples_per_prompt": 2,
        "rollout__batch_samples": 4,
        "rollout__max_new_tokens": 24,
        "rewards__parts__0__function": "virtual_score",
        "data__prompts_per_iteration": PROMPTS,
        **changes,
    }
    if tools:
        settings["rollout__tools"] = {"functions": list(tools), "max_turns": 3, "max_result_tokens": 64}
    return spec(**settings)


class LocalStream:
    """A stream whose decode batches a local virtual engine answers serially, by response; judges answer immediately.

    asked: all requests, in order.
    judged: all items sent to judges, with the part.
    notes: progress reported to the dispatcher.
    """

    peak_bytes = 0

    def __init__(self, made: RunSpec) -> None:
        engine: Any = made.rollout.engine
        self._engine = VirtualRolloutEngine(engine, made.seed)
        self._engine.update_weights({"state": np.zeros(4, np.uint8)}, 0)
        self._queue: list[tuple[int, Any, GenerateRequest]] = []
        self._ahead: set[int] = set()
        self._questions: list[tuple[Any, str, JudgeRequest]] = []
        self._judges = {part.name: build_judge(part, None) for part in made.rewards.judges}
        self.asked: list[GenerateRequest] = []
        self.judged: list[tuple[str, JudgeItem]] = []
        self.notes: dict[tuple[str, str], tuple[int, int]] = {}

    def submit(self, tag: Any, request: GenerateRequest, ahead: bool = False) -> int:
        """As in a run, what goes ahead goes behind what was put ahead before."""
        self.asked.append(request)
        number = len(self.asked)
        place = len(self._queue)
        if ahead:
            place = sum(1 for other, _, _ in self._queue if other in self._ahead)
            self._ahead.add(number)
        self._queue.insert(place, (number, tag, request))
        return number

    def submit_judging(self, tag: Any, part: str, request: JudgeRequest) -> None:
        self._questions.append((tag, part, request))
        self.judged += [(part, item) for item in request.items]

    def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        self.notes[wave, part] = (rolled, judged)

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Any] | VerdictArrival[Any] | None]:
        yield from self._verdicts()
        while self._queue or beside():
            if not self._queue:
                yield None
                continue
            number, tag, request = self._queue.pop(0)
            missing = set(range(request.seeds.size))
            for piece in self._engine.stream(request):
                missing.difference_update(piece.rows)
                yield Arrival(number, tag, piece, complete=not missing)
                yield from self._verdicts()

    def _verdicts(self) -> Iterator[VerdictArrival[Any]]:
        while self._questions:
            tag, part, request = self._questions.pop(0)
            for verdicts in self._judges[part].judge(request):
                yield VerdictArrival(tag, part, verdicts)


class FewPrompts:
    """Generated prompts.

    with_images: every other prompt has an image.
    """

    def __init__(self, with_images: bool = False) -> None:
        self._with_images = with_images

    def prompt(self, reference: PromptRef) -> Prompt:
        number = reference.position
        media = (f"{number:064x}",) if self._with_images and number % 2 else ()
        return Prompt(0, number, f"p{number}", f"question {number}", "a", {}, media)


def collect(
    folder: Path,
    made: RunSpec,
    term: int = 1,
    shards: int = 2,
    toolbox: Toolbox | None = None,
    stream: LocalStream | None = None,
    scorer: RewardScorer | None = None,
    store: RunStore | None = None,
) -> tuple[Sequence[ShardReceipt], LocalStream]:
    """Produces the missing shards of iteration 1.

    toolbox: an open toolbox to use instead of a new one.
    """
    stream = stream or LocalStream(made)
    per_shard = PROMPTS // shards
    tasks = [
        ShardTask(
            WorkKey("run", 0, 1, "collect", 0, shard),
            term,
            tuple(PromptRef(n, 0, n) for n in range(shard * per_shard, (shard + 1) * per_shard)),
            0,
        )
        for shard in range(shards)
    ]
    with closing(Toolbox(made.rollout.tools)) as own:
        prompts = FewPrompts(made.data.has_images)
        codec = open_codec(made, "")
        scorer = scorer or RewardScorer(made.rewards)
        collector = Collector(made, folder, prompts, codec, scorer, toolbox or own, store or NoStore())
        receipts = list(collector.collect(tasks, stream))
    return sorted(receipts, key=lambda receipt: receipt.key.shard), stream


def digests(receipts: Sequence[ShardReceipt]) -> bytes:
    return b"".join(receipt.group_digests for receipt in receipts)
