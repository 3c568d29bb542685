# Run a task, and run it again after a failure: sh retry.sh RESTARTS COMMAND...
#
# With the policy ExitCode a TFJob has failed at any exit code from 1 to 127, and a pod that ended with a higher one is
# replaced without end. So a task is run again here, RESTARTS times. The operator gets only codes that mean to it what is
# meant: 0, 2 (bad input), 3 (a newer leader), 1 (too many failures); 143, if Kubernetes ended the container.
set -u
restarts=$1
shift
task="" stopping="" told=""

# Only once: a second SIGTERM would end a leader that drains.
tell() {
    if [ -n "$task" ] && [ -z "$told" ]; then
        told=yes
        kill -TERM "$task" 2>/dev/null
    fi
}
trap 'stopping=yes; tell' TERM

while [ -z "$stopping" ]; do
    "$@" &
    task=$!
    [ -z "$stopping" ] || tell # the signal came before there was a task
    wait "$task"
    code=$?
    while kill -0 "$task" 2>/dev/null; do # a signal ends `wait` early
        wait "$task"
        code=$?
    done
    task=""
    case $code in 0 | 2 | 3) exit "$code" ;; esac
    [ -z "$stopping" ] || break
    echo "the task has ended with exit code $code; it may be run again $restarts times"
    [ "$restarts" -gt 0 ] || exit 1
    restarts=$((restarts - 1))
    sleep 1
done
exit 143
