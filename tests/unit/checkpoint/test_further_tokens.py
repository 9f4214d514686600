"""CONV-11: layers of multi-token prediction on disk: whole, without copies, absent, left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.source import open_source
from mindspeed_llm.flags import parse
from mindspeed_llm.model_source import resolve_model
from tests import further_tokens
from tests.families import write_tiny_hf
from tests.unit.checkpoint.tiny import assert_same, store, to_hf, to_mg, weights

COPIES = ("embed_tokens.weight", "shared_head.head.weight")


def tiny(folder: Path, name: str = "deepseek3", layers: int = 1, **options) -> Path:
    source = write_tiny_hf(folder, name, num_hidden_layers=2, num_nextn_predict_layers=layers)
    further_tokens.add_to_folder(source, layers, **options)
    return source


@pytest.mark.parametrize(
    ("name", "layers", "flags"),
    [
        ("deepseek3", 1, {"tp": 2, "pp": 2}),
        pytest.param("deepseek3", 2, {"pp": 2}, marks=pytest.mark.soak),
        pytest.param("glm45", 1, {"tp": 2}, marks=pytest.mark.soak),
    ],
)
def test_every_tensor_comes_back(name, layers, flags, scratch) -> None:
    source = tiny(scratch / "source", name, layers)
    back = to_hf(to_mg(source, scratch / "mg", **flags), scratch / "hf")
    assert_same(weights(source), weights(back))
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_copies_of_tables_may_be_missing_and_are_written(scratch) -> None:
    bare = tiny(scratch / "bare", copies=False)
    whole = tiny(scratch / "whole")
    assert set(weights(whole)) - set(weights(bare)) == {f"model.layers.2.{name}" for name in COPIES}
    assert_same(weights(to_hf(to_mg(bare, scratch / "mg"), scratch / "hf")), weights(whole))


def test_copies_of_tables_must_be_copies(scratch) -> None:
    source = tiny(scratch / "source")
    tensors = weights(source)
    tensors["model.layers.2.embed_tokens.weight"] = tensors["model.embed_tokens.weight"] + 1
    store(source, tensors)
    with pytest.raises(UserError, match=r"layers\.2\.embed_tokens\.weight differs from model"):
        to_mg(source, scratch / "mg")


def test_layers_that_only_the_config_names_are_left_out(scratch) -> None:
    """transformers drops the weights when it saves a model, and keeps their number."""
    source = write_tiny_hf(scratch / "source", "deepseek3", num_hidden_layers=2)
    assert json.loads((source / "config.json").read_text())["num_nextn_predict_layers"] == 1
    opened = open_source(source)
    assert opened.shape.mtp_num_layers == 0
    assert "no layers of multi-token prediction" in opened.describe()
    back = to_hf(to_mg(source, scratch / "mg"), scratch / "hf")
    assert_same(weights(source), weights(back))
    assert json.loads((back / "config.json").read_text())["num_nextn_predict_layers"] == 0


def test_half_of_a_layer_is_an_error(scratch) -> None:
    source = tiny(scratch / "source")
    tensors = weights(source)
    del tensors["model.layers.2.eh_proj.weight"]
    store(source, tensors)
    with pytest.raises(UserError, match=r"missing: model\.layers\.2\.eh_proj\.weight"):
        to_mg(source, scratch / "mg")


def test_layers_are_left_out_on_request(scratch) -> None:
    source = tiny(scratch / "source")
    back = to_hf(to_mg(source, scratch / "mg", "--mtp-num-layers", "0"), scratch / "hf")
    expected = {n: t for n, t in weights(source).items() if not n.startswith("model.layers.2.")}
    assert_same(expected, weights(back))
    assert json.loads((back / "config.json").read_text())["num_nextn_predict_layers"] == 0
    with pytest.raises(UserError, match="--mtp-num-layers 3"):
        to_mg(source, scratch / "mg3", "--mtp-num-layers", "3")


def test_only_training_needs_the_layers(scratch) -> None:
    source = tiny(scratch / "source")
    train = ["--load", str(source), "--mock-data", "--tokenizer-type", "NullTokenizer"]
    train += "--seq-length 8 --micro-batch-size 1 --global-batch-size 1 --train-iters 1".split()
    train += ["--lr", "1e-3", "--vocab-size", "131"]

    def layers(tool: str, *flags: str) -> int:
        cfg = parse(tool, list(flags))
        model = resolve_model(cfg, cfg.checkpoint.load)
        assert model.source is not None and model.source.shape == model.shape
        return model.shape.mtp_num_layers

    assert layers("pretrain", *train) == layers("pretrain", *train, "--mtp-num-layers", "1") == 1
    assert layers("pretrain", *train, "--mtp-num-layers", "0") == 0
    assert layers("inference", "--load", str(source)) == 0
    with pytest.raises(UserError, match="--mtp-num-layers 2, the model has 1"):
        layers("pretrain", *train, "--mtp-num-layers", "2")
