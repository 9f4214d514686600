#!/usr/bin/env bash
# Qwen3-8B, 4K sequences, 16 devices of one A3 node: TP 2, PP 1, DP 8. Otherwise as the 8-device
# script, whose variables can be set here too.
set -euo pipefail

export NPUS_PER_NODE=${NPUS_PER_NODE:-16}
export TP=${TP:-2}
export PP=${PP:-1}
export GBS=${GBS:-128}
export LOG=${LOG:-logs/train_mcore_qwen3_8b_A3.log}

exec bash "$(dirname "${BASH_SOURCE[0]}")/pretrain_qwen3_8b_4K_ptd.sh" "$@"
