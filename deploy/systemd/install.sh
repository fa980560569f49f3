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
  --name NAME      install a second shoal beside the first: units shoal-NAME-*, folders /etc/shoal-NAME,
                   /opt/shoal-NAME and /var/lib/shoal-NAME
  --python PYTHON  of the virtual environment; python3 unless given
  --uninstall      stop the services, and remove units and program; what they wrote and their settings stay
  --purge          remove those too: rings, checkpoints, tokens
  -- ARGUMENTS     for pip, as in `-- --no-index --find-links wheels`
TEXT
}

fail() { echo "install.sh: $1" >&2; exit 2; }

wheel='' extras='' name=shoal python=python3 uninstall='' purge=''
while [ $# -gt 0 ]; do
  case "$1" in
    --wheel) wheel="${2:?}"; shift 2 ;;
    --extras) extras="${2?}"; shift 2 ;;
    --name) name="shoal-${2:?}"; shift 2 ;;
    --python) python="${2:?}"; shift 2 ;;
    --uninstall) uninstall=1; shift ;;
    --purge) purge=1; shift ;;
    --help|-h) usage; exit 0 ;;
    --) shift; break ;;
    *) usage >&2; fail "unknown argument $1" ;;
  esac
done

[[ "$name" =~ ^shoal(-[a-z0-9]{1,16})?$ ]] || fail "--name takes 1 to 16 small letters and digits"
[ "$(id -u)" = 0 ] || fail "run it as root: it makes a user, and files in /etc and /opt"
command -v systemctl >/dev/null || fail "this machine has no systemd; docs/operations.md shows other ways"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
units=/etc/systemd/system
opt="/opt/$name" etc="/etc/$name" state="/var/lib/$name"

# A unit of this installation: the shipped one, with this installation's name in paths, units and state.
render() { sed -e "s#/opt/shoal/#$opt/#g" -e "s#/etc/shoal/#$etc/#g" -e "s#/var/lib/shoal#$state#g" \
  -e "s#^StateDirectory=shoal\$#StateDirectory=$name#" -e "s#shoal\\.target#$name.target#g" "$1"; }
unit_name() { local base; base="$(basename "$1")"; echo "$name${base#shoal}"; }

if [ -n "$uninstall" ]; then
  systemctl stop "$name.target" "$name-*" 2>/dev/null || true
  for unit in "$here"/*.service "$here"/shoal.target; do
    systemctl disable "$(unit_name "$unit")" >/dev/null 2>&1 || true
    rm -f "$units/$(unit_name "$unit")"
  done
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

[ -x "$opt/bin/python" ] || "$python" -m venv "$opt" || fail "cannot make a virtual environment: install python3-venv"
"$opt/bin/pip" install --quiet --upgrade "$(realpath "$wheel")${extras:+[$extras]}" "$@"

install -d -o root -g shoal -m 0750 "$etc"
if [ ! -f "$etc/shoal.toml" ]; then
  install -o root -g shoal -m 0640 "$opt/share/shoal/configs/arm_reach.toml" "$etc/shoal.toml"
fi
# Empty until `shoal certs` has made them: on loopback none is asked for.
for file in shoal.env helper.env tokens.toml actor.token learner.token evaluator.token; do
  [ -e "$etc/$file" ] || install -o root -g shoal -m 0640 /dev/null "$etc/$file"
done

for unit in "$here"/*.service "$here"/shoal.target; do
  render "$unit" > "$units/.$name.new"
  mv "$units/.$name.new" "$units/$(unit_name "$unit")"
done
systemctl daemon-reload
version="$("$opt/bin/shoal" --version)"
echo "$version is installed in $opt. Settings: $etc/shoal.toml and $etc/shoal.env."
echo "Next: systemctl enable --now $name-replay@0 $name-learner $name-evaluator $name-actor@0 $name-actor@1"
