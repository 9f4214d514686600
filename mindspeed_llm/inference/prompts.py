"""Where prompts come from: flags, standard input, or one for demonstration."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator

import torch
from megatron.core import parallel_state

from mindspeed.errors import UserError
from mindspeed_llm.console import rank

DEMONSTRATION = "how are you?"


def prompt_sets(given: tuple[str, ...] | None) -> Iterator[tuple[str, ...]]:
    """Sets of prompts to answer one after another, on every rank of the first model copy.

    Those of ``--prompt`` are one set. Else a terminal gives one a line until its end (Ctrl-D),
    and a pipe or a file is one prompt as a whole. Without any (standard input closed, or
    ``/dev/null`` as under ``nohup``) there is a demonstration.

    Raises:
        UserError: a pipe or file without text.
    """
    if given:
        yield given
        return
    source = _everywhere(_kind() if rank() == 0 else None)
    if source == "terminal":
        while (line := _everywhere(_read_line() if rank() == 0 else None)) is not None:
            if line.strip():
                yield (line,)
        return
    if source == "nothing":
        yield (DEMONSTRATION,)
        return
    text = _everywhere(_read_all() if rank() == 0 else None)
    if not text.strip():
        raise UserError("standard input is empty; give a prompt there or with --prompt")
    yield (text,)


def _kind() -> str:
    """What standard input is: terminal, text or nothing."""
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):
        return "nothing"
    if os.isatty(descriptor):
        return "terminal"
    return "nothing" if stat.S_ISCHR(mode) else "text"


def _read_line() -> str | None:
    print("\nYou >> ", end="", flush=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _read_all() -> str:
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 text ({error})") from None


def _everywhere(value):
    """Rank 0's value on every rank of its copy of the model."""
    box = [value]
    group = parallel_state.get_model_parallel_group()
    torch.distributed.broadcast_object_list(box, src=0, group=group)
    return box[0]
