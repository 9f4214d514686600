"""Seed-OSS: Llama's structure with query/key/value biases and a head size of its own."""

from mindspeed_llm.models import decoder
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Field, Fixed

SEED_OSS = Family(
    name="seed-oss",
    hf_model_type="seed_oss",
    hf_architecture="SeedOssForCausalLM",
    config=ConfigMap(
        fields=(
            *decoder.CONFIG_FIELDS,
            Field("head_dim", "kv_channels", default=128),
            Field("attention_bias", "add_qkv_bias", default=True),
        ),
        fixed=(
            decoder.SILU,
            Fixed("attention_out_bias", (False,)),
            Fixed("mlp_bias", (False,)),
            Fixed("residual_dropout", (0.1, 0.0)),
        ),
    ),
    weights=decoder.weight_map,
    layer_spec=decoder.layer_spec,
)
