"""Flags of the training data, and the ones they share with preprocessing."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.chat import ChatFlags
from mindspeed_llm.flags.core import TRAINERS, flag
from mindspeed_llm.flags.status import ALWAYS, neutral, part_of

SAMPLES = part_of("is_instruction_dataset", "is_pairwise_dataset")


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
    pack: bool = flag(False, "Put several samples into each row of --seq-length tokens.")
    neat_pack: bool = flag(
        False, "Number the samples of a row, so that attention keeps them apart; with --pack."
    )
    map_keys: str | None = flag(
        None, 'The handler\'s columns as JSON: {"prompt": "question", ...}.'
    )
    dataset_additional_keys: tuple[str, ...] = flag(
        (), "Further columns, tokenized into data sets of their own.", nargs="*"
    )
    streaming: bool = flag(False, "Read the input as a stream (always so).", effect=ALWAYS)
    hf_datasets_params: str | None = flag(
        None, "JSON file of arguments of datasets.load_dataset, for a name on a hub."
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
    tools = TRAINERS

    data_path: tuple[str, ...] | None = flag(
        None,
        "Prefix of a tokenized data set (path/name_text_document), several, or a blend: "
        "weight prefix weight prefix ...; raw files are prepared first.",
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
    json_keys: tuple[str, ...] = flag(("text",), "Key of the text in raw files.", nargs="+")
    append_eod: bool = flag(False, "End each document of raw files with the end-of-document token.")
    cache_dir: str | None = flag(
        None, "Folder of what is prepared of raw files; beside them when left out."
    )
    overwrite_cache: bool = flag(False, "Prepare raw files again, whatever is kept.")
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
        False,
        "Positions start at 0 with each document, or sample of a packed row.",
        effect=part_of("reset_attention_mask"),
    )
    reset_attention_mask: bool = flag(
        False, "Documents, or samples of a packed row, do not see each other."
    )
    no_shared_storage: bool = flag(
        False, "Each node has its own disk: each builds its own sample indices."
    )
    enable_share_memory: bool = flag(
        False,
        "Share data among the ranks of a node.",
        effect=neutral("data files are mapped, and so shared, already"),
    )
    is_instruction_dataset: bool = flag(
        False,
        "The data are prompts and answers: PREFIX of PREFIX_packed_input_ids_document and so on.",
    )
    is_pairwise_dataset: bool = flag(
        False,
        "The data are prompts with a chosen and a rejected answer, for --stage dpo.",
        tools=frozenset({"posttrain"}),
    )
    neat_pack: bool = flag(
        False,
        "Rows hold several samples, numbered when they were packed.",
        effect=part_of("is_instruction_dataset"),
    )
    no_shuffle: bool = flag(False, "Read instruction data in its own order, pass after pass.")
    full_shuffle_instruction_dataset: bool = flag(
        False,
        "Shuffle the passes over instruction data among each other, not each by itself.",
        effect=SAMPLES,
    )
    padded_samples: bool = flag(
        False,
        "Fill a pass over instruction data up to whole global batches with its first samples.",
        effect=SAMPLES,
    )
    cut_max_seqlen: bool = flag(
        False,
        "Cut off the ends of samples longer than --seq-length, instead of stopping.",
        effect=SAMPLES,
    )
    variable_seq_lengths: bool = flag(
        False, "Pipeline stages tell each other the length of each micro-batch."
    )
    no_pad_to_seq_lengths: bool = flag(
        False,
        "Pad each micro-batch to its longest sample, not to --seq-length.",
        effect=SAMPLES,
    )
    pad_to_multiple_of: int = flag(
        8,
        "Round the length of a micro-batch up.",
        at_least=1,
        effect=part_of("no_pad_to_seq_lengths"),
    )
