"""Flags of the training data, and the ones they share with preprocessing."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.chat import ChatFlags
from mindspeed_llm.flags.core import flag
from mindspeed_llm.flags.status import ALWAYS, neutral, part_of, unsupported

PACKED = "packed samples (documents that do not see each other)"
INSTRUCTION = "instruction data"


@dataclass(frozen=True)
class RawDataFlags(ChatFlags):
    """Flags that preprocessing and training spell alike."""

    handler_name: str = flag(
        "GeneralPretrainHandler", "How a record becomes tokens (the class of the handler)."
    )
    workers: int = flag(
        0,
        "Threads that tokenize (processes for a tokenizer in Python); 0 for one a core.",
        at_least=0,
        tools=frozenset({"preprocess"}),
    )
    pack: bool = flag(False, "Pack samples into rows.", effect=unsupported(INSTRUCTION))
    neat_pack: bool = flag(False, "Pack and keep samples apart.", effect=unsupported(INSTRUCTION))
    map_keys: str | None = flag(None, "Column names as JSON.", effect=unsupported(INSTRUCTION))
    dataset_additional_keys: tuple[str, ...] = flag(
        (), "More columns to carry.", nargs="*", effect=unsupported(INSTRUCTION)
    )
    streaming: bool = flag(False, "Read the input as a stream (always so).", effect=ALWAYS)
    hf_datasets_params: str | None = flag(
        None, "Arguments of load_dataset.", effect=unsupported("loading through datasets")
    )
    cache_dir: str | None = flag(
        None, "Cache of raw data.", effect=neutral("raw data is read in place, without a cache")
    )
    overwrite_cache: bool = flag(
        False, "Renew that cache.", effect=neutral("raw data is read in place, without a cache")
    )


@dataclass(frozen=True)
class DataFlags(RawDataFlags):
    title = "data"
    tools = frozenset({"pretrain"})

    data_path: tuple[str, ...] | None = flag(
        None,
        "Prefix of a tokenized data set (path/name_text_document), several, or a blend: "
        "weight prefix weight prefix ...",
        nargs="*",
    )
    train_data_path: tuple[str, ...] | None = flag(
        None, "Data of training alone, as --data-path.", nargs="*"
    )
    valid_data_path: tuple[str, ...] | None = flag(
        None, "Data of evaluation alone, as --data-path.", nargs="*"
    )
    test_data_path: tuple[str, ...] | None = flag(
        None, "Data of the final test alone, as --data-path.", nargs="*"
    )
    split: str = flag("969,30,1", "Shares of training, evaluation and test in --data-path.")
    mock_data: bool = flag(False, "Train on generated data.")
    data_cache_path: str | None = flag(
        None, "Folder of sample indices; beside the data when left out."
    )
    dataloader_type: str = flag(
        "single",
        "One pass in order, or shuffled passes.",
        choices=("single", "cyclic"),
        refused={"external": "external data loaders"},
    )
    num_workers: int = flag(2, "Processes that load data, per rank.", at_least=0)
    mmap_bin_files: bool = flag(True, "Map data files into memory.", off=("--no-mmap-bin-files",))
    num_dataset_builder_threads: int = flag(1, "Threads that build sample indices.", at_least=1)
    create_attention_mask_in_dataloader: bool = flag(
        True,
        "Build attention masks with the data.",
        off=("--no-create-attention-mask-in-dataloader",),
        effect=ALWAYS,
    )
    eod_mask_loss: bool = flag(False, "Take no loss on end-of-document tokens.")
    reset_position_ids: bool = flag(
        False, "Restart positions after each document.", effect=unsupported(PACKED)
    )
    reset_attention_mask: bool = flag(
        False, "Keep documents of one sample apart.", effect=unsupported(PACKED)
    )
    no_shared_storage: bool = flag(
        False, "Each node has its own disk: each builds its own sample indices."
    )
    enable_share_memory: bool = flag(
        False,
        "Share data among the ranks of a node.",
        effect=neutral("data files are mapped, and so shared, already"),
    )
    no_shuffle: bool = flag(
        False, "Keep the order of samples.", effect=unsupported("unshuffled data")
    )
    padded_samples: bool = flag(
        False, "Pad the last batch.", effect=unsupported("padded last batch")
    )
    full_shuffle_instruction_dataset: bool = flag(
        False, "Shuffle instruction data.", effect=part_of("is_instruction_dataset")
    )
    is_instruction_dataset: bool = flag(
        False, "The data holds prompts and answers.", effect=unsupported(INSTRUCTION)
    )
    is_pairwise_dataset: bool = flag(
        False, "The data holds preference pairs.", effect=unsupported("preference data")
    )
    variable_seq_lengths: bool = flag(
        False,
        "Samples of different lengths.",
        effect=unsupported("samples of different lengths"),
    )
    no_pad_to_seq_lengths: bool = flag(
        False,
        "Pad only to the longest sample.",
        effect=unsupported("samples of different lengths"),
    )
    pad_to_multiple_of: int = flag(
        8, "Round sample lengths up.", effect=part_of("no_pad_to_seq_lengths")
    )
