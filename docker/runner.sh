#!/bin/sh
# A worker of Prefect that ends with its runs told first: permafrost-runner COMMAND [ARGUMENT...]
#
# At SIGTERM the worker kills its runs at once, and the server takes them for running ever after. Asked first, a run ends
# within one and a half seconds and says so.
set -eu

# A shell has its background processes ignore SIGINT, by which the worker ends.
env --default-signal=INT "$@" &
worker=$!

now() { date +%s%3N; }

# Wait until these processes are gone, so many milliseconds at most.
await() {
    end=$(($(now) + $1))
    shift
    while [ "$(now)" -lt "$end" ]; do
        alive=
        for process in "$@"; do
            # One that has ended and was not yet waited for is there, too.
            if grep -q '^State:[[:space:]]*[^ZX]' "/proc/$process/status" 2>/dev/null; then alive=yes; fi
        done
        if [ -z "$alive" ]; then return; fi
        sleep 0.05
    done
}

# Send a signal to those of these processes that are there.
tell() {
    signal=$1
    shift
    for process in "$@"; do
        kill "-$signal" "$process" 2>/dev/null || true
    done
}

# shellcheck disable=SC2086  # of $runs: one word each
stop() {
    trap '' TERM
    runs=$(cat "/proc/$worker/task/"*/children 2>/dev/null) || runs=
    tell TERM $runs
    await 1400 $runs
    tell TERM "$worker"
    await 150 "$worker"
    tell KILL "$worker" $runs
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
