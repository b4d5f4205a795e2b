"""The rows of a decoding loop: prompts enter, each row draws a token a step, and the gaps of ended rows are closed.

Consumes a runner of a model, and the prompts that a loop lets in; fills in responses. Which prompts enter, and when, the loops
decide (`decoding`, `crowd`). In float32 a response's bits depend neither on its batch nor on when it entered, because each
row's computation is laid out by the row alone:

- a row's keys are at its own positions
- a prompt is padded to a length that is a function of its own length
- masked slots after a row's own fill whole vectors; if queries share their keys, many slots are processed in
  pieces (`split_attention`)
- no matrix has fewer than four rows, below which another kernel adds in another order
- the last row is always a filler, since values at the end of a tensor that do not fill a whole vector go
  through scalar code, whose exponential rounds differently
- a response that another engine has begun is read token by token, as it was drawn, though many tokens at a time
  (`Runner.reread`)

A runner that is not `batch_invariant` gets no fillers.

On a GPU the newest tokens stay there for up to `STEPS_ON_GPU` steps, so that the host neither waits for each token nor keeps
the GPU waiting. A response that ends in between is cut afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.engines.noise import uniforms
from yatt_core.engines.rollout.torch.runner import DecodedRows, Indices, Room, Runner
from yatt_core.engines.rollout.torch.sampling import draw, greedy, penalised, support_of, truncated
from yatt_core.engines.rollout.torch.sizes import PREFILL_TOKENS, padded_length, rows_for
from yatt_core.errors import NumericError
from yatt_core.protocols.generation import (
    FINISHED_LENGTH,
    FINISHED_STOP,
    GenerateRequest,
    GenerateResult,
    Int32,
    support_fields,
)
from yatt_core.wire.ragged import offsets_of
from yatt_core.wire.support import Support

STEPS_ON_GPU = 8
"""Maximum number of steps on a GPU before the host reads their tokens."""
ENTRY_SHARE = 8
"""Waiting prompts enter when 1/8 of the rows is free, since a prefill of few rows costs as much as one of many."""


@dataclass(slots=True)
class Responses:
    """Generated tokens and log-probabilities by number of the response, [responses, max_new_tokens].

    support: by response, the supports of its tokens so far, if the request asks for them.
    """

    tokens: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    lengths: npt.NDArray[np.int32]
    finish: npt.NDArray[np.int8]
    support: list[list[Support]]

    @classmethod
    def empty(cls, count: int, length: int) -> Responses:
        """Returns responses without tokens."""
        return cls(
            tokens=np.zeros((count, length), np.int32),
            log_probs=np.zeros((count, length), np.float32),
            lengths=np.zeros(count, np.int32),
            finish=np.full(count, FINISHED_LENGTH, np.int8),
            support=[[] for _ in range(count)],
        )

    def take(self, numbers: Indices) -> Responses:
        """Returns copies of some responses."""
        support = [list(self.support[number]) for number in numbers.tolist()]
        return Responses(
            tokens=self.tokens[numbers],
            log_probs=self.log_probs[numbers],
            lengths=self.lengths[numbers],
            finish=self.finish[numbers],
            support=support,
        )

    def begin(self, number: int, begun: GenerateResult | None, row: int) -> Int32:
        """Gives a response what another engine has drawn of it, and forgets what its number stood for before.

        row: of the response, in `begun`.

        Returns its tokens so far.
        """
        self.lengths[number] = 0
        self.finish[number] = FINISHED_LENGTH
        self.support[number] = []
        if begun is None:
            return np.zeros(0, np.int32)
        start, stop = offsets_of(begun.lengths)[row : row + 2].tolist()
        count = stop - start
        self.tokens[number, :count] = begun.tokens[start:stop]
        self.log_probs[number, :count] = begun.log_probs[start:stop]
        self.lengths[number] = count
        if begun.support is not None:
            self.support[number] = [begun.support.at(slice(start, stop))]
        return self.tokens[number, :count]

    def result(self, request: GenerateRequest, seconds: float) -> GenerateResult:
        """Returns the responses, concatenated. request: says whether they have supports, and the version of the weights."""
        written = np.arange(self.tokens.shape[1]) < self.lengths[:, None]
        support = Support.joined([one for row in self.support for one in row]) if request.record_support else None
        return GenerateResult(
            tokens=self.tokens[written],
            log_probs=self.log_probs[written],
            lengths=self.lengths,
            finish=self.finish,
            weight_version=request.weight_version,
            seconds=seconds,
            **support_fields(support),
        )


class _Drawn(NamedTuple):
    """The draw of one step: tokens [n] int64 and log-probabilities [n] float32 on the runner's device, supports on the host.

    support: None unless the request asks for it.
    """

    tokens: torch.Tensor
    log_probs: torch.Tensor
    support: Support | None = None


class DecodingRows:
    """Rows in progress.

    Rows [0, alive) are responses, followed by fillers; prompts [0, places) have rows.

    sampling: a request, of whose settings of sampling all requests that enter are, but for the minimum of new tokens.
    responses: what is filled in; a row's response has a number in it.
    steps: number of steps so far.
    """

    def __init__(self, runner: Runner, sampling: GenerateRequest, responses: Responses, room: Room) -> None:
        self.runner = runner
        self.responses = responses
        self.room = room
        self._sampling = sampling
        self._seen: torch.Tensor | None = None
        count, length = responses.tokens.shape
        # By response: length of its prompt, limit, minimum, tokens drawn before the request, number within its group, noise by
        # token.
        self._contexts, self._limits, self._minima, self._drawn, self._samples = (
            np.zeros(count, np.int64) for _ in range(5)
        )
        self._noise = np.zeros((count, length))
        self.alive = self.places = self.steps = 0
        # By row: the response, its newest token, its number of tokens, and its prompt's place.
        self.origin, self._tokens, self._counts, self._place = (np.zeros(room.rows, np.int64) for _ in range(4))
        self._rows_at = np.zeros(room.prompts, np.int64)

    def begin(self) -> None:
        """Lays out the runner's memory; before the first prompt enters."""
        self.runner.begin(self.room)

    def enter(self, request: GenerateRequest, members: Indices, numbers: Indices) -> Indices:
        """Runs some prompts and draws the first token of each response that has none; returns the responses that have ended.

        members: the prompts' indices in the request.
        numbers: [members, samples], the numbers that their responses get.
        """
        count, samples = numbers.shape
        places = self.places + np.arange(count)
        rows = self.alive + np.arange(count * samples)
        self.origin[rows] = numbers.reshape(-1)
        self._place[rows] = np.repeat(places, samples)
        self._rows_at[places] = samples
        begun = self._begin(request, members, numbers)
        self._counts[rows] = [len(tokens) for tokens in begun]
        logits = self._prefill(request, members, places, rows.reshape(count, samples))
        self._notice(request=request, members=members, numbers=numbers, begun=begun, logits=logits)
        self.places = self.places + count
        self.alive = self.alive + len(rows)
        for row, tokens in zip(rows.tolist(), begun, strict=True):
            if len(tokens):
                before = int(self._contexts[self.origin[row]])
                self.runner.reread(tokens[:-1].astype(np.int64), row, int(self._place[row]), before)
                self._tokens[row] = tokens[-1]
        fresh: Indices = rows[self._counts[rows] == 0]
        if not len(fresh):
            return fresh
        of_row = np.resize(self._place[fresh] - places[0], rows_for(len(fresh), self.runner.batch_invariant))
        drawn = self._draw(logits[torch.from_numpy(of_row).to(logits.device)], self.origin[fresh], self._counts[fresh])
        return self._record([drawn], fresh)

    def advance(self) -> Indices:
        """Decodes one or several tokens of each row in progress; returns the responses that ended."""
        rows = np.arange(self.alive)
        origin = self.origin[rows]
        counts = self._counts[rows]
        steps = 1
        if self.runner.device.type != "cpu":
            # No row goes beyond its limit, for which there is no room.
            steps = min(STEPS_ON_GPU, int((self._limits[origin] - counts).min()))
        drawn = [self._draw(self.runner.step(self._rows()), origin, counts)]
        for step in range(1, steps):
            logits = self.runner.step(self._rows(step, drawn[-1].tokens))
            drawn.append(self._draw(logits, origin, counts + step))
        self.steps += steps
        return self._record(drawn, rows)

    def leave(self, finished: Indices) -> None:
        """Moves the last rows to the places of ones that leave, and prompts to the places of prompts without rows.

        finished: the rows that leave.
        """
        gone = np.zeros(self.alive, np.bool_)
        gone[finished] = True
        np.subtract.at(self._rows_at, self._place[finished], 1)
        staying = self.alive - len(finished)
        holes = np.flatnonzero(gone[:staying])
        movers = staying + np.flatnonzero(~gone[staying:])
        if len(holes):
            self.runner.move_rows(movers, holes, self._rows())
            for array in (self.origin, self._tokens, self._counts, self._place):
                array[holes] = array[movers]
        self.alive = staying
        for place in np.flatnonzero(self._rows_at[: self.places] == 0)[::-1]:
            self._close(int(place))

    def _close(self, place: int) -> None:
        """Moves the last prompt to the place of one without rows."""
        last = self.places - 1
        if place != last:
            self.runner.move_prompt(last, place)
            self._place[: self.alive][self._place[: self.alive] == last] = place
            self._rows_at[place] = self._rows_at[last]
        self.places = last

    def _begin(self, request: GenerateRequest, members: Indices, numbers: Indices) -> list[Int32]:
        """Takes down what is asked of responses; returns the tokens that each of them has."""
        samples = numbers.shape[1]
        of_prompt = np.repeat(members, samples)
        flat = numbers.reshape(-1)
        limits = request.prompt_limits[of_prompt]
        drawn = np.zeros(len(flat), np.int64) if request.drawn is None else request.drawn[of_prompt].astype(np.int64)
        self._contexts[flat] = [len(request.prompts[member]) for member in of_prompt.tolist()]
        self._limits[flat] = limits
        self._minima[flat] = request.min_new_tokens
        self._drawn[flat] = drawn
        self._samples[flat] = np.tile(np.arange(samples), len(members))
        seeds = request.seeds[members].reshape(-1)
        if not request.greedy:
            noise = uniforms(seeds, int((drawn + limits).max()))
            for number, row, before, limit in zip(flat, noise, drawn.tolist(), limits.tolist(), strict=True):
                self._noise[number, :limit] = row[before : before + limit]
        places = np.repeat(members * samples, samples) + self._samples[flat]
        return [
            self.responses.begin(number, request.begun, row)
            for number, row in zip(flat.tolist(), places.tolist(), strict=True)
        ]

    def _prefill(self, request: GenerateRequest, members: Indices, places: Indices, rows: Indices) -> torch.Tensor:
        """Runs prompts, grouped by padded length; returns the logits after each, [members, vocabulary]."""
        padded = np.array([padded_length(len(request.prompts[member])) for member in members.tolist()], np.int64)
        logits: torch.Tensor | None = None
        for length in np.unique(padded):
            alike = np.flatnonzero(padded == length)
            chunk = max(1, PREFILL_TOKENS // int(length))
            for start in range(0, len(alike), chunk):
                part = alike[start : start + chunk]
                last = self.runner.prefill(request, members[part], places[part], list(rows[part]))
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
        count = rows_for(self.alive, self.runner.batch_invariant)
        alive = np.arange(count) < self.alive
        origin = self.origin[:count]
        written = np.where(alive, self._counts[:count] - 1 + step, 0)
        if tokens is None:
            tokens = torch.from_numpy(np.where(alive, self._tokens[:count], 0)).to(self.runner.device)
        return DecodedRows(
            tokens=tokens,
            positions=np.where(alive, self._contexts[origin] + written, 0),
            written=written,
            prompts=np.where(alive, self._place[:count], 0),
            samples=np.where(alive, self._samples[origin], 0),
            alive=self.alive,
        )

    def _record(self, drawn: Sequence[_Drawn], rows: Indices) -> Indices:
        """Records the tokens of some steps of these rows and removes finished rows; returns the responses that ended."""
        origin = self.origin[rows]
        ended = np.zeros(len(rows), np.bool_)
        for one, (tokens, log_probs) in zip(drawn, _on_host(drawn, len(rows)), strict=True):
            going = np.flatnonzero(~ended)
            if one.support is not None:
                for number, place in zip(origin[going].tolist(), going.tolist(), strict=True):
                    self.responses.support[number].append(one.support.at(slice(place, place + 1)))
            ended[going] = self._record_step(rows[going], tokens[going], log_probs[going])
        if ended.any():
            self.leave(rows[ended])
        return np.sort(origin[ended])

    def _record_step(self, rows: Indices, tokens: Indices, log_probs: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Records one token for each of these rows; returns which of their responses it ends."""
        if not np.isfinite(log_probs).all():
            raise NumericError(
                f"the model produces logits that are not finite (weights of version {self._sampling.weight_version})"
            )
        origin = self.origin[rows]
        counts = self._counts[rows]
        self._tokens[rows] = tokens
        self._counts[rows] = counts + 1
        self.responses.tokens[origin, counts] = tokens
        self.responses.log_probs[origin, counts] = log_probs
        self.responses.lengths[origin] = counts + 1
        stopped = np.isin(tokens, self._sampling.stop_tokens)
        self.responses.finish[origin[stopped]] = FINISHED_STOP
        ended: npt.NDArray[np.bool_] = stopped | (counts + 1 >= self._limits[origin])
        return ended

    def _draw(self, logits: torch.Tensor, origin: Indices, counts: Indices) -> _Drawn:
        """Draws a token for each row before the fillers, whose draws mean nothing.

        logits: [rows and fillers, vocabulary].
        """
        request = self._sampling
        if request.greedy:
            return _Drawn(*greedy(logits))
        noise = np.zeros(len(logits))
        noise[: len(origin)] = self._noise[origin, counts]
        shaped = self._shaped(logits, origin, counts)
        scaled = shaped if request.temperature == 1.0 else shaped.float() / request.temperature
        scaled = truncated(scaled, request.top_p, request.top_k, request.min_p)
        support = support_of(scaled[: len(origin)]) if request.record_support else None
        drawn = _Drawn(*draw(scaled, torch.from_numpy(noise).to(logits.device)), support)
        if self._seen is not None:
            self._seen[torch.from_numpy(origin).to(logits.device), drawn.tokens[: len(origin)]] = True
        return drawn

    def _shaped(self, logits: torch.Tensor, origin: Indices, counts: Indices) -> torch.Tensor:
        """Returns the logits without stop tokens that come too early, and after the repetition penalty.

        A row's logits depend on its own tokens alone.
        """
        request = self._sampling
        early = np.flatnonzero(self._drawn[origin] + counts < self._minima[origin])
        if self._seen is None and not len(early):
            return logits
        shaped = logits.to(torch.float32, copy=True)
        if len(early) and request.stop_tokens:
            stops = torch.tensor(request.stop_tokens, device=logits.device)
            shaped[torch.from_numpy(early).to(logits.device)[:, None], stops] = -torch.inf
        if self._seen is not None:
            rows = shaped[: len(origin)]
            seen = self._seen[torch.from_numpy(origin).to(logits.device)]
            shaped[: len(origin)] = penalised(rows, seen, request.repetition_penalty)
        return shaped

    def _notice(
        self,
        request: GenerateRequest,
        members: Indices,
        numbers: Indices,
        begun: Sequence[Int32],
        logits: torch.Tensor,
    ) -> None:
        """Takes down which tokens occur in the prompt of each response, and in what is drawn of it, for the penalty.

        logits: of any rows; they tell the vocabulary and the device.
        """
        if request.repetition_penalty == 1.0 or request.greedy:
            return
        if self._seen is None:
            shape = (len(self._limits), logits.shape[1])
            self._seen = torch.zeros(shape, dtype=torch.bool, device=logits.device)
        of_prompt = np.repeat(members, numbers.shape[1]).tolist()
        for number, member, drawn in zip(numbers.reshape(-1).tolist(), of_prompt, begun, strict=True):
            tokens = np.concatenate([request.prompts[member], drawn]).astype(np.int64)
            self._seen[number] = False
            self._seen[number, torch.from_numpy(tokens).to(logits.device)] = True


def _on_host(drawn: Sequence[_Drawn], count: int) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Returns tokens and log-probabilities of each step for the first rows, in one transfer from a GPU."""
    if drawn[0].tokens.device.type == "cpu":
        return [(each.tokens[:count].numpy(), each.log_probs[:count].numpy()) for each in drawn]
    # Both are exact in float64.
    pairs = torch.stack(
        [torch.stack([each.tokens[:count].double(), each.log_probs[:count].double()]) for each in drawn]
    )
    return [(tokens.astype(np.int64), log_probs.astype(np.float32)) for tokens, log_probs in pairs.cpu().numpy()]
