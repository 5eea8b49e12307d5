#!/usr/bin/env bash
# grpo.sbatch starts this on each node, inside the container if there is one:
#
#   node.sh head LOG RECIPE WORDS...   Ray's head, and when all nodes have joined, the recipe
#   node.sh worker                     Ray, until the job ends it
#
# A preemption sends SIGTERM to every process of a node at once. The recipe then ends its step and
# saves, for which it needs Ray and its own children: so all of them have that signal blocked, and
# the recipe gets SIGINT in its place.
set -euo pipefail

lost_node=75 # EX_TEMPFAIL of sysexits.h

python=${NEMO_RL_PYTHON:-python}
if ! reason=$("$python" -c '' 2>&1); then
    echo "error: on $(hostname) $python does not start: ${reason##*$'\n'}" >&2
    echo "  NeMo-RL's image has it below /root: with Apptainer start the image with --fakeroot; without a container name it in NEMO_RL_PYTHON" >&2
    exit 1
fi
ray=$(dirname "$(command -v "$python")")/ray
# Worker ports are those of NeMo-RL's main: below the ports that Linux hands out, and outside the
# ranges in which v0.7.0 looks for ports of vLLM, NeMo Gym and torch. Without Slurm's count of GPUs
# Ray counts them itself.
ray_start=(env --block-signal=TERM "$ray" start --block --disable-usage-stats
    --min-worker-port=2000 --max-worker-port=2999
    --num-cpus="$SLURM_CPUS_ON_NODE" ${SLURM_GPUS_ON_NODE:+--num-gpus="$SLURM_GPUS_ON_NODE"})

raise_file_limit() {
    if ! ulimit -Sn 65535 2>/dev/null; then
        ulimit -Sn "$(ulimit -Hn)"
        echo "warning: $(hostname) allows $(ulimit -Hn) open files; Ray recommends 65535" >&2
    fi
}

# NeMo-RL binds the worker of a GPU to these CPUs and their memory, see its numa_utils.py.
write_gpu_affinity() {
    local gpu bus cpus
    nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader 2>/dev/null |
        while IFS=', ' read -r gpu bus; do
            bus=${bus,,} # 00000000:1B:00.0, of which the kernel writes four zeros
            cpus=$(cat "/sys/bus/pci/devices/${bus: -12}/local_cpulist") || continue
            echo "$gpu:$cpus"
        done >"${NRL_GPU_CPU_AFFINITY_FILE:-/tmp/nrl_gpu_cpu_affinity}" || true
}

head() {
    log=$1
    shift
    start_head
    trap end_ray EXIT
    wait_for_nodes
    env --block-signal=TERM "$python" "$@" &
    local driver=$! code
    trap 'kill -INT "$driver"' TERM
    while true; do
        wait "$driver" && code=0 || code=$?
        kill -0 "$driver" 2>/dev/null || break
    done
    # A failure with fewer nodes than there were is that of a node.
    if [ "$code" -eq 1 ] && [ "$(joined)" -lt "$SLURM_JOB_NUM_NODES" ]; then
        code=$lost_node
    fi
    exit "$code"
}

start_head() {
    setsid "${ray_start[@]}" --head --node-ip-address="$EQUIPOISE_RAY_HEAD" \
        --port="$EQUIPOISE_RAY_PORT" --ray-client-server-port=1201 --include-dashboard=false \
        >>"$log" 2>&1 &
    ray_pid=$!
}

# A Ray that is killed leaves a file by which a later one on this node would look for it.
end_ray() {
    kill -KILL -- "-$ray_pid" 2>/dev/null || true
    local file=${RAY_TMPDIR:-${TMPDIR:-/tmp}}/ray/ray_current_cluster
    if grep -qsxF "$RAY_ADDRESS" "$file"; then
        rm -f "$file"
    fi
}

# Half an hour, for a node may have to import the image. Ray's start is tried three times.
wait_for_nodes() {
    local starts=1 look
    for ((look = 0; look < 300; look++)); do
        if [ "$(joined)" -ge "$SLURM_JOB_NUM_NODES" ]; then
            echo "== all $SLURM_JOB_NUM_NODES nodes have joined"
            touch "$EQUIPOISE_RAY_JOINED"
            return
        fi
        if ! kill -0 "$ray_pid" 2>/dev/null; then
            if [ "$starts" -eq 3 ]; then
                echo "error: Ray's head did not start in three tries; the end of $log:" >&2
                tail -n 20 "$log" >&2
                exit "$lost_node"
            fi
            starts=$((starts + 1))
            echo "== Ray's head has ended; try $starts of 3"
            end_ray
            start_head
        fi
        sleep 5
    done
    echo "error: $(joined) of $SLURM_JOB_NUM_NODES nodes have joined Ray in half an hour; see the logs beside $log" >&2
    exit "$lost_node"
}

# How many nodes Ray has now.
joined() {
    "$ray" status 2>/dev/null | grep -c '^ 1 node_' || true
}

# A node whose Ray has ended after all had joined is lost: training does not take it back.
worker() {
    trap '' TERM
    for _ in {1..20}; do
        until (: <"/dev/tcp/$EQUIPOISE_RAY_HEAD/$EQUIPOISE_RAY_PORT") 2>/dev/null; do
            sleep 5
        done
        "${ray_start[@]}" --address="$RAY_ADDRESS" || true
        if [ -e "$EQUIPOISE_RAY_JOINED" ]; then break; fi
        sleep 10
    done
    exit 1
}

raise_file_limit
write_gpu_affinity
"$@"
