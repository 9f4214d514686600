"""Checkpoints: Hugging Face and Megatron layouts, read, written and turned into each other.

- ``paths.py``: folder names, the pointer file, which iterations are complete.
- ``safe_load.py``: ``torch.load`` that runs no code from the file.
- ``metadata.py``: the ``args`` that a Megatron checkpoint carries.
- ``placement.py``: which tensors lie on which rank, under which names.
- ``source.py``: the one reading interface; ``hf_source.py``, ``torch_source.py`` and
  ``dist_source.py`` implement it.
- ``planned_file.py``: files laid out first and filled in any order; ``torch_file.py`` and
  ``safetensors_file.py`` plan the two formats.
- ``command.py``: the verb; ``convert.py``: what it runs; ``to_megatron.py`` and ``to_hf.py`` do
  the work.
- ``live.py``: weights from any source into a live, possibly parallel, model.
- ``command_v1.py``: the older command line, translated.
- ``lora/``: adapters, merged into weights and turned from one format into the other.
- ``side_files.py``: ``config.json``, tokenizer files and templates that travel along.
"""
