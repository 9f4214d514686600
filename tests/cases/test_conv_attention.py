"""Attention weights in conversion: CONV-04, CONV-05, CONV-09."""

from __future__ import annotations

import json

import pytest
import torch

from tests.unit.checkpoint import tiny
from tests.unit.checkpoint.tiny import assert_same, rank_files, to_hf, to_mg, weights

QKV = "decoder.layers.0.self_attention.linear_qkv"
PROJ = "decoder.layers.0.self_attention.linear_proj.weight"
HEAD_DIM = {"qwen2": 8, "qwen3": 24}


class TestFewKeyValueHeads:
    """CONV-04: TP above the number of key/value heads round-trips; no head is duplicated."""

    @pytest.mark.parametrize("family", HEAD_DIM)
    @pytest.mark.parametrize("groups", [2, 1])
    @pytest.mark.parametrize("tp", [4, 8])
    def test_round_trip(self, tp, groups, family, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", family, num_key_value_heads=groups)
        root = to_mg(source, tmp_path / "mg", tp=tp)
        rows = [c["model"][f"{QKV}.weight"].shape[0] for c in rank_files(root).values()]
        assert sum(rows) == (8 + 2 * groups) * HEAD_DIM[family], "each head's rows are stored once"
        assert_same(weights(source), weights(to_hf(root, tmp_path / "back")))


class TestFusedQkv:
    """CONV-05: fused rows, weight and bias, lie where Megatron expects them at every TP."""

    BASES = {"q_proj": 0, "k_proj": 1000, "v_proj": 2000}  # noqa: RUF012

    @pytest.mark.parametrize("pp", [1, 2])
    @pytest.mark.parametrize("tp", [1, 2, 4])
    @pytest.mark.parametrize("family", HEAD_DIM)
    def test_distinct_rows(self, family, tp, pp, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", family)
        self._number_rows(source)
        root = to_mg(source, tmp_path / "mg", tp=tp, pp=pp)
        files = rank_files(root)
        first_stage = [c["model"] for name, c in files.items() if name.endswith("_000") or pp == 1]
        expected: list[float] = []
        heads, groups, size = 8, 4, HEAD_DIM[family]
        for group in range(groups):
            queries = heads // groups * size
            expected += range(group * queries, (group + 1) * queries)
            for base in (1000, 2000):
                expected += range(base + group * size, base + (group + 1) * size)
        found = torch.cat([model[f"{QKV}.weight"][:, 0] for model in first_stage])
        assert found.tolist() == expected
        if family == "qwen2":
            assert torch.cat([m[f"{QKV}.bias"] for m in first_stage]).tolist() == expected
        assert_same(weights(source), weights(to_hf(root, tmp_path / "back")))

    def _number_rows(self, source) -> None:
        """Give every row of q, k and v a value of its own."""
        stored = weights(source)
        for name, tensor in stored.items():
            base = self.BASES.get(name.split(".")[-2])
            if base is not None:
                rows = (torch.arange(tensor.shape[0]) + base).float()
                column = rows.reshape([-1] + [1] * (tensor.dim() - 1))
                stored[name] = column.expand_as(tensor).clone()
        tiny.store(source, stored)


class TestHeadSize:
    """CONV-09: the config's own head size decides the rows of q, k and v and the norms' length."""

    @pytest.mark.parametrize(
        "built, written, size",
        [(16, {"head_dim": 16}, 16), (None, {"head_dim": None}, 8), (None, {}, 8)],
        ids=["given", "null", "absent"],
    )
    def test_explicit_null_and_absent(self, built, written, size, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", "llama", head_dim=built)
        config = json.loads((source / "config.json").read_text())
        config.pop("head_dim", None)
        (source / "config.json").write_text(json.dumps(config | written))
        root = to_mg(source, tmp_path / "mg", tp=2)
        for content in rank_files(root).values():
            assert content["model"][f"{QKV}.weight"].shape == ((8 + 2 * 4) * size // 2, 64)
            assert content["model"][PROJ].shape == (64, 8 * size // 2)
        assert_same(weights(source), weights(to_hf(root, tmp_path / "back")))

    def test_head_norms_are_carried(self, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", "qwen3", head_dim=16)
        root = to_mg(source, tmp_path / "mg", tp=2)
        for content in rank_files(root).values():
            norm = content["model"]["decoder.layers.1.self_attention.k_layernorm.weight"]
            assert torch.equal(norm, weights(source)["model.layers.1.self_attn.k_norm.weight"])
            assert norm.shape == (16,)
