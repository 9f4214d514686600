"""CONV-14: norms in their places and rotation in its style, found layer by layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.families import VOCAB, write_tiny_hf
from tests.parallel.layouts import train_flags

IDS = np.random.default_rng(5).integers(0, VOCAB, size=33).tolist()


def hidden_states(rank: int, world: int, argv: list[str], ids: list[int]) -> list[np.ndarray]:
    """The residual stream ``[s, h]`` after the embedding and after each layer."""
    import torch

    from mindspeed_llm import distributed
    from mindspeed_llm.inference.stages import full_forward
    from tests.parallel.layouts import build

    run = build(argv)
    (model,) = run.models
    found: list[np.ndarray] = []

    def keep(module, inputs, output) -> None:
        out = output[0] if isinstance(output, tuple) else output
        found.append(out[:, 0].detach().numpy().copy())

    for module in (model.embedding, *model.decoder.layers):
        module.register_forward_hook(keep)
    full_forward(model.eval(), torch.tensor([ids]))
    distributed.shutdown()
    return found


def reference(folder: Path) -> list[np.ndarray]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        states = model(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    # The last of them has passed the final norm.
    return [state[0].numpy() for state in states[:-1]]


def first_difference(pool, model: Path, wanted: list[np.ndarray]) -> int | None:
    """The first layer after which the streams differ; None if they agree throughout."""
    argv = train_flags(model, Path("unused"), mock_data=True, data_path=None)
    found = pool(1).run(hidden_states, argv=argv, ids=IDS)[0]
    for layer, (ours, theirs) in enumerate(zip(found, wanted, strict=False)):
        if np.abs(ours - theirs).max() > 1e-4 * np.abs(theirs).max():
            return layer
    return None


@pytest.mark.parametrize("name", ["glm4_9b", "qwen3"])
def test_conv_14_every_layer_equals_transformers(pool, tmp_path, name) -> None:
    """CONV-14: random norm weights, sequence 33, the residual stream after each layer."""
    model = write_tiny_hf(tmp_path / name, name)
    assert first_difference(pool, model, reference(model)) is None


@pytest.mark.parametrize(
    "first, second",
    [
        ("post_self_attn_layernorm", "post_attention_layernorm"),
        ("input_layernorm", "post_mlp_layernorm"),
    ],
)
def test_conv_14_a_norm_in_the_wrong_place_shows_at_its_layer(
    pool, tmp_path, first, second
) -> None:
    """CONV-14: the comparison is able to fail, though a round trip would stay exact."""
    model = write_tiny_hf(tmp_path / "glm4", "glm4_32b")
    wanted = reference(model)
    file = model / "model.safetensors"
    weights = load_file(file)
    one, other = (f"model.layers.1.{name}.weight" for name in (first, second))
    weights[one], weights[other] = weights[other], weights[one]
    save_file(weights, file, metadata={"format": "pt"})
    assert first_difference(pool, model, wanted) == 2
