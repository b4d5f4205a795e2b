"""A reward model: a sequence classifier with a single output, over prompt and response.

Consumes items. Produces verdicts of one judgement each, batch by batch. Only sequences of exactly the same
length share a batch, so that nothing is padded or masked. In float32 a batch has at least four rows, the last
one a filler (`engines.rollout.torch.sizes` explains why). A score is thus independent of what else is judged,
and equals what `transformers` computes for the text alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import torch

from yatt_core.bfloat16.choice import products_of
from yatt_core.engines.device import own_device, placed
from yatt_core.engines.offload import HeldMemory, Offloaded
from yatt_core.engines.rollout.torch.sizes import MINIMUM_ROWS
from yatt_core.errors import DataError, NumericError
from yatt_core.models.loading import load_classifier
from yatt_core.models.reward_folder import open_reward_tokenizer
from yatt_core.models.reward_text import reward_tokens
from yatt_core.prompts.control_text import control_text
from yatt_core.prompts.thoughts import marks_of_template
from yatt_core.protocols.judges import JudgeItem, Judgement, JudgeRequest, Verdict
from yatt_core.spec.rewards.judges import RewardModelPart


class RewardModelJudge:
    """A reward model that computes on one thread, or on its process's GPU if there is one.

    Raises `ConfigurationError` if the folder is not a reward model with a single output.
    """

    def __init__(self, part: RewardModelPart, model_path: str) -> None:
        # The order of additions, and so every bit, depends on the number of threads.
        torch.set_num_threads(1)
        self._part = part
        self._device = own_device()
        self._model = placed(load_classifier(model_path, part.dtype), self._device, f"the reward model {part.name!r}")
        self._away: Offloaded | None = None
        self._multiplying = products_of(getattr(torch, part.dtype), self._device).in_modules()
        self._tokenizer, self._longest = open_reward_tokenizer(part, model_path)
        self._control = control_text(self._tokenizer, marks_of_template(str(self._tokenizer.chat_template or "")))

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Capabilities by name."""
        exact = self._part.dtype == "float32" and self._device.type == "cpu"
        return {"deterministic": exact, "batch_invariant": exact}

    def judge(self, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Yields verdicts batch by batch, shortest sequences first. Raises `NumericError` for a non-finite output."""
        self.wake()
        by_length: dict[int, list[tuple[JudgeItem, list[int]]]] = defaultdict(list)
        refused = []
        for item in request.items:
            tokens = self._encode(item)
            if isinstance(tokens, str):
                refused.append(Verdict(item.number, (), f"data: {tokens}"))
            else:
                by_length[len(tokens)].append((item, tokens))
        if refused:
            yield tuple(refused)
        for length in sorted(by_length):
            rows = max(1, self._part.batch_tokens // length)
            for start in range(0, len(by_length[length]), rows):
                yield self._judged(by_length[length][start : start + rows])

    def sleep(self) -> None:
        """Moves the weights, all that it keeps in memory, from the GPU to the host if they are on a GPU."""
        if self._away is None:
            self._away = Offloaded(HeldMemory(tuple(self._model.state_dict().values())))

    def wake(self) -> None:
        """Moves the weights back to the GPU."""
        if self._away is not None:
            self._away.bring_back()
            self._away = None

    def _judged(self, batch: Sequence[tuple[JudgeItem, list[int]]]) -> tuple[Verdict, ...]:
        """Returns the verdicts on items whose sequences have the same length."""
        outputs = self._outputs([tokens for _, tokens in batch])
        return tuple(
            Verdict(item.number, (Judgement("", self._score(output), 0, len(tokens)),))
            for (item, tokens), output in zip(batch, outputs, strict=True)
        )

    @torch.inference_mode()
    def _outputs(self, sequences: Sequence[list[int]]) -> list[float]:
        """Returns the head's output for each sequence."""
        exact = self.capabilities["batch_invariant"]
        fillers = max(1, MINIMUM_ROWS - len(sequences)) if exact else 0
        ids = torch.tensor([*sequences, *[sequences[0]] * fillers], device=self._device)
        with self._multiplying:
            logits: torch.Tensor = self._model(input_ids=ids).logits
        outputs: list[float] = logits[: len(sequences), 0].float().tolist()
        if not all(map(math.isfinite, outputs)):
            raise NumericError(
                f"rewards.parts {self._part.name!r}: the reward model returns outputs that are not finite"
            )
        return outputs

    def _score(self, output: float) -> float:
        if self._part.score == "logit":
            return output
        # Uses the form that cannot overflow.
        return 1.0 / (1.0 + math.exp(-output)) if output >= 0 else math.exp(output) / (1.0 + math.exp(output))

    def _encode(self, item: JudgeItem) -> list[int] | str:
        """Returns the tokens of prompt and response, or the reason why there are none."""
        try:
            tokens = reward_tokens(
                tokenizer=self._tokenizer,
                control=self._control,
                template=self._part.template,
                prompt=item.prompt,
                messages=item.messages,
                reply=[("assistant", item.response)],
            )
        except DataError as error:
            return str(error)
        if len(tokens) > self._longest:
            return f"prompt and response have {len(tokens)} tokens; the reward model has room for {self._longest}"
        return tokens or "prompt and response have no tokens"
