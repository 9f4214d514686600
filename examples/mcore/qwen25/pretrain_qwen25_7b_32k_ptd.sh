#!/usr/bin/env bash
# Qwen2.5-7B on the 8 devices of one node: TP 1, PP 4, DP 2. The model takes 32K positions; the
# sequences here are 4096 tokens, SEQ_LEN=32768 TP=4 PP=2 trains at the full length.
# Every value can be set from the environment; the shape must be that of the model in CKPT_LOAD_DIR.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

export HCCL_CONNECT_TIMEOUT=3600
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True

NPUS_PER_NODE=${NPUS_PER_NODE:-8}
CKPT_LOAD_DIR=${CKPT_LOAD_DIR:-./model_weights/qwen2.5_mcore/}
CKPT_SAVE_DIR=${CKPT_SAVE_DIR:-./ckpt/qwen25-7b}
DATA_PATH=${DATA_PATH:-./dataset/alpaca_text_document}
TOKENIZER_PATH=${TOKENIZER_PATH:-./model_from_hf/qwen2.5-7b-hf/}

TP=${TP:-1}
PP=${PP:-4}
SEQ_LEN=${SEQ_LEN:-4096}
MBS=${MBS:-1}
GBS=${GBS:-64}
TRAIN_ITERS=${TRAIN_ITERS:-2000}
NUM_LAYERS=${NUM_LAYERS:-28}
HIDDEN_SIZE=${HIDDEN_SIZE:-3584}
FFN_HIDDEN_SIZE=${FFN_HIDDEN_SIZE:-18944}
NUM_HEADS=${NUM_HEADS:-28}
NUM_QUERY_GROUPS=${NUM_QUERY_GROUPS:-4}
MAX_POSITIONS=${MAX_POSITIONS:-32768}
PADDED_VOCAB_SIZE=${PADDED_VOCAB_SIZE:-152064}

GPT_ARGS=(
    --use-mcore-models
    --tensor-model-parallel-size "$TP"
    --pipeline-model-parallel-size "$PP"
    --sequence-parallel
    --use-flash-attn
    --use-fused-rmsnorm
    --use-fused-swiglu
    --use-fused-rotary-pos-emb
    --use-distributed-optimizer
    --overlap-grad-reduce
    --num-layers "$NUM_LAYERS"
    --hidden-size "$HIDDEN_SIZE"
    --ffn-hidden-size "$FFN_HIDDEN_SIZE"
    --num-attention-heads "$NUM_HEADS"
    --group-query-attention
    --num-query-groups "$NUM_QUERY_GROUPS"
    --seq-length "$SEQ_LEN"
    --max-position-embeddings "$MAX_POSITIONS"
    --position-embedding-type rope
    --rotary-base 1000000
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --disable-bias-linear
    --add-qkv-bias
    --untie-embeddings-and-output-weights
    --padded-vocab-size "$PADDED_VOCAB_SIZE"
    --make-vocab-size-divisible-by 1
    --tokenizer-type PretrainedFromHF
    --tokenizer-name-or-path "$TOKENIZER_PATH"
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --attention-softmax-in-fp32
    --no-masked-softmax-fusion
    --no-gradient-accumulation-fusion
)

TRAIN_ARGS=(
    --micro-batch-size "$MBS"
    --global-batch-size "$GBS"
    --lr 1.25e-6
    --min-lr 1.25e-7
    --lr-decay-style cosine
    --lr-warmup-fraction 0.01
    --weight-decay 1e-1
    --clip-grad 1.0
    --adam-beta1 0.9
    --adam-beta2 0.95
    --init-method-std 0.01
    --initial-loss-scale 4096
    --seed 1234
    --bf16
    --train-iters "$TRAIN_ITERS"
)

OUTPUT_ARGS=(
    --data-path "$DATA_PATH"
    --split 100,0,0
    --log-interval 1
    --save-interval "$TRAIN_ITERS"
    --eval-interval "$TRAIN_ITERS"
    --eval-iters 0
    --no-load-optim
    --no-load-rng
    --ckpt-format torch
)

launch pretrain_gpt.py \
    "${GPT_ARGS[@]}" \
    "${TRAIN_ARGS[@]}" \
    "${OUTPUT_ARGS[@]}" \
    --load "$CKPT_LOAD_DIR" \
    --save "$CKPT_SAVE_DIR" \
    --distributed-backend nccl \
    --transformer-impl local \
    "$@" |
    tee logs/train_mcore_qwen25_7b.log
