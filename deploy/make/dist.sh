#!/usr/bin/env bash
# Builds the sdist and the wheel, then installs the wheel in a fresh venv far from the checkout and asks it to work.
set -euo pipefail
python="$1"
root="$(cd "$(dirname "$0")/../.." && pwd)"
cd "$root"

rm -rf dist build
venv="$root/.venv-dist"
[ -x "$venv/bin/pyproject-build" ] || { "$python" -m venv "$venv" && "$venv/bin/pip" install --quiet "build>=1.2,<2"; }
"$venv/bin/pyproject-build" --outdir dist . >/dev/null
rm -rf build

away="$(mktemp -d)"
trap 'rm -rf "$away"' EXIT
"$python" -m venv "$away/venv"
"$away/venv/bin/pip" install --quiet dist/shoal-*.whl
cd "$away"
"$away/venv/bin/shoal" --version
"$away/venv/bin/shoal" config check arm_reach
for service in replay learner actor evaluator; do "$away/venv/bin/shoal" "$service" --help >/dev/null; done
"$away/venv/bin/python" - <<'CODE'
import services.replay.__main__  # the replay needs nothing but the wheel's own dependencies
from services.common.config.shipped import shipped_folders

assert not shipped_folders()[0].exists(), "the checkout was used"
assert (shipped_folders()[1] / "arm_reach.toml").exists()
CODE
cd "$root"
ls -l dist
