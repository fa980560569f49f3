#!/usr/bin/env bash
# The 3.8 job: a venv of Python 3.8 without torch runs the tests of what an Isaac Gym actor needs. $1: that Python.
set -euo pipefail
python="${1:-}" venv=.venv-py38

if [ -z "$python" ]; then
  echo "shoal: NOT TESTED on Python 3.8: there is none; name one with: make test38 PYTHON38=/path/to/python3.8" >&2
  exit "${SHOAL_REQUIRE_38:-0}"
fi
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 8))' ||
  { echo "shoal: $python is not Python 3.8" >&2; exit 1; }
if [ ! "$venv/.installed" -nt pyproject.toml ]; then
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet -c deploy/constraints/actor-py38.txt -e ".[sim,dev]"
  touch "$venv/.installed"
fi
"$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is not None)' ||
  { echo "shoal: the 3.8 venv has torch, so it proves nothing about actors without it" >&2; exit 1; }
"$venv/bin/python" -m pytest tests/unit/common tests/unit/actor tests/unit/test_imports.py tests/unit/agent
