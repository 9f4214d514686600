"""Preprocess in parts (``--n-subs``): each in a process of its own, then joined in order.

The parts lie in a hidden folder beside the result. Each has a note with a fingerprint of the input,
the tokenizer and the flags; a part that is complete and has the right one is not made again, so a
run that was stopped goes on where it was. The joined result equals that of a run without parts.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed.errors import UserError
from mindspeed_llm.console import say
from mindspeed_llm.data.preprocess.job import Job
from mindspeed_llm.data.preprocess.options import PreprocessOptions
from mindspeed_llm.data.preprocess.outcome import NothingToWrite, Summary
from mindspeed_llm.data.preprocess.packing import PackedRows
from mindspeed_llm.data.preprocess.pipeline import Writers
from mindspeed_llm.data.preprocess.tally import Tally, added
from mindspeed_llm.data.storage.indexed import check_indexed
from mindspeed_llm.data.storage.manifest import Manifest, merge_manifests
from mindspeed_llm.data.storage.stored import stored_pieces
from mindspeed_llm.data.templates import IGNORE
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from mindspeed_llm.files import write_text_atomically

KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux' prctl


@dataclass(frozen=True)
class PartState:
    """The note of a complete part.

    Attributes:
        fingerprint: of what it was made of and with.
        keys: its data sets, by key; empty if nothing of it was kept.
        tally: what became of its records.
        message: why nothing was kept.
    """

    fingerprint: str
    keys: dict[str, str]
    tally: Tally
    message: str = ""

    @classmethod
    def read(cls, path: Path, fingerprint: str) -> PartState | None:
        """The note at ``path``, if it is complete and of the same making."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            state = cls(**{**stored, "tally": Tally(**stored["tally"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return state if state.fingerprint == fingerprint else None


def part_options(options: PreprocessOptions, number: int, folder: Path) -> PreprocessOptions:
    """The options of part ``number`` (from 0): its share, neither packed nor judged."""
    index, count = options.shard or (1, 1)
    shard = ((index - 1) * options.n_subs + number + 1, count * options.n_subs)
    cut = "cut" if options.cut else "drop"
    workers = options.workers or len(os.sched_getaffinity(0))
    return replace(
        options,
        output_prefix=str(folder / f"{number:05d}"),
        shard=shard,
        n_subs=1,
        engine="local",
        pack=False,
        neat_pack=False,
        over_long=cut if options.seq_length else None,
        max_dropped_share=1.0,
        workers=max(1, workers // options.n_subs),
    )


def make_part(options: PreprocessOptions, folder: str, fingerprint: str) -> PartState:
    """Make one part, unless it is there, and its note."""
    from mindspeed_llm.data.preprocess.command import preprocess

    note = Path(f"{options.output_prefix}.state")
    state = PartState.read(note, fingerprint)
    if state:
        return state
    tokenizer = load_hf_tokenizer(Path(folder), options.use_fast, options.trust_remote_code)
    with open(os.devnull, "w") as nowhere:
        shown, sys.stdout = sys.stdout, nowhere
        try:
            summary = preprocess(options, tokenizer)
            keys = {key: str(prefix) for key, prefix in summary.prefixes.items()}
            state = PartState(fingerprint, keys, summary.tally)
        except NothingToWrite as error:
            state = PartState(fingerprint, {}, error.tally, str(error))
        finally:
            sys.stdout = shown
    write_text_atomically(note, json.dumps(asdict(state)))
    return state


def _fingerprint(job: Job, tokenizer: Tokenizer) -> str:
    options = job.options
    known = {
        "options": {**asdict(options), "workers": 0, "log_interval": 0, "engine": ""},
        "tokenizer": [tokenizer.vocabulary_hash(), tokenizer.file_hash],
        "inputs": [asdict(note) for note in job.notes()],
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


def preprocess_in_parts(job: Job, tokenizer: Tokenizer) -> Summary:
    """Make the parts and join them.

    Raises:
        UserError: a mistake in the input, or nothing to write.
    """
    options = job.options
    started = time.perf_counter()
    prefix = Path(options.output_prefix)
    folder = prefix.with_name(f".{prefix.name}.parts")
    folder.mkdir(parents=True, exist_ok=True)
    fingerprint = _fingerprint(job, tokenizer)
    parts = [part_options(options, number, folder) for number in range(options.n_subs)]
    arguments = [(part, str(tokenizer.folder), fingerprint) for part in parts]
    make = _with_ray if options.engine == "ray" else _with_processes
    states = []
    for number, state in enumerate(make(arguments, options), 1):
        say(f"> part {number} of {len(parts)}: {state.tally.read:,} records")
        states.append(state)
    summary = _join(job, tokenizer, states, started)
    shutil.rmtree(folder)
    summary.report()
    return summary


def _with_processes(
    arguments: Sequence[tuple[Any, ...]], options: PreprocessOptions
) -> Iterator[PartState]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    workers = options.workers or len(os.sched_getaffinity(0))
    pool = ProcessPoolExecutor(
        min(workers, options.n_subs),
        # Spawned, because this process holds threads of an engine.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_end_with_parent,
    )
    try:
        futures = [pool.submit(make_part, *one) for one in arguments]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A process that makes parts ends when the command is killed (where the system can do that)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGKILL)


def _with_ray(
    arguments: Sequence[tuple[Any, ...]], options: PreprocessOptions
) -> Iterator[PartState]:
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "--engine ray needs the package: pip install ray. Without it, --n-subs makes the parts "
            "in processes of this machine."
        ) from error
    if not ray.is_initialized():
        # RAY_ADDRESS names a cluster; without it ray starts one here.
        ray.init(log_to_driver=False, include_dashboard=False)
    task = ray.remote(num_cpus=arguments[0][0].workers, max_retries=2)(make_part)
    try:
        for reference in [task.remote(*one) for one in arguments]:
            yield ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from error
        raise


def _join(job: Job, tokenizer: Tokenizer, states: Sequence[PartState], started: float) -> Summary:
    options = job.options
    tally = added([state.tally for state in states], options.max_dropped_share)
    full = [state for state in states if state.keys]
    chats = job.handler.kind != "pretrain"
    if not full:
        raise NothingToWrite(states[0].message if len(states) == 1 else _nothing(job, tally), tally)
    if chats:
        tally.check(at_end=True)
    keys = list(full[0].keys)
    notes = {key: merge_manifests([Path(state.keys[key]) for state in full]) for key in keys}
    middle = "_packed" if chats else ""
    prefixes = {key: Path(f"{options.output_prefix}{middle}_{key}_document") for key in keys}
    packed = PackedRows.of(options, tokenizer)
    first = notes[keys[0]]
    assert first is not None
    with Writers(prefixes, np.dtype(first.dtype)) as out:
        for state in full:
            if packed:
                _pack_part(state, packed, out)
            else:
                for key, writer in out.by_key.items():
                    for ids, lengths in stored_pieces(check_indexed(state.keys[key])):
                        writer.add(ids, lengths)
        if packed:
            packed.finish(out)
        manifests = {
            key: _final(note, job, tally, out.by_key[key].tokens, out.by_key[key].documents, packed)
            for key, note in notes.items()
            if note is not None
        }
        out.commit(manifests)
    seconds = time.perf_counter() - started
    paths = [options.output_prefix] if chats else [str(path) for path in prefixes.values()]
    return Summary(prefixes, manifests, tally, seconds, paths, packed.counts if packed else None)


def _nothing(job: Job, tally: Tally) -> str:
    reasons = "".join(f"\n  {reason}" for reason in tally.reasons())
    return (
        f"--input {job.options.input}: of {tally.read:,} records, {tally.empty} of them empty, "
        f"nothing is left. Nothing was written.{reasons}"
    )


def _pack_part(state: PartState, packed: PackedRows, out: Writers) -> None:
    """Put the samples of a part into rows."""
    labels = stored_pieces(check_indexed(state.keys["labels"]))
    for (ids, lengths), (targets, _) in zip(
        stored_pieces(check_indexed(state.keys["input_ids"])), labels, strict=True
    ):
        packed.add(ids, targets != IGNORE, lengths, out)


def _final(
    note: Manifest, job: Job, tally: Tally, tokens: int, documents: int, packed: PackedRows | None
) -> Manifest:
    """The note of the joined data: the parts' notes, with what only the whole knows."""
    return replace(
        note,
        tokens=tokens,
        documents=documents,
        flags=job.options.content_flags(),
        inputs=job.notes(),
        read=tally.read,
        dropped=dict(tally.dropped),
        skipped_bad=tally.bad,
        skipped_empty=tally.empty,
        pad=packed.pad if packed else None,
    )
