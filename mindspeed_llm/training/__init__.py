"""Pretraining: one loop over Megatron's schedules, optimizer and data parallelism.

- ``pretrain.py``: the verb, from flags to the end of training.
- ``setup.py``: model, data-parallel wrapper, optimizer, schedule; ``options.py`` their settings.
- ``step.py``, ``loop.py``: one iteration; all of them.
- ``checkpointing/``: saving and resuming, in both formats.
- ``metrics.py``, ``flops.py``: what is logged. ``signals.py``: stopping on request.
"""
