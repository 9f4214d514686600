"""The requested change of type, and a watch for values that are no numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mindspeed.errors import UserError
from mindspeed_llm.models.mapping import Mapping


class Caster:
    """Casts in one step and watches for values that the new type cannot hold.

    Args:
        dtype: the wanted type; None keeps each tensor's own.

    Attributes:
        not_finite: names of the tensors with NaN or infinite values met so far.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.dtype = dtype
        self.not_finite: set[str] = set()

    def of(self, entry: Mapping) -> Caster:
        """The change for one entry: none where the weight map keeps fp32 for precision."""
        if not entry.keep_fp32:
            return self
        kept = Caster(None)
        kept.not_finite = self.not_finite
        return kept

    def target(self, stored: torch.dtype) -> torch.dtype:
        """The type that a tensor of type ``stored`` gets."""
        return self.dtype or stored

    def __call__(self, name: str, rows: Sequence[Tensor]) -> list[Tensor]:
        """The rows of a tensor in the wanted type.

        Raises:
            UserError: if finite values would become infinite.
        """
        return [self._cast(name, part) for part in rows]

    def _cast(self, name: str, tensor: Tensor) -> Tensor:
        bad = count_not_finite(tensor)
        if bad:
            self.not_finite.add(name)
        if self.dtype is None or tensor.dtype == self.dtype:
            return tensor
        cast = tensor.to(self.dtype)
        overflow = count_not_finite(cast) - bad
        if overflow:
            largest = tensor[tensor.isfinite()].abs().max().item()
            raise UserError(
                f"{name}: {overflow:,} values do not fit into {self.dtype} (largest {largest:g}, "
                f"limit {torch.finfo(self.dtype).max:g}); nothing was written. Use "
                "--params-dtype bf16, or leave the flag out to keep the stored type"
            )
        return cast


def count_not_finite(tensor: Tensor) -> int:
    """Number of NaN and infinite values, in one cheap pass when there are none."""
    # A sum is finite only if every term is. It may itself overflow, so then a count decides. In
    # the tensor's own type it is several times faster (PyTorch adds in fp32 inside).
    if tensor.sum().isfinite():
        return 0
    return int((~tensor.isfinite()).sum())
