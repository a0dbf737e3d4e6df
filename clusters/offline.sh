#!/usr/bin/env bash
# Runs on a machine without network, such as many cluster nodes, that has Python with jax, flax,
# optax and orbax-checkpoint; files come and go by whatever way there is. docs/clusters.md explains.
#   here, in a clone without changes:  clusters/offline.sh pack DIRECTORY
#   there, after each part:            DIRECTORY/offline.sh receive TARGET
#                                      TARGET/clusters/offline.sh run SECONDS MODULE FLAGS...
#                                      TARGET/clusters/offline.sh collect FILE
#   here, in the clone:                tar -xzf FILE
# Codes: 2 refused, 3 parts are missing, 75 the time was up and the same command resumes.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly MISSING=3 INTERRUPTED=75 NOT_BEGUN=143
readonly SUMS=parts.sha256 EXTRA=.venv-offline # of the names that .gitignore has
# What is packed besides the code: data sets that `make data` has prepared in DATA_DIR, and pure
# Python packages, in the versions of the lock, that a machine made for JAX may lack.
data_dir=${DATA_DIR:-data}
read -ra datasets <<<"${DATASETS-cifar10}"
read -ra packages <<<"${PACKAGES-absl-py etils latex2mathml markdown-it-py mdurl ml-collections pygments rich threadpoolctl tqdm}"
part_size=${PART_SIZE:-60M}
grace_seconds=${GRACE_SECONDS:-60} # for saving at the end of `run`

refuse() { echo "offline: $1" >&2; exit 2; }
step=${1:-}
shift || true

pack() {
  local directory=$1 python=${PYTHON:-python3} scratch name lines
  cd "$here/.."
  [[ -d $directory && -z $(ls -A "$directory") ]] || refuse "$directory must be an empty directory"
  for name in "${datasets[@]}"; do
    [[ -f $data_dir/arrays/$name/test/manifest.json ]] ||
      refuse "$name is not prepared in $data_dir; run: make data DATASETS=$name"
  done
  # Runs of the copy record the commit, though it has no history; fails if there are changes.
  "$python" -m identity_matters.code_version >/dev/null || exit 2
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064 # the present value
  trap "rm -rf '$scratch'" EXIT
  local copy=$scratch/identity-matters
  mkdir -p "$copy/$EXTRA/wheels" "$copy/data/arrays"
  git archive HEAD | tar -x -C "$copy" --exclude='results/*'
  mv .code_version.json "$copy"
  for name in "${packages[@]}"; do
    # Its lines of the lock: the version, then the sums of its files.
    lines=$(awk -v start="$name==" '/^[^ ]/ { wanted = index($0, start) == 1 } wanted' requirements/cpu.txt)
    [[ -n $lines ]] || refuse "requirements/cpu.txt has no $name"
    echo "$lines" >>"$scratch/wanted.txt"
  done
  if ((${#packages[@]})); then
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
      --platform any --implementation py --abi none --dest "$copy/$EXTRA/wheels" \
      --require-hashes --requirement "$scratch/wanted.txt" ||
      refuse "the packages could not be downloaded"
  fi
  for name in "${datasets[@]}"; do cp -RL "$data_dir/arrays/$name" "$copy/data/arrays"; done
  tar -cz -C "$copy" . | split -b "$part_size" -a 3 - "$directory/part."
  (cd "$directory" && sha256sum part.* >"$SUMS")
  cp "${BASH_SOURCE[0]}" "$directory/offline.sh"
  du -ah "$directory"
}

receive() {
  local target=$1 python=${PYTHON:-python3} sum part wheel name missing=() parts=()
  cd "$here"
  [[ -f $SUMS ]] || refuse "there is no $SUMS in $here"
  while read -r sum part; do
    parts+=("$part")
    [[ -f $part && $(sha256sum <"$part") == "$sum "* ]] || missing+=("$part")
  done <"$SUMS"
  if ((${#missing[@]})); then
    echo "offline: of ${#parts[@]} parts these are missing or damaged: ${missing[*]}" >&2
    exit "$MISSING"
  fi
  mkdir -p "$target"
  cat "${parts[@]}" | tar -xz -C "$target"
  cd "$target"
  mkdir -p "$EXTRA/packages"
  for wheel in "$EXTRA"/wheels/*.whl; do
    [[ -e $wheel ]] || continue
    name=${wheel##*/}
    name=${name%%-*}
    "$python" -c "import importlib.metadata; importlib.metadata.version('$name')" 2>/dev/null ||
      "$python" -m zipfile -e "$wheel" "$EXTRA/packages" # pure Python: no installer is needed
  done
  PYTHONPATH=$EXTRA/packages "$python" -c '
import importlib, sys
needed = ("absl", "etils.epath", "flax", "jax", "ml_collections", "optax", "orbax.checkpoint", "rich", "tqdm")
missing = []
for name in needed:
    try:
        importlib.import_module(name)
    except ImportError as error:
        missing.append(f"{name} ({error})")
if missing:
    sys.exit("offline: this Python lacks " + ", ".join(missing))
' || exit 2
  echo "received in $PWD; next: clusters/offline.sh run SECONDS MODULE FLAGS..."
}

run() {
  local seconds=$1 code=0
  shift
  if [[ ! $seconds =~ ^[0-9]+$ ]] || ((seconds <= grace_seconds)); then
    refuse "SECONDS must be a number above $grace_seconds, which are kept for saving; got $seconds"
  fi
  cd "$here/.."
  PYTHONPATH=$PWD/$EXTRA/packages:$PWD timeout --preserve-status --signal=TERM \
    --kill-after="$grace_seconds" "$((seconds - grace_seconds))" "${PYTHON:-python3}" -m "$@" || code=$?
  if ((code == INTERRUPTED || code == NOT_BEGUN)); then
    echo "offline: the time is up; the same command resumes" >&2
    code=$INTERRUPTED
  fi
  exit "$code"
}

collect() {
  local file=$1 python=${PYTHON:-python3} scratch
  cd "$here/.."
  [[ -d results/local ]] || refuse "there are no results in $PWD"
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064 # the present value
  trap "rm -rf '$scratch'" EXIT
  mkdir -p "$scratch/results/local"
  # Not the trained nets, which are large. So a training under way begins anew in the copy; here it goes on.
  tar -c --exclude=checkpoints -C results/local . | tar -x -C "$scratch/results/local"
  PYTHONPATH=$PWD/$EXTRA/packages:$PWD "$python" -m identity_matters.runs.without_checkpoints "$scratch/results/local" ||
    echo "offline: the runs named above are packed as they are" >&2
  tar -cz -C "$scratch" -f "$file" results/local
  du -h "$file"
}

case $step in
  pack | collect | receive)
    (($# == 1)) || refuse "write: offline.sh $step PATH"
    path=$1
    [[ $path == /* ]] || path=$PWD/$path
    "$step" "$path" ;;
  run)
    (($# > 1)) || refuse "write: clusters/offline.sh run SECONDS MODULE FLAGS..."
    run "$@" ;;
  *) refuse "the step must be pack, receive, run or collect, got '$step'" ;;
esac
