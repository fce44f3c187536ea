"""Compile kernels for Hopper, which takes no GPU; print registers, spills and shared memory.

    python -m tests.kernels.compile_for_hopper

These are all kernels of Gluon, which are bound to the Triton that they were written for more than
others are, and which the interpreter does not know; and attention of the widest heads and states,
of which the interpreter does not tell whether they fit into shared memory and registers; and what
reads and writes FP8, which the interpreter does otherwise than a GPU.
"""

import sys

from triton.experimental.gluon import language as gl

from raydix.kernels.attention import (
    decode_hopper,
    hopper_blocks,
    latent_wide,
    paged_decode,
    paged_prefill,
    prefill_hopper,
)
from raydix.kernels.dense import small_linear
from raydix.kernels.kv_cache import kv_write
from raydix.kernels.state import delta_chunks, delta_convolution, delta_step
from raydix.kernels.state.delta_form import DeltaForm
from tests.kernels.compile_float8 import compile_few_tokens, compile_scaled_weights
from tests.kernels.compile_int4 import compile_int4_weights
from tests.kernels.hopper_target import box_type, compile_kernel


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
    compile_few_tokens()
    compile_int4_weights()
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


if __name__ == "__main__":
    sys.exit(main())
