"""Flags of the tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import TRAINERS, Group, flag
from mindspeed_llm.flags.status import neutral, part_of, unsupported

DATA = TRAINERS | {"preprocess"}
MEGATRON_OWN = "Megatron's own tokenizers (use PretrainedFromHF)"


@dataclass(frozen=True)
class TokenizerFlags(Group):
    title = "tokenizer"

    tokenizer_type: str | None = flag(
        None,
        "PretrainedFromHF: a Hugging Face folder (taken when --tokenizer-name-or-path is given); "
        "NullTokenizer: none, the data are token ids (needs --vocab-size).",
        choices=("PretrainedFromHF", "HuggingFaceTokenizer", "NullTokenizer"),
        refused={
            "MagistralTokenizer": "Magistral's tokenizer",
            "BertWordPieceLowerCase": MEGATRON_OWN,
            "BertWordPieceCase": MEGATRON_OWN,
            "GPT2BPETokenizer": MEGATRON_OWN,
            "SentencePieceTokenizer": MEGATRON_OWN,
            "GPTSentencePieceTokenizer": MEGATRON_OWN,
            "Llama2Tokenizer": MEGATRON_OWN,
            "TikTokenizer": MEGATRON_OWN,
            "SFTTokenizer": MEGATRON_OWN,
        },
    )
    tokenizer_name_or_path: str | None = flag(
        None, "Folder with tokenizer.json and tokenizer_config.json."
    )
    tokenizer_model: str | None = flag(
        None, "Same folder, or a file in it, as HuggingFaceTokenizer spells it."
    )
    tokenizer_not_use_fast: bool = flag(False, "Use the tokenizer's slow (Python) form.")
    trust_remote_code: bool = flag(
        False, "Allow a tokenizer to run code of its own from its folder."
    )
    vocab_file: str | None = flag(None, "Vocabulary file.", effect=unsupported(MEGATRON_OWN))
    merge_file: str | None = flag(None, "BPE merges.", effect=unsupported(MEGATRON_OWN))
    prompt_type: str | None = flag(
        None,
        "How conversations are written: the name of a template, or auto for the tokenizer's own.",
        tools=DATA,
    )
    prompt_type_path: str | None = flag(
        None,
        "File of further templates (YAML or JSON).",
        effect=part_of("prompt_type"),
        tools=DATA,
    )
    tokenizer_padding_side: str = flag(
        "right",
        "Side that instruction data are padded on.",
        choices=("left", "right"),
        effect=neutral("padding, on whatever side, takes no part in attention and loss"),
    )
