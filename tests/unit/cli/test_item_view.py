from __future__ import annotations

import numpy as np

from services.cli import item_view
from services.common.codec import encode_tensor
from shoal.v1 import replay_pb2

INFO = replay_pb2.GetReplayInfoResponse(
    run_id="r", capacity_rows=10_000, rows=2_000, num_items=1_234, n_step=3, discount=0.99, newest_version=46
)


def one(**changes):
    values = {
        "key": 7,
        "actor": "actor-0",
        "chunk": "actor-0/0000000000000007/217",
        "priority": 0.1234567,
        "times_sampled": 4,
        "age_seconds": 12.34,
        "policy_version": 40,
        "n_step_return": 0.5,
        "discount": 0.970299,
        "bootstrap_key": 39,
    }
    return replay_pb2.InspectedItem(**{**values, **changes})


def test_a_table_of_items_and_the_spread_of_all():
    answer = replay_pb2.InspectResponse(
        items=[one(), one(key=1_000_000, discount=0.0, policy_version=50)],
        histograms=[replay_pb2.Histogram(name="age_seconds", edges=[0.5, 1, 1.5, 2], counts=[8, 0, 1])],
    )
    assert item_view.items(INFO, answer).splitlines() == [
        "run r: 1 234 items in 2 000 of 10 000 rows, n_step 3, discount 0.99, newest version 46",
        "",
        "    key  actor    priority  sampled  age s  version  lag  return  discount  bootstrap",
        "      7  actor-0    0.1235        4   12.3       40    6     0.5    0.9703         39",
        "1000000  actor-0    0.1235        4   12.3       50    0     0.5         0          -",
        "",
        "all items:",
        "  age, s                0.5 |█ ▁| 2",
    ]


def test_a_replay_without_actors_or_items_says_so():
    nobody = replay_pb2.GetReplayInfoResponse(run_id="r")
    assert "no actor has introduced itself yet" in item_view.items(nobody, replay_pb2.InspectResponse())
    assert item_view.items(INFO, replay_pb2.InspectResponse()).splitlines()[1:] == ["no items"]


def test_one_item_with_its_columns():
    columns = [
        encode_tensor("observation.camera", np.arange(300, dtype=np.uint8).reshape(30, 10)),
        encode_tensor("flags", np.array(5, np.uint8)),
        encode_tensor("reward", np.array(1 / 3, np.float32)),
    ]
    lines = item_view.item(INFO, one(columns=columns)).splitlines()
    assert "item 7" in lines
    assert "  chunk          actor-0/0000000000000007/217" in lines
    assert "  version        40, 6 behind the newest" in lines
    assert "  bootstrap      from key 39" in lines
    camera, flags, reward = lines[-3:]
    assert camera.startswith("  observation.camera  uint8[30, 10] [[ 0 1 2 3 ... 6 7 8 9] [10 ")
    assert len(camera) < 500
    assert flags.split(maxsplit=1)[1] == "5 (valid, truncated)"
    assert reward.split(maxsplit=1)[1].startswith("float32[] 0.333")


def test_an_item_that_ends_an_episode_has_no_bootstrap():
    assert "  bootstrap      none: the episode terminated" in item_view.item(INFO, one(discount=0.0)).splitlines()
