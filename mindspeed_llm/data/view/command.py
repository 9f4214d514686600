"""``mindspeed-llm data show PREFIX`` and ``data stats PREFIX``: what training will see.

    mindspeed-llm data show data/alpaca --samples 3
    mindspeed-llm data stats data/alpaca --plot alpaca.html

PREFIX is what ``--data-path`` takes: of instruction and preference data the name before
``_packed_``, of text the whole name up to ``_document``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mindspeed.errors import UserError
from mindspeed_llm.console import box, warn
from mindspeed_llm.data.storage.indexed import idx_path
from mindspeed_llm.data.storage.manifest import check_tokenizer, read_note_of_data
from mindspeed_llm.data.storage.parts import INSTRUCTION, PAIRWISE, Part, Parts, part_prefix
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer


def main(argv: list[str]) -> int:
    """Show samples, or count them; 1 if the numbers are suspicious."""
    options = _parser().parse_args(argv)
    data = open_data(options.prefix)
    tokenizer = find_tokenizer(options.prefix, options.tokenizer_name_or_path)
    if options.what == "show":
        _show(data, tokenizer, options)
        return 0
    return _stats(data, tokenizer, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mindspeed-llm data",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_subparsers(dest="what", required=True, metavar="show|stats")
    show = what.add_parser("show", help="print samples, the trained tokens marked")
    stats = what.add_parser("stats", help="lengths, trained share, packing, what is suspicious")
    for one in (show, stats):
        one.add_argument("prefix", metavar="PREFIX", help="as --data-path names the data")
        one.add_argument(
            "--tokenizer-name-or-path",
            "--tokenizer",
            metavar="DIR",
            help="the tokenizer's folder; left out: the one that the data was made with",
        )
    show.add_argument("--start", type=int, default=0, help="number of the first row")
    show.add_argument("--samples", type=int, default=3, help="rows to print")
    show.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: on a terminal, unless NO_COLOR is set",
    )
    stats.add_argument("--plot", type=Path, metavar="FILE", help="histograms, as .png or .html")
    return parser


def open_data(prefix: str) -> Parts | Part:
    """Instruction data, pairs, or the documents of text.

    Raises:
        UserError: nothing of that name is there.
    """
    if idx_path(prefix).is_file():
        return Part(prefix, signed=False)
    if idx_path(part_prefix(prefix, PAIRWISE[0])).is_file():
        return Parts(prefix, PAIRWISE, "PREFIX")
    return Parts(prefix, INSTRUCTION, "PREFIX")


def find_tokenizer(prefix: str, folder: str | None) -> Tokenizer | None:
    """The tokenizer that was named, or that of the data's note; None if that is not there.

    Raises:
        UserError: the named one is not there, or not the data's.
    """
    if folder is None:
        note = read_note_of_data(prefix)
        if note is None or not Path(note.tokenizer).is_dir():
            where = "has no note" if note is None else f"was made with {note.tokenizer}, now gone"
            warn(f"{prefix} {where}: tokens are shown as ids (name a --tokenizer-name-or-path)")
            return None
        folder = note.tokenizer
    tokenizer = load_hf_tokenizer(Path(folder))
    check_tokenizer(prefix, tokenizer)
    return tokenizer


def _columns(
    data: Parts | Part, row: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Name, tokens, labels and numbers of samples of each text of a row."""
    if isinstance(data, Part):
        ids = data[row].astype(np.int64)
        yield "document", ids, ids, np.ones_like(ids)
        return
    found = data[row]
    if data.keys is PAIRWISE:
        for name in ("chosen", "rejected"):
            ids = found[f"{name}_input_ids"]
            yield f"row {name}", ids, found[f"{name}_labels"], np.ones_like(ids)
        return
    yield "row", found["input_ids"], found["labels"], found["attention_mask"]


def _show(data: Parts | Part, tokenizer: Tokenizer | None, options: argparse.Namespace) -> None:
    from mindspeed_llm.data.view.show import Viewer

    if not 0 <= options.start < len(data):
        raise UserError(f"--start {options.start}: {options.prefix} has rows 0 to {len(data) - 1}.")
    automatic = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    viewer = Viewer(tokenizer, {"always": True, "never": False}.get(options.color, automatic))
    print(viewer.legend())
    for row in range(options.start, min(len(data), options.start + options.samples)):
        for name, ids, labels, segments in _columns(data, row):
            print(f"\n== {name} {row}: {len(ids)} tokens")
            print(viewer.row(ids, labels, segments))


def _stats(data: Parts | Part, tokenizer: Tokenizer | None, options: argparse.Namespace) -> int:
    from mindspeed_llm.data.view.stats import bars, collect_all

    found = collect_all(data)
    problems = 0
    for name, answers in found.items():
        lines = answers.lines()
        ends = answers.last.most_common(3)
        if ends:
            shown = (
                f"{tokenizer.decode([token])!r}" if tokenizer else str(token) for token, _ in ends
            )
            shares = (count / answers.last.total() for _, count in ends)
            parts = (f"{text} {share:.0%}" for text, share in zip(shown, shares, strict=True))
            lines.append(f"last      trained token of a sample: {', '.join(parts)}")
        box(f"{options.prefix} {name}".strip(), [*lines, "", *bars(answers.lengths)])
        if not isinstance(data, Part):
            for problem in answers.problems():
                warn(f"{name + ': ' if name else ''}{problem}")
                problems += 1
    if options.plot:
        from mindspeed_llm.data.view.plot import plot

        plot(found, options.prefix, options.plot)
        print(f"> {options.plot}")
    return 1 if problems else 0
