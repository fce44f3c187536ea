"""The gated delta rule on a GPU: the rule itself is in `raydix.kernels.reference.gated_delta`.

Which rows there are, where they begin and where their states lie is read on the device, so the
launches of steps of one shape can be captured in a CUDA graph and replayed.

Legend: T tokens of the step, X channels, K taps, V value heads, E value dim, P pages, L layers of
the KV group, H key heads, Z numbers of a head's state, R rows, N pages of a block table.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from raydix.kernels.attention.rows import DecodeRows
from raydix.kernels.state.delta_chunks import run_chunks
from raydix.kernels.state.delta_convolution import convolve
from raydix.kernels.state.delta_form import CHUNK_TOKENS, DeltaForm
from raydix.kernels.state.delta_inputs import DeltaInputs
from raydix.kernels.state.delta_step import step_states
from raydix.kernels.state.state_pages import StatePages


def gated_delta(
    inputs: DeltaInputs,
    pool_PLHZ: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    rows: Sequence[DecodeRows],
    form: DeltaForm,
    *,
    page_size: int,
) -> Tensor:
    """What the rows' tokens get from their states, [T, V, E] in the dtype of the channels.

    Does what `reference.gated_delta.gated_delta` does. A row may read a page that it writes, but
    none that another row of the step writes.

    Channels and taps: bf16 or float32; all tensors are contiguous in their last dimension. Raises
    ValueError if a shape, dtype or stride differs.
    """
    _check_inputs(inputs, form)
    _check_pages(pool_PLHZ, layer, block_tables_RN, form, page_size)
    pages = StatePages(
        pool_PLHZ=pool_PLHZ, layer=layer, block_tables_RN=block_tables_RN, page_size=page_size
    )
    mixed_TX = torch.empty_like(inputs.channels_TX)
    # Beside prompts of a captured step there is padding of no row, which goes on to other layers.
    has_prompts = any(some.num_tokens_B is not None for some in rows)
    make = mixed_TX.new_zeros if has_prompts else mixed_TX.new_empty
    out_TVE = make(len(mixed_TX), form.num_value_heads, form.value_dim)
    for some in rows:
        if not len(some.rows_B):
            continue
        convolve(inputs, pages, some, form, mixed_TX)
        run = step_states if some.num_tokens_B is None else run_chunks
        run(mixed_TX, inputs, pages, some, form, out_TVE)
    return out_TVE


def _check_inputs(inputs: DeltaInputs, form: DeltaForm) -> None:
    channels_TX, taps_XK = inputs.channels_TX, inputs.taps_XK
    num_tokens = len(channels_TX)
    if channels_TX.shape[1:] != (form.num_channels,) or channels_TX.stride(1) != 1:
        raise ValueError(
            f"Channels are {tuple(channels_TX.shape)} with strides {channels_TX.stride()}; "
            f"expected [T, {form.num_channels}], contiguous in channels."
        )
    if taps_XK.shape != (form.num_channels, form.num_taps) or not taps_XK.is_contiguous():
        raise ValueError(
            f"Taps are {tuple(taps_XK.shape)}; expected contiguous "
            f"[{form.num_channels}, {form.num_taps}]."
        )
    for name, tensor_TV in (("Decays", inputs.decays_TV), ("Betas", inputs.betas_TV)):
        shape = (num_tokens, form.num_value_heads)
        if tensor_TV.shape != shape or tensor_TV.dtype != torch.float32 or tensor_TV.stride(1) != 1:
            raise ValueError(
                f"{name} are {tensor_TV.dtype} {tuple(tensor_TV.shape)} with strides "
                f"{tensor_TV.stride()}; expected float32 {shape}, contiguous in heads."
            )


def _check_pages(
    pool_PLHZ: Tensor, layer: int, block_tables_RN: Tensor, form: DeltaForm, page_size: int
) -> None:
    state = (form.num_key_heads, form.head_elements)
    if pool_PLHZ.shape[2:] != state or pool_PLHZ.dtype != torch.float32:
        raise ValueError(
            f"The pool is {pool_PLHZ.dtype} {tuple(pool_PLHZ.shape)}; expected float32 "
            f"[P, L, {state[0]}, {state[1]}]."
        )
    if not pool_PLHZ.is_contiguous() or not 0 <= layer < pool_PLHZ.shape[1]:
        raise ValueError(
            f"Layer {layer} of a pool {tuple(pool_PLHZ.shape)} with strides {pool_PLHZ.stride()}; "
            f"expected one of its layers, and a contiguous pool."
        )
    if block_tables_RN.dtype != torch.int32 or block_tables_RN.stride(1) != 1:
        raise ValueError(
            f"Block tables are {block_tables_RN.dtype} with strides {block_tables_RN.stride()}; "
            f"expected int32, contiguous in pages."
        )
    if max(page_size, CHUNK_TOKENS) % min(page_size, CHUNK_TOKENS):
        raise ValueError(
            f"Pages have {page_size} tokens; expected a divisor or a multiple of {CHUNK_TOKENS}."
        )
