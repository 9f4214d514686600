"""``--config run.yaml``: the same names, the command line wins, faults carry the line."""

from __future__ import annotations

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.flags import parse
from mindspeed_llm.flags.reference import reference

FLAT = """\
# a run
mock-data: true
train_iters: 4
lr: 1e-3          # PyYAML alone would read this as a string
seq-length: 32
num_layer_list: [3, 1]
pipeline-model-parallel-size: 2
spec: [a.b, layer_spec]
disable-bias-linear: true
add_qkv_bias: on
split: 949,50,1
seed: ~
"""
SECTIONS = """\
data:
  mock_data: true
training: {train_iters: 4, seq_length: 32}
optimizer:
  lr: 2.5e-4
preprocess:
  json_keys: [text, title]
"""


def test_example_of_the_reference_page(write):
    example = reference().split("```yaml\n")[1].split("```")[0]
    config = parse("pretrain", ["--config", write(example), "--lr", "2e-4"])
    assert config.parallel.tensor_model_parallel_size == 2 and config.optimizer.lr == 2e-4
    assert config.data.data_path == ("0.7", "english_text_document", "0.3", "code_text_document")


@pytest.fixture
def write(tmp_path):
    def writer(text):
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return writer


def test_flat_file(write):
    config = parse("pretrain", ["--config", write(FLAT)])
    assert config.optimizer.lr == 1e-3
    assert config.parallel.num_layer_list == (3, 1)
    assert config.model.spec == ("a.b", "layer_spec")
    assert not config.model.add_bias_linear and config.model.add_qkv_bias
    assert config.data.split == "949,50,1"
    assert config.training.seed == 1234 and "seed" not in config.given
    assert {"add_bias_linear", "mock_data", "lr"} <= config.given


def test_sections_of_other_tools_are_left_alone(write):
    config = parse("pretrain", ["--config", write(SECTIONS)])
    assert config.optimizer.lr == 2.5e-4 and config.preprocess.json_keys == ("text",)


def test_command_line_wins(write):
    argv = ["--lr", "9e-9", "--config", write(FLAT), "--num-layer-list", "2,2"]
    config = parse("pretrain", argv)
    assert config.optimizer.lr == 9e-9 and config.parallel.num_layer_list == (2, 2)
    assert config.training.train_iters == 4


def test_missing_feature_in_a_file_is_refused(write):
    with pytest.raises(UserError, match="--context-parallel-size 8 needs context"):
        parse("pretrain", ["--config", write(FLAT + "context_parallel_size: 8\n")])


def test_form_of_model_that_does_not_exist_is_refused(write):
    with pytest.raises(UserError, match="no --swiglu needs MLPs without a gate"):
        parse("pretrain", ["--config", write(FLAT + "swiglu: false\n")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr: 1\nnum_layrs: 3\n", r"run.yaml:2: unknown flag num_layrs; .*num_layers"),
        ("lr: 1\nlr: 2\n", r"run.yaml:2: lr stands already in line 1"),
        ("lr: 1\n\nseed: many\n", r"run.yaml:3: seed: 'many' is not a whole number"),
        ("bf16: maybe\n", r"run.yaml:1: bf16: 'maybe' is neither true nor false"),
        ("lr: [1, 2]\n", r"run.yaml:1: lr: takes one value"),
        ("lr: {a: 1}\n", r"run.yaml:1: lr: expected a value"),
        ("spec: [a]\n", r"run.yaml:1: spec: takes 2 values"),
        ("on_error: skip\n", r"run.yaml:1: on_error is a flag of preprocess, not of pretrain"),
        ("model:\n  lr: 1\n", r"run.yaml:2: lr belongs to the section optimizer:"),
        ("model:\n  num_layrs: 1\n", r"run.yaml:2: unknown flag num_layrs"),
        ("convert:\n  load_dirr: 1\n", r"run.yaml:2: unknown flag load_dirr; .*load_dir"),
        (
            "add_bias_linear: true\ndisable-bias-linear: true\n",
            r"run.yaml:2: disable-bias-linear contradicts",
        ),
        ("lr: 1\n\tseed: 2\n", r"run.yaml:2: not valid YAML"),
        ("- lr\n", r"expected 'flag: value' lines"),
        ("num-attention-heads: 0\n", r"run.yaml:1: num-attention-heads: 0 is out of range"),
        ("lr_decay_style: fast\n", r"run.yaml:1: lr_decay_style: 'fast' is not one of"),
    ],
)
def test_fault_carries_the_line(write, text, expected):
    with pytest.raises(UserError, match=expected):
        parse("pretrain", ["--config", write(text)])


def test_unreadable_file():
    with pytest.raises(UserError, match=r"--config /no/such.yaml: cannot be read: No such file"):
        parse("pretrain", ["--config", "/no/such.yaml"])


def test_empty_file_changes_nothing(write):
    argv = [
        "--config",
        write("\n"),
        *["--mock-data", "--train-iters", "1", "--lr", "1", "--seq-length", "8"],
    ]
    assert parse("pretrain", argv).training.train_iters == 1
