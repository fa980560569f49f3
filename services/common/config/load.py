"""From file, environment and flags to a checked `RunConfig`, with the origin of each value.

Later ones win: defaults, the TOML file, `SHOAL_SECTION__KEY` variables, `--section.key VALUE` flags. A value from a
variable or a flag is read as TOML would read it; what TOML cannot read is a string.
"""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import tomli_w
from pydantic import BaseModel, ValidationError

from services.common.config.run import RunConfig
from services.common.config.shipped import find_run_file, shipped_folders
from services.common.config.wording import reason
from services.common.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENV_PREFIX = "SHOAL_"
KeyPath = Tuple[str, ...]  # keys from the top of the run file down to a value


class ConfigError(UserError):
    """The run file, a variable or a flag is wrong; the message holds one sentence a line for the user."""


@dataclass(frozen=True)
class LoadedConfig:
    """A checked run file and where each of its values came from."""

    config: RunConfig
    origins: Mapping[KeyPath, str]  # of values that are not defaults: a file, a variable, a flag

    def lines(self) -> Iterator[Tuple[str, Any, str]]:
        """Each value as (dotted key, value, origin)."""
        for path, value in _leaves(self.config.model_dump()):
            origin = next(
                (self.origins[path[:i]] for i in range(len(path), 0, -1) if path[:i] in self.origins), "default"
            )
            yield ".".join(path), value, origin

    def is_set(self, dotted_key: str) -> bool:
        """Whether somebody chose this value: it is not a default."""
        return tuple(dotted_key.split(".")) in self.origins


def to_toml(config: RunConfig, left_out: Collection[str] = ()) -> str:
    """The resolved config as a run file, without the dotted keys `left_out`."""
    tree: Dict[str, Any] = {}
    for path, value in _leaves(config.model_dump(exclude_none=True)):
        if ".".join(path[:2]) not in left_out:
            _put(tree, path, list(value) if isinstance(value, tuple) else value, "")
    return tomli_w.dumps(tree)


def load(file: Optional[Path], flags: Sequence[str] = (), environ: Optional[Mapping[str, str]] = None) -> LoadedConfig:
    """Read and check a run file with its overrides.

    Args:
        file: the TOML file, the name of one that comes with shoal, or None for defaults alone.
        flags: `--section.key VALUE` or `--section.key=VALUE`.
        environ: variables; those that begin with SHOAL_ count.

    Raises:
        ConfigError: anything at all is wrong with what the user wrote.
    """
    merged: Dict[str, Any] = {}
    origins: Dict[KeyPath, str] = {}
    sources: List[Tuple[str, KeyPath, Any]] = []
    if file is not None:
        file = find_run_file(file, shipped_folders())
        sources += [(file.name, path, value) for path, value in _leaves(_read_toml(file))]
    sources += _from_environ(environ or {})
    sources += _from_flags(flags)
    for origin, path, value in sources:
        _put(merged, path, value, origin)
        origins[path] = origin
    try:
        config = RunConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("\n".join(_sentence(item, origins) for item in _first_causes(error.errors()))) from None
    return LoadedConfig(config, origins)


def _read_toml(file: Path) -> Dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no run file {str(file)!r}; give the path of a .toml file, or the name of one that comes with "
            f"shoal ({_shipped_names()})"
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{str(file)!r} is a folder; give the path of a .toml file, see configs/") from None
    except OSError as error:
        raise ConfigError(f"the run file {str(file)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the run file {str(file)!r} is not a text file; give a .toml file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the run file {str(file)!r} is not TOML: {error}") from None


def _shipped_names() -> str:
    names = {file.stem for folder in shipped_folders() for file in folder.glob("*.toml")}
    return ", ".join(sorted(names)) or "none is installed"


def _from_environ(environ: Mapping[str, str]) -> Iterator[Tuple[str, KeyPath, Any]]:
    for name, text in sorted(environ.items()):
        if name.startswith(ENV_PREFIX):
            path = tuple(name[len(ENV_PREFIX) :].lower().split("__"))
            yield f"variable {name}", path, _read_value(text)


def _from_flags(flags: Sequence[str]) -> Iterator[Tuple[str, KeyPath, Any]]:
    rest = list(flags)
    seen: Set[KeyPath] = set()
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or "." not in flag.split("=")[0]:
            raise ConfigError(f"{flag!r} is no flag of the run file; write --section.key VALUE, as in --run.seed 2")
        name, equals, text = flag[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"flag --{name} has no value; write --{name} VALUE")
            text = rest.pop(0)
        path = tuple(name.replace("-", "_").split("."))
        if path in seen:
            raise ConfigError(f"flag --{name} is given twice; leave one of them out")
        seen.add(path)
        yield f"flag --{name}", path, _read_value(text)


def _read_value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A date is a name here, as in --run.name 2026-01-31; more than one key means that `text` holds a line's end.
    return read["value"] if len(read) == 1 and not isinstance(read["value"], (date, time)) else text


def _put(tree: Dict[str, Any], path: KeyPath, value: Any, origin: str) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{'.'.join(path)} ({origin}): {key!r} is a value, not a section")
    tree[path[-1]] = value


def _leaves(tree: Mapping[str, Any], above: KeyPath = ()) -> Iterator[Tuple[KeyPath, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _first_causes(errors: Sequence[Any]) -> List[Any]:
    """Without those of a list that is short because of what is wrong inside of it."""
    inside = {error["loc"][:-1] for error in errors}
    return [error for error in errors if error["type"] != "too_short" or error["loc"] not in inside]


def _sentence(error: Any, origins: Mapping[KeyPath, str]) -> str:
    path = tuple(str(part) for part in error["loc"])
    key = ".".join(path)
    where = next((origins[path[:i]] for i in range(len(path), 0, -1) if path[:i] in origins), "")
    where = where or next((origin for known, origin in origins.items() if known[: len(path)] == path), "default")
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}{_nearest(path)}"
    why = reason(error)
    if path[-1:] == ("[key]",):  # pydantic's word for a key of a mapping that may not stand there
        return f"{where}: unknown key {'.'.join(path[:-1])!r}: {why}"
    if not path:  # a disagreement between values: say who chose them
        chosen = [f"{'.'.join(known)}: {origin}" for known, origin in origins.items() if ".".join(known) in why]
        return f"{why} ({', '.join(chosen)})" if chosen else why
    if error["type"] == "value_error":
        return f"{key} ({where}): {why}"
    return f"{key} = {error['input']!r} ({where}): {why}"


def _nearest(path: KeyPath) -> str:
    known = [".".join(leaf) for leaf in known_keys()]
    near = difflib.get_close_matches(".".join(path), known, n=1, cutoff=0.6)
    if not near:
        near = [k for k in known if k.split(".")[-1] == path[-1]][:1]
    return f"; did you mean {near[0]!r}?" if near else "; `shoal config show` lists the known ones"


def known_keys() -> List[KeyPath]:
    """Every section and key of the run file."""
    keys: List[KeyPath] = []
    for section, info in RunConfig.model_fields.items():
        keys.append((section,))
        model = info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            keys += [(section, key) for key in model.model_fields]
    return keys
