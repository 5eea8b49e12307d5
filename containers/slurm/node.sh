#!/usr/bin/env bash
# What grpo.sbatch starts on a node, inside the container where there is one:
#
#   node.sh head LOG RECIPE WORDS...   Ray's head, and when all nodes have joined, the recipe
#   node.sh worker                     Ray, until the job ends it
#
# A preemption sends SIGTERM to every process of a node at once. The recipe then ends its step and
# saves, for which it needs Ray and its own children: so all of them have that signal blocked, and the
# recipe is told by SIGINT.
set -euo pipefail

python=${NEMO_RL_PYTHON:-python}
if ! reason=$("$python" -c '' 2>&1); then
    echo "error: on $(hostname) $python does not start: ${reason##*$'\n'}" >&2
    echo "  NeMo-RL's image has it below /root: with Apptainer start the image with --fakeroot; without a container name it in NEMO_RL_PYTHON" >&2
    exit 1
fi
ray=$(dirname "$(command -v "$python")")/ray
ray_start=(env --block-signal=TERM "$ray" start --block --disable-usage-stats
    --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --num-cpus="$SLURM_CPUS_ON_NODE")

head() {
    local log=$1
    shift
    setsid "${ray_start[@]}" --head --node-ip-address="$EQUIPOISE_RAY_HEAD" --port="$EQUIPOISE_RAY_PORT" \
        --include-dashboard=false >"$log" 2>&1 &
    ray_pid=$!
    trap end_ray EXIT
    wait_for_nodes "$log"
    env --block-signal=TERM "$python" "$@" &
    local driver=$! code
    trap 'kill -INT "$driver"' TERM
    while true; do
        wait "$driver" && code=0 || code=$?
        kill -0 "$driver" 2>/dev/null || break
    done
    # A failure with fewer nodes than there were is that of a node (EX_TEMPFAIL of sysexits.h).
    [ "$code" -ne 1 ] || [ "$(joined)" -ge "$SLURM_JOB_NUM_NODES" ] || code=75
    exit "$code"
}

# A Ray that is killed leaves a file by which a later one on this node would look for it.
end_ray() {
    kill -KILL -- "-$ray_pid" 2>/dev/null || true
    local file=/tmp/ray/ray_current_cluster
    if grep -qsxF "$RAY_ADDRESS" "$file"; then rm -f "$file"; fi
}

# A node that is slow to join is waited for; a Ray that has ended is not.
wait_for_nodes() {
    local log=$1 seconds=600
    local deadline=$((SECONDS + seconds))
    until [ "$(joined)" -ge "$SLURM_JOB_NUM_NODES" ]; do
        if ! kill -0 "$ray_pid" 2>/dev/null; then
            echo "error: Ray's head did not start; the end of $log:" >&2
            tail -n 20 "$log" >&2
            exit 1
        fi
        if [ "$SECONDS" -gt "$deadline" ]; then
            echo "error: $(joined) of $SLURM_JOB_NUM_NODES nodes have joined Ray within $seconds seconds; see the logs beside $log" >&2
            exit 1
        fi
        sleep 2
    done
    echo "== all $SLURM_JOB_NUM_NODES nodes have joined"
}

# How many nodes Ray has now.
joined() {
    "$ray" status 2>/dev/null | grep -c '^ 1 node_' || true
}

case $1 in
    head) head "${@:2}" ;;
    worker)
        trap '' TERM
        # The head may be slow to come up, or too busy to answer in Ray's time.
        for _ in 1 2 3; do
            "${ray_start[@]}" --address="$RAY_ADDRESS" && break
            sleep 5
        done
        exit 1
        ;;
esac
