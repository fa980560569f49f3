# Sourced by the benchmarks: venvs for peers, under $venvs. One that cannot be had leaves NAME.missing with the reason.

missing() {  # name, reason
  echo "shoal: NOT MEASURED: $1: $2" >&2
  echo "$2" > "$venvs/$1.missing"
}

venv() {  # name, python, check, packages...
  local name="$1" base="$2" check="$3"; shift 3
  local stamp="$venvs/$name/.installed"
  if [ "$(cat "$stamp" 2>/dev/null)" != "$*" ]; then
    rm -rf "${venvs:?}/$name"
    if ! { "$base" -m venv "$venvs/$name" && "$venvs/$name/bin/pip" install --quiet "$@"; }; then
      missing "$name" "its packages could not be installed: $*"
      return
    fi
    echo "$*" > "$stamp"
  fi
  if ! "$venvs/$name/bin/python" -W ignore -c "$check" >/dev/null 2>"$venvs/$name.log"; then
    missing "$name" "it is installed but does not load: $(tail -n 1 "$venvs/$name.log")"
    return
  fi
  rm -f "$venvs/$name.missing"
}
