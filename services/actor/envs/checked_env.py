"""An environment whose first step is checked, and which cannot end the process."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional, Type

import numpy.typing as npt

from services.actor.envs.contract import EnvStep, Observation, VectorEnv
from services.actor.envs.promises import EnvFactoryError, check_step
from services.actor.envs.wrapped_env import WrappedEnv
from services.common.errors import Crash


class CheckedEnv(WrappedEnv):
    """An environment whose members have been checked already.

    Args:
        factory: as the run file names it, for the sentences.
        env: the environment.
    """

    def __init__(self, factory: str, env: VectorEnv) -> None:
        super().__init__(env)
        self._factory = factory
        self._is_checked = False

    def reset(self, seed: Optional[int] = None) -> Observation:
        """As the environment.

        Raises:
            EnvFactoryError: the environment would have ended the process.
        """
        with without_exit(self._factory, "reset"):
            return self._env.reset(seed)

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """As the environment. What it raises is passed on: a simulator's crash is one of the process.

        Raises:
            EnvFactoryError: the first step is not what the contract promises.
            Crash: the environment would have ended the process, as a simulator does whose window was closed.
        """
        with without_exit(self._factory, "step", Crash):
            step = self._env.step(action)
        if not self._is_checked:
            check_step(self._factory, self._env, step)
            self._is_checked = True
        return step

    def close(self) -> None:
        """As the environment; one that ends the process with itself changes no exit code."""
        with contextlib.suppress(SystemExit):
            self._env.close()


@contextlib.contextmanager
def without_exit(factory: str, where: str, error_class: Type[Exception] = EnvFactoryError) -> Iterator[None]:
    """Turn an end of the process into a sentence: an exit code of 0 would say that all is done.

    Args:
        factory: as the run file names it.
        where: the user's code that runs inside.
        error_class: of what is raised: a mistake to mend, or a crash that a restart may mend.

    Raises:
        error_class: it called `sys.exit` or `quit`, or raised another exception that is meant to pass all handlers.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        what = type(error).__name__
        if isinstance(error, SystemExit):
            what = f"sys.exit({'' if error.code is None else repr(error.code)})"
        raise error_class(
            f"environment {factory!r}: the environment ended the process: {what} in {where}; let it raise an exception"
            " instead"
        ) from error
