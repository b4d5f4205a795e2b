"""The generative judge: asks a model through the rollout engine protocol and parses its answers.

Consumes items. Produces verdicts as the engine finishes them. With a deterministic engine, a judgement is a
function of weights, item and seed only, independent of what else is judged in the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from yatt_core.judges.codec import JudgeCodec
from yatt_core.judges.parsing import answer_parser
from yatt_core.protocols.engines import RolloutEngine
from yatt_core.protocols.generation import FINISHED_LENGTH, GeneratePiece, GenerateRequest, Int32
from yatt_core.protocols.judges import JudgeItem, Judgement, JudgeRequest, Verdict
from yatt_core.spec.rewards.judges import GenerativePart
from yatt_core.wire.ragged import offsets_of

Asked = tuple[JudgeItem, Int32]
"""An item and the tokens of its question."""


class GenerativeJudge:
    """A judge served by one engine, which holds the judge's weights."""

    def __init__(self, part: GenerativePart, engine: RolloutEngine, codec: JudgeCodec) -> None:
        self._part = part
        self._engine = engine
        self._codec = codec
        self._parse = answer_parser(part)

    @property
    def engine(self) -> RolloutEngine:
        """The engine that generates the judgements."""
        return self._engine

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Capabilities by name."""
        invariant = self._engine.capabilities.get("batch_invariant", False)
        return {"deterministic": invariant, "batch_invariant": invariant}

    def judge(self, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Yields verdicts as the engine finishes them, after those on items that cannot be asked.

        Raises what the engine raises.
        """
        asked: list[Asked] = []
        refused = []
        for item, question in zip(request.items, self._codec.encode(request.items), strict=True):
            if isinstance(question, str):
                refused.append(Verdict(item.number, (), f"data: {question}"))
            else:
                asked.append((item, question))
        if refused:
            yield tuple(refused)
        for batch in self._batches(asked):
            judgements: list[dict[int, Judgement]] = [{} for _ in batch]
            for piece in self._engine.stream(self._request(batch)):
                yield () if piece is None else tuple(self._verdicts(batch, judgements, piece))

    def sleep(self) -> None:
        """Puts the engine to sleep."""
        self._engine.sleep()

    def wake(self) -> None:
        """Wakes the engine."""
        self._engine.wake()

    def _batches(self, asked: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
        """Yields batches of items in order, each as large as the engine may judge at once, but of at least one item."""
        size = max(1, self._part.engine.max_num_seqs // self._part.judgements)
        for start in range(0, len(asked), size):
            yield asked[start : start + size]

    def _request(self, batch: Sequence[Asked]) -> GenerateRequest:
        """Returns the request for all judgements of some items in a single decode batch."""
        return GenerateRequest(
            prompts=[tokens for _, tokens in batch],
            seeds=np.array([item.seeds for item, _ in batch], dtype=np.uint64),
            max_new_tokens=self._part.max_new_tokens,
            stop_tokens=self._codec.stop_tokens,
            weight_version=self._engine.version,
            temperature=self._part.temperature or 1.0,
            greedy=self._part.temperature == 0.0,
        )

    def _verdicts(
        self, batch: Sequence[Asked], judgements: Sequence[dict[int, Judgement]], piece: GeneratePiece
    ) -> Iterator[Verdict]:
        """Records the judgements in a piece of the engine's output; yields verdicts on items that are now complete."""
        offsets = offsets_of(piece.result.lengths.astype(np.int64))
        for number, row in enumerate(piece.rows):
            place, judgement = divmod(row, self._part.judgements)
            item, question = batch[place]
            tokens = piece.result.tokens[offsets[number] : offsets[number + 1]]
            answer = self._codec.decode(tokens)
            cut = bool(piece.result.finish[number] == FINISHED_LENGTH)
            judgements[place][judgement] = Judgement(
                answer=answer,
                score=self._parse(answer, len(item.steps), cut),
                tokens=len(tokens),
                prompt_tokens=len(question),
                cut=cut,
            )
            if len(judgements[place]) == len(item.seeds):
                yield Verdict(item.number, tuple(judgements[place][n] for n in range(len(item.seeds))))
