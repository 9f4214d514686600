"""Handlers: what becomes of a record. Chosen by name with ``--handler-name``.

A handler of text (``kind`` "pretrain") makes texts of records; the others make a
:class:`~mindspeed_llm.data.conversation.Conversation` or a
:class:`~mindspeed_llm.data.conversation.Pair`, which a template then writes. A new one is one
small class with its input schema in its docstring, and a line below.
"""

from __future__ import annotations

import difflib

from mindspeed.errors import UserError
from mindspeed_llm.data.handlers.alpaca import (
    AlpacaStyleInstructionHandler,
    AlpacaStylePairwiseHandler,
    GeneralInstructionHandler,
    PPOAlpacaStyleInstructionHandler,
    R1AlpacaStyleInstructionHandler,
)
from mindspeed_llm.data.handlers.base import Handler
from mindspeed_llm.data.handlers.faults import Malformed, OddShape
from mindspeed_llm.data.handlers.llamafactory import LlamaFactoryInstructionHandler
from mindspeed_llm.data.handlers.openai import HunyuanInstructionHandler, OpenAIInstructionHandler
from mindspeed_llm.data.handlers.pretrain import (
    AlpacaPretrainHandler,
    GeneralPretrainHandler,
    SharegptPretrainHandler,
    TextHandler,
)
from mindspeed_llm.data.handlers.sharegpt import (
    R1SharegptStyleInstructionHandler,
    SharegptStyleInstructionHandler,
    SharegptStylePairwiseHandler,
)

__all__ = [
    "DEFAULT_HANDLER",
    "HANDLERS",
    "Handler",
    "LlamaFactoryInstructionHandler",
    "Malformed",
    "OddShape",
    "TextHandler",
    "get_handler",
]

DEFAULT_HANDLER = "GeneralPretrainHandler"

HANDLERS: dict[str, type[Handler]] = {
    one.__name__: one
    for one in (
        GeneralPretrainHandler,
        AlpacaPretrainHandler,
        SharegptPretrainHandler,
        AlpacaStyleInstructionHandler,
        SharegptStyleInstructionHandler,
        OpenAIInstructionHandler,
        HunyuanInstructionHandler,
        GeneralInstructionHandler,
        LlamaFactoryInstructionHandler,
        AlpacaStylePairwiseHandler,
        SharegptStylePairwiseHandler,
        PPOAlpacaStyleInstructionHandler,
        R1AlpacaStyleInstructionHandler,
        R1SharegptStyleInstructionHandler,
    )
}

# Handlers of single old data sets: refused by name with what to use, so that nobody trains on
# data that was read as something else.
NOT_HERE = {
    "StackOverflowPythonPretrainHandler": "GeneralPretrainHandler with --json-keys",
    "BelleMultiTurnInstructionHandler": "SharegptStyleInstructionHandler on turns with roles",
    "MOSSInstructionHandler": "SharegptStyleInstructionHandler on turns with roles",
    "MOSSMultiTurnHandler": "SharegptStyleInstructionHandler on turns with roles",
    "LeetcodePythonInstructionHandler": "AlpacaStyleInstructionHandler with --map-keys",
}


def get_handler(name: str | None) -> type[Handler]:
    """The handler called ``name``; the default one for no name.

    Raises:
        UserError: an unknown name (with those near to it), or one that is not kept here.
    """
    name = name or DEFAULT_HANDLER
    if name in HANDLERS:
        return HANDLERS[name]
    if name in NOT_HERE:
        raise UserError(
            f"--handler-name {name}: this handler of one old data set is not there; "
            f"use {NOT_HERE[name]}."
        )
    folded = {known.lower(): known for known in HANDLERS}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.5)
    hint = ", ".join(folded[known] for known in near) or ", ".join(HANDLERS)
    raise UserError(f"--handler-name {name}: no such handler. Did you mean {hint}?")
