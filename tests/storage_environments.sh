#!/usr/bin/env bash
# Tests of storage backends, and of pulls by NIXL, that `make test` cannot run, because their libraries are no dependencies of Raydix.
#
#   storage_environments.sh run [NAME]   per backend: make an environment, then run its tests there
#   storage_environments.sh run pulls    tests of pulls in NIXL's environment; by name alone, as UCX's processes keep cores busy
#
# What cannot be installed is reported as skipped, with the reason; only a failing test fails.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly PYTHON=.venv/bin/python
readonly FOLDER=.venv/storage
readonly INSTALL_S=${INSTALL_S:-300} TEST_S=${TEST_S:-600}

requirements() {
    case $1 in
        s3) echo "obstore==0.12.1 moto[server]==5.2.5" ;;
        mooncake) echo "mooncake-transfer-engine-non-cuda==0.3.13.post1" ;;
        # Their dependencies would bring torch for CUDA; .venv has what they need of them.
        nixl) echo "--no-deps nixl==1.5.1 nixl-cu13==1.5.1" ;;
        aibrix)
            echo "--no-deps aibrix-kvcache==0.8.0 cityhash more-itertools msgspec netifaces nvtx redis==6.0.0" \
                "rocksdict==0.3.29 sortedcontainers tqdm validators zstandard"
            ;;
    esac
}

# Make the environment of backend $1. Prints the reason if that does not work.
make_environment() {
    local wanted folder=$FOLDER/$1
    wanted=$(requirements "$1")
    [ "$(cat "$folder/installed" 2> /dev/null)" = "$wanted" ] && return 0
    rm -rf "$folder"
    if ! PYTHONPATH=. $PYTHON -c "import sys; from pathlib import Path; from tests.clean_venv import make_clean_venv; \
make_clean_venv(Path(sys.argv[1]))" "$folder" > "$folder.log" 2>&1; then
        echo "no virtual environment can be made: $(tail -n 1 "$folder.log")"
        return 1
    fi
    # shellcheck disable=SC2086
    if ! timeout "$INSTALL_S" "$folder/bin/python" -m pip install --quiet $wanted > "$folder.log" 2>&1; then
        echo "cannot be installed within $INSTALL_S s. $(grep -i error "$folder.log" | tail -n 1)"
        return 1
    fi
    echo "$wanted" > "$folder/installed"
}

# Print why backend $1 cannot be used in its environment, and nothing if it can.
why_unusable() {
    "$FOLDER/$1/bin/python" -m raydix doctor --json | "$PYTHON" -c "import json, sys
for found in json.load(sys.stdin):
    if found['subject'] == 'storage: $1' and not found['ok']:
        print(found['detail'])"
}

tests_of() {
    case $1 in
        pulls) echo "tests/runtime/actors/pulls" ;;
        *)
            echo "tests/runtime/storage tests/plugins/storage tests/exactness/test_corruption.py tests/exactness/test_storage_backends.py" \
                "tests/exactness/test_storage_faults.py"
            ;;
    esac
}

# Run the tests for $2 in the environment of backend $1.
run_environment() {
    local reason
    reason=$(make_environment "$1") && reason=$(why_unusable "$1")
    if [ -n "$reason" ]; then
        summary+=("$1: skipped, $reason")
        return 0
    fi
    # shellcheck disable=SC2046
    OMP_NUM_THREADS=1 timeout "$TEST_S" "$FOLDER/$1/bin/python" -m pytest -q -p no:cacheprovider -k "$1" $(tests_of "$2")
    local code=$?
    if [ $code = 0 ]; then summary+=("$2: passed"); else summary+=("$2: FAILED with code $code"); fi
    return $code
}

case ${1:-} in
    run)
        summary=() failed=0
        mkdir -p "$FOLDER"
        for name in ${2:-s3 mooncake nixl aibrix}; do
            run_environment "${name/pulls/nixl}" "$name" || failed=1
        done
        printf 'storage backend %s\n' "${summary[@]}"
        exit $failed
        ;;
    *)
        echo "usage: $0 run [NAME]" >&2
        exit 2
        ;;
esac
