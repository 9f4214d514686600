#!/usr/bin/env bash
# Hugging Face weights to a Megatron checkpoint. TP and PP need not be those of the training run:
# training, generation and conversion load a checkpoint at any layout.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

TP=${TP:-1}
PP=${PP:-4}
LOAD_DIR=${LOAD_DIR:-./model_from_hf/qwen2.5-7b-hf/}
SAVE_DIR=${SAVE_DIR:-./model_weights/qwen2.5_mcore/}

python convert_ckpt_v2.py \
    --load-model-type hf \
    --save-model-type mg \
    --target-tensor-parallel-size "$TP" \
    --target-pipeline-parallel-size "$PP" \
    --load-dir "$LOAD_DIR" \
    --save-dir "$SAVE_DIR" \
    --model-type-hf qwen25 \
    "$@"
