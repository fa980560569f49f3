#!/usr/bin/env bash
# The replay's benchmark. $1: the Python that has shoal; the rest goes to `python -m bench.replay`.
# Peers live in venvs of their own under .cache/bench-venvs, from pinned versions, made once. A peer that cannot be had
# leaves NAME.missing with the reason: the benchmark prints it as NOT MEASURED and goes on.
#   PYTHON310     a Python 3.10 for Reverb: dm-reverb's newest TensorFlow is 2.15, which has none for later Pythons
#   TORCHRL_TORCH torch for TorchRL's compiled trees, which load with the build they were made for alone: torch==2.14.1,
#                 several GB since Linux gets the CUDA build; empty: TorchRL is not measured
set -euo pipefail
python="$1"; shift
venvs=.cache/bench-venvs
mkdir -p "$venvs"

. deploy/make/bench_venv.sh

python310="${PYTHON310:-}"
if [ -z "$python310" ]; then
  for candidate in "$HOME"/.pyenv/versions/3.10.*/bin/python "$(command -v python3.10 || true)"; do
    if [ -x "$candidate" ]; then python310="$candidate"; break; fi
  done
fi
if [ -n "$python310" ]; then
  venv reverb "$python310" "import reverb" dm-reverb==0.14.0 tensorflow==2.15.1
else
  missing reverb "there is no Python 3.10; name one with PYTHON310=/path/to/python3.10"
fi
venv cpprb "$python" "import cpprb" cpprb==11.0.0
if [ -n "${TORCHRL_TORCH:-}" ]; then
  venv torchrl "$python" "import torch, torchrl._torchrl" torchrl==0.14.1 "$TORCHRL_TORCH"
else
  missing torchrl "its compiled trees need the CUDA build of torch 2.14.1, several GB; ask for it with TORCHRL_TORCH=torch==2.14.1"
fi

exec "$python" -m bench.replay --venvs "$venvs" "$@"
