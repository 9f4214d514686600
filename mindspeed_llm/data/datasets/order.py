"""Which row each sample of a run is: a function of seed and number, so that any sample can be next.

Nothing is stored and no state is kept: a run that goes on at sample n sees what an undisturbed one
would have seen, at any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Order:
    """Rows in passes over the data, each pass in an order of its own.

    Args:
        rows: of the data.
        seed: numbers that, with the number of the pass, make its order.
        shuffle: False: each pass in the order of the data.
        mixed: shuffle this many samples at once instead, passes among each other.
        multiple_of: a pass is filled up to a multiple of this with its first rows.
    """

    def __init__(
        self,
        rows: int,
        seed: Sequence[int] = (0,),
        *,
        shuffle: bool = True,
        mixed: int | None = None,
        multiple_of: int = 1,
    ) -> None:
        assert rows > 0
        self.rows, self.seed = rows, [number % 2**32 for number in seed]
        self.shuffle, self.mixed = shuffle, mixed
        self.per_pass = -(-rows // multiple_of) * multiple_of
        self._kept: tuple[int, np.ndarray] | None = None

    def __getitem__(self, sample: int) -> int:
        """The row of a sample, whatever its number."""
        if not self.shuffle:
            return sample % self.per_pass % self.rows
        if self.mixed is not None:
            return int(self._order(0, self.mixed)[sample]) % self.per_pass % self.rows
        number, within = divmod(sample, self.per_pass)
        return int(self._order(number, self.rows)[within % self.rows])

    def _order(self, number: int, size: int) -> np.ndarray:
        """A permutation; the last one is kept, for samples come nearly in order."""
        if self._kept is None or self._kept[0] != number:
            # RandomState's streams are frozen: other versions of numpy draw the same.
            draw = np.random.RandomState([*self.seed, number])
            self._kept = number, draw.permutation(size)
        return self._kept[1]


class Mixture:
    """Samples drawn from several data sets by weight, each data set in an order of its own.

    After n samples each data set has given its share of n, to within one sample.
    """

    def __init__(self, weights: Sequence[float], samples: int) -> None:
        from megatron.core.datasets import helpers

        self.source = np.zeros(samples, dtype=np.int16)
        self.number = np.zeros(samples, dtype=np.int64)
        shares = np.array(weights, dtype=np.float64) / sum(weights)
        helpers.build_blending_indices(
            self.source, self.number, shares, len(shares), samples, False
        )

    def __getitem__(self, sample: int) -> tuple[int, int]:
        """The data set, and which of its samples it is."""
        return int(self.source[sample]), int(self.number[sample])
