"""Micro-batches for the loop: which rank reads, from where on, on which device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mindspeed.transformer.packed import PackedRows
from mindspeed_llm.data.datasets.build import build_datasets, collator, splits_with_data
from mindspeed_llm.data.datasets.loader import build_dataloader
from mindspeed_llm.data.datasets.on_the_fly import prepare_raw
from mindspeed_llm.data.tokenizer import NullTokenizer
from mindspeed_llm.training.objective import Batch
from mindspeed_llm.training.setup import Run

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset

    from mindspeed_llm.data.tokenizer import Tokenizer

_SPLIT_INDEX = {"train": 0, "validation": 1, "test": 2}
_SPLIT_OF_FLAGS = {"validation": "valid", "test": "test"}


class Feed:
    """The data of a run, for this rank's model chunks.

    Only the chunks with the embedding or the output layer read data, and all of them where rows
    hold several samples, whose lengths attention needs; every tensor-parallel rank reads the same,
    so nothing is sent between them. Held-out losses are always computed on the
    first ``eval_iters`` global batches of their split, so that they can be compared.
    """

    def __init__(
        self, run: Run, tokenizer: Tokenizer | NullTokenizer | None, train_iters: int
    ) -> None:
        self._run = run
        cfg = run.cfg
        stage, layout = run.position.pipeline, run.layout
        self._reads = [
            cfg.data.reset_attention_mask
            or layout.is_first(stage, chunk)
            or layout.is_last(stage, chunk)
            for chunk in range(layout.chunks)
        ]
        held_out = cfg.training.eval_iters * run.batch.global_batch_size
        train = cfg.training.train_samples or train_iters * run.batch.global_batch_size
        # A NullTokenizer's end-of-document token is one more id, and must be a row too.
        tokenizer = tokenizer or NullTokenizer(run.model.shape.vocab_size - 1)
        data = prepare_raw(cfg, tokenizer)
        self._datasets: list[Dataset | None] = build_datasets(
            data,
            (train, held_out, held_out),
            tokenizer,
            seq_length=run.batch.seq_length,
            seed=cfg.training.seed,
            wanted=any(self._reads),
            global_batch_size=run.batch.global_batch_size,
            prompt_type="auto" if cfg.data.use_chat_template else cfg.tokenizer.prompt_type,
        )
        divisor = run.position.tensor_size if run.config.sequence_parallel else 1
        self._collate = collator(cfg.data, tokenizer, run.batch.seq_length, divisor)
        self._train: list[Iterator[Batch] | None] | None = None

    def describe(self) -> list[str]:
        """Lines for the start-up block."""
        data = self._run.cfg.data
        source = "generated (--mock-data)" if data.mock_data else " ".join(data.data_path or ())
        consumed = self._run.progress.consumed_train_samples
        return [f"data {source}" + (f", from sample {consumed} on" if consumed else "")]

    def train_batches(self) -> list[Iterator[Batch] | None]:
        """Micro-batches from where the run stands on, per model chunk."""
        if self._train is None:
            loader = self._loader("train", self._run.progress.consumed_train_samples)
            self._train = self._per_chunk(loader)
        return self._train

    def held_out_batches(self, split: str) -> list[Iterator[Batch] | None] | None:
        """Micro-batches of "validation" or "test", per model chunk; None if nothing is to do."""
        cfg = self._run.cfg
        if cfg.training.eval_iters == 0 or _SPLIT_OF_FLAGS[split] not in splits_with_data(cfg.data):
            return None
        return self._per_chunk(self._loader(split, 0))

    def _loader(self, split: str, consumed: int) -> DataLoader | None:
        cfg, at = self._run.cfg, self._run.position
        return build_dataloader(
            self._datasets[_SPLIT_INDEX[split]],
            consumed,
            cfg.training.micro_batch_size,
            at.data,
            at.data_size,
            # Worker processes would only compete with the computation for a CPU's cores.
            num_workers=cfg.data.num_workers if at.device.name != "cpu" else 0,
            dataloader_type=cfg.data.dataloader_type if split == "train" else "single",
            collate_fn=self._collate,
        )

    def _move(self, loader: DataLoader) -> Iterator[Batch]:
        device = self._run.position.device.torch_device()
        for batch in loader:
            segments = batch.pop("segments", None)
            if segments is not None:
                batch["packed"] = PackedRows.of(segments, batch["position_ids"], device)
            yield {
                name: value
                if isinstance(value, PackedRows)
                else value.to(device, non_blocking=True)
                for name, value in batch.items()
            }

    def _per_chunk(self, loader: DataLoader | None) -> list[Iterator[Batch] | None]:
        """Each reading chunk sees all batches, some of them a little later than another chunk."""
        if loader is None:
            return [None] * len(self._reads)
        copies = iter(itertools.tee(self._move(loader), sum(self._reads)))
        return [next(copies) if reads else None for reads in self._reads]
