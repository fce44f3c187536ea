"""Where an engine's actors run: one placement group on one node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig

_CONTROL_CPUS = 0.01
"""A bundle cannot be empty; the actors themselves ask for no CPU."""
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Placement:
    """The group that all actors of an engine run in, and whether the engine made it."""

    group: PlacementGroup
    is_own: bool


def bundles_for(config: EngineConfig) -> list[dict[str, float]]:
    """The resources that an engine reserves, all on one node.

    The first bundle is for the control actors; one for each rank follows.
    """
    rank = {"CPU": _CONTROL_CPUS, **({"GPU": 1.0} if config.model.device == "cuda" else {})}
    return [{"CPU": _CONTROL_CPUS}] + [
        dict(rank) for _ in range(config.parallel.dp * config.parallel.tp)
    ]


def require_node(
    bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]
) -> None:
    """Raise ConfigError unless one of `nodes`, given by whole resources, holds all bundles."""
    needed: dict[str, float] = {}
    for bundle in bundles:
        for resource, amount in bundle.items():
            needed[resource] = needed.get(resource, 0.0) + amount

    if any(
        all(node.get(resource, 0.0) >= amount for resource, amount in needed.items())
        for node in nodes
    ):
        return

    asked = ", ".join(f"{amount:g} {resource}" for resource, amount in sorted(needed.items()))
    has = "; ".join(
        ", ".join(f"{node.get(resource, 0.0):g} {resource}" for resource in sorted(needed))
        for node in nodes
    )
    raise ConfigError(
        f"the engine needs {asked} on one node; the cluster's nodes have {has or 'no resources'}. "
        "Lower parallel.dp or parallel.tp, use a larger node, or set model.device to cpu."
    )


def place(config: EngineConfig) -> Placement:
    """Use the caller's placement group, or make one. Raises ConfigError if there is no room."""
    bundles = bundles_for(config)
    given = ray.util.get_current_placement_group()
    if given is not None:
        _require_group(bundles, given)
        return Placement(given, is_own=False)

    require_node(bundles, [node["Resources"] for node in ray.nodes() if node["Alive"]])
    group = placement_group([dict(bundle) for bundle in bundles], strategy="STRICT_PACK")

    # A node is large enough, but others may hold what it has.
    if not group.wait(_TIMEOUT_S):
        remove_placement_group(group)
        raise ConfigError(
            f"the cluster's resources stayed in use by others for {_TIMEOUT_S:g} s: "
            f"{ray.available_resources()} are "
            f"free; the engine needs {bundles} on one node."
        )
    return Placement(group, is_own=True)


def _require_group(bundles: Sequence[Mapping[str, float]], group: PlacementGroup) -> None:
    num_gpus = sum(bundle.get("GPU", 0.0) for bundle in bundles)
    given = sum(bundle.get("GPU", 0.0) for bundle in group.bundle_specs)
    if given < num_gpus:
        raise ConfigError(
            f"the given placement group has {given:g} GPU; the engine needs {num_gpus:g}. Reserve "
            f"one per rank."
        )
    nodes = set(placement_group_table(group)["bundles_to_node_id"].values())
    if len(nodes) > 1:
        raise ConfigError(
            f"the given placement group spans {len(nodes)} nodes; an engine runs on one. Use "
            f"strategy STRICT_PACK."
        )


def release(placement: Placement) -> None:
    """Give back what the engine reserved."""
    if placement.is_own:
        remove_placement_group(placement.group)
