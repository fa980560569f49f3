"""A chief that does not learn: the real parameter service, which publishes a set of TD3's size at a steady pace.

python -m bench.actor.chief_process FOLDER OBSERVATION_SIZE ACTION_SIZE WIDTH PERIOD_S
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Dict, List

import numpy as np

from services.agent.networks import initial_parameters
from services.common.lifecycle import Lifecycle
from services.common.log import make_log
from services.common.rpc import Server
from services.common.run_folder import RunFolder
from services.learner.parameter_service import ParameterServicer, Status, add_to_server
from services.learner.parameter_store import ACT, ParameterStore
from services.learner.readers import Readers
from services.learner.version_reservation import VersionReservation
from shoal.v1 import parameters_pb2

NUM_ACTORS, UPDATES_A_VERSION = 64, 20


def td3_parameters(observation_size: int, action_size: int, width: int, seed: int = 0) -> Dict[str, np.ndarray]:
    """A set of role `act` for TD3 with two hidden layers of `width`."""
    rng = np.random.default_rng(seed)
    return {
        **initial_parameters("policy", (observation_size, width, width, action_size), rng),
        **initial_parameters("critics", (observation_size + action_size, width, width, 1), rng, stack=2),
    }


def main(arguments: List[str]) -> int:
    folder, sizes, period_s = Path(arguments[0]), [int(word) for word in arguments[1:4]], float(arguments[4])
    folder.mkdir(parents=True)
    lifecycle, log = Lifecycle(), make_log(sys.stdout)
    lifecycle.start(os.environ)
    store = ParameterStore(VersionReservation(folder / "versions.json"))
    servicer = ParameterServicer(
        run_id="bench",
        incarnation=1,
        store=store,
        readers=Readers(time.monotonic, NUM_ACTORS),
        folder=RunFolder(folder),
        status=Status(run_state=parameters_pb2.RUN_STATE_TRAINING),
        num_actors=NUM_ACTORS,
        max_updates=10**6,
        waiting_for=lambda: "",
        fail=lifecycle.fail,
        log=log,
    )
    server = Server("127.0.0.1:0", max_workers=16, option_name="learner.address")
    server.add(add_to_server, servicer)
    parameters = td3_parameters(*sizes)
    store.publish({ACT: parameters}, 0)
    server.start()
    log.info("chief", address=server.address)
    updates = 0
    while not lifecycle.stopping.wait(period_s):
        updates += UPDATES_A_VERSION
        store.publish({ACT: parameters}, updates)
    server.stop(0.5)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
