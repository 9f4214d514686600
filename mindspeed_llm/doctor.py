"""``mindspeed-llm doctor``: what this machine offers, what is missing, and how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """A package, what it is for, and the command that brings it (empty: it is required)."""

    name: str
    purpose: str
    install: str = ""


REQUIRED = (
    Package("torch", "tensors", "pip install torch"),
    Package("megatron-core", "the engine", "pip install 'megatron-core>=0.16,<0.17'"),
    Package("transformers", "tokenizers and configs", "pip install transformers"),
    Package("tokenizers", "tokenizing", "pip install tokenizers"),
    Package("safetensors", "Hugging Face weights", "pip install safetensors"),
    Package("pyarrow", "parquet input", "pip install pyarrow"),
)
OPTIONAL = (
    Package("fastokens", "tokenizing many times faster", "pip install fastokens"),
    Package("tensorboard", "--tensorboard-dir", "pip install 'mindspeed-llm[tensorboard]'"),
    Package("gguf", "quickstart", "pip install 'mindspeed-llm[quickstart]'"),
    Package("accelerate", "quickstart", "pip install 'mindspeed-llm[quickstart]'"),
    Package("matplotlib", "the quickstart's loss curve", "pip install 'mindspeed-llm[quickstart]'"),
    Package("torch-npu", "Ascend NPU", "pip install torch-npu, after the CANN toolkit"),
)


def main(argv: list[str]) -> int:
    """Print the report; exit status 1 if something required is missing."""
    parser = argparse.ArgumentParser(prog="mindspeed-llm doctor", description=__doc__)
    parser.add_argument(
        "--patches", action="store_true", help="list every symbol that is replaced, and why"
    )
    options = parser.parse_args(argv)
    missing = _packages()
    if "torch" in missing:
        return 1
    _machine()
    if "megatron-core" not in missing:
        _ops()
        if options.patches:
            _patches()
    return 1 if missing else 0


def _packages() -> list[str]:
    print(f"python {platform.python_version()} on {platform.platform()}\n")
    print("packages")
    missing = []
    for required, packages in ((True, REQUIRED), (False, OPTIONAL)):
        for package in packages:
            version = _version(package.name)
            if version is None and required:
                missing.append(package.name)
            state = version or ("MISSING" if required else "not installed")
            hint = "" if version else f"  ({package.purpose}: {package.install})"
            print(f"  {package.name:<15}{state}{hint}")
    return missing


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> None:
    from mindspeed.device import get_device

    device = get_device()
    print(f"\ndevice {device.name}: {device.reason}")
    for name, value in device.versions().items():
        print(f"  {name:<24}{value}")
    print(f"  {'devices':<24}{device.count()}")
    print(f"  {'memory':<24}{device.total_memory_bytes() / 2**30:.1f} GiB")
    print(f"  {'collectives':<24}{device.backend}")
    print(f"  {'free disk here':<24}{shutil.disk_usage('.').free / 2**30:.1f} GiB")


def _ops() -> None:
    import mindspeed.megatron_adaptor  # noqa: F401
    from mindspeed.ops import dispatch

    print(f"\nops\n  {dispatch.describe()}")


def _patches() -> None:
    """Every replaced symbol; those of modules not imported yet apply when they are."""
    import mindspeed.megatron_adaptor as adaptor

    print("\npatches")
    for patch in adaptor.patches():
        print(f"  {patch.target}")
        print(f"    {patch.name} (level {patch.level}, {patch.owner}): {patch.reason}")
