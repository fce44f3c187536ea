#!/usr/bin/env bash
# JSON-Schema-Test-Suite, as the source of the package jsonschema has it.
#
#   schema_suite.sh run   fetch it, then compare what grammars take with what it says is valid
#
# If it cannot be fetched the comparison is skipped, with the reason.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly PYTHON=.venv/bin/python
readonly FOLDER=.venv/schema_suite
readonly WANTED="jsonschema==4.26.0"
readonly FETCH_S=${FETCH_S:-120}

fetch() {
    [ "$(cat "$FOLDER/fetched" 2> /dev/null)" = "$WANTED" ] && return 0
    rm -rf "$FOLDER"
    mkdir -p "$FOLDER"
    timeout "$FETCH_S" $PYTHON -m pip download --quiet --no-deps --no-binary :all: --dest "$FOLDER" "$WANTED" \
        > "$FOLDER.log" 2>&1 || return 1
    tar --extract --gzip --file "$FOLDER"/jsonschema-*.tar.gz --directory "$FOLDER" --strip-components 2 \
        --wildcards '*/json/tests' > "$FOLDER.log" 2>&1 || return 1
    echo "$WANTED" > "$FOLDER/fetched"
}

case ${1-} in
    run)
        if ! fetch; then
            echo "schema suite: skipped, $WANTED cannot be fetched: $(tail -n 1 "$FOLDER.log")"
            rm -rf "$FOLDER"
        fi
        exec $PYTHON -m pytest -q -rs tests/runtime/model/grammars/test_schema_suite.py
        ;;
    *)
        echo "usage: $0 run" >&2
        exit 2
        ;;
esac
