"""``mindspeed-llm inspect`` tells what a checkpoint is, and every piece that it lacks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.inspect import inspect, main
from mindspeed_llm.checkpoint.sha256 import read_sums
from mindspeed_llm.cli import dispatch
from tests.unit.checkpoint import tiny
from tests.unit.checkpoint.damages import SHARDS, shard
from tests.unit.checkpoint.tiny import to_mg


def test_a_hugging_face_folder(tiny_hf, capsys) -> None:
    folder = tiny_hf("qwen3", tied=True)
    assert main([str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "nothing is missing" in shown
    for words in ("Qwen3ForCausalLM", "F32 100%", "kv_channels 24", "tokenizer_config.json"):
        assert words in shown
    assert main([str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    model = facts["files"].pop("model.safetensors")
    assert model == facts["bytes"] == (folder / "model.safetensors").stat().st_size
    assert facts["family"] == "qwen3"
    assert facts["parameters"] == sum(t.numel() for t in tiny.weights(folder).values())
    assert facts["shape"]["num_layers"] == 4
    assert facts["problems"] == []


@pytest.mark.parametrize("sizes", [{"tp": 1}, {"tp": 2, "pp": 2}])
def test_a_converted_checkpoint(sizes, tiny_hf, scratch) -> None:
    root = to_mg(tiny_hf("qwen2"), scratch / "mg", "--params-dtype", "bf16", **sizes)
    for path in (root, root / "iter_0000001"):
        found = inspect(path)
        assert found.problems == []
        assert found.facts["kind"] == "Megatron torch"
        assert found.facts["layout"].endswith(f"TP{sizes['tp']} PP{sizes.get('pp', 1)}")
        assert list(found.facts["types"]) == ["bfloat16"]
        assert (found.facts["iteration"], found.facts["family"]) == (1, "qwen2")
        assert not found.facts["optimizer"]
        assert not found.facts["random generators"]
        assert "config.json" in found.facts["side files"]
        assert len([f for f in found.facts["files"] if f.endswith(".pt")]) == (
            sizes["tp"] * sizes.get("pp", 1)
        )


def test_every_problem_is_listed_not_only_the_first(own_hf) -> None:
    folder = own_hf("llama")
    shard(folder)
    for name in SHARDS:
        (folder / name).write_bytes((folder / name).read_bytes()[:-100])
    (folder / "config.json").write_text("{")
    problems = inspect(folder).problems
    assert len(problems) == 3
    assert "config.json is not valid JSON" in problems[0]
    assert SHARDS[0] in problems[1]
    assert SHARDS[1] in problems[2]


def test_incomplete_and_unfinished_parts_of_a_checkpoint(tiny_hf, scratch, capsys) -> None:
    root = to_mg(tiny_hf("llama"), scratch / "mg", tp=2)
    shutil.copytree(root / "iter_0000001", root / "iter_0000003")
    (root / "iter_0000003/mp_rank_00/model_optim_rng.pt").unlink()
    (root / ".iter_0000005.partial").mkdir()
    assert main([str(root)]) == 1
    shown = capsys.readouterr().out
    assert "iteration 3 is incomplete: mp_rank_00/model_optim_rng.pt missing" in shown
    assert ".iter_0000005.partial" in shown
    assert "1 problem(s)" in shown


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: os.truncate(r / "iter_0000001/mp_rank_01/model_optim_rng.pt", 9000), "damaged"),
        (lambda r: (r / "latest_checkpointed_iteration.txt").write_text("9"), "iteration 9"),
        (lambda r: shutil.rmtree(r / "iter_0000001/mp_rank_00"), "missing or empty"),
    ],
)
def test_broken_megatron_checkpoints(spoil, message, tiny_hf, scratch) -> None:
    root = to_mg(tiny_hf("llama"), scratch / "mg", tp=2)
    spoil(root)
    problems = inspect(root).problems
    assert any(message in problem for problem in problems), problems


def test_pieces_of_torch_dist_that_are_cut_off_or_gone(tiny_hf, scratch) -> None:
    root = to_mg(tiny_hf("llama"), scratch / "mg", "--ckpt-format", "torch_dist")
    found = inspect(root)
    assert (found.facts["kind"], found.problems) == ("Megatron torch_dist", [])
    (piece, *_) = sorted(root.glob("*/*.distcp"))
    os.truncate(piece, piece.stat().st_size - 100)
    assert any(f"{piece.name} is cut off" in line for line in inspect(root).problems)
    piece.unlink()
    assert any(f"{piece.name} is missing" in line for line in inspect(root).problems)


def test_a_training_checkpoint_says_what_it_can_resume(tiny_hf, scratch) -> None:
    root = to_mg(tiny_hf("llama"), scratch / "mg")
    (path,) = root.glob("*/*/model_optim_rng.pt")
    content = torch.load(path, weights_only=False)
    content |= {"optimizer": {}, "opt_param_scheduler": {}, "rng_state": []}
    torch.save(content, path)
    facts = inspect(root).facts
    assert all(facts[state] for state in ("optimizer", "scheduler", "random generators"))


def test_neither_kind(tmp_path) -> None:
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(UserError, match=r"but: notes\.md"):
        inspect(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        inspect(tmp_path / "nowhere")


def test_every_command_on_the_page_runs(tiny_hf, scratch, monkeypatch) -> None:
    shutil.copytree(tiny_hf("llama"), scratch / "model_from_hf")
    sums_of(scratch / "model_from_hf", scratch / "SHA256SUMS")
    monkeypatch.chdir(scratch)
    page = (Path(__file__).resolve().parents[3] / "docs" / "inspect.md").read_text()
    commands = re.findall(r"```bash\n(.*?)\n```", page, re.S)
    assert len(commands) == 3
    for command in commands:
        program, *words = shlex.split(command)
        assert (program, dispatch(words)) == ("mindspeed-llm", 0)


def sums_of(folder: Path, target: Path, form: str = "{sum}  {name}") -> Path:
    lines = [
        form.format(sum=hashlib.sha256(path.read_bytes()).hexdigest(), name=path.name)
        for path in sorted(folder.iterdir())
    ]
    target.write_text("\n".join(["# published", *lines, ""]))
    return target


@pytest.mark.parametrize("form", ["{sum}  {name}", "{sum} *./{name}", "SHA256 ({name}) = {sum}"])
def test_sums_in_every_form_of_sha256sum(form, own_hf, scratch, capsys) -> None:
    folder = own_hf("llama")
    sums = sums_of(folder, scratch / "SUMS", form)
    assert main([str(folder), "--sha256", str(sums)]) == 0
    to_mg(folder, scratch / "mg", "--sha256", str(sums))
    assert f"{len(list(folder.iterdir()))} files as published" in capsys.readouterr().out


def test_convert_stops_at_wrong_missing_and_uncovered_files(own_hf, scratch) -> None:
    folder = own_hf("llama")
    sums = sums_of(folder, scratch / "SUMS")
    config = folder / "config.json"
    config.write_text(config.read_text() + " ")
    (folder / "generation_config.json").unlink()
    tiny.save_file({"x": torch.ones(2)}, folder / "extra.safetensors")
    with pytest.raises(UserError) as error:
        to_mg(folder, scratch / "mg", "--sha256", str(sums))
    said = str(error.value)
    assert "config.json: another sum" in said
    assert "generation_config.json: missing" in said
    assert "extra.safetensors: no sum is given for it" in said
    assert "model.safetensors" not in said
    assert not list(scratch.glob("*mg*"))
    assert main([str(folder), "--sha256", str(sums)]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no sums"),
        ("0123  a", ":1 is not a line of sha256sum"),
        ("0" * 64 + "  ../a", "outside the folder"),
        (f"{'0' * 64}  a\n{'1' * 64}  a", ":2: a has two different sums"),
    ],
)
def test_files_of_sums_that_are_none(text, message, tmp_path) -> None:
    (tmp_path / "SUMS").write_text(text)
    with pytest.raises(UserError, match=message):
        read_sums(tmp_path / "SUMS")
    with pytest.raises(UserError, match="cannot be read"):
        read_sums(tmp_path / "nowhere")
