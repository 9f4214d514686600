"""``convert_ckpt_v2.py``: Hugging Face to Megatron and back.

Everything that can be wrong is looked for before a byte is written; the result appears as a whole
when it is durable, its pointer file last.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths, resume, side_files
from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.export_config import dtype_name, exported_config, has_tokenizer
from mindspeed_llm.checkpoint.hf_source import HfSource
from mindspeed_llm.checkpoint.job import Job
from mindspeed_llm.checkpoint.lora.request import adapter_notes, merged
from mindspeed_llm.checkpoint.metadata import DTYPES
from mindspeed_llm.checkpoint.report import Report, announce, source_notes, training_hint
from mindspeed_llm.checkpoint.resume import Unfinished
from mindspeed_llm.checkpoint.safetensors_file import INDEX
from mindspeed_llm.checkpoint.sha256 import require_sums
from mindspeed_llm.checkpoint.source import WeightSource, is_megatron, open_source
from mindspeed_llm.checkpoint.target import refuse_layout_flags, target_layout
from mindspeed_llm.checkpoint.to_dist import DistWriter
from mindspeed_llm.checkpoint.to_hf import HfWriter
from mindspeed_llm.checkpoint.to_megatron import MegatronWriter
from mindspeed_llm.checkpoint.training_state import training_state
from mindspeed_llm.flags.lora import NO_ADAPTER, LoraFlags
from mindspeed_llm.models.registry import read_hf_config

if TYPE_CHECKING:
    from mindspeed_llm.flags.convert import ConvertFlags


def convert(flags: ConvertFlags, lora: LoraFlags = NO_ADAPTER) -> Report:
    """Convert ``flags.load_dir``, with the adapter of ``lora`` merged, into ``flags.save_dir``.

    Raises:
        UserError: whatever is wrong with the request or the files; then nothing is left behind.
    """
    load, save = folders(flags)
    if flags.sha256 is not None:
        require_sums(load, Path(flags.sha256))
    match flags.load_model_type, flags.save_model_type:
        case _, "mg":
            return _to_megatron(flags, lora, load, save)
        case kind, "hf" if kind == "mg" or lora.lora_load:
            return _to_hf(flags, lora, load, save)
        case _:
            raise UserError(
                "--load-model-type hf --save-model-type hf: nothing to convert; to change the "
                "type of the weights, convert to mg with --params-dtype and back; to merge an "
                "adapter, name it with --lora-load"
            )


def _to_megatron(flags: ConvertFlags, lora: LoraFlags, load: Path, save: Path) -> Report:
    refuse_existing_checkpoint(save)
    source = _source_of_megatron(flags, load)
    source.check()
    _check_claims(flags, source)
    weights = merged(source, lora)
    layout = target_layout(flags, source.shape)
    cast = Caster(DTYPES[flags.params_dtype] if flags.params_dtype else None)
    training, training_notes = training_state(flags, source, merges=weights is not source)
    writer: DistWriter | MegatronWriter
    if flags.ckpt_format == "torch_dist":
        writer = DistWriter(weights, layout, cast, training)
    else:
        writer = MegatronWriter(weights, layout, cast, training)
    writer.check()
    announce(weights, target := f"Megatron {flags.ckpt_format} {layout.describe()}", cast)

    def write(work: Unfinished) -> None:
        folder = paths.iteration_folder(work.folder, training.iteration)
        folder.mkdir(exist_ok=True)
        writer.write(folder, work)
        _keep_side_files(source, work.folder, writer.main_dtype() if cast.dtype else None)
        paths.write_pointer(work.folder, training.iteration)

    job = Job(
        flags,
        weights,
        writer,
        cast,
        target,
        (paths.POINTER,),
        [*source_notes(source, layout), *adapter_notes(weights), *training_notes],
    )
    return job.run(write, training_hint(save, layout))


def _to_hf(flags: ConvertFlags, lora: LoraFlags, load: Path, save: Path) -> Report:
    refuse_layout_flags(flags)
    _refuse_existing_weights(save)
    source = open_source(load, model_type_hf=flags.model_type_hf, hf_cfg_dir=flags.hf_cfg_dir)
    source.check()
    _check_claims(flags, source)
    origin = _origin(source)
    source = merged(source, lora)
    cast = Caster(DTYPES[flags.params_dtype] if flags.params_dtype else None)
    writer = HfWriter(source, cast, origin.redundant_output)
    config, notes = exported_config(source, writer.main_dtype(), origin, flags.hf_cfg_dir)
    announce(source, target := f"Hugging Face, {len(writer.shards)} file(s)", cast)
    if source.side_folder is None or not has_tokenizer(source.side_folder):
        notes.append("no tokenizer files: the checkpoint carries none (--hf-cfg-dir supplies them)")

    def write(work: Unfinished) -> None:
        writer.write(work.folder, work)
        if source.side_folder is not None:
            side_files.copy(source.side_folder, work.folder)
        side_files.write_config(work.folder, config)

    notes += adapter_notes(source)
    last = (INDEX, side_files.CONFIG)
    job = Job(flags, source, writer, cast, target, last, notes)
    return job.run(write, f'AutoModelForCausalLM.from_pretrained("{save}")')


def _source_of_megatron(flags: ConvertFlags, load: Path) -> WeightSource:
    """The weights of which a Megatron checkpoint is made."""
    source = open_source(load, model_type_hf=flags.model_type_hf, hf_cfg_dir=flags.hf_cfg_dir)
    if isinstance(source, HfSource):
        if flags.hf_cfg_dir is not None:
            raise UserError(
                "--hf-cfg-dir is for Megatron checkpoints; config.json is taken from --load-dir"
            )
        if flags.num_layers is not None:
            source.keep_layers(flags.num_layers)
        source.take_mtp(flags.mtp_num_layers)
    elif flags.num_layers is not None:
        raise UserError("--num-layers: for hf to mg only; a Megatron checkpoint is kept whole")
    return source


def _keep_side_files(source: WeightSource, root: Path, cast: torch.dtype | None) -> None:
    """Put config, tokenizer and what an export must know beside the Megatron checkpoint."""
    folder, origin = source.side_folder, _origin(source)
    if folder is None:
        return
    config = source.config if isinstance(source, HfSource) else read_hf_config(folder)
    stored = origin.weights_dtype or dtype_name(source.main_dtype())
    if cast is not None:
        stored, config = dtype_name(cast), side_files.with_dtype(config, dtype_name(cast))
    side_files.keep(folder, root, replace(origin, weights_dtype=stored), config)


def folders(flags: ConvertFlags) -> tuple[Path, Path]:
    """``--load-dir`` and ``--save-dir``, each as it must be."""
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


def _origin(source: WeightSource) -> side_files.Origin:
    """What an export must know of the original weight files."""
    if isinstance(source, HfSource):
        return side_files.Origin(redundant_output=source.redundant_output)
    return side_files.read_origin(source.path.parent)


def _check_claims(flags: ConvertFlags, source: WeightSource) -> None:
    """What flags of the older tool say of the model must be true."""
    shape, model = source.shape, f"{source.family.name} in {source.path}"
    rows = flags.true_vocab_size
    lines = []
    if flags.add_qkv_bias and not shape.add_qkv_bias:
        lines.append(f"--add-qkv-bias: {model} has no such biases")
    if flags.post_norm and not shape.post_norm:
        lines.append(f"--post-norm: {model} does not normalise outputs")
    if rows is not None and rows != shape.vocab_size:
        lines.append(f"--true-vocab-size {rows}: {model} has {shape.vocab_size} rows")
    if lines:
        raise UserError("; ".join(lines) + "; leave the flag out")


def refuse_existing_checkpoint(save: Path) -> None:
    """Raise UserError if a Megatron checkpoint, or a part of one, lies in ``save``."""
    if resume.is_whole(save):
        return
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
    if resume.is_whole(save):
        return
    present = sorted(p.name for kind in ("*.safetensors", "*.bin") for p in save.glob(kind))
    if present:
        raise UserError(
            f"--save-dir {save} already holds weights ({', '.join(present[:3])}), which are never "
            "overwritten; choose another folder"
        )
