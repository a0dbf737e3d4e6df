#!/usr/bin/env bash
# What runs on each machine of a Cloud TPU, called by clusters/tpu.sh from the checkout:
#   setup DATASETS DATA_FROM   environment, data and, for several machines, the shared folder
#   pull BUCKET_FOLDER         what a TPU that was taken away had saved; on machine 0, once
#   start BUCKET_FOLDER RUN... trains in the background, unless a training goes on already
#   follow                     shows the training's output to its end, and ends as it did
#
# Training writes to ~/identity-matters-run/results. With several machines this is machine 0's disk
# in all of them, over NFS, for all processes must see the checkpoints. Machine 0 copies it to the
# bucket every SYNC_SECONDS and at the end. A checkpoint goes there after the records that it counts
# on, so that what is found there can always be taken up.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly HOME_OF_RUNS=${HOME_OF_RUNS:-$HOME/identity-matters-run}
readonly RESULTS=$HOME_OF_RUNS/results
readonly SNAPSHOT=$HOME_OF_RUNS/snapshot
readonly PULLED=$HOME_OF_RUNS/pulled
readonly LOCK=$HOME_OF_RUNS/lock
readonly PID=$HOME_OF_RUNS/pid
readonly LOG=$HOME_OF_RUNS/log
readonly STATUS=$HOME_OF_RUNS/status
readonly SYNC_SECONDS=${SYNC_SECONDS:-60}
readonly POLL_SECONDS=${POLL_SECONDS:-1}
readonly MOUNT_SECONDS=${MOUNT_SECONDS:-600}
# The code with which a training ends that was told to stop: see experiments/harness.py.
readonly INTERRUPTED=75

die() {
  echo "tpu_worker: $*" >&2
  exit 1
}

metadata() {
  curl --silent --fail --retry 5 --header 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

# The number of this machine and the addresses of all, from where JAX has them.
find_machines() {
  local entry
  machine=$(metadata agent-worker-number)
  machines=()
  for entry in $(metadata worker-network-endpoints | tr ',' ' '); do
    machines+=("${entry##*:}")
  done
}

# A training holds the lock as long as any process of it lives, and no longer.
running() {
  mkdir -p "$HOME_OF_RUNS"
  ! flock --nonblock "$LOCK" true
}

setup() {
  local datasets=$1 data_from=$2
  # The machines come with a Python older than 3.11; uv brings one.
  command -v uv >/dev/null || python3 -m pip install --quiet --user uv
  make setup ACCEL=tpu PYTHON=3.12
  if [[ -n $data_from ]]; then
    mkdir -p data
    gcloud storage rsync --recursive "$data_from" data
  else
    make data PYTHON=3.12 DATASETS="$datasets"
  fi
  mkdir -p "$RESULTS"
  find_machines
  ((${#machines[@]} == 1)) || share
}

# Machine 0 lends its folder to the others, for whom all files belong to the user of machine 0.
share() {
  local address deadline=$((SECONDS + MOUNT_SECONDS)) options
  if ((machine == 0)); then
    install_package nfs-kernel-server
    options="rw,sync,no_subtree_check,all_squash,anonuid=$(id -u),anongid=$(id -g)"
    for address in "${machines[@]:1}"; do
      echo "$RESULTS $address($options)"
    done | sudo tee /etc/exports.d/identity-matters.exports >/dev/null
    sudo exportfs -ra
    return
  fi
  install_package nfs-common
  mountpoint --quiet "$RESULTS" && return
  # No caches: a process must see what another one has just written.
  until sudo mount -t nfs -o vers=4.2,hard,noac,lookupcache=none "${machines[0]}:$RESULTS" "$RESULTS"; do
    ((SECONDS < deadline)) || die "cannot mount ${machines[0]}:$RESULTS after $MOUNT_SECONDS s"
    sleep "$POLL_SECONDS"
  done
}

install_package() {
  dpkg --status "$1" >/dev/null 2>&1 && return
  sudo apt-get -o DPkg::Lock::Timeout=300 update --quiet
  sudo apt-get -o DPkg::Lock::Timeout=300 install --quiet --yes "$1"
}

pull() {
  local bucket=$1 note=$HOME_OF_RUNS/BUCKET.txt
  # Afterwards this disk is ahead of the bucket.
  [[ ! -e $PULLED ]] || return 0
  mkdir -p "$RESULTS"
  # Shows that the bucket can be written, and lets an empty folder of it be read without an error,
  # so that no error is taken for an empty folder.
  echo "clusters/tpu_worker.sh copies its results here." >"$note"
  gcloud storage cp "$note" "$bucket/BUCKET.txt"
  gcloud storage rsync --recursive "$bucket" "$RESULTS"
  touch "$PULLED"
}

# Hard links hold the checkpoints of this moment; records grow and are copied, after that.
push() {
  local bucket=$1
  rm -rf "$SNAPSHOT"
  cp --archive --link "$RESULTS" "$SNAPSHOT" 2>/dev/null || return 1
  find "$SNAPSHOT" -depth \( -name '*.orbax-checkpoint-tmp*' -o -name '*.tmp' \) -exec rm -rf {} +
  (
    cd "$RESULTS"
    find . -name checkpoints -prune -o -type f ! -name '*.tmp' -print0 |
      xargs --null --no-run-if-empty cp --parents --remove-destination --target-directory="$SNAPSHOT"
  ) || return 1
  gcloud storage rsync --recursive --exclude='(^|.*/)checkpoints/.*' "$SNAPSHOT" "$bucket" &&
    gcloud storage rsync --recursive "$SNAPSHOT" "$bucket" &&
    gcloud storage rsync --recursive --delete-unmatched-destination-objects "$SNAPSHOT" "$bucket"
}

start() {
  if running; then
    echo "a training goes on here already"
    return
  fi
  mkdir -p "$RESULTS"
  find_machines
  # A machine that was started anew has lost its mount, and would train on checkpoints of its own.
  ((machine == 0)) || mountpoint --quiet "$RESULTS" ||
    die "$RESULTS is not that of machine 0; make tpu-setup mounts it"
  rm -f "$STATUS" "$PID"
  setsid --fork nohup clusters/tpu_worker.sh train "$@" >"$LOG" 2>&1 </dev/null
  # `follow` asks for the process id.
  for _ in {1..300}; do
    [[ ! -e $PID ]] || return 0
    sleep 0.1
  done
  cat "$LOG" >&2
  die "the training did not start"
}

train() {
  local bucket=$1 child code=0 next
  shift
  exec 9>"$LOCK"
  flock --nonblock 9 || die "a training goes on here already"
  echo $$ >"$PID"
  trap 'echo "$?" >"$STATUS"' EXIT
  find_machines
  .venv/bin/python -m "$@" --distributed --results_dir="$RESULTS" &
  child=$!
  trap 'kill -TERM "$child" 2>/dev/null' TERM INT
  next=$((SECONDS + SYNC_SECONDS))
  while kill -0 "$child" 2>/dev/null; do
    if ((machine == 0 && SECONDS >= next)); then
      push "$bucket" || echo "not copied to $bucket; will be tried again" >&2
      next=$((SECONDS + SYNC_SECONDS))
    fi
    sleep "$POLL_SECONDS"
  done
  wait "$child" || code=$?
  if ((machine == 0)); then
    push "$bucket" || push "$bucket" || {
      echo "the newest results are not in $bucket; the same command copies them" >&2
      ((code)) || code=1
    }
  fi
  exit "$code"
}

follow() {
  local code
  # Ends at once where the training has ended.
  tail --lines=+1 --follow --sleep-interval="$POLL_SECONDS" --pid="$(<"$PID")" "$LOG"
  [[ -e $STATUS ]] || die "the training was killed; make tpu-run takes it up"
  code=$(<"$STATUS")
  ((code != INTERRUPTED)) || echo "the training was told to stop; make tpu-run takes it up" >&2
  return "$code"
}

step=${1:?the step: setup, pull, start or follow}
shift
case $step in
  setup | pull | start | train | follow) "$step" "$@" ;;
  *) die "there is no step '$step'" ;;
esac
