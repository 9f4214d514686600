"""Command lines of the documents that users follow, as they stand there (paths filled in).

All must be accepted.
"""

from __future__ import annotations

GLM4_9B_MODEL = """
    --spec mindspeed_llm.tasks.models.spec.gemma2_spec layer_spec
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel
    --use-mcore-models --use-flash-attn --post-norm --use-fused-rmsnorm --use-fused-swiglu
    --overlap-grad-reduce --overlap-param-gather --use-distributed-optimizer
    --num-layers 40 --hidden-size 4096 --ffn-hidden-size 13696 --num-attention-heads 32
    --seq-length 8192 --micro-batch-size 1 --global-batch-size 64 --max-position-embeddings 8192
    --padded-vocab-size 151552 --make-vocab-size-divisible-by 1 --group-query-attention
    --num-query-groups 2 --disable-bias-linear --add-qkv-bias --position-embedding-type rope
    --use-glm-rope --rotary-percent 0.5 --no-rope-fusion --normalization RMSNorm --swiglu
    --tokenizer-type PretrainedFromHF --tokenizer-name-or-path ./model_from_hf/glm4/
    --lr 1.25e-6 --norm-epsilon 1e-05 --train-iters 2000 --lr-decay-style cosine
    --untie-embeddings-and-output-weights --attention-dropout 0.0 --init-method-std 0.01
    --hidden-dropout 0.0 --no-masked-softmax-fusion --attention-softmax-in-fp32 --min-lr 1.25e-7
    --weight-decay 1e-1 --lr-warmup-fraction 0.01 --clip-grad 1.0 --adam-beta1 0.9
    --initial-loss-scale 4096 --adam-beta2 0.95 --no-load-optim --no-load-rng
    --no-gradient-accumulation-fusion --no-bias-swiglu-fusion --bf16 --ckpt-format torch
"""
GLM4_9B_PRETRAIN = (
    GLM4_9B_MODEL
    + """
    --data-path ./dataset/alpaca_text_document --split 100,0,0
    --log-interval 1 --save-interval 2000 --eval-interval 2000 --eval-iters 0
    --load ./model_weights/ --save ./ckpt/ --distributed-backend nccl --transformer-impl local
"""
)
GLM4_9B_GENERATE = """
    --spec mindspeed_llm.tasks.models.spec.gemma2_spec layer_spec
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --use-mcore-models
    --num-layers 40 --hidden-size 4096 --ffn-hidden-size 13696 --seq-length 8192
    --group-query-attention --num-query-groups 2 --max-new-tokens 256 --load ./ckpt
    --tokenizer-type PretrainedFromHF --bf16 --transformer-impl local --ckpt-format torch
    --num-attention-heads 32 --padded-vocab-size 151552 --make-vocab-size-divisible-by 1
    --max-position-embeddings 8192 --position-embedding-type rope --use-glm-rope
    --rotary-percent 0.5 --no-rope-fusion --disable-bias-linear --add-qkv-bias --swiglu
    --post-norm --norm-epsilon 1e-05 --hidden-dropout 0.0 --attention-dropout 0.0
    --normalization RMSNorm --micro-batch-size 1 --tokenizer-name-or-path ./model_from_hf/glm4/
    --untie-embeddings-and-output-weights --attention-softmax-in-fp32 --no-load-optim
    --no-load-rng --no-masked-softmax-fusion --no-gradient-accumulation-fusion
    --exit-on-missing-checkpoint --seed 42
"""
QWEN3_8B_MODEL = """
    --use-mcore-models --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec
    --num-layers 36 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 32
    --num-query-groups 8 --group-query-attention --qk-layernorm --padded-vocab-size 151936
    --make-vocab-size-divisible-by 1 --rotary-base 1000000
    --untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type rope
    --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --ckpt-format torch
"""
QWEN3_8B_PRETRAIN = (
    QWEN3_8B_MODEL
    + """
    --use-flash-attn --use-fused-rotary-pos-emb --use-fused-swiglu --use-fused-rmsnorm
    --use-distributed-optimizer --reuse-fp32-param --overlap-grad-reduce --overlap-param-gather
    --use-ascend-coc
    --micro-batch-size 1 --global-batch-size 64 --lr 1.25e-6 --lr-decay-style cosine
    --min-lr 1.25e-7 --weight-decay 1e-1 --lr-warmup-fraction 0.01 --clip-grad 1.0
    --adam-beta1 0.9 --adam-beta2 0.95 --initial-loss-scale 4096 --seed 42 --bf16
    --train-iters 2000 --seq-length 4096
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 2
    --handler-name GeneralPretrainHandler --data-path ./dataset/enwiki_text_document
    --split 100,0,0 --log-interval 1 --save-interval 2000 --eval-interval 2000 --eval-iters 0
    --no-load-optim --no-load-rng --load ./model_from_hf/qwen3_hf --save ./ckpt
    --distributed-backend nccl --transformer-impl local --enable-hf2mg-convert
    --model-type-hf qwen3
    --use-rotary-position-embeddings --no-masked-softmax-fusion --attention-dropout 0.0
    --hidden-dropout 0.0 --init-method-std 0.01 --tokenizer-type PretrainedFromHF
    --tokenizer-name-or-path ./model_from_hf/qwen3_hf --max-position-embeddings 4096
    --attention-softmax-in-fp32 --no-gradient-accumulation-fusion --workers 4
"""
)
QWEN3_8B_GENERATE = (
    QWEN3_8B_MODEL
    + """
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --seq-length 4096
    --micro-batch-size 1 --max-new-tokens 256 --use-fused-swiglu --use-fused-rmsnorm
    --use-fused-rotary-pos-emb --tokenizer-not-use-fast --load ./ckpt
    --exit-on-missing-checkpoint --transformer-impl local
    --tokenizer-type PretrainedFromHF --tokenizer-name-or-path ./model_from_hf/qwen3_hf
"""
)
QWEN25_7B_PRETRAIN = """
    --use-mcore-models --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4
    --num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28
    --group-query-attention --num-query-groups 4 --seq-length 4096
    --max-position-embeddings 32768 --position-embedding-type rope --rotary-base 1000000
    --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --disable-bias-linear --add-qkv-bias
    --untie-embeddings-and-output-weights --padded-vocab-size 152064
    --make-vocab-size-divisible-by 1 --micro-batch-size 1 --global-batch-size 64
    --lr 1.25e-6 --min-lr 1.25e-7 --train-iters 2000 --bf16 --seed 1234
    --data-path ./dataset/alpaca_text_document --split 100,0,0
    --tokenizer-type PretrainedFromHF --tokenizer-name-or-path ./model_from_hf/qwen2.5-7b-hf/
    --load ./model_weights/qwen2.5_mcore/ --save ./ckpt/qwen25-7b --save-interval 2000
    --no-shared-storage --log-throughput --eval-interval 2000 --eval-iters 0 --log-interval 1
    --recompute-granularity full --recompute-method block --recompute-num-layers 2
    --context-parallel-size 1 --context-parallel-algo megatron_cp_algo --kv-channels 128
"""
QWEN3_MOE_PRETRAIN = (
    QWEN3_8B_PRETRAIN
    + """
    --num-experts 128 --moe-grouped-gemm --moe-router-topk 8
    --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8
    --moe-permutation-async-comm --moe-layer-freq -1 --first-k-dense-replace -1
    --moe-ffn-hidden-size 768 --moe-aux-loss-coeff 0.001 --norm-topk-prob
"""
)

COMMANDS: dict[str, tuple[str, str]] = {
    "glm4 data": (
        "preprocess",
        """--input ./dataset/train-00000-of-00001-a09b74b3ef9c3b56.parquet
        --tokenizer-name-or-path ./model_from_hf/glm4_0414_hf/
        --output-prefix ./dataset/glm4_9b_0414_hf/alpaca --workers 4 --log-interval 1000
        --tokenizer-type PretrainedFromHF""",
    ),
    "glm4 hf2mcore": (
        "convert",
        """--model-type-hf glm4_9b --load-model-type hf --save-model-type mg
        --target-tensor-parallel-size 2 --target-pipeline-parallel-size 4
        --load-dir ./model_from_hf/GLM-4-9B-0414 --save-dir ./model_weights/""",
    ),
    "glm4 32b hf2mcore": (
        "convert",
        """--model-type-hf glm4 --load-model-type hf --save-model-type mg
        --target-tensor-parallel-size 2 --target-pipeline-parallel-size 4
        --num-layer-list 15,15,15,16
        --load-dir ./model_from_hf/GLM-4-32B-0414 --save-dir ./model_weights/""",
    ),
    "glm4 mcore2hf": (
        "convert",
        """--model-type-hf glm4_9b --load-model-type mg --save-model-type hf
        --load-dir ./model_weights/glm4_9b_0414_mcore/
        --save-dir ./model_from_hf/glm4_9b_0414_hf/""",
    ),
    "glm4 pretrain": ("pretrain", GLM4_9B_PRETRAIN),
    "glm4 generate": ("inference", GLM4_9B_GENERATE),
    "qwen3 data": (
        "preprocess",
        """--input ./dataset/train-00000-of-00042-d964455e17e96d5a.parquet
        --tokenizer-name-or-path ./model_from_hf/qwen3_hf/ --tokenizer-type PretrainedFromHF
        --handler-name GeneralPretrainHandler --output-prefix ./dataset/enwiki
        --json-keys text --workers 4 --log-interval 1000""",
    ),
    "qwen3 instruction data": (
        "preprocess",
        """--input ./dataset/train-00000-of-00001-a09b74b3ef9c3b56.parquet
        --tokenizer-name-or-path ./model_from_hf/qwen3_hf/
        --output-prefix ./finetune_dataset/alpaca --handler-name AlpacaStyleInstructionHandler
        --tokenizer-type PretrainedFromHF --workers 4 --log-interval 1000
        --enable-thinking true --prompt-type qwen3""",
    ),
    "qwen3 hf2mcore": (
        "convert",
        """--load-model-type hf --save-model-type mg --target-tensor-parallel-size 1
        --target-pipeline-parallel-size 8 --load-dir ./model_from_hf/qwen3_hf/
        --save-dir ./model_weights/qwen3_mcore/ --model-type-hf qwen3""",
    ),
    "qwen3 mcore2hf": (
        "convert",
        """--load-model-type mg --save-model-type hf --load-dir ./model_weights/qwen3_mcore/
        --save-dir ./hf_weights/qwen3_hf/ --hf-cfg-dir ./origin_hf_cfg --model-type-hf qwen3""",
    ),
    "qwen3 lora mcore2hf": (
        "convert",
        """--load-model-type mg --save-model-type hf --lora-r 8 --lora-alpha 16
        --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2
        --load-dir ./model_weights/qwen3_mcore/ --lora-load ./ckpt/qwen3_lora
        --save-dir ./model_from_hf/qwen3_hf/ --hf-cfg-dir ./model_from_hf/qwen3_hf/
        --model-type-hf qwen3""",
    ),
    "qwen3 pretrain": ("pretrain", QWEN3_8B_PRETRAIN),
    "qwen3 pretrain A3": (
        "pretrain",
        QWEN3_8B_PRETRAIN.replace("--workers 4", "")
        .replace("--tensor-model-parallel-size 1", "--tensor-model-parallel-size 2")
        .replace("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 1")
        .replace("--global-batch-size 64", "--global-batch-size 128"),
    ),
    "qwen3 generate": ("inference", QWEN3_8B_GENERATE),
    "qwen3 moe pretrain": ("pretrain", QWEN3_MOE_PRETRAIN),
    "qwen2.5 hf2mcore, older tool": (
        "convert_v1",
        """--use-mcore-models --model-type GPT --load-model-type hf --save-model-type mg
        --target-tensor-parallel-size 1 --target-pipeline-parallel-size 4 --add-qkv-bias
        --load-dir ./model_from_hf/qwen2.5-7b-hf/ --save-dir ./model_weights/qwen2.5_mcore/
        --tokenizer-model ./model_from_hf/qwen2.5-7b-hf/tokenizer.json --model-type-hf llama2
        --params-dtype bf16""",
    ),
    "qwen2.5 data": (
        "preprocess",
        """--input ./dataset/train-00000-of-00001-a09b74b3ef9c3b56.parquet
        --tokenizer-name-or-path ./model_from_hf/qwen2.5_7b_hf/ --output-prefix ./dataset/alpaca
        --tokenizer-type PretrainedFromHF --workers 4 --log-interval 1000""",
    ),
    "qwen2.5 pretrain": ("pretrain", QWEN25_7B_PRETRAIN),
}
