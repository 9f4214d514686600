"""Saving and resuming training runs.

- ``start.py``: which checkpoint a run starts from. ``load.py``: putting it back.
- ``save.py``: writing one, atomically. ``manifest.py``: telling a whole one from a damaged one.
- ``torch_format.py``, ``dist_format.py``: the two formats. ``rng.py``: random generators.
"""
