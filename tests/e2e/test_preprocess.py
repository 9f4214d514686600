"""``preprocess_data.py`` as users run it: the published commands, and every kind of mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindspeed_llm.console import entry_point
from mindspeed_llm.data.preprocess.command import main
from mindspeed_llm.data.tokenizer import load_hf_tokenizer
from tests.data import small

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ["--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path"]


def documents(prefix: Path) -> list[list[int]]:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    data = IndexedDataset(str(prefix))
    return [ids.tolist() for ids in data[: len(data)]]


def expected(append_eod: bool = False) -> list[list[int]]:
    tokenizer = load_hf_tokenizer(small.byte_level())
    ids = tokenizer.hf(small.corpus_texts())["input_ids"]
    return [one + [tokenizer.eod] * append_eod for one in ids]


def test_the_published_command_on_a_parquet_file(tmp_path: Path) -> None:
    """The GLM-4 day-0 command: no --handler-name, 4 workers, a folder that is not there yet."""
    source = tmp_path / "dataset" / "train-00000-of-00001-a09b74b3ef9c3b56.parquet"
    source.parent.mkdir()
    rows = [{"instruction": "x", "output": "y", "text": text} for text in small.corpus_texts()]
    pq.write_table(pa.Table.from_pylist(rows), source)
    command = [sys.executable, str(ROOT / "preprocess_data.py"), "--input", str(source)]
    command += [*TOKENIZER, str(small.byte_level()), "--workers", "4", "--log-interval", "1000"]
    command += ["--output-prefix", "./dataset/glm4_9b_0414_hf/alpaca"]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    prefix = tmp_path / "dataset" / "glm4_9b_0414_hf" / "alpaca_text_document"
    assert documents(prefix) == expected()
    assert "encoder: fastokens" in result.stdout
    assert "documents      32" in result.stdout
    assert "--data-path    dataset/glm4_9b_0414_hf/alpaca_text_document" in result.stdout
    manifest = json.loads(Path(f"{prefix}.json").read_text())
    assert manifest["handler"] == "GeneralPretrainHandler"
    assert manifest["documents"] == 32


@pytest.mark.parametrize("workers", ["1", "4"])
def test_the_qwen3_command_and_the_same_order_for_any_workers(tmp_path: Path, workers: str) -> None:
    argv = ["--input", str(small.CORPUS), *TOKENIZER, str(small.byte_level())]
    argv += [
        "--handler-name",
        "GeneralPretrainHandler",
        "--output-prefix",
        str(tmp_path / "enwiki"),
    ]
    argv += ["--json-keys", "text", "--workers", workers, "--log-interval", "1000", "--append-eod"]
    assert main(argv) == 0
    assert documents(tmp_path / "enwiki_text_document") == expected(append_eod=True)


def test_two_keys_and_merging(tmp_path: Path) -> None:
    base = [*TOKENIZER, str(small.byte_level())]
    for part in ("p1", "p2"):
        argv = ["--input", str(small.CORPUS), "--output-prefix", str(tmp_path / "parts" / part)]
        assert main([*argv, *base, "--json-keys", "text", "meta.title"]) == 0
    titles = documents(tmp_path / "parts" / "p1_meta.title_document")
    assert load_hf_tokenizer(small.byte_level()).decode(titles[3]) == "Text 3"
    argv = ["--input", str(tmp_path / "parts"), "--output-prefix", str(tmp_path / "all")]
    assert main([*argv, "--merge-group-keys", "text_document"]) == 0
    assert documents(tmp_path / "all_text_document") == expected() + expected()


@pytest.mark.slow
def test_the_slow_tokenizer(tmp_path: Path) -> None:
    argv = ["--input", str(small.CORPUS), "--output-prefix", str(tmp_path / "x"), *TOKENIZER]
    argv += [str(small.python_only()), "--tokenizer-not-use-fast", "--workers", "2"]
    assert main(argv) == 0
    tokenizer = load_hf_tokenizer(small.python_only())
    assert (
        documents(tmp_path / "x_text_document") == tokenizer.hf(small.corpus_texts())["input_ids"]
    )


def wrong(name: str, folder: Path) -> tuple[list[str], str]:
    """The arguments of a wrong call and the words that its message must hold."""
    good = folder / "good.jsonl"
    good.write_text('{"text": "a"}\n')
    empty = folder / "empty.jsonl"
    empty.write_text("")
    (folder / "pictures").mkdir()
    (folder / "pictures" / "a.png").write_bytes(b"x")
    (folder / "no_tokenizer").mkdir()
    (folder / "broken_tokenizer").mkdir()
    (folder / "broken_tokenizer" / "tokenizer.json").write_text("{")
    options = {
        "--input": str(good),
        "--output-prefix": str(folder / "out" / "x"),
        "--tokenizer-name-or-path": str(small.byte_level()),
    }
    changes: dict[str, tuple[dict[str, str | None], str]] = {
        "no input": ({"--input": None}, "--input is required"),
        "no output": ({"--output-prefix": None}, "--output-prefix is required"),
        "no tokenizer": (
            {"--tokenizer-name-or-path": None},
            "--tokenizer-name-or-path is required",
        ),
        "input not there": ({"--input": str(folder / "god.jsonl")}, "Near to it: good.jsonl"),
        "input of no format": ({"--input": str(folder / "pictures")}, "found a.png"),
        "empty input": ({"--input": str(empty)}, "no token under the key"),
        "key not there": ({"--json-keys": "content"}, f'{good}:1: no key "content"'),
        "handler typo": (
            {"--handler-name": "GeneralPretrianHandler"},
            "Did you mean GeneralPretrainHandler",
        ),
        "handler not there yet": (
            {"--handler-name": "StackOverflowPythonPretrainHandler"},
            "use GeneralPretrainHandler with --json-keys",
        ),
        "tokenizer folder not there": (
            {"--tokenizer-name-or-path": "Qwen/Qwen3-8B"},
            "no such folder",
        ),
        "folder without tokenizer": (
            {"--tokenizer-name-or-path": str(folder / "no_tokenizer")},
            "no tokenizer in this folder",
        ),
        "broken tokenizer": (
            {"--tokenizer-name-or-path": str(folder / "broken_tokenizer")},
            "the tokenizer does not load",
        ),
        "output folder is a file": ({"--output-prefix": f"{good}/x"}, "cannot be made"),
        "unknown flag": ({"--apend-eod": ""}, "--append-eod"),
        "workers": ({"--workers": "none"}, "--workers"),
        "nothing to merge": (
            {"--merge-group-keys": "text_document", "--input": str(folder)},
            "there are: none",
        ),
    }
    change, words = changes[name]
    options.update(change)  # type: ignore[arg-type]
    argv = [word for flag, value in options.items() if value is not None for word in (flag, value)]
    return [word for word in argv if word], words


@pytest.mark.parametrize(
    "name",
    [
        "no input",
        "no output",
        "no tokenizer",
        "input not there",
        "input of no format",
        "empty input",
        "key not there",
        "handler typo",
        "handler not there yet",
        "tokenizer folder not there",
        "folder without tokenizer",
        "broken tokenizer",
        "output folder is a file",
        "unknown flag",
        "workers",
        "nothing to merge",
    ],
)
def test_a_mistake_ends_in_a_message(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv, words = wrong(name, tmp_path)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as caught:
        entry_point(main, argv)
    shown = capsys.readouterr().err
    assert caught.value.code == 2
    assert words in shown
    assert "Traceback" not in shown
    assert len(shown.splitlines()) < 12
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
