"""The table of wrong invocations and broken files that ``test_bad_input.py`` runs.

Each case works in a folder with ``model`` (Hugging Face), ``mg`` (its Megatron checkpoint),
``corpus.jsonl`` and ``data/corpus_text_document``, all good until ``broken`` is applied.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.data import small

TOKENIZER = "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path model"
PREPROCESS = f"preprocess --input corpus.jsonl --output-prefix out/corpus {TOKENIZER}"
CONVERT = (
    "convert --load-model-type hf --save-model-type mg --load-dir model --save-dir out"
    " --verify accounting"
)
EXPORT = (
    "convert --load-model-type mg --save-model-type hf --load-dir mg --save-dir out"
    " --verify accounting"
)
BATCH = "--seq-length 32 --micro-batch-size 1 --global-batch-size 2 --train-iters 2 --eval-iters 0"
DATA = "--data-path data/corpus_text_document --split 100,0,0"
TRAIN = f"pretrain --load mg {TOKENIZER} {DATA} {BATCH} --lr 1e-3"
SCRATCH = f"pretrain {TOKENIZER} {DATA} {BATCH} --lr 1e-3"
SHAPE = "--num-layers 2 --hidden-size 32 --num-attention-heads 4"
GENERATE = f"generate --load mg {TOKENIZER} --max-new-tokens 2 --prompt Hello"


@dataclass(frozen=True)
class Case:
    """A command line, what its message must hold, and what is broken before it runs."""

    command: str
    says: tuple[str, ...]
    broken: Callable[[], None] | None = None
    environment: tuple[tuple[str, str], ...] = ()


def write(path: str, text: str | bytes) -> Callable[[], None]:
    """Put a file in place."""

    def apply() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(text.encode() if isinstance(text, str) else text)

    return apply


def truncated(pattern: str, keep: float = 0.5) -> Callable[[], None]:
    """Cut the end off the only file that matches."""

    def apply() -> None:
        (path,) = Path().glob(pattern)
        os.truncate(path, int(path.stat().st_size * keep))

    return apply


def removed(pattern: str) -> Callable[[], None]:
    """Remove the only file or folder that matches."""

    def apply() -> None:
        (path,) = Path().glob(pattern)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return apply


def config(**changes: object) -> Callable[[], None]:
    """Change keys of the model's ``config.json``; None removes one."""

    def apply() -> None:
        path = Path("model/config.json")
        merged = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in merged.items() if v is not None}))

    return apply


def indexed() -> None:
    """A sharded model whose index names a file that is not there."""
    Path("model/model.safetensors").rename("model/model-00001-of-00002.safetensors")
    names = {"model.norm.weight": "model-00002-of-00002.safetensors"}
    Path("model/model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def in_turn(*steps: Callable[[], None]) -> Callable[[], None]:
    def apply() -> None:
        for step in steps:
            step()

    return apply


CASES: dict[str, Case] = {
    # the command itself
    "no such command": Case("pretrian --lr 1", ("unknown command", "did you mean pretrain")),
    "doctor: unknown flag": Case("doctor --patchs", ("--patchs",)),
    "quickstart: unknown flag": Case("quickstart --iteration 3", ("--iteration",)),
    "quickstart: no iterations": Case("quickstart --iterations 0", ("at least one",)),
    "quickstart: model missing": Case("quickstart --model nowhere", ("nowhere",)),
    # flags
    "typo in a flag": Case(TRAIN + " --train-iter 3", ("--train-iter", "did you mean")),
    "stray word": Case(TRAIN + " 3", ("'3'", "belongs to no flag")),
    "flag without its value": Case(TRAIN + " --lr", ("--lr",)),
    "text for a number": Case(TRAIN + " --lr fast", ("--lr", "fast")),
    "negative size": Case(TRAIN + " --micro-batch-size -1", ("--micro-batch-size",)),
    "flag of another command": Case(GENERATE + " --input x", ("--input", "preprocess")),
    "feature that is not there": Case(TRAIN + " --optimizer muon", ("--optimizer muon",)),
    "learning rate missing": Case(TRAIN.replace("--lr 1e-3", ""), ("--lr is required",)),
    "min-lr above lr": Case(TRAIN + " --min-lr 1", ("--min-lr 1 is above --lr 0.001",)),
    "warm-up longer than the run": Case(TRAIN + " --lr-warmup-iters 5", ("--lr-warmup-iters 5",)),
    "two precisions": Case(TRAIN + " --bf16 --fp16", ("--bf16", "--fp16", "exclude")),
    "two lengths": Case(TRAIN + " --train-samples 8", ("--train-iters", "--train-samples")),
    "no length": Case(TRAIN.replace("--train-iters 2", ""), ("--train-iters or --train-samples",)),
    "no data": Case(TRAIN.replace(DATA, ""), ("--data-path",)),
    "save without interval": Case(TRAIN + " --save ckpt", ("--save-interval",)),
    "YAML with an unknown key": Case(
        TRAIN + " --config run.yaml",
        ("run.yaml:1", "lrr", "did you mean"),
        write("run.yaml", "lrr: 1e-3\n"),
    ),
    "YAML that is broken": Case(
        TRAIN + " --config run.yaml",
        ("run.yaml:2", "not valid YAML"),
        write("run.yaml", "lr: 1e-3\n  bad: [\n"),
    ),
    "YAML missing": Case(TRAIN + " --config nowhere.yaml", ("nowhere.yaml",)),
    # parallel layout
    "TP against the processes": Case(
        TRAIN + " --tensor-model-parallel-size 2", ("1 processes do not divide", "multiple of 2")
    ),
    "layers over PP": Case(
        TRAIN + " --pipeline-model-parallel-size 3",
        ("4 layers", "3"),
        environment=(("WORLD_SIZE", "3"),),
    ),
    "sequence over TP": Case(
        TRAIN + " --tensor-model-parallel-size 2 --sequence-parallel --seq-length 31",
        ("--seq-length 31", "--sequence-parallel"),
        environment=(("WORLD_SIZE", "2"),),
    ),
    "batch over data parallel": Case(
        TRAIN + " --global-batch-size 3 --micro-batch-size 2", ("--global-batch-size 3",)
    ),
    "heads of a new model": Case(
        f"{SCRATCH} {SHAPE} --num-attention-heads 5", ("--hidden-size 32", "heads")
    ),
    "sequence longer than the model": Case(
        f"{TRAIN} --max-position-embeddings 16", ("--seq-length 32", "16")
    ),
    # the model
    "shape that contradicts": Case(
        TRAIN + " --num-layers 6 --hidden-size 128",
        ("--num-layers 6, the model has 4", "--hidden-size 128, the model has 64"),
    ),
    "no shape": Case(SCRATCH, ("--num-layers", "--hidden-size", "--hf-config")),
    "family that contradicts": Case(TRAIN + " --model-type-hf qwen3", ("qwen3", "llama")),
    "unknown family": Case(CONVERT + " --model-type-hf lama2", ("lama2", "did you mean")),
    "family of a later version": Case(CONVERT + " --model-type-hf glm4", ("glm4",)),
    "architecture of no family": Case(
        CONVERT, ("FalconForCausalLM",), config(architectures=["FalconForCausalLM"])
    ),
    "config.json is no JSON": Case(CONVERT, ("config.json",), write("model/config.json", "{")),
    "config.json is not UTF-8": Case(
        CONVERT, ("config.json",), write("model/config.json", b'{"a": "\xff"}')
    ),
    "config.json is a list": Case(CONVERT, ("config.json",), write("model/config.json", "[]")),
    "config.json without architecture": Case(
        CONVERT, ("config.json", "architectures"), config(architectures=None, model_type=None)
    ),
    "config.json without layers": Case(
        CONVERT, ("num_hidden_layers",), config(num_hidden_layers=None)
    ),
    "rope scaling unknown": Case(
        CONVERT,
        ("yarn",),
        config(rope_parameters=None, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    ),
    "rope scaling said twice": Case(
        CONVERT,
        ("rope_parameters", "rope_scaling"),
        config(rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    ),
    "quantised weights": Case(
        CONVERT, ("quanti",), config(quantization_config={"quant_method": "gptq", "bits": 4})
    ),
    "--hf-config missing": Case(f"{SCRATCH} --hf-config nowhere", ("nowhere",)),
    # weights
    "weights missing": Case(CONVERT, ("model",), removed("model/model.safetensors")),
    "weights truncated": Case(
        CONVERT, ("model.safetensors",), truncated("model/model.safetensors")
    ),
    "weights are empty": Case(
        CONVERT, ("model.safetensors",), truncated("model/model.safetensors", 0)
    ),
    "index names a missing file": Case(CONVERT, ("model-00002-of-00002.safetensors",), indexed),
    "model folder missing": Case(CONVERT + " --load-dir nowhere", ("nowhere",)),
    "target is a file": Case(CONVERT + " --save-dir corpus.jsonl", ("corpus.jsonl",)),
    "target in use": Case(CONVERT + " --save-dir mg", ("mg",)),
    "TP that does not divide": Case(CONVERT + " --target-tensor-parallel-size 5", ("5",)),
    # checkpoints
    "--load missing": Case(TRAIN + " --load nowhere", ("--load nowhere does not exist",)),
    "--load empty": Case(
        TRAIN + " --load empty", ("--load empty", "usable"), lambda: Path("empty").mkdir()
    ),
    "pointer to a missing iteration": Case(
        EXPORT, ("iter_0000500",), write("mg/latest_checkpointed_iteration.txt", "500")
    ),
    "pointer that is no number": Case(
        EXPORT,
        ("latest_checkpointed_iteration.txt",),
        write("mg/latest_checkpointed_iteration.txt", b"\xff\x00"),
    ),
    "rank file truncated": Case(EXPORT, ("model_optim_rng.pt",), truncated("mg/iter*/mp*/*.pt")),
    "rank file truncated, training": Case(
        TRAIN, ("model_optim_rng.pt",), truncated("mg/iter*/mp*/*.pt")
    ),
    "rank folder missing": Case(TRAIN, ("mg",), removed("mg/iter*/mp*")),
    "generate without a model": Case(
        f"generate {TOKENIZER} --prompt Hi", ("--load",)
    ),
    "generate from nothing": Case(GENERATE + " --load nowhere", ("nowhere",)),
    "--save is a file": Case(
        TRAIN + " --save corpus.jsonl --save-interval 2", ("--save corpus.jsonl", "a file")
    ),
    "--save under a file": Case(
        TRAIN + " --save corpus.jsonl/ckpt --save-interval 2", ("corpus.jsonl is a file",)
    ),
    # data
    "data missing": Case(TRAIN + " --data-path nowhere", ("nowhere",)),
    "data without its suffix": Case(
        TRAIN + " --data-path data/corpus", ("data/corpus_text_document",)
    ),
    "blend that is no number": Case(
        TRAIN + " --data-path data/corpus_text_document data/corpus_text_document x",
        ("--data-path",),
    ),
    ".bin missing": Case(TRAIN, ("corpus_text_document.bin",), removed("data/*.bin")),
    ".bin truncated": Case(TRAIN, ("corpus_text_document",), truncated("data/*.bin")),
    ".idx truncated": Case(TRAIN, ("corpus_text_document.idx",), truncated("data/*.idx")),
    ".idx of another kind": Case(
        TRAIN, ("corpus_text_document.idx",), write("data/corpus_text_document.idx", b"x" * 64)
    ),
    "split of no training data": Case(TRAIN + " --split 0,100,0", ("--split",)),
    "tokenizer folder missing": Case(
        TRAIN + " --tokenizer-name-or-path nowhere", ("nowhere", "tokenizer")
    ),
    "tokenizer.json broken": Case(TRAIN, ("tokenizer",), write("model/tokenizer.json", "{")),
    "tokenizer of another model": Case(
        TRAIN,
        ("tokenizer",),
        lambda: shutil.copytree(small.lacking_bytes(), "model", dirs_exist_ok=True),
    ),
    # preprocessing
    "corpus missing": Case(PREPROCESS + " --input nowhere.jsonl", ("nowhere.jsonl",)),
    "corpus empty": Case(PREPROCESS, ("corpus.jsonl",), write("corpus.jsonl", "")),
    "corpus of empty texts": Case(
        PREPROCESS, ("corpus.jsonl",), write("corpus.jsonl", '{"text": " "}\n{"text": ""}\n')
    ),
    "broken JSON": Case(
        PREPROCESS, ("corpus.jsonl:2",), write("corpus.jsonl", '{"text": "a"}\n{"text": \n')
    ),
    "invalid UTF-8": Case(
        PREPROCESS, ("corpus.jsonl:2",), write("corpus.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n')
    ),
    "key missing": Case(PREPROCESS + " --json-keys body", ("body", "corpus.jsonl:1")),
    "format unknown": Case(PREPROCESS + " --input a.docx", ("a.docx",), write("a.docx", "x")),
    "handler unknown": Case(
        PREPROCESS + " --handler-name GeneralPretrainHandlr", ("GeneralPretrainHandler",)
    ),
    "no tokenizer": Case(
        "preprocess --input corpus.jsonl --output-prefix out/x", ("--tokenizer-name-or-path",)
    ),
    # generation
    "temperature below 0": Case(GENERATE + " --temperature -0.5", ("--temperature",)),
    "top-p above 1": Case(GENERATE + " --top-p 1.5", ("--top-p",)),
    "top-k below 0": Case(GENERATE + " --top-k -1", ("--top-k",)),
    "prompt longer than the model": Case(
        GENERATE.replace("Hello", "'" + "one two three " * 80 + "'"), ("128",)
    ),
}  # fmt: skip
