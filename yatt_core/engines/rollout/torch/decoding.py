"""The decoding loop: prefills a prompt once per group, fills free rows with waiting prompts, samples by seeded noise.

Consumes a runner of a model and a `GenerateRequest`; produces a `GenerateResult`. In float32 a response's
bits do not depend on its batch, because each row's computation is laid out by the row alone:

- a row's keys are at its own positions
- a prompt is padded to a length that is a function of its own length
- masked slots after a row's own fill whole vectors; if queries share their keys, many slots are processed in
  pieces (`split_attention`)
- no matrix has fewer than four rows, below which another kernel adds in another order
- the last row is always a filler, since values at the end of a tensor that do not fill a whole vector go
  through scalar code, whose exponential rounds differently

A runner that is not `batch_invariant` gets no fillers.

On a GPU the newest tokens stay there for up to `STEPS_ON_GPU` steps, so that the host neither waits for each token nor keeps
the GPU waiting. A response that ends in between is cut afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.engines.noise import uniforms
from yatt_core.engines.rollout.torch.runner import DecodedRows, Indices, Room, Runner
from yatt_core.engines.rollout.torch.sampling import draw, greedy, penalised, support_of, truncated
from yatt_core.engines.rollout.torch.sizes import PREFILL_TOKENS, padded_length, rows_for
from yatt_core.errors import DataError, NumericError
from yatt_core.progress import advanced
from yatt_core.protocols.generation import (
    FINISHED_LENGTH,
    FINISHED_STOP,
    GeneratePiece,
    GenerateRequest,
    GenerateResult,
    support_fields,
)
from yatt_core.wire.support import Support

STEPS_ON_GPU = 8
"""Maximum number of steps on a GPU before the host reads their tokens."""
ENTRY_SHARE = 8
"""Waiting prompts enter when 1/8 of the rows is free, since a prefill of few rows costs as much as one of many."""


def decode(runner: Runner, request: GenerateRequest, max_num_seqs: int | None = None) -> GenerateResult:
    """Answers every prompt of the request with the current weights.

    max_num_seqs: maximum number of responses in progress; the others wait. All responses to one prompt are
        always in progress together, even if there are more.

    Raises `DataError` for an empty prompt and for images that do not match their prompts or cannot be read,
    `NumericError` if the model produces logits that are not finite, `ConfigurationError` if this loop does
    not support the model's attention.
    """
    started = time.perf_counter()
    responses = _Responses.empty(request.seeds.size, request.max_new_tokens)
    for _ in _finished_rows(runner, request, responses, max_num_seqs):
        pass
    return _result(responses, request, time.perf_counter() - started)


def decode_pieces(
    runner: Runner, request: GenerateRequest, max_num_seqs: int | None = None
) -> Iterator[GeneratePiece | None]:
    """Yields the responses of `decode`, each as soon as it has ended; None after a step in which none ended.

    Raises as `decode` does.
    """
    started = time.perf_counter()
    responses = _Responses.empty(request.seeds.size, request.max_new_tokens)
    for rows in _finished_rows(runner, request, responses, max_num_seqs):
        if not len(rows):
            yield None
            continue
        finished = time.perf_counter()
        yield GeneratePiece(tuple(rows.tolist()), _result(responses.take(rows), request, finished - started))
        started = finished


@torch.inference_mode()
def _finished_rows(
    runner: Runner, request: GenerateRequest, responses: _Responses, max_num_seqs: int | None
) -> Iterator[Indices]:
    """Fills in the responses; after each step, yields those that ended in it."""
    if any(len(prompt) == 0 for prompt in request.prompts):
        raise DataError(f"prompt {[len(p) for p in request.prompts].index(0)} of the decode batch has no tokens")
    if request.seeds.size == 0:
        return
    decoder = _Decoder(runner, request, responses, max_num_seqs)
    runner.check(decoder.room.longest)
    with runner.generating():
        yield from decoder.run()


@dataclass(slots=True)
class _Responses:
    """Generated tokens and log-probabilities by row of the result, [rows, max_new_tokens].

    support: by row, the support of each of its tokens so far, if the request asks for it.
    """

    tokens: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    lengths: npt.NDArray[np.int32]
    finish: npt.NDArray[np.int8]
    support: list[list[Support]]

    @classmethod
    def empty(cls, rows: int, length: int) -> _Responses:
        return cls(
            tokens=np.zeros((rows, length), np.int32),
            log_probs=np.zeros((rows, length), np.float32),
            lengths=np.zeros(rows, np.int32),
            finish=np.full(rows, FINISHED_LENGTH, np.int8),
            support=[[] for _ in range(rows)],
        )

    def take(self, rows: Indices) -> _Responses:
        """Returns copies of some rows."""
        support = [self.support[row] for row in rows.tolist()]
        return _Responses(
            tokens=self.tokens[rows],
            log_probs=self.log_probs[rows],
            lengths=self.lengths[rows],
            finish=self.finish[rows],
            support=support,
        )


class _Drawn(NamedTuple):
    """The draw of one step: tokens [n] int64 and log-probabilities [n] float32 on the runner's device, supports on the host.

    support: None unless the request asks for it.
    """

    tokens: torch.Tensor
    log_probs: torch.Tensor
    support: Support | None = None


class _Decoder:
    """One decode batch.

    Rows [0, alive) are responses in progress, followed by fillers; prompts [0, places) have rows.
    """

    def __init__(
        self, runner: Runner, request: GenerateRequest, responses: _Responses, max_num_seqs: int | None
    ) -> None:
        self.runner = runner
        self.request = request
        self.responses = responses
        prompts, self.samples = request.seeds.shape
        self.lengths = np.array([len(prompt) for prompt in request.prompts], np.int64)
        self.limits = request.prompt_limits
        drawn = np.zeros(prompts, np.int64) if request.drawn is None else request.drawn.astype(np.int64)
        self.drawn = np.repeat(drawn, self.samples)
        self.noise = uniforms(request.seeds.reshape(-1), request.max_new_tokens + int(drawn.max()))
        under_way = prompts if max_num_seqs is None else min(prompts, max(1, max_num_seqs // self.samples))
        self.room = Room(
            rows=self._with_fillers(under_way * self.samples),
            prompts=under_way,
            samples=self.samples,
            prompt_tokens=int(self.lengths.max()),
            new_tokens=request.max_new_tokens,
            longest=int((self.lengths + self.limits).max()),
        )
        self.seen: torch.Tensor | None = None
        self.entered = self.alive = self.places = 0
        # By row: the response, its newest token, its number of tokens, and its prompt's place.
        self.origin, self.tokens, self.counts, self.place = (np.zeros(self.room.rows, np.int64) for _ in range(4))
        self.rows_at = np.zeros(under_way, np.int64)

    def run(self) -> Iterator[Indices]:
        """Decodes; after each step, yields the responses that ended in it, if any."""
        self.runner.begin(self.room)
        while self.entered < len(self.lengths) or self.alive:
            advanced()
            if count := self._entering():
                yield self._enter(count)
            if self.alive:
                yield self._advance()

    def _advance(self) -> Indices:
        """Decodes one or several tokens of each row in progress; returns the responses that ended."""
        rows = np.arange(self.alive)
        origin = self.origin[rows]
        counts = self.counts[rows]
        steps = 1
        if self.runner.device.type != "cpu":
            # No row goes beyond its limit, for which there is no room.
            steps = min(STEPS_ON_GPU, int((self.limits[origin // self.samples] - counts).min()))
        drawn = [self._draw(self.runner.step(self._rows()), origin, counts)]
        for step in range(1, steps):
            logits = self.runner.step(self._rows(step, drawn[-1].tokens))
            drawn.append(self._draw(logits, origin, counts + step))
        return self._record(drawn, rows)

    def _with_fillers(self, alive: int) -> int:
        return rows_for(alive, self.runner.batch_invariant)

    def _entering(self) -> int:
        """Returns the number of prompts that enter now."""
        waiting = len(self.lengths) - self.entered
        free = self.room.prompts - self.places
        free = min(free, self.room.prompts - -(-self.alive // self.samples))
        enough = min(waiting, -(-self.room.prompts // ENTRY_SHARE))
        return min(waiting, free) if free >= enough else 0

    def _enter(self, count: int) -> Indices:
        """Runs the next prompts and draws the first token of each response; returns the responses that have ended."""
        members = np.arange(self.entered, self.entered + count)
        places = self.places + np.arange(count)
        rows = self.alive + np.arange(count * self.samples)
        self.origin[rows] = self.entered * self.samples + np.arange(len(rows))
        self.place[rows] = np.repeat(places, self.samples)
        self.counts[rows] = 0
        self.rows_at[places] = self.samples
        logits = self._prefill(members, places, rows.reshape(count, self.samples))
        self.entered = self.entered + count
        self.places = self.places + count
        self.alive = self.alive + len(rows)
        of_row = np.resize(np.repeat(np.arange(count), self.samples), self._with_fillers(len(rows)))
        drawn = self._draw(logits[torch.from_numpy(of_row).to(logits.device)], self.origin[rows], self.counts[rows])
        return self._record([drawn], rows)

    def _prefill(self, members: Indices, places: Indices, rows: Indices) -> torch.Tensor:
        """Runs prompts, grouped by padded length; returns the logits after each, [members, vocabulary]."""
        padded = np.array([padded_length(int(length)) for length in self.lengths[members]], np.int64)
        logits: torch.Tensor | None = None
        for length in np.unique(padded):
            alike = np.flatnonzero(padded == length)
            chunk = max(1, PREFILL_TOKENS // int(length))
            for start in range(0, len(alike), chunk):
                part = alike[start : start + chunk]
                last = self.runner.prefill(self.request, members[part], places[part], list(rows[part]))
                if logits is None:
                    logits = last.new_empty((len(members), last.shape[1]))
                logits[torch.from_numpy(part).to(last.device)] = last
        assert logits is not None
        return logits

    def _rows(self, step: int = 0, tokens: torch.Tensor | None = None) -> DecodedRows:
        """Returns the rows in progress and the fillers, each of which decodes token 0 at position 0.

        step: number of tokens per row that were drawn since the last ones that the host knows.
        tokens: the newest of these, of the rows and the fillers.
        """
        count = self._with_fillers(self.alive)
        alive = np.arange(count) < self.alive
        origin = self.origin[:count]
        written = np.where(alive, self.counts[:count] - 1 + step, 0)
        if tokens is None:
            tokens = torch.from_numpy(np.where(alive, self.tokens[:count], 0)).to(self.runner.device)
        return DecodedRows(
            tokens=tokens,
            positions=np.where(alive, self.lengths[origin // self.samples] + written, 0),
            written=written,
            prompts=np.where(alive, self.place[:count], 0),
            samples=np.where(alive, origin % self.samples, 0),
            alive=self.alive,
        )

    def _record(self, drawn: Sequence[_Drawn], rows: Indices) -> Indices:
        """Records the tokens of some steps of these rows and removes finished rows; returns the responses that ended."""
        origin = self.origin[rows]
        ended = np.zeros(len(rows), np.bool_)
        for one, (tokens, log_probs) in zip(drawn, _on_host(drawn, len(rows)), strict=True):
            going = np.flatnonzero(~ended)
            if one.support is not None:
                for row, place in zip(origin[going].tolist(), going.tolist(), strict=True):
                    self.responses.support[row].append(one.support.at(slice(place, place + 1)))
            ended[going] = self._record_step(rows[going], tokens[going], log_probs[going])
        if ended.any():
            self._leave(rows[ended])
        return np.sort(origin[ended])

    def _record_step(self, rows: Indices, tokens: Indices, log_probs: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Records one token for each of these rows; returns which of their responses it ends."""
        if not np.isfinite(log_probs).all():
            raise NumericError(
                f"the model produces logits that are not finite (weights of version {self.request.weight_version})"
            )
        origin = self.origin[rows]
        counts = self.counts[rows]
        self.tokens[rows] = tokens
        self.counts[rows] = counts + 1
        self.responses.tokens[origin, counts] = tokens
        self.responses.log_probs[origin, counts] = log_probs
        self.responses.lengths[origin] = counts + 1
        stopped = np.isin(tokens, self.request.stop_tokens)
        self.responses.finish[origin[stopped]] = FINISHED_STOP
        ended: npt.NDArray[np.bool_] = stopped | (counts + 1 >= self.limits[origin // self.samples])
        return ended

    def _draw(self, logits: torch.Tensor, origin: Indices, counts: Indices) -> _Drawn:
        """Draws a token for each row before the fillers, whose draws mean nothing.

        logits: [rows and fillers, vocabulary].
        """
        request = self.request
        if request.greedy:
            return _Drawn(*greedy(logits))
        noise = np.zeros(len(logits))
        noise[: len(origin)] = self.noise[origin, self.drawn[origin] + counts]
        shaped = self._shaped(logits, origin, counts)
        scaled = shaped if request.temperature == 1.0 else shaped.float() / request.temperature
        scaled = truncated(scaled, request.top_p, request.top_k, request.min_p)
        support = support_of(scaled[: len(origin)]) if request.record_support else None
        drawn = _Drawn(*draw(scaled, torch.from_numpy(noise).to(logits.device)), support)
        if self.seen is not None:
            self.seen[torch.from_numpy(origin).to(logits.device), drawn.tokens[: len(origin)]] = True
        return drawn

    def _shaped(self, logits: torch.Tensor, origin: Indices, counts: Indices) -> torch.Tensor:
        """Returns the logits without stop tokens that come too early, and after the repetition penalty.

        A row's logits depend on its own tokens alone.
        """
        request = self.request
        early = np.flatnonzero(self.drawn[origin] + counts < request.min_new_tokens)
        if request.repetition_penalty == 1.0 and not len(early):
            return logits
        shaped = logits.to(torch.float32, copy=True)
        if len(early) and request.stop_tokens:
            stops = torch.tensor(request.stop_tokens, device=logits.device)
            shaped[torch.from_numpy(early).to(logits.device)[:, None], stops] = -torch.inf
        if request.repetition_penalty != 1.0:
            if self.seen is None:
                self.seen = self._prompt_tokens(logits)
            rows = shaped[: len(origin)]
            seen = self.seen[torch.from_numpy(origin).to(logits.device)]
            shaped[: len(origin)] = penalised(rows, seen, request.repetition_penalty)
        return shaped

    def _prompt_tokens(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns which tokens occur in the prompt of each response: [responses, vocabulary]."""
        seen = torch.zeros((self.request.seeds.size, logits.shape[1]), dtype=torch.bool, device=logits.device)
        for number, prompt in enumerate(self.request.prompts):
            tokens = torch.from_numpy(prompt.astype(np.int64)).to(logits.device)
            seen[number * self.samples : (number + 1) * self.samples, tokens] = True
        return seen

    def _leave(self, finished: Indices) -> None:
        """Moves the last rows to the places of finished ones, and prompts to the places of prompts without rows."""
        gone = np.zeros(self.alive, np.bool_)
        gone[finished] = True
        np.subtract.at(self.rows_at, self.place[finished], 1)
        staying = self.alive - len(finished)
        holes = np.flatnonzero(gone[:staying])
        movers = staying + np.flatnonzero(~gone[staying:])
        if len(holes):
            self.runner.move_rows(movers, holes, self._rows())
            for array in (self.origin, self.tokens, self.counts, self.place):
                array[holes] = array[movers]
        self.alive = staying
        for place in np.flatnonzero(self.rows_at[: self.places] == 0)[::-1]:
            self._close(int(place))

    def _close(self, place: int) -> None:
        """Moves the last prompt to the place of one without rows."""
        last = self.places - 1
        if place != last:
            self.runner.move_prompt(last, place)
            self.place[: self.alive][self.place[: self.alive] == last] = place
            self.rows_at[place] = self.rows_at[last]
        self.places = last


def _on_host(drawn: Sequence[_Drawn], count: int) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Returns tokens and log-probabilities of each step for the first rows, in one transfer from a GPU."""
    if drawn[0].tokens.device.type == "cpu":
        return [(each.tokens[:count].numpy(), each.log_probs[:count].numpy()) for each in drawn]
    # Both are exact in float64.
    pairs = torch.stack(
        [torch.stack([each.tokens[:count].double(), each.log_probs[:count].double()]) for each in drawn]
    )
    return [(tokens.astype(np.int64), log_probs.astype(np.float32)) for tokens, log_probs in pairs.cpu().numpy()]


def _result(responses: _Responses, request: GenerateRequest, seconds: float) -> GenerateResult:
    """Concatenates the responses."""
    written = np.arange(responses.tokens.shape[1]) < responses.lengths[:, None]
    support = Support.joined([one for row in responses.support for one in row]) if request.record_support else None
    return GenerateResult(
        tokens=responses.tokens[written],
        log_probs=responses.log_probs[written],
        lengths=responses.lengths,
        finish=responses.finish,
        weight_version=request.weight_version,
        seconds=seconds,
        **support_fields(support),
    )
