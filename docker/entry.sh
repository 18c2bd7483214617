#!/bin/sh
# What every container starts with: permafrost-entry COMMAND [ARGUMENT...]
#
# A secret may come in a file: NAME_FILE=FILE sets NAME to what FILE holds. Then COMMAND runs. At SIGTERM it has 1.8
# seconds to end by itself, which `permafrost` does; Dask's worker would wait for its task, Prefect's server for whoever
# listens. Whatever was committed is kept in both cases.
set -eu

for name in PREFECT_SERVER_DATABASE_PASSWORD PREFECT_SERVER_API_AUTH_STRING PREFECT_API_AUTH_STRING \
    AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY HF_TOKEN; do
    eval "file=\${${name}_FILE-}"
    if [ -n "$file" ]; then
        if ! secret=$(cat "$file"); then
            echo "${name}_FILE is '$file', which user $(id -u) cannot read: mount it, or let that user read it" >&2
            exit 2
        fi
        if [ -z "$secret" ]; then
            echo "${name}_FILE is '$file', which is empty: write the secret into it" >&2
            exit 2
        fi
        export "$name=$secret"
        unset "${name}_FILE"
    fi
done

exec timeout --foreground --kill-after=1.8 0 "$@"
