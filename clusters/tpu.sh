#!/usr/bin/env bash
# A training on a Cloud TPU: clusters/tpu.sh create | setup | run MODULE FLAGS... | delete
# docs/clusters.md explains the variables. Any step may be repeated: records and checkpoints are in
# the bucket, so `run` on a new TPU resumes what was begun on an earlier one. DRY_RUN=1 prints the
# commands. Never tried on a real TPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step=${1:-}
shift || true
: "${TPU_NAME:?names the TPU}" "${ZONE:?is its zone}" "${PROJECT:?is your project}"

refuse() { echo "tpu: $1" >&2; exit 2; }
call() {
  if [[ -n ${DRY_RUN:-} ]]; then printf '%q ' "$@" && echo; else "$@"; fi
}
tpu() { call gcloud compute tpus tpu-vm "$@" --zone="$ZONE" --project="$PROJECT"; }
everywhere() { tpu ssh "$TPU_NAME" --worker=all --command="$1"; }

case $step in
  create)
    tpu create "$TPU_NAME" --accelerator-type="${TPU_TYPE:?v5litepod-8, say}" \
      --version="${TPU_VERSION:?v2-alpha-tpuv5-lite, say}" ${SPOT:+--spot} ;;
  setup)
    # A bundle, not an archive, because runs record the commit that they were made at.
    call git bundle create identity-matters.bundle.tmp HEAD
    tpu scp identity-matters.bundle.tmp "$TPU_NAME:identity-matters.bundle" --worker=all
    everywhere 'rm -rf identity-matters && git clone -q identity-matters.bundle identity-matters'
    # The runtimes come with Python 3.10.
    everywhere 'python3 -m pip install --user --quiet uv && ~/.local/bin/uv python install 3.11'
    everywhere "export PATH=~/.local/bin:\$PATH && cd identity-matters && make setup ACCEL=tpu && $(
      printf 'make data DATASETS=%q' "${DATASETS:-cifar10}"
    )" ;;
  run)
    [[ ${BUCKET:?is where results go, gs://NAME} == gs://* && $# -gt 0 ]] ||
      refuse "BUCKET must begin with gs://, and a training must be named"
    everywhere "cd identity-matters && .venv/bin/python -m $(
      printf '%q ' "$@" --distributed "--results_dir=${BUCKET%/}/results"
    )" ;;
  delete) tpu delete "$TPU_NAME" --quiet ;;
  *) refuse "the step must be create, setup, run or delete, got '$step'" ;;
esac
