"""Public name for ``--spec``: the layer of the qwen3 family."""

from mindspeed_llm.models.qwen3 import QWEN3

layer_spec = QWEN3.layer_spec
