"""Hugging Face weights beside the checkpoints of a run (``--enable-mg2hf-convert``)."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from mindspeed_llm.checkpoint import paths
from mindspeed_llm.checkpoint.convert import convert
from mindspeed_llm.files import replace_folder
from mindspeed_llm.flags.convert import ConvertFlags
from mindspeed_llm.training.setup import Run


def export_checkpoint(run: Run, iteration: int) -> None:
    """Convert a saved iteration to ``{--hf-save-dir or --save}/mg2hf_iteration{N}``.

    All ranks call it; the first one converts, through the files, with little memory. The folder
    appears as a whole, and replaces that of an earlier run.

    Raises:
        UserError: see :func:`mindspeed_llm.checkpoint.convert.convert`.
    """
    options = run.cfg.checkpoint
    assert options.save is not None
    if run.position.rank == 0:
        target = Path(options.hf_save_dir or options.save) / f"mg2hf_iteration{iteration}"
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        convert(
            ConvertFlags(
                load_model_type="mg",
                save_model_type="hf",
                load_dir=str(paths.iteration_folder(options.save, iteration)),
                save_dir=str(partial),
                hf_cfg_dir=options.hf_cfg_dir,
                # Logits would take a second model beside the one that trains.
                verify="roundtrip",
            )
        )
        replace_folder(partial, target)
    torch.distributed.barrier()
