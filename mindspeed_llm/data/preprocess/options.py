"""What to preprocess, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError

if TYPE_CHECKING:
    from mindspeed_llm.flags import Config
    from mindspeed_llm.flags.chat import ChatFlags
    from mindspeed_llm.flags.tokenizer import TokenizerFlags

# The share of chat records that may be left out before the run stops.
MAX_DROPPED_SHARE = 0.2


@dataclass(frozen=True)
class PreprocessOptions:
    """What to preprocess, and how; the fields are named as the flags.

    Attributes:
        input: a file, a folder or a glob pattern; names of data sets with ``dataset_dir``; the name
            of a data set on a hub.
        output_prefix: data sets are ``{output_prefix}_{key}_document``, of chats
            ``{output_prefix}_packed_{key}_document``.
        json_keys: the keys (columns) of plain text; a dotted path for nested ones.
        handler_name: see :mod:`mindspeed_llm.data.handlers`.
        append_eod: end each document with the tokenizer's EOS token.
        workers: threads (processes for a Python tokenizer); 0 for one a core.
        log_interval: documents between two log lines, where there is no terminal for a bar.
        on_error: "stop" at a bad record or "skip" it.
        use_fast: False: encode with the tokenizer's own Python code.
        trust_remote_code: run the tokenizer folder's code.
        map_keys, dataset_additional_keys: as JSON, names; see the handler.
        template: keyword arguments of ``load_template``.
        seq_length: the greatest sample, and the length of packed rows.
        pack, neat_pack: put samples into rows; and number them.
        over_long: "drop" or "cut" samples longer than ``seq_length``; None: cut with ``neat_pack``.
        max_samples: take the first records of each data set only.
        max_dropped_share: stop if more of the records are left out.
        shard: (i, n): the i-th of n parts of the input, from 1.
        n_subs: make so many parts, each in a process of its own, then join them.
        engine: "local": processes here make the parts; "ray": a cluster does.
        dataset_dir, mix_strategy, interleave_probs, seed: for data sets by name.
        hf_datasets_params: JSON file of arguments of ``datasets.load_dataset``.
    """

    input: str
    output_prefix: str
    json_keys: Sequence[str] = ("text",)
    handler_name: str | None = None
    append_eod: bool = False
    workers: int = 0
    log_interval: int = 1000
    on_error: str = "stop"
    use_fast: bool = True
    trust_remote_code: bool = False
    map_keys: str | None = None
    dataset_additional_keys: Sequence[str] = ()
    template: Mapping[str, Any] = field(default_factory=dict)
    seq_length: int | None = None
    pack: bool = False
    neat_pack: bool = False
    over_long: str | None = None
    max_samples: int | None = None
    max_dropped_share: float = MAX_DROPPED_SHARE
    shard: tuple[int, int] | None = None
    n_subs: int = 1
    engine: str = "local"
    dataset_dir: str | None = None
    mix_strategy: str = "concat"
    interleave_probs: Sequence[float] | None = None
    seed: int = 1234
    hf_datasets_params: str | None = None

    @property
    def cut(self) -> bool:
        """Whether over-long samples are cut."""
        return self.over_long == "cut" or (self.over_long is None and self.neat_pack)

    def content_flags(self) -> dict[str, Any]:
        """The flags that shape the content, for the note beside the data."""
        names = (
            "append_eod", "on_error", "map_keys", "seq_length", "pack", "neat_pack", "max_samples",
            "shard", "dataset_dir", "mix_strategy", "interleave_probs", "hf_datasets_params",
        )  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        if self.seq_length is not None:
            found["over_long"] = "cut" if self.cut else "drop"
        chosen = {**found, **self.template}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in chosen.items()
            if value not in (None, False, "concat", "stop", "all")
        }


def shard_of(text: str | None) -> tuple[int, int] | None:
    """Read ``--shard i/n``.

    Raises:
        UserError: it is no such pair with 1 <= i <= n.
    """
    if text is None:
        return None
    first, slash, second = text.partition("/")
    if slash and first.isdecimal() and second.isdecimal():
        index, count = int(first), int(second)
        if 1 <= index <= count:
            return index, count
    raise UserError(f"--shard {text}: expected i/n with i from 1 to n, as in 3/16.")


def probabilities(text: str | None) -> tuple[float, ...] | None:
    """Read ``--interleave-probs 0.7,0.3``; their sum is made 1.

    Raises:
        UserError: not positive numbers.
    """
    if text is None:
        return None
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or any(not 0 < share < float("inf") for share in shares):
        raise UserError(
            f"--interleave-probs {text}: expected positive numbers with commas between."
        )
    return tuple(share / sum(shares) for share in shares)


def template_options(flags: ChatFlags, names: TokenizerFlags) -> dict[str, Any]:
    """Keyword arguments of :func:`~mindspeed_llm.data.templates.load_template`."""
    return {
        "prompt_type": names.prompt_type,
        "prompt_type_path": names.prompt_type_path,
        "use_chat_template": flags.use_chat_template,
        "enable_thinking": flags.enable_thinking,
        "train_turns": flags.train_turns,
        "preserve_thinking": flags.preserve_thinking,
    }


def options_of(config: Config) -> PreprocessOptions:
    """The options that the flags of ``preprocess`` set."""
    flags, names = config.preprocess, config.tokenizer
    # parse() demands both.
    assert flags.input is not None
    assert flags.output_prefix is not None
    return PreprocessOptions(
        input=flags.input,
        output_prefix=flags.output_prefix,
        json_keys=flags.json_keys,
        handler_name=flags.handler_name,
        append_eod=flags.append_eod,
        workers=flags.workers,
        log_interval=flags.log_interval,
        on_error=flags.on_error,
        use_fast=not names.tokenizer_not_use_fast,
        trust_remote_code=names.trust_remote_code,
        map_keys=flags.map_keys,
        dataset_additional_keys=flags.dataset_additional_keys,
        template=template_options(flags, names),
        seq_length=flags.seq_length,
        pack=flags.pack,
        neat_pack=flags.neat_pack,
        over_long=flags.over_long,
        max_samples=flags.max_samples,
        max_dropped_share=flags.max_dropped_share,
        shard=shard_of(flags.shard),
        n_subs=flags.n_subs,
        engine=flags.engine,
        dataset_dir=flags.dataset_dir,
        mix_strategy=flags.mix_strategy,
        interleave_probs=probabilities(flags.interleave_probs),
        seed=flags.seed,
        hf_datasets_params=flags.hf_datasets_params,
    )
