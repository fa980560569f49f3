from __future__ import annotations

from rich.style import Style

from services.cli.palette import ACTOR_COLOURS, HELPER_COLOURS, ROLE_COLOURS, colour_of


def test_every_colour_is_one():
    for colour in (*ACTOR_COLOURS, *HELPER_COLOURS, *ROLE_COLOURS.values()):
        Style.parse(colour)


def test_neighbours_differ():
    names = ["replay", "learner", "evaluator", "actor-0", "actor-1", "actor-2", "helper-0", "helper-1"]
    assert len({colour_of(name) for name in names}) == len(names)


def test_names_without_a_number_have_a_colour():
    assert colour_of("camera") in ACTOR_COLOURS
