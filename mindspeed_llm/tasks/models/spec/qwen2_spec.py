"""Public name for ``--spec``: the layer of the qwen2 family."""

from mindspeed_llm.models.qwen2 import QWEN2

layer_spec = QWEN2.layer_spec
