"""The `shoal` command: one parser; what a command needs is imported when it runs, so that help is instant."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import List, Optional, Sequence

from services.cli import replay_command
from services.cli.arguments import refuse_repeated, split_overrides
from services.cli.modules import REPORT, SERVICES, become
from services.common.errors import EXIT_OK, EXIT_USER, UserError

# Commands with a parser of their own, `run(words, output)` of a module of services.cli, and what they are for.
COMMANDS = {
    "top": ("top_command", "watch a running system: rates, depths, lags, who waits, who is silent"),
    "drain": ("drain_command", "bring a run to rest, so that all of it can be stopped; --undo lets it go on"),
    "why": ("why_command", "say who waits, since when, for what, and what would release it"),
    "audit": ("audit_command", "check that every step is accounted for"),
    "staleness": ("staleness_command", "show how stale the data of a run were, by part and by actor"),
    "doctor": ("doctor_command", "find out what is wrong with an environment"),
    "certs": ("certs_command", "make a private CA, certificates and tokens"),
    "health": ("health_command", "ask a service whether it serves"),
}
OVERRIDES = "Any key of the run file can be set: --section.key VALUE, or SHOAL_SECTION__KEY in the environment."


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit code: 0, 2 for what the user can mend, or what the command says."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except UserError as error:
        sys.stdout.flush()
        for line in str(error).splitlines():
            print(f"shoal: {line}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader is gone; the interpreter's own flush at exit must not fail for it a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(words: List[str]) -> int:
    if words[:1] == ["replay"] and replay_command.is_meant(words[1:]):
        refuse_repeated(words)
        return replay_command.run(words[1:], sys.stdout)
    if words[:1] == ["replay"]:
        replay_command.refuse_unknown(words[1:])
    if words and words[0] in COMMANDS:
        refuse_repeated(words)
        module = importlib.import_module(f"services.cli.{COMMANDS[words[0]][0]}")
        code: int = module.run(words[1:], sys.stdout)
        return code
    if words and words[0] in SERVICES:
        become(SERVICES[words[0]], words[1:])
    rest, overrides = split_overrides(words)
    refuse_repeated(rest)
    parser = _parser()
    options = parser.parse_args(rest)
    if options.version:
        print(_version())
        return EXIT_OK
    if options.command is None:
        parser.print_help(sys.stderr)
        return EXIT_USER
    if options.command == "eval":
        if overrides:
            raise UserError(f"`shoal eval` takes the settings of the run's config.toml; leave out {overrides[0]}")
        become(REPORT, words[1:])
    if options.command == "config":
        from services.cli import config_command

        return config_command.run(options.what, options.file, overrides, os.environ, sys.stdout)
    from services.cli import up

    return up.run(options.target, overrides, verbose=options.verbose)


def _version() -> str:
    from importlib import metadata

    try:
        return f"shoal {metadata.version('shoal')}"
    except metadata.PackageNotFoundError:
        return "shoal (not installed, run from its source)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shoal",
        description="Train robot-arm policies with many actors, a prioritized replay and a learner.",
        epilog=OVERRIDES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_up(commands)
    _add_config(commands)
    _add_eval(commands)
    for name, (_module, text) in COMMANDS.items():
        commands.add_parser(name, help=f"{text}: shoal {name} --help", add_help=False)
    for name, text in (
        ("replay", "run a replay, or look into one (shoal replay --help)"),
        ("learner", "run the learner, or with --chief HOST:PORT a helper of one"),
        ("actor", "run an actor"),
        ("evaluator", "run the evaluator"),
    ):
        commands.add_parser(name, help=f"{text}: shoal {name} [FILE.toml] [--section.key VALUE ...]", add_help=False)
    return parser


def _add_up(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    up = commands.add_parser(
        "up",
        help="start everything on this machine, watch over it, and report at the end",
        description="Start replay, learner, evaluator and actors on this machine, restart what crashes, show what "
        "happens, and evaluate the policy when training is finished. Ctrl-C stops all; the same command resumes.",
        epilog=OVERRIDES,
        usage="shoal up FILE.toml|RUN_FOLDER [--verbose] [--section.key VALUE ...]",
        allow_abbrev=False,
    )
    up.add_argument("target", metavar="FILE.toml|RUN_FOLDER", help="a run file, or the folder of a run to resume")
    up.add_argument("--verbose", action="store_true", help="show every log line beside the live view")


def _add_config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    config = commands.add_parser(
        "config",
        help="show the resolved run file and where each value comes from, or check it",
        description="Resolve defaults, the run file, the environment and flags as a service would.",
        epilog=OVERRIDES,
        usage="shoal config {show,check} [FILE.toml] [--section.key VALUE ...]",
        allow_abbrev=False,
    )
    config.add_argument(
        "what", choices=("show", "check"), help="show: every value and its origin; check: ok, or why not"
    )
    config.add_argument("file", metavar="FILE.toml", nargs="?", help="a run file; without it: the defaults")


def _add_eval(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    evaluation = commands.add_parser(
        "eval",
        help="evaluate the best policy of a run on held-out goals",
        description="Evaluate a run's best policy on goals that did not choose it; writes the report to its folder.",
        allow_abbrev=False,
    )
    evaluation.add_argument("run", metavar="RUN_FOLDER", help="the folder of a run")
    evaluation.add_argument("--episodes", type=int, metavar="N", help="episodes; else report.episodes of the run")
    video = evaluation.add_mutually_exclusive_group()
    video.add_argument("--video", action="store_true", help="draw eval.mp4")
    video.add_argument("--no-video", action="store_true", help="draw no video")
    evaluation.add_argument("--seed", type=int, metavar="S", help="other goals and noise; else made of run.seed")


if __name__ == "__main__":
    sys.exit(main())
