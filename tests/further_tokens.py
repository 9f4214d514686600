"""Multi-token prediction as ``transformers`` has it (``MtpModel``): weights on disk, and losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

LOSS_SCALE = 0.1


def load(folder: Path) -> Any:
    """The ``transformers`` model of a folder, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


def further_layers(model: Any, layers: int, seed: int = 5) -> Any:
    """Random layers of multi-token prediction for a model."""
    import torch
    from transformers.modeling_layers import MtpModel

    torch.manual_seed(seed)
    found = MtpModel(model, layers)
    with torch.no_grad():
        for name, tensor in [*found.layers.named_parameters(), *found.layers.named_buffers()]:
            if "norm" in name:
                tensor.copy_(1 + 0.3 * torch.randn_like(tensor))
            else:
                tensor.copy_(torch.randn_like(tensor) * (0.1 if "bias" in name else 0.06))
    return found


def named_as_on_disk(tensors: dict[str, Any], shift: int = 0) -> dict[str, Any]:
    """Tensors of a module under the names of published files, experts one by one.

    Args:
        shift: number of the layer that these files call the first of the module's.
    """
    found = {}
    for name, tensor in tensors.items():
        head, number, *rest = name.split(".") if name.startswith("layers.") else ("", "", name)
        within = ".".join(rest).removeprefix("mtp_block.")
        within = within.replace("post_norm.", "shared_head.norm.")
        prefix = f"model.layers.{int(number) + shift}." if head else ""
        for part, value in _single_experts(within, tensor):
            found[prefix + part] = value
    return found


def _single_experts(name: str, tensor: Any):
    if name.endswith(".experts.gate_up_proj"):
        for expert, rows in enumerate(tensor):
            gate, up = np.split(rows, 2) if isinstance(rows, np.ndarray) else rows.chunk(2)
            yield name.replace("gate_up_proj", f"{expert}.gate_proj.weight"), gate
            yield name.replace("gate_up_proj", f"{expert}.up_proj.weight"), up
    elif name.endswith(".experts.down_proj"):
        for expert, rows in enumerate(tensor):
            yield name.replace("down_proj", f"{expert}.down_proj.weight"), rows
    else:
        yield name, tensor


def add_to_folder(folder: Path, layers: int, copies: bool = True) -> None:
    """Put random layers into the weights of a tiny model, with or without copies of its tables."""
    from safetensors.torch import load_file, save_file

    model = load(folder)
    further = further_layers(model, layers)
    number = model.config.num_hidden_layers
    state = {k: v for k, v in further.state_dict().items() if k.startswith("layers.")}
    tensors = load_file(folder / "model.safetensors") | named_as_on_disk(state, number)
    for layer in range(number, number + layers) if copies else ():
        tensors[f"model.layers.{layer}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
        tensors[f"model.layers.{layer}.shared_head.head.weight"] = tensors["lm_head.weight"]
    whole = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", {"format": "pt"})


def gradients(folder: Path, ids: list[list[int]], layers: int = 0) -> dict[str, np.ndarray]:
    """Autograd's, under the names on disk, of the mean loss over all predicted tokens.

    With ``layers`` their losses are added, each over the tokens that exist, and divided by the
    number of all predicted tokens as Megatron does.
    """
    import torch
    from torch.nn.functional import cross_entropy, pad

    model = load(folder)
    tokens = torch.tensor(ids)
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    hidden = model.model(inputs).last_hidden_state
    loss = cross_entropy(model.lm_head(hidden).flatten(0, 1), labels.flatten())
    further = further_layers(model, layers) if layers else None
    for layer in range(layers):
        inputs, labels = pad(inputs[:, 1:], (0, 1)), pad(labels[:, 1:], (0, 1), value=-100)
        positions = torch.arange(inputs.shape[1]).expand_as(inputs)
        hidden = further.forward_layer(layer, hidden, positions, None, input_ids=inputs)
        logits = model.lm_head(hidden).flatten(0, 1)
        total = cross_entropy(logits, labels.flatten(), reduction="sum")
        loss = loss + LOSS_SCALE / layers * total / labels.numel()
    loss.backward()
    found = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    found = {n.removeprefix("model."): g for n, g in found.items()}
    named = named_as_on_disk({n: g for n, g in found.items() if n.startswith("layers.")})
    named |= {
        n if n.startswith("lm_head") else f"model.{n}": g
        for n, g in found.items()
        if not n.startswith("layers.")
    }
    if further is not None:
        own = {n: p.grad.numpy() for n, p in further.layers.named_parameters()}
        own = {f"layers.{n}": gradient for n, gradient in own.items()}
        named |= named_as_on_disk(own, model.config.num_hidden_layers)
    return named
