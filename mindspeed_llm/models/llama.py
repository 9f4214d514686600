"""Llama 2, Llama 3 (rotary scaling), SmolLM2 and everything else that is ``LlamaForCausalLM``."""

from mindspeed_llm.models import decoder
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Fixed

LLAMA = Family(
    name="llama",
    aliases=("llama2", "llama3", "smollm2"),
    hf_model_type="llama",
    hf_architecture="LlamaForCausalLM",
    config=ConfigMap(
        fields=(*decoder.CONFIG_FIELDS, decoder.HEAD_DIM),
        fixed=(
            decoder.SILU,
            Fixed("attention_bias", (False,)),
            Fixed("mlp_bias", (False,)),
        ),
        rope_types=("llama3",),
    ),
    weights=decoder.weight_map,
    layer_spec=decoder.layer_spec,
)
