"""One trial of an environment, in a process of its own: `python -m services.actor.conformance.trial TRIAL.json`.

A simulator may end its process, hang, or refuse to be built twice in one; whoever started the trial lives on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from services.actor.conformance.episode_checks import check_episodes
from services.actor.conformance.finding import Finding, fault, ok
from services.actor.conformance.probes import Buffers, copied, probe_bounds, probe_seeds, random_actions
from services.actor.conformance.record import Record
from services.actor.conformance.reset_checks import check_resets
from services.actor.conformance.trace import Trace
from services.actor.conformance.value_checks import check_values
from services.actor.envs.checked_env import without_exit
from services.actor.envs.contract import EnvStep, VectorEnv
from services.actor.envs.factory import close_quietly, make_env
from services.actor.envs.host_tensors import to_host
from services.actor.envs.promises import EnvFactoryError, observation_problems, step_problems
from services.agent.registry import check_action
from services.common.config.load import load
from services.common.config.run import RunConfig
from services.common.errors import EXIT_OK
from services.common.schema import Schema, SchemaError

STAGE_BYTES = 64


@dataclass(frozen=True)
class Trial:
    """What to do, and where to write what came of it."""

    file: str  # the run file
    flags: Tuple[str, ...]  # its overrides
    steps: int  # calls of step, at most
    seconds: float  # of stepping, at most
    result: str  # file for findings; none is written when the process ends early
    record: str  # file for the first steps in full
    stage: str  # file that says what is being done, at any time
    is_repeat: bool  # the record alone, to be compared with another

    @classmethod
    def load(cls, path: Path) -> Trial:
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**data, "flags": tuple(data["flags"])})

    def save(self, path: Path) -> None:
        """The inverse of `load`."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


class Stage:
    """Says in a file what is being done, so that it is known when the process does not return from it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)

    def __call__(self, what: str) -> None:
        os.pwrite(self._file, what.encode()[:STAGE_BYTES].ljust(STAGE_BYTES), 0)


class _StepFailed(Exception):
    """The finding that ends the stepping."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


def main(arguments: Sequence[str]) -> int:
    """Do what the file says."""
    faulthandler.enable()
    trial = Trial.load(Path(arguments[0]))
    stage = Stage(trial.stage)
    config = load(Path(trial.file), list(trial.flags), os.environ).config
    examination = Examination(trial, config, stage)
    findings = list(examination.run())
    result = {"findings": [finding.to_dict() for finding in findings], "calls": examination.calls}
    Path(trial.result).write_text(json.dumps(result), encoding="utf-8")
    stage("the end of the process")
    return EXIT_OK


class Examination:
    """Builds the environment, steps it, tries things out, and closes it."""

    def __init__(self, trial: Trial, config: RunConfig, stage: Stage) -> None:
        self._trial = trial
        self._config = config
        self._stage = stage
        self._seed = config.run.seed
        self._problems: Dict[str, int] = {}  # sentence -> call
        self.calls = 0

    def run(self) -> Iterator[Finding]:
        """All findings of a first trial; of a repeated one those alone that ended it."""
        settings = self._config.env
        self._stage("the import and the factory")
        begun = time.perf_counter()
        try:
            env = make_env(settings.factory, settings.kwargs, settings.lanes, self._seed)
        except EnvFactoryError as error:
            traceback.print_exception(type(error.__cause__), error.__cause__, None) if error.__cause__ else None
            yield fault("build", str(error), "mend this first: nothing else could be looked at")
            return
        yield ok("build", f"{type(env).__name__} of {env.num_lanes} lanes in {time.perf_counter() - begun:.1f} s")
        try:
            yield from self._examine(env)
        finally:
            self._stage("close")
            close_quietly(env)

    def _examine(self, env: VectorEnv) -> Iterator[Finding]:
        trace = Trace(env.num_lanes, env.autoreset, tuple(env.observation_spec))
        buffers = Buffers()
        failed: Optional[Finding] = None
        try:
            self._steps(env, trace, buffers)
        except _StepFailed as failure:
            failed = failure.finding
        self.calls = trace.calls
        if self._trial.is_repeat:
            if failed:
                yield failed
            return
        yield from self._form(env)
        if failed:
            yield failed
        if trace.calls:
            yield from check_resets(trace)
            yield from check_episodes(trace)
            yield from check_values(trace)
            yield from buffers.findings()
        if not failed:
            yield from self._probe(env)

    def _form(self, env: VectorEnv) -> Iterator[Finding]:
        """Shapes, dtypes and whether the algorithm can act here."""
        action = env.action_spec
        actions = (
            f"one of {action.num_actions}" if action.is_discrete else f"float32 {list(action.shape)} within bounds"
        )
        tensors = ", ".join(f"{spec.name} {spec.dtype} {list(spec.shape)}" for spec in env.observation_spec)
        for problem, call in self._problems.items():
            when = "in the reset" if call == 0 else f"in call {call} of step"
            yield fault(
                "shapes and dtypes", f"{problem} ({when})", "return what was promised, or promise what is returned"
            )
        if not self._problems:
            yield ok("shapes and dtypes", f"{tensors}; actions {actions}")
        try:
            Schema(tuple(env.observation_spec), action)
            check_action(self._config.algorithm.name, action)
        except SchemaError as error:
            yield fault("algorithm", str(error), "choose another algorithm.name, or another environment")

    def _steps(self, env: VectorEnv, trace: Trace, buffers: Buffers) -> None:
        """Step with random actions until enough was seen, and write the record.

        Raises:
            _StepFailed: the environment raised, or handed out what cannot be read.
        """
        rng = np.random.default_rng(self._seed)
        self._stage("reset")
        observation = self._call("reset", 0, lambda: env.reset(self._seed))
        self._note(list(observation_problems(env, observation)), 0)
        acted_on = copied(observation)
        record = Record(acted_on)
        try:
            end = time.perf_counter() + self._trial.seconds
            while trace.calls < self._trial.steps and time.perf_counter() < end:
                if self._trial.is_repeat and record.is_full:
                    break
                call = trace.calls + 1
                self._stage(f"step, call {call}")
                action = random_actions(env.action_spec, env.num_lanes, rng)
                sent = action.copy()
                begun = time.perf_counter()
                step = self._call("step", call, lambda sent=sent: env.step(sent))
                trace.step_seconds += time.perf_counter() - begun
                self._note(list(step_problems(env, step)), call)
                buffers.note_action(sent, action)
                buffers.look()
                buffers.keep(step)
                record.add(step)
                trace.note(acted_on, _as_bool(step))
                acted_on = copied(step.observation)
        finally:
            record.save(self._trial.record)

    def _call(self, what: str, call: int, function: Any) -> Any:
        """Call the environment; whatever it raises becomes a finding."""
        try:
            with without_exit(self._config.env.factory, what):
                return function()
        except Exception as error:
            traceback.print_exc()
            where = f"{what}, call {call}" if call else what
            if isinstance(error, EnvFactoryError):
                finding = fault("crash", f"{error} ({where})", "see the traceback above")
            else:
                text = f"{type(error).__name__}: {error}".rstrip(": ")
                finding = fault("crash", f"{where} raised {text}", "see the traceback above")
            raise _StepFailed(finding) from error

    def _note(self, problems: List[Any], call: int) -> None:
        for problem in problems:
            self._problems.setdefault(problem.text, call)
        if not all(problem.is_readable for problem in problems):
            raise _StepFailed(
                fault(
                    "stepping", f"ended in call {call} of step", "mend shapes and dtypes: the rest cannot be looked at"
                )
            )

    def _probe(self, env: VectorEnv) -> Iterator[Finding]:
        for name, probe in (("seeds", probe_seeds), ("bounds", probe_bounds)):
            self._stage(f"the experiment with {name}")
            try:
                with without_exit(self._config.env.factory, f"an experiment with {name}"):
                    found = list(probe(env, self._seed))
            except Exception as error:  # noqa: BLE001 (whatever it raises becomes a finding)
                traceback.print_exc()
                yield fault(name, f"an experiment raised {type(error).__name__}: {error}", "see the traceback above")
                return
            yield from found


def _as_bool(step: EnvStep) -> EnvStep:
    """Flags of another dtype are told of once, and read as what they mean."""
    with contextlib.suppress(TypeError):
        for flag in ("terminated", "truncated", "valid"):
            setattr(step, flag, to_host(getattr(step, flag)).astype(np.bool_))
    return step


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
