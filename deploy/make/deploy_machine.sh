#!/usr/bin/env bash
# Makes this machine one on which `make deploy-test` can run: installs what it needs, and tries what the kernel must allow.
# Ends with 1, and a line that says why, where that cannot be.
set -euo pipefail
packages=(docker.io iptables mmdebstrap systemd-container iproute2 procps prometheus prometheus-alertmanager)

lacks() { echo "NOT TESTED: deployment; $1" >&2; exit 1; }

[ "$(id -u)" = 0 ] || lacks "it takes root"
command -v apt-get >/dev/null || lacks "there is no apt-get"
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -qq || lacks "apt-get finds no packages"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    lacks "apt-get cannot install ${missing[*]}"
fi

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
mkdir "$folder"/{lower,upper,work,merged}
unshare --mount --net --pid --fork bash -c '
  mount -t overlay -o "lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work" none "$0/merged" && ip link add up type veth peer down
' "$folder" 2>/dev/null || lacks "the kernel refuses namespaces, overlay mounts or veth pairs"
