#!/usr/bin/env bash
# Lint, format, types and tests.
#
#   ./test.sh                 # the quick tests: about seven minutes on two cores
#   ./test.sh --all           # the slow ones too: what CI runs
#   ./test.sh --soak          # only those that run for minutes each: by command alone
#   ./test.sh --all -k tied   # other arguments go to pytest
#
# Needs Python >= 3.10 and pip. Makes .venv the first time; safe to run again. The exit status is 0
# only if everything passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source scripts/environment.sh

tests='not slow and not soak'
case "${1:-}" in
    --all) tests='not soak' && shift ;;
    --soak) tests='soak' && shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
esac

make_environment
python=$VENV/bin/python
failed=()
check() {
    local name=$1
    shift
    say "$name"
    run "$@" || failed+=("$name")
}

# Ranks share the cores; more threads than cores make every rank wait for the others.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Nothing is fetched from a model hub.
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

check 'lint' "$python" -m ruff check .
check 'format' "$python" -m ruff format --check .
check 'types' "$python" -m mypy
# Two processes: one for the tests of the rank pool, one for the others.
check "tests ($tests)" "$python" -m pytest --numprocesses 2 --dist loadgroup \
    --verbosity=0 --durations=15 -m "$tests" "$@"

if [ ${#failed[@]} -gt 0 ]; then
    printf '\nFAILED: %s\n' "${failed[@]}" >&2
    exit 1
fi
