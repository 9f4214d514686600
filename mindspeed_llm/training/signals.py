"""Stopping on request: a signal is noted, and acted upon between two iterations by all ranks."""

from __future__ import annotations

import signal
import time

import torch


class StopRequest:
    """Collects the reasons for which a run may have to end early.

    Args:
        handle_signals: note SIGTERM and SIGINT instead of dying of them.
        minutes: end after this many minutes since the start.
        interval: end when the iteration is a multiple of this.
    """

    def __init__(
        self, handle_signals: bool, minutes: float | None = None, interval: int | None = None
    ) -> None:
        self._received: int | None = None
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._interval = interval
        self._handles_signals = handle_signals
        if handle_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self._received = number

    def reason(self, iteration: int, device: torch.device) -> str | None:
        """Why to stop now, the same on every rank; None to go on.

        A signal or the clock may reach one rank first, so the ranks agree by a maximum.
        """
        if self._interval and iteration % self._interval == 0:
            return f"--exit-interval {self._interval}"
        if not self._handles_signals and self._deadline is None:
            return None
        late = self._deadline is not None and time.monotonic() >= self._deadline
        flags = torch.tensor([self._received or 0, int(late)], device=device)
        torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        received, late_somewhere = flags.tolist()
        if received:
            return f"signal {signal.Signals(received).name}"
        return "--exit-duration-in-mins" if late_somewhere else None
