"""Counts by engines, of which a service may have any number in time."""

from raydix.ids import NodeId
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.routing.events import Route


def route(name: str) -> Route:
    return Route(
        node=NodeId(1),
        name=name,
        number=1,
        first_token_s=1.0,
        num_cached_tokens=16,
        num_near_tokens=16,
        num_pulled_tokens=0,
    )


def names_in(figures: RoutingFigures) -> set[str]:
    by_tier = {name for name, _ in figures.num_tokens}
    return by_tier.union(figures.num_routed, figures.num_split, figures.num_keys)


def test_engines_that_have_been_gone_for_long_are_not_told_of_any_more() -> None:
    figures = RoutingFigures(["first"])
    for hour in range(1000):
        name = f"e{hour}"
        figures.count(route(name))
        figures.note_keys(name, 10)
        figures.note_there(["first", name], 3600.0 * hour)
        figures.forget(name)
        figures.note_there(["first"], 3600.0 * hour + 1.0)
        figures.note_there(["first"], 3600.0 * hour + 300.0)
        assert names_in(figures) == {"first", name}
        assert figures.num_routed[name] == 1
        figures.note_there(["first"], 3600.0 * hour + 601.0)
        assert names_in(figures) == {"first"}


def test_an_engine_that_is_back_soon_goes_on_being_counted() -> None:
    figures = RoutingFigures([])
    figures.count(route("a"))
    figures.note_there([], 0.0)
    figures.note_there(["a"], 599.0)
    figures.count(route("a"))
    figures.note_there([], 1000.0)
    figures.note_there([], 1500.0)
    assert figures.num_routed["a"] == 2
