"""An adapter from one format to the other: ``--save-lora-to-hf`` and ``--save-lora-to-mg``."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths
from mindspeed_llm.checkpoint.convert import (
    folders,
    refuse_existing_checkpoint,
)
from mindspeed_llm.checkpoint.lora.adapter import Adapter, adaptable
from mindspeed_llm.checkpoint.lora.megatron import MegatronAdapter, read_args
from mindspeed_llm.checkpoint.lora.megatron_writer import MegatronAdapterWriter
from mindspeed_llm.checkpoint.lora.peft_folder import PeftAdapter
from mindspeed_llm.checkpoint.lora.peft_writer import write_peft
from mindspeed_llm.checkpoint.lora.request import compare, requested
from mindspeed_llm.checkpoint.metadata import read_metadata
from mindspeed_llm.checkpoint.source import is_megatron, open_source
from mindspeed_llm.checkpoint.target import refuse_layout_flags, target_layout
from mindspeed_llm.checkpoint.training_state import ITERATION
from mindspeed_llm.console import box
from mindspeed_llm.files import atomic_folder
from mindspeed_llm.flags.convert import ConvertFlags
from mindspeed_llm.flags.lora import LoraFlags
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import same_bits


@dataclass(frozen=True)
class Opened:
    """An adapter and the model that it is for; ``base`` is the model's folder, if known."""

    adapter: Adapter
    family: Family
    shape: ModelShape
    base: str | None


def convert_adapter(flags: ConvertFlags, lora: LoraFlags) -> None:
    """Write the adapter alone, in the format that the flags ask for.

    Raises:
        UserError: whatever is wrong with the request or the files; then nothing is left behind.
    """
    start = time.perf_counter()
    _refuse_what_is_for_weights(flags)
    load, save = folders(flags)
    opened = _open(flags, lora, load)
    if lora.save_lora_to_hf:
        tensors, nbytes, hint = _to_hf(flags, opened, save)
    else:
        tensors, nbytes, hint = _to_megatron(flags, opened, save)
    box(
        "converted",
        [
            f"adapter   {opened.adapter.describe()}",
            *opened.adapter.notes,
            f"tensors   {len(opened.adapter.names)} pairs read, {tensors} tensors written",
            f"bytes     {nbytes:,} in {time.perf_counter() - start:.1f} s",
            "✓ roundtrip   read back, every pair equal bit by bit",
            f"next      {hint}",
        ],
    )


def _refuse_what_is_for_weights(flags: ConvertFlags) -> None:
    given = {
        "--params-dtype": flags.params_dtype,
        "--num-layers": flags.num_layers,
        "--sha256": flags.sha256,
        "--ckpt-format torch_dist": flags.ckpt_format != "torch",
        "--verify logits": flags.verify == "logits",
    }
    names = [name for name, value in given.items() if value]
    if names:
        raise UserError(
            f"{', '.join(names)}: for weights only; an adapter alone keeps its type, is written as "
            "rank files of format torch, and is always read back and compared"
        )


def _check(opened: Opened, written: Adapter) -> None:
    """Raise UserError unless what was written adds the same as what was read."""
    entries = adaptable(opened.family, opened.shape)
    for name in opened.adapter.names:
        before, after = opened.adapter.pair(entries[name]), written.pair(entries[name])
        same = same_bits(before.a, after.a) and same_bits(before.b, after.b)
        if not same or not math.isclose(before.scale, after.scale, rel_tol=1e-12):
            raise UserError(f"the result failed its check: the pair of {name} changed on the way")


def _open(flags: ConvertFlags, lora: LoraFlags, load: Path) -> Opened:
    """The adapter: that of ``--lora-load`` for the model in ``load``, or ``load`` itself."""
    if lora.lora_load is not None:
        source = open_source(load, model_type_hf=flags.model_type_hf, hf_cfg_dir=flags.hf_cfg_dir)
        adapter = requested(lora, source.family, source.shape)
        base = str(load) if source.kind == "hf" else flags.hf_cfg_dir
        return Opened(adapter, source.family, source.shape, base)
    if not is_megatron(load):
        raise UserError(
            f"--load-dir {load} is no Megatron checkpoint, so the adapter must be named with "
            "--lora-load; --load-dir is then its base model"
        )
    args = read_args(load)
    family, shape, _ = read_metadata(argparse.Namespace(**args), args.get("padded_vocab_size"))
    adapter = MegatronAdapter(load, family, shape, lora.lora_alpha)
    compare(lora, adapter)
    return Opened(adapter, family, shape, flags.hf_cfg_dir)


def _to_hf(flags: ConvertFlags, opened: Opened, save: Path) -> tuple[int, int, str]:
    refuse_layout_flags(flags)
    if isinstance(opened.adapter, PeftAdapter):
        raise UserError(f"--save-lora-to-hf: {opened.adapter.path} is a PEFT adapter already")
    if save.exists() and any(save.iterdir()):
        raise UserError(f"--save-dir {save} is not empty; choose a new folder for the adapter")
    with atomic_folder(save) as folder:
        tensors, nbytes = write_peft(
            opened.adapter, opened.family, opened.shape, folder, opened.base
        )
        _check(opened, PeftAdapter(folder, opened.family, opened.shape))
    return tensors, nbytes, f'PeftModel.from_pretrained(model, "{save}")'


def _to_megatron(flags: ConvertFlags, opened: Opened, save: Path) -> tuple[int, int, str]:
    refuse_existing_checkpoint(save)
    layout = target_layout(flags, opened.shape)
    writer = MegatronAdapterWriter(opened.adapter, opened.family, opened.shape, layout)
    place = paths.iteration_folder(save, ITERATION)
    with atomic_folder(place) as folder:
        writer.write(folder)
    _check(opened, MegatronAdapter(place, opened.family, opened.shape))
    paths.write_pointer(save, ITERATION)
    hint = f"convert_ckpt_v2.py --lora-load {save} merges it into a base"
    return writer.tensors, writer.nbytes, hint
