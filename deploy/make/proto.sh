#!/usr/bin/env bash
# Regenerates the code of proto/ into the folder $1 with Python $2, by pinned tools in a venv of their own.
set -euo pipefail
out="$1" python="$2" venv=.venv-proto

if [ ! -e "$venv/.installed" ]; then
  "$python" -m venv "$venv"
  # 1.70.0 is the last grpcio-tools for Python 3.8: what it writes loads on every protobuf from 5.29 to 7.
  "$venv/bin/pip" install --quiet grpcio-tools==1.70.0 mypy-protobuf==3.6.0 setuptools==75.3.0
  touch "$venv/.installed"
fi
export PATH="$PWD/$venv/bin:$PATH"
protoc=(python -m grpc_tools.protoc -Iproto)
"${protoc[@]}" --python_out="$out" --mypy_out=quiet:"$out" proto/shoal/v1/*.proto
"${protoc[@]}" --grpc_python_out="$out" --mypy_grpc_out=quiet:"$out" \
  proto/shoal/v1/{replay,parameters,gradients}.proto
