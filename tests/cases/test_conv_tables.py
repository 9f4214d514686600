"""Embedding and output tables in conversion: CONV-01 (tied), CONV-03 (padding rows)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mindspeed.errors import UserError
from tests.unit.checkpoint import tiny
from tests.unit.checkpoint.tiny import assert_same, rank_files, to_hf, to_mg, weights

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
HF_EMBEDDING, HF_OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def logits(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.arange(1, 34).unsqueeze(0)).logits


class TestTiedEmbeddings:
    """CONV-01: first and last stage hold equal tables, middle ones none; the source comes back."""

    @pytest.mark.parametrize("pp", [1, 2, 4])
    def test_who_holds_the_table(self, pp, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", "qwen2", tie_word_embeddings=True)
        assert HF_OUTPUT not in weights(source)
        root = to_mg(source, tmp_path / "mg", pp=pp)
        stages = [content["model"] for content in rank_files(root).values()]
        assert [EMBEDDING in s for s in stages] == [True] + [False] * (pp - 1)
        assert [OUTPUT in s for s in stages] == [False] * (pp - 1) + [pp > 1]
        if pp > 1:
            assert torch.equal(stages[0][EMBEDDING], stages[-1][OUTPUT])
        assert_same(weights(source), weights(to_hf(root, tmp_path / "back")))

    @pytest.mark.parametrize("pp", [1, 2, 4])
    def test_a_redundant_head_comes_back(self, pp, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", "qwen2", tie_word_embeddings=True)
        stored = weights(source)
        tiny.store(source, {**stored, HF_OUTPUT: stored[HF_EMBEDDING].clone()})
        back = to_hf(to_mg(source, tmp_path / "mg", tp=2, pp=pp), tmp_path / "back")
        assert HF_OUTPUT in weights(back)
        assert_same(weights(source), weights(back))

    def test_a_head_that_differs_from_the_table_is_refused(self, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", "qwen2", tie_word_embeddings=True)
        stored = weights(source)
        tiny.store(source, {**stored, HF_OUTPUT: stored[HF_EMBEDDING] + 1})
        with pytest.raises(UserError, match=r"lm_head\.weight differs from model\.embed_tokens"):
            to_mg(source, tmp_path / "mg", pp=2)

    def test_copies_that_came_apart_are_never_exported(self, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", "llama", tie_word_embeddings=True)
        root = to_mg(source, tmp_path / "mg", pp=2)
        path = root / "iter_0000001/mp_rank_00_001/model_optim_rng.pt"
        content = torch.load(path, weights_only=False)
        content["model"][OUTPUT][3] += 1
        torch.save(content, path)
        with pytest.raises(UserError, match="first and the last pipeline stage hold different"):
            to_hf(root, tmp_path / "back")


class TestVocabularyPadding:
    """CONV-03: padding rows are zeros in Megatron's files and never reach the export."""

    @pytest.mark.parametrize("tied", [False, True])
    @pytest.mark.parametrize("divisor", [1, 8, 128])
    @pytest.mark.parametrize("tp", [1, 2, 4])
    def test_rows_come_back(self, tp, divisor, tied, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", "llama", tie_word_embeddings=tied, num_hidden_layers=1)
        flags = ("--make-vocab-size-divisible-by", str(divisor))
        root = to_mg(source, tmp_path / "mg", *flags, tp=tp)
        parts = [content["model"][EMBEDDING] for content in rank_files(root).values()]
        table = torch.cat(parts)
        assert len({part.shape for part in parts}) == 1
        assert table.shape[0] % (divisor * tp) == 0
        assert table.shape[0] - 131 < divisor * tp, "no more padding than needed"
        assert not table[131:].any()
        back = to_hf(root, tmp_path / "back")
        assert weights(back)[HF_EMBEDDING].shape[0] == 131
        assert_same(weights(source), weights(back))
        assert json.loads((back / "config.json").read_text())["vocab_size"] == 131

    def test_logits_after_a_padded_round_trip(self, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", "qwen2", tie_word_embeddings=True)
        flags = ("--make-vocab-size-divisible-by", "128")
        back = to_hf(to_mg(source, tmp_path / "mg", *flags, tp=2), tmp_path / "back")
        assert torch.equal(logits(source), logits(back))

    def test_a_table_larger_than_the_tokenizer_keeps_its_rows(self, tmp_path) -> None:
        source = tiny.make(tmp_path / "hf", "qwen2", vocab_size=160)
        (source / "vocab.json").write_text(json.dumps({str(i): i for i in range(131)}))
        back = to_hf(to_mg(source, tmp_path / "mg", tp=3), tmp_path / "back")
        assert weights(back)[HF_EMBEDDING].shape[0] == 160
        assert_same(weights(source), weights(back))
