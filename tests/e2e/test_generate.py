"""The command as a user runs it: prompts from everywhere, and wrong invocations."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mindspeed.errors import UserError
from tests.unit.inference.models import write_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("generate") / "model", "llama")


def run(*flags: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "inference.py", *flags]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False, **options
    )


def test_prompts_from_flags_in_order_with_the_known_format(model) -> None:
    done = run("--load", str(model), "--max-new-tokens", "4", "--prompt", "first", "second one")
    assert done.returncode == 0, done.stderr
    assert "=============== Greedy Search ================" in done.stdout
    places = [
        done.stdout.index(f"You:\n{prompt}\n\nMindSpeed-LLM:\n")
        for prompt in ("first", "second one")
    ]
    assert places == sorted(places)
    assert "Elapsed: " in done.stdout
    assert "(8 tokens," in done.stdout


def test_prompt_may_be_repeated() -> None:
    from mindspeed_llm.flags import parse

    argv = ["--load", "x", "--prompt", "a", "b", "--prompt", "c"]
    assert parse("inference", argv).inference.prompt == ("a", "b", "c")


@pytest.mark.slow
def test_a_pipe_is_one_prompt_and_null_is_a_demonstration(model) -> None:
    flags = ("--load", str(model), "--max-new-tokens", "3")
    piped = run(*flags, input="line one\nline two\n")
    assert "You:\nline one\nline two\n\nMindSpeed-LLM:" in piped.stdout
    nothing = run(*flags, stdin=subprocess.DEVNULL)
    assert nothing.returncode == 0
    assert "You:\nhow are you?\n" in nothing.stdout
    empty = run(*flags, input="")
    assert empty.returncode == 2
    assert "standard input is empty" in empty.stderr


@pytest.mark.slow
def test_a_terminal_is_asked_line_by_line_on_two_ranks(model) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "inference.py", "--load", str(model), "--max-new-tokens", "2"]
    command += ["--nproc", "2", "--tensor-model-parallel-size", "2"]
    os.write(ours, b"hello there\nand again\n\x04")
    done = subprocess.run(
        command, cwd=ROOT, stdin=theirs, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "You:\nhello there\n" in done.stdout
    assert "You:\nand again\n" in done.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--load is missing"),
        (["--load", "/nowhere"], "/nowhere does not exist"),
        (["--load", "MODEL", "--temperature", "-1"], "temperature"),
        (["--load", "MODEL", "--top-p", "1.1"], "top-p"),
        (["--load", "MODEL", "--top-k", "-2"], "top-k"),
        (["--load", "MODEL", "--max-new-tokens", "0"], "max-new-tokens"),
        (["--load", "MODEL", "--task", "beam_search"], "beam search"),
        (["--load", "MODEL", "--num-layers", "5"], "--num-layers 5, the model has 4"),
        (["--load", "MODEL", "--tensor-model-parallel-size", "2"], "do not divide"),
        (["--load", "MODEL", "--tokenizer-name-or-path", "/nowhere"], "no such folder"),
        (["--load", "MODEL", "--add-eos-token", "several words here"], "one token"),
        (["--load", "MODEL", "--hf-chat-template"], "chat"),
        (["--load", "BARE"], "no tokenizer"),
    ],
)
def test_wrong_invocations_say_what_to_do(model, tmp_path, flags, words) -> None:
    from mindspeed_llm.inference.generate import main

    bare = tmp_path / "bare"
    shutil.copytree(model, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    places = {"MODEL": str(model), "BARE": str(bare)}
    with pytest.raises(UserError, match=words):
        main([places.get(flag, flag) for flag in flags])


def test_prompts_that_do_not_fit_the_model(model) -> None:
    done = run("--load", str(model), "--prompt", "word " * 300)
    assert done.returncode == 2
    assert "leave no room for an answer; shorten the prompt" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_end_token_of_the_generation_config_stops(model, tmp_path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    plain = run("--load", str(folder), "--prompt", "go", "--max-new-tokens", "8")
    assert "(8 tokens," in plain.stdout, plain.stderr
    # Whatever the model says can end it.
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": list(range(601))}))
    ended = run("--load", str(folder), "--prompt", "go", "--max-new-tokens", "8")
    assert "(1 tokens," in ended.stdout, ended.stderr
