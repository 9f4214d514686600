#!/usr/bin/env bash
# Llama-2-7B, 4K sequences, 8 devices of one node: TP 1, PP 2, DP 4.
# Every value can be set from the environment; the shape must be that of the model in CKPT_LOAD_DIR.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

export HCCL_CONNECT_TIMEOUT=3600
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True

NPUS_PER_NODE=${NPUS_PER_NODE:-8}
CKPT_LOAD_DIR=${CKPT_LOAD_DIR:-./model_weights/llama-2-7b-mcore/}
CKPT_SAVE_DIR=${CKPT_SAVE_DIR:-./ckpt/llama-2-7b}
DATA_PATH=${DATA_PATH:-./dataset/alpaca_text_document}
TOKENIZER_PATH=${TOKENIZER_PATH:-./model_from_hf/llama-2-7b-hf/}

TP=${TP:-1}
PP=${PP:-2}
SEQ_LENGTH=${SEQ_LENGTH:-4096}
MBS=${MBS:-1}
GBS=${GBS:-256}
TRAIN_ITERS=${TRAIN_ITERS:-5000}
NUM_LAYERS=${NUM_LAYERS:-32}
HIDDEN_SIZE=${HIDDEN_SIZE:-4096}
FFN_HIDDEN_SIZE=${FFN_HIDDEN_SIZE:-11008}
NUM_HEADS=${NUM_HEADS:-32}
PADDED_VOCAB_SIZE=${PADDED_VOCAB_SIZE:-32000}

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
    --seq-length "$SEQ_LENGTH"
    --max-position-embeddings "$SEQ_LENGTH"
    --position-embedding-type rope
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --swiglu
    --disable-bias-linear
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
    --initial-loss-scale 65536
    --seed 1234
    --bf16
    --train-iters "$TRAIN_ITERS"
)

OUTPUT_ARGS=(
    --data-path "$DATA_PATH"
    --split 949,50,1
    --log-interval 1
    --save-interval "$TRAIN_ITERS"
    --eval-interval "$TRAIN_ITERS"
    --eval-iters 10
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
    tee logs/train_mcore_llama2_7b.log
