"""A killed conversion goes on where it was: what is durable is not written again."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import resume, work
from mindspeed_llm.checkpoint.planned_file import PlannedFile
from tests.unit.checkpoint import tiny
from tests.unit.checkpoint.test_killed import run_and_kill
from tests.unit.checkpoint.tiny import to_hf, to_mg

KILLS = 10


class Stop(BaseException):
    """As a kill: nothing that handles errors sees it."""


@pytest.fixture
def stop_after(monkeypatch):
    """``stop_after(n)``: the conversion stops when ``n`` tensors are on the disk."""

    def arrange(count: int) -> Counter[str]:
        written: Counter[str] = Counter()
        plain = PlannedFile.write

        def write(self, name, rows):
            if sum(written.values()) == count:
                raise Stop
            done = plain(self, name, rows)
            written[f"{self.path.parent.name}/{self.path.name}/{name}"] += 1
            return done

        monkeypatch.setattr(PlannedFile, "write", write)
        monkeypatch.setattr(work, "THREADS", 1)
        return written

    yield arrange


def wait_until_noted(monkeypatch) -> None:
    """Let the journal hold all that was written before the stop."""
    monkeypatch.setattr(work, "FLUSH_SECONDS", 0.001)
    plain = PlannedFile.write

    def write(self, name, rows):
        time.sleep(0.004)
        return plain(self, name, rows)

    monkeypatch.setattr(PlannedFile, "write", write)


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the report, which holds times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "conversion.json"
    }


@pytest.mark.parametrize("direction", ["to mg", "to hf"])
def test_what_is_durable_is_not_written_again(
    direction, tiny_hf, scratch, stop_after, monkeypatch, capsys
) -> None:
    source, convert = tiny_hf("qwen2", tied=True), to_mg
    flags = {"tp": 2, "pp": 2}
    if direction == "to hf":
        source, convert, flags = to_mg(source, scratch / "mg", tp=2), to_hf, {}
    whole = content(convert(source, scratch / "whole", **flags))
    with monkeypatch.context() as patch:
        wait_until_noted(patch)
        first = stop_after(20)
        with pytest.raises(Stop):
            convert(source, scratch / "out", **flags)
    assert not (scratch / "out").exists()
    assert (scratch / ".out.partial").is_dir()
    second = stop_after(10**9)
    assert content(convert(source, scratch / "out", **flags)) == whole
    again = first.keys() & second.keys()
    assert len(again) <= 4, "only what was not noted yet is written again"
    assert "continuing an interrupted conversion" in capsys.readouterr().out
    report = json.loads((scratch / "out" / "conversion.json").read_text())
    assert 0 < report["kept"] < report["nbytes"]
    assert not list(scratch.glob(".*"))


def stopped(source: Path, target: Path, stop_after, monkeypatch, *flags: str, **sizes) -> None:
    with monkeypatch.context() as patch:
        wait_until_noted(patch)
        stop_after(20)
        with pytest.raises(Stop):
            to_mg(source, target, *flags, **sizes)


@pytest.mark.parametrize("change", ["flag", "layout", "source", "code"])
def test_another_request_does_not_continue(
    change, own_hf, scratch, stop_after, monkeypatch, capsys
) -> None:
    source = own_hf("llama")
    with monkeypatch.context() as patch:
        stopped(source, scratch / "out", stop_after, patch, tp=2)
    flags, sizes, why = (), {"tp": 2}, ""
    if change == "flag":
        flags, why = ("--params-dtype", "bf16"), "its --params-dtype was None, now it is bf16"
    elif change == "layout":
        sizes, why = {"tp": 4}, "its --target-tensor-parallel-size was 2, now it is 4"
    elif change == "source":
        os.utime(source / "model.safetensors")
        why = "the files to convert have changed"
    else:
        monkeypatch.setattr(resume, "code_version", lambda: "later")
        why = "another version of this program wrote it"
    result = to_mg(source, scratch / "out", *flags, **sizes)
    assert why in capsys.readouterr().err
    assert json.loads((result / "conversion.json").read_text())["kept"] == 0
    assert content(result) == content(to_mg(source, scratch / "fresh", *flags, **sizes))


def test_verify_level_may_change_between_runs(tiny_hf, scratch, stop_after, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        stopped(tiny_hf("llama"), scratch / "out", stop_after, patch)
    result = to_mg(tiny_hf("llama"), scratch / "out", "--verify", "roundtrip")
    report = json.loads((result / "conversion.json").read_text())
    assert report["kept"] > 0
    assert [check["name"] for check in report["checks"]] == ["accounting", "roundtrip"]


def test_a_file_lost_from_the_unfinished_folder_is_written_again(
    tiny_hf, scratch, stop_after, monkeypatch
) -> None:
    with monkeypatch.context() as patch:
        stopped(tiny_hf("llama"), scratch / "out", stop_after, patch, tp=2)
    (lost, *_) = (scratch / ".out.partial").rglob("mp_rank_01/*.pt")
    lost.unlink()
    result = to_mg(tiny_hf("llama"), scratch / "out", tp=2)
    assert content(result) == content(to_mg(tiny_hf("llama"), scratch / "fresh", tp=2))


def test_a_torn_journal_counts_as_far_as_it_goes(tiny_hf, scratch, stop_after, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        stopped(tiny_hf("llama"), scratch / "out", stop_after, patch, tp=2)
    journal = scratch / ".out.partial" / resume.JOURNAL
    journal.write_bytes(journal.read_bytes()[:-7])
    result = to_mg(tiny_hf("llama"), scratch / "out", tp=2)
    assert content(result) == content(to_mg(tiny_hf("llama"), scratch / "fresh", tp=2))


def test_values_that_are_no_numbers_are_remembered(
    own_hf, scratch, stop_after, monkeypatch, capsys
) -> None:
    source = own_hf("llama")
    stored = tiny.weights(source)
    stored["model.embed_tokens.weight"][3] = float("nan")
    tiny.store(source, stored)
    with monkeypatch.context() as patch:
        stopped(source, scratch / "out", stop_after, patch)
    result = to_mg(source, scratch / "out")
    report = json.loads((result / "conversion.json").read_text())
    assert report["not_finite"] == ["embedding.word_embeddings.weight"]
    assert "1 tensors hold NaN" in capsys.readouterr().err


def test_an_existing_folder_keeps_its_files_and_gets_the_pointer_last(
    tiny_hf, scratch, stop_after, monkeypatch
) -> None:
    target = scratch / "out"
    target.mkdir()
    (target / "notes.md").write_text("mine")
    with monkeypatch.context() as patch:
        stopped(tiny_hf("llama"), target, stop_after, patch)
    moved: list[str] = []
    plain = os.replace

    def replace(source, to):
        moved.append(Path(to).name)
        return plain(source, to)

    monkeypatch.setattr(os, "replace", replace)
    to_mg(tiny_hf("llama"), target)
    assert moved[-1] == "latest_checkpointed_iteration.txt"
    assert (target / "notes.md").read_text() == "mine"
    assert sorted(p.name for p in target.iterdir()) == [
        "conversion.json", "hf_files", "iter_0000001", "latest_checkpointed_iteration.txt",
        "notes.md",
    ]  # fmt: skip


def test_a_kill_during_the_move_is_finished_by_the_next_run(tiny_hf, scratch, monkeypatch) -> None:
    target = scratch / "out"
    target.mkdir()
    plain = os.replace

    def replace(source, to):
        if Path(to) == target / "latest_checkpointed_iteration.txt":
            raise Stop
        return plain(source, to)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(Stop):
            to_mg(tiny_hf("llama"), target)
    assert (target / "iter_0000001").is_dir()
    to_mg(tiny_hf("llama"), target)
    assert content(target) == content(to_mg(tiny_hf("llama"), scratch / "fresh"))


def test_two_conversions_never_write_one_result(tiny_hf, scratch) -> None:
    from mindspeed_llm.checkpoint.casting import Caster

    request = {"flags": {}, "files": {}, "code": ""}
    with resume.unfinished(scratch / "out", request, Caster(None), ()):
        with pytest.raises(UserError, match="another conversion is writing it"):
            to_mg(tiny_hf("llama"), scratch / "out")


def test_a_source_that_changes_meanwhile_is_an_error(own_hf, scratch, monkeypatch) -> None:
    source = own_hf("llama")
    plain = PlannedFile.finish

    def finish(self):
        os.utime(source / "model.safetensors")
        return plain(self)

    monkeypatch.setattr(PlannedFile, "finish", finish)
    with pytest.raises(UserError, match="was changed while it was read"):
        to_mg(source, scratch / "out")
    assert not list(scratch.glob("*out*")) + list(scratch.glob(".*"))


def test_torch_dist_begins_anew(tiny_hf, scratch, monkeypatch) -> None:
    """Its files are written in one go; what a killed run left is not in the way."""
    words = ("--ckpt-format", "torch_dist")
    plain, calls = resume.Unfinished.wrote, []

    def wrote(self, nbytes):
        calls.append(nbytes)
        if len(calls) == 10:
            raise Stop
        plain(self, nbytes)

    monkeypatch.setattr(resume.Unfinished, "wrote", wrote)
    with pytest.raises(Stop):
        to_mg(tiny_hf("llama"), scratch / "out", *words)
    assert (scratch / ".out.partial").is_dir()
    result = to_mg(tiny_hf("llama"), scratch / "out", *words, "--verify", "roundtrip")
    assert content(result).keys() == content(to_mg(tiny_hf("llama"), scratch / "b", *words)).keys()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("direction", ["to mg", "to hf"])
def test_ten_kills_then_bit_equal(direction, tmp_path) -> None:
    """Killed at ten random moments, each run continues the one before; the last one finishes."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "vocab_size": 16000}
    source, convert = tiny.make(tmp_path / "hf", "llama", **sizes), to_mg
    if direction == "to hf":
        source, convert = to_mg(source, tmp_path / "mg", tp=2, pp=2), to_hf
    begin = time.perf_counter()
    whole = convert(source, tmp_path / "whole")
    duration = time.perf_counter() - begin
    target, moments = tmp_path / "out", random.Random(7)
    killed = 0
    for _ in range(KILLS):
        killed += run_and_kill(convert, source, target, after=moments.uniform(0.2, 1) * duration)
        if target.exists():
            assert content(target) == content(whole)
            shutil.rmtree(target)
    assert killed, "no process was killed in time: the test shows nothing"
    assert content(convert(source, target)) == content(whole)
    assert not list(tmp_path.glob(".*"))
