"""``torch.load`` that builds only known, harmless classes; any other is refused by name."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mindspeed.errors import UserError

# Names as they stand in the files. Each only holds data: building one runs no code of the file's
# choosing. Resolved when a file mentions them, so numpy or megatron are not imported for others.
SAFE_NAMES = frozenset(
    [
        "argparse.Namespace",
        "types.SimpleNamespace",
        "datetime.timedelta",
        "signal.Signals",
        "pathlib.Path",
        "pathlib.PosixPath",
        "pathlib.PurePosixPath",
        "io.BytesIO",
        "_io.BytesIO",
        "_codecs.encode",
        "numpy.ndarray",
        "numpy.dtype",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
        "numpy.dtypes.UInt32DType",
        "numpy.dtypes.Int64DType",
        "numpy.dtypes.Float64DType",
        "megatron.core.enums.ModelType",
        "megatron.core.enums.Fp8Recipe",
        "megatron.core.enums.Fp4Recipe",
        "megatron.core.transformer.enums.ModelType",
        "megatron.core.transformer.enums.LayerType",
        "megatron.core.transformer.enums.AttnType",
        "megatron.core.transformer.enums.AttnMaskType",
        "megatron.core.transformer.enums.AttnBackend",
        "megatron.core.transformer.enums.CudaGraphScope",
        "megatron.core.rerun_state_machine.RerunDiagnostic",
        "megatron.core.rerun_state_machine.RerunMode",
        "megatron.core.rerun_state_machine.RerunState",
    ]
)
# Files saved with numpy 2 name numpy._core, which numpy 1 lacks, and the other way round.
_MOVED = (("numpy._core.", "numpy.core."), ("numpy.core.", "numpy._core."))


def load_file(path: Path | str, mmap: bool = True) -> Any:
    """Read a ``torch.save`` file onto the CPU.

    Args:
        mmap: map the tensors instead of reading them; only what is used is then read.

    Raises:
        UserError: if the file is missing, damaged, or names a class that is not in
            ``SAFE_NAMES``.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    zipped = _is_zip(path)
    try:
        allowed = _allow(path) if zipped else []
        with torch.serialization.safe_globals(allowed):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and zipped)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} was not loaded: it is damaged, or holds objects that could run code when "
            f"read ({_first_sentence(error)})"
        ) from None
    except (RuntimeError, EOFError, ValueError, OSError, KeyError, IndexError) as error:
        size = path.stat().st_size
        raise UserError(
            f"{path} ({size:,} bytes) is truncated or damaged: {_first_sentence(error)}. Copy or "
            "download it again, or use an earlier checkpoint"
        ) from None


def _is_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _allow(path: Path) -> list[Callable | tuple[Callable, str]]:
    """The classes the file needs beyond PyTorch's own, if all of them are safe."""
    wanted = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    unsafe = sorted(set(wanted) - SAFE_NAMES)
    if unsafe:
        raise UserError(
            f"{path} is refused: it would build {', '.join(unsafe)}, which can run code of the "
            "file's author. If you trust the file, rewrite it without these objects (load it "
            "yourself, keep tensors and plain values, torch.save it again)"
        )
    return [(_resolve(name, path), name) for name in wanted]


def _resolve(name: str, path: Path) -> Callable:
    candidates = [name] + [name.replace(a, b, 1) for a, b in _MOVED if name.startswith(a)]
    for candidate in candidates:
        module, _, attribute = candidate.rpartition(".")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    raise UserError(f"{path} needs {name}, which the installed packages do not have")


def _first_sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].split(". ")[0][:200].rstrip(".")
