#!/usr/bin/env bash
# The benchmark of gradients. $1: the Python that has shoal; $2: pip's arguments for torch; the rest goes to
# `python -m bench.gradients`. hivemind lives in a venv of its own under .cache/bench-venvs, from pinned versions, made
# once; where it cannot be had, the benchmark prints NOT MEASURED with the reason and goes on.
set -euo pipefail
python="$1" torch="$2"; shift 2
venvs=.cache/bench-venvs
mkdir -p "$venvs"
. deploy/make/bench_venv.sh

# bitsandbytes 0.45 is what hivemind asks for; hivemind reads sizes in a way that numpy 2.4 no longer allows.
# shellcheck disable=SC2086  # torch's arguments are several words
venv hivemind "$python" "from hivemind.compression.quantization import BlockwiseQuantization; import bitsandbytes" \
  hivemind==1.1.12 bitsandbytes==0.45.5 numpy==2.2.6 $torch

venv packers "$python" "import zstandard, lz4.frame, isal, zlib_ng, brotli" \
  zstandard==0.25.0 lz4==4.4.5 isal==1.9.1 zlib-ng==1.1.0 brotli==1.2.1 numpy protobuf google-crc32c

exec "$python" -m bench.gradients --venvs "$venvs" "$@"
