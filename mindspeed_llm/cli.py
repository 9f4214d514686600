"""``mindspeed-llm VERB ...``: every command under one name.

The root scripts (``pretrain_gpt.py``, ``convert_ckpt_v2.py``, …) are the same verbs under the
names that existing users know.
"""

from __future__ import annotations

import difflib
import importlib
import sys

from mindspeed.errors import UserError
from mindspeed_llm.console import entry_point

VERBS = {
    "preprocess": ("mindspeed_llm.data.preprocess.command", "raw text to an indexed data set"),
    "data": (
        "mindspeed_llm.data.view.command",
        "look at data: samples with the trained tokens, numbers",
    ),
    "convert": ("mindspeed_llm.checkpoint.command", "weights, Hugging Face <-> Megatron"),
    "inspect": ("mindspeed_llm.checkpoint.inspect", "what a checkpoint is, and what it lacks"),
    "pretrain": ("mindspeed_llm.training.pretrain", "train on raw text, on any number of ranks"),
    "posttrain": ("mindspeed_llm.posttrain.command", "tune: SFT on answers, DPO on preferences"),
    "generate": ("mindspeed_llm.inference.generate", "continue a text"),
    "doctor": ("mindspeed_llm.doctor", "this machine: device, versions, what is missing"),
    "quickstart": ("mindspeed_llm.quickstart.story", "a real model through the whole chain"),
}


def main(argv: list[str] | None = None) -> None:
    """Entry point of the console script."""
    entry_point(dispatch, argv)


def dispatch(argv: list[str]) -> int | None:
    """Run the verb that ``argv`` starts with.

    Raises:
        UserError: no or unknown verb.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
        return 0
    verb, rest = argv[0], argv[1:]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"unknown command {verb!r}; {hint}commands: {', '.join(VERBS)}")
    return importlib.import_module(VERBS[verb][0]).main(rest)


def _usage() -> str:
    lines = [f"  {verb:<12}{text}" for verb, (_, text) in VERBS.items()]
    return "\n".join(
        ["usage: mindspeed-llm COMMAND [FLAGS]", "", *lines, "", "COMMAND --help lists its flags."]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
