#!/usr/bin/env bash
# A real language model through the whole chain on this machine: preprocess, convert, train on two
# processes, resume at another layout, convert back, check, generate.
#
#   ./quickstart.sh                      # everything, in ./quickstart
#   ./quickstart.sh --iterations 30      # arguments go to `mindspeed-llm quickstart`
#
# Needs Python >= 3.10 and pip. Makes .venv the first time; safe to run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source scripts/environment.sh

make_environment
say "mindspeed-llm quickstart $*"
exec "$VENV/bin/mindspeed-llm" quickstart "$@"
