#!/usr/bin/env bash
# Tests of the Triton kernels without a GPU, under Triton's interpreter, in an environment of their own: its pins are
# older than those of constraints.txt. If they cannot be installed that is reported as skipped; only a failing test fails.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly FOLDER=${FOLDER:-.venv/interpreter}
readonly INSTALL_S=${INSTALL_S:-300} TEST_S=${TEST_S:-1200}
WANTED="--no-deps $(.venv/bin/python -c "import tomllib; \
print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['interpreter'])")"
readonly WANTED

if [ "$(cat "$FOLDER/installed" 2> /dev/null)" != "$WANTED" ]; then
    rm -rf "$FOLDER"
    if ! PYTHONPATH=. .venv/bin/python -c "import sys; from pathlib import Path; from tests.clean_venv import make_clean_venv; \
make_clean_venv(Path(sys.argv[1]))" "$FOLDER" > "$FOLDER.log" 2>&1; then
        echo "kernels under the interpreter: skipped, no virtual environment can be made: $(tail -n 1 "$FOLDER.log")"
        exit 0
    fi
    # shellcheck disable=SC2086
    if ! timeout "$INSTALL_S" "$FOLDER/bin/python" -m pip install --quiet $WANTED > "$FOLDER.log" 2>&1; then
        echo "kernels under the interpreter: skipped, cannot be installed. $(grep -i error "$FOLDER.log" | tail -n 1)"
        exit 0
    fi
    echo "$WANTED" > "$FOLDER/installed"
fi
TRITON_INTERPRET=1 PYTHONPATH=. timeout "$TEST_S" "$FOLDER/bin/python" -m pytest -q -m "not gpu" -n "$(nproc)" \
    -W ignore::RuntimeWarning tests/kernels tests/moe/test_dispatch_symmetric.py # NaN and infinities are meant
