#!/usr/bin/env bash
# A training on a Cloud TPU:
#   clusters/tpu.sh create | setup | run MODULE FLAGS... | logs | status | stop | delete
# docs/clusters.md explains the variables. Any step may be repeated: records and checkpoints are in
# the bucket, so `run` on a new TPU resumes what was begun on an earlier one. A training goes on when
# this machine is switched off. DRY_RUN=1 prints the commands. Never tried on a real TPU. For
# TPUs up to v6e: the API of Google's that it uses does not offer TPU7x or later.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step=${1:-}
shift || true
: "${TPU_NAME:?names the TPU}" "${ZONE:?is its zone}" "${PROJECT:?is your project}"
data_dir=${DATA_DIR:-data}
read -ra datasets <<<"${DATASETS:-cifar10}"

refuse() { echo "tpu: $1" >&2; exit 2; }
is_on() { [[ $1 == 1 || $1 == yes || $1 == true ]]; }
call() {
  if is_on "${DRY_RUN:-0}"; then printf '%q ' "$@" && echo; else "$@"; fi
}
tpu() { call gcloud compute tpus tpu-vm "$@" --zone="$ZONE" --project="$PROJECT"; }
on() { tpu ssh "$TPU_NAME" --worker="$1" --command="cd identity-matters && $2"; } # worker, command
quoted() { printf '%q ' "$@"; }

spot=()
if is_on "${SPOT:-0}"; then spot=(--spot); fi

case $step in
  create)
    tpu create "$TPU_NAME" --accelerator-type="${TPU_TYPE:?v5litepod-8, say}" \
      --version="${TPU_VERSION:?v2-alpha-tpuv5-lite, say}" "${spot[@]}" ;;
  setup)
    for name in "${datasets[@]}"; do
      is_on "${DRY_RUN:-0}" || [[ -f $data_dir/arrays/$name/test/manifest.json ]] ||
        refuse "$name is not prepared in $data_dir, from where it is copied; run: make data DATASETS=$name"
    done
    # gcloud asks the agent for the key as soon as there are several machines.
    ssh-add -l >/dev/null 2>&1 ||
      echo "tpu: no ssh agent has a key; docs/clusters.md says what several machines need" >&2
    # The code must not be replaced under a training.
    running='identity-matters/clusters/detached.sh status 2>/dev/null | grep -q "^running as"'
    tpu ssh "$TPU_NAME" --worker=all \
      --command="if $running; then echo 'tpu: a training runs here; stop it first' >&2; exit 2; fi"
    # A bundle, not an archive, because runs record the commit that they were made at.
    call git bundle create identity-matters.bundle.tmp HEAD
    call tar --create --gzip --file=arrays.tar.gz.tmp --directory="$data_dir" "${datasets[@]/#/arrays/}"
    tpu scp identity-matters.bundle.tmp "$TPU_NAME:identity-matters.bundle" --worker=all
    tpu scp arrays.tar.gz.tmp "$TPU_NAME:arrays.tar.gz" --worker=all
    tpu ssh "$TPU_NAME" --worker=all --command='rm -rf identity-matters && git clone -q identity-matters.bundle identity-matters'
    on all 'mkdir -p data && tar --extract --gzip --file=../arrays.tar.gz --directory=data'
    # The runtimes come with Python 3.10. The lock for 3.11 has a libtpu that crashes on some nets.
    on all 'python3 -m pip install --user --quiet uv && ~/.local/bin/uv python install 3.12'
    # shellcheck disable=SC2016 # expanded there
    on all 'PATH=~/.local/bin:$PATH make setup ACCEL=tpu' ;;
  run)
    [[ ${BUCKET:?is where results go, gs://NAME} == gs://* && $# -gt 0 ]] ||
      refuse "BUCKET must begin with gs://, and a training must be named"
    on all "clusters/detached.sh start $(quoted "$@" --distributed "--results_dir=${BUCKET%/}/results")"
    echo "the training goes on without this machine; clusters/tpu.sh logs shows what it does" ;;
  logs) on 0 'clusters/detached.sh logs' ;; # process 0 writes; Ctrl-C ends the view alone
  status) on all 'clusters/detached.sh status' ;;
  stop) on all 'clusters/detached.sh stop' ;;
  delete) tpu delete "$TPU_NAME" --quiet ;;
  *) refuse "the step must be create, setup, run, logs, status, stop or delete, got '$step'" ;;
esac
