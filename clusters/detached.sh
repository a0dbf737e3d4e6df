#!/usr/bin/env bash
# A training that goes on when the connection ends: clusters/detached.sh start MODULE FLAGS...
# Then, from any connection: clusters/detached.sh logs | status | stop
# In the checkout training.log has the output, training.pid the process, training.code how it ended.
# A number may belong to another process later, so training.began has when it began, in ticks since boot.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
step=${1:-}
shift || true

refuse() { echo "detached: $1" >&2; exit 2; }
# Field 22 of the process's stat; the second field, in brackets, may contain blanks.
began() { sed "s/.*) //" "/proc/$1/stat" 2>/dev/null | cut -d " " -f 20; }
export -f began
is_running() {
  [[ -f training.pid && -s training.began && ! -f training.code ]] &&
    [[ "$(began "$(<training.pid)")" == "$(<training.began)" ]]
}

case $step in
  start)
    (($#)) || refuse "name what to train: clusters/detached.sh start experiments.images.cifar ..."
    is_running && refuse "a training runs here already, process $(<training.pid)"
    rm -f training.pid training.began training.code
    # A session of its own, so that no signal of the connection reaches it.
    # shellcheck disable=SC2016 # expanded by the inner shell
    setsid --fork bash -c '
      trap "" HUP
      .venv/bin/python -m "$@" &
      began $! >training.began
      echo $! >training.pid
      code=0
      wait $! || code=$?
      echo $code >training.code
    ' detached "$@" </dev/null >>training.log 2>&1
    for ((tenths = 0; tenths < 100; tenths++)); do
      if [[ -s training.pid ]]; then
        echo "started as process $(<training.pid)"
        exit
      fi
      sleep 0.1
    done
    refuse "it did not start; see training.log" ;;
  logs)
    [[ -f training.log ]] || refuse "no training was started here"
    exec tail -n "${LINES_SHOWN:-40}" -F training.log ;;
  status)
    if is_running; then
      echo "running as process $(<training.pid)"
    elif [[ -f training.code ]]; then
      echo "ended with code $(<training.code)"
    elif [[ -f training.pid ]]; then
      echo "killed, or this machine was started anew; the same run resumes"
    else
      echo "no training was started here"
    fi
    if [[ -f training.log ]]; then tail -n 1 training.log; fi ;;
  stop)
    # Machines that train together stop together, so this one may have been told by another.
    if ! is_running && [[ -f training.code ]]; then
      echo "ended with code $(<training.code)"
      exit
    fi
    is_running || refuse "no training runs here"
    kill -TERM "$(<training.pid)"
    echo "it saves a checkpoint and ends"
    while is_running; do sleep 0.2; done
    echo "ended with code $(cat training.code 2>/dev/null || echo unknown)" ;;
  *) refuse "the step must be start, logs, status or stop, got '$step'" ;;
esac
