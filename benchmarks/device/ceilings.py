"""What the device itself can do, measured in the run whose figures are held against it."""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional

_REPEATS = 7


def _median_s(work: Callable[[], object], device: str) -> float:
    """Median time of `work`, waited for; the first run warms up."""
    times_s = []
    for _ in range(_REPEATS + 1):
        _wait(device)
        began_s = time.monotonic()
        work()
        _wait(device)
        times_s.append(time.monotonic() - began_s)
    return median(times_s[1:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def load_gbps(device: str, num_bytes: int) -> float:
    """Gigabytes per second of one contiguous copy from pinned memory to the device."""
    source = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=device == "cuda")
    target = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    return num_bytes / _median_s(lambda: target.copy_(source, non_blocking=True), device) / 1e9


def loads_gbps(device: str, num_devices: int, num_bytes: int) -> float:
    """Gigabytes per second of one such copy to each of several devices at once, added up."""
    devices = [f"{device}:{index}" if device == "cuda" else device for index in range(num_devices)]
    pairs = [
        (
            torch.empty(num_bytes, dtype=torch.uint8, device=each),
            torch.ones(num_bytes, dtype=torch.uint8, pin_memory=device == "cuda"),
        )
        for each in devices
    ]

    def copy_all() -> None:
        for target, source in pairs:
            target.copy_(source, non_blocking=True)
        for each in devices:
            if device == "cuda":
                torch.cuda.synchronize(each)

    return num_devices * num_bytes / _median_s(copy_all, device) / 1e9


def memory_gbps(device: str, num_bytes: int) -> float:
    """Gigabytes per second, read and written, of a copy within the device."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / _median_s(lambda: target.copy_(source), device) / 1e9


def matmul_tflops(device: str, size: int) -> float:
    """Teraflops of a square matrix product."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    a, b = torch.randn(2, size, size, dtype=dtype, device=device)
    return 2 * size**3 / _median_s(lambda: a @ b, device) / 1e12


def attention_tflops(device: str, num_tokens: int, num_heads: int, head_dim: int) -> float:
    """Teraflops of torch's causal attention over contiguous keys: half of two products."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = torch.randn(3, 1, num_heads, num_tokens, head_dim, dtype=dtype, device=device)
    time_s = _median_s(
        lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True), device
    )
    return 2 * num_tokens**2 * num_heads * head_dim / time_s / 1e12
