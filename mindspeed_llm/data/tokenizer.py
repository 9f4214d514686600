"""The tokenizer as training, preprocessing and inference see it, loaded from a folder.

Ids are those of ``transformers``' ``tokenizer(text)``: with the special tokens (BOS ...) that the
tokenizer itself adds, and with special tokens written out in the text recognised as such.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mindspeed_llm.flags.tokenizer import TokenizerFlags

SUPPORTED_TYPES = ("PretrainedFromHF", "HuggingFaceTokenizer", "NullTokenizer")
# What makes a folder a tokenizer's; transformers otherwise asks a hub, with a long error.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tokenizer_config.json",
)


class Tokenizer:
    """A Hugging Face tokenizer with the few names that Megatron's data sets ask for.

    Attributes:
        hf: the ``transformers`` tokenizer.
        folder: where it was loaded from.
        vocab_size: the largest id + 1, added tokens included, so that a table of this many rows
            serves every id. (``len(tokenizer)`` is smaller where the ids have holes.)
    """

    def __init__(self, hf: PreTrainedTokenizerBase, folder: Path) -> None:
        self.hf = hf
        self.folder = folder
        vocabulary = hf.get_vocab()
        if not vocabulary:
            raise UserError(f"{folder}: the tokenizer has no tokens.")
        self.vocab_size: int = max(vocabulary.values()) + 1

    @property
    def eod(self) -> int:
        """The token that ends a document: the tokenizer's EOS token.

        Raises:
            UserError: it has none.
        """
        if self.hf.eos_token_id is None:
            raise UserError(
                f"{self.folder}: the tokenizer names no eos_token, which ends a document. "
                'Set "eos_token" in its tokenizer_config.json.'
            )
        return int(self.hf.eos_token_id)

    @property
    def eos(self) -> int:
        """The same token under its other name."""
        return self.eod

    @property
    def bos(self) -> int | None:
        """The token that starts a text, if there is one."""
        return self.hf.bos_token_id

    @property
    def pad(self) -> int:
        """-1: documents of pretraining are never padded.

        Megatron's GPTDataset masks this id out of the loss and replaces it by 0 wherever it
        stands in the data. Many tokenizers name a token as padding that real data holds.
        """
        return -1

    @property
    def pad_token_id(self) -> int | None:
        """The token that fills up a batch of unequal texts, if there is one."""
        return self.hf.pad_token_id

    @property
    def is_fast(self) -> bool:
        """Whether it runs on the ``tokenizers`` library (else in Python)."""
        return getattr(self.hf, "backend_tokenizer", None) is not None

    def backend_json(self) -> str:
        """The complete tokenizer, settings of tokenizer_config.json included, as tokenizer.json."""
        return self.hf.backend_tokenizer.to_str()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text."""
        return self.hf.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ids, spaces as they were."""
        return str(
            self.hf.decode(
                list(ids),
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )

    # Names of Megatron's own tokenizers.
    tokenize = encode
    detokenize = decode

    @property
    def chat_template(self) -> str | None:
        """The tokenizer's own chat template, if it has one."""
        return self.hf.chat_template

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """Write a conversation as one text by the tokenizer's own chat template."""
        return str(self.hf.apply_chat_template(list(messages), tokenize=False, **options))

    def vocabulary_hash(self, size: int | None = None) -> str:
        """A hash of which token each id below ``size`` (default: every id) stands for.

        Two tokenizers with the same hash give data the same meaning, whatever else their files
        say. ``size`` lets one with further tokens added be compared with the one before.
        """
        tokens = sorted((index, token) for token, index in self.hf.get_vocab().items())
        digest = hashlib.sha256()
        for index, token in tokens:
            if size is None or index < size:
                digest.update(f"{index}\t{token}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    @cached_property
    def file_hash(self) -> str | None:
        """The sha256 of tokenizer.json, if the folder has one."""
        path = self.folder / "tokenizer.json"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None

    @cached_property
    def unique_identifiers(self) -> OrderedDict[str, Any]:
        """What tells this tokenizer from others in the names of Megatron's index caches."""
        return OrderedDict([("class", type(self).__name__), ("vocabulary", self.vocabulary_hash())])


class NullTokenizer:
    """Stands for a tokenizer where only a vocabulary size is needed (``--mock-data``)."""

    def __init__(self, vocab_size: int) -> None:
        # As Megatron's: one more id, for the end of a document.
        self.vocab_size = vocab_size + 1
        self.eod = vocab_size
        self.eos = vocab_size
        self.pad = -1
        self.unique_identifiers = OrderedDict(
            [("class", type(self).__name__), ("vocab_size", self.vocab_size)]
        )


def load_tokenizer(
    tokenizer_type: str | None,
    tokenizer_name_or_path: str | None,
    use_fast: bool = True,
    trust_remote_code: bool = False,
    vocab_size: int | None = None,
) -> Tokenizer | NullTokenizer:
    """Load the tokenizer that the flags name.

    Args:
        tokenizer_type: one of :data:`SUPPORTED_TYPES`.
        tokenizer_name_or_path: the folder (``--tokenizer-name-or-path`` or ``--tokenizer-model``).
        use_fast: False for ``--tokenizer-not-use-fast``.
        trust_remote_code: run code of the folder.
        vocab_size: of a NullTokenizer.

    Raises:
        UserError: unknown type, no such folder, or no tokenizer in it.
    """
    if tokenizer_type == "NullTokenizer":
        if vocab_size is None:
            raise UserError("--tokenizer-type NullTokenizer needs --vocab-size.")
        return NullTokenizer(vocab_size)
    if tokenizer_type not in SUPPORTED_TYPES:
        raise UserError(
            f"--tokenizer-type {tokenizer_type} is not supported; use PretrainedFromHF with "
            "--tokenizer-name-or-path FOLDER."
        )
    if not tokenizer_name_or_path:
        raise UserError(f"--tokenizer-type {tokenizer_type} needs --tokenizer-name-or-path FOLDER.")
    return load_hf_tokenizer(Path(tokenizer_name_or_path), use_fast, trust_remote_code)


def tokenizer_of(flags: TokenizerFlags, folder: str | None) -> Tokenizer | NullTokenizer:
    """Load the tokenizer in ``folder`` as the tokenizer flags ask."""
    return load_tokenizer(
        flags.tokenizer_type or "PretrainedFromHF",
        folder,
        use_fast=not flags.tokenizer_not_use_fast,
        trust_remote_code=flags.trust_remote_code,
    )


def load_hf_tokenizer(
    folder: Path, use_fast: bool = True, trust_remote_code: bool = False
) -> Tokenizer:
    """Load a tokenizer from a Hugging Face folder, or the folder of its tokenizer.json.

    Raises:
        UserError: no such folder, or no tokenizer in it.
    """
    folder = folder.expanduser()
    if folder.name == "tokenizer.json" and folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise UserError(
            f"--tokenizer-name-or-path {folder}: no such folder. Name a folder on this machine "
            "that holds tokenizer.json."
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        names = sorted(entry.name for entry in folder.iterdir())
        inside = ", ".join(names[:8]) or "nothing"
        raise UserError(
            f"--tokenizer-name-or-path {folder}: no tokenizer in this folder (it holds {inside}). "
            f"Expected one of {', '.join(TOKENIZER_FILES)}."
        )
    return Tokenizer(_load(folder, use_fast, trust_remote_code), folder)


def _load(folder: Path, use_fast: bool, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not trust_remote_code and _needs_own_code(folder):
        raise UserError(
            f"{folder}: this tokenizer comes with Python code of its own. If you trust it, say so "
            "with --trust-remote-code."
        )
    bare = not any((folder / name).is_file() for name in ("tokenizer_config.json", "config.json"))
    try:
        if bare and (folder / "tokenizer.json").is_file():
            # Nothing says of which class it is; the file alone is enough to encode.
            return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        return AutoTokenizer.from_pretrained(
            str(folder),
            use_fast=use_fast,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
        )
    except Exception as error:
        # transformers and tokenizers raise all kinds of exceptions for a broken file.
        words = " ".join(str(error).split())[:300]
        raise UserError(f"{folder}: the tokenizer does not load: {words}") from error


def _needs_own_code(folder: Path) -> bool:
    """Whether tokenizer_config.json maps AutoTokenizer to code and no tokenizer.json is there."""
    path = folder / "tokenizer_config.json"
    if not path.is_file() or (folder / "tokenizer.json").is_file():
        return False
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not a JSON file ({error}).") from error
    return "AutoTokenizer" in settings.get("auto_map", {})
