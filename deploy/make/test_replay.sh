#!/usr/bin/env bash
# The replay in a venv of its own without torch or simulators. $1: the Python to use.
set -euo pipefail
python="$1" venv=.venv-replay

if [ ! "$venv/.installed" -nt pyproject.toml ]; then
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet -e ".[replay]" "hypothesis>=6.100,<7" "pytest>=8.3,<10" "pytest-timeout>=2.3,<3"
  touch "$venv/.installed"
fi
"$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(any(u.find_spec(m) for m in ("torch", "mujoco")))' ||
  { echo "shoal: the replay venv has torch or mujoco, so it proves nothing" >&2; exit 1; }
"$venv/bin/python" -m pytest tests/unit/common tests/unit/replay
# The actor's modules need simulators, which this venv is without.
"$venv/bin/python" -m pytest tests/unit/test_imports.py -k "not services.actor"
