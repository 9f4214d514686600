"""``mindspeed-llm inspect PATH``: what a checkpoint is, and whether all of it is there.

Only names, sizes and headers are read. Whatever is wrong is listed, not only the first thing;
then the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mindspeed.errors import UserError
from mindspeed_llm.console import box

if TYPE_CHECKING:
    from mindspeed_llm.checkpoint.source import WeightSource

T = TypeVar("T")

STATES = {
    "optimizer": ("optimizer", "chained_0.", "optimizer_state"),
    "scheduler": ("opt_param_scheduler",),
    "random generators": ("rng_state",),
}
"""Parts of a training state: what they are called, and the keys that show them."""
DISTRIBUTED_OPTIMIZER = "distrib_optim.pt"


@dataclass
class Findings:
    """What was found in a folder.

    Attributes:
        facts: title -> value in plain types, in the order in which they are shown.
        problems: what is wrong, one line each or more.
    """

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def attempt(self, read: Callable[[], T]) -> T | None:
        """The result of ``read``; a UserError becomes a problem, and None."""
        try:
            return read()
        except UserError as error:
            self.problems.append(str(error))
            return None

    def add_model(self, source: WeightSource) -> None:
        """Facts that every kind of checkpoint has."""
        shape = source.shape
        self.facts["family"] = source.family.name
        self.facts["parameters"] = source.family.num_parameters(shape)
        self.facts["shape"] = {k: v for k, v in shape.to_dict().items() if v is not None}
        self.facts["layout"] = source.describe()


def main(argv: list[str]) -> int:
    """Print what ``PATH`` holds; 1 if something is wrong with it."""
    parser = argparse.ArgumentParser(
        prog="mindspeed-llm inspect", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="checkpoint, HF or Megatron")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--sha256", type=Path, metavar="FILE", help="compare with sums (sha256sum format)"
    )
    options = parser.parse_args(argv)
    found = inspect(options.path, options.sha256)
    if options.json:
        values = {"path": str(found.path), **found.facts, "problems": found.problems}
        print(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        _show(found)
    return 1 if found.problems else 0


def inspect(path: Path, sums: Path | None = None) -> Findings:
    """Look at a Hugging Face folder or a Megatron checkpoint.

    Args:
        sums: file of SHA-256 sums to compare all files with.

    Raises:
        UserError: if ``path`` is no checkpoint at all, or ``sums`` cannot be read.
    """
    from mindspeed_llm.checkpoint.sha256 import read_sums, sum_problems
    from mindspeed_llm.checkpoint.source import is_megatron

    if not path.is_dir():
        raise UserError(f"{path} is not a folder; give a Hugging Face folder or a checkpoint")
    found = Findings(path)
    if is_megatron(path):
        _megatron(found)
    elif (path / "config.json").is_file() or any(path.glob("*.safetensors")):
        _hugging_face(found)
    else:
        names = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        raise UserError(
            f"{path} holds neither a Hugging Face model nor a Megatron checkpoint, but: {names}"
        )
    if sums is not None:
        table = read_sums(sums)
        lines = sum_problems(path, table)
        found.facts["sha256"] = f"{len(table)} files compared, {len(lines)} problems"
        found.problems += lines
    return found


def _hugging_face(found: Findings) -> None:
    from mindspeed_llm.checkpoint.hf_reader import weight_files
    from mindspeed_llm.checkpoint.hf_source import HfSource
    from mindspeed_llm.checkpoint.safetensors_file import read_header
    from mindspeed_llm.models.registry import family_of_hf_config, read_hf_config

    path = found.path
    found.facts["kind"] = "Hugging Face"
    config = found.attempt(lambda: read_hf_config(path))
    if config is not None:
        found.facts["architecture"] = (config.get("architectures") or [config.get("model_type")])[0]
        found.attempt(lambda: family_of_hf_config(config, str(path / "config.json")))
    listed = found.attempt(lambda: weight_files(path)[1])
    files = listed or sorted(path.glob("*.safetensors"))
    _add_sizes(found, files)
    types: Counter[str] = Counter()
    for file in files:
        if file.suffix == ".safetensors":
            header = found.attempt(lambda file=file: read_header(file)) or {}  # type: ignore[misc]
            for stored in header.values():
                types[stored.dtype] += stored.nbytes
    if types:
        found.facts["types"] = dict(types.most_common())
    _add_side_files(found, path)
    if found.problems:
        return
    source = found.attempt(lambda: HfSource(path))
    if source is not None:
        found.add_model(source)
        found.attempt(source.check)


def _add_sizes(found: Findings, files: list[Path]) -> None:
    found.facts["files"] = {str(p.relative_to(found.path)): p.stat().st_size for p in files}
    found.facts["bytes"] = sum(found.facts["files"].values())


def _add_side_files(found: Findings, folder: Path | None) -> None:
    from mindspeed_llm.checkpoint import side_files
    from mindspeed_llm.checkpoint.export_config import has_tokenizer

    names = [p.name for p in side_files.listed(folder)] if folder and folder.is_dir() else []
    found.facts["side files"] = names
    found.facts["tokenizer"] = bool(names) and folder is not None and has_tokenizer(folder)


def _megatron(found: Findings) -> None:
    from mindspeed_llm.checkpoint import paths
    from mindspeed_llm.checkpoint.source import open_source

    path = found.path
    is_root = (path / paths.POINTER).exists() or bool(paths.iterations(path))
    if is_root:
        _add_iterations(found)
    source = found.attempt(lambda: open_source(path))
    if source is None:
        found.facts.setdefault("kind", "Megatron")
        return
    found.facts["kind"] = f"Megatron {source.kind}"
    found.facts["iteration"] = source.iteration
    found.add_model(source)
    _add_sizes_below(found, source.path)
    types: Counter[str] = Counter()

    def count_types() -> None:
        for entry in source.entries():
            for dtype in source.dtypes(entry):
                types[str(dtype).removeprefix("torch.")] += prod(entry.dims(source.shape))

    found.attempt(count_types)
    found.facts["types"] = dict(types.most_common())
    _add_side_files(found, source.side_folder)
    keys = found.attempt(lambda: _state_keys(found, source.path)) or set()
    for title, prefixes in STATES.items():
        found.facts[title] = any(key.startswith(prefix) for key in keys for prefix in prefixes)
    found.attempt(source.check)


def _add_iterations(found: Findings) -> None:
    """Every iteration, whether complete; unfinished conversions and saves."""
    from mindspeed_llm.checkpoint import paths

    root = found.path
    found.facts["pointer"] = found.attempt(lambda: paths.read_pointer(root))
    found.facts["iterations"] = iterations = paths.iterations(root)
    for iteration in iterations:
        missing = paths.missing_parts(paths.iteration_folder(root, iteration))
        if missing and iteration != found.facts["pointer"]:
            found.problems.append(
                f"iteration {iteration} is incomplete: {', '.join(missing[:4])} missing or empty"
            )
    unfinished = sorted(p.name for p in root.glob(".*partial"))
    if unfinished:
        found.facts["unfinished"] = unfinished


def _add_sizes_below(found: Findings, folder: Path) -> None:
    sizes = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    found.facts["files"] = sizes
    found.facts["bytes"] = sum(sizes.values())


def _state_keys(found: Findings, folder: Path) -> set[str]:
    """Names of everything that a checkpoint stores besides tensors of the model."""
    from mindspeed_llm.checkpoint import paths
    from mindspeed_llm.checkpoint.safe_load import load_file

    if paths.is_torch_dist(folder):
        keys = set(load_file(folder / "common.pt"))
        return keys | _stored_pieces(found, folder)
    keys = set(load_file(paths.first_rank_file(folder)))
    if any(folder.rglob(DISTRIBUTED_OPTIMIZER)):
        keys.add("optimizer")
    return keys


def _stored_pieces(found: Findings, folder: Path) -> set[str]:
    """Keys of a torch_dist checkpoint; a piece that no file holds is a problem."""
    from mindspeed_llm.checkpoint.dist_source import SafeReader

    metadata = SafeReader(folder).read_metadata()
    ends: Counter[str] = Counter()
    for place in metadata.storage_data.values():
        ends[place.relative_path] = max(ends[place.relative_path], place.offset + place.length)
    for name, end in sorted(ends.items()):
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            found.problems.append(f"{name} is missing; it should hold {end:,} bytes")
        elif size < end:
            found.problems.append(f"{name} is cut off: {size:,} of {end:,} bytes")
    return set(metadata.state_dict_metadata)


def _show(found: Findings) -> None:
    facts = dict(found.facts)
    shape, files = facts.pop("shape", None), facts.pop("files", {})
    lines = [f"{title:<18} {_text(title, value)}" for title, value in facts.items()]
    lines += [f"{'shape':<18} {line}" for line in _wrapped(shape or {})[:1]]
    lines += [f"{'':<18} {line}" for line in _wrapped(shape or {})[1:]]
    if files:
        largest = max(files, key=lambda name: files[name])
        lines.append(f"{'files':<18} {len(files)}, the largest {_size(files[largest])} ({largest})")
    box(str(found.path), lines)
    for problem in found.problems:
        print(f"✗ {problem}")
    print("nothing is missing" if not found.problems else f"{len(found.problems)} problem(s)")


def _text(title: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if title == "bytes":
        return _size(value)
    if title == "types":
        return ", ".join(f"{name} {_share(count, value)}" for name, count in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and title == "parameters" else str(value)


def _share(count: int, all_counts: dict[str, int]) -> str:
    share = 100 * count / sum(all_counts.values())
    return f"{share:.0f}%" if share >= 1 else "<1%"


def _size(nbytes: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"


def _wrapped(shape: dict[str, Any]) -> list[str]:
    import textwrap

    text = ", ".join(f"{name} {value}" for name, value in shape.items() if value is not False)
    width = min(100, os.get_terminal_size().columns if os.isatty(1) else 100)
    return textwrap.wrap(text, width - 25)
