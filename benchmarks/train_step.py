"""Step time against ``transformers`` with ``torch.optim.AdamW``, in the same process.

    python benchmarks/train_step.py [--dtype fp32 bf16] [--steps 5]

One training step (forward, backward, gradient clipping, update) of SmolLM2-135M's shape on
4 x 256 tokens, 2 threads, random weights. The two take turns step by step, so that a change of
the machine's speed meets both; the ratio of the medians is printed. Ours keeps fp32 gradients and
master weights under bf16; the reference holds everything in bf16.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import mindspeed.megatron_adaptor  # noqa: F401

BATCH, LENGTH = 4, 256
BOUNDS = {"fp32": 0.95, "bf16": 0.90}
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def reference_step(dtype: torch.dtype) -> Callable[[torch.Tensor], float]:
    """A step of ``LlamaForCausalLM`` with AdamW and gradient clipping."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def step(ids: torch.Tensor) -> float:
        labels = ids[:, 1:].contiguous()
        loss = model(input_ids=ids[:, :-1], labels=labels, shift_labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def our_step(dtype: str, folder: Path) -> Callable[[torch.Tensor], float]:
    """A step of the same shape as ``pretrain_gpt.py`` runs it."""
    import json

    from mindspeed_llm import distributed
    from mindspeed_llm.flags import parse
    from mindspeed_llm.model_source import resolve_model
    from mindspeed_llm.training.pretrain import settled
    from mindspeed_llm.training.setup import build_run
    from mindspeed_llm.training.step import train_step

    config = {**SHAPE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config))
    words = f"--hf-config {folder} --seq-length {LENGTH} --micro-batch-size {BATCH} --mock-data"
    words += f" --global-batch-size {BATCH} --train-iters 1000 --lr 1e-4 --weight-decay 0.1"
    words += " --bf16" if dtype == "bf16" else ""
    cfg = parse("pretrain", words.split())
    model = resolve_model(cfg, None)
    cfg = settled(cfg, model)
    position = distributed.initialize(cfg)
    run, _ = build_run(cfg, model, position, 1000, load_weights=False)

    def step(ids: torch.Tensor) -> float:
        batch = {
            "tokens": ids[:, :-1],
            "labels": ids[:, 1:],
            "loss_mask": torch.ones(BATCH, LENGTH),
            "position_ids": torch.arange(LENGTH).expand(BATCH, LENGTH),
        }
        result = train_step(
            run.chunks,
            run.optimizer,
            [iter([batch])],
            num_microbatches=1,
            micro_batch_size=BATCH,
            seq_length=LENGTH,
        )
        run.scheduler.step(increment=BATCH)
        assert result.loss is not None
        return result.loss

    return step


def compare(dtype: str, steps: int) -> float:
    """Median seconds of both, alternating; the ratio ours / reference."""
    from mindspeed_llm import distributed

    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, SHAPE["vocab_size"], (BATCH, LENGTH + 1), generator=random)
    with tempfile.TemporaryDirectory() as folder:
        contestants = {
            "transformers + AdamW": reference_step(types[dtype]),
            "mindspeed-llm": our_step(dtype, Path(folder)),
        }
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(steps + 2):
            for name, step in contestants.items():
                started = time.perf_counter()
                step(ids)
                if turn >= 2:  # the first two fill caches and allocate optimizer states
                    times[name].append(time.perf_counter() - started)
    distributed.shutdown()
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, seconds in medians.items():
        speed = BATCH * LENGTH / seconds
        print(f"{dtype}  {name:<22}{seconds:7.3f} s a step  {speed:8.0f} tokens/s")
    ratio = medians["mindspeed-llm"] / medians["transformers + AdamW"]
    print(f"{dtype}  ratio {ratio:.3f} (bound {BOUNDS[dtype]})")
    return ratio


def main() -> int:
    """Exit status 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="+", choices=sorted(BOUNDS), default=["fp32", "bf16"])
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(2)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    ratios = {dtype: compare(dtype, options.steps) for dtype in options.dtype}
    return int(any(ratio > BOUNDS[dtype] for dtype, ratio in ratios.items()))


if __name__ == "__main__":
    raise SystemExit(main())
