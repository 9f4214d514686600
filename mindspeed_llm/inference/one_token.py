"""A decoding step of one token of one row on a CPU, in the fewest operators.

At one token a layer is four products of a matrix with a vector, which take as long as the weights
take to come from memory, and some small operators, whose every call costs a few microseconds
whatever it does. Here they are fifteen a layer; the general form in ``buffers.py`` takes twice as
many, and a quarter more time a token of a model of 135 M parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mindspeed_llm.inference.cache import RotaryTable, Step
from mindspeed_llm.inference.layer import LayerWeights, RMSNormForm


class OneToken:
    """Intermediate results of the step, on memory and views that stay from step to step.

    Attributes:
        hidden: the residual stream ``[1, h]``.
    """

    def __init__(self, hidden: Tensor, layer: LayerWeights) -> None:
        heads = layer.heads
        self.hidden = torch.empty_like(hidden[0])
        self._hidden = self.hidden[0]
        self._normed = torch.empty_like(self._hidden)
        self._mixed = hidden.new_empty(heads.groups * (heads.queries + 2) * heads.size)
        self._heads = self._mixed.view(-1, heads.size)
        self._rotated = torch.empty_like(self._heads)
        # [groups, queries + 2, d]
        self._grouped = self._mixed.view(heads.groups, -1, heads.size)
        rotated = self._rotated.view_as(self._grouped)
        self._query, self._key = rotated[:, :-2], rotated[:, -2]
        self._value = self._grouped[:, -1]
        self._attended = torch.empty_like(self._query, memory_format=torch.contiguous_format)
        self._wide = hidden.new_empty(layer.inner_size)
        self._nothing = hidden.new_zeros(1, 1, 1)

    @staticmethod
    def suits(hidden: Tensor, layer: LayerWeights) -> bool:
        """Whether a step over ``[b, s, h]`` can take this form.

        The sum of squares of a norm is taken in the states' own dtype, hence fp32 only.
        """
        return (
            hidden.shape[:2] == (1, 1)
            and hidden.dtype == torch.float32
            and hidden.device.type == "cpu"
            and layer.sharers == 1
            and isinstance(layer.input_norm, RMSNormForm)
        )

    def fits(self, hidden: Tensor) -> bool:
        """Whether these are buffers for hidden states ``[b, s, h]`` of this size."""
        return hidden.shape[:2] == (1, 1)

    def begin(self, step: Step, rotary: RotaryTable) -> None:
        """Prepare what all layers share."""
        self._slots = step.longest
        self._rotation = rotary.matrix(self._slots - 1, self._rotated.shape[1])
        self._scores = self._query.new_empty(*self._query.shape[:2], self._slots)

    def run(self, layer: LayerWeights, cached: Tensor) -> None:
        """Add a layer to ``hidden``, and its keys and values to ``[2, 1, groups, slots, d]``."""
        hidden, normed = self._hidden, self._normed
        layer.qkv.write_one(normed, layer.input_norm.write_one(hidden, normed), self._mixed)
        layer.normalise_heads(self._grouped)
        self._attend(cached, layer.softmax_scale)
        layer.proj.add_one(hidden, self._attended.view(-1))
        layer.fc1.write_one(normed, layer.mlp_norm.write_one(hidden, normed), self._wide)
        layer.fc2.add_one(hidden, layer.activate(self._wide))

    def _attend(self, cached: Tensor, scale: float) -> None:
        """Attention of the queries in ``_mixed`` to all slots, the token's own included."""
        # Rotated as one product: cosines on the diagonal, sines beside it. Values stay as they are.
        torch.mm(self._heads, self._rotation, out=self._rotated)
        keys, values = cached[:, 0, :, : self._slots].unbind()
        keys[:, -1].copy_(self._key)
        values[:, -1].copy_(self._value)
        scores = self._scores
        torch.baddbmm(
            self._nothing, self._query, keys.transpose(1, 2), beta=0, alpha=scale, out=scores
        )
        torch.bmm(scores.softmax(dim=-1), values, out=self._attended)
