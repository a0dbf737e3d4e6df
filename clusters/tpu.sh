#!/usr/bin/env bash
# Cloud TPU from here: clusters/tpu.sh create|setup|run|fetch|delete. `make tpu-create` and so on
# call it; clusters/tpu.mk says what the variables mean, docs/clusters.md how to use them.
#
# Any step may be given again: create finds what is there, and asks anew where a spot TPU was taken
# away; setup brings machines up to date; run watches a training that goes on already, and takes up
# one that did not end from its checkpoints in the bucket.
set -euo pipefail

readonly POLL_SECONDS=${POLL_SECONDS:-30}
readonly CHECKOUT=identity-matters

die() {
  echo "tpu: $*" >&2
  exit 1
}

usage_error() {
  echo "tpu: $*" >&2
  exit 2
}

need() {
  local name missing=()
  for name; do
    [[ -n ${!name:-} ]] || missing+=("$name")
  done
  case ${#missing[@]} in
    0) ;;
    1) usage_error "${missing[0]} is not set: make tpu-$step ${missing[0]}=..." ;;
    *) usage_error "${missing[*]} are not set: make tpu-$step$(printf ' %s=...' "${missing[@]}")" ;;
  esac
}

# The command, readable and as a shell would read it.
show() {
  local word line=
  for word; do
    case $word in
      '' | *[!A-Za-z0-9_./:=@%+,-]*) word="'${word//\'/\'\\\'\'}'" ;;
    esac
    line+="$word "
  done
  echo "${line% }"
}

# Runs a command, or only shows it; on the first standard output, also inside $(...).
exec 3>&1
call() {
  if [[ -n ${DRY_RUN:-} ]]; then
    show "$@" >&3
  else
    "$@"
  fi
}

resources() {
  local verb=$1
  shift
  call gcloud compute tpus queued-resources "$verb" "$@" --zone="$ZONE" --project="$PROJECT"
}

# The state of the request of our name; nothing where there is none. Not `describe`, which fails
# alike where there is none and where we may not look.
state() {
  resources list --filter="name~/$TPU_NAME\$" --format='value(state.state)'
}

on_workers() {
  local workers=$1
  shift
  call gcloud compute tpus tpu-vm ssh "$TPU_NAME" --zone="$ZONE" --project="$PROJECT" \
    --worker="$workers" --command="cd $CHECKOUT && $*"
}

runtime_version() {
  case $TPU_TYPE in
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) usage_error "TPU_TYPE=$TPU_TYPE is of no known kind; set TPU_VERSION, the runtime version" ;;
  esac
}

create() {
  need WAIT_SECONDS
  local version deadline now asked=
  version=${TPU_VERSION:-$(runtime_version)}
  deadline=$((SECONDS + WAIT_SECONDS))
  while true; do
    now=$(state)
    [[ -z ${DRY_RUN:-} || -z $asked ]] || now=ACTIVE
    case $now in
      ACTIVE)
        [[ -n ${DRY_RUN:-} ]] || echo "$TPU_NAME is there"
        return
        ;;
      '')
        if [[ -z $asked ]]; then
          # The request lapses when nobody waits for it any more.
          resources create "$TPU_NAME" --node-id="$TPU_NAME" --accelerator-type="$TPU_TYPE" \
            --runtime-version="$version" --valid-until-duration="${WAIT_SECONDS}s" \
            ${SPOT:+--spot} --async
          asked=1
        fi
        ;;
      FAILED | SUSPENDED)
        [[ -z $asked ]] || die "the request for $TPU_NAME is $now; see: gcloud compute tpus" \
          "queued-resources describe $TPU_NAME --zone=$ZONE --project=$PROJECT"
        echo "$TPU_NAME is $now; asking anew"
        resources delete "$TPU_NAME" --force --quiet
        continue
        ;;
      *) echo "$TPU_NAME: $now" ;;
    esac
    [[ -n ${DRY_RUN:-} ]] && continue
    ((SECONDS < deadline)) || die "$TPU_NAME is not there after $WAIT_SECONDS s" \
      "(${now:-not listed}); make tpu-create waits on, make tpu-delete gives up"
    sleep "$POLL_SECONDS"
  done
}

setup() {
  local bundle
  if [[ -n ${DRY_RUN:-} ]]; then
    bundle=/tmp/identity-matters.bundle
  else
    [[ -z $(git status --porcelain) ]] ||
      echo "what is not committed stays here: the machines get $(git rev-parse --short HEAD)" >&2
    bundle=$(mktemp -d)/identity-matters.bundle
  fi
  # A bundle, not an archive: runs record the commit that they were made at.
  call git bundle create "$bundle" HEAD
  call gcloud compute tpus tpu-vm scp "$bundle" "$TPU_NAME:" --zone="$ZONE" --project="$PROJECT" \
    --worker=all
  call gcloud compute tpus tpu-vm ssh "$TPU_NAME" --zone="$ZONE" --project="$PROJECT" --worker=all \
    --command="test -d $CHECKOUT || git clone --quiet identity-matters.bundle $CHECKOUT"
  on_workers all "git fetch --quiet ../identity-matters.bundle HEAD &&" \
    "git checkout --quiet --detach FETCH_HEAD"
  on_workers all "clusters/tpu_worker.sh setup '$DATASETS' '${DATA_FROM:-}'"
  [[ -n ${DRY_RUN:-} ]] || rm -r "$(dirname "$bundle")"
}

run() {
  # RUN stands as it is: the machine's shell reads it as yours would have.
  on_workers 0 "clusters/tpu_worker.sh pull '$results'"
  on_workers all "clusters/tpu_worker.sh start '$results' $RUN"
  on_workers 0 "clusters/tpu_worker.sh follow"
}

fetch() {
  need RESULTS_DIR
  call mkdir -p "$RESULTS_DIR"
  call gcloud storage rsync --recursive --exclude='(^|.*/)(checkpoints/.*|BUCKET\.txt)$' "$results" \
    "$RESULTS_DIR"
}

delete() {
  local now
  now=$(state)
  if [[ -n $now || -n ${DRY_RUN:-} ]]; then
    resources delete "$TPU_NAME" --force --quiet
  else
    echo "there is no $TPU_NAME"
  fi
}

step=${1:-}
case $step in
  create) need TPU_NAME ZONE PROJECT TPU_TYPE ;;
  setup | delete) need TPU_NAME ZONE PROJECT ;;
  run) need TPU_NAME ZONE PROJECT BUCKET RUN ;;
  fetch) need TPU_NAME BUCKET ;;
  *) usage_error "the step must be create, setup, run, fetch or delete, got '$step'" ;;
esac
[[ $TPU_NAME =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
  usage_error "TPU_NAME must be of small letters, digits and hyphens, got '$TPU_NAME'"
if [[ -n ${BUCKET:-} ]]; then
  [[ $BUCKET == gs://* ]] || usage_error "BUCKET must begin with gs://, got '$BUCKET'"
  readonly results=${BUCKET%/}/$TPU_NAME/results
fi
[[ -n ${DRY_RUN:-} ]] || command -v gcloud >/dev/null ||
  die "gcloud is not installed; see https://cloud.google.com/sdk/docs/install"
"$step"
