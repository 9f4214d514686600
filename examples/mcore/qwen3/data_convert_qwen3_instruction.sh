#!/usr/bin/env bash
# Instructions in Alpaca's form to training data: ${OUTPUT_PREFIX}_packed_*_document.{bin,idx}.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

INPUT=${INPUT:-./dataset/train-00000-of-00001-a09b74b3ef9c3b56.parquet}
TOKENIZER_PATH=${TOKENIZER_PATH:-./model_from_hf/qwen3_hf/}
OUTPUT_PREFIX=${OUTPUT_PREFIX:-./finetune_dataset/alpaca}

python ./preprocess_data.py \
    --input "$INPUT" \
    --tokenizer-name-or-path "$TOKENIZER_PATH" \
    --tokenizer-type PretrainedFromHF \
    --handler-name AlpacaStyleInstructionHandler \
    --output-prefix "$OUTPUT_PREFIX" \
    --enable-thinking true \
    --prompt-type qwen3 \
    --workers 4 \
    --log-interval 1000 \
    "$@"
