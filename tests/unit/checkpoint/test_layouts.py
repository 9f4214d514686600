"""Hugging Face -> Megatron -> Hugging Face at many layouts, every bit the same.

CONV-01, CONV-05: every tensor of every family comes back, whatever the tensor, pipeline, virtual
pipeline, expert and expert-tensor sizes, lists of layers and no-op layers.
"""

from __future__ import annotations

import pytest
import torch

from mindspeed.errors import UserError
from tests.unit.checkpoint.tiny import assert_same, rank_files, to_hf, to_mg, weights

VPP = "--num-layers-per-virtual-pipeline-stage"
LIST = "--num-layer-list"
NOOP = "--noop-layers"
EP, ETP = "--target-expert-parallel-size", "--expert-tensor-parallel-size"
GROUPED = "--moe-grouped-gemm"
DIST = ("--ckpt-format", "torch_dist")

# Four layers each. (tp, pp, flags)
DENSE_LAYOUTS = {
    "TP1": (1, 1, ()),
    "TP2 PP2": (2, 2, ()),
    "TP4 list 3,1": (4, 2, (LIST, "3,1")),
    "TP2 PP2 VPP2": (2, 2, (VPP, "1")),
    "TP8 PP4": (8, 4, ()),
    "PP2 no-op 1,4": (1, 2, (NOOP, "1,4")),
    "TP2 PP2 VPP2 no-op": (2, 2, (VPP, "2", NOOP, "1,2,5,6")),
    "TP2 torch_dist": (2, 1, DIST),
}
EXPERT_LAYOUTS = {
    "TP2 PP2": (2, 2, ()),
    "EP2": (1, 1, (EP, "2")),
    "TP2 EP2": (2, 1, (EP, "2")),
    "TP2 EP2 ETP1": (2, 1, (EP, "2", ETP, "1")),
    "TP4 PP2 EP2 ETP2": (4, 2, (EP, "2", ETP, "2")),
    "PP2 EP2 grouped": (1, 2, (EP, "2", GROUPED)),
    "TP2 EP2 ETP1 VPP2 grouped": (2, 2, (EP, "2", ETP, "1", GROUPED, VPP, "1")),
    "TP2 list 1,3 EP2": (2, 2, (LIST, "1,3", EP, "2")),
    "PP2 EP2 no-op 2,5": (1, 2, (EP, "2", NOOP, "2,5")),
    "torch_dist": (1, 1, DIST),
}
DENSE = ("llama", "qwen2", "qwen3", "glm4_9b", "gemma2", "phi3.5")
EXPERTS = ("qwen3-moe", "qwen3-moe-dense", "qwen2-moe", "mixtral", "deepseek3")
GRID = [
    *((family, layout) for family in DENSE for layout in DENSE_LAYOUTS),
    *((family, layout) for family in EXPERTS for layout in EXPERT_LAYOUTS),
]
QUICK = {
    ("qwen3", "TP2 PP2 VPP2 no-op"),
    ("gemma2", "TP8 PP4"),
    ("glm4_9b", "TP2 torch_dist"),
    ("qwen3-moe-dense", "TP2 EP2 ETP1 VPP2 grouped"),
    ("deepseek3", "TP4 PP2 EP2 ETP2"),
    ("qwen2-moe", "torch_dist"),
}
ACCOUNTING = ("--verify", "accounting")


@pytest.mark.parametrize(
    "family, layout",
    [
        pytest.param(*case, id=" ".join(case), marks=() if case in QUICK else pytest.mark.soak)
        for case in GRID
    ],
)
def test_round_trip(family, layout, family_hf, scratch) -> None:
    source = family_hf(family)
    tp, pp, flags = {**DENSE_LAYOUTS, **EXPERT_LAYOUTS}[layout]
    root = to_mg(source, scratch / "mg", *flags, *ACCOUNTING, tp=tp, pp=pp)
    assert_same(weights(source), weights(to_hf(root, scratch / "hf", *ACCOUNTING)))


def test_rank_files_with_experts(family_hf, scratch) -> None:
    """Processes 0 to 3 are tensor ranks 0,1,0,1 and expert ranks 0,1,2,3: four pairs occur."""
    flags = (EP, "4", ETP, "1", *ACCOUNTING)
    files = rank_files(to_mg(family_hf("qwen3-moe"), scratch / "mg", *flags, tp=2, pp=2))
    pairs = [(0, 0), (1, 1), (0, 2), (1, 3)]
    assert set(files) == {f"mp_rank_{t:02d}_{p:03d}_{e:03d}" for t, e in pairs for p in range(2)}
    source = weights(family_hf("qwen3-moe"))
    # Eight experts over four ranks: the third has experts 4 and 5, each of them whole.
    model = files["mp_rank_00_001_002"]["model"]
    name = "decoder.layers.1.mlp.experts.local_experts.1.linear_fc2.weight"
    assert torch.equal(model[name], source["model.layers.3.mlp.experts.5.down_proj.weight"])
    args = files["mp_rank_00_000_000"]["args"]
    assert (args.expert_model_parallel_size, args.expert_tensor_parallel_size) == (4, 1)
    no_stages = rank_files(to_mg(family_hf("qwen3-moe"), scratch / "one", EP, "2", *ACCOUNTING))
    assert set(no_stages) == {"mp_rank_00_000", "mp_rank_00_001"}


def test_stacked_experts(family_hf, scratch) -> None:
    """What Megatron's grouped layer does with its weights gives each expert's own products."""
    source = weights(family_hf("qwen3-moe"))
    files = rank_files(
        to_mg(family_hf("qwen3-moe"), scratch / "mg", EP, "2", GROUPED, *ACCOUNTING, tp=2)
    )
    hidden, ffn, experts = 64, 40, 4
    model = files["mp_rank_01_001"]["model"]
    first = model["decoder.layers.2.mlp.experts.weight1"]
    second = model["decoder.layers.2.mlp.experts.weight2"]
    assert first.shape == (hidden, experts * ffn) and second.shape == (experts * ffn // 2, hidden)
    up = first.view(experts, hidden, ffn)
    down = second.view(experts, ffn // 2, hidden)
    x = torch.randn(3, hidden)
    for local in range(experts):
        prefix = f"model.layers.2.mlp.experts.{experts + local}."
        gate = source[prefix + "gate_proj.weight"][ffn // 2 :]
        assert torch.allclose((x @ up[local])[:, : ffn // 2], x @ gate.t(), atol=1e-5)
        wanted = source[prefix + "down_proj.weight"][:, ffn // 2 :].t()
        assert torch.equal(down[local], wanted)


def test_noop_layers_keep_the_others_numbers(family_hf, scratch) -> None:
    files = rank_files(
        to_mg(family_hf("qwen3"), scratch / "mg", NOOP, "1,4", *ACCOUNTING, tp=1, pp=2)
    )
    norm = "decoder.layers.{}.input_layernorm.weight"
    kept = [
        [i for i in range(3) if norm.format(i) in files[f"mp_rank_00_00{stage}"]["model"]]
        for stage in range(2)
    ]
    assert kept == [[0, 2], [0, 2]]
    source = weights(family_hf("qwen3"))
    last = files["mp_rank_00_001"]["model"][norm.format(2)]
    assert torch.equal(last, source["model.layers.3.input_layernorm.weight"])
    args = files["mp_rank_00_000"]["args"]
    assert (args.num_layers, args.noop_layers) == (6, "1,4")


def test_first_layers_of_a_model_with_experts(family_hf, scratch) -> None:
    """--num-layers keeps the leading dense layer and the experts of the next."""
    source = family_hf("qwen3-moe-dense")
    root = to_mg(source, scratch / "mg", "--num-layers", "2", EP, "2", *ACCOUNTING, pp=2)
    back = weights(to_hf(root, scratch / "hf", *ACCOUNTING))
    cut = ("layers.2.", "layers.3.")
    assert_same(
        {name: t for name, t in weights(source).items() if not any(c in name for c in cut)}, back
    )


REFUSED = {
    "experts do not divide": ((EP, "3"), "number of experts 8 .* sizes that fit: 1, 2, 4, 8"),
    "experts' width": ((ETP, "3"), "experts' width 40 does not divide"),
    "more expert tensor ranks": ((ETP, "2"), "must divide the tensor-parallel size 1"),
    "other dense layers": (("--first-k-dense-replace", "1"), "the model has 0 leading"),
    "layers and no-ops": ((LIST, "4", NOOP, "1"), "exclude each other"),
    "no-op beyond": ((NOOP, "5"), "between 0 and 4"),
    "no-op twice": ((NOOP, "1,1"), "places must differ"),
    "extended experts": (("--moe-tp-extend-ep",), "--moe-tp-extend-ep"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_layouts_are_refused(name, family_hf, scratch) -> None:
    flags, message = REFUSED[name]
    with pytest.raises(UserError, match=f"(?s){message}"):
        to_mg(family_hf("qwen3-moe"), scratch / "mg", *flags)
    assert not (scratch / "mg").exists()


def test_experts_of_a_dense_model_are_refused(family_hf, scratch) -> None:
    with pytest.raises(UserError, match="the model has no experts"):
        to_mg(family_hf("qwen3"), scratch / "mg", GROUPED)


@pytest.mark.parametrize("form", [(), DIST])
def test_a_routers_bias_keeps_its_type(form, family_hf, scratch) -> None:
    """--params-dtype bf16 must not round the bias by which experts are chosen."""
    source = family_hf("deepseek3")
    root = to_mg(source, scratch / "mg", "--params-dtype", "bf16", *form, *ACCOUNTING)
    back = weights(to_hf(root, scratch / "hf", *ACCOUNTING))
    wanted = {
        name: tensor if "e_score_correction_bias" in name else tensor.bfloat16()
        for name, tensor in weights(source).items()
    }
    assert_same(wanted, back)
