"""The pipeline: starting again with another engine, all keys or none, bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data import encoder
from mindspeed_llm.data.preprocess import pipeline
from mindspeed_llm.data.preprocess.command import PreprocessOptions, preprocess
from mindspeed_llm.data.storage.indexed import IndexedWriter, token_dtype
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests.data import chats, small

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_hf_tokenizer(small.byte_level())


def test_a_difference_in_mid_corpus_starts_again_with_tokenizers(
    tmp_path: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [json.dumps({"text": text}) for text in small.corpus_texts() * 1200]
    lines.insert(7, "broken")
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    original = encoder.FastokensEngine._check_one

    def check(self: encoder.FastokensEngine, *arguments) -> None:
        if self._batches == 2:
            raise encoder.EnginesDiffer("the two engines differ on 'x'")
        original(self, *arguments)

    monkeypatch.setattr(encoder.FastokensEngine, "_check_one", check)
    options = PreprocessOptions(str(tmp_path / "a.jsonl"), str(tmp_path / "x"), on_error="skip")
    summary = preprocess(options, tokenizer)
    assert summary.documents == len(lines) - 1
    assert summary.skipped_bad == 1
    assert summary.manifests["text"].encoder == "tokenizers"
    shown = capsys.readouterr()
    assert "starting again with tokenizers" in shown.err
    assert "encoder: tokenizers (the two engines differ" in shown.out


def test_a_prefix_that_is_a_folder_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("words\n")
    for prefix in (f"{tmp_path}/new/", str(tmp_path)):
        with pytest.raises(UserError, match="is a folder; files are named by what follows"):
            preprocess(PreprocessOptions(str(tmp_path / "a.txt"), prefix), tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failed_run_leaves_no_empty_folders(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n')
    options = PreprocessOptions(str(tmp_path / "a.jsonl"), str(tmp_path / "new" / "deep" / "x"))
    with pytest.raises(UserError, match="no token"):
        preprocess(options, tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_one_key_without_a_token_and_nothing_is_written(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "words", "title": ""}\n' * 3)
    options = PreprocessOptions(
        str(tmp_path / "a.jsonl"), str(tmp_path / "out" / "x"), json_keys=("text", "title")
    )
    with pytest.raises(UserError, match='no token under the key "title"'):
        preprocess(options, tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_second_key_that_is_locked_leaves_nothing_of_the_first(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "words", "title": "more"}\n')
    options = PreprocessOptions(
        str(tmp_path / "a.jsonl"), str(tmp_path / "out" / "x"), json_keys=("text", "title")
    )
    with IndexedWriter(tmp_path / "out" / "x_title_document", token_dtype(10)):
        with pytest.raises(UserError, match="another run"):
            preprocess(options, tokenizer)
        names = [path.name for path in (tmp_path / "out").iterdir()]
        assert names == [".x_title_document.bin.partial"]


def test_a_thread_that_reads_ahead_ends_with_its_user() -> None:
    closed = threading.Event()
    taken: list[int] = []

    def numbers():
        try:
            for number in range(1000):
                taken.append(number)
                yield number
        finally:
            closed.set()

    stream = pipeline.ahead(numbers(), depth=2)
    assert [next(stream), next(stream)] == [0, 1]
    stream.close()
    assert closed.wait(5)
    assert len(taken) < 10


def test_an_error_in_the_reader_is_raised_in_order() -> None:
    def numbers():
        yield 1
        raise UserError("two is missing")

    seen = []
    with pytest.raises(UserError, match="two is missing"):
        for number in pipeline.ahead(numbers()):
            time.sleep(0.05)
            seen.append(number)
    assert seen == [1]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    peaks = []
    text = "".join(json.dumps({"text": text}) + "\n" for text in small.corpus_texts() * 30)
    for megabytes in (40, 160):
        (tmp_path / "a.jsonl").write_text(text * (megabytes * 1_000_000 // len(text)))
        code = f"""
import pathlib, re
from mindspeed_llm.data.preprocess.command import PreprocessOptions, preprocess
from mindspeed_llm.data.tokenizer import load_hf_tokenizer
tokenizer = load_hf_tokenizer(pathlib.Path({str(small.byte_level())!r}))
preprocess(PreprocessOptions({str(tmp_path / "a.jsonl")!r}, {str(tmp_path / "x")!r}), tokenizer)
status = pathlib.Path("/proc/self/status").read_text()
print(re.search(r"VmHWM:\\s+(\\d+)", status).group(1))
"""
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        peaks.append(int(result.stdout.split()[-1]) / 1024)
    assert peaks[1] - peaks[0] < 40, f"peak memory in MB: {peaks}"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_chats(tmp_path: Path) -> None:
    """Packed, which holds a window of samples; small batches fill window and queues early."""
    rows = [chats.openai(turns[-2:] * 8) for turns in chats.CHATS]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    peaks = []
    for megabytes in (15, 60):
        (tmp_path / "a.jsonl").write_text(text * (megabytes * 1_000_000 // len(text)))
        code = f"""
import pathlib, re
from mindspeed_llm.data import readers
from mindspeed_llm.data.preprocess.command import PreprocessOptions, preprocess
from mindspeed_llm.data.tokenizer import load_hf_tokenizer
tokenizer = load_hf_tokenizer(pathlib.Path({str(chats.folder())!r}))
options = PreprocessOptions(
    {str(tmp_path / "a.jsonl")!r}, {str(tmp_path / "x")!r}, handler_name="OpenAIInstructionHandler",
    template={{"prompt_type": "chatml"}}, seq_length=1024, pack=True, max_dropped_share=1.0,
)
readers.BATCH_BYTES = 1 << 18
preprocess(options, tokenizer)
status = pathlib.Path("/proc/self/status").read_text()
print(re.search(r"VmHWM:\\s+(\\d+)", status).group(1))
"""
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert result.returncode == 0, result.stderr
        peaks.append(int(result.stdout.split()[-1]) / 1024)
    assert peaks[1] - peaks[0] < 40, f"peak memory in MB: {peaks}"
