"""Find the fastest shapes of linear layers of a few tokens, and compare them with cuBLAS.

    python -m benchmarks.small_linear [--models dense_l16,moe_l12] [--tokens 16,32]

Every product runs in a CUDA graph over so many copies of its weights that L2 holds none of them.
Prints a table: for each matrix and number of tokens cuBLAS and the candidates, best first. Then all
matrices of a layer of dense_l16 in turn, with the norms and the activation between them.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.command_line import make_parser
from benchmarks.gpu_timing import capture
from benchmarks.model_shapes import SHAPES
from raydix.kernels.activation import glu
from raydix.kernels.glu_form import SiluGlu
from raydix.kernels.norm import rms_norm
from raydix.kernels.small_linear import LinearShape, multiply

ROTATED_BYTES = 800_000_000
"""Of the copies of a matrix."""
REPLAYS = 9
PROGRAMS_PER_SM = (1, 1.5, 2, 3, 4, 6)
_TILES = (
    # rows, depth, warps, stages, lines ahead
    (64, 128, 4, 5, 0),
    (64, 128, 4, 5, 8),
    (64, 128, 4, 3, 8),
    (64, 128, 4, 4, 4),
    (64, 256, 4, 3, 4),
    (128, 128, 4, 4, 4),
    (128, 128, 8, 4, 8),
    (128, 64, 4, 6, 8),
    (32, 128, 2, 5, 8),
    (32, 256, 4, 4, 4),
    (32, 256, 4, 3, 0),
    (16, 512, 4, 3, 2),
)


def matrices(model: str) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of a model's dense matrices, by name."""
    shape = SHAPES[model]
    hidden, head_dim = _number(shape["hidden_size"]), _number(shape["head_dim"])
    heads, kv_heads = (
        _number(shape["num_attention_heads"]),
        _number(shape["num_key_value_heads"]),
    )

    found = {
        "qkv": ((heads + 2 * kv_heads) * head_dim, hidden),
        "output": (hidden, heads * head_dim),
        "head": (_number(shape["vocab_size"]), hidden),
    }
    if "num_experts" not in shape:
        intermediate = _number(shape["intermediate_size"])
        found |= {"gate_up": (2 * intermediate, hidden), "down": (hidden, intermediate)}
    return found


def _number(value: object) -> int:
    assert isinstance(value, int), value
    return value


def candidates(outputs: int, inputs: int, num_sms: int) -> Iterator[LinearShape]:
    """Shapes that suit a matrix, of so many programs that each multiprocessor has a few."""
    for rows, depth, num_warps, num_stages, ahead in _TILES:
        if outputs % rows or inputs % depth:
            continue
        steps, blocks = inputs // depth, outputs // rows
        wanted = {round(per_sm * num_sms / blocks) for per_sm in PROGRAMS_PER_SM} | {1}
        # Of equal length: one longer than the others would keep its programs busy alone.
        divisors = {n for n in wanted if n >= 1 and -(-steps // -(-steps // n)) == n}
        for splits in sorted(divisors):
            if splits <= 32 and blocks * splits >= num_sms // 2 and steps // splits >= 2:
                yield LinearShape(
                    rows=rows,
                    depth=depth,
                    splits=splits,
                    num_warps=num_warps,
                    num_stages=num_stages,
                    ahead=ahead,
                )


def compile_shapes(shapes: Sequence[LinearShape], tokens: int) -> None:
    """In a process of its own: the compiled kernels are found on disk by all."""
    for shape in shapes:
        inputs = shape.depth * 4
        x = torch.zeros(tokens, inputs, dtype=torch.bfloat16, device="cuda")
        weight = torch.zeros(shape.rows * 2, inputs, dtype=torch.bfloat16, device="cuda")
        for splits in (1, 2):
            multiply(x, weight, replace(shape, splits=splits))
    torch.cuda.synchronize()


def compile_all(shapes: set[LinearShape], token_counts: Sequence[int]) -> None:
    """Compile in as many processes as there are cores."""
    kinds = sorted({replace(shape, splits=1) for shape in shapes}, key=str)
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
        list(
            itertools.chain.from_iterable(
                pool.map(compile_shapes, [kinds[part::6] for part in range(6)], [tokens] * 6)
                for tokens in token_counts
            )
        )


def graph_us(work: Callable[[], object], launches: int) -> float:
    """Median microseconds per launch of a captured sequence."""
    replay = capture(work)
    replay()
    times = []
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return median(times) * 1e3 / launches


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
    shapes = list(candidates(outputs, inputs, num_sms()))
    best = {}
    for count in tokens:
        line = f"{name} [{outputs}, {inputs}] {count:3} tokens:"
        cublas = matrix_us(weights, count, functional.linear)
        print(f"{line} cuBLAS {cublas:6.1f} us {num_bytes / cublas / 1e3:5.0f} GB/s")

        times = {
            shape: matrix_us(weights, count, lambda x, w, shape=shape: multiply(x, w, shape))
            for shape in shapes
        }
        ordered = sorted(times, key=lambda shape: times[shape])
        for shape in ordered[:6]:
            us = times[shape]
            print(f"{line}   ours {us:6.1f} us {num_bytes / us / 1e3:5.0f} GB/s {_brief(shape)}")
        late = replace(ordered[0], is_late=True)
        us = matrix_us(weights, count, lambda x, w, late=late: multiply(x, w, late))
        print(f"{line}   late {us:6.1f} us {num_bytes / us / 1e3:5.0f} GB/s {_brief(late)}")
        best[count] = ordered[0]
    return best


def _brief(shape: LinearShape) -> str:
    return (
        f"rows {shape.rows} depth {shape.depth} splits {shape.splits} warps {shape.num_warps} "
        f"stages {shape.num_stages} ahead {shape.ahead} late {shape.is_late}"
    )


def num_sms() -> int:
    """Of the device."""
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


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
            qkv = qkv if qkv.dim() == 2 else qkv.sum(0).to(torch.bfloat16)
            x = product("output", qkv[:, : sizes["output"][1]], layer["output"])
            x = rms_norm(x, norm, 1e-6, residual_TC=residual, dtype=start.dtype)
            x = product(
                "down",
                glu(product("gate_up", x, layer["gate_up"]), SiluGlu(), dtype=x.dtype),
                layer["down"],
            )

    return graph_us(work, num_layers)


def make_weights_once(outputs: int, inputs: int) -> Tensor:
    """One matrix."""
    return torch.randn(outputs, inputs, dtype=torch.bfloat16, device="cuda") * inputs**-0.5


def main() -> int:
    """Tune and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", default="dense_l16,moe_l12")
    parser.add_argument("--tokens", default="16,32")
    options = parser.parse_args()
    torch.manual_seed(0)
    models = options.models.split(",")
    tokens = [int(count) for count in options.tokens.split(",")]
    print(torch.cuda.get_device_name(), torch.version.cuda, flush=True)

    sizes = {f"{model} {name}": size for model in models for name, size in matrices(model).items()}
    shapes = {shape for size in sizes.values() for shape in candidates(*size, num_sms())}
    compile_all(shapes, sorted({max(16, count) for count in tokens}))
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
        late = {name: replace(shape, is_late=True) for name, shape in own.items()}
        for count in (1, 4, 16):
            times = [layers_us("dense_l16", count, each) for each in (None, own, late)]
            print(f"layers of dense_l16, {count} tokens, cuBLAS, ours, late:", times, "us")
    print(
        json.dumps({name: {n: _brief(s) for n, s in each.items()} for name, each in best.items()})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
