"""Instruction and preference data as data sets of training: rows of files, in the run's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import Dataset

from mindspeed.errors import UserError
from mindspeed_llm.console import say, warn
from mindspeed_llm.data.datasets.blend import Blend
from mindspeed_llm.data.datasets.collate import Collator, Sample
from mindspeed_llm.data.datasets.order import Mixture, Order
from mindspeed_llm.data.storage.manifest import check_handler, check_tokenizer, read_note_of_data
from mindspeed_llm.data.storage.parts import INSTRUCTION, PAIRWISE, Parts
from mindspeed_llm.data.tokenizer import NullTokenizer, Tokenizer

if TYPE_CHECKING:
    from mindspeed_llm.flags.data import DataFlags

SPLITS = ("train", "valid", "test")
_LOOKED_AT = 64


class Rows:
    """A range of the rows of one data set."""

    def __init__(self, parts: Parts, first: int, end: int) -> None:
        self.parts, self.first, self.end = parts, first, end

    def __len__(self) -> int:
        return self.end - self.first

    def __getitem__(self, index: int) -> Sample | tuple[Sample, Sample]:
        row = self.parts[self.first + index]
        if self.parts.keys is PAIRWISE:
            return (
                Sample(row["chosen_input_ids"], row["chosen_labels"]),
                Sample(row["rejected_input_ids"], row["rejected_labels"]),
            )
        return Sample(row["input_ids"], row["labels"], row["attention_mask"])


class InstructionDataset(Dataset):
    """The samples of a split, by number.

    Args:
        sources: the rows of each data set.
        weights: shares of the samples; None: rows of all data sets in one order.
        samples: how many; None: one pass over all rows.
        seed, shuffle, mixed, multiple_of: of :class:`~mindspeed_llm.data.datasets.order.Order`;
            ``mixed`` shuffles passes among each other.
        seq_length: longer rows are cut.
    """

    def __init__(
        self,
        sources: Sequence[Rows],
        weights: Sequence[float] | None,
        samples: int | None,
        *,
        seq_length: int,
        seed: Sequence[int] = (0,),
        shuffle: bool = True,
        mixed: bool = False,
        multiple_of: int = 1,
    ) -> None:
        self.sources, self.seq_length = list(sources), seq_length
        sizes = [len(source) for source in self.sources]
        self._ends = np.cumsum(sizes)
        total = int(self._ends[-1])
        self.samples = -(-total // multiple_of) * multiple_of if samples is None else samples
        self._mixture = None if weights is None else Mixture(weights, self.samples)
        counts = (
            [self.samples]
            if self._mixture is None
            else np.bincount(self._mixture.source, minlength=len(sizes)).tolist()
        )
        self._orders = [
            Order(
                rows,
                [*seed, number],
                shuffle=shuffle,
                mixed=count if mixed else None,
                multiple_of=multiple_of,
            )
            for number, (rows, count) in enumerate(
                zip([total] if self._mixture is None else sizes, counts, strict=True)
            )
        ]

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> Sample | tuple[Sample, Sample]:
        source, row = self.place(number)
        sample = self.sources[source][row]
        if isinstance(sample, tuple):
            return sample[0].cut(self.seq_length), sample[1].cut(self.seq_length)
        return sample.cut(self.seq_length)

    def place(self, number: int) -> tuple[int, int]:
        """The data set and the row, within this split, of a sample."""
        if self._mixture is not None:
            source, within = self._mixture[number]
            return source, self._orders[source][within]
        row = self._orders[0][number]
        source = int(np.searchsorted(self._ends, row, side="right"))
        return source, row - int(self._ends[source - 1] if source else 0)


def build_instruction_datasets(
    data: DataFlags,
    blends: dict[str, Blend],
    num_samples: Sequence[int | None],
    tokenizer: Tokenizer | NullTokenizer,
    *,
    seq_length: int,
    seed: int,
    global_batch_size: int = 1,
    prompt_type: str | None = None,
) -> list[InstructionDataset | None]:
    """The data sets of training, evaluation and test.

    Args:
        data: the data flags.
        blends: of "all" splits, or of each split that has its own.
        num_samples: of each split; 0: none, None: one pass.
        tokenizer: against that of the data.
        seed: of the orders.
        global_batch_size: with ``--padded-samples``, a pass is filled up to a multiple of it.
        prompt_type: ``--prompt-type``, against that of the data.

    Raises:
        UserError: data that is missing, damaged, too long, of another kind, tokenizer or template.
    """
    opened = {
        prefix: _open(prefix, data, tokenizer, seq_length, prompt_type)
        for blend in blends.values()
        for prefix in blend.prefixes
    }
    datasets: list[InstructionDataset | None] = []
    for index, (split, count) in enumerate(zip(SPLITS, num_samples, strict=True)):
        blend: Blend | None = blends.get(split) or blends.get("all")
        if count == 0 or blend is None:
            datasets.append(None)
            continue
        share = _share(data.split, index) if "all" in blends else (0.0, 1.0)
        sources = [_rows(opened[prefix], share, split, data.split) for prefix in blend.prefixes]
        datasets.append(
            InstructionDataset(
                sources,
                blend.weights,
                count,
                seq_length=seq_length,
                seed=(seed, index),
                shuffle=not data.no_shuffle,
                mixed=data.full_shuffle_instruction_dataset,
                multiple_of=global_batch_size if data.padded_samples and split == "train" else 1,
            )
        )
    return datasets


def _open(
    prefix: str,
    data: DataFlags,
    tokenizer: Tokenizer | NullTokenizer,
    seq_length: int,
    prompt_type: str | None,
) -> Parts:
    check_handler(prefix, "pairwise" if data.is_pairwise_dataset else "instruction", prompt_type)
    if isinstance(tokenizer, Tokenizer):
        check_tokenizer(prefix, tokenizer)
    parts = Parts(prefix, PAIRWISE if data.is_pairwise_dataset else INSTRUCTION)
    check_rows(parts, data, seq_length)
    return parts


def _share(split: str, index: int) -> tuple[float, float]:
    """Where a split begins and ends in the data, as Megatron divides it."""
    from megatron.core.datasets.blended_megatron_dataset_config import (
        convert_split_vector_to_split_matrix,
        parse_and_normalize_split,
    )

    found = convert_split_vector_to_split_matrix(parse_and_normalize_split(split))[index]
    return found or (0.0, 0.0)


def _rows(parts: Parts, share: tuple[float, float], split: str, flag: str) -> Rows:
    first, end = (round(bound * len(parts)) for bound in share)
    if first == end:
        raise UserError(
            f"--split {flag}: the {split} share of {parts.prefix} is empty: {len(parts)} rows are "
            "too few to give it one. Change --split, or give each split its own data "
            "(--valid-data-path ...)."
        )
    return Rows(parts, first, end)


def check_rows(parts: Parts, data: DataFlags, seq_length: int) -> None:
    """Check that the rows fit the run: their length, and whether they hold several samples.

    Raises:
        UserError: rows longer than ``--seq-length``, or several samples in a row that would see
            each other.
    """
    lengths = parts.lengths
    long = int((lengths > seq_length).sum())
    if long and not data.cut_max_seqlen:
        raise UserError(
            f"{parts.prefix}: {long:,} of {len(parts):,} rows are longer than --seq-length "
            f"{seq_length} (the longest has {lengths.max():,} tokens). Train with --seq-length "
            f"{lengths.max()}, preprocess with --seq-length {seq_length}, or let their ends be cut "
            "off with --cut-max-seqlen."
        )
    if long:
        say(f"> {parts.prefix}: the ends of {long:,} of {len(parts):,} rows are cut off")
    if "attention_mask" not in parts.keys:
        return
    looked = [parts.parts["attention_mask"][row] for row in range(min(len(parts), _LOOKED_AT))]
    several = any(mask.max(initial=0) > 1 for mask in looked)
    if several and not data.reset_attention_mask:
        raise UserError(
            f"{parts.prefix} holds several samples in a row (--neat-pack), which would see each "
            "other: add --reset-attention-mask (and --reset-position-ids), or preprocess again "
            "without --neat-pack."
        )
    note = read_note_of_data(parts.prefix)
    numbered = (
        several if note is None else not note.flags.get("pack") or note.flags.get("neat_pack")
    )
    if data.neat_pack and not numbered:
        warn(
            f"--neat-pack: {parts.prefix} does not say where samples in a row begin; each row is "
            "taken for one sample (preprocess with --pack --neat-pack)"
        )


def collator_of(data: DataFlags, seq_length: int, divisor: int) -> Collator:
    """How batches are made of samples.

    Args:
        divisor: lengths must be multiples of it (the tensor-parallel size with sequence
            parallelism).
    """
    multiple_of = None
    if data.no_pad_to_seq_lengths:
        multiple_of = int(np.lcm(data.pad_to_multiple_of, divisor))
    return Collator(
        seq_length=seq_length,
        multiple_of=multiple_of,
        packed=data.reset_attention_mask,
        reset_positions=data.reset_position_ids,
    )
