"""Flags that only ``convert_ckpt.py`` has, the older command line of the conversion."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import Group, flag
from mindspeed_llm.flags.status import ALWAYS, neutral, unsupported

MODEL_CFG = "configs/checkpoint/model_cfg.json"
LEGACY = "weights of Megatron before Megatron-Core"


@dataclass(frozen=True)
class ConvertV1Flags(Group):
    title = "names of the older tool"

    model_type: str = flag(
        "GPT", "Kind of model.", choices=("GPT",), refused={"BERT": "BERT models"}
    )
    loader: str | None = flag(
        None,
        "Older way to say --load-model-type: hf, hf_mcore, llama2_hf, ..., mg, mg_mcore, megatron.",
    )
    saver: str | None = flag(
        None, "Older way to say --save-model-type mg: mg, mg_mcore, megatron, megatron_mcore."
    )
    use_mcore_models: bool = flag(False, "Megatron-Core weights.", effect=ALWAYS)
    target_expert_model_parallel_size: int | None = flag(
        None, "Older name of --target-expert-parallel-size.", at_least=1
    )
    tokenizer_model: str | None = flag(
        None,
        "Tokenizer file.",
        effect=neutral("all tokenizer files are carried over from the folder of config.json"),
    )
    vocab_file: str | None = flag(
        None,
        "Vocabulary file.",
        effect=neutral("all tokenizer files are carried over from the folder of config.json"),
    )
    megatron_path: str | None = flag(
        None, "Megatron's folder.", effect=neutral("the conversion needs none")
    )
    max_queue_size: int = flag(50, "Size of a queue.", effect=neutral("there is no queue any more"))
    spec: tuple[str, ...] | None = flag(
        None, "Layer spec.", nargs=2, effect=neutral("the family decides")
    )
    load_hf_from_config: bool = flag(
        False, "Take the shape from config.json.", effect=neutral("it always comes from there")
    )
    load_checkpoint_loosely: bool = flag(
        False,
        "Accept missing tensors.",
        effect=neutral("an adapter alone is recognised; of a model every tensor must be there"),
    )
    no_checking: bool = flag(False, "Skip checks.", effect=unsupported("conversion without checks"))
    ckpt_cfg_path: str = flag(
        MODEL_CFG,
        "Table of the model families.",
        effect=unsupported("a family file in mindspeed_llm/models/ instead of this table"),
    )
    w_pack: bool = flag(False, "Fused W_pack projections.", effect=unsupported("Baichuan models"))
    add_dense_bias: bool = flag(
        False, "Bias of the output projection.", effect=unsupported("models with such biases")
    )
    add_output_layer_bias: bool = flag(
        False, "Bias of the output layer.", effect=unsupported("models with such biases")
    )
    embed_layernorm: bool = flag(
        False, "Norm after the embedding.", effect=unsupported("BLOOM models")
    )
    load_from_legacy: bool = flag(
        False, "Read the old layout of weights.", effect=unsupported(LEGACY)
    )
    save_to_legacy: bool = flag(
        False, "Write the old layout of weights.", effect=unsupported(LEGACY)
    )
