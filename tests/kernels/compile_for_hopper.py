"""Compile kernels for Hopper, which takes no GPU; print registers, spills and shared memory.

    python -m tests.kernels.compile_for_hopper

These are all kernels of Gluon, which are bound to the Triton that they were written for more than
others are, and which the interpreter does not know; and attention of the widest heads and states,
of which the interpreter does not tell whether they fit into shared memory and registers; and what
reads and writes FP8, which the interpreter does otherwise than a GPU.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from raydix.kernels.attention import (
    decode_hopper,
    hopper_blocks,
    latent_wide,
    paged_decode,
    paged_prefill,
    prefill_hopper,
)
from raydix.kernels.dense import small_linear
from raydix.kernels.fp8 import expert_hidden, expert_outputs, rounding, scaled_product
from raydix.kernels.fp8.form import BLOCK
from raydix.kernels.fp8.scaled_tiles import EXPERT_TILES, LINEAR_TILES, ExpertTiles
from raydix.kernels.kv_cache import kv_write
from raydix.kernels.state import delta_chunks, delta_convolution, delta_step
from raydix.kernels.state.delta_form import DeltaForm

TARGET = GPUTarget("cuda", 90, 32)
_BLOCK_COLUMNS = ("experts", "starts", "ends", "firsts", "counts")
STRIDES = ("q_token_stride", "q_head_stride", "out_token_stride", "out_head_stride")
POINTERS = {
    "q_ptr": "*bf16",
    "pool_ptr": "*bf16",
    "tables_ptr": "*i32",
    "tiles_ptr": "*i32",
    "rows_ptr": "*i32",
    "out_ptr": "*bf16",
    "parts_ptr": "*fp32",
    "lse_ptr": "*fp32",
    **dict.fromkeys(("channels_ptr", "taps_ptr", "mixed_ptr"), "*bf16"),
    **dict.fromkeys(("decays_ptr", "betas_ptr", "inverses_ptr", "scores_ptr"), "*fp32"),
}
FLOAT8 = (
    "expert_stride",
    "inputs",
    "intermediate",
    "outputs",
    "x_stride",
    "x",
    "x_ptr",
    "hidden_ptr",
    "scales_ptr",
    "x_scales_ptr",
    "numbers_ptr",
)
"""What else has addresses or strides that are multiples of 16, in kernels of float8."""
NUMBERS = {
    **dict.fromkeys(STRIDES, "i32"),
    **dict.fromkeys(("page_stride", "layer_offset", "table_stride"), "i32"),
    **dict.fromkeys(("layer", "num_layers", "num_tiles"), "i32"),
    **dict.fromkeys(("num_tokens", "outputs", "row_steps", "all_steps", "program_steps"), "i32"),
    **dict.fromkeys(("token_stride", "mixed_stride", "decay_stride", "beta_stride"), "i32"),
    **dict.fromkeys(("scale_log2", "scale"), "fp32"),
}


def compile_kernel(
    kernel: Any, constants: dict[str, Any], boxes: dict[str, str], **options: Any
) -> str:
    """What ptxas says of the kernel. Raises if it does not compile.

    `boxes`: the types of tensor maps. Everything else has the type that its name has everywhere.
    """
    types = POINTERS | NUMBERS | boxes
    names = [parameter.name for parameter in kernel.params]
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {*POINTERS, *STRIDES, *FLOAT8, "page_stride", "layer_offset"} - constants.keys()
    aligned -= {name for name, kind in types.items() if str(kind).startswith("tensordesc")}
    attributes = {
        (index,): [["tt.divisibility", 16]] for index, name in enumerate(names) if name in aligned
    }
    make_source = GluonASTSource if kernel.is_gluon() else ASTSource
    source = make_source(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=TARGET, options=options)

    ptxas = Path(nvidia.__file__).parent / "bin" / "ptxas"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        command = [str(ptxas), "-v", "-arch=sm_90a", file.name, "-o", "/dev/null"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    lines = [line.strip() for line in told.splitlines() if "spill" in line or "Used" in line]
    return " ".join([*lines, f"{compiled.metadata.shared} bytes shared"])


def box_type(shape: tuple[int, int], dtype: gl.dtype = gl.bfloat16) -> str:
    """The type of a tensor map."""
    layout = gl.NVMMASharedLayout.get_default_for(list(shape), dtype)
    return f"tensordesc<{dtype.name}[{shape[0]}, {shape[1]}],{layout!r}>"


def main() -> int:
    """Compile all kernels for Hopper."""
    widths = {gl.bfloat16: 64, gl.float8e4nv: 128}
    stored = [(gl.bfloat16, size) for size in (8, 16, 64, 256)]
    for dtype, page_size in (*stored, (gl.float8e4nv, 8), (gl.float8e4nv, 64)):
        constants = {"KV_HEADS": 8, "GROUP": 4, "PAGE": page_size, "MIN_BLOCKS": 2}
        constants |= {"scales_ptr": None} if dtype is gl.bfloat16 else {}
        box = (min(page_size, prefill_hopper.BLOCK_KEYS), widths[dtype])
        types = {"boxes": box_type(box, dtype), "scales_ptr": "*fp32"}
        told = compile_kernel(
            prefill_hopper.attend_share, constants, types, num_warps=hopper_blocks.NUM_WARPS
        )
        print(f"prefill_hopper, {dtype} pages of {page_size}: {told}")

    columns = dict.fromkeys(("rows_ptr", "tokens_ptr", "contexts_ptr"), "*i64")
    for page_size, counts in ((8, "*i64"), (16, None), (64, None), (64, "*i64")):
        for dtype, width in widths.items():
            constants = {"GROUP": 4, "TILE_ROWS": 64, "PAGE": page_size, "MIN_BLOCKS": 2}
            is_absent = {"counts_ptr": counts is None, "scales_ptr": dtype is gl.bfloat16}
            constants |= {name: None for name, absent in is_absent.items() if absent}
            box = (min(page_size, decode_hopper.BLOCK_KEYS), width)
            types = {"boxes": box_type(box, dtype), "counts_ptr": counts, "scales_ptr": "*fp32"}
            told = compile_kernel(
                decode_hopper.attend_decode_share,
                constants | {"EARLY": True},
                columns | types,
                num_warps=hopper_blocks.NUM_WARPS,
                launch_pdl=True,
            )
            print(f"decode_hopper, {dtype} pages of {page_size}, {counts} counts: {told}")

    for tokens in (16, 32):
        shape = {"ROWS": 64, "DEPTH": 256, "TOKENS": tokens, "SUMMANDS": 2, "STAGES": 2}
        boxes = {"inputs": box_type((tokens, 256)), "weights": box_type((64, 256))}
        told = compile_kernel(
            small_linear._multiply, shape | {"EARLY": True}, boxes, num_warps=4, launch_pdl=True
        )
        print(f"small_linear, {tokens} tokens: {told}")

    columns = dict.fromkeys(("tokens_ptr", "contexts_ptr", "counts_ptr"))
    sizes = {"HEADS": 128, "TILE_TOKENS": 128, "PAGE": 64, "DIM": 576, "VALUE": 512}
    told = compile_kernel(
        latent_wide.attend_wide,
        columns | sizes | {"IS_WHOLE": True},
        {},
        num_warps=latent_wide.NUM_WARPS,
    )
    print(f"latent_wide: {told}")
    compile_wide_heads()
    compile_fp8()
    compile_states()
    compile_scaled_weights()
    return 0


def compile_wide_heads() -> None:
    """Compile what the launchers launch for heads of 512 dims in bf16."""
    columns = dict.fromkeys(("rows_ptr", "tokens_ptr", "contexts_ptr", "counts_ptr"), "*i64")
    block_keys = paged_decode.block_keys(is_float32=False, block_dim=512)
    shape = {"GROUP": 8, "PAGE": 64, "DIM": 512, "BLOCK_DIM": 512, "PRECISION": None, "STAGES": 2}
    nothing = dict.fromkeys(("sinks_ptr", "scales_ptr", "cap_log2", "window"))
    decode = {"QUERY_HEADS": 32, "TILE_TOKENS": 8, "BLOCK_ROWS": 64, "BLOCK_KEYS": block_keys}
    told = compile_kernel(
        paged_decode._decode_split,
        shape | nothing | decode | {"MIN_BLOCKS": 4, "IS_WHOLE": True, "EARLY": True},
        columns,
        num_warps=8,
        launch_pdl=True,
    )
    print(f"wide heads, paged_decode: {told}")

    parts = paged_prefill.tile_parts(512)
    prefill = {"KV_HEADS": 4, "PARTS": parts, "BLOCK_ROWS": paged_prefill.TILE_TOKENS // parts}
    told = compile_kernel(
        paged_prefill._prefill_tile,
        shape | nothing | prefill | {"BLOCK_KEYS": 64 // parts, "key_blocks": None},
        {},
        num_warps=8,
    )
    print(f"wide heads, paged_prefill: {told}")


def compile_fp8() -> None:
    """Compile what the launchers launch for pages of FP8 with a window, a soft cap and sinks."""
    columns = dict.fromkeys(("rows_ptr", "tokens_ptr", "contexts_ptr", "counts_ptr"), "*i64")
    types = {"pool_ptr": "*fp8e4nv", "scales_ptr": "*fp32", "sinks_ptr": "*bf16"}
    types |= columns | {"cap_log2": "fp32", "window": "i32"}
    for dim in (64, 128):
        shape = {"GROUP": 8, "PAGE": 64, "DIM": dim, "BLOCK_DIM": dim, "PRECISION": None}
        shape |= {"STAGES": 3}
        decode = {"BLOCK_KEYS": 64, "QUERY_HEADS": 64, "TILE_TOKENS": 8, "BLOCK_ROWS": 64}
        told = compile_kernel(
            paged_decode._decode_split,
            shape | decode | {"MIN_BLOCKS": 4, "IS_WHOLE": False, "EARLY": True},
            types,
            num_warps=4,
            launch_pdl=True,
        )
        print(f"FP8, heads of {dim}, paged_decode: {told}")
        prefill = {"KV_HEADS": 8, "PARTS": 1, "BLOCK_ROWS": paged_prefill.TILE_TOKENS}
        prefill |= {"BLOCK_KEYS": 64 if dim == 64 else 32}
        told = compile_kernel(
            paged_prefill._prefill_tile,
            shape | prefill | {"key_blocks": None},
            types,
            num_warps=8,
            maxnreg=128,
        )
        print(f"FP8, heads of {dim}, paged_prefill: {told}")

    tables = dict.fromkeys(("qkv_ptr", "q_out_ptr", "cos_ptr", "sin_ptr"), "*bf16")
    write = {"QUERY_HEADS": 64, "KV_HEADS": 8, "GROUP": 8, "BLOCK_GROUP": 8, "PAGE": 64}
    write |= {"DIM": 128, "ROTARY": 128, "BLOCK_HALF": 64, "SUMMANDS": 1, "EARLY": True}
    nothing = dict.fromkeys(("positions_ptr", "q_weight_ptr", "k_weight_ptr"))
    told = compile_kernel(
        kv_write._rotate_and_write,
        write | nothing,
        types | tables | {"cells_ptr": "*i64", "qkv_stride": "i32", "eps": "fp32"},
        num_warps=4,
        launch_pdl=True,
        enable_fp_fusion=False,
    )
    print(f"FP8, kv_write: {told}")


def compile_states() -> None:
    """Compile what the launchers launch for Qwen3-Next in bf16."""
    columns = dict.fromkeys(("rows_ptr", "tokens_ptr", "contexts_ptr", "counts_ptr"), "*i64")
    types = columns | {"pool_ptr": "*fp32"}
    form = DeltaForm(num_key_heads=16, values_per_key=2, key_dim=128, value_dim=128, num_taps=4)
    heads = {"KEY_HEADS": 16, "KEY_DIM": 128}
    page = {"PAGE": 64, "HEAD": form.head_elements}
    for tokens, channels in (delta_convolution.STEP_BLOCK, delta_convolution.PROMPT_BLOCK):
        sizes = {"VALUES": 256, "MATRICES": form.matrix_elements, "TAPS": 4, "BLOCK_PAST": 4}
        blocks = {"BLOCK_TOKENS": tokens, "BLOCK_CHANNELS": channels}
        constants = heads | page | sizes | blocks | ({"counts_ptr": None} if tokens == 1 else {})
        told = compile_kernel(delta_convolution._convolve, constants, types, num_warps=4)
        print(f"states, convolution, {tokens} tokens: {told}")

    rule = heads | {"PER_KEY": 2, "EPS": 1e-6}
    sizes = {"VALUE_DIM": 128, "BLOCK_KEY": 128, "BLOCK_VALUES": delta_step.BLOCK_VALUES}
    told = compile_kernel(delta_step._step, rule | page | sizes, types, num_warps=4)
    print(f"states, one token: {told}")
    chunk = rule | {"GRID": delta_chunks.BLOCK, "BLOCK": delta_chunks.BLOCK, "PARTS": 8}
    told = compile_kernel(delta_chunks._relate, chunk, types, num_warps=4)
    print(f"states, tokens of a chunk: {told}")
    told = compile_kernel(
        delta_chunks._carry, chunk | page | {"VALUE_DIM": 128}, types, num_warps=4
    )
    print(f"states, chunk by chunk: {told}")


def compile_scaled_weights() -> None:
    """Compile all variants that multiply by float8 in blocks, in bf16."""
    scales = ("scales_ptr", "x_scales_ptr", "hidden_scales_ptr", "weights_ptr")
    columns = ("pairs_ptr", "num_blocks_ptr", *(f"block_{each}_ptr" for each in _BLOCK_COLUMNS))
    strides = ("x_stride", "expert_stride", "row_stride", "block_stride", "size", "num_blocks")
    types = {
        **dict.fromkeys(("x", "x_ptr", "out_ptr", "hidden_ptr", "bias_ptr"), "*bf16"),
        **dict.fromkeys(scales, "*fp32"),
        **dict.fromkeys(columns, "*i32"),
        **dict.fromkeys((*strides, "steps", "num_pairs", "inputs", "intermediate"), "i32"),
    }
    rounded = types | {"numbers_ptr": "*fp8e4nv"}
    told = compile_kernel(
        rounding._round,
        {"TOKENS": 16, "BLOCKS": 4, "BLOCK": BLOCK, "EARLY": True},
        rounded,
        num_warps=4,
    )
    print(f"float8, rounding: {told}")

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


if __name__ == "__main__":
    sys.exit(main())
