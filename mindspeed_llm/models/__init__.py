"""Model families: one declarative file each, and what turns one into a Megatron model.

- ``shape.py``: the architecture's numbers, under Megatron's names.
- ``hf_config.py``: Hugging Face ``config.json`` to shape and back.
- ``transforms.py``, ``splits.py``, ``mapping.py``: the weight map (format change, then TP split).
- ``family.py``, ``registry.py``: what a family file declares, and how it is found.
- ``layout.py``: which layer lies on which pipeline stage.
- ``layer_spec.py``, ``gpt.py``, ``builder.py``: the Megatron model itself.
"""
