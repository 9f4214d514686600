"""Published SHA-256 sums against the files of a folder, before anything is made of them."""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.console import progress, say

# "<sum>  name", "<sum> *name" (sha256sum), and "SHA256 (name) = <sum>" (its --tag form).
_PLAIN = re.compile(r"\\?([0-9a-fA-F]{64}) [ *]?(.+)$")
_TAGGED = re.compile(r"\\?SHA256 \((.+)\) = ([0-9a-fA-F]{64})$")
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.distcp")
THREADS = 2
_BLOCK = 8 << 20


def read_sums(path: Path) -> dict[str, str]:
    """Name -> sum of a file in the format of ``sha256sum``.

    Raises:
        UserError: if it cannot be read or a line is of another form, with the line's number.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--sha256 {path} cannot be read: {error}") from None
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, value = _entry(line.rstrip(), f"--sha256 {path}:{number}")
        if sums.setdefault(name, value) != value:
            raise UserError(f"--sha256 {path}:{number}: {name} has two different sums")
    if not sums:
        raise UserError(f"--sha256 {path} holds no sums; make it with: sha256sum * > FILE")
    return sums


def _entry(line: str, where: str) -> tuple[str, str]:
    if match := _PLAIN.match(line):
        value, name = match.groups()
    elif match := _TAGGED.match(line):
        name, value = match.groups()
    else:
        raise UserError(f"{where} is not a line of sha256sum (64 digits, two blanks, a name)")
    relative = Path(name.removeprefix("./"))
    if relative.is_absolute() or ".." in relative.parts:
        raise UserError(f"{where}: {name} lies outside the folder that is checked")
    return str(relative), value.lower()


def sum_problems(folder: Path, sums: dict[str, str]) -> list[str]:
    """Lines on files that are missing, differ, or hold weights and have no sum."""
    present = {name: folder / name for name in sums if (folder / name).is_file()}
    lines = [f"{name}: missing" for name in sums if name not in present]
    weights = {str(p.relative_to(folder)) for kind in WEIGHTS for p in folder.rglob(kind)}
    lines += [f"{name}: no sum is given for it" for name in sorted(weights - set(sums))]
    total = sum(path.stat().st_size for path in present.values())
    with progress("B", total, "checking sums") as bar, ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda path: sha256(path, bar.update), present.values())
        for name, value in zip(present, found, strict=True):
            if value != sums[name]:
                lines.append(f"{name}: another sum ({value[:12]}… instead of {sums[name][:12]}…)")
    return lines


def sha256(path: Path, told) -> str:  # type: ignore[no-untyped-def]
    """SHA-256 of a file in hexadecimal; ``told`` gets the bytes as they are read."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            told(len(block))
    return digest.hexdigest()


def require_sums(folder: Path, path: Path) -> None:
    """Check ``folder`` against the sums in ``path``.

    Raises:
        UserError: naming every file that is missing, differs, or is not covered.
    """
    sums = read_sums(path)
    lines = sum_problems(folder, sums)
    if lines:
        shown = "\n  ".join(lines[:12]) + (f"\n  … and {len(lines) - 12} more" * (len(lines) > 12))
        raise UserError(
            f"{folder} is not what --sha256 {path} describes:\n  {shown}\ndownload these again"
        )
    say(f"sha256    {len(sums)} files as published")
