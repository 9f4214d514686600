"""Qwen3 (dense): norms on each query and key head, and a head size of its own."""

from mindspeed_llm.models import decoder
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Field, Fixed

QWEN3 = Family(
    name="qwen3",
    hf_model_type="qwen3",
    hf_architecture="Qwen3ForCausalLM",
    config=ConfigMap(
        # Unlike its relatives, Qwen3Config takes 128 when the file has no head size.
        fields=(*decoder.CONFIG_FIELDS, Field("head_dim", "kv_channels", default=128)),
        fixed=(decoder.SILU, *decoder.NO_SLIDING_WINDOW, Fixed("attention_bias", (False,))),
        inactive=("sliding_window",),
        constants={"qk_layernorm": True},
    ),
    weights=decoder.weight_map,
    layer_spec=decoder.layer_spec,
)
