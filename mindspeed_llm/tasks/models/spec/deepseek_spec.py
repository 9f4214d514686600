"""Public name for ``--spec``: the layer of the DeepSeek families."""

from mindspeed_llm.models.deepseek3 import DEEPSEEK3

layer_spec = DEEPSEEK3.layer_spec
