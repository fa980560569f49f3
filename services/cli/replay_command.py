"""`shoal replay inspect`, `items` and `snapshot`: look into a ring's folder or at a replay that runs, and copy it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Callable, Sequence, TextIO

from services.cli.arguments import split_overrides
from services.cli.modules import INSPECT_FOLDER, become
from services.common.config.shipped import find_run_file, shipped_folders
from services.common.errors import EXIT_OK, UserError

NAMES = ("inspect", "items", "snapshot")
ORDERS = ("highest-priority", "oldest", "newest")
DEFAULT_ITEMS, MAX_ITEMS = 20, 10_000


def is_meant(words: Sequence[str]) -> bool:
    """Whether the words after `shoal replay` are for this module, and not for the service."""
    return (bool(words) and words[0] in NAMES) or list(words) in (["--help"], ["-h"])


def refuse_unknown(words: Sequence[str]) -> None:
    """Refuse a first word that is neither a command nor a run file.

    Raises:
        UserError: names the commands.
    """
    word = words[0] if words else "-"
    is_file = word.endswith(".toml") or find_run_file(Path(word), shipped_folders()).exists()
    if not word.startswith("-") and not is_file:
        raise UserError(
            f"there is no run file {word!r}, and no command of that name: `shoal replay` takes a .toml file, or one of "
            f"{', '.join(NAMES[:-1])} and {NAMES[-1]}"
        )


def run(words: Sequence[str], output: TextIO) -> int:
    """Run one of the three and return its exit code.

    Args:
        words: after `shoal replay`.
        output: receives the lines.

    Raises:
        UserError: the replay is not there, or cannot do what was asked.
    """
    rest, overrides = split_overrides(words)
    options = _parser().parse_args(rest)
    if options.command == "inspect":
        key = [] if options.key is None else ["--key", str(options.key)]
        become(INSPECT_FOLDER, [options.folder, *key, *(["--check"] if options.check else [])])
    from services.common.rpc import Unavailable

    try:
        output.write(_answer(options, overrides))
    except Unavailable as error:
        raise UserError(
            f"no answer from a replay at {options.address} ({error}); is it running? The line `replay listens` of its "
            "log has the address"
        ) from None
    return EXIT_OK


def _answer(options: argparse.Namespace, overrides: Sequence[str]) -> str:
    from services.cli.replay_operator import ReplayOperator
    from services.common.config.load import load

    security = load(None, overrides, os.environ).config.security
    with ReplayOperator(options.address, security) as replay:
        if options.command == "snapshot":
            return replay.snapshot(options.folder)
        if options.key is not None:
            _refuse_filters(options)
            return replay.item(options.key)
        return replay.items(options.order or ORDERS[0], options.max or DEFAULT_ITEMS, options.actor or "")


def _refuse_filters(options: argparse.Namespace) -> None:
    given = [f"--{name}" for name in ("order", "max", "actor") if getattr(options, name) is not None]
    if given:
        raise UserError(f"--key shows one item; leave out {' and '.join(given)}")


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text) if text.isdecimal() else -1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return number

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shoal replay",
        usage="shoal replay [FILE.toml] [--section.key VALUE ...]\n"
        "       shoal replay inspect DIR [--check | --key K]\n"
        "       shoal replay items ADDRESS [--order ORDER] [--max N] [--actor NAME] | --key K\n"
        "       shoal replay snapshot ADDRESS FOLDER",
        description="Run a replay, or look into one. `shoal config show` lists the keys of the run file.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", required=True, prog="shoal replay"
    )
    inspect = _add(
        commands, "inspect", "DIR [--check | --key K]", "what a ring's folder holds, whether a replay runs on it or not"
    )
    inspect.add_argument("folder", metavar="DIR", help="<replay.data_dir>/<run.name>, or a snapshot")
    look = inspect.add_mutually_exclusive_group()
    look.add_argument("--check", action="store_true", help="compare all rows with their CRC32C; 1: some are damaged")
    look.add_argument(
        "--key", type=_whole(0, 2**63 - 1), metavar="K", help="name the chunk that brought this row, as the log has it"
    )
    items = _add(commands, "items", "ADDRESS [options]", "the items of a replay that runs, and how they spread")
    _add_address(items)
    items.add_argument("--order", choices=ORDERS, help=f"which come first; else {ORDERS[0]}")
    items.add_argument("--max", type=_whole(1, MAX_ITEMS), metavar="N", help=f"how many; else {DEFAULT_ITEMS}")
    items.add_argument("--actor", metavar="NAME", help="of this actor alone")
    items.add_argument("--key", type=_whole(0, 2**63 - 1), metavar="K", help="one item in full, with its columns")
    snapshot = _add(commands, "snapshot", "ADDRESS FOLDER", "copy the ring of a replay while it works")
    _add_address(snapshot)
    snapshot.add_argument("folder", metavar="FOLDER", help="that does not exist yet, on the replay's machine")
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, usage: str, text: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name, usage=f"shoal replay {name} {usage}", help=text, description=f"Show {text}.", allow_abbrev=False
    )


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDRESS", help="HOST:PORT of the replay, as its first log line has it")
