"""The losses of Direct Preference Optimization, on log probabilities of whole answers.

sigmoid: Rafailov et al., 2023 (arXiv 2305.18290), with conservative label smoothing; hinge: SLiC-HF
(arXiv 2305.10425); ipo: Azar et al., 2023 (arXiv 2310.12036), on means over an answer's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Answers:
    """Log probabilities of the chosen and the rejected answers of a micro-batch.

    Attributes:
        chosen, rejected: sums over the trained tokens, fp32 ``[pairs]``.
        chosen_tokens, rejected_tokens: their numbers, fp32 ``[pairs]``.
    """

    chosen: Tensor
    rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor

    @classmethod
    def of(cls, losses: Tensor, mask: Tensor) -> Answers:
        """Of per-token losses ``[2 pairs, s]``, first the rows of the chosen answers."""
        mask = mask.float()
        chosen, rejected = (-(losses.float() * mask).sum(dim=1)).chunk(2)
        return cls(chosen, rejected, *mask.sum(dim=1).chunk(2))

    def means(self) -> tuple[Tensor, Tensor]:
        """Means over an answer's tokens, ``[pairs]`` each."""
        return (
            self.chosen / self.chosen_tokens.clamp(min=1),
            self.rejected / self.rejected_tokens.clamp(min=1),
        )


@dataclass(frozen=True)
class PreferenceLoss:
    """``--dpo-loss-type``, ``--dpo-beta``, ``--dpo-label-smoothing`` and ``--pref-ftx``."""

    kind: str = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    chosen_weight: float = 0.0

    def __call__(self, policy: Answers, reference: Answers) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses ``[pairs]``, and what is logged of each pair."""
        if self.kind == "ipo":
            ours, theirs = policy.means(), reference.means()
        else:
            ours = policy.chosen, policy.rejected
            theirs = reference.chosen, reference.rejected
        chosen, rejected = ours[0] - theirs[0], ours[1] - theirs[1]
        losses = self._of_margin(chosen - rejected)
        if self.chosen_weight:
            losses = losses - self.chosen_weight * policy.means()[0]
        rewards = self.beta * chosen.detach(), self.beta * rejected.detach()
        return losses, {
            "rewards/chosen": rewards[0],
            "rewards/rejected": rewards[1],
            "rewards/margins": rewards[0] - rewards[1],
            "rewards/accuracies": (rewards[0] > rewards[1]).float(),
            "logps/chosen": ours[0].detach(),
            "logps/rejected": ours[1].detach(),
        }

    def _of_margin(self, margin: Tensor) -> Tensor:
        if self.kind == "hinge":
            return torch.relu(1 - self.beta * margin)
        if self.kind == "ipo":
            return (margin - 1 / (2 * self.beta)) ** 2
        scaled, smoothing = self.beta * margin, self.label_smoothing
        return -F.logsigmoid(scaled) * (1 - smoothing) - F.logsigmoid(-scaled) * smoothing
