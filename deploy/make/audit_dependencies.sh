#!/usr/bin/env bash
# Looks packages up in the database of the Python Packaging Advisory, with pip-audit in a venv of its own: those that are
# installed beside $1 (a Python), and those that the images install, deploy/constraints/image-*.txt.
# The exit code is 1 if a weakness is known, else 3 if something could not be asked; the last line says which.
set -euo pipefail
python="$1" venv=.venv-audit
weak=() unasked=() asked=()

audit() {  # what is looked at, and pip-audit's arguments
    local what="$1" status=0 output unknown
    shift
    echo "--- $what"
    output="$("$venv/bin/pip-audit" "$@" --progress-spinner off 2>&1)" || status=$?
    echo "$output"
    # A package that the database does not know is passed over with a word in a table: that is no answer. Ours it need not
    # know.
    unknown="$(awk '/could not be audited/ && $1 != "shoal" { print $1 }' <<<"$output" | paste -sd ' ')"
    [ -z "$unknown" ] || unasked+=("$what ($unknown)")
    if [ "$status" -eq 0 ] && grep -q "^No known vulnerabilities found" <<<"$output"; then
        [ -n "$unknown" ] || asked+=("$what")
    elif grep -q "^Found [0-9]* known" <<<"$output"; then
        weak+=("$what")
    else
        unasked+=("$what")
    fi
}

conclude() {
    [ "${#asked[@]}" -eq 0 ] || echo "no weakness is known in: ${asked[*]}"
    [ "${#weak[@]}" -eq 0 ] || echo "WEAKNESSES ARE KNOWN in: ${weak[*]}"
    [ "${#unasked[@]}" -eq 0 ] ||
        echo "NOT TESTED: the database of weaknesses could not be asked about: ${unasked[*]} (is there a network?)"
    if [ "${#weak[@]}" -gt 0 ]; then exit 1; fi
    if [ "${#unasked[@]}" -gt 0 ]; then exit 3; fi
    exit 0
}

images=(deploy/constraints/image-*.txt)
[ -e "${images[0]}" ] || { echo "there is no deploy/constraints/image-*.txt: run this from the checkout" >&2; exit 2; }
if ! { [ -x "$venv/bin/pip-audit" ] || { "$python" -m venv "$venv" && "$venv/bin/pip" install --quiet pip-audit; }; }; then
    echo "pip-audit could not be installed"
    unasked=("the packages of this venv" "${images[@]}")
    conclude
fi
site="$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
audit "the packages of this venv" --path "$site"
for image in "${images[@]}"; do
    audit "$image" --disable-pip --require-hashes --requirement "$image"
done
conclude
