"""The last words of a tuning run: the commands that use its result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mindspeed_llm.console import box

if TYPE_CHECKING:
    from mindspeed_llm.training.setup import Run


def show(run: Run) -> None:
    """Print how to generate with what was saved, and how to make a Hugging Face folder of it."""
    save = run.cfg.checkpoint.save
    if save is None:
        box("tuned", ["nothing was saved: give --save FOLDER --save-interval N to keep the result"])
        return
    box("tuned", commands(run, save))


def commands(run: Run, save: str) -> list[str]:
    """The lines of the box."""
    tokenizer = run.cfg.tokenizer.tokenizer_name_or_path or run.cfg.tokenizer.tokenizer_model
    folder = f"{save.rstrip('/')}-hf"
    words = ["mindspeed-llm generate", f"--load {save}"]
    if tokenizer:
        words.append(f"--tokenizer-type PretrainedFromHF --tokenizer-name-or-path {tokenizer}")
    options = run.cfg.checkpoint
    lines = [
        f"result      iteration {run.progress.iteration} in {save}",
        f"generate    {' '.join(words)} --prompt TEXT",
    ]
    if options.enable_mg2hf_convert:
        made = Path(options.hf_save_dir or save) / f"mg2hf_iteration{run.progress.iteration}"
        return [*lines, f"HF folder   {made}"]
    convert = "mindspeed-llm convert --load-model-type mg --save-model-type hf"
    return [*lines, f"HF folder   {convert} --load-dir {save} --save-dir {folder}"]
