"""The losses of a batch: which document is right, and what a teacher's scores say.

All are sums over queries, so that ranks can add theirs up. Scores are [queries, documents].
"""

from __future__ import annotations

from functools import reduce

import torch
from torch.nn.functional import cross_entropy, kl_div

from yatt_workloads.retrieval.settings import RetrievalSettings

EXCLUDED = -1e4


def right_document(scores: torch.Tensor, right: torch.Tensor, also: torch.Tensor) -> torch.Tensor:
    """Returns the cross-entropy of the right documents.

    right: number of each query's document, [queries]. also: True for further documents that would be right too, which do not
        count as negatives.
    """
    return cross_entropy(scores.masked_fill(also, EXCLUDED), right, reduction="sum")


def distilled(student: torch.Tensor, teacher: torch.Tensor, softening: float) -> torch.Tensor:
    """Returns the divergence KL(teacher || student) at a temperature, times its square (arXiv 1503.02531)."""
    wanted = (teacher.detach() / softening).softmax(1)
    divergence = kl_div((student / softening).log_softmax(1), wanted, reduction="sum")
    return divergence * softening**2


def in_terms_of(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """Returns a teacher's scores with each query's spread as the student has it, and with a mean of 0: a softmax sees none."""
    like = student.detach()
    standard = (teacher - teacher.mean(1, keepdim=True)) / teacher.std(1, keepdim=True).clamp_min(1e-6)
    return standard * like.std(1, keepdim=True)


def student_loss(
    settings: RetrievalSettings,
    *,
    dual: torch.Tensor | None,
    late: torch.Tensor | None,
    teacher: torch.Tensor | None,
    right: torch.Tensor,
    also: torch.Tensor,
) -> torch.Tensor:
    """Returns the loss of a student in a stage.

    dual, late: the student's scores, divided by their temperatures; None for those that the method does not train, and not for
    both. teacher: scores of the cascade's teacher, or of its control, which teach both. right, also: as for `right_document`.
    """
    losses = [right_document(scores, right, also) for scores in (dual, late) if scores is not None]
    if dual is not None and late is not None:
        losses.append(settings.late_to_dual * distilled(dual, late, settings.softening))
        if teacher is not None:
            losses.append(settings.cross_to_dual * distilled(dual, in_terms_of(teacher, dual), settings.softening))
            losses.append(settings.cross_to_late * distilled(late, in_terms_of(teacher, late), settings.softening))
    return reduce(torch.add, losses)
