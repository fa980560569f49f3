#!/usr/bin/env bash
# Locks what the images install, with hashes, in deploy/constraints/image-*.txt: the newest versions that pyproject.toml
# allows. $1: the Python to use.
set -euo pipefail
python="$1" venv=.venv-lock uv=uv==0.13.9 folder=deploy/constraints
# The CPU build of torch asks for these. torch itself is installed by its version, from where the image's user says; the
# packages of CUDA that its other build asks for are pinned by torch.
torch_needs="filelock fsspec jinja2 networkx setuptools sympy typing-extensions"

if [ "$(cat "$venv/.installed" 2>/dev/null)" != "$uv" ]; then
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet "$uv"
  echo "$uv" > "$venv/.installed"
fi
aside="$(mktemp -d)"
trap 'rm -rf "$aside"' EXIT
echo "torch ; sys_platform == 'none'" > "$aside/without-torch.txt"
tr ' ' '\n' <<< "$torch_needs" > "$aside/torch.in"
grep -oE '"setuptools[^"]*"' pyproject.toml | head -n 1 | tr -d '"' > "$aside/build.in"

lock() {  # name of the image, what to lock
  local name="$1"; shift
  "$venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade --no-annotate --no-emit-package torch \
    --custom-compile-command "make lock" --override "$aside/without-torch.txt" \
    --output-file "$folder/image-$name.txt" "$@"
  echo "$folder/image-$name.txt: $(grep -c '==' "$folder/image-$name.txt") packages"
}

lock build "$aside/build.in"
lock replay pyproject.toml --extra replay
lock actor pyproject.toml --extra sim --extra report
lock learner pyproject.toml "$aside/torch.in" --extra learner
