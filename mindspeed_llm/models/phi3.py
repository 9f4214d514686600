"""Phi-3 and Phi-3.5 (dense): fused projections on Hugging Face's side, LongRoPE."""

import functools

from mindspeed_llm.models import decoder
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Fixed

NAMES = decoder.HfNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))

PHI3 = Family(
    name="phi3.5",
    aliases=("phi3",),
    hf_model_type="phi3",
    hf_architecture="Phi3ForCausalLM",
    config=ConfigMap(
        fields=(*decoder.CONFIG_FIELDS, decoder.HEAD_DIM, decoder.sliding_window()),
        fixed=(
            decoder.SILU,
            Fixed("attention_bias", (False,)),
            Fixed("resid_pdrop", (0.0,)),
            Fixed("embd_pdrop", (0.0,)),
        ),
        inactive=("original_max_position_embeddings",),
        rope_types=("longrope",),
    ),
    weights=functools.partial(decoder.weight_map, names=NAMES),
    layer_spec=decoder.layer_spec,
)
