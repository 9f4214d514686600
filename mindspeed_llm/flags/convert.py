"""Flags of ``convert_ckpt_v2.py``; the older ``convert_ckpt.py`` has them too."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import Group, comma_numbers, flag
from mindspeed_llm.flags.status import ALWAYS, neutral, unsupported


@dataclass(frozen=True)
class ConvertFlags(Group):
    title = "conversion"

    load_model_type: str = flag(
        "hf",
        "Form of --load-dir: hf (Hugging Face) or mg (Megatron).",
        choices=("hf", "mg"),
        refused={"optim": "no step of its own: mg to mg reshards the optimizer's state too"},
    )
    save_model_type: str = flag("mg", "Form of --save-dir.", choices=("mg", "hf"))
    load_dir: str | None = flag(None, "Folder to read.")
    save_dir: str | None = flag(None, "Folder to write.")
    model_type_hf: str | None = flag(
        None, "Model family, e.g. llama, qwen25, qwen3; from config.json when left out."
    )
    hf_cfg_dir: str | None = flag(
        None, "mg to hf: folder of the original config.json and tokenizer."
    )
    target_tensor_parallel_size: int = flag(1, "Tensor-parallel size to write.", at_least=1)
    target_pipeline_parallel_size: int = flag(1, "Pipeline stages to write.", at_least=1)
    num_layers_per_virtual_pipeline_stage: int | None = flag(
        None, "Layers of one model chunk, for the interleaved schedule.", at_least=1
    )
    num_layer_list: tuple[int, ...] | None = flag(
        None, "Layers of each stage, e.g. 15,15,15,16.", convert=comma_numbers, at_least=1
    )
    noop_layers: tuple[int, ...] | None = flag(
        None,
        "Places of layers that do nothing, e.g. 61,62,63, counted over all layers.",
        convert=comma_numbers,
        at_least=0,
    )
    target_expert_parallel_size: int = flag(1, "Expert-parallel size to write.", at_least=1)
    expert_tensor_parallel_size: int | None = flag(
        None,
        "Tensor-parallel size of each expert; that of the other layers when left out.",
        at_least=1,
    )
    moe_grouped_gemm: bool = flag(
        False, "Stack the experts of a layer into one tensor (experts.weight1, experts.weight2)."
    )
    first_k_dense_replace: int | None = flag(
        None, "Leading layers without experts; checked against the model."
    )
    make_vocab_size_divisible_by: int = flag(
        1, "Pad the vocabulary to a multiple of this times the tensor-parallel size.", at_least=1
    )
    padded_vocab_size: int | None = flag(None, "Rows of the embedding table to write.", at_least=1)
    params_dtype: str | None = flag(
        None,
        "Cast the weights; each keeps its stored type when left out.",
        choices=("fp32", "fp16", "bf16"),
    )
    no_save_optim: bool = flag(
        False, "mg to mg: convert the weights only, and leave the optimizer's state out."
    )
    num_layers: int | None = flag(
        None, "Convert only the first layers (a small model for tests).", at_least=1
    )
    verify: str | None = flag(
        None,
        "Check the result: accounting (names and sizes), roundtrip (also every bit), logits (also "
        "against transformers); left out: logits for a small model, else accounting.",
        choices=("accounting", "roundtrip", "logits"),
    )
    sha256: str | None = flag(
        None, "File of published sums (sha256sum format): check --load-dir before converting."
    )
    transformer_impl: str = flag(
        "local",
        "Whose names the weights get.",
        choices=("local",),
        refused={"transformer_engine": "TransformerEngine modules"},
    )
    save_layer_by_layer: bool = flag(
        False,
        "Write one layer at a time.",
        effect=ALWAYS,
    )

    add_qkv_bias: bool = flag(
        False, "The model has biases on query, key and value; checked against the weights."
    )
    ckpt_format: str = flag(
        "torch",
        "Form of Megatron files: torch (a file a rank) or torch_dist (loads at any layout).",
        choices=("torch", "torch_dist"),
    )
    post_norm: bool = flag(
        False, "The outputs of attention and MLP are normalised too; checked against the weights."
    )
    true_vocab_size: int | None = flag(
        None, "Vocabulary rows without padding; checked against the weights.", at_least=1
    )

    # Families and features to come
    moe_tp_extend_ep: bool = flag(
        False,
        "Experts over tensor-parallel ranks.",
        effect=unsupported(
            "files of experts spread over tensor-parallel ranks (give --expert-tensor-parallel-size"
            " 1 and the larger --target-expert-parallel-size)"
        ),
    )
    mtp_num_layers: int | None = flag(
        None,
        "Layers of multi-token prediction, hf to mg: as many as there are (also when left out), or "
        "0 for none.",
        at_least=0,
    )
    mla_mm_split: bool = flag(
        False,
        "Store the up-projections of latent attention in four parts.",
        effect=neutral("they stay whole; training takes them so, with --mla-mm-split or without"),
    )
    schedules_method: str | None = flag(
        None, "Another pipeline schedule.", effect=unsupported("DualPipeV schedule")
    )
