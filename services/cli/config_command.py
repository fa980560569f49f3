"""`shoal config`: the resolved run file with the origin of each value, or a check of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, TextIO, Tuple

from services.common.config.load import LoadedConfig, load
from services.common.errors import EXIT_OK

MAX_ALIGNED_WIDTH = 48  # longer lines do not push every origin to the right


def run(what: str, file: Optional[str], overrides: Sequence[str], environ: Mapping[str, str], output: TextIO) -> int:
    """Show or check the run file and return the exit code.

    Args:
        what: "show" or "check".
        file: path of the run file, or None for defaults.
        overrides: flags.
        environ: variables.
        output: receives the lines.

    Raises:
        ConfigError: something is wrong with what the user wrote.
    """
    loaded = load(Path(file) if file else None, overrides, environ)
    if what == "check":
        output.write("ok\n")
    else:
        output.write(show(loaded))
    return EXIT_OK


def show(loaded: LoadedConfig) -> str:
    """Every value as a TOML file that could be used as a run file, the origins as comments."""
    sections: Dict[str, List[Tuple[str, str]]] = {}
    for dotted, value, origin in loaded.lines():
        section, _, key = dotted.partition(".")
        text = f"# {key} is not set" if value is None else f"{key} = {toml_value(value)}"
        sections.setdefault(section, []).append((text, origin))
    texts = [text for lines in sections.values() for text, _origin in lines if len(text) <= MAX_ALIGNED_WIDTH]
    width = max(map(len, texts), default=0)
    return "\n".join(
        f"[{section}]\n" + "".join(f"{text:<{width}}  # {origin}\n" for text, origin in lines)
        for section, lines in sections.items()
    )


def toml_value(value: Any) -> str:
    """A value on one line, as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML basic string once the one character that JSON leaves bare is escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(inner) for inner in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_value(key)} = {toml_value(inner)}" for key, inner in value.items()) + "}"
    return str(value)
