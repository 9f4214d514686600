"""Hugging Face folders that a run writes beside its checkpoints."""

from __future__ import annotations

import pytest
import torch

from tests.families import write_tiny_hf
from tests.parallel.layouts import train, train_flags, write_tokens


@pytest.mark.parametrize(
    "ckpt_format", ["torch", pytest.param("torch_dist", marks=pytest.mark.soak)]
)
def test_hugging_face_folders_beside_the_checkpoints(pool, tmp_path, ckpt_format):
    """Each holds the weights of its iteration: training on from it gives the run's next loss."""
    model = write_tiny_hf(tmp_path / "model", "llama", num_hidden_layers=2)
    data = write_tokens(tmp_path / "data" / "tiny_text_document")
    save = tmp_path / "save"
    common = {"tensor_model_parallel_size": 2, "lr_decay_iters": 10}
    argv = train_flags(
        model,
        data,
        iters=4,
        save=save,
        save_interval=2,
        ckpt_format=ckpt_format,
        enable_mg2hf_convert=True,
        **common,
    )
    pool(2).run(train, argv=argv)
    folders = sorted(path.name for path in save.glob("*mg2hf*"))
    assert folders == ["mg2hf_iteration2", "mg2hf_iteration4"]
    weights = [read(save / name) for name in folders]
    assert weights[0].keys() == read(model).keys()
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    # From the checkpoint and from the folder, the first loss is the same.
    again = dict(iters=5, finetune=True, **common)
    losses = [
        pool(2).run(train, argv=train_flags(load, data, **again))[-1][0]["lm_loss"]
        for load in (save, save / "mg2hf_iteration4")
    ]
    assert losses[0] == losses[1]


def test_only_the_last_and_into_another_folder(pool, tmp_path):
    model = write_tiny_hf(tmp_path / "model", "llama", num_hidden_layers=2)
    data = write_tokens(tmp_path / "data" / "tiny_text_document")
    argv = train_flags(
        model,
        data,
        iters=2,
        save=tmp_path / "save",
        save_interval=1,
        enable_mg2hf_convert=True,
        only_convert_last_checkpoint=True,
        lr_decay_iters=10,
        hf_save_dir=tmp_path / "hf",
    )
    pool(1).run(train, argv=argv)
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["mg2hf_iteration2"]


def read(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")
