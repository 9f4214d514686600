"""Small tokenizers, trained here in a moment, and the small corpus beside this file."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = Path(__file__).with_name("corpus.jsonl")
SPECIALS = ["<|endoftext|>", "<|start|>", "<|pad|>"]
_folder = tempfile.TemporaryDirectory(prefix="small-tokenizers-")


def corpus_texts() -> list[str]:
    """The texts of the small corpus."""
    lines = CORPUS.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def trained(alphabet: list[str], vocab_size: int = 600) -> Tokenizer:
    """A byte-level BPE over the small corpus that starts from ``alphabet``."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=alphabet,
        special_tokens=SPECIALS,
        show_progress=False,
    )
    backend.train_from_iterator(corpus_texts(), trainer)
    return backend


def saved(name: str, backend: Tokenizer) -> Path:
    """Write a tokenizer folder as ``save_pretrained`` does."""
    folder = Path(_folder.name) / name
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "bos_token": "<|start|>",
        "pad_token": "<|pad|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@functools.cache
def byte_level() -> Path:
    """All 256 bytes are tokens; nothing is added to a text."""
    return saved("byte_level", trained(pre_tokenizers.ByteLevel.alphabet()))


@functools.cache
def with_bos() -> Path:
    """The same, and each text starts with ``<|start|>``."""
    backend = Tokenizer.from_file(str(byte_level() / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="<|start|> $A",
        pair="<|start|> $A $B",
        special_tokens=[("<|start|>", backend.token_to_id("<|start|>"))],
    )
    return saved("with_bos", backend)


@functools.cache
def lacking_bytes() -> Path:
    """The vocabulary lacks the bytes that the small corpus lacks, control characters among them."""
    return saved("lacking_bytes", trained([]))


@functools.cache
def deleting() -> Path:
    """The normaliser deletes soft hyphens, and each text starts with ``<|start|>``."""
    backend = Tokenizer.from_file(str(with_bos() / "tokenizer.json"))
    backend.normalizer = normalizers.Replace("\u00ad", "")
    return saved("deleting", backend)


@functools.cache
def metaspace() -> Path:
    """A unigram model over ``▁`` words, which fastokens does not load."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=[*SPECIALS, "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    backend.train_from_iterator(corpus_texts(), trainer)
    return saved("metaspace", backend)


@functools.cache
def python_only() -> Path:
    """A tokenizer that exists in Python alone (bytes as tokens)."""
    folder = Path(_folder.name) / "python_only"
    folder.mkdir()
    settings = {"tokenizer_class": "ByT5Tokenizer", "eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


ALL: dict[str, Callable[[], Path]] = {
    one.__name__: one
    for one in (byte_level, with_bos, lacking_bytes, deleting, metaspace, python_only)
}
