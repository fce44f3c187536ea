"""Where an engine's actors run: one placement group on one node."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from raydix.errors import ConfigError
from raydix.runtime.actors.bootstrap.engine_sizes import EngineSizes
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.config.engine import EngineConfig

logger = logging.getLogger(__name__)

_CPUS_PER_RANK = 1.0
_LEAST_CPUS = 0.01
"""A bundle cannot be empty; the actors themselves ask for nothing."""
_LEAST_MEMORY = 1 << 20
_PATIENCE_S = 2.0
"""The time that an engine which has just ended has to give back what it held."""
_TIMEOUT_S = 60.0
_KEEP_FLOAT8 = frozenset(f"accelerator_type:{name}" for name in ("H100", "H200", "GH200"))
"""Resources by which Ray tells nodes whose GPUs have compute capability 9.0."""
_NODE_LABEL = "ray.io/node-id"
"""The label that Ray gives each node."""


class NoRoom(ConfigError):
    """Others hold what an engine needs; it is there, and may come free."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The group that all actors of an engine run in, and whether the engine made it."""

    group: PlacementGroup
    is_own: bool
    node_id: str
    """The node that all bundles are on."""


def bundles_for(config: EngineConfig, sizes: EngineSizes | None) -> list[dict[str, float]]:
    """The resources that an engine reserves, all on one node.

    The first bundle is for the control actors, with the memory of experts that all share; one for
    each rank follows. L2 reserves its own, as it may be there already, and stays. `sizes`: None for
    a model of which nobody knows what it takes, but for a GPU.
    """
    is_cuda = config.model.device == "cuda"
    control, rank = {"CPU": _LEAST_CPUS}, {"CPU": _LEAST_CPUS}
    if sizes is not None:
        rank = {"CPU": _CPUS_PER_RANK}
        # On cpu the ranks' own work leaves the others little to do meanwhile.
        control = {"CPU": 1.0} if is_cuda else {}
        control["memory"] = float(max(sizes.expert_store_bytes, _LEAST_MEMORY))
        if not is_cuda:
            rank["memory"] = float(sizes.needs.weight_bytes + (sizes.l1_bytes or 0))

    if is_cuda:
        rank["GPU"] = 1.0
    return [control, *[dict(rank) for _ in range(config.parallel.num_ranks)]]


def expert_store_bytes(sizes: EngineSizes, nodes: Sequence[Mapping[str, float]]) -> int:
    """What the store of experts takes on whichever of these nodes, given by whole resources.

    Whoever starts an engine need not have such a GPU, so what these keep is told by Ray's names.
    """
    if sizes.kept_store_bytes is None:
        return sizes.expert_store_bytes
    keep_float8 = [not _KEEP_FLOAT8.isdisjoint(node) for node in nodes if node.get("GPU")]
    if keep_float8 and all(keep_float8):
        return sizes.kept_store_bytes
    return max(sizes.kept_store_bytes, sizes.expert_store_bytes)


def require_node(
    bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]
) -> None:
    """Raise ConfigError unless one of `nodes`, given by whole resources, holds all bundles."""
    needed = _sum_of(bundles)
    if any(not _lacking(needed, node) for node in nodes):
        return

    has = "; ".join(_shown(node, sorted(needed)) for node in nodes)
    lacking = set.intersection(*(_lacking(needed, node) for node in nodes)) if nodes else set()
    advice = ["lower parallel.dp or parallel.tp", "use a larger node"]
    if "memory" in lacking:
        advice.insert(0, "lower cache.l2.bytes_per_node or cache.l1.num_pages")
    if "GPU" in lacking:
        advice.append("set model.device to cpu")
    advised = ", or ".join(advice)
    raise ConfigError(
        f"the engine needs {_shown(needed, sorted(needed))} on one node; the cluster's nodes have "
        f"{has or 'no resources'}. {advised[0].upper()}{advised[1:]}."
    )


def _sum_of(bundles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    needed: dict[str, float] = {}
    for bundle in bundles:
        for resource, amount in bundle.items():
            needed[resource] = needed.get(resource, 0.0) + amount
    return needed


def _lacking(needed: Mapping[str, float], node: Mapping[str, float]) -> set[str]:
    return {resource for resource, amount in needed.items() if node.get(resource, 0.0) < amount}


def _shown(resources: Mapping[str, float], names: Sequence[str]) -> str:
    return ", ".join(
        f"{format_bytes(int(resources.get(name, 0)))} memory"
        if name == "memory"
        else f"{resources.get(name, 0.0):g} {name}"
        for name in names
    )


def place(config: EngineConfig, sizes: EngineSizes | None, node_id: str | None = None) -> Placement:
    """Use the caller's placement group, or make one; on this node of Ray, if one is named.

    Raises ConfigError if there is no room.
    """
    given = ray.util.get_current_placement_group()
    if given is not None:
        _require_group(bundles_for(config, sizes), given)
        return Placement(given, is_own=False, node_id=_node_of(given))

    l2 = {"memory": float(0 if sizes is None or sizes.arena_bytes is None else sizes.arena_bytes)}
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if node_id is not None:
        nodes = [node for node in nodes if node["NodeID"] == node_id]
    resources = [node["Resources"] for node in nodes]
    if sizes is not None:
        sizes = replace(sizes, expert_store_bytes=expert_store_bytes(sizes, resources))
    bundles = bundles_for(config, sizes)
    require_node([*bundles, l2], resources)
    group = placement_group(
        [dict(bundle) for bundle in bundles],
        strategy="STRICT_PACK",
        bundle_label_selector=None
        if node_id is None
        else [{_NODE_LABEL: node_id} for _ in bundles],
    )

    # A node is large enough, but others may hold what it has.
    if group.wait(_PATIENCE_S):
        return Placement(group, is_own=True, node_id=_node_of(group))
    needed = _sum_of(bundles)
    wanted = f"the engine needs {_shown(needed, sorted(needed))} on one node"
    logger.warning("%s, and others hold it: waiting for %g s", wanted, _TIMEOUT_S)
    if not group.wait(_TIMEOUT_S):
        remove_placement_group(group)
        free = _shown(ray.available_resources(), sorted(needed))
        raise NoRoom(
            f"{wanted}; others hold what it has, and for {_TIMEOUT_S:g} s no more than {free} were "
            "free in the cluster. Stop one of them, or lower parallel.dp or parallel.tp."
        )
    return Placement(group, is_own=True, node_id=_node_of(group))


def _node_of(group: PlacementGroup) -> str:
    node_id: str = placement_group_table(group)["bundles_to_node_id"][0]
    return node_id


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
