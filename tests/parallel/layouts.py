"""Tiny models and runs that the parallel tests share; functions run on the pool's ranks."""

from __future__ import annotations

from pathlib import Path

SEQ = 32
VOCAB = 131


def write_tiny_hf(folder: Path, family: str, seed: int = 0, **changes) -> Path:
    """A tiny random Hugging Face model: norm weights are not 1, sizes are awkward on purpose."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

    classes = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
    options = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    if family == "qwen3":
        options["head_dim"] = 24
    options |= changes
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(classes[family](**options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1.0 + 0.3 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.1 * torch.randn_like(parameter))
            else:
                parameter.mul_(3.0)
    model.save_pretrained(folder)
    return folder


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


def train(rank: int, world: int, argv: list[str]) -> list[dict]:
    """Run a training command on the pool's ranks; the rows that the last rank reports."""
    from mindspeed_llm.flags import parse
    from mindspeed_llm.training import metrics, pretrain

    rows: list[dict] = []
    original = metrics.Reporter._record

    def record(self, row):
        rows.append(row)
        original(self, row)

    metrics.Reporter._record = record
    try:
        pretrain.train(parse("pretrain", argv))
    finally:
        metrics.Reporter._record = original
    return rows
