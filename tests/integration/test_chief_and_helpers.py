"""A chief and its helpers train together, over real connections, and each may end and come back."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any, Callable, Iterator, List, Optional, Tuple

import pytest

from services.common.errors import EXIT_USER, UserError
from services.common.lifecycle import Lifecycle
from services.learner.helper_checkpoint import load_helper_state
from tests.conftest import Eventually
from tests.fakes import RUN_ID, SCHEMA, FakeClock, FakeLog, make_chunk
from tests.training_run import Run, table_of


class HelperLife:
    """One life of a helper, on a thread."""

    def __init__(self, run: Run, address: str, name: str = "helper-0", **changes: Any) -> None:
        self.log = FakeLog()
        self.life = Lifecycle()
        self.error: Optional[BaseException] = None
        values = {"helper.chief": address, "helper.name": name, "learner.address": address, **changes}
        self._config = run._load(**values)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        from services.learner.helper import Helper

        try:
            with Helper(self._config, self.life, self.log) as helper:
                helper.contribute()
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            self.error = error

    def stop(self) -> None:
        self.life.stop("the test says so")
        self.join()

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the helper does not end"


@pytest.fixture
def run(run: Run) -> Run:
    """A run that has experience."""
    run.fill()
    return run


Help = Callable[..., HelperLife]


@pytest.fixture
def helps(run: Run) -> Iterator[Help]:
    started: List[HelperLife] = []

    def start(*arguments: Any, **more: Any) -> HelperLife:
        started.append(HelperLife(run, *arguments, **more))
        return started[-1]

    yield start
    for life in started:
        life.stop()


def chief_of(run: Run, address: str, updates: int, life: Optional[Lifecycle] = None, **changes: Any) -> Tuple[Any, Any]:
    """A whole life of the chief: its answers by status, and its checkpoint."""
    from services.learner.checkpoint import CheckpointFolder
    from services.learner.chief import Chief

    config = run._load(**{"learner.address": address, "learner.max_updates": updates, **changes})
    with Chief(config, life or Lifecycle(), run.log) as chief:
        chief.train()
        chief.say_farewell()
        registry = chief._metrics.registry
    return registry, CheckpointFolder(run.tmp_path / RUN_ID / "checkpoints", run.log).load_newest()


@contextlib.contextmanager
def data_come_with(run: Run, num_helpers: int) -> Iterator[None]:
    """Experience comes when so many helpers have joined, counted from now on: no update is made without them."""
    run.servicer._table = run.servicer._make_table(SCHEMA)  # known, and empty
    joined_before, over = run.log.events().count("a helper joins"), threading.Event()

    def fill() -> None:
        while run.log.events().count("a helper joins") < joined_before + num_helpers:
            if over.wait(0.005):
                return
        table_of(run.servicer).insert("actor-0", 1, make_chunk(64, 2), max_wait_s=0)

    filler = threading.Thread(target=fill)
    filler.start()
    try:
        yield
    finally:
        over.set()
        filler.join()


def count(registry: Any, name: str) -> float:
    value = registry.get_sample_value(f"shoal_learner_gradient_{name}", {"run": RUN_ID})
    assert value is not None, name
    return float(value)


def steps_together(registry: Any) -> float:
    return count(registry, "wait_seconds_count")


def test_a_chief_and_two_helpers_train_to_the_end(run: Run, helps: Help, free_address: Callable[[], str]) -> None:
    address = free_address()
    helpers = [helps(address, f"helper-{number}") for number in range(2)]  # before there is a chief
    with data_come_with(run, 2):
        registry, checkpoint = chief_of(run, address, 200)
    for helper in helpers:
        helper.join()
        assert helper.error is None
        assert "training is finished: no more help is needed" in helper.log.events()
    assert checkpoint.progress.updates == 200
    # Each step took one gradient of each, but for those that a stall of the machine cost.
    together = steps_together(registry)
    assert together > 100
    assert count(registry, "accepted_total") >= together - count(registry, "too_stale_total")
    assert count(registry, "received_bytes_total") < 0.5 * count(registry, "raw_bytes_total")
    assert count(registry, "non_finite_total") == count(registry, "bad_checksum_total") == 0
    for number in range(2):
        state = load_helper_state(run.tmp_path / RUN_ID / "helpers" / f"helper-{number}.safetensors", run.log)
        assert state.sequence > 100
        assert {name.split(".")[0] for name in state.residual} == {"policy", "critics"}
        assert list(state.generator) == ["generator"]


def test_a_killed_chief_comes_back_and_its_helper_goes_on_with_it(
    run: Run, helps: Help, free_address: Callable[[], str], eventually: Eventually
) -> None:
    address = free_address()
    helper = helps(address)
    life = Lifecycle()

    def kill_soon() -> None:
        eventually(lambda: "helping the chief" in helper.log.events())
        life.stop("killed")

    killer = threading.Thread(target=kill_soon)
    killer.start()
    _, first = chief_of(run, address, 10**6, life)
    killer.join(10)
    with data_come_with(run, 1):
        registry, second = chief_of(run, address, first.progress.updates + 200)
    helper.join()
    assert helper.error is None
    assert helper.log.events().count("helping the chief") == 2
    assert second.progress.updates == first.progress.updates + 200
    assert second.history[-1].version > first.history[-1].version
    assert count(registry, "accepted_total") > 100


def test_a_helper_that_stops_leaves_and_its_next_life_takes_up_its_residual(
    run: Run, helps: Help, free_address: Callable[[], str], eventually: Eventually
) -> None:
    address = free_address()
    life = Lifecycle()
    chief = threading.Thread(target=lambda: chief_of(run, address, 10**6, life))
    chief.start()
    file = run.tmp_path / RUN_ID / "helpers" / "helper-0.safetensors"
    try:
        first = helps(address)
        eventually(lambda: load_helper_state(file, run.log).sequence > 20)
        first.stop()
        assert first.error is None
        eventually(lambda: "a helper leaves" in run.log.events())
        left = load_helper_state(file, run.log)
        second = helps(address)
        eventually(lambda: "resumed" in second.log.events())
        (values,) = [values for _, event, values in second.log.lines if event == "resumed"]
        assert values["sequence"] == left.sequence
        assert values["residual_norm"] > 0
        eventually(lambda: load_helper_state(file, run.log).sequence > left.sequence)
    finally:
        life.stop("the test is over")
        chief.join(10)
    assert not chief.is_alive()


def test_a_gradient_that_is_not_finite_is_not_pushed_and_the_step_goes_on(
    run: Run, helps: Help, free_address: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.agent.algorithm import NonFiniteUpdate
    from services.learner import helper_loop

    healthy, calls = helper_loop._compute, [0]

    def sick_at_times(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] % 10 == 5:
            raise NonFiniteUpdate("the gradient of critics is not finite")
        return healthy(*arguments)

    monkeypatch.setattr(helper_loop, "_compute", sick_at_times)
    address = free_address()
    helper = helps(address)
    with data_come_with(run, 1):  # a helper that did not abstain would show
        registry, _ = chief_of(run, address, 200, **{"gradients.lease_s": 30})
    helper.join()
    assert helper.error is None
    told = [values for _, event, values in helper.log.lines if "not finite" in event]
    assert 10 < len(told) == calls[0] // 10 + (calls[0] % 10 >= 5)
    assert abs(count(registry, "abstained_total") - len(told)) <= 1
    assert count(registry, "non_finite_total") == 0


def test_asynchronous_training_comes_to_its_end_too(run: Run, helps: Help, free_address: Callable[[], str]) -> None:
    address = free_address()
    mode = {"gradients.mode": "asynchronous", "gradients.accumulate": 3}
    helper = helps(address, **mode)
    with data_come_with(run, 1):
        registry, checkpoint = chief_of(run, address, 400, **mode)
    helper.join()
    assert helper.error is None
    assert checkpoint.progress.updates == 400
    assert count(registry, "accepted_total") + count(registry, "scaled_total") > 50


def test_a_helper_of_other_networks_is_told(run: Run, helps: Help, free_address: Callable[[], str]) -> None:
    address = free_address()
    life = Lifecycle()
    chief = threading.Thread(target=lambda: chief_of(run, address, 10**6, life))
    chief.start()
    try:
        helper = helps(address, **{"td3.hidden_sizes": "[9]"})
        helper.join()
    finally:
        life.stop("the test is over")
        chief.join(10)
    assert isinstance(helper.error, UserError)
    assert helper.error.exit_code == EXIT_USER
    assert "the chief's parameters do not fit this helper: 'policy.0.weight' is " in str(helper.error)
    assert "start both with the same run file" in str(helper.error)


def test_a_chief_that_waits_for_data_does_not_forget_its_helper(
    run: Run,
    helps: Help,
    free_address: Callable[[], str],
    clock: FakeClock,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from services.learner import chief_client, collaboration, helpers

    lease_ends_s: List[float] = []
    renew = helpers.Helpers.renew

    def note(known: helpers.Helpers, helper: helpers.Helper) -> None:
        renew(known, helper)
        lease_ends_s.append(helper.lease_end_s)

    monkeypatch.setattr(helpers.Helpers, "renew", note)
    monkeypatch.setattr(chief_client, "RENEW_AFTER", 0.01)  # of the lease, in real time: 0.3 s
    monkeypatch.setattr(collaboration, "time", SimpleNamespace(monotonic=clock))  # which leases end by
    run.servicer._table = run.servicer._make_table(SCHEMA)  # known, and empty
    address, lease = free_address(), {"gradients.lease_s": 30.0}
    helper = helps(address, **lease)
    found: List[Any] = []
    life = Lifecycle()
    chief = threading.Thread(target=lambda: found.append(chief_of(run, address, 50, life, **lease)))
    chief.start()
    try:
        eventually(lambda: "helping the chief" in helper.log.events())
        for _ in range(5):  # several leases
            clock.now_s += 20.0
            eventually(lambda: lease_ends_s[-1] == clock.now_s + 30.0)
        table_of(run.servicer).insert("actor-0", 1, make_chunk(64, 2), max_wait_s=0)
        chief.join(20)
        assert not chief.is_alive()
    finally:
        life.stop("the test is over")
        chief.join(10)
    helper.join()
    ((registry, _),) = found
    assert steps_together(registry) == 50
    assert count(registry, "accepted_total") >= 49
