"""The command line: spelling, types, ranges, unknown names, old names; and the declarations."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.flags import TOOLS, Config, parse
from mindspeed_llm.flags.config import GROUPS, group_specs, tool_specs
from mindspeed_llm.flags.reference import reference
from mindspeed_llm.flags.refuse import missing_feature
from mindspeed_llm.flags.status import Kind

MINIMAL = {
    "preprocess": "--input a --output-prefix b --tokenizer-name-or-path t",
    "convert": "--load-dir a --save-dir b",
    "convert_v1": "--load-dir a --save-dir b",
    "pretrain": "--mock-data --train-iters 4 --lr 1e-3 --seq-length 32",
    "posttrain": "--stage sft --load model --is-instruction-dataset --data-path chats "
    "--train-iters 4 --lr 1e-3 --seq-length 32",
    "inference": "--load a",
}


def parsed(tool: str, words: str) -> Config:
    return parse(tool, f"{MINIMAL[tool]} {words}".split())


@pytest.mark.parametrize(
    ("tool", "words", "expected"),
    [
        ("pretrain", "--num-layrs 4", r"unknown flag --num-layrs: did you mean --num-layers"),
        ("pretrain", "--hidden_size 4", r"unknown flag --hidden_size: .*--hidden-size"),
        ("pretrain", "--num-lay 4", r"unknown flag --num-lay"),
        ("pretrain", "--zzz 4 --qqq", r"(?s)--zzz.*--help lists all.*--qqq"),
        (
            "pretrain",
            "--load-dir x",
            r"--load-dir is a flag of convert and convert_v1, not of pret",
        ),
        (
            "convert",
            "--lr 1",
            r"--lr is a flag of pretrain, posttrain and inference, not of convert",
        ),
        ("pretrain", "--num-layers four", r"--num-layers: 'four' is not a whole number"),
        ("pretrain", "--num-layers 2.5", r"--num-layers: '2.5' is not a whole number"),
        ("pretrain", "--num-layers 0", r"--num-layers: 0 is out of range: .*at least 1"),
        ("pretrain", "--lr fast", r"--lr: 'fast' is not a number"),
        ("pretrain", "--lr nan", r"--lr: 'nan' is not a finite number"),
        ("pretrain", "--lr -1", r"--lr: -1.0 is out of range"),
        ("pretrain", "--hidden-dropout 1", r"--hidden-dropout: 1.0 .*at least 0 and below 1"),
        ("pretrain", "--lr-decay-style cos", r"'cos' is not one of constant, linear, cosine"),
        ("pretrain", "--distributed-backend mpi", r"'mpi' is not one of nccl, gloo, hccl"),
        ("pretrain", "--lr", r"--lr: expected one argument"),
        ("pretrain", "--spec only_one", r"--spec: expected 2 arguments"),
        ("pretrain", "--bf16=yes", r"--bf16: takes no value, but has 'yes'"),
        ("pretrain", "--num-layer-list 4,x", r"--num-layer-list: 'x' is not a whole number"),
        ("pretrain", "--num-layer-list 4,0", r"--num-layer-list: 0 is out of range"),
        ("pretrain", "--bf16 stray", r"'stray' belongs to no flag"),
        ("pretrain", "--bf16 —lr", r"begins with a long dash"),
        ("inference", "--top-p 1.5", r"--top-p: 1.5 is out of range"),
        ("preprocess", "--workers -1", r"--workers: -1 is out of range"),
        ("convert", "--load-model-type onnx", r"'onnx' is not one of hf, mg"),
    ],
)
def test_wrong_word_is_explained(tool, words, expected):
    with pytest.raises(UserError, match=expected):
        parsed(tool, words)


def test_blank_after_a_backslash_is_explained():
    with pytest.raises(UserError, match="blank after a line-ending backslash"):
        parse("pretrain", ["--mock-data", " ", "--lr", "1"])


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_minimal_command(tool):
    assert parsed(tool, "").tool == tool


@pytest.mark.parametrize("tool", ["preprocess", "convert", "convert_v1", "pretrain"])
def test_required_flags_are_named(tool):
    with pytest.raises(UserError) as error:
        parse(tool, [])
    for word in MINIMAL[tool].replace("--mock-data", "--data-path").split():
        if word.startswith("--"):
            assert word in str(error.value)


def test_last_of_several_values_wins():
    config = parsed("pretrain", "--lr 1 --lr 2 --lr 3e-4 --seed 5 --seed 5")
    assert (config.optimizer.lr, config.training.seed) == (3e-4, 5)


def test_switches_that_set_false():
    config = parsed("pretrain", "--disable-bias-linear --no-bias-swiglu-fusion --no-rope-fusion")
    assert not config.model.add_bias_linear
    assert not config.ops.bias_swiglu_fusion and not config.ops.apply_rope_fusion
    assert {"add_bias_linear", "bias_swiglu_fusion"} <= config.given
    assert parsed("pretrain", "").ops.apply_rope_fusion


def test_given_tells_a_choice_from_a_default():
    config = parsed("pretrain", "--rotary-base 10000")
    assert "rotary_base" in config.given and "norm_epsilon" not in config.given
    assert config.model.num_layers is None


def test_handler_defaults_to_general():
    assert parsed("preprocess", "").preprocess.handler_name == "GeneralPretrainHandler"


@pytest.mark.parametrize(
    ("old", "dest", "value"),
    [
        ("--use-deter-comp", "deterministic_mode", True),
        ("--use-mc2", "use_ascend_mc2", True),
        ("--cp-attention-mask-type causal", "attention_mask_type", "causal"),
        ("--moe-intermediate-size 8", "moe_ffn_hidden_size", 8),
        ("--n-group 2", "moe_router_num_groups", 2),
        ("--topk-group 2", "moe_router_group_topk", 2),
        ("--routed-scaling-factor 2.5", "moe_router_topk_scaling_factor", 2.5),
        ("--qk-rope-head-dim 32", "qk_pos_emb_head_dim", 32),
        ("--qk-nope-head-dim 64", "qk_head_dim", 64),
        ("--rope-scaling-beta-fast 16", "beta_fast", 16.0),
        ("--rope-scaling-beta-slow 2", "beta_slow", 2.0),
    ],
)
def test_old_name_works_with_a_warning(capsys, old, dest, value):
    config = parsed("pretrain", old)
    assert config.value(dest) == value
    spec = tool_specs("pretrain")[dest]
    assert f"write {spec.name}" in capsys.readouterr().err


REFUSALS = [
    ("pretrain", "--context-parallel-size 2", "context parallelism"),
    ("pretrain", "--num-experts 8 --moe-expert-capacity-factor 1", "dropping of tokens"),
    ("pretrain", "--num-experts 8 --moe-token-dispatcher-type flex", "DeepEP"),
    ("pretrain", "--num-experts 8 --moe-layer-freq ([0]*3+[1]*5)", "some layers only"),
    ("pretrain", "--schedules-method dualpipev", "DualPipeV"),
    ("pretrain", "--optimizer muon", "Muon"),
    ("pretrain", "--optimizer-selection fused_ema_adamw", "EMA"),
    ("pretrain", "--lora-target-modules linear_qkv", "LoRA"),
    ("pretrain", "--rope-scaling-type plm", "PLM"),
    ("pretrain", "--position-embedding-type alibi", "ALiBi"),
    ("pretrain", "--position-embedding-type learned_absolute", "learned position embeddings"),
    ("pretrain", "--normalization LayerNorm", "models with LayerNorm"),
    ("pretrain", "--add-bias-linear", "biases in all linear layers"),
    ("pretrain", "--transformer-impl transformer_engine", "TransformerEngine"),
    ("pretrain", "--ckpt-format torch_dcp", "FSDP2"),
    ("pretrain", "--recompute-granularity selective --recompute-modules mlp moe_act", "experts"),
    ("pretrain", "--tokenizer-type GPT2BPETokenizer", "Megatron's own tokenizers"),
    ("posttrain", "--stage ray_grpo", "reinforcement learning"),
    ("convert", "--transformer-impl transformer_engine", "TransformerEngine"),
    ("inference", "--task chat", "chat"),
    ("inference", "--task beam_search", "beam search"),
    ("preprocess", "--split-sentences", "sentence splitting"),
]


@pytest.mark.parametrize(("tool", "words", "feature"), REFUSALS)
def test_missing_feature_is_refused_by_name(tool, words, feature):
    with pytest.raises(UserError) as error:
        parsed(tool, words)
    assert "not available in this version" in str(error.value)
    assert any(word in str(error.value) for word in words.split() if word.startswith("--"))
    assert feature in str(error.value)


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_every_unsupported_flag_is_refused_whatever_the_value(tool):
    """Walks the declarations, so that a new one cannot forget its refusal."""
    other = {bool: lambda d: not d, int: lambda d: 7, float: lambda d: 7.5, str: lambda d: "x"}
    for spec in tool_specs(tool).values():
        if spec.effect.kind is Kind.UNSUPPORTED:
            value = other[spec.kind](spec.default)
            assert missing_feature(spec, value) == spec.effect.note
            assert missing_feature(spec, spec.default) is None


@pytest.mark.parametrize(
    "words",
    [
        "--context-parallel-size 1",
        "--num-experts 0",
        "--mtp-num-layers 0",
        "--expert-model-parallel-size 1",
        "--embedding-multiplier-scale 1.0",
        "--norm-topk-prob --moe-router-topk 8 --moe-layer-freq -1",
        "--context-parallel-algo ulysses_cp_algo",
        "--lora-r 8",
    ],
)
def test_value_that_asks_for_nothing_missing_is_accepted(words):
    parsed("pretrain", words)


def test_part_without_its_whole_is_reported():
    lines = parsed("pretrain", "--norm-topk-prob --lora-r 8").inactive_flags("cpu")
    assert lines == [
        "--norm-topk-prob (no effect without --num-experts)",
        "--lora-r 8 (no effect without --lora-target-modules)",
    ]


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_declarations_are_sound(group):
    for spec in group_specs(group):
        assert spec.help.strip() and (spec.on or spec.off)
        assert all(
            name.startswith("--") and "_" not in name.replace("opt_param", "")
            for name in spec.on + spec.off
        )
        if spec.choices and spec.default is not None and spec.nargs is None:
            assert spec.default in spec.choices
        if spec.effect.kind is Kind.PART_OF:
            assert all(parent.isidentifier() for parent in spec.effect.parents)
        if spec.effect.kind in (Kind.NEUTRAL, Kind.UNSUPPORTED) and len(spec.effect.devices) < 3:
            assert spec.effect.note


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_spellings_are_unique_and_parts_have_wholes(tool):
    specs = tool_specs(tool)
    names = [name for spec in specs.values() for name in spec.spellings]
    assert len(names) == len(set(names))
    for spec in specs.values():
        if spec.effect.kind is Kind.PART_OF and tool in ("pretrain", "posttrain", "convert"):
            assert specs.keys() & set(spec.effect.parents), spec.dest


def test_reference_page_is_current():
    page = Path(__file__).parents[3] / "docs" / "flags.md"
    assert page.read_text(encoding="utf-8") == reference(), (
        "run: python -m mindspeed_llm.flags.reference"
    )
