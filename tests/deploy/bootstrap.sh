#!/usr/bin/env bash
# A Debian root file system that serves both as machines with systemd and as the base of images: made once, and kept
# outside of the checkout, since it takes three minutes.
set -euo pipefail

cache="${SHOAL_DEPLOY_CACHE:-$HOME/.cache/shoal-deploy}"
suite=bookworm
packages=systemd,systemd-sysv,dbus,iproute2,python3,python3-venv,python3-pip,ca-certificates,procps,openssh-server
packages+=,prometheus
root="$cache/root-$suite-2.tar"  # raise the number when the packages change

if [ ! -s "$root" ]; then
  mkdir -p "$cache"
  aside="$(mktemp "$cache/aside-XXXXXX.tar")"
  trap 'rm -f "$aside"' EXIT
  echo "making a Debian root file system (three minutes, once)" >&2
  for try in 1 2 3; do  # a fetch may fail
    mmdebstrap --quiet --variant=minbase --include="$packages" "$suite" "$aside" && break
    [ "$try" -lt 3 ]
  done
  mv "$aside" "$root"
  trap - EXIT
fi
echo "$root"
