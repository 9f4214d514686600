#!/usr/bin/env bash
# Text from Qwen3-8B at TP 1, PP 2. Prompts: --prompt "..." after the script's name, or standard
# input. CHECKPOINT may be a Megatron checkpoint of any layout or a Hugging Face folder.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

NPUS_PER_NODE=${NPUS_PER_NODE:-2}
CHECKPOINT=${CHECKPOINT:-./model_weights/qwen3_mcore/}
TOKENIZER_PATH=${TOKENIZER_PATH:-./model_from_hf/qwen3_hf/}

TP=${TP:-1}
PP=${PP:-2}
SEQ_LENGTH=${SEQ_LENGTH:-4096}
NUM_LAYERS=${NUM_LAYERS:-36}
HIDDEN_SIZE=${HIDDEN_SIZE:-4096}
FFN_HIDDEN_SIZE=${FFN_HIDDEN_SIZE:-12288}
NUM_HEADS=${NUM_HEADS:-32}
NUM_QUERY_GROUPS=${NUM_QUERY_GROUPS:-8}
PADDED_VOCAB_SIZE=${PADDED_VOCAB_SIZE:-151936}

launch inference.py \
    --use-mcore-models \
    --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec \
    --tensor-model-parallel-size "$TP" \
    --pipeline-model-parallel-size "$PP" \
    --num-layers "$NUM_LAYERS" \
    --hidden-size "$HIDDEN_SIZE" \
    --ffn-hidden-size "$FFN_HIDDEN_SIZE" \
    --num-attention-heads "$NUM_HEADS" \
    --group-query-attention \
    --num-query-groups "$NUM_QUERY_GROUPS" \
    --qk-layernorm \
    --seq-length "$SEQ_LENGTH" \
    --max-position-embeddings "$SEQ_LENGTH" \
    --micro-batch-size 1 \
    --max-new-tokens "${MAX_NEW_TOKENS:-256}" \
    --padded-vocab-size "$PADDED_VOCAB_SIZE" \
    --make-vocab-size-divisible-by 1 \
    --rotary-base 1000000 \
    --position-embedding-type rope \
    --untie-embeddings-and-output-weights \
    --disable-bias-linear \
    --normalization RMSNorm \
    --norm-epsilon 1e-6 \
    --swiglu \
    --use-fused-swiglu \
    --use-fused-rmsnorm \
    --use-fused-rotary-pos-emb \
    --tokenizer-type PretrainedFromHF \
    --tokenizer-name-or-path "$TOKENIZER_PATH" \
    --tokenizer-not-use-fast \
    --load "$CHECKPOINT" \
    --exit-on-missing-checkpoint \
    --transformer-impl local \
    --ckpt-format torch \
    "$@" |
    tee logs/generate_mcore_qwen3_8b.log
