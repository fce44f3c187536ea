import torch

from raydix.kernels.ops import ReferenceOps
from raydix.runtime.model.decoder.values import Values
from raydix.runtime.model.spec.spec import NormSpec, ValueSpec

QUERIES_AND_KEYS = torch.arange(24.0).view(2, 12)
PROJECTED = torch.tensor([[3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 2.0, 2.0]])
"""Two heads of two tokens."""


def make_values(spec: ValueSpec, key_dim: int) -> Values:
    device = torch.device("cpu")
    return Values(spec, key_dim, ReferenceOps(), device=device, dtype=torch.float32)


def test_narrow_heads_are_scaled_and_filled_up_to_the_width_of_keys() -> None:
    made = make_values(ValueSpec(head_dim=2, scale=0.5), 3).behind(QUERIES_AND_KEYS, PROJECTED)

    assert made[:, :12].equal(QUERIES_AND_KEYS)
    assert made[:, 12:].tolist() == [[1.5, 2.0, 0, 0, 0, 0], [0.5, 0.5, 0, 1.0, 1.0, 0]]


def test_each_head_is_divided_by_its_root_mean_square_and_there_is_no_weight() -> None:
    spec = ValueSpec(head_dim=2, norm=NormSpec(eps=0.0, has_weight=False))

    made = make_values(spec, 2).behind(QUERIES_AND_KEYS, PROJECTED[1:].repeat(2, 1))

    torch.testing.assert_close(made[:, 12:], torch.ones(2, 4))
