"""Trained tokens per second: packed rows against padded rows, in the same process.

    python benchmarks/packed.py [--steps 4] [--seq-length 1024]

The same samples, of a realistic (log-normal) distribution of lengths, train a Llama of SmolLM2's
form with fewer layers: padded to --seq-length one by one, padded to the longest of each
micro-batch, and packed into rows whose samples do not see each other. The three take turns. Also
the attention alone: packed by sequence, and under a mask over the whole row.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import mindspeed.megatron_adaptor  # noqa: F401

BOUND = 1.8
TOKENS_A_STEP = 2048
SHAPE = {
    "vocab_size": 8192,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def lengths(count: int, longest: int, draw: np.random.Generator) -> list[int]:
    """Lengths of instruction samples: median about 200 tokens, a long tail, none over the row."""
    found = np.exp(draw.normal(np.log(200), 0.7, size=count)).astype(int)
    return np.clip(found, 16, longest).tolist()


def make_samples(seq_length: int) -> list:
    """Samples whose second half is trained."""
    from mindspeed_llm.data.datasets.collate import Sample
    from mindspeed_llm.data.storage.parts import IGNORE

    draw = np.random.default_rng(0)
    found = []
    for size in lengths(400, seq_length, draw):
        tokens = draw.integers(0, SHAPE["vocab_size"], size=size)
        labels = np.where(np.arange(size) >= size // 2, tokens, IGNORE)
        found.append(Sample(tokens, labels, np.ones(size, dtype=np.int32)))
    return found


def pack(samples: list, seq_length: int) -> list:
    """Rows filled in order, first row that has room (first fit)."""
    from mindspeed_llm.data.datasets.collate import Sample

    rows: list[list] = []
    for sample in samples:
        room = (r for r in rows if sum(len(s.tokens) for s in r) + len(sample.tokens) <= seq_length)
        row = next(room, None)
        if row is None:
            rows.append([sample])
        else:
            row.append(sample)
    return [
        Sample(
            np.concatenate([sample.tokens for sample in row]),
            np.concatenate([sample.labels for sample in row]),
            np.concatenate([np.full(len(s.tokens), n + 1, np.int32) for n, s in enumerate(row)]),
        )
        for row in rows
    ]


def make_step(folder: Path, seq_length: int) -> Callable[[list[dict]], int]:
    """A training step over micro-batches; returns the number of trained tokens."""
    import json

    from mindspeed_llm import distributed
    from mindspeed_llm.flags import parse
    from mindspeed_llm.model_source import resolve_model
    from mindspeed_llm.training.pretrain import settled
    from mindspeed_llm.training.setup import build_run
    from mindspeed_llm.training.step import train_step

    config = {**SHAPE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config))
    words = f"--hf-config {folder} --seq-length {seq_length} --mock-data --train-iters 1000"
    cfg = parse("pretrain", f"{words} --lr 1e-4 --attention-dropout 0 --hidden-dropout 0".split())
    model = resolve_model(cfg, None)
    cfg = settled(cfg, model)
    run, _ = build_run(cfg, model, distributed.initialize(cfg), 1000, load_weights=False)

    def step(batches: list[dict]) -> int:
        result = train_step(
            run.chunks,
            run.optimizer,
            [iter(batches)],
            num_microbatches=len(batches),
            micro_batch_size=1,
            seq_length=seq_length,
        )
        return result.trained_tokens

    return step


def batches(rows: list, seq_length: int, *, group: int, dynamic: bool, packed: bool):
    """Endless steps, each a list of micro-batches with about :data:`TOKENS_A_STEP` tokens."""
    from mindspeed.transformer.packed import PackedRows
    from mindspeed_llm.data.datasets.collate import Collator

    collate = Collator(seq_length, multiple_of=8 if dynamic else None, packed=packed)
    at, now = 0, []
    while True:
        batch = dict(collate([rows[(at + n) % len(rows)] for n in range(group)]))
        at += group
        if packed:
            batch["packed"] = PackedRows.of(batch.pop("segments"), batch["position_ids"])
        now.append(batch)
        if sum(one["tokens"].numel() for one in now) >= TOKENS_A_STEP:
            yield now
            now = []


def compare_attention(seq_length: int) -> None:
    """Seconds of forward and backward of one layer's attention over a packed row."""
    from mindspeed.ops import packed_attention as op

    sizes: list[int] = []
    for size in lengths(400, seq_length, np.random.default_rng(1)):
        sizes.append(min(size, seq_length - sum(sizes)))
        if sum(sizes) == seq_length:
            break
    heads = (9, 3, 3)
    q, k, v = (torch.randn(seq_length, n, 64, requires_grad=True) for n in heads)
    for name, form in (("by sequence", op.by_sequence), ("under a mask", op.reference)):
        times = []
        for _ in range(5):
            started = time.perf_counter()
            form(q, k, v, sizes, 0.125, 0.0, None, None).sum().backward()
            times.append(time.perf_counter() - started)
        print(f"attention {name:<14}{1000 * min(times):9.1f} ms ({len(sizes)} samples in a row)")


def main() -> int:
    """Exit status 1 if the bound is missed."""
    from mindspeed_llm import distributed

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seq-length", type=int, default=1024)
    options = parser.parse_args()
    length = options.seq_length
    torch.set_num_threads(2)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, rows of {length} tokens")
    samples = make_samples(length)
    rows = pack(samples, length)
    share = sum(len(sample.tokens) for sample in samples) / length
    print(
        f"{len(samples)} samples: {share / len(samples):.1%} of padded rows, "
        f"{share / len(rows):.1%} of packed ones"
    )
    compare_attention(length)
    sources = {
        "padded": batches(samples, length, group=1, dynamic=False, packed=False),
        "padded to the longest of 4": batches(samples, length, group=4, dynamic=True, packed=False),
        "packed": batches(rows, length, group=1, dynamic=False, packed=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in sources}
    with tempfile.TemporaryDirectory() as folder:
        step = make_step(Path(folder), length)
        for turn in range(options.steps + 1):
            for name, source in sources.items():
                made = next(source)
                started = time.perf_counter()
                trained = step(made)
                if turn:  # the first fills caches and allocates optimizer states
                    speeds[name].append(trained / (time.perf_counter() - started))
    distributed.shutdown()
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    for name, speed in medians.items():
        print(f"{name:<28}{speed:8.0f} trained tokens/s")
    ratio = medians["packed"] / medians["padded"]
    dynamic = medians["packed"] / medians["padded to the longest of 4"]
    print(f"packed / padded {ratio:.2f} (bound {BOUND}), / padded to the longest {dynamic:.2f}")
    return int(ratio < BOUND)


if __name__ == "__main__":
    raise SystemExit(main())
