#!/usr/bin/env bash
# Says in one sentence what this machine's Python lacks, and the command that mends it.
set -u
python="$1"

fail() { printf 'shoal: %s\n' "$1" >&2; exit 1; }

command -v "$python" >/dev/null 2>&1 ||
  fail "there is no $python; run: sudo apt-get install -y python3 python3-venv"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$python is Python $version, and the learner needs 3.10 or newer; install one and run: make install PYTHON=python3.11"
"$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
  fail "$python has no venv module; run: sudo apt-get install -y python${version}-venv"
