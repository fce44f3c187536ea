#!/usr/bin/env bash
# Agents of the frameworks that people use, each in an environment of its own: with two tools, streamed and not, they end
# with what their tools answered.
#
#   agent_frameworks.sh run [NAME]   per framework: make an environment, then run its tests there
#
# What cannot be installed is reported as skipped, with the reason; only a failing test fails.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly PYTHON=.venv/bin/python
readonly FOLDER=${FOLDER:-${XDG_CACHE_HOME:-$HOME/.cache}/raydix/agent_frameworks}
readonly INSTALL_S=${INSTALL_S:-300} TEST_S=${TEST_S:-300}

requirements() {
    case $1 in
        pydantic_ai) echo "pydantic-ai-slim[openai]==2.68.0" ;;
        langchain_openai) echo "langchain-openai==1.7.4 langgraph==1.2.24" ;;
        instructor) echo "instructor==1.17.0" ;;
        openai_agents) echo "openai-agents==0.24.0" ;;
        litellm) echo "litellm==1.110.2" ;;
        llama_index) echo "llama-index-core==0.14.25 llama-index-llms-openai-like==0.8.1" ;;
    esac
}

# Make the environment of framework $1. Prints the reason if that does not work.
make_environment() {
    local wanted folder=$FOLDER/$1
    wanted=$(requirements "$1")
    if [ -z "$wanted" ]; then
        echo "it is not one of those known here"
        return 1
    fi
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

run_environment() {
    local reason
    if ! reason=$(make_environment "$1"); then
        summary+=("$1: skipped, $reason")
        return 0
    fi
    OMP_NUM_THREADS=1 timeout "$TEST_S" "$FOLDER/$1/bin/python" -m pytest -q -W ignore -p no:cacheprovider \
        "tests/agent_frameworks/with_$1.py"
    local code=$?
    if [ $code = 0 ]; then summary+=("$1: passed"); else summary+=("$1: FAILED with code $code"); fi
    return $code
}

case ${1:-} in
    run)
        summary=() failed=0
        mkdir -p "$FOLDER"
        for name in ${2:-pydantic_ai langchain_openai instructor openai_agents litellm llama_index}; do
            run_environment "$name" || failed=1
        done
        printf 'agents of %s\n' "${summary[@]}"
        exit $failed
        ;;
    *)
        echo "usage: $0 run [NAME]" >&2
        exit 2
        ;;
esac
