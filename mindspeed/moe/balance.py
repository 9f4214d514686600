"""The router's own losses where Megatron divides gradients by the number of tokens.

With ``calculate_per_token_loss`` the gradients of a global batch are summed and then divided by its
tokens. A loss that is a mean over tokens must enter that sum times the tokens that it is a mean of.
Megatron takes those of this rank alone, although the mean is over all ranks that share the sequence
(tensor-parallel ones with sequence parallelism, context-parallel ones): the weight of these losses
then falls with the number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from megatron.core.transformer.moe.moe_utils import (
    MoEAuxLossAutoScaler,
    save_to_aux_losses_tracker,
)
from torch import Tensor

if TYPE_CHECKING:
    from megatron.core.transformer.moe.router import TopKRouter


def tokens_of_all_ranks(router: TopKRouter, tokens_here: int | Tensor) -> int | Tensor:
    """Tokens of the sequences that this rank has a part of, all parts being equal."""
    return tokens_here * router.tp_cp_group.size()


def apply_z_loss(router: TopKRouter, logits: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """The same logits ``[tokens, experts]``; in training the z loss (arXiv:2202.08906) hangs on.

    Args:
        padding_mask: ``[tokens]``, True for a token that does not count.
    """
    coefficient = router.config.moe_z_loss_coeff
    if coefficient is None or not router.training or not torch.is_grad_enabled():
        return logits
    squares = logits.logsumexp(dim=-1).square()
    if padding_mask is not None:
        squares = squares.masked_select(~padding_mask)
    mean = squares.sum() / max(1, squares.numel()) / router.tp_cp_group.size()
    save_to_aux_losses_tracker(
        "z_loss",
        mean,
        router.layer_number,
        router.config.num_layers + (router.config.mtp_num_layers or 0),
        reduce_group=router.tp_cp_group,
    )
    loss = squares.sum() if router.calculate_per_token_loss else mean
    return MoEAuxLossAutoScaler.apply(logits, coefficient * loss)
