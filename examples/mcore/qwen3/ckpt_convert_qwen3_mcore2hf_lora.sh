#!/usr/bin/env bash
# A Megatron base and a LoRA adapter, merged, to a Hugging Face folder. Rank, alpha and layers are
# read from the adapter; flags that contradict it are an error.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

LOAD_DIR=${LOAD_DIR:-./model_weights/qwen3_mcore/}
LORA_LOAD=${LORA_LOAD:-./ckpt/qwen3_lora}
SAVE_DIR=${SAVE_DIR:-./hf_weights/qwen3_lora_hf/}
HF_CFG_DIR=${HF_CFG_DIR:-./model_from_hf/qwen3_hf/}

python convert_ckpt_v2.py \
    --load-model-type mg \
    --save-model-type hf \
    --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2 \
    --load-dir "$LOAD_DIR" \
    --lora-load "$LORA_LOAD" \
    --save-dir "$SAVE_DIR" \
    --hf-cfg-dir "$HF_CFG_DIR" \
    --model-type-hf qwen3 \
    "$@"
