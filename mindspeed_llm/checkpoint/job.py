"""Carrying a planned conversion out: write, check, report, and then put the result in place."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import resume
from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.metadata import DTYPE_SHORT
from mindspeed_llm.checkpoint.report import Report
from mindspeed_llm.checkpoint.resume import Request, Unfinished, unfinished
from mindspeed_llm.checkpoint.source import WeightSource
from mindspeed_llm.checkpoint.verify import Check, Conversion, verify
from mindspeed_llm.console import progress

if TYPE_CHECKING:
    from mindspeed_llm.flags.convert import ConvertFlags

SPARE_BYTES = 64 << 20
"""Room to leave on the disk beyond the tensors' own bytes."""
NOT_IN_REQUEST = ("save_dir", "verify", "sha256")
"""Flags that do not change a byte of the weights."""


class Writer(Protocol):
    """What writes one form of checkpoint."""

    def nbytes(self) -> int:
        """Bytes of tensor data that will be written."""
        ...

    def tensors(self) -> int:
        """Number of tensors that will be written."""
        ...

    def main_dtype(self) -> torch.dtype:
        """The type that most of the written weights have."""
        ...


@dataclass(frozen=True)
class Job:
    """One conversion, checked and ready.

    Attributes:
        target: kind and layout of the result in a few words.
        last: files without which the result is not a checkpoint yet; they appear last.
        notes: lines for the report.
    """

    flags: ConvertFlags
    source: WeightSource
    writer: Writer
    cast: Caster
    target: str
    last: Sequence[str]
    notes: list[str]

    def run(self, write: Callable[[Unfinished], None], hint: str) -> Report:
        """Write with ``write`` into a folder that becomes ``--save-dir``; check; report.

        Args:
            hint: the command to go on with.

        Raises:
            UserError: the disk is full, a check failed, or the source changed meanwhile; then
                nothing is left behind.
        """
        start = time.perf_counter()
        save, request = self._save, self._request()
        check_space(save, self.writer.nbytes())
        with unfinished(save, request, self.cast, self.last) as work:
            if not work.whole:
                with self._bar(work):
                    write(work)
                self._check_source(request)
                self._report(work, start).save(work.folder)
        report = Report.load(save)
        report.show(hint)
        return report

    @property
    def _save(self) -> Path:
        assert self.flags.save_dir is not None
        return Path(self.flags.save_dir)

    @property
    def _load(self) -> Path:
        assert self.flags.load_dir is not None
        return Path(self.flags.load_dir)

    def _request(self) -> Request:
        flags = dataclasses.asdict(self.flags)
        return {
            "flags": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in flags.items()
                if name not in NOT_IN_REQUEST
            },
            "adapter": str(getattr(getattr(self.source, "adapter", None), "settings", None)),
            "files": resume.source_files(self.source.files),
            "code": resume.code_version(),
        }

    def _check_source(self, request: Request) -> None:
        if resume.source_files(self.source.files) != request["files"]:
            raise UserError(
                f"{self._load} was changed while it was read, so the result may be mixed and was "
                "removed; convert again when nothing writes there"
            )

    def _report(self, work: Unfinished, start: float) -> Report:
        seconds = time.perf_counter() - start
        checks = self._verify(work)
        source, writer = self.source, self.writer
        return Report(
            family=source.family.name,
            parameters=source.family.num_parameters(source.shape),
            source={"folder": str(self._load), "layout": source.describe()},
            target={"folder": str(self._save), "layout": self.target},
            read=len(source.entries()),
            written=writer.tensors(),
            nbytes=writer.nbytes(),
            kept=work.kept_bytes,
            dtype=DTYPE_SHORT[writer.main_dtype()],
            not_finite=sorted(self.cast.not_finite),
            notes=self.notes,
            checks=checks,
            seconds=seconds,
            seconds_verifying=time.perf_counter() - start - seconds,
        )

    def _verify(self, work: Unfinished) -> list[Check]:
        conversion = Conversion(
            self.source, self.cast, self._load, work.folder, self.flags.hf_cfg_dir
        )
        return verify(conversion, self.flags.verify)

    @contextmanager
    def _bar(self, work: Unfinished) -> Iterator[None]:
        """A progress bar; a full or failing disk becomes a UserError."""
        try:
            with progress("B", self.writer.nbytes(), "converting", work.kept_bytes) as bar:
                work.on_bytes = bar.update
                yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise
            raise UserError(
                f"writing to {self._save} failed: {error.strerror}; nothing was left behind"
            ) from None


def check_space(save: Path, nbytes: int) -> None:
    """Refuse a target that cannot be written to, or whose disk is too small for ``nbytes``.

    Raises:
        UserError: with the sizes.
    """
    existing = next(p for p in (save.resolve(), *save.resolve().parents) if p.exists())
    if not os.access(existing, os.W_OK):
        raise UserError(f"--save-dir {save}: no permission to write in {existing}")
    free = shutil.disk_usage(existing).free + resume.left_over_bytes(save)
    if free < nbytes + SPARE_BYTES:
        raise UserError(
            f"--save-dir {save}: {nbytes / 1e9:.2f} GB will be written, but the disk has "
            f"{free / 1e9:.2f} GB free; make room or choose another disk"
        )
