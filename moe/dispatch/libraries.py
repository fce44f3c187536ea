"""Dispatchers over libraries of others: probed first, tried last, by all ranks alike."""

import torch
from torch.distributed import Store

from raydix.moe.dispatch.library import Library
from raydix.moe.dispatch.machine import Machine
from raydix.moe.dispatch.probes import probe_library
from raydix.moe.dispatch.protocol import Dispatcher, DispatchForm, DispatchShape, DispatchSizes
from raydix.moe.dispatch.store_group import StoreGroup

_NUM_TRIAL_TOKENS = 4
_TRIAL_TOLERANCE = 0.02


def connect_library(
    library: Library, store: Store, rank: int, shape: DispatchShape, device: torch.device
) -> Dispatcher:
    """Connect with the other ranks; the calling thread is on `device`, this rank's.

    Raises ConfigError on all ranks if one of them lacks what the backend needs, and says what.
    """
    backend, adapter = library.backend, library.load_adapter()
    group = StoreGroup(f"{backend} agreement", store, rank, shape.num_ranks)
    obstacle = adapter.shape_obstacle(shape) or probe_library(library, Machine()).obstacle
    group.agree(backend, obstacle)

    dispatcher = adapter.connect(store, rank, shape, device)
    for form in DispatchForm:
        if form is DispatchForm.NORMAL or shape.max_low_latency_tokens > 0:
            group.agree(backend, trial_obstacle(dispatcher, shape, form, device))
    return dispatcher


def trial_obstacle(
    dispatcher: Dispatcher, shape: DispatchShape, form: DispatchForm, device: torch.device
) -> str | None:
    """What is wrong with what comes back from experts that return their rows; None: nothing.

    Every rank calls it. Kernels are loaded by then, too, so that graphs can hold them.
    """
    is_normal = form is DispatchForm.NORMAL
    most = shape.max_tokens if is_normal else shape.max_low_latency_tokens
    num_tokens = min(_NUM_TRIAL_TOKENS, most)
    x_TC = torch.linspace(-1, 1, num_tokens * shape.hidden_size, device=device)
    x_TC = x_TC.view(num_tokens, shape.hidden_size).to(shape.dtype)
    choices_K = torch.arange(shape.experts_per_token, device=device)
    tokens_T1 = torch.arange(num_tokens, device=device).view(-1, 1)
    # As many ranks as there are, and other experts for each token.
    seats_TK = (tokens_T1 + choices_K // shape.num_ranks) % shape.seats_per_rank
    ids_TK = choices_K % shape.num_ranks * shape.seats_per_rank + seats_TK
    weights_TK = (choices_K + 1).float().expand(num_tokens, -1) / shape.experts_per_token

    sizes = DispatchSizes((num_tokens,) * shape.num_ranks, form)
    exchange = dispatcher.send(x_TC, weights_TK.contiguous(), ids_TK, sizes)
    received = exchange.receive()
    is_here_NK = received.local_ids_NK >= 0
    factors_N1 = (received.weights_NK * is_here_NK).sum(1, keepdim=True)
    # Rows of nobody may hold anything.
    rows_NC = torch.where(is_here_NK.any(1, keepdim=True), received.x_NC.float() * factors_N1, 0)
    exchange.send_back(rows_NC.to(shape.dtype))

    expected_TC = x_TC.float() * weights_TK.sum(1, keepdim=True)
    difference = (exchange.combine().float() - expected_TC).abs().max()
    if difference <= _TRIAL_TOLERANCE * expected_TC.abs().max():
        return None
    return f"a trial exchange gave wrong sums, off by {float(difference):.3g}"
