"""How far a run has come: what a checkpoint must know besides tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """Counters of a training run; they start at zero for a new one.

    Attributes:
        iteration: optimizer steps tried so far, skipped ones included.
        consumed_train_samples: samples of the training set read so far.
    """

    iteration: int = 0
    consumed_train_samples: int = 0
