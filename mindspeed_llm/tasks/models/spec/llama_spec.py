"""Public name for ``--spec``: the layer of the llama family."""

from mindspeed_llm.models.llama import LLAMA

layer_spec = LLAMA.layer_spec
