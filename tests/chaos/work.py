"""Who does what it is for, as far as one sees from outside: new lives, and those that lived through a fault."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, FrozenSet, List

from services.common.run_folder import RunFolder
from tests.chaos.journal import Answer, read_journals
from tests.chaos.observer import Observer, ask_replay
from tests.chaos.pushes import PushAnswer, read_pushes
from tests.chaos.system import System, role_of

AGAIN_UPDATES = 20


@dataclass(frozen=True)
class Mark:
    """An instant, and how far training was."""

    at_s: float  # by the monotonic clock
    updates: int
    version: int  # the newest


class Work:
    """Looks at the work of each service of a system."""

    def __init__(self, system: System, observer: Observer) -> None:
        self._system = system
        self._observer = observer
        self._run_folder = RunFolder(system.run_folder)
        self._known: Dict[str, FrozenSet[object]] = {}  # lives of each service that were seen before its last end
        self._known_version: Dict[str, int] = {}  # the newest version at its last end

    def lives(self, name: str) -> FrozenSet[object]:
        """What tells the lives of a service apart, of those that were seen so far."""
        role = role_of(name)
        learner, replay = self._observer.learner, self._observer.replay
        if role == "actor":
            return frozenset(file.name for file in self._system.journals.glob(f"{name}-*.jsonl"))
        if role == "helper":
            return frozenset(push.life for push in read_pushes(self._system.pushes))
        if role == "replay":
            return frozenset({replay.replay_incarnation} if replay else ())
        if role == "learner":
            return frozenset({learner.chief_incarnation} if learner else ())
        return frozenset(reader.incarnation for reader in (learner.readers if learner else ()) if reader.name == name)

    def remember(self, name: str) -> None:
        """Its next life is another one than those that were seen up to now."""
        self._known[name] = self.lives(name)
        self._known_version[name] = self._observer.watch.version

    def has_begun(self, name: str) -> bool:
        """Whether a life of `name` that was not there at its last end does what it is for."""
        role, known = role_of(name), self._known.get(name, frozenset())
        if role == "replay":
            answer = ask_replay(self._system.target())
            return answer is not None and answer.replay_incarnation not in known and answer.num_items > 0
        if role == "actor":
            return any(answer.acknowledged and answer.num_steps for answer in self._answers_of(name, known))
        if role == "helper":
            return any(push.accepted and push.life not in known for push in read_pushes(self._system.pushes))
        learner = self._observer.learner
        if learner is None:
            return False
        if role == "learner":
            return learner.chief_incarnation not in known and self._observer.watch.trains(learner)
        is_new = any(reader.name == name and reader.incarnation not in known for reader in learner.readers)
        return is_new and self._newest_judged() > self._known_version.get(name, 0)

    def goes_on(self, name: str, mark: Mark) -> bool:
        """Whether `name` has done since then what it is for.

        An evaluator has judged a version that was not there yet; a helper's gradient was taken; an actor's chunk was
        acknowledged; the learner has made updates, and the replay is what it drew from.
        """
        role = role_of(name)
        if role == "actor":
            answers = self._answers_of(name, frozenset())
            return any(answer.acknowledged and answer.num_steps and answer.at_s > mark.at_s for answer in answers)
        if role == "helper":
            return any(push.accepted and push.at_s > mark.at_s for push in read_pushes(self._system.pushes))
        if role == "evaluator":
            return self._newest_judged() > mark.version
        if role == "replay" and self._observer.replay is None:
            return False
        return self.updates >= mark.updates + AGAIN_UPDATES

    @property
    def updates(self) -> int:
        """Of the present life of the learner; 0 while it does not answer."""
        learner = self._observer.learner
        return learner.updates if learner else 0

    def best_success(self, mark: Mark) -> float:
        """Of the versions that were published after `mark`; -1 while none was judged."""
        judged = self._run_folder.evaluations()
        return max((each.success_rate for each in judged if each.version > mark.version), default=-1.0)

    def judged_versions(self) -> List[int]:
        """In the order of their judgement."""
        return [each.version for each in self._run_folder.evaluations()]

    def checkpoints(self) -> List[Path]:
        """Those that are whole, the oldest first."""
        return sorted(self._system.run_folder.glob("checkpoints/[!.]*.safetensors"))

    def count_resends(self) -> int:
        """Chunks that were sent though nobody needed it."""
        return sum(answer.resent for answer in read_journals(self._system.journals))

    def pushes(self) -> List[PushAnswer]:
        """What helpers were told about their gradients."""
        return read_pushes(self._system.pushes)

    def _newest_judged(self) -> int:
        return max(self.judged_versions(), default=0)

    def _answers_of(self, name: str, known: FrozenSet[object]) -> List[Answer]:
        files = [f for f in self._system.journals.glob(f"{name}-*.jsonl") if f.name not in known]
        return [answer for file in files for answer in read_journals(file.parent, file.name)]
