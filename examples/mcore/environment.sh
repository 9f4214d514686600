# Sourced by the scripts beside it: goes to the repository root, sets up Ascend where it is
# installed (elsewhere: CANN_ENV=/path/set_env.sh), and makes the folder of the logs. On CPU and
# CUDA nothing is needed. Paths in the scripts are relative to the repository root.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

for cann in /usr/local/Ascend/ascend-toolkit/set_env.sh \
    /usr/local/Ascend/cann/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh ${CANN_ENV:-}; do
    if [ -f "$cann" ]; then
        set +u # CANN's scripts read variables that may not be set
        source "$cann"
        set -u
    fi
done

mkdir -p logs

export CUDA_DEVICE_MAX_CONNECTIONS=1

# launch SCRIPT FLAGS: torchrun with NPUS_PER_NODE processes on each of NNODES nodes.
launch() {
    torchrun \
        --nproc_per_node "$NPUS_PER_NODE" \
        --nnodes "${NNODES:-1}" \
        --node_rank "${NODE_RANK:-0}" \
        --master_addr "${MASTER_ADDR:-localhost}" \
        --master_port "${MASTER_PORT:-6000}" \
        "$@"
}
