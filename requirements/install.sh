#!/usr/bin/env bash
# Creates or updates an environment with the packages of a lock: requirements/install.sh .venv cpu
# Locks are complete, so no dependencies are resolved, and have the sums of all files, so that none
# but these is installed. PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=$1 lock=requirements/$2.txt

refuse() {
  echo "$1" >&2
  exit 2
}

[[ -n ${PYTHON:-} ]] || refuse "no Python of at least 3.11 found; name one: make PYTHON=..."
[[ -f $lock ]] || refuse "there is no $lock"
echo "installing $lock into $environment; a minute or two"
if command -v uv >/dev/null; then
  uv venv --quiet --allow-existing --python "$PYTHON" "$environment"
  install=(uv pip install --quiet --python "$environment")
else
  "$PYTHON" -m venv "$environment"
  # pip's settings may say user = true, which no environment allows.
  export PIP_USER=0
  install=("$environment/bin/python" -m pip install --quiet --disable-pip-version-check)
fi
"${install[@]}" --no-deps --require-hashes --requirement "$lock"
# The environment of dev has the package from its first lock; the site is made from the sources.
[[ $2 == dev || $2 == docs ]] || "${install[@]}" --no-deps --editable .
