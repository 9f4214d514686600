"""The rules of the design that can be read off the source: who imports whom, and file sizes."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspeed_llm.cli import VERBS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path for package in ("mindspeed", "mindspeed_llm") for path in (ROOT / package).rglob("*.py")
)
# Who must not be imported by whom. Prefixes of dotted names; a part may always import itself.
FORBIDDEN = {
    "mindspeed": ("mindspeed_llm",),
    "mindspeed_llm.models": (
        "mindspeed_llm.training",
        "mindspeed_llm.checkpoint",
        "mindspeed_llm.data",
        "mindspeed_llm.flags",
        "mindspeed_llm.inference",
    ),
    "mindspeed_llm.data": (
        "mindspeed_llm.training",
        "mindspeed_llm.checkpoint",
        "mindspeed_llm.models",
        "mindspeed_llm.inference",
    ),
    "mindspeed_llm.flags": (
        "mindspeed_llm.training",
        "mindspeed_llm.checkpoint",
        "mindspeed_llm.data",
        "mindspeed_llm.inference",
    ),
    "mindspeed_llm.checkpoint": ("mindspeed_llm.training", "mindspeed_llm.inference"),
}
HEAVY = ("torch", "megatron", "transformers", "datasets", "pyarrow", "matplotlib")
LONGEST_FILE = 350


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every imported dotted name in a file, at any depth, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_parts_import_only_what_lies_below_them() -> None:
    breaches = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in SOURCES
        for name, line in imports(path)
        for part, forbidden in FORBIDDEN.items()
        if is_within(module_of(path), part)
        and any(is_within(name, package) for package in forbidden)
    ]
    assert not breaches, "\n".join(breaches)


def test_only_the_root_scripts_and_the_cli_lie_above_the_verbs() -> None:
    """No part imports the command line that dispatches to it."""
    breaches = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.name != "cli.py" and any(name == "mindspeed_llm.cli" for name, _ in imports(path))
    ]
    assert not breaches


# torch_npu's operators are what an NPU form is made of; CUDA is named where types or symbols of
# Megatron's are matched as text.
DEVICE_FREE = [path for path in SOURCES if not is_within(module_of(path), "mindspeed.device")]


def attribute_chains(path: Path) -> Iterator[tuple[str, int]]:
    """``a.b.c`` expressions of a file, as text, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node), node.lineno


@pytest.mark.parametrize("path", DEVICE_FREE, ids=lambda path: module_of(path))
def test_only_the_device_layer_touches_torch_cuda(path: Path) -> None:
    breaches = [
        f"line {line}: {text}"
        for text, line in attribute_chains(path)
        if text.startswith(("torch.cuda", "torch.npu"))
    ]
    breaches += [
        f"line {line}: import {name}"
        for name, line in imports(path)
        if name.startswith(("torch.cuda", "torch_npu"))
        and not is_within(module_of(path), "mindspeed.ops")
    ]
    assert not breaches, breaches


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_quick_and_imports_nothing_heavy(verb: str) -> None:
    code = (
        "import sys\n"
        "from mindspeed_llm.cli import dispatch\n"
        "try:\n"
        f"    dispatch([{verb!r}, '--help'])\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    # Processor time of the child: the other test process must not count.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage: ")
    assert result.stderr.strip() == "[]"
    assert seconds < 2.0


def test_files_stay_small_enough_to_read() -> None:
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines())
        for path in [*SOURCES, *ROOT.glob("*.py"), *(ROOT / "tests").rglob("*.py")]
    }
    long = {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > LONGEST_FILE}
    assert not long, f"over {LONGEST_FILE} lines: {long}"
    ours = sorted(lengths[path] for path in SOURCES)
    assert ours[len(ours) // 2] < 200


def test_every_module_says_what_it_does() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if (tree := ast.parse(path.read_text(encoding="utf-8"))).body
        and ast.get_docstring(tree) is None
    ]
    assert not silent
