"""Records to text: handler and template, in this process or in several, the order kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindspeed_llm.data.conversation import Conversation, Pair
from mindspeed_llm.data.handlers import Handler, Malformed, OddShape
from mindspeed_llm.data.handlers.roles import UNANSWERED
from mindspeed_llm.data.readers import Batch
from mindspeed_llm.data.templates import Rendered, Template, TemplateError, load_template
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer

# Seconds of work that pay for starting processes, each of which loads the tokenizer first.
WORTH_PROCESSES = 20.0


@dataclass
class Made:
    """What a batch of records became.

    Attributes:
        rendered: texts; of a pair first the chosen, then the rejected one.
        rows: for each sample (a pair is one), the index of its record in the batch.
        extras: for each sample, further values to carry along.
        malformed, odd, noted: index of a record, and what is wrong or was changed.
    """

    rendered: list[Rendered] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    extras: list[dict[str, Any]] = field(default_factory=list)
    malformed: list[tuple[int, str]] = field(default_factory=list)
    odd: list[tuple[int, str]] = field(default_factory=list)
    noted: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class TemplateChoice:
    """How to load a template, in whatever process.

    Attributes:
        folder, use_fast, trust_remote_code: of the tokenizer.
        options: keyword arguments of :func:`load_template`.
    """

    folder: Path
    use_fast: bool
    trust_remote_code: bool
    options: Mapping[str, Any]

    def load(self, tokenizer: Tokenizer | None = None) -> Template:
        """The template.

        Raises:
            UserError: see :func:`load_template`.
        """
        if tokenizer is None:
            tokenizer = load_hf_tokenizer(self.folder, self.use_fast, self.trust_remote_code)
        return load_template(tokenizer, **self.options)


@dataclass(frozen=True)
class Maker:
    """Makes texts of records.

    Attributes:
        handlers: the handler of each source of records.
        template: writes conversations.
    """

    handlers: Sequence[Handler]
    template: Template

    def make(self, batch: Batch) -> Made:
        """The texts of a batch."""
        made = Made()
        names = list(batch.columns)
        for index, values in enumerate(zip(*batch.columns.values(), strict=True)):
            handler = self.handlers[batch.sources[index] if batch.sources else 0]
            cut = handler.cut_turns
            try:
                sample = handler.sample(dict(zip(names, values, strict=True)))
                texts = self._texts(handler, sample)
            except Malformed as error:
                made.malformed.append((index, str(error)))
            except OddShape as error:
                made.odd.append((index, error.rule))
            except TemplateError as error:
                made.odd.append((index, f"template: {error}"))
            else:
                made.rendered += texts
                samples = 1 if isinstance(sample, Pair) else len(texts)
                extra = sample.prompt.extra if isinstance(sample, Pair) else sample.extra
                made.rows += [index] * samples
                made.extras += [extra] * samples
                if handler.cut_turns > cut:
                    made.noted.append((index, UNANSWERED))
        return made

    def _texts(self, handler: Handler, sample: Conversation | Pair) -> Sequence[Rendered]:
        if isinstance(sample, Pair):
            return self.template.pair(sample)
        if handler.kind == "prompt":
            return [Rendered(self.template.prompt(sample), ())]
        return self.template.samples(sample)


_maker: Maker


def _start(handlers: Sequence[Handler], choice: TemplateChoice) -> None:
    global _maker
    _maker = Maker(handlers, choice.load())


def _make(batch: Batch) -> Made:
    return _maker.make(batch)


def made_in_order(
    batches: Iterator[Batch], maker: Maker, choice: TemplateChoice, workers: int, total: int
) -> Iterator[tuple[Batch, Made]]:
    """Make texts of batches, in order; in ``workers`` processes if there is enough to do.

    Args:
        total: bytes of the whole input.
    """
    consumed = 0
    spent = 0.0
    for batch in batches:
        started = time.perf_counter()
        made = maker.make(batch)
        spent += time.perf_counter() - started
        consumed += batch.consumed
        yield batch, made
        left = spent * max(0, total - consumed) / max(1, consumed)
        if workers > 1 and consumed and left > WORTH_PROCESSES:
            yield from _in_processes(batches, maker.handlers, choice, workers)
            return


def _in_processes(
    batches: Iterator[Batch], handlers: Sequence[Handler], choice: TemplateChoice, workers: int
) -> Iterator[tuple[Batch, Made]]:
    import multiprocessing

    # Spawned, because this process holds threads of an engine.
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(handlers, choice),
    )
    waiting: deque[tuple[Batch, Future[Made]]] = deque()
    try:
        for batch in batches:
            waiting.append((batch, pool.submit(_make, batch)))
            if len(waiting) > 2 * workers:
                first, made = waiting.popleft()
                yield first, made.result()
        while waiting:
            first, made = waiting.popleft()
            yield first, made.result()
    finally:
        pool.shutdown(cancel_futures=True)
