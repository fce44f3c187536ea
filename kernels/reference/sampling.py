"""Plain PyTorch twins of the samplers.

The logits of a row are taken as float32. A row that holds NaN or +inf, or nothing but -inf, gives
`NO_TOKEN`: its numbers say nothing, and whatever was sampled from them would be wrong.

Legend: R rows of the step, X some of them, V vocabulary.
"""

import torch
from torch import Tensor

from raydix.ids import NO_TOKEN
from raydix.kernels.sampling.columns import SamplingColumns

_LARGEST = torch.finfo(torch.float32).max
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX1, _MIX2 = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)


def sample_whole(logits_RV: Tensor, columns: SamplingColumns) -> Tensor:
    """A token for each row, int32 [R]: sampled from the whole vocabulary, or the most likely one.

    The most likely one, of equals the lowest id, goes to greedy rows, and to those that cut tokens:
    `sample_cut` is to give them theirs. A sampled token has the largest sum of logit / temperature
    and Gumbel noise. The host waits.
    """
    largest_R, token_ids_R = logits_RV.max(-1)
    # The largest of numbers with NaN among them is NaN.
    token_ids_R = torch.where(largest_R.isfinite(), token_ids_R, NO_TOKEN).to(torch.int32)

    is_random_R = (columns.temperatures_R > 0) & ~columns.cuts_R
    rows_X = (is_random_R & (token_ids_R != NO_TOKEN)).nonzero()[:, 0]
    if len(rows_X):
        chosen = columns.at(rows_X)
        scaled_XV = _scaled(logits_RV[rows_X].float(), chosen)
        token_ids_R[rows_X] = _with_most_noise(scaled_XV, chosen)
    return token_ids_R


def sample_cut(logits_RV: Tensor, columns: SamplingColumns, token_ids_R: Tensor) -> None:
    """Replace the tokens of rows that cut, in place.

    They cut by min-p, then by top-k, then by top-p over what is left. A row's entry in
    `token_ids_R` is its most likely token before that; `NO_TOKEN` stays. Tokens as likely as the
    k-th stay. Top-p keeps the fewest tokens that reach it; of equals at its edge, of which some are
    one too many, each keeps the same share of its weight: it is as likely as if those to keep were
    drawn. The host waits.
    """
    rows_X = (columns.cuts_R & (token_ids_R != NO_TOKEN)).nonzero()[:, 0]
    if not len(rows_X):
        return

    chosen = columns.at(rows_X)
    logits_XV = logits_RV[rows_X].float()
    scaled_XV = _scaled(logits_XV, chosen)
    shares_XV = _kept_shares(logits_XV, chosen)
    token_ids_R[rows_X] = _with_most_noise(scaled_XV + shares_XV.log(), chosen)


def _scaled(logits_XV: Tensor, columns: SamplingColumns) -> Tensor:
    return (logits_XV / columns.temperatures_R.float()[:, None]).clamp_max(_LARGEST)


def _kept_shares(logits_XV: Tensor, columns: SamplingColumns) -> Tensor:
    """The share of its weight that each token keeps, float32.

    It is 1, or 0 where the token is cut, or between at the edge of top-p.
    """
    vocab_size = logits_XV.shape[1]
    temperatures_X1 = columns.temperatures_R.float()[:, None]
    largest_X1 = logits_XV.amax(-1, keepdim=True)
    weights_XV = ((logits_XV - largest_X1) * (1 / temperatures_X1)).exp().nan_to_num(0.0)
    least_X1 = largest_X1 + temperatures_X1 * columns.min_ps_R.float()[:, None].log()
    is_kept_XV = (logits_XV >= least_X1) & (logits_XV > float("-inf"))

    # Top-k: the k-th largest of what min-p leaves.
    sorted_XV, order_XV = logits_XV.masked_fill(~is_kept_XV, float("-inf")).sort(descending=True)
    top_ks_X1 = columns.top_ks_R[:, None]
    last_X1 = torch.where(top_ks_X1 > 0, top_ks_X1.clamp_max(vocab_size), vocab_size) - 1
    is_kept_XV &= logits_XV >= sorted_XV.gather(1, last_X1)

    # Top-p: the edge is where the sum from the most likely token on reaches its share of the mass.
    weights_XV = weights_XV.masked_fill(~is_kept_XV, 0.0)
    sums_XV = weights_XV.double().gather(1, order_XV).cumsum(-1)
    goal_X1 = columns.top_ps_R.float().double()[:, None] * sums_XV[:, -1:]
    edge_X1 = sorted_XV.gather(
        1, (sums_XV < goal_X1).sum(-1, keepdim=True).clamp_max(vocab_size - 1)
    )
    above_X1 = weights_XV.double().masked_fill(logits_XV <= edge_X1, 0.0).sum(-1, keepdim=True)
    at_edge_X1 = weights_XV.double().masked_fill(logits_XV != edge_X1, 0.0).sum(-1, keepdim=True)
    edge_shares_XV = ((goal_X1 - above_X1) / weights_XV).ceil() * weights_XV / at_edge_X1
    is_edge_XV = (logits_XV == edge_X1) & (columns.top_ps_R < 1)[:, None]
    is_kept_XV &= (logits_XV >= edge_X1) | (columns.top_ps_R >= 1)[:, None]
    shares_XV = torch.where(is_edge_XV, edge_shares_XV.clamp_max(1.0), 1.0).float()
    return shares_XV.masked_fill(~is_kept_XV, 0.0)


def _with_most_noise(scores_XV: Tensor, columns: SamplingColumns) -> Tensor:
    noise_XV = gumbel_noise(columns.noise_keys_R, scores_XV.shape[1])
    return (scores_XV.double() + noise_XV).argmax(-1).to(torch.int32)


def gumbel_noise(noise_keys_X: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise, float64 [X, V]: SplitMix64 (Steele 2014) of key and token id.

    Its 53 bits and a half are never 0 or 1, so that the noise is finite.
    """
    ids_V = torch.arange(1, vocab_size + 1, device=noise_keys_X.device)
    state_XV = noise_keys_X[:, None] + ids_V * _GOLDEN
    mixed_XV = (state_XV ^ _shift_right(state_XV, 30)) * _MIX1
    mixed_XV = (mixed_XV ^ _shift_right(mixed_XV, 27)) * _MIX2
    mixed_XV = mixed_XV ^ _shift_right(mixed_XV, 31)
    return -torch.log(-torch.log(_uniform(_shift_right(mixed_XV, 11))))


def _uniform(bits: Tensor) -> Tensor:
    """Turn 53 random bits into a float64 in (0, 1)."""
    # With half a step more, 2^53 - 1 would round to 1: of 54 bits a float64 keeps 53.
    return ((bits.double() + 0.5) * 2.0**-53).clamp_max(1 - 2.0**-53)


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """A logical shift: int64 shifts keep the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
