# mypy: disable-error-code="no-untyped-def"
"""Scores in units of log2, as all attention kernels weigh them: scales, soft cap, sinks.

Legend: Q query heads.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.kv_cache.fp8 import check_kv_scales

LOG2_E = 1.4426950408889634
_LOG2_E: tl.constexpr = tl.constexpr(LOG2_E)


class ScoreScales(NamedTuple):
    """What turns products of queries and keys into scores; see `scaled_scores`."""

    scale_log2: float
    cap_log2: float | None


def score_scales(form: AttentionForm) -> ScoreScales:
    """The scales of `form`, so that kernels multiply once."""
    if form.soft_cap is None:
        return ScoreScales(form.scale * LOG2_E, None)
    return ScoreScales(2 * form.scale / form.soft_cap * LOG2_E, form.soft_cap * LOG2_E)


def check_form(form: AttentionForm, num_query_heads: int, num_heads: int) -> None:
    """Raise ValueError if a kernel cannot weigh by `form`."""
    check_kv_scales(form.kv_scales_2H, num_heads)
    if form.window is not None and form.window < 1:
        raise ValueError(f"The window is {form.window}; expected 1 or more tokens, or None.")
    if form.soft_cap is not None and form.soft_cap <= 0:
        raise ValueError(f"The soft cap is {form.soft_cap}; expected more than 0, or None.")

    sinks_Q = form.sinks_Q
    if sinks_Q is not None and (
        sinks_Q.shape != (num_query_heads,)
        or sinks_Q.dtype not in (torch.bfloat16, torch.float32)
        or not sinks_Q.is_contiguous()
    ):
        raise ValueError(
            f"Sinks are {sinks_Q.dtype} {tuple(sinks_Q.shape)}; expected contiguous bfloat16 or "
            f"float32 [{num_query_heads}]."
        )


@triton.jit
def scaled_scores(products, scale_log2, cap_log2):
    """Scores of products of queries and keys; with a cap, cap x tanh(product x scale / cap).

    As tanh x = 1 - 2 / (1 + e^2x), `scale_log2` then holds the factor 2 / cap already.
    """
    scores = products * scale_log2
    if cap_log2 is not None:
        scores = cap_log2 - 2 * cap_log2 / (1.0 + tl.exp2(scores))
    return scores


@triton.jit
def kv_scales(scales_ptr, head, num_heads):
    """What scores and sums of values of a KV head in FP8 are multiplied by."""
    k_scale = 1.0
    v_scale = 1.0
    if scales_ptr is not None:
        k_scale = tl.load(scales_ptr + head)
        v_scale = tl.load(scales_ptr + num_heads + head)
    return k_scale, v_scale


@triton.jit
def first_maximum_and_total(sinks_ptr, query_head, nothing, BLOCK_ROWS: tl.constexpr):
    """The state of an online softmax before its first key; a sink is a key without a value.

    `nothing` is the maximum of a softmax that has seen no key. query_head: one, or one per row.
    """
    maximum = tl.full([BLOCK_ROWS], nothing, tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + query_head).to(tl.float32) * _LOG2_E
        maximum = tl.zeros([BLOCK_ROWS], tl.float32) + sink
        total = tl.full([BLOCK_ROWS], 1.0, tl.float32)
    return maximum, total
