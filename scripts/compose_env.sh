#!/bin/sh
# Writes .env for docker-compose.yml: .env.example with a fresh secret wherever it leaves a value empty.
# Does nothing where there is a .env already.
set -eu
cd "$(dirname "$0")/.."

if [ -e .env ]; then
    echo ".env exists and is left as it is"
    exit 0
fi

umask 077
while IFS= read -r line; do
    case $line in
        [A-Z]*=) echo "$line$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')" ;;
        *) echo "$line" ;;
    esac
done <.env.example >.env.unfinished
mv .env.unfinished .env
echo "wrote .env with fresh secrets; now: docker compose up"
