#!/usr/bin/env bash
# Fails if the committed generated code differs from what proto/ gives; uses Python $1.
set -euo pipefail
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
mkdir -p "$fresh/shoal/v1"
bash deploy/make/proto.sh "$fresh" "$1"
for file in "$fresh"/shoal/v1/*; do
  cmp -s "$file" "proto/shoal/v1/$(basename "$file")" || {
    echo "proto/shoal/v1/$(basename "$file") is not what proto/ gives; run: make proto" >&2
    exit 1
  }
done
for file in proto/shoal/v1/*_pb2*; do
  [ -e "$fresh/shoal/v1/$(basename "$file")" ] || { echo "$file has no .proto behind it; remove it" >&2; exit 1; }
done
echo "generated code: up to date"
