#!/bin/sh
# What the services of a box prove themselves with: a CA and tokens, made once, and a certificate for each service, made
# anew at a start when half of its year is over. $1: a folder of folders, one for each service; each gets its own alone.
set -eu
umask 027
keys="$1" authority="$1/authority"

# Made aside: a start that was interrupted leaves no half of it.
if [ ! -d "$authority/ca" ]; then
  rm -rf "$authority/aside"
  shoal certs init "$authority/aside" >/dev/null
  mv "$authority/aside" "$authority/ca"
fi

give() {  # file, folder, name: services read files again that were replaced
  cp "$1" "$keys/$2/.$3"
  chmod 0640 "$keys/$2/.$3"
  mv "$keys/$2/.$3" "$keys/$2/$3"
}

for role in replay learner evaluator actor; do
  if [ -z "$(find "$authority/ca/$role.pem" -mtime -180 2>/dev/null)" ]; then
    shoal certs issue "$authority/ca" "$role" "$role" >/dev/null
  fi
  give "$authority/ca/$role.pem" "$role" certificate.pem
  give "$authority/ca/$role-key.pem" "$role" key.pem
  give "$authority/ca/tokens.toml" "$role" tokens.toml
done
for role in replay learner evaluator actor prometheus operator; do
  give "$authority/ca/ca.pem" "$role" ca.pem
done
for role in learner evaluator actor operator; do
  give "$authority/ca/$role.token" "$role" token
done
give "$authority/ca/monitor.token" prometheus token

# Grafana's password: GRAFANA_PASSWORD of .env, else a random one that stays.
chosen="$(sed -n 's/^password=//p' "${GRAFANA_PASSWORD_FILE:-/dev/null}")"
if [ -n "$chosen" ]; then
  printf '%s' "$chosen" >"$authority/grafana"
elif [ ! -s "$authority/grafana" ]; then
  python -c 'import secrets; print(secrets.token_urlsafe(18), end="")' >"$authority/grafana"
fi
give "$authority/grafana" grafana password
echo "shoal: the keys of the box are in place"
