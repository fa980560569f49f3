#!/usr/bin/env bash
# Checks the files of deploy/ with the tools that will read them. $1: the folder of the venv's commands.
# What cannot be checked is said as NOT TESTED; with SHOAL_REQUIRE_DEPLOY_TOOLS=1 that is a failure.
set -euo pipefail
bin="$1"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
lacking=''

fail() { echo "deploy-check: $1" >&2; exit 1; }

# there TOOL PACKAGE WHAT: whether the tool is there; else it says what is left out.
there() {
  if command -v "$1" >/dev/null; then return 0; fi
  echo "deploy-check: NOT TESTED: $3; there is no $1 (Debian: apt-get install $2)" >&2
  lacking=1
  return 1
}

# quietly WHAT COMMAND...: a command that must succeed and complain of nothing.
quietly() {
  local what="$1" status=0
  shift
  "$@" >"$scratch/said" 2>"$scratch/complaints" || status=$?
  if [ "$status" -ne 0 ] || [ -s "$scratch/complaints" ]; then
    cat "$scratch/said" "$scratch/complaints" >&2
    fail "$what (exit code $status)"
  fi
}

prometheus() {
  # The shipped files name paths of the container, or of the machine. They are led to real ones here, which leaves all
  # else as it is. CA and tokens are made by `shoal certs`; promtool looks for the tokens.
  local folder="$scratch/prometheus" file
  cp -r deploy/prometheus "$folder"
  "$bin/shoal" certs init "$scratch/pki" >/dev/null
  cp "$scratch/pki/ca.pem" "$scratch/pki/monitor.token" "$folder"
  cp "$scratch/pki/monitor.token" "$folder/token"
  for file in deploy/*/prometheus.yml; do
    sed "s#/pki/#$folder/#g; s#/etc/prometheus/#$folder/#g" "$file" >"$folder/prometheus.yml"
    quietly "promtool refuses $file" promtool check config --lint=all --lint-fatal "$folder/prometheus.yml"
    # Green for the right reason: with the tokens taken away the same check must fail.
    mkdir "$scratch/away"
    mv "$folder"/*token "$scratch/away"
    if promtool check config "$folder/prometheus.yml" >/dev/null 2>&1; then
      fail "promtool does not open the files that $file names, so it checks nothing of them"
    fi
    mv "$scratch"/away/* "$folder"
    rmdir "$scratch/away"
    echo "prometheus: $file"
  done
  quietly "promtool refuses deploy/prometheus/alerts.yml" promtool check rules --lint=all --lint-fatal deploy/prometheus/alerts.yml
  quietly "alerts do not fire as alerts_test.yml says" promtool test rules deploy/prometheus/alerts_test.yml
  echo "prometheus: $(grep -c '^ *- alert:' deploy/prometheus/alerts.yml) alerts and their tests"
}

alertmanager() {
  quietly "amtool refuses deploy/prometheus/alertmanager.example.yml" \
    amtool check-config deploy/prometheus/alertmanager.example.yml
  echo "alertmanager: the example"
}

# The units as an installation has them, but for the program, which this machine need not have.
units() {
  local folder="$scratch/units" unit name exposure
  mkdir "$folder"
  for unit in deploy/systemd/*.service deploy/systemd/*.target deploy/systemd/*.timer deploy/systemd/*.socket; do
    [ -e "$unit" ] || continue
    name=$(basename "$unit")
    sed 's#^\(Exec[A-Za-z]*=[-+!:@]*\)/opt/shoal/bin/[a-z]*#\1/bin/true#' "$unit" >"$folder/${name/@./@0.}"
  done
  for unit in "$folder"/*; do
    quietly "systemd-analyze verify complains of $(basename "$unit")" \
      env SYSTEMD_UNIT_PATH="$folder:" systemd-analyze verify --man=no --recursive-errors=no "$unit"
  done
  for unit in deploy/systemd/*.conf; do # a drop-in, as it lies beside a unit
    [ -e "$unit" ] || continue
    mkdir "$folder/shoal-learner.service.d"
    cp "$unit" "$folder/shoal-learner.service.d"
    quietly "systemd-analyze verify complains of $unit" \
      env SYSTEMD_UNIT_PATH="$folder:" systemd-analyze verify --man=no --recursive-errors=no "$folder/shoal-learner.service"
    rm -r "$folder/shoal-learner.service.d"
    echo "systemd: $unit, as a drop-in of shoal-learner.service"
  done
  for unit in "$folder"/*.service; do
    quietly "$(basename "$unit") is exposed more than 2.0" \
      systemd-analyze security --offline=true --threshold=20 --no-pager "$unit"
    exposure=$(sed -n 's/.*Overall exposure level for [^:]*: \([0-9.]*\).*/\1/p' "$scratch/said")
    [ -n "$exposure" ] || fail "systemd-analyze security gives no figure for $(basename "$unit")"
    echo "systemd: $(basename "$unit"), exposure $exposure of 10"
  done
}

compose() {
  local file
  for file in deploy/compose*.yaml; do
    quietly "$file is no compose file" "$bin/check-jsonschema" --builtin-schema vendor.compose-spec "$file"
    echo "compose: $file, by the schema of the compose specification"
  done
}

if there promtool prometheus "config and alerts of Prometheus"; then prometheus; fi
if there amtool prometheus-alertmanager "the example for Alertmanager"; then alertmanager; fi
if there systemd-analyze systemd "the systemd units"; then units; fi
compose
[ -z "$lacking" ] || [ -z "${SHOAL_REQUIRE_DEPLOY_TOOLS:-}" ] || fail "tools are missing, and SHOAL_REQUIRE_DEPLOY_TOOLS is set"
