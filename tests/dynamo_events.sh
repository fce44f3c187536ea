#!/usr/bin/env bash
# KV events as Dynamo's SelectionService reads them, in an environment of its own.
#
#   dynamo_events.sh run   make the environment, then run the tests of KV events, which compare with it
#
# If it cannot be installed the comparison is skipped, with the reason. It has what benchmarks need, too:
# `python -m benchmarks.routing --dynamo .venv/dynamo/bin/python`.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly PYTHON=.venv/bin/python
readonly FOLDER=.venv/dynamo
readonly WANTED="ai-dynamo-runtime==1.6.1 pyzmq msgpack"
readonly INSTALL_S=${INSTALL_S:-300}

make_environment() {
    [ "$(cat "$FOLDER/installed" 2> /dev/null)" = "$WANTED" ] && return 0
    rm -rf "$FOLDER"
    # Not on top of ours: it brings versions of its own.
    $PYTHON -m venv "$FOLDER" > "$FOLDER.log" 2>&1 || return 1
    timeout "$INSTALL_S" "$FOLDER/bin/python" -m pip install --quiet $WANTED > "$FOLDER.log" 2>&1 || return 1
    echo "$WANTED" > "$FOLDER/installed"
}

case ${1-} in
    run)
        if ! make_environment; then
            echo "dynamo: skipped, $WANTED cannot be installed: $(tail -n 1 "$FOLDER.log")"
            rm -rf "$FOLDER"
        fi
        exec $PYTHON -m pytest -q -rs tests/runtime/test_kv_events.py
        ;;
    *)
        echo "usage: $0 run" >&2
        exit 2
        ;;
esac
