"""Exports of several shards open in ``transformers`` like the original, without a warning."""

from __future__ import annotations

import json
import logging
import warnings

import torch

from mindspeed_llm.checkpoint import to_hf as to_hf_module
from mindspeed_llm.checkpoint.safetensors_file import SHARD_BYTES
from tests.unit.checkpoint.tiny import to_hf, to_mg


def test_the_limit_is_five_gigabytes() -> None:
    assert SHARD_BYTES == 5_000_000_000


def test_several_shards_open_without_a_warning(tiny_hf, scratch, monkeypatch, caplog) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    source = tiny_hf("qwen3", tied=True)
    plain = to_hf_module.shard
    monkeypatch.setattr(to_hf_module, "shard", lambda specs, _: plain(specs, 150_000))
    back = to_hf(to_mg(source, scratch / "mg", tp=2, pp=2), scratch / "hf")
    index = json.loads((back / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in back.glob("*.safetensors"))
    assert len(files) > 2
    assert sorted(set(index["weight_map"].values())) == files
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        assert (back / name).read_bytes() == (source / name).read_bytes()
    monkeypatch.setattr(transformers_logging.get_logger("transformers"), "propagate", True)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        model, loading = AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
    assert not [record.message for record in caplog.records if "transformers" in record.name]
    assert not any(loading.values()), loading
    reference = AutoModelForCausalLM.from_pretrained(source)
    ids = torch.arange(1, 34).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, reference(ids).logits)
