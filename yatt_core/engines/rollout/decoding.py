"""The decoding loop: prompts prefilled once a group, a static cache, finished rows leave, seeded noise.

Consumes a module of transformers and a `GenerateRequest`; produces a `GenerateResult`. In float32 a response's bits do not
depend on its batch, because what a row computes is laid out by the row alone: its keys lie at its own positions; its prompt
is padded to a length that is a function of its own length; masked slots behind it come in whole vectors; no matrix has
fewer than four rows, below which another kernel adds in another order; and the last row is always a filler, since the end
of a tensor that fills no whole vector goes through scalar code, whose exponential rounds otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from yatt_core.engines.images import ImageReader, ShownPrompts, embed_prompts
from yatt_core.engines.noise import uniforms
from yatt_core.engines.protocol import FINISHED_LENGTH, FINISHED_STOP, GeneratePiece, GenerateRequest, GenerateResult
from yatt_core.engines.rollout.cache import SlotCache
from yatt_core.engines.rollout.sampling import greedy, sample
from yatt_core.engines.rollout.sizes import MINIMUM_ROWS, PREFILL_TOKENS, padded_length, rounded_slots, rows_for
from yatt_core.errors import ConfigurationError, DataError, NumericError

Indices = npt.NDArray[np.int64]


def decode(
    model: nn.Module, request: GenerateRequest, cache: SlotCache | None = None, reader: ImageReader | None = None
) -> GenerateResult:
    """Answers every prompt of the request with the weights as they are; works on a live training module too.

    cache: one kept from earlier batches saves its allocation. reader: of a vision-language model's images. Raises
    `DataError` for an empty prompt, for images that do not fit their prompts or cannot be read, `NumericError` when the
    model gives logits that are not finite, `ConfigurationError` when its attention cannot be decoded by this loop.
    """
    started = time.perf_counter()
    responses = _Responses.empty(request.seeds.size, request.max_new_tokens)
    for _ in _finished_prompts(model, request, cache, responses, reader):
        pass
    return _result(responses, request, time.perf_counter() - started)


def decode_pieces(
    model: nn.Module, request: GenerateRequest, cache: SlotCache | None = None, reader: ImageReader | None = None
) -> Iterator[GeneratePiece | None]:
    """The same responses, those to a prompt as soon as the last of them has ended; None after a step that ended none.

    Raises like `decode`.
    """
    started = time.perf_counter()
    responses = _Responses.empty(request.seeds.size, request.max_new_tokens)
    samples = request.seeds.shape[1]
    for prompts in _finished_prompts(model, request, cache, responses, reader):
        if not len(prompts):
            yield None
            continue
        rows = (prompts[:, None] * samples + np.arange(samples)).reshape(-1)
        finished = time.perf_counter()
        yield GeneratePiece(tuple(prompts.tolist()), _result(responses.take(rows), request, finished - started))
        started = finished


@torch.no_grad()
def _finished_prompts(
    model: nn.Module,
    request: GenerateRequest,
    cache: SlotCache | None,
    responses: _Responses,
    reader: ImageReader | None,
) -> Iterator[Indices]:
    """Fills the responses in; yields after each step the prompts whose responses have all ended in it."""
    if any(len(prompt) == 0 for prompt in request.prompts):
        raise DataError(f"prompt {[len(p) for p in request.prompts].index(0)} of the decode batch has no tokens")
    if request.seeds.size == 0:
        return
    limits = request.prompt_limits.tolist()
    longest = max(len(prompt) + limit for prompt, limit in zip(request.prompts, limits, strict=True))
    check_decodable(model, longest)
    if cache is None:
        cache = SlotCache(_config(model).num_hidden_layers)
    with _evaluating(model):
        yield from _Decoder(model, request, cache, longest, responses, reader).run()


def check_decodable(model: nn.Module, positions: int) -> None:
    """Refuses a model whose attention is not plain causal attention over so many positions."""
    config = _config(model)
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise ConfigurationError(f"the torch rollout engine cannot decode layers of type {', '.join(sorted(unknown))}")
    if window is not None and (not kinds or "sliding_attention" in kinds) and positions > window:
        raise ConfigurationError(
            f"the torch rollout engine has no sliding window: prompt and response may be {positions} tokens, the model's"
            f" window is {window}; lower data.max_prompt_tokens or rollout.max_new_tokens"
        )
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and positions > limit:
        raise ConfigurationError(
            f"prompt and response may be {positions} tokens, the model takes {limit}; lower data.max_prompt_tokens or"
            " rollout.max_new_tokens"
        )


@dataclass(slots=True)
class _Responses:
    """What has been generated, by row of the result: tokens and log-probabilities [rows, max_new_tokens]."""

    tokens: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    lengths: npt.NDArray[np.int32]
    finish: npt.NDArray[np.int8]

    @classmethod
    def empty(cls, rows: int, length: int) -> _Responses:
        return cls(
            np.zeros((rows, length), np.int32),
            np.zeros((rows, length), np.float32),
            np.zeros(rows, np.int32),
            np.full(rows, FINISHED_LENGTH, np.int8),
        )

    def take(self, rows: Indices) -> _Responses:
        """Some rows; copies."""
        return _Responses(self.tokens[rows], self.log_probs[rows], self.lengths[rows], self.finish[rows])


class _Decoder:
    """One decode batch. Rows [0, alive) of the cache are responses under way, those behind them up to `rows` fillers."""

    def __init__(
        self,
        model: nn.Module,
        request: GenerateRequest,
        cache: SlotCache,
        longest: int,
        responses: _Responses,
        reader: ImageReader | None,
    ) -> None:
        self.model, self.request, self.cache = model, request, cache
        self.responses, self.reader = responses, reader
        prompts, samples = request.seeds.shape
        self.alive = prompts * samples
        self.rows = rows_for(self.alive)
        # Fillers repeat row 0.
        self.origin = np.where(np.arange(self.rows) < self.alive, np.arange(self.rows), 0)
        self.prompt_of_row = self.origin // samples
        self.positions = np.array([len(prompt) for prompt in request.prompts], np.int64)[self.prompt_of_row]
        self.device = next(model.parameters()).device
        self.dtype = next(model.parameters()).dtype
        self.all_rows = torch.arange(self.rows, device=self.device)
        self.under_way = np.full(prompts, samples, np.int64)
        self.limits = np.repeat(request.prompt_limits, samples)
        self.noise = uniforms(request.seeds.reshape(-1), request.max_new_tokens)
        self.slot_numbers = torch.arange(rounded_slots(longest), device=self.device)
        self.visible = torch.zeros((), dtype=self.dtype, device=self.device)
        self.hidden = torch.full((), -torch.inf, dtype=self.dtype, device=self.device)
        cache.begin(self.rows, longest)

    def run(self) -> Iterator[Indices]:
        """Decodes; yields after each step the prompts that it finished, none or more."""
        logits = self._prefill()
        self.is_stop = np.zeros(logits.shape[1], np.bool_)
        self.is_stop[[token for token in self.request.stop_tokens if token < logits.shape[1]]] = True
        for step in range(self.request.max_new_tokens):
            before = self.under_way > 0
            tokens = self._take(logits, step)
            if self.alive == 0 or step + 1 == self.request.max_new_tokens:
                yield np.flatnonzero(before)
                return
            yield np.flatnonzero(before & (self.under_way == 0))
            logits = self._forward(tokens)

    def _prefill(self) -> torch.Tensor:
        """Runs every prompt once and lends its keys to its rows; returns the logits behind it, [rows, vocabulary]."""
        lengths = np.array([len(prompt) for prompt in self.request.prompts], np.int64)
        padded = np.array([padded_length(int(length)) for length in lengths], np.int64)
        logits: torch.Tensor | None = None
        for length in np.unique(padded):
            members = np.flatnonzero(padded == length)
            chunk = max(1, PREFILL_TOKENS // int(length))
            for start in range(0, len(members), chunk):
                part = members[start : start + chunk]
                last = self._prefill_part(part, lengths[part], int(length))
                if logits is None:
                    logits = last.new_empty((len(lengths), last.shape[1]))
                logits[torch.from_numpy(part).to(self.device)] = last
        assert logits is not None
        return logits[self._tensor(self.prompt_of_row)]

    def _prefill_part(self, members: Indices, lengths: Indices, padded: int) -> torch.Tensor:
        """Runs prompts of one padded length; returns the logits of each one's last token, [members, vocabulary]."""
        ids = np.zeros((len(members), padded), np.int64)
        for row, member in enumerate(members):
            ids[row, : lengths[row]] = self.request.prompts[member]
        place = np.full(len(self.request.prompts), -1, np.int64)
        place[members] = np.arange(len(members))
        rows = np.flatnonzero(place[self.prompt_of_row] >= 0)
        self.cache.prefill(self._tensor(rows), self._tensor(place[self.prompt_of_row[rows]]))
        ends, end_of_member = np.unique(lengths - 1, return_inverse=True)
        # The head, too, must have its four rows.
        ends = np.resize(ends, max(len(ends), -(-MINIMUM_ROWS // len(members))))
        logits = self.model(
            **self._prompt_inputs(members, lengths, self._tensor(ids)),
            # Padding may reach beyond the positions that the model knows.
            position_ids=torch.arange(padded, device=self.device)[None, :].clamp_(max=int(lengths.max())),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=self._tensor(ends),
        ).logits
        picked: torch.Tensor = logits[self._tensor(np.arange(len(members))), self._tensor(end_of_member)]
        return picked

    def _prompt_inputs(self, members: Indices, lengths: Indices, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the model gets of some prompts: their tokens, with images the embeddings of tokens and patches."""
        media = [self.request.media[member] if self.request.media else () for member in members]
        if self.reader is None and not any(media):
            return {"input_ids": ids}
        names = [f"prompt {member} of the decode batch" for member in members]
        questions = self.request.question_lengths
        within = lengths if questions is None else questions[members].astype(np.int64)
        shown = ShownPrompts(self._tensor(within), media, names)
        return {"inputs_embeds": embed_prompts(self.model, self.reader, ids, shown)}

    def _take(self, logits: torch.Tensor, step: int) -> npt.NDArray[np.int64]:
        """Draws one token a row, books it, and lets finished rows leave; returns the tokens of the rows that stay."""
        request, origin = self.request, self.origin
        if request.greedy:
            drawn, drawn_log_probs = greedy(logits)
        else:
            noise = self._tensor(self.noise[origin[: self.rows], step])
            drawn, drawn_log_probs = sample(logits, noise, request.temperature, request.top_p)
        tokens, log_probs = drawn.cpu().numpy(), drawn_log_probs.cpu().numpy()
        if not np.isfinite(log_probs).all():
            raise NumericError(
                f"the model gives logits that are not finite (weights of version {request.weight_version})"
            )
        alive = origin[: self.alive]
        self.responses.tokens[alive, step] = tokens[: self.alive]
        self.responses.log_probs[alive, step] = log_probs[: self.alive]
        self.responses.lengths[alive] = step + 1
        stopped = self.is_stop[tokens[: self.alive]]
        ended = stopped | (step + 1 >= self.limits[alive])
        if ended.any():
            self.responses.finish[alive[stopped]] = FINISHED_STOP
            np.subtract.at(self.under_way, alive[ended] // request.seeds.shape[1], 1)
            self._leave(ended, tokens)
        return tokens[: self.rows]

    def _leave(self, finished: npt.NDArray[np.bool_], tokens: npt.NDArray[np.int64]) -> None:
        """Lets the last rows under way take the places of finished ones, so that those under way stay in front."""
        staying = len(finished) - int(finished.sum())
        holes = np.flatnonzero(finished[:staying])
        movers = staying + np.flatnonzero(~finished[staying:])
        if len(holes):
            for array in (self.origin, self.positions, tokens):
                array[holes] = array[movers]
            slots = rounded_slots(int(self.positions[holes].max()))
            self.cache.move(self._tensor(movers), self._tensor(holes), slots)
        self.alive = staying
        self.rows = rows_for(staying)

    def _forward(self, tokens: npt.NDArray[np.int64]) -> torch.Tensor:
        """Runs one token a row; returns the logits behind it, [rows, vocabulary]."""
        positions = self._tensor(self.positions[: self.rows])
        slots = rounded_slots(int(self.positions[: self.rows].max()) + 1)
        shown = self.slot_numbers[:slots] <= positions[:, None]
        mask = torch.where(shown, self.visible, self.hidden)[:, None, None, :]
        self.cache.step(self.all_rows[: self.rows], positions, slots)
        logits: torch.Tensor = self.model(
            input_ids=self._tensor(tokens)[:, None],
            position_ids=positions[:, None],
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        # Fillers stay where they are, inside the cache.
        self.positions[: self.alive] += 1
        return logits[:, -1]

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def _config(model: nn.Module) -> Any:
    """The text model's config of a transformers module."""
    config: Any = model.config
    return config.get_text_config()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout and no activation checkpointing meanwhile."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def _result(responses: _Responses, request: GenerateRequest, seconds: float) -> GenerateResult:
    """The responses behind one another."""
    written = np.arange(responses.tokens.shape[1]) < responses.lengths[:, None]
    return GenerateResult(
        tokens=responses.tokens[written],
        log_probs=responses.log_probs[written],
        lengths=responses.lengths,
        finish=responses.finish,
        weight_version=request.weight_version,
        seconds=seconds,
    )
