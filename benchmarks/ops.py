"""Time of each fused operator against its plain reference, forward and backward, in one run.

    python benchmarks/ops.py [--threads 2] [--repeats 7]

The shape is SmolLM2-135M's: hidden 576, ffn 1536, 9 heads in 3 groups of 64, vocabulary 49152,
4 x 256 tokens. Runs alternate between the two forms and the fastest of each counts, so that other
load on the machine disturbs both alike. A ratio below 1 means that the fused form is faster.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from mindspeed.device import get_device
from mindspeed.ops import dispatch
from mindspeed.ops.attention import attention
from mindspeed.ops.cross_entropy import vocab_parallel_cross_entropy
from mindspeed.ops.linear_cross_entropy import linear_cross_entropy
from mindspeed.ops.rms_norm import rms_norm
from mindspeed.ops.rope import rope
from mindspeed.ops.swiglu import swiglu
from mindspeed.optimizer.adam import use_fused_adam

SEQUENCE, BATCH, HIDDEN, FFN, HEADS, GROUPS, WIDTH, VOCABULARY = (
    256,
    4,
    576,
    1536,
    9,
    3,
    64,
    49152,
)


def cases(dtype: torch.dtype, device: torch.device) -> dict[str, Callable[[], None]]:
    """A function a case, which runs the operator forward and backward once."""

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device).mul_(0.5).requires_grad_()

    angles = torch.randn(SEQUENCE, 1, 1, WIDTH // 2, device=device).repeat(1, 1, 1, 2)
    labels = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), device=device)
    x, norm = leaf(SEQUENCE, BATCH, HIDDEN), leaf(HIDDEN)
    gate_up = leaf(SEQUENCE, BATCH, 2 * FFN)
    q = leaf(SEQUENCE, BATCH, HEADS, WIDTH)
    k, v = leaf(SEQUENCE, BATCH, GROUPS, WIDTH), leaf(SEQUENCE, BATCH, GROUPS, WIDTH)
    head, logits = leaf(VOCABULARY, HIDDEN), leaf(BATCH, SEQUENCE, VOCABULARY)

    def timed(function: Callable[[], Tensor], *leaves: Tensor) -> Callable[[], None]:
        grad = torch.ones_like(function())

        def run() -> None:
            for one in leaves:
                one.grad = None
            function().backward(grad)
            get_device().synchronize()

        return run

    return {
        "rms_norm": timed(lambda: rms_norm(x, norm, 1e-5), x, norm),
        "swiglu": timed(lambda: swiglu(gate_up), gate_up),
        "rope": timed(lambda: rope(q, angles), q),
        "attention": timed(lambda: attention(q, k, v, scale=WIDTH**-0.5, causal=True), q, k, v),
        "vocab_parallel_cross_entropy": timed(
            lambda: vocab_parallel_cross_entropy(logits, labels), logits
        ),
        "linear_cross_entropy": timed(lambda: linear_cross_entropy(x, head, labels), x, head),
    }


def seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(run: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Best time of the reference and of the fused form."""
    best = {0: float("inf"), 2: float("inf")}
    for repeat in range(repeats + 1):
        for level in best:
            dispatch.set_level(level)
            taken = seconds(run)
            if repeat:  # the first round warms up
                best[level] = min(best[level], taken)
    return best[0], best[2]


def adam_step(fused: bool, device: torch.device) -> Callable[[], None]:
    """One AdamW step over an embedding table and ten layers' worth of matrices, fp32."""
    shapes = [(VOCABULARY, HIDDEN), *[(2 * FFN, HIDDEN)] * 10, *[(HIDDEN, FFN)] * 10]
    parameters = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    if fused:
        use_fused_adam(optimizer)

    def run() -> None:
        optimizer.step()
        get_device().synchronize()

    return run


def line(name: str, dtype: str, reference: float, fused: float, form: str) -> None:
    print(
        f"{name:<30} {dtype:<9} {reference * 1e3:>11.2f} {fused * 1e3:>9.2f} "
        f"{fused / reference:>6.2f}  {form}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = get_device().torch_device()
    forms = dispatch.ops_in_use()
    print(f"{get_device()}, {arguments.threads} threads")
    print(f"{'operator':<30} {'dtype':<9} {'reference ms':>11} {'fused ms':>9} {'ratio':>6}  form")
    for dtype in (torch.float32, torch.bfloat16):
        for name, run in cases(dtype, device).items():
            line(name, str(dtype)[6:], *compare(run, arguments.repeats), forms[name])
    plain, fused = adam_step(False, device), adam_step(True, device)
    times = [(seconds(plain), seconds(fused)) for _ in range(arguments.repeats + 1)][1:]
    line("adamw", "float32", *map(min, zip(*times, strict=True)), "torch fused")


if __name__ == "__main__":
    main()
