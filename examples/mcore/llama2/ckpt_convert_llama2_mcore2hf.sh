#!/usr/bin/env bash
# A Megatron checkpoint, at whatever layout it was saved, to a Hugging Face folder.
# HF_CFG_DIR is the original model's folder, which gives config.json and the tokenizer.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

LOAD_DIR=${LOAD_DIR:-./model_weights/llama-2-7b-mcore/}
SAVE_DIR=${SAVE_DIR:-./hf_weights/llama-2-7b-hf/}
HF_CFG_DIR=${HF_CFG_DIR:-./model_from_hf/llama-2-7b-hf/}

python convert_ckpt_v2.py \
    --load-model-type mg \
    --save-model-type hf \
    --load-dir "$LOAD_DIR" \
    --save-dir "$SAVE_DIR" \
    --hf-cfg-dir "$HF_CFG_DIR" \
    --model-type-hf llama2 \
    "$@"
