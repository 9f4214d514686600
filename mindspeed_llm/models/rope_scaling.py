"""Ways to stretch rotary frequencies, as Hugging Face's ``rope_type`` names them.

Each turns plain inverse frequencies ``[d/2]`` into scaled ones, and may ask for a factor on cosine
and sine (``attention_factor``). Formulas are those of the papers named at each class.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's frequency-dependent scaling.

    Wavelengths beyond ``original_max_position_embeddings / low_freq_factor`` are stretched by
    ``factor``, those below ``original.../high_freq_factor`` are kept, and between them the two
    are mixed linearly.
    """

    kind: ClassVar[str] = "llama3"
    attention_factor: ClassVar[float] = 1.0

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def scale(self, frequencies: Tensor, base: float, length: int) -> Tensor:
        """Scaled inverse frequencies; ``base`` and ``length`` do not matter here."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return _mix(frequencies / self.factor, frequencies, kept.clamp(0.0, 1.0))


@dataclass(frozen=True)
class Yarn:
    """YaRN (arXiv:2309.00071), with DeepSeek's two ``mscale`` numbers.

    Components that turn more than ``beta_fast`` times within the original positions are kept,
    those that turn less than ``beta_slow`` times are stretched by ``factor``.

    Attributes:
        mscale, mscale_all_dim: cosine and sine are multiplied by the ratio of the two
            concentrations; with ``mscale_all_dim`` the softmax scale by the square of its own
            (:attr:`softmax_factor`).
        given_attention_factor: replaces the ratio.
    """

    kind: ClassVar[str] = "yarn"

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    given_attention_factor: float | None = None

    @property
    def attention_factor(self) -> float:
        """Factor of cosine and sine."""
        if self.given_attention_factor is not None:
            return self.given_attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._concentration(self.mscale) / self._concentration(self.mscale_all_dim)
        return self._concentration(1.0)

    @property
    def softmax_factor(self) -> float:
        """Factor of the softmax scale of latent attention."""
        return self._concentration(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _concentration(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def scale(self, frequencies: Tensor, base: float, length: int) -> Tensor:
        """Scaled inverse frequencies of a rotary embedding with this ``base``."""
        import torch

        count = len(frequencies)
        low, high = (
            self._component(turns, base, count) for turns in (self.beta_fast, self.beta_slow)
        )
        low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * count - 1)
        position = torch.arange(count, dtype=torch.float32, device=frequencies.device)
        stretched = ((position - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
        return _mix(frequencies / self.factor, frequencies, 1 - stretched)

    def _component(self, turns: float, base: float, count: int) -> float:
        """Index of the frequency that turns so many times within the original positions."""
        length = self.original_max_position_embeddings
        return count * math.log(length / (turns * 2 * math.pi)) / math.log(base)


@dataclass(frozen=True)
class LongRope:
    """LongRoPE (arXiv:2402.13753): a factor for each frequency, one set for long inputs.

    Attributes:
        short_factor, long_factor: divisors of the frequencies ``[d/2]``; the long ones are for
            sequences of more than ``original_max_position_embeddings`` tokens.
        factor: the model's positions over the original ones.
    """

    kind: ClassVar[str] = "longrope"

    factor: float
    original_max_position_embeddings: int
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    given_attention_factor: float | None = None

    @property
    def attention_factor(self) -> float:
        """Factor of cosine and sine."""
        if self.given_attention_factor is not None:
            return self.given_attention_factor
        if self.factor <= 1:
            return 1.0
        return math.sqrt(
            1 + math.log(self.factor) / math.log(self.original_max_position_embeddings)
        )

    def scale(self, frequencies: Tensor, base: float, length: int) -> Tensor:
        """Scaled inverse frequencies for sequences of ``length`` tokens."""
        long = length > self.original_max_position_embeddings
        divisors = self.long_factor if long else self.short_factor
        return frequencies / frequencies.new_tensor(divisors)


Scaling = RopeScaling | Yarn | LongRope
KINDS: dict[str, type[Scaling]] = {cls.kind: cls for cls in (RopeScaling, Yarn, LongRope)}


def to_dict(scaling: Scaling | None) -> dict[str, Any] | None:
    """JSON-safe form, with the kind under ``rope_type``."""
    if scaling is None:
        return None
    return {"rope_type": scaling.kind, **dataclasses.asdict(scaling)}


def from_dict(values: Mapping[str, Any] | None) -> Scaling | None:
    """The inverse of :func:`to_dict`; without ``rope_type`` it is Llama 3's."""
    if not values:
        return None
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return KINDS[values.pop("rope_type", "llama3")](**values)


def _mix(stretched: Tensor, kept: Tensor, share_kept: Tensor) -> Tensor:
    return (1 - share_kept) * stretched + share_kept * kept
