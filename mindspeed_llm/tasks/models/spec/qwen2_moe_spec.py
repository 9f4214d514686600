"""Public name for ``--spec``: the layer of the qwen2-moe family."""

from mindspeed_llm.models.qwen2_moe import QWEN2_MOE

layer_spec = QWEN2_MOE.layer_spec
