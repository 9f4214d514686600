#!/usr/bin/env bash
# Raw text to Megatron's indexed data set: $OUTPUT_PREFIX_text_document.{bin,idx}.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

INPUT=${INPUT:-./dataset/train-00000-of-00001-a09b74b3ef9c3b56.parquet}
TOKENIZER_PATH=${TOKENIZER_PATH:-./model_from_hf/llama-2-7b-hf/}
OUTPUT_PREFIX=${OUTPUT_PREFIX:-./dataset/alpaca}

python ./preprocess_data.py \
    --input "$INPUT" \
    --tokenizer-name-or-path "$TOKENIZER_PATH" \
    --output-prefix "$OUTPUT_PREFIX" \
    --tokenizer-type PretrainedFromHF \
    --workers 4 \
    --log-interval 1000 \
    "$@"
