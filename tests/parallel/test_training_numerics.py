"""Against ``transformers``: logits and first gradients at every layout; and what may not drift."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.families import DENSE, VOCAB
from tests.parallel.layouts import (
    first_gradients,
    grid,
    logits,
    replicated_digests,
    train,
    train_flags,
)

LAYOUTS = {
    "one": (1, {}),
    "TP2": (2, {"tensor_model_parallel_size": 2}),
    "PP2": (2, {"pipeline_model_parallel_size": 2}),
    "TP2 PP2": (4, {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}),
}


def hf_model(path: Path):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )


@pytest.fixture(scope="module")
def ids() -> list[list[int]]:
    return np.random.default_rng(3).integers(0, VOCAB, size=(2, 33)).tolist()


@pytest.mark.parametrize(
    ("family", "layout"),
    grid(DENSE, LAYOUTS, quick=[("llama", "one"), ("qwen2", "PP2"), ("qwen3", "TP2")]),
)
def test_logits_equal_transformers(pool, models, data, ids, family, layout):
    import torch

    ranks, flags = LAYOUTS[layout]
    found = pool(ranks).run(logits, argv=train_flags(models[family], data, **flags), ids=ids)[-1]
    with torch.no_grad():
        wanted = hf_model(models[family])(torch.tensor(ids)).logits.numpy()
    for row, reference in zip(found, wanted, strict=True):
        assert np.abs(row[0] - reference).max() <= 1e-4 * np.abs(reference).max()


@pytest.mark.parametrize(
    ("family", "layout"),
    grid(
        DENSE,
        ["one", "TP2", "TP2 SP", "PP2", "PP2 interleaved", "DP2"],
        quick=[("llama", "one"), ("qwen2", "PP2 interleaved"), ("qwen3", "TP2 SP")],
    ),
)
def test_first_gradients_equal_transformers(pool, models, data, ids, family, layout):
    from mindspeed_llm.checkpoint.source import open_source

    ranks, flags = {
        **LAYOUTS,
        "TP2 SP": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
        "PP2 interleaved": (
            2,
            {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1},
        ),
        "DP2": (2, {}),
    }[layout]
    argv = train_flags(models[family], data, **flags)
    parts = pool(ranks).run(first_gradients, argv=argv, ids=ids)
    source = open_source(models[family])
    wanted = reference_gradients(models[family], ids)
    checked = set()
    for entry in source.entries():
        by_tensor: dict[int, np.ndarray] = {}
        for _, tensor, gradients in parts:
            if entry.megatron in gradients:
                by_tensor[tensor] = gradients[entry.megatron]
        compare_gradients(entry, by_tensor, source.shape, wanted)
        checked.update(entry.hf)
    assert checked == set(wanted)


def reference_gradients(path: Path, ids: list[list[int]]) -> dict[str, np.ndarray]:
    """Autograd's gradients of the mean loss over all predicted tokens."""
    import torch

    model = hf_model(path)
    tokens = torch.tensor(ids)
    predicted = model(tokens[:, :-1]).logits.flatten(0, 1)
    torch.nn.functional.cross_entropy(predicted, tokens[:, 1:].flatten()).backward()
    return {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


def compare_gradients(entry, by_tensor, shape, wanted) -> None:
    import torch

    ordered = [torch.from_numpy(by_tensor[rank]) for rank in sorted(by_tensor)]
    full = entry.split.join(ordered, entry.dims(shape))
    for name, gradient in entry.to_hf(shape, full).items():
        largest = np.abs(wanted[name]).max()
        assert np.abs(gradient.numpy() - wanted[name]).max() <= 1e-5 * largest, name


def test_replicated_parameters_stay_equal(pool, models, data):
    """TRAIN-08: after every step each copy of a replicated parameter has the same bits."""
    argv = train_flags(models["qwen3"], data, tensor_model_parallel_size=2, sequence_parallel=True)
    (_, _, first), (_, _, second) = pool(2).run(replicated_digests, argv=argv, steps=5)
    assert len(first[0]) > 10
    assert first == second
    assert first[0] != first[-1]


@pytest.mark.parametrize(
    "flags",
    [
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
        {"recompute_granularity": "selective"},
        {"recompute_granularity": "selective", "recompute_modules": "mlp"},
    ],
    ids=["uniform", "block", "attention", "mlp"],
)
def test_recomputation_changes_no_bit(pool, models, data, flags):
    plain = pool(1).run(train, argv=train_flags(models["qwen3"], data, iters=4))[0]
    again = pool(1).run(train, argv=train_flags(models["qwen3"], data, iters=4, **flags))[0]
    for row, reference in zip(again, plain, strict=True):
        assert (row["lm_loss"], row["grad_norm"]) == (reference["lm_loss"], reference["grad_norm"])


@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_rerun_changes_no_bit(pool, models, data, precision):
    argv = train_flags(models["qwen3"], data, iters=4, tensor_model_parallel_size=2, **precision)
    first, second = (pool(2).run(train, argv=argv)[-1] for _ in range(2))
    assert [row["lm_loss"] for row in first] == [row["lm_loss"] for row in second]
    assert [row["grad_norm"] for row in first] == [row["grad_norm"] for row in second]


@pytest.mark.parametrize("tensor", grid([2, 4], quick=[(2,)]))
def test_vocabulary_padding_changes_no_loss(pool, models, data, tensor):
    """TRAIN-11: 131 rows pad to 131, 132, 256; the first loss and gradient norm are the same."""
    rows = []
    for ranks, size, divisor in ((1, 1, 1), (tensor, tensor, 1), (1, 1, 128)):
        argv = train_flags(
            models["qwen3"],
            data,
            iters=1,
            lr_warmup_iters=0,
            tensor_model_parallel_size=size,
            make_vocab_size_divisible_by=divisor,
        )
        rows.append(pool(ranks).run(train, argv=argv)[-1][0])
    for row in rows[1:]:
        assert row["lm_loss"] == pytest.approx(rows[0]["lm_loss"], rel=1e-6)
        assert row["grad_norm"] == pytest.approx(rows[0]["grad_norm"], rel=1e-5)


@pytest.mark.slow
def test_unequal_token_counts_weigh_by_token(pool, models, folder):
    """TRAIN-05: masked tokens differ per sample; any split of the batch gives the same step."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix = folder / "uneven_text_document"
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    random = np.random.default_rng(1)
    for _ in range(60):
        # A run of end-of-document tokens (130, which --eod-mask-loss masks) of random length.
        text = random.integers(1, 129, size=int(random.integers(3, 30)))
        end = np.full(int(random.integers(1, 25)), VOCAB - 1)
        builder.add_item(torch.from_numpy(np.concatenate([text, end])))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    rows = []
    for ranks, micro in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2)):
        argv = train_flags(
            models["qwen3"], prefix, iters=3, eod_mask_loss=True, micro_batch_size=micro
        )
        rows.append(pool(ranks).run(train, argv=argv)[-1])
    for other in rows[1:]:
        for row, reference in zip(other, rows[0], strict=True):
            assert row["lm_loss"] == pytest.approx(reference["lm_loss"], rel=1e-5)
            assert row["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-5)
