"""MindSpeed: makes Megatron-Core run, and run fast, on Ascend NPU, CUDA or plain CPU.

``import mindspeed.megatron_adaptor`` is the one line that does it.
"""

__version__ = "0.1.0"
