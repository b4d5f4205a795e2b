"""PPO with a critic straight from the formulas on plain transformers models, one sequence at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tests.engines.train.plain import plain_log_probs
from yatt_core.experience.batch import ExperienceBatch

DISCOUNT = 0.9
DECAY = 0.8
CLIP = 0.2
VALUE_CLIP = 0.02
EPSILON = 1e-4
Arrays = dict[str, np.ndarray[Any, Any]]


class PlainPpo:
    """A policy and a critic, each with its own AdamW and clipped at a gradient norm of 1."""

    def __init__(self, folder: Path, rate: float, critic_rate: float, temperature: float) -> None:
        self.policy, critic = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for _ in "ab")
        self.layers = critic.model
        self.head = nn.Linear(critic.config.hidden_size, 1, bias=False)
        nn.init.zeros_(self.head.weight)
        self.values = [*self.layers.parameters(), *self.head.parameters()]
        adamw: dict[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-4, "weight_decay": 0.05}
        self.adamw = torch.optim.AdamW(self.policy.parameters(), rate, **adamw)
        self.value_adamw = torch.optim.AdamW(self.values, critic_rate, **adamw)
        self.temperature = temperature

    def update(self, batch: ExperienceBatch, epochs: int) -> tuple[float, list[float]]:
        """Updates both models; returns the value loss of the last step and the policy's gradient norm at each step."""
        masks = [torch.tensor(mask) for mask in np.split(batch.loss_mask, batch.response_offsets[1:-1])]
        with torch.no_grad():
            old = self._log_probs(batch, masks)
            known = self._values(batch, masks)
        found = [self._advantages(float(r), v.tolist()) for r, v in zip(batch.rewards, known, strict=True)]
        returns = [torch.tensor(a) + v for a, v in zip(found, known, strict=True)]
        flat = np.concatenate([np.array(advantages) for advantages in found])
        flat = (flat - flat.mean()) / (flat.std(ddof=1) + EPSILON)
        advantages = torch.tensor(flat, dtype=torch.float32)
        target = torch.cat(returns)
        before = torch.cat(old)
        was = torch.cat(known)
        norms = []
        for _ in range(epochs):
            ratio = (torch.cat(self._log_probs(batch, masks)) - before).exp()
            loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
            value = torch.cat(self._values(batch, masks))
            bounded = was + (value - was).clamp(-VALUE_CLIP, VALUE_CLIP)
            value_loss = torch.maximum((value - target) ** 2, (bounded - target) ** 2).mean() / 2
            norms.append(self._step(loss, self.adamw, list(self.policy.parameters())))
            self._step(value_loss, self.value_adamw, self.values)
        return float(value_loss.detach()), norms

    def weights(self) -> tuple[Arrays, Arrays]:
        """Returns the weights of the policy and of the critic."""
        policy = dict(self.policy.named_parameters())
        critic = {f"model.{name}": parameter for name, parameter in self.layers.named_parameters()}
        found = [policy, {**critic, "lm_head.weight": self.head.weight}]
        one, other = ({name: tensor.detach().numpy() for name, tensor in part.items()} for part in found)
        return one, other

    def _step(self, loss: torch.Tensor, adamw: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> float:
        adamw.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adamw.step()
        return float(norm)

    def _log_probs(self, batch: ExperienceBatch, masks: list[torch.Tensor]) -> list[torch.Tensor]:
        return [plain_log_probs(self.policy, batch, i, self.temperature)[mask] for i, mask in enumerate(masks)]

    def _values(self, batch: ExperienceBatch, masks: list[torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for index, mask in enumerate(masks):
            prompt = batch.prompt_tokens[batch.prompt_offsets[index] : batch.prompt_offsets[index + 1]]
            response = batch.response_tokens[batch.response_offsets[index] : batch.response_offsets[index + 1]]
            tokens = torch.tensor([[*prompt.tolist(), *response.tolist()]])
            states = self.layers(input_ids=tokens).last_hidden_state[0, len(prompt) - 1 : -1]
            found.append(self.head(states)[mask, 0])
        return found

    def _advantages(self, reward: float, values: list[float]) -> list[float]:
        """Returns the advantages of a response's counted tokens, the last of which gets the reward."""
        found = [0.0] * len(values)
        following = 0.0
        after = 0.0
        for t in reversed(range(len(values))):
            delta = (reward if t == len(values) - 1 else 0.0) + DISCOUNT * after - values[t]
            following = found[t] = delta + DISCOUNT * DECAY * following
            after = values[t]
        return found
