"""``convert_ckpt_v2.py``: Hugging Face to Megatron and back.

Everything that can be wrong is looked for before a byte is written; the result appears as a whole
when it is durable, its pointer file last.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths, side_files
from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.export_config import dtype_name, exported_config, has_tokenizer
from mindspeed_llm.checkpoint.hf_source import HfSource
from mindspeed_llm.checkpoint.metadata import DTYPES, CheckpointLayout
from mindspeed_llm.checkpoint.placement import check_tensor_parallel
from mindspeed_llm.checkpoint.report import (
    Report,
    announce,
    conclude,
    source_notes,
    training_hint,
)
from mindspeed_llm.checkpoint.source import WeightSource, is_megatron, open_source
from mindspeed_llm.checkpoint.to_hf import HfWriter
from mindspeed_llm.checkpoint.to_megatron import ITERATION, MegatronWriter
from mindspeed_llm.console import progress
from mindspeed_llm.files import atomic_folder, fsync_path
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.shape import padded_vocab_size

if TYPE_CHECKING:
    from mindspeed_llm.flags.convert import ConvertFlags

Writer = MegatronWriter | HfWriter

SPARE_BYTES = 64 << 20
"""Room to leave on the disk beyond the tensors' own bytes."""


def convert(flags: ConvertFlags) -> Report:
    """Convert ``flags.load_dir`` into ``flags.save_dir``.

    Raises:
        UserError: whatever is wrong with the request or the files; then nothing is left behind.
    """
    load, save = _folders(flags)
    match flags.load_model_type, flags.save_model_type:
        case "hf", "mg":
            return _to_megatron(flags, load, save)
        case "mg", "hf":
            return _to_hf(flags, load, save)
        case "mg", _:
            raise UserError(
                "--load-model-type mg --save-model-type mg: nothing to convert, since training and "
                "inference load a checkpoint at any TP and PP by themselves; start them with "
                f"--load {load} and the sizes you want"
            )
        case _:
            raise UserError(
                "--load-model-type hf --save-model-type hf: nothing to convert; to change the "
                "type of the weights, convert to mg with --params-dtype and back"
            )


def _to_megatron(flags: ConvertFlags, load: Path, save: Path) -> Report:
    start = time.perf_counter()
    _refuse_existing_checkpoint(save)
    if flags.hf_cfg_dir is not None:
        raise UserError("--hf-cfg-dir is for mg to hf; hf to mg takes config.json from --load-dir")
    source = open_source(load, model_type_hf=_family_name(flags))
    assert isinstance(source, HfSource)
    if flags.num_layers is not None:
        source.keep_layers(flags.num_layers)
    source.check()
    _check_qkv_bias(flags, source)
    layout = _target_layout(flags, source)
    cast = Caster(DTYPES[flags.params_dtype] if flags.params_dtype else None)
    writer = MegatronWriter(source, layout, cast)
    writer.check()
    _check_space(save, writer.nbytes())
    announce(source, f"Megatron torch {layout.describe()}", cast)
    with _bar(save, writer) as wrote:
        with atomic_folder(paths.iteration_folder(save, ITERATION)) as folder:
            writer.write(folder, wrote)
            dtype = dtype_name(writer.main_dtype())
            config = side_files.with_dtype(source.config, dtype) if cast.dtype else source.config
            side_files.keep(load, save, side_files.Origin(dtype, source.redundant_output), config)
        paths.write_pointer(save, ITERATION)
    notes = [*source_notes(source, layout), training_hint(save, layout)]
    return _conclude(source, writer, cast, start, notes)


def _to_hf(flags: ConvertFlags, load: Path, save: Path) -> Report:
    start = time.perf_counter()
    _refuse_layout_flags(flags)
    _refuse_existing_weights(save)
    source = open_source(load, model_type_hf=_family_name(flags), hf_cfg_dir=flags.hf_cfg_dir)
    source.check()
    _check_qkv_bias(flags, source)
    cast = Caster(DTYPES[flags.params_dtype] if flags.params_dtype else None)
    origin = side_files.read_origin(paths.resolve(load)[0])
    writer = HfWriter(source, cast, origin.redundant_output)
    config, notes = exported_config(source, writer.main_dtype(), origin, flags.hf_cfg_dir)
    _check_space(save, writer.nbytes())
    announce(source, f"Hugging Face, {len(writer.shards)} file(s)", cast)
    with _bar(save, writer) as wrote, _new_or_merged(save) as folder:
        writer.write(folder, wrote)
        if source.side_folder is not None:
            side_files.copy(source.side_folder, folder)
        side_files.write_config(folder, config)
    if not has_tokenizer(save):
        notes.append("no tokenizer files: the checkpoint carries none (--hf-cfg-dir supplies them)")
    notes.append(f'next      AutoModelForCausalLM.from_pretrained("{save}")')
    return _conclude(source, writer, cast, start, notes)


def _conclude(
    source: WeightSource, writer: Writer, cast: Caster, start: float, notes: list[str]
) -> Report:
    seconds = time.perf_counter() - start
    read = len(source.entries())
    report = Report(read, writer.tensors(), writer.nbytes(), seconds, cast.not_finite)
    conclude(report, cast, notes)
    return report


def _folders(flags: ConvertFlags) -> tuple[Path, Path]:
    if not flags.load_dir or not flags.save_dir:
        raise UserError("--load-dir and --save-dir must be given: the folder to read and to write")
    load, save = Path(flags.load_dir), Path(flags.save_dir)
    if not load.is_dir():
        raise UserError(f"--load-dir {load} does not exist or is not a folder")
    target = save.resolve()
    if load.resolve() in (target, *target.parents):
        raise UserError(
            f"--save-dir {save} is, or lies in, --load-dir {load}; write to another folder, so "
            "that the source stays as it is"
        )
    if save.exists() and not save.is_dir():
        raise UserError(f"--save-dir {save} exists and is not a folder")
    asked = flags.load_model_type
    found = "mg" if is_megatron(load) else "hf" if (load / "config.json").is_file() else asked
    if found != asked:
        kind = "a Megatron checkpoint" if found == "mg" else "a Hugging Face folder"
        raise UserError(
            f"--load-model-type {asked}: --load-dir {load} is {kind}; give "
            f"--load-model-type {found}"
        )
    return load, save


def _family_name(flags: ConvertFlags) -> str | None:
    # The older tool converted Qwen2 as "llama2 with biases".
    if flags.model_type_hf == "llama2" and flags.add_qkv_bias:
        return "qwen2"
    return flags.model_type_hf


def _check_qkv_bias(flags: ConvertFlags, source: WeightSource) -> None:
    if flags.add_qkv_bias and not source.shape.add_qkv_bias:
        raise UserError(
            f"--add-qkv-bias: {source.family.name} in {source.path} has no such biases; leave the "
            "flag out"
        )


def _target_layout(flags: ConvertFlags, source: WeightSource) -> CheckpointLayout:
    shape, size = source.shape, flags.target_tensor_parallel_size
    check_tensor_parallel(shape, size)
    pipeline = PipelineLayout.build(
        shape.num_layers,
        flags.target_pipeline_parallel_size,
        flags.num_layers_per_virtual_pipeline_stage,
        flags.num_layer_list,
    )
    padded = flags.padded_vocab_size or padded_vocab_size(
        shape.vocab_size, size, flags.make_vocab_size_divisible_by
    )
    if padded < shape.vocab_size or padded % size:
        raise UserError(
            f"--padded-vocab-size {padded} must be a multiple of the tensor-parallel size {size} "
            f"and at least the vocabulary's {shape.vocab_size} rows; leave it out for the smallest"
        )
    return CheckpointLayout(size, pipeline, padded)


def _refuse_layout_flags(flags: ConvertFlags) -> None:
    neutral = {
        "target_tensor_parallel_size": 1,
        "target_pipeline_parallel_size": 1,
        "num_layers_per_virtual_pipeline_stage": None,
        "num_layer_list": None,
        "make_vocab_size_divisible_by": 1,
        "padded_vocab_size": None,
        "num_layers": None,
    }
    given = [name for name, value in neutral.items() if getattr(flags, name) != value]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UserError(
            f"{names}: for hf to mg only. A Hugging Face folder has no layout, and that of the "
            "Megatron checkpoint is read from it; leave the flags out"
        )


def _refuse_existing_checkpoint(save: Path) -> None:
    present = paths.iterations(save)
    pointer = (save / paths.POINTER).exists()
    if present and not pointer:
        raise UserError(
            f"--save-dir {save} holds iterations {', '.join(map(str, present))} but no "
            f"{paths.POINTER}, as after an interrupted run; choose another folder or remove it"
        )
    if present or pointer:
        raise UserError(
            f"--save-dir {save} already holds a checkpoint (iterations: "
            f"{', '.join(map(str, present)) or 'none'}); choose another folder or remove it"
        )


def _refuse_existing_weights(save: Path) -> None:
    present = sorted(p.name for kind in ("*.safetensors", "*.bin") for p in save.glob(kind))
    if present:
        raise UserError(
            f"--save-dir {save} already holds weights ({', '.join(present[:3])}), which are never "
            "overwritten; choose another folder"
        )


def _check_space(save: Path, nbytes: int) -> None:
    existing = next(p for p in (save.resolve(), *save.resolve().parents) if p.exists())
    if not os.access(existing, os.W_OK):
        raise UserError(f"--save-dir {save}: no permission to write in {existing}")
    free = shutil.disk_usage(existing).free
    if free < nbytes + SPARE_BYTES:
        raise UserError(
            f"--save-dir {save}: {nbytes / 1e9:.2f} GB will be written, but the disk has "
            f"{free / 1e9:.2f} GB free; make room or choose another disk"
        )


@contextmanager
def _bar(save: Path, writer: Writer) -> Iterator[Callable[[int], object]]:
    """A progress bar; a full or failing disk becomes a UserError."""
    try:
        with progress("B", writer.nbytes(), "converting") as bar:
            yield bar.update
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
            raise
        raise UserError(
            f"writing to {save} failed: {error.strerror}; nothing was left behind"
        ) from None


@contextmanager
def _new_or_merged(save: Path) -> Iterator[Path]:
    """A folder that becomes ``save``; if that holds other files, they stay beside the new ones."""
    if not save.exists() or not any(save.iterdir()):
        with atomic_folder(save) as folder:
            yield folder
        return
    with atomic_folder(save / "converted") as folder:
        yield folder
    # Weights first: without config.json and index the folder is not yet a model.
    done = save / "converted"
    for path in sorted(done.iterdir(), key=lambda p: p.suffix != ".safetensors"):
        os.replace(path, save / path.name)
    done.rmdir()
    fsync_path(save)
