"""One way to read weights, whatever form they are stored in.

``open_source(path)`` finds out what a folder holds. The result hands out full Megatron tensors,
or one tensor-parallel rank's part, reading only what is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths
from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.metadata import DTYPE_SHORT
from mindspeed_llm.models import mtp
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.registry import get_family
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import GATED_COLUMN, HEAD_ROWS, TensorParallel
from mindspeed_llm.models.transforms import Rows


class WeightSource(ABC):
    """Weights of one model.

    Attributes:
        kind: ``hf``, ``torch`` or ``torch_dist``.
        path: the folder that holds them.
        family, shape: what model it is.
        iteration: training iteration; None for a Hugging Face folder or a release.
        side_folder: where ``config.json`` and tokenizer files lie, if there are any.
    """

    kind: str
    path: Path
    family: Family
    shape: ModelShape
    iteration: int | None = None
    side_folder: Path | None = None

    @property
    def files(self) -> list[Path]:
        """The files that hold the weights."""
        return sorted(path for path in self.path.rglob("*") if path.is_file())

    @abstractmethod
    def check(self) -> None:
        """Compare names and sizes with what the family expects, without reading weights.

        Raises:
            UserError: naming missing, left-over and wrongly sized tensors.
        """

    def leave_out_mtp(self) -> None:
        """Go on as though the model had no layers of multi-token prediction."""
        self.shape = mtp.without(self.shape)

    def has(self, entry: Mapping) -> bool:
        """Whether there is a tensor for ``entry``: always, once checked, for a whole model."""
        return True

    @abstractmethod
    def dtypes(self, entry: Mapping) -> set[torch.dtype]:
        """Stored types of the tensors behind ``entry`` (more than one only by mishap)."""

    @abstractmethod
    def full(self, entry: Mapping) -> Tensor:
        """The full Megatron tensor of ``entry``, without vocabulary padding, on the CPU.

        It may be a view of a mapped file: do not write to it.
        """

    def part(self, entry: Mapping, at: TensorParallel) -> Tensor:
        """What tensor-parallel rank ``at.rank`` of ``at.size`` holds of ``entry``."""
        return entry.split.take(self.full(entry), at)

    def part_rows(self, entry: Mapping, at: TensorParallel) -> Rows:
        """:meth:`part` as row ranges, views of the mapped files where that is possible."""
        return [self.part(entry, at)]

    def hf_rows(self, entry: Mapping) -> dict[str, Rows]:
        """The Hugging Face tensors of ``entry`` by name, as row ranges of mapped files."""
        tensors = entry.transform.inverse_rows(self.shape, self.full(entry))
        return dict(zip(entry.hf, tensors, strict=True))

    @abstractmethod
    def describe(self) -> str:
        """Kind and layout in a few words, e.g. ``Megatron torch TP2 PP1``."""

    def dtype(self, entry: Mapping) -> torch.dtype:
        """The type in which :meth:`full` returns ``entry``."""
        first, *rest = self.dtypes(entry)
        for other in rest:
            first = torch.promote_types(first, other)
        return first

    def entries(self) -> list[Mapping]:
        """Every entry of the weight map of this model."""
        return list(self.family.weights(self.shape).expand(self.shape))

    def main_dtype(self) -> torch.dtype:
        """The type that most of the weights have."""
        sizes: Counter[torch.dtype] = Counter()
        for entry in self.entries():
            sizes[self.dtype(entry)] += prod(entry.dims(self.shape))
        return sizes.most_common(1)[0][0]


def shape_of_one_rank(entry: Mapping, shape: ModelShape, size: int) -> ModelShape | None:
    """The shape with which ``entry.transform`` works on one tensor-parallel rank's rows alone.

    Whole heads, and MLP rows, of one rank are neighbours in each Hugging Face tensor, so cutting
    and fusing may change places. None where they may not: ranks that share a head, padded heads,
    or rows that are not fused.
    """
    groups, heads = shape.num_query_groups, shape.num_attention_heads
    if len(entry.hf) == 1:
        return None
    if entry.split is GATED_COLUMN:
        return shape
    if entry.split is HEAD_ROWS and groups % size == 0:
        return replace(shape, num_query_groups=groups // size, num_attention_heads=heads // size)
    return None


def open_source(
    path: Path | str,
    ckpt_step: int | None = None,
    model_type_hf: str | None = None,
    hf_cfg_dir: Path | str | None = None,
) -> WeightSource:
    """Open what ``path`` holds: a Hugging Face folder or a Megatron checkpoint.

    Args:
        path: a model folder, a checkpoint root, or the folder of one iteration.
        ckpt_step: iteration to read instead of the latest (Megatron only).
        model_type_hf: family; must agree with ``config.json`` or the checkpoint.
        hf_cfg_dir: folder of the original ``config.json``, where a Megatron checkpoint does not
            know the true vocabulary size.

    Raises:
        UserError: if nothing readable is there, or the family does not agree.
    """
    from mindspeed_llm.checkpoint.hf_source import HfSource

    path = Path(path)
    if not path.is_dir():
        raise UserError(
            f"{path} is not a folder; give a Hugging Face or Megatron checkpoint folder"
        )
    if is_megatron(path):
        source: WeightSource = _open_megatron(path, ckpt_step, hf_cfg_dir)
    elif (path / "config.json").is_file():
        source = HfSource(path)
    else:
        found = sorted(p.name for p in path.iterdir())[:8]
        raise UserError(
            f"{path} holds neither a Hugging Face model (config.json) nor a Megatron checkpoint "
            f"({paths.POINTER}); it holds: {', '.join(found) or 'nothing'}"
        )
    if model_type_hf is not None:
        check_family(source, model_type_hf)
    return source


def is_megatron(path: Path | str) -> bool:
    """Whether ``path`` is a Megatron checkpoint root or the folder of one iteration."""
    path = Path(path)
    iteration_of = paths.iterations(path.parent)
    is_iteration = any(paths.iteration_folder(path.parent, i) == path for i in iteration_of)
    return is_iteration or (path / paths.POINTER).exists() or bool(paths.iterations(path))


def check_types(source: WeightSource, cast: Caster) -> None:
    """Raise UserError where one Megatron tensor would come from tensors of several types."""
    if cast.dtype is not None:
        return
    for entry in source.entries():
        dtypes = source.dtypes(entry)
        if len(dtypes) > 1:
            kinds = " and ".join(sorted(DTYPE_SHORT[dtype] for dtype in dtypes))
            raise UserError(
                f"{', '.join(entry.hf)} become one tensor in Megatron but are stored in "
                f"different types ({kinds}); choose one for all with --params-dtype"
            )


def check_family(source: WeightSource, model_type_hf: str) -> None:
    """Raise UserError unless ``model_type_hf`` names the family that ``source`` has."""
    asked = get_family(model_type_hf)
    if asked is not source.family:
        raise UserError(
            f"--model-type-hf {model_type_hf} means the family {asked.name} "
            f"({asked.hf_architecture}), but {source.path} holds {source.family.name} "
            f"({source.family.hf_architecture}); leave the flag out or give {source.family.name}"
        )


def _open_megatron(
    path: Path, ckpt_step: int | None, hf_cfg_dir: Path | str | None
) -> WeightSource:
    from mindspeed_llm.checkpoint.dist_source import DistSource
    from mindspeed_llm.checkpoint.torch_source import TorchSource

    root, iteration = paths.resolve(path, ckpt_step)
    folder = paths.iteration_folder(root, iteration)
    if paths.is_torch_dist(folder):
        return DistSource(root, iteration, hf_cfg_dir)
    source = TorchSource(root, iteration, hf_cfg_dir)
    if not source.holds_adapter:
        return source
    from mindspeed_llm.checkpoint.lora.request import with_own_adapter

    return with_own_adapter(source)


def name_problems(
    where: str, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]
) -> list[str]:
    """Lines on tensors that are missing, not expected, or of another size."""
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    lines = []
    if missing:
        lines.append(f"{where}: missing: {_some(missing)}")
    if extra:
        lines.append(f"{where}: not part of this model: {_some(extra)}")
    lines += [
        f"{where}: {name} has size {list(found[name])}, expected {list(dims)}"
        for name, dims in expected.items()
        if name in found and found[name] != dims
    ]
    return lines


def raise_problems(path: Path, lines: list[str], hint: str) -> None:
    """Raise one UserError that lists ``lines``, if there are any."""
    if lines:
        shown = "\n  ".join(lines[:12])
        more = f"\n  … and {len(lines) - 12} more" if len(lines) > 12 else ""
        raise UserError(f"the tensors in {path} do not fit the model:\n  {shown}{more}\n{hint}")


def _some(names: list[str], limit: int = 6) -> str:
    more = f" … ({len(names)} in all)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
