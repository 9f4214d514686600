"""The same weights as two live models in fp32: Megatron's, and that of ``transformers``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mindspeed_llm.checkpoint.source import WeightSource
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.shape import ModelShape

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from mindspeed_llm.models.gpt import GPTModel


@contextmanager
def our_model(source: WeightSource, even: bool = False) -> Iterator[GPTModel]:
    """The model of ``source`` with its weights, on the CPU, in a process group of one.

    Args:
        even: every token visits every expert, with the same weight for each.
    """
    from mindspeed_llm import distributed
    from mindspeed_llm.flags import parse
    from mindspeed_llm.live_model import build_live_model
    from mindspeed_llm.model_source import ResolvedModel

    cfg = parse("inference", ["--load", str(source.path)])
    shape = with_every_expert(source.shape) if even else source.shape
    resolved = ResolvedModel(source.family, shape, source.describe(), source)
    cfg = resolved.fill(cfg)
    position = distributed.initialize(cfg)
    try:
        changes = {"perform_initialization": False}
        (model,) = build_live_model(cfg, resolved, position, load_weights=True, **changes).chunks
        if even:
            _silence(model, [name for name in model.state_dict() if ".router." in name])
        yield model.eval()
    finally:
        distributed.shutdown()


def our_logits(model: GPTModel, ids: Tensor) -> Tensor:
    """Logits ``[s, vocabulary]`` of the token ids ``[1, s]``."""
    positions = torch.arange(ids.shape[1]).unsqueeze(0)
    with torch.no_grad():
        return model(ids, positions, None)[0, :, : model.shape.vocab_size]


def transformers_model(
    folder: str,
    config: PretrainedConfig,
    adapter: str | None = None,
    even: tuple[Family, ModelShape] | None = None,
) -> PreTrainedModel:
    """The model in ``folder``.

    Args:
        adapter: PEFT folder to merge into it.
        even: the model's family and shape: every token shall visit every expert alike.
    """
    from transformers import AutoModelForCausalLM

    if even is not None:
        config = _config_with_every_expert(config, *even)
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    )
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    if even is not None:
        _silence(model, _hf_routers(model, even[1]))
    return model.eval()


def transformers_logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Logits ``[s, vocabulary]`` of the token ids ``[1, s]``."""
    with torch.no_grad():
        return model(ids, use_cache=False).logits[0]


def pass_through(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Round every stored number to ``dtype`` and back."""
    if dtype is not None:
        # Weights and buffers that are saved: rotary frequencies, which are computed, stay.
        for tensor in model.state_dict().values():
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                tensor.copy_(tensor.to(dtype))


def with_every_expert(shape: ModelShape) -> ModelShape:
    """The shape, except that a token visits every expert."""
    assert shape.experts is not None
    experts = dataclasses.replace(
        shape.experts,
        moe_router_topk=shape.experts.num_experts,
        moe_router_group_topk=shape.experts.moe_router_num_groups,
    )
    return dataclasses.replace(shape, experts=experts)


def _config_with_every_expert(
    config: PretrainedConfig, family: Family, shape: ModelShape
) -> PretrainedConfig:
    """The same in ``config.json``'s terms: what the family writes differently for that shape."""
    config = type(config).from_dict(config.to_dict())
    before, after = family.config.to_hf(shape), family.config.to_hf(with_every_expert(shape))
    for key, value in after.items():
        if before.get(key) != value:
            setattr(config, key, value)
    return config


def _hf_routers(model: nn.Module, shape: ModelShape) -> list[str]:
    """Names of the routers' weights, by their sizes, and of their biases."""
    assert shape.experts is not None
    number = shape.experts.num_experts
    sizes = {(number, shape.hidden_size), (number,)}
    return [name for name, value in model.state_dict().items() if tuple(value.shape) in sizes]


def _silence(model: nn.Module, names: list[str]) -> None:
    state = model.state_dict()
    for name in names:
        if isinstance(state[name], Tensor):
            state[name].zero_()
