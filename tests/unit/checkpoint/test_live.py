"""Weights into live parallel models, and Megatron's own checkpoints back out of them."""

from __future__ import annotations

import pytest
import torch

from mindspeed.errors import UserError
from tests.unit.checkpoint import ranks, tiny
from tests.unit.checkpoint.tiny import assert_same, rank_files, to_hf, to_mg, weights

ONE_LAYER_CHUNKS = ("--num-layers-per-virtual-pipeline-stage", "1")
# Layouts of a live model on two ranks: (tp, pp, layers per chunk, flags of the same conversion).
LAYOUTS = [(2, 1, None, ()), (1, 2, None, ()), (1, 2, 1, ONE_LAYER_CHUNKS)]


def expected_chunks(root) -> list[list[dict]]:
    """Per rank, its chunks' tensors in a converted checkpoint."""
    return [
        [content[key] for key in content if key.startswith("model")]
        for content in rank_files(root).values()
    ]


@pytest.mark.parametrize("tp, pp, per_chunk, flags", LAYOUTS)
@pytest.mark.parametrize("stored", ["hf", "TP4 PP2", "TP1 PP4"])
def test_every_parameter_is_filled(stored, tp, pp, per_chunk, flags, tiny_hf, scratch, pool):
    """From Hugging Face or any layout, a live model equals the file converted for its layout."""
    source = tiny_hf("qwen2", tied=True)
    start = source
    if stored != "hf":
        sizes = {"tp": int(stored[2]), "pp": int(stored[-1])}
        start = to_mg(source, scratch / "start", "--make-vocab-size-divisible-by", "8", **sizes)
    wanted = expected_chunks(to_mg(source, scratch / "wanted", *flags, tp=tp, pp=pp))
    results = pool(2).run(ranks.load, path=str(start), tp=tp, pp=pp, per_chunk=per_chunk)
    for (report, chunks), expected in zip(results, wanted, strict=True):
        for live, file in zip(chunks, expected, strict=True):
            assert_same({name: torch.from_numpy(a) for name, a in live.items()}, file)
        assert f"-> TP{tp} PP{pp}" in report
    if stored != "hf":
        assert f"resharded {stored} ->" in results[0][0]


def test_a_parameter_without_weights_is_an_error(tiny_hf, pool) -> None:
    results = pool(2).run(ranks.load, path=str(tiny_hf("llama")), tp=2, pp=1, extra="surplus")
    for message, _ in results:
        assert "in the model, not in the weights: surplus" in message


@pytest.mark.parametrize("tp, pp, per_chunk, flags", LAYOUTS)
@pytest.mark.parametrize("family, tied", [("llama", True), ("qwen3", False)])
def test_megatron_loads_converted_files_strictly(
    family, tied, tp, pp, per_chunk, flags, tiny_hf, scratch, pool
) -> None:
    root = to_mg(tiny_hf(family, tied), scratch / "mg", *flags, tp=tp, pp=pp)
    counts = pool(2).run(ranks.load_strictly, path=str(root), tp=tp, pp=pp, per_chunk=per_chunk)
    assert all(counts)


@pytest.mark.parametrize("family, tied, tp, pp", [("qwen2", True, 1, 2), ("qwen3", False, 2, 1)])
def test_torch_dist_written_by_megatron_exports(family, tied, tp, pp, tiny_hf, scratch, pool):
    source = tiny_hf(family, tied)
    target = scratch / "dist"
    pool(2).run(ranks.save_torch_dist, path=str(source), target=str(target), tp=tp, pp=pp)
    back = to_hf(target, scratch / "back", "--hf-cfg-dir", str(source))
    assert_same(weights(source), weights(back))


def test_torch_dist_metadata_that_would_run_code_is_refused(tiny_hf, scratch, pool) -> None:
    import pickle

    from tests.unit.checkpoint.test_safe_load import Malicious

    source, target = tiny_hf("llama"), scratch / "dist"
    pool(2).run(ranks.save_torch_dist, path=str(source), target=str(target), tp=2, pp=1)
    (target / "iter_0000007/.metadata").write_bytes(pickle.dumps(Malicious(scratch / "ran")))
    with pytest.raises(UserError, match=r"would build (posix|nt)\.system"):
        to_hf(target, scratch / "back")
    assert not (scratch / "ran").exists()


def test_a_damaged_torch_dist_file_is_named(tiny_hf, scratch, pool) -> None:
    source, target = tiny_hf("llama"), scratch / "dist"
    pool(2).run(ranks.save_torch_dist, path=str(source), target=str(target), tp=1, pp=2)
    largest = max((target / "iter_0000007").glob("*.distcp"), key=lambda p: p.stat().st_size)
    with open(largest, "r+b") as file:
        file.truncate(largest.stat().st_size // 2)
    with pytest.raises(UserError, match="cannot be read"):
        to_hf(target, scratch / "back")
    assert not (scratch / "back").exists()


@pytest.mark.parametrize("tp, pp", [(2, 1), (1, 2)])
def test_a_megatron_lm_checkpoint_exports(tp, pp, own_hf, scratch, pool) -> None:
    """Its args lack the true vocabulary size and our names; the original config supplies it."""
    source = own_hf("qwen2", tied=True)
    target = scratch / "megatron"
    pool(2).run(ranks.save_like_megatron, path=str(source), target=str(target), tp=tp, pp=pp)
    back = to_hf(target, scratch / "back", "--hf-cfg-dir", str(source))
    assert_same(weights(source), weights(back))


@pytest.mark.slow
@pytest.mark.parametrize("groups", [2, 1])
def test_conv_04_forward_with_shared_key_value_heads(groups, tmp_path, pool) -> None:
    """CONV-04: at TP 4 with fewer key/value heads the live model computes the same logits."""
    from transformers import AutoModelForCausalLM

    source = tiny.make(tmp_path / "hf", "qwen2", num_key_value_heads=groups)
    ids = list(range(1, 34))
    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(source)(torch.tensor([ids])).logits
    root = to_mg(source, tmp_path / "mg", tp=4)
    for found in pool(4).run(ranks.logits, path=str(root), tp=4, ids=ids):
        assert (torch.from_numpy(found) - wanted).abs().max() <= 1e-4 * wanted.abs().max()
