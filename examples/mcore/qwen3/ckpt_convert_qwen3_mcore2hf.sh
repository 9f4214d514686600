#!/usr/bin/env bash
# A Megatron checkpoint, at whatever layout it was saved, to a Hugging Face folder.
# HF_CFG_DIR is the original model's folder, which gives config.json and the tokenizer.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

LOAD_DIR=${LOAD_DIR:-./model_weights/qwen3_mcore/}
SAVE_DIR=${SAVE_DIR:-./hf_weights/qwen3_hf/}
HF_CFG_DIR=${HF_CFG_DIR:-./origin_hf_cfg}

python convert_ckpt_v2.py \
    --load-model-type mg \
    --save-model-type hf \
    --load-dir "$LOAD_DIR" \
    --save-dir "$SAVE_DIR" \
    --hf-cfg-dir "$HF_CFG_DIR" \
    --model-type-hf qwen3 \
    "$@"
