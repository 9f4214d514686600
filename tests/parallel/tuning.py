"""Tuning runs of the command, and the same written on ``transformers`` and torch's AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.instruction_data import IGNORE, Row
from tests.parallel.layouts import train_flags

if TYPE_CHECKING:
    from torch import Tensor

LENGTH = 48
BATCH = 4
RATE = 1e-3
LAYOUTS = {
    "one": (1, {}),
    "TP2": (2, {"tensor_model_parallel_size": 2}),
    "TP2 SP": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "PP2": (2, {"pipeline_model_parallel_size": 2}),
    "PP2 interleaved": (
        2,
        {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1},
    ),
    "DP2": (2, {"use_distributed_optimizer": True, "micro_batch_size": 2}),
    "TP2 PP2": (
        4,
        {
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "pipeline_model_parallel_size": 2,
        },
    ),
}


def tune_flags(stage: str, model: Path, prefix: Path, iters: int, **more) -> list[str]:
    """Flags of a run over the samples in their own order, at a constant rate."""
    common = {
        "stage": stage,
        "finetune": True,
        "is_instruction_dataset": stage == "sft",
        "is_pairwise_dataset": stage == "dpo",
        "no_shuffle": True,
        "seq_length": LENGTH,
        "lr": RATE,
        "min_lr": RATE,
        "lr_decay_style": "constant",
        "lr_warmup_iters": 0,
    }
    return train_flags(model, prefix, iters=iters, **{**common, **more})


def log_probabilities(model, row: Row) -> Tensor:
    """Of the trained tokens of a row, ``[trained]``."""
    import torch

    logits = model(torch.tensor([row.tokens])).logits[0, :-1].float()
    labels = torch.tensor(row.labels[1:])
    trained = labels != IGNORE
    chosen = logits[trained].log_softmax(-1)
    return chosen.gather(1, labels[trained, None]).squeeze(1)


def reference_run(
    folder: Path, batches: Iterable[Sequence], loss_of: Callable, rate: float = RATE
) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Train a Hugging Face folder.

    Args:
        loss_of: the model and a batch to the batch's loss.

    Returns:
        Losses, gradient norms before clipping, and the weights at the end.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=rate,
        betas=(0.9, 0.999),
        eps=1e-8,
    )
    losses, norms = [], []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, 1.0)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms, {name: value.detach() for name, value in model.state_dict().items()}


def weights_of(folder: Path) -> dict[str, Tensor]:
    """The tensors of a Hugging Face folder."""
    from safetensors.torch import load_file

    return {
        name: tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_same_weights(found: dict[str, Tensor], wanted: dict[str, Tensor], rel: float) -> None:
    """Each tensor's difference is small beside the tensor."""
    assert found.keys() <= wanted.keys() and found
    for name, tensor in found.items():
        difference = (tensor - wanted[name]).norm() / wanted[name].norm()
        assert difference < rel, (name, float(difference))
