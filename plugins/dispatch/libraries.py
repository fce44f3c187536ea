"""The libraries of this folder's backends, as entry points of group `raydix.dispatch` name them.

Imports no torch, so that to find a library missing costs nothing.
"""

from typing import TYPE_CHECKING

from raydix.moe.dispatch.checks import (
    needs_cuda,
    needs_host_libraries,
    needs_listed_torch,
    needs_rocm,
    no_note,
)
from raydix.moe.dispatch.library import Library

if TYPE_CHECKING:
    from raydix.moe.dispatch.protocol import Adapter


def _load_nixl_ep() -> "Adapter":
    from raydix.moe.dispatch.protocol import Adapter
    from raydix.plugins.dispatch.expert_major import expert_major_obstacle
    from raydix.plugins.dispatch.nixl_ep import connect_nixl_ep

    return Adapter(expert_major_obstacle, connect_nixl_ep)


def _load_mooncake_ep() -> "Adapter":
    from raydix.moe.dispatch.protocol import Adapter
    from raydix.plugins.dispatch.mooncake_ep import connect_mooncake_ep, mooncake_ep_obstacle

    return Adapter(mooncake_ep_obstacle, connect_mooncake_ep)


def _load_mori() -> "Adapter":
    from raydix.moe.dispatch.protocol import Adapter
    from raydix.plugins.dispatch.mori import MoriDispatcher, mori_obstacle

    return Adapter(mori_obstacle, MoriDispatcher)


NIXL_EP = Library(
    backend="nixl_ep",
    distributions=("nixl-cu13",),
    module="nixl_ep",
    attribute="Buffer",
    remedy="pip install raydix[nixl-ep]",
    checks=(
        needs_cuda,
        needs_listed_torch(
            "nixl-cu13",
            {
                "1.0": ("2.11", "2.12"),
                "1.2": ("2.11", "2.12"),
                "1.5": ("2.12", "2.13", "2.14"),
            },
        ),
    ),
    note=no_note,
    load_adapter=_load_nixl_ep,
)

MOONCAKE_EP = Library(
    backend="mooncake_ep",
    distributions=("mooncake-transfer-engine-cuda13", "mooncake-transfer-engine"),
    module="mooncake._ep",
    attribute="Buffer",
    remedy="pip install raydix[mooncake-ep]",
    checks=(
        needs_cuda,
        needs_host_libraries(
            ("libibverbs.so.1", "ibv_reg_dmabuf_mr", "IBVERBS_1.12", "libibverbs1"),
            ("libmlx5.so.1", "mlx5dv_devx_obj_create", "MLX5_1.7", "ibverbs-providers"),
            ("libnuma.so.1", "numa_num_possible_cpus", "libnuma_1.3", "libnuma1"),
            ("libcurl.so.4", "curl_easy_init", None, "libcurl4"),
        ),
    ),
    note=no_note,
    load_adapter=_load_mooncake_ep,
)

MORI = Library(
    backend="mori",
    distributions=("amd-mori",),
    module="mori.ops",
    attribute="EpDispatchCombineOp",
    remedy="build MORI from its source; it is for AMD GPUs alone",
    checks=(needs_rocm,),
    note=no_note,
    load_adapter=_load_mori,
)
