"""Mistral and Magistral: Llama's structure, with an optional attention window."""

from mindspeed_llm.models import decoder
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap

MISTRAL = Family(
    name="mistral",
    aliases=("magistral",),
    hf_model_type="mistral",
    hf_architecture="MistralForCausalLM",
    config=ConfigMap(
        fields=(*decoder.CONFIG_FIELDS, decoder.HEAD_DIM, decoder.sliding_window(default=4096)),
        fixed=(decoder.SILU,),
    ),
    weights=decoder.weight_map,
    layer_spec=decoder.layer_spec,
)
