"""Find the fastest shapes of linear layers of a few tokens, and compare them with cuBLAS.

    python -m benchmarks.small_linear [--models dense_l16,moe_l12] [--tokens 16,32]

Every product runs in a CUDA graph over so many copies of its weights that L2 holds none of them.
Prints a table: for each matrix and number of tokens cuBLAS and the candidates, best first. Then all
matrices of a layer of dense_l16 in turn, with the norms and the activation between them.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.device.gpu_timing import graph_us
from benchmarks.device.gpus import require_gpus
from benchmarks.model.model_shapes import SHAPES
from benchmarks.records.command_line import make_parser, run
from raydix.kernels.dense.activation import glu
from raydix.kernels.dense.glu_form import SiluGlu
from raydix.kernels.dense.norm import rms_norm
from raydix.kernels.dense.small_linear import LinearShape, multiply
from raydix.kernels.dense.summands import add_up

ROTATED_BYTES = 800_000_000
"""The bytes of all copies of a matrix, which take turns."""
_SHAPES = tuple(
    LinearShape(rows=rows, depth=depth, num_stages=num_stages, programs_per_sm=programs_per_sm)
    for rows, depth, num_stages, programs_per_sm in (
        (64, 128, 4, 1),
        (64, 128, 5, 1),
        (64, 128, 7, 1),
        (64, 128, 9, 1),
        (64, 128, 3, 2),
        (64, 128, 4, 2),
        (64, 128, 5, 2),
        (64, 64, 8, 1),
        (64, 64, 10, 2),
        (64, 256, 3, 1),
        (64, 256, 4, 1),
        (64, 256, 2, 2),
        (128, 64, 5, 1),
        (128, 128, 3, 1),
        (128, 128, 5, 1),
    )
)


def matrices(model: str) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of a model's dense matrices, by name."""
    shape = SHAPES[model]
    hidden, head_dim = int(shape["hidden_size"]), int(shape["head_dim"])
    heads, kv_heads = int(shape["num_attention_heads"]), int(shape["num_key_value_heads"])

    found = {
        "qkv": ((heads + 2 * kv_heads) * head_dim, hidden),
        "output": (hidden, heads * head_dim),
        "head": (int(shape["vocab_size"]), hidden),
    }
    if "num_experts" not in shape:
        intermediate = int(shape["intermediate_size"])
        found |= {"gate_up": (2 * intermediate, hidden), "down": (hidden, intermediate)}
    return found


def compile_shapes(shapes: Sequence[LinearShape], tokens: int) -> None:
    """Compile in a process of its own: the compiled kernels are found on disk by all."""
    x = torch.zeros(tokens, 2560, dtype=torch.bfloat16, device="cuda")
    weight = torch.zeros(6144, 2560, dtype=torch.bfloat16, device="cuda")
    for shape in shapes:
        multiply(x, weight, shape)
    torch.cuda.synchronize()


def compile_all(token_counts: Sequence[int]) -> None:
    """Compile in as many processes as there are cores."""
    with ProcessPoolExecutor(8, mp_context=get_context("spawn")) as pool:
        for tokens in token_counts:
            list(pool.map(compile_shapes, [_SHAPES[part::8] for part in range(8)], [tokens] * 8))


def matrix_us(weights: Sequence[Tensor], tokens: int, product: Callable[..., object]) -> float:
    """Time of one product among those of all copies."""
    x = torch.randn(tokens, weights[0].shape[1], dtype=torch.bfloat16, device="cuda")

    def work() -> None:
        for weight in weights:
            product(x, weight)

    return graph_us(work, len(weights))


def make_weights(outputs: int, inputs: int) -> list[Tensor]:
    """Copies that L2 cannot hold together."""
    count = max(2, ROTATED_BYTES // (2 * outputs * inputs))
    return [
        torch.randn(outputs, inputs, dtype=torch.bfloat16, device="cuda") * inputs**-0.5
        for _ in range(min(count, 32))
    ]


def tune(name: str, outputs: int, inputs: int, tokens: Sequence[int]) -> dict[int, LinearShape]:
    """Print times of all candidates; the fastest by number of tokens."""
    weights, num_bytes = make_weights(outputs, inputs), 2 * outputs * inputs
    best = {}
    for count in tokens:
        line = f"{name} [{outputs}, {inputs}] {count:3} tokens:"
        cublas = matrix_us(weights, count, functional.linear)
        print(f"{line} cuBLAS {cublas:6.1f} us {num_bytes / cublas / 1e3:5.0f} GB/s")

        times = {
            shape: matrix_us(weights, count, lambda x, w, shape=shape: multiply(x, w, shape))
            for shape in _SHAPES
        }
        ordered = sorted(times, key=lambda shape: times[shape])
        for shape in ordered[:8]:
            us = times[shape]
            print(f"{line}   ours {us:6.1f} us {num_bytes / us / 1e3:5.0f} GB/s {_brief(shape)}")
        best[count] = ordered[0]
    return best


def _brief(shape: LinearShape) -> str:
    return (
        f"tiles of {shape.rows} x {shape.depth}, {shape.num_stages} stages, "
        f"{shape.programs_per_sm} programs an SM"
    )


def layers_us(
    model: str, tokens: int, shapes: dict[str, LinearShape] | None, num_layers: int = 8
) -> float:
    """Time of a layer's four products, norms and activation. `shapes` None: cuBLAS."""
    sizes = matrices(model)
    names = ("qkv", "output", "gate_up", "down")
    layers = [{name: make_weights_once(*sizes[name]) for name in names} for _ in range(num_layers)]
    hidden = sizes["output"][0]
    norm = torch.ones(hidden, dtype=torch.bfloat16, device="cuda")
    start = torch.randn(tokens, hidden, dtype=torch.bfloat16, device="cuda")

    def product(name: str, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight) if shapes is None else multiply(x, weight, shapes[name])

    def work() -> None:
        x, residual = start, start.clone()
        for layer in layers:
            qkv = product(
                "qkv",
                rms_norm(x, norm, 1e-6, residual_TC=residual, dtype=start.dtype),
                layer["qkv"],
            )
            qkv = qkv if qkv.dim() == 2 else add_up(qkv, start.dtype)
            x = product("output", qkv[:, : sizes["output"][1]], layer["output"])
            x = rms_norm(x, norm, 1e-6, residual_TC=residual, dtype=start.dtype)
            x = product(
                "down",
                glu(product("gate_up", x, layer["gate_up"]), SiluGlu(), dtype=x.dtype),
                layer["down"],
            )

    return graph_us(work, num_layers)


def make_weights_once(outputs: int, inputs: int) -> Tensor:
    """Make one matrix of random weights."""
    return torch.randn(outputs, inputs, dtype=torch.bfloat16, device="cuda") * inputs**-0.5


def main() -> int:
    """Tune and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", default="dense_l16,moe_l12")
    parser.add_argument("--tokens", default="16,32")
    options = parser.parse_args()
    require_gpus(1)
    torch.manual_seed(0)
    models = options.models.split(",")
    tokens = [int(count) for count in options.tokens.split(",")]
    print(torch.cuda.get_device_name(), torch.version.cuda, flush=True)

    sizes = {f"{model} {name}": size for model in models for name, size in matrices(model).items()}
    compile_all(sorted({max(16, count) for count in tokens}))
    best = {name: tune(name, *size, tokens) for name, size in sizes.items()}

    for name, size in sizes.items():
        weights, num_bytes = make_weights(*size), 2 * size[0] * size[1]
        shape = best[name][tokens[0]]
        for count in (1, 4, 8, 16):
            ours = matrix_us(weights, count, lambda x, w, shape=shape: multiply(x, w, shape))
            cublas = matrix_us(weights, count, functional.linear)
            print(
                f"{name} {count:3} tokens: ours {ours:6.1f} us {num_bytes / ours / 1e3:5.0f} GB/s, "
                f"cuBLAS {cublas:6.1f} us {num_bytes / cublas / 1e3:5.0f} GB/s"
            )

    if models[0] == "dense_l16":
        own = {name: best[f"dense_l16 {name}"][tokens[0]] for name in matrices("dense_l16")}
        ways = [None, own] + [dict.fromkeys(own, shape) for shape in _SHAPES]
        for count in (1, 4, 16):
            for way in ways:
                name = "cuBLAS" if way is None else _brief(way["qkv"]) if way is not own else "best"
                us = layers_us("dense_l16", count, way)
                print(f"layer of dense_l16, {count} tokens, {name}: {us:.1f} us")
    print(
        json.dumps({name: {n: _brief(s) for n, s in each.items()} for name, each in best.items()})
    )
    return 0


if __name__ == "__main__":
    run(main)
