#!/usr/bin/env bash
# Installs shoal on a machine with systemd, from a wheel; run it again to upgrade, or with --uninstall to take it away.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: install.sh --wheel FILE [--extras LIST] [--name NAME] [--python PYTHON] [-- PIP-ARGUMENTS]
       install.sh --uninstall [--name NAME] [--purge]

  --wheel FILE     shoal-VERSION-py3-none-any.whl
  --extras LIST    what the machine's services need beside the replay: learner, sim (the default arm), actor; with
                   commas. Nothing for a machine that runs a replay alone.
  --name NAME      install a further shoal beside the first: units shoal-NAME-*, folders /etc/shoal-NAME,
                   /opt/shoal-NAME and /var/lib/shoal-NAME, command shoal-NAME. Its run file must name other ports.
  --python PYTHON  of the virtual environment; python3 unless given
  --uninstall      stop the services, and remove units and program; what they wrote and their settings stay
  --purge          remove those too: rings, checkpoints, tokens
  -- ARGUMENTS     for pip. Without internet: `-- --no-index --find-links wheels`, with a folder that was filled by
                   `pip download --dest wheels 'shoal-VERSION-py3-none-any.whl[learner,sim]'` elsewhere
TEXT
}

fail() { echo "install.sh: $1" >&2; exit 2; }

# The option needs a value behind it: $1 the option, $2 how many words are left.
needs_value() { [ "$2" -ge 2 ] || fail "$1 takes a value; --help says which"; }

wheel='' extras='' name=shoal python=python3 uninstall='' purge=''
while [ $# -gt 0 ]; do
  case "$1" in --wheel|--extras|--name|--python) needs_value "$1" $# ;; esac
  case "$1" in
    --wheel) wheel="$2"; shift 2 ;;
    --extras) extras="$2"; shift 2 ;;
    --name) name="shoal-$2"; shift 2 ;;
    --python) python="$2"; shift 2 ;;
    --uninstall) uninstall=1; shift ;;
    --purge) purge=1; shift ;;
    --help|-h) usage; exit 0 ;;
    --) shift; break ;;
    *) usage >&2; fail "unknown argument $1" ;;
  esac
done

[[ "$name" =~ ^shoal(-[a-z0-9]{1,16})?$ ]] || fail "--name takes 1 to 16 small letters and digits"
[ "$(id -u)" = 0 ] || fail "run it as root: it makes a user, and files in /etc and /opt"
command -v systemctl >/dev/null ||
  fail "this machine has no systemd: start \`shoal replay\`, \`shoal learner\` and their like by hand"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
units=/etc/systemd/system
opt="/opt/$name" etc="/etc/$name" state="/var/lib/$name" command="/usr/local/bin/$name"

# A unit of this installation: the shipped one, with this installation's name in paths, units and state.
render() {
  sed -e "s#/opt/shoal/#$opt/#g" -e "s#/etc/shoal/#$etc/#g" -e "s#/var/lib/shoal#$state#g" \
    -e "s#^StateDirectory=shoal\$#StateDirectory=$name#" -e "s#^Description=shoal#Description=$name#" \
    -e "s#shoal\\.target#$name.target#g" "$1"
}
unit_name() { local base; base="$(basename "$1")"; echo "$name${base#shoal}"; }
# Its services that run. By their names and not $name-*: another installation's begin with that too.
running() {
  local unit patterns=()
  for unit in "$here"/*.service; do unit="$(unit_name "$unit")"; patterns+=("${unit/@./@*.}"); done
  systemctl list-units --plain --no-legend --state=active,activating,reloading "${patterns[@]}" | cut -d ' ' -f 1
}

if [ -n "$uninstall" ]; then
  units_running="$(running)"
  # shellcheck disable=SC2086 (a list of names)
  systemctl stop "$name.target" $units_running 2>/dev/null || true
  for unit in "$here"/*.service "$here"/shoal.target; do
    unit="$(unit_name "$unit")"
    systemctl disable "$unit" >/dev/null 2>&1 || true
    systemctl reset-failed "${unit/@./@*.}" 2>/dev/null || true
    rm -f "$units/$unit"
    [ -z "$purge" ] || rm -rf "$units/$unit.d"
  done
  [ "$(readlink "$command")" != "$opt/bin/shoal" ] || rm -f "$command"
  rm -rf "$units/$name.target.wants" "$opt"
  systemctl daemon-reload
  [ -z "$purge" ] || rm -rf "$etc" "$state"
  echo "$name is removed$([ -n "$purge" ] && echo ", with its data" || echo "; $etc and $state are left")"
  exit 0
fi

[ -n "$wheel" ] || { usage >&2; fail "--wheel is missing"; }
[ -f "$wheel" ] || fail "there is no wheel $wheel"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' || fail "$python is older than Python 3.8"

systemd-sysusers "$here/shoal.sysusers"

[ -x "$opt/bin/pip" ] || "$python" -m venv "$opt" || fail "cannot make a virtual environment: install python3-venv"
"$opt/bin/pip" install --quiet "$(realpath "$wheel")${extras:+[$extras]}" "$@"
# Once more by itself: pip takes a wheel of the version that is there for the same one, which it may not be.
"$opt/bin/pip" install --quiet --force-reinstall --no-deps "$(realpath "$wheel")" "$@"

install -d -o root -g shoal -m 0750 "$etc"
if [ ! -f "$etc/shoal.toml" ]; then
  install -o root -g shoal -m 0640 "$opt/share/shoal/configs/arm_reach.toml" "$etc/shoal.toml"
fi
# Empty until `shoal certs` has made them: on loopback none is asked for. Whoever copies over them keeps owner and mode.
secrets="ca.pem machine.pem machine-key.pem tokens.toml actor.token learner.token evaluator.token"
for file in shoal.env helper.env $secrets; do
  [ -e "$etc/$file" ] || install -o root -g shoal -m 0640 /dev/null "$etc/$file"
done

for unit in "$here"/*.service "$here"/shoal.target; do
  render "$unit" > "$units/.$name.new"
  mv "$units/.$name.new" "$units/$(unit_name "$unit")"
done
[ -e "$command" ] || ln -s "$opt/bin/shoal" "$command"
systemctl daemon-reload
systemctl enable --quiet "$name.target"  # what is enabled of its services starts with the machine
version="$("$opt/bin/shoal" --version)"
echo "$version is installed in $opt, its command is $command. Settings: $etc/shoal.toml and $etc/shoal.env."
units_running="$(running | tr '\n' ' ')"
if [ -n "$units_running" ]; then
  echo "Next: systemctl restart $units_running"
else
  echo "Next: systemctl enable --now with what runs on this machine of $name-replay@0 $name-learner $name-evaluator" \
    "$name-actor@0 $name-actor@1"
fi
