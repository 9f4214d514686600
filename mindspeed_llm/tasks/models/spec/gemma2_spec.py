"""Public name for ``--spec``: the layer of Gemma 2, and of GLM-4."""

from mindspeed_llm.models.gemma2 import GEMMA2

layer_spec = GEMMA2.layer_spec
