#!/usr/bin/env bash
# Hugging Face weights to a Megatron checkpoint, with the older command line ("llama2 with biases"
# is Qwen2). TP and PP need not be those of the training run: training, generation and conversion
# load a checkpoint at any layout.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

TP=${TP:-1}
PP=${PP:-4}
LOAD_DIR=${LOAD_DIR:-./model_from_hf/qwen2.5-7b-hf/}
SAVE_DIR=${SAVE_DIR:-./model_weights/qwen2.5_mcore/}

python convert_ckpt.py \
    --use-mcore-models \
    --model-type GPT \
    --load-model-type hf \
    --save-model-type mg \
    --target-tensor-parallel-size "$TP" \
    --target-pipeline-parallel-size "$PP" \
    --add-qkv-bias \
    --load-dir "$LOAD_DIR" \
    --save-dir "$SAVE_DIR" \
    --tokenizer-model "${LOAD_DIR%/}/tokenizer.json" \
    --model-type-hf llama2 \
    --params-dtype bf16 \
    "$@"
