#!/usr/bin/env bash
# A training under SLURM: sbatch --nodes=2 clusters/slurm.sh experiments.images.cifar --config=:...
# in the checkout. All nodes must see the checkout and the results. sbatch's own options (--nodes,
# --partition, --account, --time ...) go before the script and override those below.
#
# One task per GPU: under SLURM, JAX gives each task only the GPU that has the task's local rank,
# so one task per node would leave the other GPUs idle. For the same reason all tasks of a node must
# see all of its GPUs (--gpu-bind=none, and no --gpus-per-task).
#
# Two minutes before the time is up, and when the job is pre-empted, the training gets SIGTERM, saves
# and ends with code 75, or 143 if it had not begun yet; the job then requeues itself and resumes.
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

# Exit codes of a training that was told to stop: see experiments/run/endings.py.
readonly INTERRUPTED=75 NOT_BEGUN=143
# A limit, so that a job that never finishes does not requeue for ever.
readonly MOST_RESTARTS=${MOST_RESTARTS:-100}

refuse() { echo "slurm: $1" >&2; exit 2; }

(($#)) || refuse "name what to train: sbatch clusters/slurm.sh experiments.images.cifar --config=:..."
# sbatch runs a copy of this script from another directory.
cd "${SLURM_SUBMIT_DIR:?this script is for sbatch}"
[[ -x .venv/bin/python ]] || refuse "no .venv in $PWD; run make setup ACCEL=cuda13 there first"

# srun does not take this over from sbatch, and would give each task one core where tasks are bound.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

# Pre-emption may signal this shell, too; it must go on waiting until the training has saved. bash
# runs a trap only after the command in the foreground has ended.
trap : TERM
code=0
srun --gpu-bind=none --kill-on-bad-exit=0 .venv/bin/python -m "$@" --distributed \
  --results_dir="${RESULTS_DIR:-results/local}" || code=$?
if ((code == INTERRUPTED || code == NOT_BEGUN)); then
  if ((${SLURM_RESTART_COUNT:-0} >= MOST_RESTARTS)); then
    echo "slurm: told to stop after $MOST_RESTARTS restarts; sbatch again resumes" >&2
  else
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit "$code"
