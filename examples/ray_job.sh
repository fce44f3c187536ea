#!/usr/bin/env bash
# Submit a checkout to a running Ray cluster and generate there. Nothing of Raydix needs to be installed on the cluster. If
# its Python lacks what Raydix needs, let Ray install that for the job:
#
#     RAY_ADDRESS=http://HEAD:8265 examples/ray_job.sh CONFIG_OR_FOLDER "PROMPT"
#     RAY_ADDRESS=http://HEAD:8265 RUNTIME_ENV=examples/runtime_env.yaml examples/ray_job.sh CONFIG_OR_FOLDER "PROMPT"
set -euo pipefail
cd "$(dirname "$0")/.."
exec ray job submit ${RUNTIME_ENV:+--runtime-env "$RUNTIME_ENV"} --working-dir . -- \
    python -m raydix generate "${1:-configs/demo-cpu.yaml}" --prompt "${2:-Once upon a time}"
