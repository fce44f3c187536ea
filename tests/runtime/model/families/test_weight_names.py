import pytest

from raydix.runtime.model.families.table import Family
from raydix.runtime.model.families.weight_names import checkpoint_name


@pytest.mark.parametrize(
    ("family", "weight", "expected"),
    [
        (Family.LLAMA, "embedding.weight", "model.embed_tokens.weight"),
        (Family.QWEN2, "layers.11.attention.q.bias", "model.layers.11.self_attn.q_proj.bias"),
        (
            Family.QWEN3_MOE,
            "layers.7.mlp.experts.103.down.weight",
            "model.layers.7.mlp.experts.103.down_proj.weight",
        ),
        (
            Family.MIXTRAL,
            "layers.0.mlp.experts.3.up.weight",
            "model.layers.0.block_sparse_moe.experts.3.w3.weight",
        ),
    ],
)
def test_weights_have_the_names_of_their_family(family: Family, weight: str, expected: str) -> None:
    assert checkpoint_name(weight, family.value.weight_names) == expected


def test_a_part_that_the_family_does_not_have_has_no_name() -> None:
    with pytest.raises(KeyError):
        checkpoint_name("layers.0.attention.q_norm.weight", Family.LLAMA.value.weight_names)
