"""ADPT-02: the adaptor in a fresh process, whatever was imported first and whatever is broken."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TORCH, MEGATRON = "import torch", "import megatron.core.optimizer"
ADAPTOR = "import mindspeed.megatron_adaptor as adaptor"

CHECK = """
import torch
from megatron.core import parallel_state
from megatron.core.optimizer import optimizer
from megatron.core.fusions import fused_bias_swiglu
from megatron.core.transformer import torch_norm
import megatron.core.models.backends as backends
from mindspeed.transformer.norm import Norm
assert parallel_state.torch is not torch and optimizer.torch is parallel_state.torch
assert str(parallel_state.torch.zeros(1, device="cuda").device) == "cpu"
assert backends.WrappedTorchNorm is torch_norm.WrappedTorchNorm is Norm
assert not hasattr(fused_bias_swiglu.swiglu, "_torchdynamo_orig_callable")
waiting = {p.name for p in adaptor.patches() if p.state.startswith("waits")}
optional = {"cpu.moe-split-sizes", "no-te.general-gemm", "checkout.compile"}
assert waiting <= {*optional, "latent-attention.have-te"}, waiting
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "MINDSPEED_DEVICE": "cpu", "OMP_NUM_THREADS": "1", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_adaptor_first_and_gpu_packages_that_die_on_import(tmp_path):
    """They count as absent, whatever they raise, and can still be found (other code asks that)."""
    for package in ("transformer_engine", "flash_attn", "apex"):
        (tmp_path / package).mkdir()
        init = tmp_path / package / "__init__.py"
        init.write_text("raise OSError('libcudart.so.12: cannot open shared object file')\n")
    find = "import importlib.util\nassert importlib.util.find_spec('flash_attn')"
    result = run("\n".join([ADAPTOR, CHECK, find]), PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert result.returncode == 0, result.stderr


def test_megatron_first_twice_and_revert_restores_every_symbol():
    """Each attribute of each Megatron module, and of its classes, is the same object again."""
    result = run(
        f"""
{MEGATRON}
import megatron.core.transformer.moe.moe_utils
import sys, torch

def snapshot():
    found = {{}}
    owners = [torch.Tensor, torch.nn.Module]
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron."):
            owners += [module, *(v for v in vars(module).values() if isinstance(v, type))]
    for owner in owners:
        for key, value in vars(owner).items():
            if key not in ("__builtins__", "__annotations__", "__warningregistry__"):
                found[id(owner), key] = (value, getattr(value, "__code__", None))
    return found

def same(one, other):
    return one is not None and other is not None and all(map(lambda a, b: a is b, one, other))

before, finders = snapshot(), list(sys.meta_path)
{ADAPTOR}
{CHECK}
adaptor.apply()
during = snapshot()
assert sum(not same(during.get(key), value) for key, value in before.items()) > 100
adaptor.revert()
after = snapshot()
wrong = [(key[1], before.get(key), after.get(key)) for key in before | after
         if key in before and not same(before.get(key), after.get(key))]
assert not wrong, wrong[:10]
assert sys.meta_path == finders
"""
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_disabled_leaves_torch_and_megatron_untouched():
    result = run(
        f"""
import torch
before = torch.Tensor.cuda, torch.nn.Module.cuda, torch.Tensor.pin_memory
{ADAPTOR}
from megatron.core import parallel_state
assert (torch.Tensor.cuda, torch.nn.Module.cuda, torch.Tensor.pin_memory) == before
assert parallel_state.torch is torch and not adaptor.patches()
""",
        MINDSPEED_DISABLE="1",
    )
    assert result.returncode == 0, result.stderr


def test_a_device_that_is_absent_is_one_plain_sentence():
    result = run(
        "from mindspeed_llm.console import entry_point\n"
        "def main(argv):\n"
        "    import mindspeed.megatron_adaptor\n"
        "entry_point(main, [])",
        MINDSPEED_DEVICE="npu",
    )
    assert result.returncode == 2
    assert "MINDSPEED_DEVICE=npu was asked for, but" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_checkout_of_megatron_wins_over_the_installed_package(tmp_path):
    """A Megatron-LM folder first on sys.path is what gets patched, its training part included."""
    training = tmp_path / "megatron" / "training"
    training.mkdir(parents=True)
    (training / "__init__.py").write_text("")
    (training / "initialize.py").write_text(
        "import torch\n"
        "def _compile_dependencies(): raise OSError('no CUDA toolkit')\n"
        "def start():\n"
        "    _compile_dependencies()\n"
        "    assert torch.cuda.is_available(), 'Megatron requires CUDA.'\n"
        "    torch.distributed.init_process_group(backend='nccl', rank=0, world_size=1,\n"
        "        init_method='tcp://127.0.0.1:0')\n"
        "    return torch.distributed.get_backend(), torch.ones(1).cuda().device.type\n"
    )
    installed = importlib.util.find_spec("megatron.core")
    (tmp_path / "megatron" / "core").symlink_to(Path(installed.origin).parent)
    result = run(
        f"{TORCH}\n{ADAPTOR}\nimport megatron.core, sys\n"
        f"assert megatron.core.__file__.startswith({str(tmp_path)!r}), megatron.core.__file__\n"
        "from megatron.training.initialize import start\nprint(*start())",
        PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["gloo", "cpu"]


@pytest.mark.slow
@pytest.mark.skipif("MEGATRON_LM" not in os.environ, reason="MEGATRON_LM names no checkout")
def test_a_real_checkout_trains(tmp_path):
    """Megatron-LM's own pretrain_gpt.py (set MEGATRON_LM to a core_v0.16 checkout), with the one
    line added; its sources are only linked to."""
    for entry in Path(os.environ["MEGATRON_LM"]).resolve().iterdir():
        if entry.name != "pretrain_gpt.py":
            (tmp_path / entry.name).symlink_to(entry)
    script = (Path(os.environ["MEGATRON_LM"]) / "pretrain_gpt.py").read_text()
    changed = script.replace(
        "import torch\n", "import torch\nimport mindspeed.megatron_adaptor\n", 1
    )
    (tmp_path / "pretrain_gpt.py").write_text(changed)
    flags = """
        --tensor-model-parallel-size 2 --sequence-parallel --num-layers 2 --hidden-size 64
        --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 2
        --global-batch-size 4 --lr 1e-3 --train-iters 3 --log-interval 1 --eval-iters 1
        --eval-interval 100 --mock-data
        --tokenizer-type NullTokenizer --vocab-size 1000 --transformer-impl local --swiglu
        --distributed-backend nccl --normalization RMSNorm --disable-bias-linear
        --position-embedding-type rope --no-persist-layer-norm --no-masked-softmax-fusion --bf16
        --use-distributed-optimizer
    """
    launcher = f"{sys.executable} -m torch.distributed.run --nproc_per_node 2"
    result = subprocess.run(
        [*launcher.split(), "pretrain_gpt.py", *flags.split()],
        cwd=tmp_path,
        env={
            **os.environ,
            "MINDSPEED_DEVICE": "cpu",
            "OMP_NUM_THREADS": "1",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
            ),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "iteration        3/       3" in result.stdout
