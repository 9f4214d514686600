#!/usr/bin/env bash
# Raw text to Megatron's indexed data set: $OUTPUT_PREFIX_text_document.{bin,idx}.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

INPUT=${INPUT:-./dataset/train-00000-of-00042-d964455e17e96d5a.parquet}
TOKENIZER_PATH=${TOKENIZER_PATH:-./model_from_hf/qwen3_hf/}
OUTPUT_PREFIX=${OUTPUT_PREFIX:-./dataset/enwiki}

python ./preprocess_data.py \
    --input "$INPUT" \
    --tokenizer-name-or-path "$TOKENIZER_PATH" \
    --tokenizer-type PretrainedFromHF \
    --handler-name GeneralPretrainHandler \
    --output-prefix "$OUTPUT_PREFIX" \
    --json-keys text \
    --workers 4 \
    --log-interval 1000 \
    "$@"
