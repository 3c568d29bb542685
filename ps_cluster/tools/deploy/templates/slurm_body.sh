# This part is the same for every training. The variables that are set above: roles, logs, command, first_port, restarts,
# steady_s, never_retry.

# Slurm says how many tasks each node has room for, in the order of its list of nodes, as in 2(x3),1.
names=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
mapfile -t hosts <<< "$names"
host=0 room=()
for part in ${SLURM_TASKS_PER_NODE//,/ }; do
    nodes=1
    if [[ $part =~ ^([0-9]+)\(x([0-9]+)\)$ ]]; then part=${BASH_REMATCH[1]} nodes=${BASH_REMATCH[2]}; fi
    for (( ; nodes > 0; nodes--, host++)); do
        for ((number = 0; number < part; number++)); do room+=("${hosts[host]}"); done
    done
done

# Task number n runs on the node ${places[n]} and has its own port. Task number 0 is the leader.
tasks=() places=()
for role in "${roles[@]}"; do
    for ((index = 0; index < ${role#*:}; index++)); do
        place=${room[${#tasks[@]}]:-}
        if [ -z "$place" ]; then
            echo "Error: SLURM_TASKS_PER_NODE: got '$SLURM_TASKS_PER_NODE': too few for ${roles[*]}" >&2
            exit 2
        fi
        tasks+=("${role%:*}:$index")
        places+=("$place")
    done
done

cluster=""
for role in "${roles[@]}"; do
    addresses=""
    for number in "${!tasks[@]}"; do
        if [ "${tasks[number]%:*}" = "${role%:*}" ]; then
            addresses+="${addresses:+, }\"${places[number]}:$((first_port + number))\""
        fi
    done
    if [ "${role%:*}" != evaluator ]; then
        cluster+="${cluster:+, }\"${role%:*}\": [$addresses]"
    fi
done

set +e # from here on, the script looks at exit codes itself

# A signal ends `wait` early. Bash remembers the exit code of a process that has ended, so the last call returns it.
wait_for() { # PID
    wait "$1"
    while kill -0 "$1" 2>/dev/null; do wait "$1"; done
    wait "$1"
}

# Stop the leader, which is on the first node, like this script. `srun` would not pass SIGTERM on, but kill the step.
# Signal it only once: a second SIGTERM would end a leader that drains.
# shellcheck disable=SC2329 # it is invoked by `trap`
stop_leader() {
    if [ -n "$stopping" ]; then return; fi
    stopping=yes
    local leader=""
    read -r leader 2>/dev/null < "$process"
    kill -TERM "${leader:-$step}" 2>/dev/null # there is no file yet: the step is just starting
}

is_never_retried() { # EXIT_CODE
    [[ " ${never_retry[*]} " == *" $1 "* ]]
}

# Run a task, and run it again until it has succeeded (0), must not be retried, or is stopped. `restarts` limits the restarts
# in a row: their count begins again after the task has run for steady_s.
keep() { # NUMBER
    local kind=${tasks[$1]%:*} index=${tasks[$1]#*:} code=75 tries=0 began=0 step="" stopping=""
    local process=$logs/$kind-$index.pid
    [ "$1" != 0 ] || trap stop_leader TERM
    while [ -z "$stopping" ]; do
        rm -f "$process"
        began=$SECONDS
        # shellcheck disable=SC2016 # the step's own pid
        TF_CONFIG="{\"cluster\": {$cluster}, \"task\": {\"type\": \"$kind\", \"index\": $index}}" \
            srun --nodes=1 --ntasks=1 --exact --cpus-per-task="$SLURM_CPUS_PER_TASK" --nodelist="${places[$1]}" \
            --job-name="$kind-$index" --output="$logs/$kind-$index.log" --open-mode=append --input=none \
            bash -c 'echo "$$" > "$0"; exec "$@"' "$process" "${command[@]}" &
        step=$!
        [ -z "$stopping" ] || kill -TERM "$step" # the signal came before there was a step
        wait_for "$step"
        code=$?
        step=""
        [ "$code" != 0 ] || break
        echo "$kind-$index has ended with exit code $code"
        ! is_never_retried "$code" || break
        [ ! -e "$refused" ] || break
        ((SECONDS - began < steady_s)) || tries=0
        if ((++tries > restarts)); then break; fi
        [ -n "$stopping" ] || sleep 1
    done
    rm -f "$process"
    if [ "$code" = 2 ] && [ "$1" != 0 ]; then end_leader; fi
    exit "$code"
}

# End the job, because a task refuses its input or its port. The other tasks would only wait for that task.
end_leader() {
    : > "$refused"
    local leader
    for _ in {1..100}; do # the leader's step may be just starting
        if read -r leader 2>/dev/null < "$leader_process" && kill -TERM "$leader" 2>/dev/null; then return; fi
        sleep 0.1
    done
}

pids=() stopping=""
refused=$logs/refused leader_process=$logs/${tasks[0]/:/-}.pid
rm -f "$refused" "$leader_process"
# Slurm sends a signal before it takes the nodes. The leader then drains the training and writes a snapshot. For that it
# needs the other tasks.
trap 'stopping=yes; [ ${#pids[@]} = 0 ] || kill -TERM "${pids[0]}" 2>/dev/null' TERM
for number in "${!tasks[@]}"; do
    keep "$number" &
    pids+=("$!")
done
[ -z "$stopping" ] || kill -TERM "${pids[0]}" 2>/dev/null

wait_for "${pids[0]}"
code=$?
[ ! -e "$refused" ] || code=2
if [ "$code" = 0 ] && [ -z "$stopping" ]; then
    if [ "${tasks[-1]}" = evaluator:0 ]; then
        wait_for "${pids[-1]}"
        code=$?
    fi
    for _ in {1..50}; do [ -z "$(jobs -r)" ] || sleep 0.1; done # the leader has told the other tasks to end
fi

# When this script ends or is requeued, Slurm stops all steps that are left: first by SIGTERM, then by SIGKILL. Meanwhile,
# nothing may restart a step, or take the place of its successor.
mapfile -t left < <(jobs -rp)
disown -a
kill -KILL "${left[@]}" 2>/dev/null
if [ "$code" != 0 ] && [ -n "$stopping" ] && ! is_never_retried "$code"; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
