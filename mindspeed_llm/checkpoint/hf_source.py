"""Weights in a Hugging Face folder."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.hf_reader import HfTensors
from mindspeed_llm.checkpoint.placement import EMBEDDING, OUTPUT
from mindspeed_llm.checkpoint.source import (
    WeightSource,
    name_problems,
    raise_problems,
    shape_of_one_rank,
)
from mindspeed_llm.models import mtp
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.registry import family_of_hf_config, read_hf_config
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import COLUMN, TensorParallel, same_bits
from mindspeed_llm.models.transforms import Rows, stack_rows

# Buffers that old versions of transformers saved and that are computed from the config.
BUFFERS = re.compile(r"\.rotary_emb\.inv_freq$")


class HfSource(WeightSource):
    """A folder with ``config.json`` and weights.

    Attributes:
        config: the parsed ``config.json``.
        ignored: names of stored buffers that are no weights.
        redundant_output: name of an output layer stored although the embeddings are tied.
    """

    kind = "hf"

    def __init__(self, folder: Path) -> None:
        self.config = config = read_hf_config(folder)
        self.path = self.side_folder = folder
        self.family = family_of_hf_config(config, str(folder / "config.json"))
        shape = self.family.config.to_shape(config, str(folder / "config.json"))
        self._stored = HfTensors(folder)
        self.shape = mtp.shape_of_files(shape, self._stored.specs)
        self._lacks_mtp = self.shape != shape
        if self._lacks_mtp:
            self.config = mtp.config_without(config)
        self.ignored = [name for name in self._stored.specs if BUFFERS.search(name)]
        self._left_out: frozenset[str] = frozenset()
        self.redundant_output: str | None = None
        if self.shape.tied:
            untied = replace(self.shape, untie_embeddings_and_output_weights=True)
            (name,) = self.family.weights(untied).by_megatron_name(untied)[OUTPUT].hf
            self.redundant_output = name if name in self._stored.specs else None

    def keep_layers(self, count: int) -> None:
        """Take the first ``count`` layers only, as though the model had no others."""
        if count > self.shape.num_layers:
            raise UserError(f"--num-layers {count}: the model has {self.shape.num_layers} layers")
        # Layers that predict further tokens are counted on from the last one.
        self.leave_out_mtp()
        self._keep(replace(self.shape, num_layers=count))
        key = next(f.hf for f in self.family.config.fields if f.shape == "num_layers")
        self.config = {**self.config, key: count}
        if self.config.get("layer_types"):
            self.config["layer_types"] = self.config["layer_types"][:count]

    def take_mtp(self, count: int | None) -> None:
        """Take all layers of multi-token prediction (None: as many as there are), or none (0)."""
        there = self.shape.mtp_num_layers
        if count is None or count == there:
            return
        if count:
            raise UserError(
                f"--mtp-num-layers {count}: {self.path} holds {there} layers of multi-token "
                "prediction; leave the flag out to take what is there, or give 0 for none"
            )
        self.leave_out_mtp()

    def leave_out_mtp(self) -> None:
        self._keep(mtp.without(self.shape))
        self.config = mtp.config_without(self.config)

    def _keep(self, kept: ModelShape) -> None:
        names = {name for entry in self.entries() for name in entry.hf}
        kept_names = {n for e in self.family.weights(kept).expand(kept) for n in e.hf}
        self._left_out |= names - kept_names
        self.shape = kept

    @property
    def files(self) -> list[Path]:
        return [self.path / "config.json", *self._stored.files]

    def check(self) -> None:
        expected: dict[str, tuple[int, ...]] = {}
        for entry in self.entries():
            shapes = entry.hf_shapes(self.shape)
            expected.update({name: shapes[name] for name in self._stored_names(entry)})
        found = {name: spec.dims for name, spec in self._stored.specs.items()}
        for name in (*self.ignored, *self._left_out, self.redundant_output):
            found.pop(name, None)  # type: ignore[arg-type]
        raise_problems(
            self.path,
            name_problems(self.path.name, expected, found),
            "config.json and the weights must belong to one model of family "
            f"{self.family.name}; check that the download is whole",
        )
        if self.redundant_output is not None:
            self._check_redundant_output(self.redundant_output)
        for entry in self.entries():
            for name in entry.copies:
                if name in self._stored.specs:
                    self._check_copy(name, entry.hf[0])

    def _check_redundant_output(self, name: str) -> None:
        embedding = self.family.weights(self.shape).by_megatron_name(self.shape)[EMBEDDING].hf[0]
        if not same_bits(self._stored.get(name), self._stored.get(embedding)):
            raise UserError(
                f"{self.path}: config.json says that the embeddings are tied, but {name} differs "
                f"from {embedding}. If the model has its own output layer, set "
                "tie_word_embeddings to false in config.json; if not, delete the tensor"
            )

    def _check_copy(self, name: str, original: str) -> None:
        if not same_bits(self._stored.get(name), self._stored.get(original)):
            raise UserError(
                f"{self.path}: {name} differs from {original}, but all layers of multi-token "
                "prediction share the model's tables here; the files are of different models, or "
                "the layers were trained with tables of their own"
            )

    def dtypes(self, entry: Mapping) -> set[torch.dtype]:
        return {self._stored.specs[name].dtype for name in self._stored_names(entry)}

    def full(self, entry: Mapping) -> Tensor:
        return entry.to_megatron(self.shape, self._tensors(entry))

    def part(self, entry: Mapping, at: TensorParallel) -> Tensor:
        return stack_rows(self.part_rows(entry, at))

    def part_rows(self, entry: Mapping, at: TensorParallel) -> Rows:
        shape = shape_of_one_rank(entry, self.shape, at.size)
        if shape is None:
            return [entry.split.take(self.full(entry), at)]
        cut = tuple(COLUMN.take(tensor, at) for tensor in self._tensors(entry))
        return entry.transform.forward_rows(shape, cut)

    def hf_rows(self, entry: Mapping) -> dict[str, Rows]:
        names = zip(entry.hf, self._stored_names(entry), strict=True)
        return {name: [self._stored.get(stored)] for name, stored in names}

    def _tensors(self, entry: Mapping) -> tuple[Tensor, ...]:
        return tuple(self._stored.get(name) for name in self._stored_names(entry))

    def _stored_names(self, entry: Mapping) -> tuple[str, ...]:
        """The entry's names, with the original's for copies that are not there."""
        absent = [name for name in entry.copies if name not in self._stored.specs]
        return tuple(entry.hf[0] if name in absent else name for name in entry.hf)

    def describe(self) -> str:
        return "Hugging Face" + (", no layers of multi-token prediction" if self._lacks_mtp else "")
