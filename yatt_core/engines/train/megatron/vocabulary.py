"""Log-probabilities and entropies from logits whose vocabulary is split over tensor-parallel ranks.

Consumes each rank's columns; produces the same numbers on every one of these ranks. A rank has all columns of a row only
where whole distributions are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from yatt_core.engines.train.model.head_values import EntropyUse
from yatt_core.engines.train.model.truncation import EXCLUDED, excluded
from yatt_core.wire.support import Support


@dataclass(frozen=True, slots=True)
class VocabularyShare:
    """The tokens whose columns a rank has: the same number on each rank; columns beyond the vocabulary are padding."""

    rank: int
    ranks: int
    vocabulary: int

    def measures(
        self, logits: torch.Tensor, targets: torch.Tensor, entropy: EntropyUse, support: Support | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the targets' log-probabilities, [T], and the entropies of their distributions, [T] or empty.

        logits: [T, own columns].
        targets: [T].
        support: the tokens over which probabilities are renormalised; None for the whole vocabulary.

        Gradients flow to the rank's own columns; entropies have gradients only if `entropy` is `loss`.
        """
        from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region as added_up

        columns = logits.shape[1]
        start = self.rank * columns
        outside = torch.arange(start, start + columns, device=logits.device) >= self.vocabulary
        if support is not None:
            outside = outside | excluded(support, columns, logits.device, start)
        if support is not None or start + columns > self.vocabulary:
            logits = logits.masked_fill(outside, EXCLUDED)
        largest = self._largest(logits)
        shifted = logits - largest[:, None]
        exponentials = shifted.exp()
        total = added_up(exponentials.sum(-1))
        own = (targets >= start) & (targets < start + columns)
        place = torch.where(own, targets - start, 0)
        chosen = shifted.gather(-1, place[:, None]).squeeze(-1)
        log_probs = added_up(torch.where(own, chosen, 0.0)) - total.log()
        if entropy == "none":
            return log_probs, log_probs.new_zeros(0)
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy == "loss"):
            # H = log Z - sum(p * z). Dividing by Z after the sum over ranks gives each rank the whole gradient of Z.
            weighted = added_up((exponentials * shifted.masked_fill(outside, 0.0)).sum(-1))
            return log_probs, total.log() - weighted / total

    def distribution(self, logits: torch.Tensor, support: Support | None) -> torch.Tensor:
        """Returns the log-distributions over the whole vocabulary, [T, vocabulary], on every rank.

        logits: [T, own columns]; a gradient flows to the rank's own columns.
        support: as in `measures`.
        """
        from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

        whole = gather_from_tensor_model_parallel_region(logits)[:, : self.vocabulary]
        if support is not None:
            whole = whole.masked_fill(excluded(support, self.vocabulary, whole.device), EXCLUDED)
        return torch.log_softmax(whole, dim=-1)

    def _largest(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns each row's maximum over all ranks, [T], without gradients."""
        from megatron.core import parallel_state

        largest = logits.detach().max(-1).values
        if self.ranks > 1:
            group = parallel_state.get_tensor_model_parallel_group()
            torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)
        return largest
