"""MindSpeed-LLM: preprocess, convert, pretrain, generate; the same commands on any machine."""

__version__ = "0.1.0"
