#!/bin/sh
# A worker of Prefect that ends with its runs told first: permafrost-runner COMMAND [ARGUMENT...]
#
# At SIGTERM the worker kills its runs at once, and the server takes them for running ever after. Asked first, a run ends
# within one and a half seconds and says so.
set -eu

# A shell has its background processes ignore SIGINT, by which the worker ends.
env --default-signal=INT "$@" &
worker=$!

# Wait until these processes are gone, so many tenths of a second at most.
await() {
    tenths=$1
    shift
    while [ "$tenths" -gt 0 ]; do
        alive=
        for process in "$@"; do
            # One that has ended and was not yet waited for is there, too.
            if grep -q '^State:[[:space:]]*[^ZX]' "/proc/$process/status" 2>/dev/null; then alive=yes; fi
        done
        if [ -z "$alive" ]; then return; fi
        sleep 0.1
        tenths=$((tenths - 1))
    done
}

stop() {
    trap '' TERM
    runs=$(cat "/proc/$worker/task/"*/children 2>/dev/null) || runs=
    for run in $runs; do
        kill -TERM "$run" 2>/dev/null || true
    done
    # shellcheck disable=SC2086  # one word each
    await 14 $runs
    kill -TERM "$worker" 2>/dev/null || true
    await 2 "$worker"
    kill -KILL "$worker" 2>/dev/null || true
}
trap stop TERM

# The first wait ends with a signal, too.
status=0
wait "$worker" || status=$?
if kill -0 "$worker" 2>/dev/null; then
    status=0
    wait "$worker" || status=$?
fi
exit "$status"
