"""``preprocess``: text, chats and pairs in files -> Megatron's indexed data sets.

Reading, making texts, encoding and writing run at the same time in threads a few batches apart;
the engines release Python's lock while they encode. Memory does not grow with the corpus, but for
the 4 bytes a document that the index costs.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.console import warn
from mindspeed_llm.data.encoder import Engine, EnginesDiffer, choose_engine, set_threads
from mindspeed_llm.data.handlers import TextHandler
from mindspeed_llm.data.preprocess.chat_run import ChatRun
from mindspeed_llm.data.preprocess.chats import Maker, TemplateChoice
from mindspeed_llm.data.preprocess.job import Job, open_job
from mindspeed_llm.data.preprocess.options import PreprocessOptions, options_of
from mindspeed_llm.data.preprocess.outcome import Summary
from mindspeed_llm.data.preprocess.text_run import TextRun
from mindspeed_llm.data.readers import BadRecords, Batch
from mindspeed_llm.data.storage.merging import merge_groups
from mindspeed_llm.data.tokenizer import Tokenizer, load_tokenizer

__all__ = ["PreprocessOptions", "Summary", "main", "merge_groups", "preprocess"]

SAMPLE_TEXTS = 200
SAMPLE_CHARACTERS = 4000


def preprocess(options: PreprocessOptions, tokenizer: Tokenizer) -> Summary:
    """Turn files into one indexed data set a key.

    Raises:
        UserError: a mistake in the input or the options; no data set is left half-written.
    """
    job = open_job(options)
    job.warn_of_unread()
    if options.n_subs > 1:
        from mindspeed_llm.data.preprocess.subs import preprocess_in_parts

        return preprocess_in_parts(job, tokenizer)
    if tokenizer.is_fast and not options.use_fast:
        warn("transformers has no Python form of this tokenizer: its fast form is used")
    workers = options.workers or len(os.sched_getaffinity(0))
    set_threads(workers)
    # What is loaded by now (transformers ...) lives to the end: the collector, which runs often
    # among so many short-lived records, need not look at it each time. A third of the time.
    gc.freeze()
    if isinstance(job.handler, TextHandler):
        return _text(job, tokenizer, workers)
    return _chat(job, tokenizer, workers)


def _text(job: Job, tokenizer: Tokenizer, workers: int) -> Summary:
    handler = job.handler
    assert isinstance(handler, TextHandler)

    def sample(batch: Batch) -> list[str]:
        columns = handler.texts(batch, BadRecords(skip=True)).columns.values()
        return [text for column in columns for text in column if text]

    def run(engine: Engine, batches: Iterator[Batch], bad: BadRecords) -> Summary:
        return TextRun(job, tokenizer, engine).run(batches, bad)

    return _with_engine(job, tokenizer, workers, sample, run)


def _chat(job: Job, tokenizer: Tokenizer, workers: int) -> Summary:
    options = job.options
    template = {**options.template}
    if not template.get("use_chat_template"):
        template["prompt_type"] = template.get("prompt_type") or job.handler.prompt_type
    choice = TemplateChoice(tokenizer.folder, options.use_fast, options.trust_remote_code, template)
    maker = Maker(job.handlers, choice.load(tokenizer))

    def sample(batch: Batch) -> list[str]:
        return [one.text for one in maker.make(batch).rendered]

    def run(engine: Engine, batches: Iterator[Batch], bad: BadRecords) -> Summary:
        return ChatRun(job, tokenizer, engine, maker, choice, workers).run(batches, bad)

    return _with_engine(job, tokenizer, workers, sample, run)


def _with_engine(
    job: Job,
    tokenizer: Tokenizer,
    workers: int,
    sample: Callable[[Batch], list[str]],
    run: Callable[[Engine, Iterator[Batch], BadRecords], Summary],
) -> Summary:
    """Choose an engine by texts of the first batch, and run; once more if it proves wrong."""
    options = job.options
    bad = BadRecords(skip=options.on_error == "skip")
    batches = job.batches(bad)
    head = list(islice(batches, 1))
    texts = spread([text for batch in head for text in sample(batch)])
    engine = choose_engine(tokenizer, texts, workers, options.use_fast, options.trust_remote_code)
    try:
        return run(engine, chain(head, batches), bad)
    except EnginesDiffer as error:
        assert engine.fallback is not None
        warn(f"{error}; starting again with {engine.fallback.name}")
        engine.fallback.why = str(error)
        bad = BadRecords(skip=bad.skip)
        return run(engine.fallback, job.batches(bad), bad)
    finally:
        engine.close()


def spread(texts: Sequence[str]) -> list[str]:
    """Beginnings of some texts for the start-up comparison, spread over all of them."""
    return [text[:SAMPLE_CHARACTERS] for text in texts[:: max(1, len(texts) // SAMPLE_TEXTS)]]


def main(argv: Sequence[str]) -> int:
    """The command: parse the flags, load the tokenizer, preprocess (or merge).

    Raises:
        UserError: see :func:`preprocess`.
    """
    from mindspeed_llm.flags import parse

    config = parse("preprocess", argv)
    flags, names = config.preprocess, config.tokenizer
    if flags.merge_group_keys:
        assert flags.input is not None and flags.output_prefix is not None
        merge_groups(Path(flags.input), flags.output_prefix, flags.merge_group_keys)
        return 0
    options = options_of(config)
    # What is wrong with the request shows before transformers is loaded, which takes seconds.
    open_job(options)
    tokenizer = load_tokenizer(
        names.tokenizer_type or "PretrainedFromHF",
        names.tokenizer_name_or_path or names.tokenizer_model,
        options.use_fast,
        options.trust_remote_code,
    )
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"--tokenizer-type {names.tokenizer_type} cannot encode text.")
    preprocess(options, tokenizer)
    return 0
