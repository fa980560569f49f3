from __future__ import annotations

import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest

from services.actor.envs.contract import AutoReset
from services.actor.envs.factory import build_env
from services.actor.envs.promises import EnvFactoryError
from services.common.errors import Crash
from services.common.schema import ActionSpec, TensorSpec


class Fake:
    """Keeps the contract, unless told how not to."""

    def __init__(self, num_lanes, seed, lanes=None, shape=None, dtype="float32", name="policy", fail=""):
        self.num_lanes, self.seed, self.fail = lanes or num_lanes, seed, fail
        self.autoreset = AutoReset.SAME_STEP
        self.observation_spec = (TensorSpec("policy", "float32", (4,)),)
        self.action_spec = ActionSpec(num_actions=2)
        self.shape, self.dtype, self.name = shape or (num_lanes, 4), dtype, name
        self.closed = False
        if fail == "build":
            raise OSError("no simulator here")
        if fail == "quit":
            sys.exit(0)
        if fail == "array":
            self.observation_spec = np.zeros((40, 4))
        if fail in ("observation_spec", "action_spec", "autoreset"):
            setattr(self, fail, 3)

    def reset(self, seed=None):
        if self.fail == "reset":
            raise RuntimeError("physics exploded")
        if self.fail == "quit in reset":
            sys.exit()
        self.seed = seed
        return [1.0] if self.fail == "list" else {self.name: np.zeros(self.shape, dtype=self.dtype)}

    def step(self, action):
        if self.fail != "step":
            sys.exit(1)

    def close(self):
        self.closed = True
        if self.fail == "quit in reset":
            sys.exit(1)


def make_vector_env(num_lanes, seed):
    return gymnasium.make_vec("CartPole-v1", num_lanes, vectorization_mode="sync")


def make_single(num_lanes, seed):
    return gymnasium.make("CartPole-v1")


def test_a_gymnasium_vector_environment_is_wrapped():
    env = build_env(f"{__name__}:make_vector_env", {}, 2, 1)
    assert env.autoreset is AutoReset.NEXT_STEP
    assert env.step(np.array([0, 1])).valid.tolist() == [True, True]


def test_a_single_gymnasium_environment_is_refused_with_what_to_do():
    with pytest.raises(EnvFactoryError, match=r"a single gymnasium environment.*vectorize\(make_one, num_lanes\)"):
        build_env(f"{__name__}:make_single", {}, 2, 1)


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("fake_simulator")
    made.make = Fake
    made.limit = 3
    made.built = []
    monkeypatch.setitem(sys.modules, "fake_simulator", made)
    return made


def build(function="make", **kwargs):
    return build_env(f"fake_simulator:{function}", kwargs, num_lanes=2, seed=9)


def test_a_function_gets_lanes_seed_and_arguments(module):
    env = build(dtype="float32")
    assert (env.num_lanes, env.seed) == (2, 9)
    assert not env.closed


def test_the_arm_is_built_by_its_function():
    env = build_env("services.actor.envs.arm:make_reach", {"control": "joint"}, num_lanes=2, seed=4)
    assert env.action_spec.shape == (7,)
    assert env.num_lanes == 2
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "services.actor.envs.arm_gymnasium:shoal/ArmReach-v0"])
def test_gymnasium_ids_are_built_by_the_adapter(env_id):
    env = build_env(env_id, {"autoreset": "next_step"}, num_lanes=2, seed=4)
    assert env.autoreset is AutoReset.NEXT_STEP
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"fail": "build"}, "could not be built: OSError: no simulator here"),
        ({"unknown": 1}, "could not be built: TypeError: .*unknown"),
        ({"fail": "reset"}, "could not be reset: RuntimeError: physics exploded"),
        ({"fail": "quit"}, r"the environment ended the process: sys\.exit\(0\) in the factory"),
        ({"fail": "quit in reset"}, r"the environment ended the process: sys\.exit\(\) in reset"),
        ({"fail": "observation_spec"}, "observation_spec is 3; it must be a tuple of TensorSpec"),
        ({"fail": "array"}, r"observation_spec is array\(.*…; it must be a tuple of TensorSpec"),
        ({"fail": "action_spec"}, "action_spec is 3; it must be an ActionSpec"),
        ({"fail": "autoreset"}, r"autoreset is 3; it must be AutoReset\.SAME_STEP or"),
        ({"fail": "list"}, "reset returned a list; it must return a dict"),
        ({"lanes": 5}, "has 5 lanes; 2 were asked for"),
        ({"shape": (2, 3)}, r"'policy' has shape \(2, 3\) after reset; .* promise \(2, 4\)"),
        ({"dtype": "float64"}, "'policy' is float64 after reset; observation_spec promises float32"),
        ({"name": "state"}, "observation_spec names policy, but reset returned state"),
    ],
)
def test_what_breaks_the_contract_is_explained(module, kwargs, words):
    with pytest.raises(EnvFactoryError, match=words) as caught:
        build(**kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "member", ["num_lanes", "autoreset", "observation_spec", "action_spec", "reset", "step", "close"]
)
def test_a_missing_member_is_named(module, member):
    def make(num_lanes, seed):
        env = Fake(num_lanes, seed)
        members = {
            name: getattr(env, name)
            for name in ("num_lanes", "autoreset", "observation_spec", "action_spec", "reset", "step", "close")
            if name != member
        }
        return type("Partial", (), members)()

    module.make = make
    with pytest.raises(EnvFactoryError, match=f"returned a Partial, which has no (method )?{member}: it is not a Vec"):
        build()


@pytest.mark.parametrize(
    ("fail", "error", "words"),
    [
        ("step", EnvFactoryError, "step returned None, which has no observation"),
        ("", Crash, r"ended the process: sys\.exit\(1\) in step"),
    ],
)
def test_the_first_step_is_checked(module, fail, error, words):
    env = build(fail=fail)
    with pytest.raises(error, match=words):
        env.step(np.zeros(2, np.int64))


def test_a_refused_environment_is_closed(module):
    made = []

    def make(num_lanes, seed):
        made.append(Fake(num_lanes, seed, lanes=7))
        return made[0]

    module.make = make
    with pytest.raises(EnvFactoryError):
        build()
    assert made[0].closed


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("no.such.module:make", "module 'no.such.module' cannot be imported: ModuleNotFoundError"),
        ("fake_simulator:maek", "has no function 'maek'; did you mean 'make'"),
        ("fake_simulator:limit", "'limit' is a int, not a function"),
        ("CartPoll-v1", "nor a registered gymnasium id; did you mean 'CartPole-v1'"),
        ("zzzzzz", "neither package.module:function nor a registered gymnasium id$"),
        ("no.such.module:Name-v0", "module 'no.such.module' cannot be imported"),
        ("FrozenLake-v1", "could not be built: ValueError: FrozenLake-v1: observation 'policy' is a Discrete space"),
    ],
)
def test_names_that_lead_nowhere_are_explained(module, factory, words):
    with pytest.raises(EnvFactoryError, match=words):
        build_env(factory, {}, num_lanes=2, seed=0)


def test_a_module_that_cannot_be_imported_for_its_own_reasons(tmp_path, monkeypatch):
    (tmp_path / "broken_simulator.py").write_text("raise OSError('libcuda.so.1 is missing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvFactoryError, match=r"cannot be imported: OSError: libcuda\.so\.1 is missing"):
        build_env("broken_simulator:make", {}, num_lanes=1, seed=0)


@pytest.mark.parametrize("factory", ["quitting_simulator:make", "quitting_simulator:Name-v0"])
def test_a_module_that_ends_the_process_when_it_is_imported(tmp_path, monkeypatch, factory):
    (tmp_path / "quitting_simulator.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvFactoryError, match=r"sys\.exit\(0\) in the import of quitting_simulator"):
        build_env(factory, {}, num_lanes=1, seed=0)
