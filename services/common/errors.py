"""Errors that are a person's to mend, and the exit codes of every process."""

from __future__ import annotations

EXIT_OK = 0
EXIT_CRASH = 1  # a fault of ours or of a library: supervision restarts the process
EXIT_USER = 2  # a mistake that a restart does not mend: the message says what to do
EXIT_FENCED = 3  # a newer life of the same actor has taken over


class UserError(Exception):
    """Something that the user wrote or set up is wrong; the message says what, where, and what to do."""

    exit_code: int = EXIT_USER
    is_refusal = False  # of a peer: in a stop that was asked for, it is nobody's to mend


class Fenced(UserError):
    """Another, newer life of this process has taken its place: this one ends and is not restarted."""

    exit_code = EXIT_FENCED
    is_refusal = True


class Crash(Exception):
    """A fault that a restart may mend, and that one sentence tells as well as a traceback would."""

    exit_code: int = EXIT_CRASH
