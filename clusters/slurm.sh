#!/usr/bin/env bash
# A training under SLURM: sbatch --nodes=2 clusters/slurm.sh experiments.images.cifar --config=:...
# from the checkout, which all nodes must see, as the results. sbatch's own options (--nodes,
# --partition, --account, --time ...) go before the script and win over those below.
#
# One task a GPU: where JAX finds itself under SLURM it gives each task the one GPU that has the
# task's number on its node, so one task a node would leave the others idle. For the same reason all
# tasks of a node must see all of its GPUs (--gpu-bind=none, and no --gpus-per-task).
#
# Two minutes before the time is up, and when the job is pre-empted, the training gets SIGTERM,
# saves and ends with code 75; the job then puts itself back into the queue and resumes. A training
# that had not begun yet ends with 143.
#SBATCH --job-name=identity-matters
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out
set -euo pipefail

# The codes with which a training ends that was told to stop: see experiments/run/__init__.py.
readonly INTERRUPTED=75 NOT_BEGUN=143
# A job that can never end is stopped some time.
readonly MOST_RESTARTS=${MOST_RESTARTS:-100}

if (($# == 0)); then
  echo "slurm: name what to train: sbatch clusters/slurm.sh experiments.images.cifar --config=:..." >&2
  exit 2
fi
# sbatch runs a copy of this script that lies elsewhere.
cd "${SLURM_SUBMIT_DIR:?this script is for sbatch}"
[[ -x .venv/bin/python ]] || {
  echo "slurm: no .venv in $PWD; run make setup ACCEL=cuda13 there first" >&2
  exit 2
}

# Pre-emption may signal this shell as well; it waits for the training to have saved.
trap : TERM
code=0
srun --gpu-bind=none --kill-on-bad-exit=0 .venv/bin/python -m "$@" --distributed \
  --results_dir="${RESULTS_DIR:-results/local}" &
# Each signal interrupts the waiting, not the training.
while true; do
  code=0
  wait $! || code=$?
  kill -0 $! 2>/dev/null || break
done
if ((code == INTERRUPTED || code == NOT_BEGUN)); then
  if ((${SLURM_RESTART_COUNT:-0} >= MOST_RESTARTS)); then
    echo "slurm: told to stop after $MOST_RESTARTS restarts; sbatch again resumes" >&2
  else
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit "$code"
