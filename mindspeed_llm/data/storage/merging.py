"""Join data sets of several runs (``--merge-group-keys``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.console import say
from mindspeed_llm.data.storage.indexed import IndexHeader
from mindspeed_llm.data.storage.manifest import merge_manifests
from mindspeed_llm.data.storage.stored import merge_indexed


def merge_groups(folder: Path, output_prefix: str, groups: Sequence[str]) -> dict[str, Path]:
    """Merge the data sets of ``folder`` whose names contain a group's key, in order of their names.

    Returns:
        for each key the merged data set, ``{output_prefix}_{key}``.

    Raises:
        UserError: no such folder, no data set of a group, or data sets that do not go together.
    """
    if not folder.is_dir():
        raise UserError(f"--merge-group-keys: --input {folder} is not a folder of data sets.")
    names = sorted(path.stem for path in folder.glob("*.idx"))
    members = {key: [folder / name for name in names if key in name] for key in groups}
    for key, prefixes in members.items():
        if not prefixes:
            raise UserError(
                f'--merge-group-keys {key}: no data set in {folder} has "{key}" in its name; '
                f"there are: {', '.join(names[:10]) or 'none'}."
            )
    targets = {key: Path(f"{output_prefix}_{key}") for key in groups}
    for key, target in targets.items():
        if target.resolve() in [prefix.resolve() for prefix in members[key]]:
            raise UserError(f"{target}: the merged data set would replace one of its parts.")
    _check_rows(members)
    for key, prefixes in members.items():
        merge_set(prefixes, targets[key])
    return targets


def merge_set(prefixes: Sequence[Path], target: Path) -> None:
    """Merge data sets, and the notes beside them.

    Raises:
        UserError: they do not go together.
    """
    manifest = merge_manifests(prefixes)
    writer = merge_indexed(prefixes, target)
    if manifest:
        manifest.write(target)
    say(
        f"> {target}: {writer.documents:,} documents, {writer.tokens:,} tokens of "
        f"{len(prefixes)} data sets: {', '.join(prefix.name for prefix in prefixes)}"
    )


def _check_rows(members: Mapping[str, Sequence[Path]]) -> None:
    """Check that groups which belong together (ids, labels ...) have the same rows.

    Data sets of chats are read side by side, so one that lacks a part would shift every row.
    """
    parts = {key: prefixes for key, prefixes in members.items() if _is_part(prefixes)}
    counts = {
        key: [IndexHeader(prefix).sequences for prefix in prefixes]
        for key, prefixes in parts.items()
    }
    for key, found in counts.items():
        first = next(iter(counts))
        if found != counts[first]:
            raise UserError(
                f"--merge-group-keys: the data sets of {key} have {found} rows, those of {first} "
                f"{counts[first]}: they are not parts of the same runs, or one is missing."
            )


def _is_part(prefixes: Sequence[Path]) -> bool:
    return all("_packed_" in prefix.name for prefix in prefixes)
