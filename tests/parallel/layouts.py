"""Tiny models and runs that the parallel tests share; functions run on the pool's ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.families import VOCAB

SEQ = 32


def grid(
    *axes: Iterable, quick: Iterable[tuple], rest: pytest.MarkDecorator = pytest.mark.slow
) -> list:
    """All combinations as parameters; those not in ``quick`` are marked ``rest``."""
    wanted = set(quick)
    return [
        pytest.param(
            *combination,
            marks=() if combination in wanted else rest,
            id=" ".join(map(str, combination)),
        )
        for combination in itertools.product(*axes)
    ]


def write_tokens(prefix: Path, documents: int = 2, repeats: int = 100) -> Path:
    """Indexed data of a few sentences over and over, so that a tiny model learns it at once.

    Returns:
        The prefix for ``--data-path``.
    """
    import numpy as np
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    random = np.random.default_rng(0)
    sentences = [random.integers(1, VOCAB - 1, size=20) for _ in range(documents)]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    for _ in range(repeats):
        for sentence in sentences:
            builder.add_item(torch.from_numpy(sentence))
            builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return prefix


def train_flags(hf: Path | None, data: Path, iters: int = 20, **more) -> list[str]:
    """Flags of a short calm run on 4 sequences a step."""
    flags = {
        "data-path": data,
        "split": "100,0,0",
        "seq-length": SEQ,
        "micro-batch-size": 1,
        "global-batch-size": 4,
        "train-iters": iters,
        "lr": 1e-3,
        "min-lr": 1e-4,
        "lr-decay-style": "cosine",
        "lr-warmup-iters": 2,
        "clip-grad": 1.0,
        "weight-decay": 0.1,
        "eval-iters": 0,
        "log-interval": 1,
        "seed": 7,
        "attention-dropout": 0,
        "hidden-dropout": 0,
    }
    if hf is not None:
        flags["load"] = hf
    flags |= {name.replace("_", "-"): value for name, value in more.items()}
    words: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def train(rank: int, world: int, argv: list[str], tool: str = "pretrain") -> list[dict]:
    """Run a training command on the pool's ranks; the rows that the last rank reports."""
    from mindspeed_llm.flags import parse
    from mindspeed_llm.posttrain.command import Posttraining
    from mindspeed_llm.training import metrics, pretrain

    rows: list[dict] = []
    original = metrics.Reporter._record

    def record(self, row):
        rows.append(row)
        original(self, row)

    metrics.Reporter._record = record
    try:
        kind = Posttraining() if tool == "posttrain" else None
        pretrain.train(parse(tool, argv), kind)
    finally:
        metrics.Reporter._record = original
    return rows


def train_and_tell(
    rank: int, world: int, argv: list[str], tool: str = "pretrain"
) -> tuple[list[dict], str]:
    """As :func:`train`, with everything that was printed."""
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        rows = train(rank, world, argv, tool)
    return rows, said.getvalue()


def build(argv: list[str]):
    """Set up a run on the pool's ranks as the command would; the caller shuts down."""
    from mindspeed_llm import distributed
    from mindspeed_llm.flags import parse
    from mindspeed_llm.model_source import resolve_model
    from mindspeed_llm.training.pretrain import settled
    from mindspeed_llm.training.setup import build_run

    cfg = parse("pretrain", argv)
    model = resolve_model(cfg, cfg.checkpoint.load)
    cfg = settled(cfg, model)
    position = distributed.initialize(cfg, model.layout(cfg).chunks)
    run, _ = build_run(cfg, model, position, cfg.training.train_iters, load_weights=True)
    return run


def batches_of(run, ids: list[list[int]], segments: list[int] | None = None):
    """One micro-batch per row of ``ids`` for each model chunk; the labels are the next tokens.

    Args:
        segments: number of the sample of each token, the same in every row; None: one sample.
    """
    import torch

    from mindspeed.transformer.packed import PackedRows
    from mindspeed_llm.data.datasets.collate import positions_of

    rows = [torch.tensor([row]) for row in ids]
    micro = [
        {
            "tokens": row[:, :-1],
            "labels": row[:, 1:],
            "loss_mask": torch.ones(1, row.shape[1] - 1),
            "position_ids": torch.arange(row.shape[1] - 1).unsqueeze(0),
        }
        for row in rows
    ]
    if segments is not None:
        numbers = torch.tensor([segments], dtype=torch.int32)
        positions = torch.from_numpy(positions_of(numbers.numpy()))
        for batch in micro:
            batch["packed"] = PackedRows.of(numbers, positions)
        return [iter(micro) for _ in range(run.layout.chunks)]
    stage, layout = run.position.pipeline, run.layout
    reads = [layout.is_first(stage, c) or layout.is_last(stage, c) for c in range(layout.chunks)]
    return [iter(micro) if wanted else None for wanted in reads]


def entries_of(run):
    """(chunk, parameter name, weight-map entry) of this rank's parameters."""
    from mindspeed_llm.checkpoint.placement import chunk_entries

    for chunk in range(run.layout.chunks):
        model = run.model
        where = (run.layout, run.position.pipeline, chunk)
        at = run.position.tensor_parallel(model.shape, run.padded_vocab_size)
        for name, entry in chunk_entries(model.family, model.shape, *where, at.experts):
            yield chunk, name, entry


def first_gradients(rank: int, world: int, argv: list[str], ids: list[list[int]]):
    """Gradients of the first step: (pipeline stage, TP rank, {Megatron name: gradient})."""
    from mindspeed_llm import distributed

    run = build(argv)
    first_step(run, ids)
    where = (run.position.pipeline, run.position.tensor)
    gradients = gradients_of(run)
    distributed.shutdown()
    return *where, gradients


def first_step(run, ids: list[list[int]]) -> None:
    """Forward and backward passes over one micro-batch per row."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from mindspeed_llm.training.step import forward_step

    batches = batches_of(run, ids)
    single = len(run.chunks) == 1
    for chunk in run.chunks:
        chunk.zero_grad_buffer()
    get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=batches[0] if single else batches,
        model=run.chunks[0] if single else run.chunks,
        num_microbatches=len(ids),
        seq_length=len(ids[0]) - 1,
        micro_batch_size=1,
        forward_only=False,
    )


def gradients_of(run):
    """This rank's gradients, by Megatron's name with global layers and experts."""
    parameters = [dict(model.named_parameters()) for model in run.models]
    return {
        entry.megatron: parameters[chunk][name].main_grad.clone().numpy()
        for chunk, name, entry in entries_of(run)
        if name in parameters[chunk]
    }


def logits(
    rank: int,
    world: int,
    argv: list[str],
    ids: list[list[int]],
    segments: list[int] | None = None,
):
    """Logits of the real vocabulary, [rows, tokens, vocab], on the last stage; else None.

    Args:
        segments: as :func:`batches_of`.
    """
    import torch
    from megatron.core import tensor_parallel
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from mindspeed_llm import distributed

    run = build(argv)
    found = []

    def step(batches, model):
        batch = next(batches) if batches is not None else None
        tokens = None if batch is None else batch["tokens"]
        positions = None if batch is None else batch["position_ids"]
        packed = None if batch is None else batch.get("packed")
        output = model(tokens, positions, None, packed_seq_params=packed)

        def collect(value, non_loss_data=False):
            whole = tensor_parallel.gather_from_tensor_model_parallel_region(value)
            found.append(whole[..., : run.model.shape.vocab_size].float().numpy())
            return {}

        return output, collect

    batches = batches_of(run, [[*row, 0] for row in ids], segments)
    single = len(run.chunks) == 1
    with torch.no_grad():
        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=batches[0] if single else batches,
            model=run.chunks[0] if single else run.chunks,
            num_microbatches=len(ids),
            seq_length=len(ids[0]),
            micro_batch_size=1,
            forward_only=True,
            collect_non_loss_data=True,
        )
    distributed.shutdown()
    return found or None


def replicated_digests(rank: int, world: int, argv: list[str], steps: int):
    """After each step, a digest of every parameter that all TP ranks hold whole."""
    import hashlib

    from mindspeed_llm import distributed
    from mindspeed_llm.models.splits import REPLICATED
    from mindspeed_llm.training.data import Feed
    from mindspeed_llm.training.step import train_step

    run = build(argv)
    feed = Feed(run, None, steps)
    training = run.cfg.training
    digests = []
    for _ in range(steps):
        train_step(
            run.chunks,
            run.optimizer,
            feed.train_batches(),
            num_microbatches=training.global_batch_size // run.position.data_size,
            micro_batch_size=1,
            seq_length=training.seq_length,
        )
        run.scheduler.step(increment=training.global_batch_size)
        parameters = [dict(model.named_parameters()) for model in run.models]
        digests.append(
            {
                entry.megatron: hashlib.sha256(
                    parameters[chunk][name].detach().numpy().tobytes()
                ).hexdigest()
                for chunk, name, entry in entries_of(run)
                if entry.split is REPLICATED
            }
        )
    where = (run.position.pipeline, run.position.tensor)
    distributed.shutdown()
    return *where, digests
