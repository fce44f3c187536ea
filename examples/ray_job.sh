#!/usr/bin/env bash
# Submit a checkout to a running Ray cluster and generate there. Nothing of Raydix needs to be
# installed on the cluster, but its dependencies (constraints.txt) must be.
#
#     RAY_ADDRESS=http://HEAD:8265 examples/ray_job.sh CONFIG_OR_FOLDER "PROMPT"
set -euo pipefail
cd "$(dirname "$0")/.."
exec ray job submit --working-dir . -- \
    python -m raydix generate "${1:-configs/demo-cpu.yaml}" --prompt "${2:-Once upon a time}"
