"""Compile products of float8 in blocks for Hopper; see `compile_for_hopper`."""

from typing import Any

import triton.language as tl
from triton.experimental.gluon import language as gl

from raydix.kernels.fp8 import (
    chosen_rows,
    expert_hidden,
    expert_outputs,
    few_hopper,
    many_hopper,
    packed_rows,
    rounding,
    scaled_product,
)
from raydix.kernels.fp8.form import BLOCK
from raydix.kernels.fp8.scaled_tiles import EXPERT_TILES, LINEAR_TILES, ExpertTiles
from tests.kernels.hopper_target import box_type, compile_kernel

_BLOCK_COLUMNS = ("experts", "starts", "ends", "firsts", "counts")


def compile_scaled_weights() -> None:
    """Compile all variants that multiply by float8 in blocks, in bf16."""
    scales = ("scales_ptr", "x_scales_ptr", "hidden_scales_ptr", "weights_ptr")
    columns = ("pairs_ptr", "num_blocks_ptr", *(f"block_{each}_ptr" for each in _BLOCK_COLUMNS))
    strides = (
        "x_stride",
        "expert_stride",
        "row_stride",
        "block_stride",
        "number_stride",
        "scale_stride",
        "size",
        "num_blocks",
        "num_rows",
    )
    types = {
        **dict.fromkeys(("x", "x_ptr", "out_ptr", "hidden_ptr", "bias_ptr"), "*bf16"),
        **dict.fromkeys(scales, "*fp32"),
        **dict.fromkeys(columns, "*i32"),
        **dict.fromkeys(
            (*strides, "num_blocks", "num_rows", "steps", "num_pairs", "inputs", "intermediate"),
            "i32",
        ),
    }
    compile_rounding(types | {"numbers_ptr": "*fp8e4nv"})
    compile_many_rows(types)

    sizes = {"BLOCK": BLOCK, "TOGETHER": 8, "PER_OUTPUT": False}
    for variant in LINEAR_TILES:
        tile, maps = variant.tile, {"weights": f"tensordesc<fp8e4nv[{variant.tile.columns}, 128]>"}
        nothing: dict[str, Any] = {}
        if variant.is_rounded_first:
            maps["x"] = f"tensordesc<fp8e4nv[{tile.rows}, 128]>"
        else:
            nothing["x_scales_ptr"] = None
        told = compile_kernel(
            scaled_product._multiply,
            nothing
            | sizes
            | {"IS_WHOLE": True, "ROWS": tile.rows, "COLUMNS": tile.columns}
            | {"HALVES": tile.halves, "IS_ROUNDED": variant.is_rounded_first, "EARLY": True},
            types | maps,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
        print(f"float8, linear, {tile}: {told}")

    for variant in EXPERT_TILES:
        compile_scaled_experts(variant, sizes, types)


def compile_rounding(types: dict[str, str]) -> None:
    """Compile what rounds inputs, and rows that travel, and what restores these."""
    told = compile_kernel(
        rounding._round,
        {"TOKENS": 16, "BLOCKS": 4, "BLOCK": BLOCK, "EARLY": True},
        types,
        num_warps=4,
    )
    print(f"float8, rounding: {told}")
    told = compile_kernel(
        packed_rows._restore,
        {"SIZE": 2048, "ROW_BYTES": 2112, "SCALE_BYTES": 64, "NUM_BLOCKS": 16}
        | {"ROWS": 8, "BLOCKS": 8, "BLOCK": BLOCK},
        types,
        num_warps=4,
    )
    print(f"float8, restoring: {told}")


def compile_scaled_experts(
    variant: ExpertTiles, sizes: dict[str, Any], types: dict[str, Any]
) -> None:
    """Compile both products of a variant."""
    nothing: dict[str, Any] = {}
    if not variant.is_rounded_first:
        nothing = dict.fromkeys(("x_scales_ptr", "hidden_scales_ptr"))
    tile = variant.gate_up
    glu = {"KIND": 0, "SLOPE": 1.0, "LIMIT": 0.0, "DTYPE": tl.bfloat16, "CHOICES": 8}
    numbers = {"x_ptr": "*fp8e4nv", "hidden_ptr": "*fp8e4nv"} if variant.is_rounded_first else {}
    told = compile_kernel(
        expert_hidden._gate_up_glu,
        nothing | sizes | glu | {"IS_WHOLE": True, "ROWS": tile.rows, "COLUMNS": tile.columns},
        types | numbers | {"matrices": f"tensordesc<fp8e4nv[{tile.columns}, 128]>"},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    print(f"float8, gate and up, {tile}: {told}")

    tile = variant.down
    nothing.pop("hidden_scales_ptr", None)
    maps = {"matrices": f"tensordesc<fp8e4nv[{tile.columns}, 128]>"}
    if variant.is_rounded_first:
        maps["x"] = f"tensordesc<fp8e4nv[{tile.rows}, 128]>"
    told = compile_kernel(
        expert_outputs._down_weighted,
        nothing
        | sizes
        | {"IS_WHOLE": True, "ROWS": tile.rows, "COLUMNS": tile.columns}
        | {"HALVES": tile.halves, "IS_ROUNDED": variant.is_rounded_first},
        types | maps,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    print(f"float8, down, {tile}: {told}")


def compile_few_tokens() -> None:
    """Compile the product of few tokens in Gluon."""
    numbers = ("num_tokens", "outputs", "inputs", "x_stride", "row_stride", "block_stride")
    types = {
        **dict.fromkeys((*numbers, "row_steps", "all_steps", "program_steps"), "i32"),
        "x_ptr": "*bf16",
        "scales_ptr": "*fp32",
        "weights": box_type((64, BLOCK), gl.float8e4nv),
    }
    for tokens, shape in few_hopper.SHAPES.items():
        sizes = {"TOKENS": tokens, "PARTS": few_hopper.PARTS, "STAGES": shape.num_stages}
        nothing = {"bias_ptr": None, "PER_OUTPUT": False, "SUMMANDS": 2, "EARLY": True}
        told = compile_kernel(
            few_hopper._multiply_share, sizes | nothing, types, num_warps=4, launch_pdl=True
        )
        print(f"{tokens} tokens of float8: {told}")


def compile_many_rows(types: dict[str, str]) -> None:
    """Compile the experts of many rows, of DeepSeek-V3's shape: no register may be spilt."""
    told = compile_kernel(
        chosen_rows._round_chosen,
        {"CHOICES": 8, "ROWS": 16, "BLOCKS": 4, "BLOCK": BLOCK},
        types | {"numbers_ptr": "*fp8e4nv"},
        num_warps=4,
    )
    print(f"float8, rows of choices: {told}")

    box = box_type((BLOCK, BLOCK), gl.float8e4nv)
    common = {"TOGETHER": 8, "SLOPE": 1.0, "LIMIT": 0.0, "KIND": 0}
    hidden = {"weights_ptr": None, "OUTPUTS": 4096, "INPUTS": 7168}
    outputs = {"out_scales_ptr": None, "OUTPUTS": 7168, "INPUTS": 2048}
    for name, out, constants in (("hidden", "*fp8e4nv", hidden), ("outputs", "*bf16", outputs)):
        for per_output in (False, True):
            told = compile_kernel(
                many_hopper._multiply_tiles,
                constants | common | {"PER_OUTPUT": per_output},
                types | {"x": box, "matrices": box, "out_ptr": out, "out_scales_ptr": "*fp32"},
                num_warps=4,
            )
            assert " 0 bytes spill stores" in told, told
            print(f"float8, many rows, {name}, scales of outputs {per_output}: {told}")
