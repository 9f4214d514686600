"""LoRA adapters (arXiv:2106.09685): read, merged into weights, written, in two formats.

An adapter adds ``scale · B @ A`` to a weight. In memory it is one pair ``(A, B)`` for each
weight-map entry it touches, in Megatron's full, unsplit form; the weight map of the family gives
every other form.

- ``adapter.py``: the pair, the adapter, and how a pair lies over tensor-parallel ranks.
- ``fuse.py``: pairs of Hugging Face's separate projections to Megatron's fused one and back.
- ``peft_folder.py``, ``peft_writer.py``: folders of the ``peft`` package.
- ``megatron.py``, ``megatron_writer.py``: adapters in Megatron's rank files.
- ``merge.py``: weights with an adapter added, as one more source of weights.
- ``request.py``: the flags: which adapter, what to do with it, and whether they contradict it.
"""
