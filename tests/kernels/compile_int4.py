"""Compile products with weights of four bits for Hopper; see `compile_for_hopper`."""

from collections.abc import Sequence
from typing import Any

from raydix.kernels.int4 import int4_experts, int4_product, restoring
from raydix.kernels.int4.tiles import (
    EXPERT_TILES,
    LINEAR_TILES,
    ExpertTiles,
    Int4Tile,
    LinearTiles,
    step_depth,
)
from tests.kernels.hopper_target import compile_kernel

_COLUMNS = ("experts", "starts", "ends", "firsts", "counts")
_TYPES = {
    **dict.fromkeys(("x_ptr", "out_ptr", "hidden_ptr", "bias_ptr"), "*bf16"),
    **dict.fromkeys(("scales_ptr", "weights_ptr"), "*fp32"),
    "zeros_ptr": "*u8",
    **dict.fromkeys(("words_ptr", "pairs_ptr", "num_blocks_ptr"), "*i32"),
    **dict.fromkeys([f"block_{each}_ptr" for each in _COLUMNS], "*i32"),
    **dict.fromkeys(("x_stride", "steps", "inputs", "intermediate", "num_pairs"), "i32"),
    **dict.fromkeys(("row_words", "group_steps", "ones"), "i32"),
}


def compile_int4_weights() -> None:
    """Compile all variants that multiply by weights of four bits, in bf16, and some of groups of
    32, whose steps are as narrow as a tensor core takes them."""
    compile_group(128, LINEAR_TILES, EXPERT_TILES)
    compile_group(32, LINEAR_TILES[:1], EXPERT_TILES[-1:])


def compile_group(
    group: int, linear_tiles: Sequence[LinearTiles], expert_tiles: Sequence[ExpertTiles]
) -> None:
    """Compile variants for groups of so many inputs."""
    whole = {"IS_WHOLE": True, "DEPTH": step_depth(group), "group_steps": 1}
    named = f"four bits, groups of {group}"
    constants = whole | {"ROWS": 64, "EARLY": True}
    told = compile_kernel(restoring._restore, constants, _TYPES, num_warps=4, launch_pdl=True)
    print(f"{named}, restoring: {told}")

    none = {"bias_ptr": None, "PRECISION": None, "EARLY": True}
    for each in linear_tiles:
        told = _compile_tile(int4_product._multiply, each.tile, whole | none, launch_pdl=True)
        print(f"{named}, linear, {each.tile}: {told}")

    whole |= {"TOGETHER": 8, "PRECISION": None}
    glu = {"CHOICES": 8, "KIND": 0, "SLOPE": 1.0, "LIMIT": 0.0}
    for experts in expert_tiles:
        told = _compile_tile(int4_experts._gate_up_glu, experts.gate_up, whole | glu)
        print(f"{named}, gate and up, {experts.gate_up}: {told}")
        told = _compile_tile(int4_experts._down_weighted, experts.down, whole)
        print(f"{named}, down, {experts.down}: {told}")


def _compile_tile(kernel: Any, tile: Int4Tile, constants: dict[str, Any], **options: Any) -> str:
    return compile_kernel(
        kernel,
        constants | {"ROWS": tile.rows, "COLUMNS": tile.columns, "WARPS": tile.num_warps},
        _TYPES,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **options,
    )
