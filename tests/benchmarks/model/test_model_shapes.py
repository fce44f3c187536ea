from pathlib import Path

import pytest

from benchmarks.model.model_shapes import SHAPES, write_config
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.spec.kv_groups import derive_kv_groups, make_kv_layout

GROUPS: dict[str, list[tuple[int | None, int, int]]] = {
    "dense_l16": [(None, 16, 64 << 10)],
    "qwen3_32b_l16": [(None, 16, 64 << 10)],
    "moe_l12": [(None, 12, 24 << 10)],
    "moe_l12_fp8": [(None, 12, 24 << 10)],
    "moe_l12_awq": [(None, 12, 24 << 10)],
    "qwen3-30b-a3b": [(None, 48, 96 << 10)],
    "biased_moe_l12": [(128, 6, 6 << 10), (None, 6, 6 << 10)],
    "qwen3.6-35b-a3b-l12": [(None, 9, 0), (None, 3, 6 << 10)],
    "latent_l61": [(None, 61, 61 * 576 * 2)],
    "deepseek-v3-l8": [(None, 8, 8 * 576 * 2)],
    "gemma-2-9b": [(4096, 21, 168 << 10), (None, 21, 168 << 10)],
    "gemma-3-12b": [(1024, 40, 320 << 10), (None, 8, 64 << 10)],
    "gpt-oss-20b": [(128, 12, 24 << 10), (None, 12, 24 << 10)],
}
"""The window, the number of layers and the bytes of a token of each shape's KV groups."""


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_caches_as_much_as_its_model(shape: str, tmp_path: Path) -> None:
    spec = read_checkpoint_config(write_config(shape, tmp_path)).spec

    groups = derive_kv_groups(spec.layers)

    layouts = [
        make_kv_layout((group,), page_size=64, dtype="bfloat16", codec=Codec.NONE)
        for group in groups
    ]
    assert [
        (group.window, len(group.layers), layout.token_bytes)
        for group, layout in zip(groups, layouts, strict=True)
    ] == GROUPS[shape]
