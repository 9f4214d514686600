"""The scripts under ``examples/``: the published values as they stand, and a whole chain run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mindspeed_llm.flags import Config, parse
from tests.data import small
from tests.e2e.tiny_model import write_model
from tests.unit.flags.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "mcore"
SCRIPTS = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/*.sh"))
TOOLS = {
    "preprocess_data.py": "preprocess",
    "convert_ckpt_v2.py": "convert",
    "convert_ckpt.py": "convert_v1",
    "pretrain_gpt.py": "pretrain",
    "posttrain_gpt.py": "posttrain",
    "inference.py": "inference",
}
# Script, the published command that it holds, and the dests in which it goes beyond that: paths
# that a user sets, and what the published text leaves open.
PATHS = {"load", "save", "data_path", "tokenizer_name_or_path", "input", "output_prefix"}
PUBLISHED = [
    ("qwen3/data_convert_qwen3_pretrain.sh", "qwen3 data", set()),
    ("qwen3/ckpt_convert_qwen3_hf2mcore.sh", "qwen3 hf2mcore", set()),
    ("qwen3/ckpt_convert_qwen3_mcore2hf.sh", "qwen3 mcore2hf", set()),
    ("qwen3/pretrain_qwen3_8b_4K_ptd.sh", "qwen3 pretrain", set()),
    ("qwen3/pretrain_qwen3_8b_4K_ptd_A3.sh", "qwen3 pretrain A3", {"workers"}),
    ("qwen3/generate_qwen3_8b_ptd.sh", "qwen3 generate", {"max_position_embeddings"}),
    ("qwen25/data_convert_qwen25_pretrain.sh", "qwen2.5 data", set()),
    ("qwen25/ckpt_convert_qwen25_hf2mcore.sh", "qwen2.5 hf2mcore, older tool", set()),
]


def command_of(script: str, tmp_path: Path, **variables: str) -> tuple[list[str], list[str]]:
    """What a script would run: the launcher's words and, from the Python file on, the command's."""
    record = tmp_path / "argv.json"
    for name in ("python", "torchrun"):
        stub = tmp_path / name
        stub.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"json.dump(sys.argv[1:], open({str(record)!r}, 'w'))\n"
        )
        stub.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
    subprocess.run(["bash", EXAMPLES / script], env=environment, check=True, timeout=60)
    words = json.loads(record.read_text())
    at = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return words[:at], words[at:]


def parsed(command: list[str]) -> Config:
    return parse(TOOLS[Path(command[0]).name], command[1:])


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_is_accepted_as_it_stands(script: str, tmp_path: Path) -> None:
    launcher, command = command_of(script, tmp_path)
    assert (ROOT / command[0]).is_file()
    config = parsed(command)
    if config.trains or config.tool == "inference":
        processes = int(launcher[launcher.index("--nproc_per_node") + 1])
        sizes = config.parallel
        per_model = sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size
        assert processes % per_model == 0


@pytest.mark.parametrize(("script", "name", "more"), PUBLISHED)
def test_scripts_hold_the_published_values(
    script: str, name: str, more: set[str], tmp_path: Path
) -> None:
    tool, text = COMMANDS[name]
    published = parse(tool, shlex.split(text))
    ours = parsed(command_of(script, tmp_path)[1])
    assert ours.tool == tool
    for dest in published.given - PATHS:
        assert ours.value(dest) == published.value(dest), dest
    assert ours.given - published.given <= more


def test_variables_override_values(tmp_path: Path) -> None:
    _, command = command_of(
        "qwen3/pretrain_qwen3_8b_4K_ptd.sh", tmp_path, TP="4", GBS="32", DATA_PATH="a b/c"
    )
    config = parsed(command)
    assert config.parallel.tensor_model_parallel_size == 4
    assert config.training.global_batch_size == 32
    assert config.data.data_path == ("a b/c",)


@pytest.mark.slow
def test_the_qwen3_scripts_run_as_a_chain(tmp_path: Path) -> None:
    """Preprocess, convert to PP 4, train at another layout, convert back, generate."""
    model = write_model(tmp_path / "hf", "qwen3", head_dim=16, rope_theta=1e6, rms_norm_eps=1e-6)
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        "NPUS_PER_NODE": "2",
        "MASTER_PORT": str(port),
        "TOKENIZER_PATH": str(model),
        "INPUT": str(small.CORPUS),
        "OUTPUT_PREFIX": str(tmp_path / "data" / "corpus"),
        "DATA_PATH": str(tmp_path / "data" / "corpus_text_document"),
        "HF_CFG_DIR": str(model),
        "GBS": "4",
        "SEQ_LENGTH": "32",
        "TRAIN_ITERS": "2",
        "NUM_LAYERS": "4",
        "HIDDEN_SIZE": "64",
        "FFN_HIDDEN_SIZE": "96",
        "NUM_HEADS": "4",
        "NUM_QUERY_GROUPS": "2",
        "PADDED_VOCAB_SIZE": str(rows),
        "MAX_NEW_TOKENS": "4",
        "LOG": str(tmp_path / "train.log"),
    }

    def run(script: str, *flags: str, **more: str) -> str:
        result = subprocess.run(
            ["bash", EXAMPLES / "qwen3" / script, *flags],
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "OMP_NUM_THREADS": "1",
                **variables,
                **more,
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        return result.stdout

    megatron, trained, exported = (str(tmp_path / name) for name in ("mg", "ckpt", "out"))
    run("data_convert_qwen3_pretrain.sh")
    run("ckpt_convert_qwen3_hf2mcore.sh", PP="4", LOAD_DIR=str(model), SAVE_DIR=megatron)
    log = run("pretrain_qwen3_8b_4K_ptd.sh", CKPT_LOAD_DIR=megatron, CKPT_SAVE_DIR=trained)
    assert "iteration        2/       2" in log and "lm loss" in log
    assert "gloo instead of nccl" in log
    run("ckpt_convert_qwen3_mcore2hf.sh", LOAD_DIR=trained, SAVE_DIR=exported)
    answer = run("generate_qwen3_8b_ptd.sh", "--prompt", "The", CHECKPOINT=trained)
    assert "MindSpeed-LLM" in answer

    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(exported).num_parameters() > 0


def test_scripts_are_executable() -> None:
    for script in SCRIPTS:
        assert os.access(EXAMPLES / script, os.X_OK), script
    assert shutil.which("bash")
