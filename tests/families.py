"""One tiny model of each family: the published ``config.json``, with small sizes in it.

Every setting that a family's own models have and that changes a number is there (head sizes,
biases, windows, caps, rotary shares and scalings), so that a test over this table meets it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB = 131

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 16,
}
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.8, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0],
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
_DEEPSEEK_EXPERTS = {
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_parameters": _LLAMA3},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 24},
    "mistral": {"model_type": "mistral", "head_dim": 24, "sliding_window": None},
    "mistral-window": {"model_type": "mistral", "sliding_window": 12},
    "seed-oss": {"model_type": "seed_oss", "head_dim": 24, "attention_bias": True},
    "phi3.5": {
        "model_type": "phi3",
        "num_key_value_heads": 4,
        "original_max_position_embeddings": 64,
        "sliding_window": 2047,
        "rope_scaling": _LONGROPE,
    },
    "phi3.5-long": {
        "model_type": "phi3",
        "original_max_position_embeddings": 24,
        "sliding_window": 20,
        "rope_scaling": _LONGROPE,
    },
    "glm4_9b": {
        "model_type": "glm4",
        "head_dim": 24,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
    },
    "glm4_32b": {
        "model_type": "glm4",
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "attention_bias": False,
    },
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 24,
        "query_pre_attn_scalar": 16,
        "sliding_window": 12,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "head_dim": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
    },
    "qwen3-moe-dense": {
        "model_type": "qwen3_moe",
        "head_dim": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": False,
        "mlp_only_layers": [0],
    },
    "qwen2-moe": {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56,
        "norm_topk_prob": False,
    },
    "mixtral": {
        "model_type": "mixtral",
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "deepseek2-lite": {
        "model_type": "deepseek_v2",
        **_LATENT,
        **_DEEPSEEK_EXPERTS,
        "q_lora_rank": None,
        "rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek2": {
        "model_type": "deepseek_v2",
        **_LATENT,
        **_DEEPSEEK_EXPERTS,
        "q_lora_rank": 20,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 3.0,
        # The factor of cosine and sine is not 1 here.
        "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    },
    "deepseek3": {
        "model_type": "deepseek_v3",
        **_LATENT,
        **_DEEPSEEK_EXPERTS,
        "q_lora_rank": 20,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "deepseek3-plain": {
        "model_type": "deepseek_v3",
        **_LATENT,
        **_DEEPSEEK_EXPERTS,
        "q_lora_rank": None,
        "n_group": 1,
        "topk_group": 1,
    },
    "glm45-air": {
        "model_type": "glm4_moe",
        **_DEEPSEEK_EXPERTS,
        "n_shared_experts": 1,
        "head_dim": 24,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
    },
    "glm45": {
        "model_type": "glm4_moe",
        **_DEEPSEEK_EXPERTS,
        "n_shared_experts": 1,
        "head_dim": 24,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "use_qk_norm": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 2,
    },
}


DENSE = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "mistral-window",
    "seed-oss",
    "phi3.5",
    "phi3.5-long",
    "glm4_9b",
    "glm4_32b",
    "gemma2",
)
"""Those without experts and latent attention: any layout will do."""


def tiny_config(name: str, **changes: Any) -> Any:
    """The ``transformers`` configuration of a tiny model of this table."""
    from transformers import AutoConfig

    values = {**_SIZES, **CONFIGS[name], **changes}
    return AutoConfig.for_model(values.pop("model_type"), **values)


def write_tiny_hf(folder: Path, name: str, seed: int = 0, **changes: Any) -> Path:
    """A tiny model with random weights, saved by ``transformers``.

    Norm weights are not 1, biases not 0, and matrices are large enough for caps to matter.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(name, **changes))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                # Gemma's weights are offsets from 1.
                center = 0.0 if name.startswith("gemma") else 1.0
                parameter.copy_(center + 0.3 * torch.randn_like(parameter))
            elif parameter_name.endswith("bias"):
                parameter.copy_(0.1 * torch.randn_like(parameter))
            else:
                parameter.mul_(3.0)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn_like(buffer))
    model.save_pretrained(folder)
    return folder


class TinyModels(dict[str, Path]):
    """``models[name]``: the folder of a tiny model, written when first asked for.

    Args:
        folder: where they lie.
        write: makes the model of a name in a folder.
    """

    def __init__(self, folder: Path, write: Callable[[Path, str], Path] = write_tiny_hf) -> None:
        super().__init__()
        self._folder, self._write = folder, write

    def __missing__(self, name: str) -> Path:
        self[name] = self._write(self._folder / name.replace(" ", "-"), name)
        return self[name]
