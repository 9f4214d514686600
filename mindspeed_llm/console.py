"""What the commands say on a terminal: lines, boxes, progress, errors. Rank 0 speaks for all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from mindspeed.errors import UserError


def rank() -> int:
    """This process's rank as the launcher gave it (0 when it is alone)."""
    return int(os.environ.get("RANK", "0"))


def say(text: str) -> None:
    """Print one line, on rank 0 only, at once even through a pipe."""
    if rank() == 0:
        print(text, flush=True)


def warn(text: str) -> None:
    """Print one warning line to stderr, on rank 0 only."""
    if rank() == 0:
        print(f"warning: {text}", file=sys.stderr, flush=True)


def box(title: str, lines: list[str]) -> None:
    """Print ``lines`` in a titled frame, on rank 0 only."""
    if rank() != 0:
        return
    width = max([len(title) + 2, *(len(line) for line in lines)])
    print(f"┌─ {title} {'─' * (width - len(title) - 1)}┐")
    for line in lines:
        print(f"│ {line.ljust(width)} │")
    print(f"└{'─' * (width + 2)}┘", flush=True)


def progress(unit: str, total: float | None = None, description: str = "", done: float = 0):
    """A ``tqdm`` bar on rank 0 of a terminal, silent elsewhere.

    Args:
        unit: what is counted ("B" gets binary prefixes).
        total: the count at the end, if known.
        done: the count at the start, of which speed and time left take no account.
    """
    from tqdm import tqdm

    return tqdm(
        total=total,
        unit=unit,
        desc=description,
        initial=done,
        unit_scale=True,
        unit_divisor=1024 if unit == "B" else 1000,
        disable=rank() != 0 or not sys.stderr.isatty(),
        mininterval=0.2,
        leave=False,
    )


def entry_point(main: Callable[[list[str]], int | None], argv: list[str] | None = None) -> None:
    """Run ``main(argv)`` as a command: user errors become one message and exit status 2.

    With several processes every rank may meet the same error; rank 0's words are printed, and
    those of another rank only carry its number.
    """
    try:
        status = main(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        where = f" [rank {rank()}]" if rank() else ""
        print(f"error{where}: {error}", file=sys.stderr, flush=True)
        status = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        status = 130
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    sys.exit(status or 0)
