#!/usr/bin/env bash
# Full-parameter SFT of Qwen3-8B, up to 4K tokens, 8 devices of one node: TP 1, PP 2, DP 4.
# Every value can be set from the environment; the shape must be that of the model in CKPT_LOAD_DIR,
# which may be a Hugging Face folder or a converted checkpoint.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

export HCCL_CONNECT_TIMEOUT=3600
export HCCL_EXEC_TIMEOUT=3600
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export NPU_ASD_ENABLE=0
export TASK_QUEUE_ENABLE=2

NPUS_PER_NODE=${NPUS_PER_NODE:-8}
CKPT_LOAD_DIR=${CKPT_LOAD_DIR:-./model_from_hf/qwen3_hf/}
CKPT_SAVE_DIR=${CKPT_SAVE_DIR:-./ckpt/qwen3_8b_full/}
DATA_PATH=${DATA_PATH:-./finetune_dataset/alpaca}
TOKENIZER_PATH=${TOKENIZER_PATH:-./model_from_hf/qwen3_hf/}

TP=${TP:-1}
PP=${PP:-2}
MBS=${MBS:-1}
GBS=${GBS:-16}
SEQ_LENGTH=${SEQ_LENGTH:-4096}
TRAIN_ITERS=${TRAIN_ITERS:-2000}
NUM_LAYERS=${NUM_LAYERS:-36}
HIDDEN_SIZE=${HIDDEN_SIZE:-4096}
FFN_HIDDEN_SIZE=${FFN_HIDDEN_SIZE:-12288}
NUM_HEADS=${NUM_HEADS:-32}
NUM_QUERY_GROUPS=${NUM_QUERY_GROUPS:-8}
PADDED_VOCAB_SIZE=${PADDED_VOCAB_SIZE:-151936}
KV_CHANNELS=${KV_CHANNELS:-128}
MAX_POSITIONS=${MAX_POSITIONS:-32768}
PROMPT_TYPE=${PROMPT_TYPE:-qwen3}

OPTIMIZE_ARGS=(
    --use-flash-attn
    --use-fused-rotary-pos-emb
    --use-fused-swiglu
    --use-fused-rmsnorm
    --use-distributed-optimizer
    --reuse-fp32-param
    --overlap-grad-reduce
    --overlap-param-gather
    --use-ascend-coc
)

TRAIN_ARGS=(
    --micro-batch-size "$MBS"
    --global-batch-size "$GBS"
    --lr 1.25e-6
    --lr-decay-style cosine
    --min-lr 1.25e-7
    --weight-decay 1e-1
    --lr-warmup-fraction 0.01
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --init-method-std 0.01
    --clip-grad 1.0
    --adam-beta1 0.9
    --adam-beta2 0.95
    --initial-loss-scale 4096
    --seed 42
    --bf16
    --train-iters "$TRAIN_ITERS"
    --seq-length "$SEQ_LENGTH"
)

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size "$TP"
    --pipeline-model-parallel-size "$PP"
    --sequence-parallel
)

GPT_ARGS=(
    --use-mcore-models
    --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec
    --num-layers "$NUM_LAYERS"
    --hidden-size "$HIDDEN_SIZE"
    --ffn-hidden-size "$FFN_HIDDEN_SIZE"
    --num-attention-heads "$NUM_HEADS"
    --num-query-groups "$NUM_QUERY_GROUPS"
    --group-query-attention
    --kv-channels "$KV_CHANNELS"
    --qk-layernorm
    --padded-vocab-size "$PADDED_VOCAB_SIZE"
    --make-vocab-size-divisible-by 1
    --rotary-base 1000000
    --use-rotary-position-embeddings
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --position-embedding-type rope
    --max-position-embeddings "$MAX_POSITIONS"
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --tokenizer-type PretrainedFromHF
    --tokenizer-name-or-path "$TOKENIZER_PATH"
    --attention-softmax-in-fp32
    --no-masked-softmax-fusion
    --no-gradient-accumulation-fusion
    --ckpt-format torch
)

DATA_ARGS=(
    --handler-name AlpacaStyleInstructionHandler
    --enable-thinking true
    --prompt-type "$PROMPT_TYPE"
    --data-path "$DATA_PATH"
    --split 100,0,0
    --workers 4
)

OUTPUT_ARGS=(
    --log-interval 1
    --save-interval "${SAVE_INTERVAL:-1000}"
    --eval-interval 1000
    --eval-iters 0
    --no-load-optim
    --no-load-rng
)

TUNE_ARGS=(
    --finetune
    --stage sft
    --is-instruction-dataset
    --prompt-type "$PROMPT_TYPE"
    --no-pad-to-seq-lengths
)

launch posttrain_gpt.py \
    "${GPT_ARGS[@]}" \
    "${DATA_ARGS[@]}" \
    "${OUTPUT_ARGS[@]}" \
    "${OPTIMIZE_ARGS[@]}" \
    "${TRAIN_ARGS[@]}" \
    "${MODEL_PARALLEL_ARGS[@]}" \
    "${TUNE_ARGS[@]}" \
    --load "$CKPT_LOAD_DIR" \
    --save "$CKPT_SAVE_DIR" \
    --distributed-backend nccl \
    --transformer-impl local \
    --exit-on-missing-checkpoint \
    --enable-hf2mg-convert \
    --model-type-hf qwen3 \
    "$@" |
    tee "${LOG:-logs/tune_qwen3_8b_full.log}"
