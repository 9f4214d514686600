"""Flags of ``preprocess_data.py``."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import flag
from mindspeed_llm.flags.data import RawDataFlags
from mindspeed_llm.flags.status import neutral, part_of, unsupported

REASONING = "templates with an effort of reasoning"


@dataclass(frozen=True)
class PreprocessFlags(RawDataFlags):
    title = "preprocessing"

    input: str | None = flag(
        None,
        "File, folder or pattern of data: jsonl, json (also .gz, .zst), parquet, arrow, csv, txt; "
        "names of data sets in --dataset-dir; a name on a hub.",
    )
    output_prefix: str | None = flag(
        None,
        "Path and name of the result; _text_document.bin and .idx are appended (of chats "
        "_packed_input_ids_document ...).",
    )
    json_keys: tuple[str, ...] = flag(("text",), "Keys or columns to tokenize.", nargs="+")
    append_eod: bool = flag(False, "End each document with the end-of-document token.")
    on_error: str = flag(
        "stop",
        "A broken record: stop with its file and line, or skip and count it.",
        choices=("stop", "skip"),
    )
    log_interval: int = flag(1000, "Documents between progress reports.", at_least=1)
    seed: int = flag(1234, "Random seed of --interleave-probs.")
    dataset_impl: str = flag(
        "mmap",
        "Form of the result.",
        choices=("mmap",),
        refused={"lazy": "lazy data sets", "cached": "cached data sets"},
    )
    n_subs: int = flag(
        1,
        "Make so many parts, each in a process of its own, and join them; after a stop, parts that "
        "are complete are not made again.",
        at_least=1,
    )
    engine: str = flag(
        "local",
        "Who makes the parts of --n-subs: processes of this machine, or a ray cluster with one "
        "file system.",
        choices=("local", "ray"),
    )
    shard: str | None = flag(
        None, "i/n: take the i-th of n parts of the input (for several machines)."
    )
    datasets: str | None = flag(
        None, "Not used by anything.", effect=neutral("not used by anything")
    )
    split_sentences: bool = flag(
        False, "One entry per sentence.", effect=unsupported("sentence splitting")
    )
    keep_newlines: bool = flag(
        False, "Keep newlines of sentences.", effect=part_of("split_sentences")
    )
    seq_length: int | None = flag(
        None, "Tokens of the longest sample, and of a packed row.", at_least=2
    )
    over_long: str | None = flag(
        None,
        "A sample longer than --seq-length: leave it out, or cut it after its last whole answer "
        "that fits. Cut with --neat-pack, else left out.",
        choices=("drop", "cut"),
    )
    max_samples: int | None = flag(None, "Take the first records of each data set.", at_least=1)
    max_dropped_share: float = flag(
        0.2, "Stop if more of the chat records are left out.", at_least=0, at_most=1
    )
    merge_group_keys: tuple[str, ...] | None = flag(
        None,
        "Instead of tokenizing, join the data sets of the folder --input whose names hold a key.",
        nargs="+",
    )
    pad_to_multiple_of: int = flag(
        1, "Round document lengths up.", effect=unsupported("padded documents")
    )
    make_vocab_size_divisible_by: int = flag(
        128, "Vocabulary padding.", effect=neutral("padding is a matter of the model, not the data")
    )
    pad_vocab_size_to: int | None = flag(
        None,
        "Vocabulary padding.",
        effect=neutral("padding is a matter of the model, not the data"),
    )
    dataset_dir: str | None = flag(
        None, "Folder of dataset_info.json, for LlamaFactoryInstructionHandler."
    )
    mix_strategy: str = flag(
        "concat",
        "Data sets one after the other, or interleaved until the first (under) or the last (over) "
        "of them ends.",
        choices=("concat", "interleave_under", "interleave_over"),
    )
    interleave_probs: str | None = flag(
        None, "Shares of interleaved data sets, with commas between; in turn when left out."
    )
    script_data_dir: str | None = flag(
        None, "Data folder of a loading script.", effect=unsupported("loading scripts")
    )
    reward_tokens: tuple[str, ...] = flag(
        (), "Reward labels.", nargs="*", effect=unsupported("reward data")
    )
    data_obfuscation: bool = flag(
        False, "Obfuscate the data.", effect=unsupported("data obfuscation")
    )
    obf_seed_content: str | None = flag(None, "Seed of it.", effect=part_of("data_obfuscation"))
    reasoning_effort: str | None = flag(
        None, "Effort of thinking.", choices=("max", "high"), effect=unsupported(REASONING)
    )
    drop_thinking: str = flag(
        "True",
        "Drop earlier thinking.",
        choices=("True", "False"),
        effect=part_of("reasoning_effort"),
    )
