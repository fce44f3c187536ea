#!/usr/bin/env bash
# Tests of kernels on a GPU under compute-sanitizer, which finds what they read or write beyond their own memory. Without
# compute-sanitizer or a GPU that is reported as skipped. Arguments are files of tests, in place of those below.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TESTS=(
    tests/kernels/attention/test_decode_shares.py
    tests/kernels/attention/test_paged_decode.py
    tests/kernels/attention/test_paged_prefill.py
    tests/kernels/fp8
    tests/kernels/int4
    tests/kernels/kv_cache/test_kv_write.py
    tests/kernels/pages/test_page_copy.py
    tests/runtime/tiers/test_cuda_transfers.py
)

if ! command -v compute-sanitizer > /dev/null; then
    echo "kernels under memcheck: skipped, compute-sanitizer is not installed (it comes with the CUDA toolkit)"
    exit 0
fi
if ! .venv/bin/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    echo "kernels under memcheck: skipped, torch finds no GPU"
    exit 0
fi
if [ $# -eq 0 ]; then set -- "${TESTS[@]}"; fi
exec compute-sanitizer --tool memcheck --error-exitcode 1 .venv/bin/python -m pytest -q -m gpu "$@"
