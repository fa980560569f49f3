#!/usr/bin/env bash
# Looks the installed packages up in the database of the Python Packaging Advisory, in a venv of its own.
set -euo pipefail
python="$1"
venv=.venv-audit
if ! { [ -x "$venv/bin/pip-audit" ] || { "$python" -m venv "$venv" && "$venv/bin/pip" install --quiet pip-audit; }; }; then
    echo "NOT TESTED: pip-audit could not be installed (is there a network?)"
    exit 3
fi
site="$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
status=0
output="$("$venv/bin/pip-audit" --path "$site" --progress-spinner off 2>&1)" || status=$?
echo "$output"
if [ "$status" -ne 0 ] && ! grep -q "^Found " <<<"$output"; then
    echo "NOT TESTED: the database of weaknesses could not be asked (is there a network?)"
    exit 3
fi
exit "$status"
