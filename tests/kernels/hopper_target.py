"""Kernels compiled for Hopper without a GPU, and what ptxas says of them."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

TARGET = GPUTarget("cuda", 90, 32)
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
    "words_ptr",
    "row_words",
)
"""What else has addresses or strides that are multiples of 16, in kernels of quantised weights."""
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
