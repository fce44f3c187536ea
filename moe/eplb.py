"""DeepSeek's expert load balancing: plans every layer from nothing but its demand.

Hierarchical: groups of experts are packed onto nodes, replicated inside their node, and the
replicas packed onto its GPUs. Global: the same with one group and one node. Source: the published
description of EPLB. It knows nothing of where experts are now, so nearly all of them move.

Legend: L layers, E experts, P places, X rows that are planned alike (layers or nodes of layers), N
items of a row, K most replicas of an expert.
"""

from dataclasses import dataclass

import numpy as np

from raydix.moe.placement import EMPTY, FloatArray, Int32Array, Placement


@dataclass(frozen=True, slots=True, eq=False)
class EplbPlan:
    """A plan in the reference's own form, in which a GPU may hold an expert twice."""

    experts_LP: Int32Array
    """The expert in each place; every GPU has equally many places, which follow one another."""
    places_LEK: Int32Array
    """The places of each expert in the order in which it got them, filled up with EMPTY."""
    num_replicas_LE: Int32Array


def plan_eplb(
    demand_LE: FloatArray, num_places: int, *, num_groups: int, num_nodes: int, num_gpus: int
) -> EplbPlan:
    """Hierarchical if nodes can have equally many groups, else global.

    Raises ValueError if GPUs cannot have equally many places, or nodes equally many GPUs.
    """
    num_experts = demand_LE.shape[1]
    if num_places % num_gpus or num_gpus % num_nodes or num_places < num_experts:
        raise ValueError(
            f"{num_places} places on {num_gpus} GPUs of {num_nodes} nodes for {num_experts} "
            "experts; expected as many places or more, in equal parts"
        )
    if num_groups % num_nodes or num_experts % num_groups:
        num_groups = num_nodes = 1

    experts_LE = _order_by_node(demand_LE, num_groups, num_nodes)
    num_rows = demand_LE.shape[0] * num_nodes
    demand_XN = np.take_along_axis(demand_LE, experts_LE, axis=1).reshape(num_rows, -1)
    items_XN, copies_XN = _replicate(demand_XN, num_places // num_nodes)

    # Places of a node are in order of its GPUs, those of a GPU in the order of packing.
    share_XN = np.take_along_axis(
        demand_XN / _counts(items_XN, demand_XN.shape[1]), items_XN, axis=1
    )
    gpu_XN, position_XN = _pack(share_XN, num_gpus // num_nodes)
    place_XN = gpu_XN * (num_places // num_gpus) + position_XN

    by_place_XN = np.empty_like(items_XN)
    copy_by_place_XN = np.empty_like(items_XN)
    np.put_along_axis(by_place_XN, place_XN, items_XN, axis=1)
    np.put_along_axis(copy_by_place_XN, place_XN, copies_XN, axis=1)
    experts_XN = np.take_along_axis(experts_LE.reshape(num_rows, -1), by_place_XN, axis=1)
    return _as_plan(
        experts_XN.reshape(-1, num_places), copy_by_place_XN.reshape(-1, num_places), num_experts
    )


def eplb_placement(
    demand_LE: FloatArray,
    num_ranks: int,
    *,
    seats_per_rank: int,
    spare_seats: int,
    num_groups: int = 1,
    num_nodes: int = 1,
) -> Placement:
    """The reference's plan as a placement.

    It fills all but the spare seats, except where it would put an expert on a rank twice: the
    second copy's seat is left empty.
    """
    used = seats_per_rank - spare_seats
    plan = plan_eplb(
        demand_LE,
        num_ranks * used,
        num_groups=num_groups,
        num_nodes=num_nodes,
        num_gpus=num_ranks,
    )
    experts_LRS = np.full((demand_LE.shape[0], num_ranks, seats_per_rank), EMPTY, np.int32)
    experts_LRS[:, :, :used] = plan.experts_LP.reshape(-1, num_ranks, used)

    for seat in range(1, used):
        is_twin = (experts_LRS[:, :, seat, None] == experts_LRS[:, :, :seat]).any(axis=2)
        experts_LRS[:, :, seat][is_twin] = EMPTY
    experts_LP = experts_LRS.reshape(demand_LE.shape[0], -1)
    return Placement(experts_LP, demand_LE.shape[1], num_ranks)


def _order_by_node(demand_LE: FloatArray, num_groups: int, num_nodes: int) -> Int32Array:
    """All experts, those of the first node first, groups in the order of packing."""
    num_layers, num_experts = demand_LE.shape
    group_size = num_experts // num_groups
    group_demand_LG = demand_LE.reshape(num_layers, num_groups, group_size).sum(axis=2)
    node_LG, position_LG = _pack(group_demand_LG, num_nodes)

    place_LG = node_LG * (num_groups // num_nodes) + position_LG
    group_by_place_LG = np.argsort(place_LG, axis=1)
    experts_LGM = group_by_place_LG[:, :, None] * group_size + np.arange(group_size)
    return experts_LGM.reshape(num_layers, num_experts).astype(np.int32)


def _pack(weights_XN: FloatArray, num_packs: int) -> tuple[Int32Array, Int32Array]:
    """The pack of each item, and its position there: heaviest first, each into the lightest pack
    that has room. Of equals the first.
    """
    num_rows, num_items = weights_XN.shape
    rows = np.arange(num_rows)
    order_XN = np.argsort(-weights_XN, axis=1, kind="stable")
    demand_XM = np.zeros((num_rows, num_packs))
    count_XM = np.zeros((num_rows, num_packs), np.int32)
    pack_XN, position_XN = np.empty((2, num_rows, num_items), np.int32)

    for turn in range(num_items):
        item_X = order_XN[:, turn]
        has_room_XM = count_XM < num_items // num_packs
        pack_X = np.where(has_room_XM, demand_XM, np.inf).argmin(axis=1)
        pack_XN[rows, item_X] = pack_X
        position_XN[rows, item_X] = count_XM[rows, pack_X]
        demand_XM[rows, pack_X] += weights_XN[rows, item_X]
        count_XM[rows, pack_X] += 1
    return pack_XN, position_XN


def _replicate(demand_XN: FloatArray, num_items: int) -> tuple[Int32Array, Int32Array]:
    """Which expert each of `num_items` replicas is of, and its number among them.

    One of every expert, then one more of whichever is asked for most by each replica.
    """
    num_rows, num_experts = demand_XN.shape
    rows = np.arange(num_rows)
    items_XN = np.tile(np.arange(num_items, dtype=np.int32), (num_rows, 1))
    copies_XN = np.zeros((num_rows, num_items), np.int32)
    counts_XN = np.ones((num_rows, num_experts), np.int32)

    for item in range(num_experts, num_items):
        expert_X = (demand_XN / counts_XN).argmax(axis=1)
        items_XN[:, item] = expert_X
        copies_XN[:, item] = counts_XN[rows, expert_X]
        counts_XN[rows, expert_X] += 1
    return items_XN, copies_XN


def _counts(items_XN: Int32Array, num_experts: int) -> Int32Array:
    """How often each expert comes in a row."""
    counts_XN = np.zeros((items_XN.shape[0], num_experts), np.int32)
    np.add.at(counts_XN, (np.arange(items_XN.shape[0])[:, None], items_XN), 1)
    return counts_XN


def _as_plan(experts_LP: Int32Array, copies_LP: Int32Array, num_experts: int) -> EplbPlan:
    num_layers, num_places = experts_LP.shape
    places_LEK = np.full((num_layers, num_experts, int(copies_LP.max()) + 1), EMPTY, np.int32)
    layers = np.arange(num_layers)[:, None]
    places_LEK[layers, experts_LP, copies_LP] = np.arange(num_places)
    return EplbPlan(experts_LP, places_LEK, _counts(experts_LP, num_experts))
