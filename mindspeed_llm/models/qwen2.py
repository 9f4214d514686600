"""Qwen2 and Qwen2.5: a Llama-like decoder with biases on the query, key and value projections."""

from mindspeed_llm.models import decoder
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap

QWEN2 = Family(
    name="qwen2",
    aliases=("qwen25", "qwen2.5"),
    hf_model_type="qwen2",
    hf_architecture="Qwen2ForCausalLM",
    config=ConfigMap(
        fields=(*decoder.CONFIG_FIELDS, decoder.HEAD_DIM),
        fixed=(decoder.SILU, *decoder.NO_SLIDING_WINDOW),
        inactive=("sliding_window",),
        constants={"add_qkv_bias": True},
    ),
    weights=decoder.weight_map,
    layer_spec=decoder.layer_spec,
)
