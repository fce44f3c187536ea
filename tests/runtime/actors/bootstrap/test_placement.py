"""What an engine reserves, and that what a cluster lacks is told before anything starts."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.bootstrap import placement
from raydix.runtime.actors.bootstrap.device_needs import DeviceNeeds
from raydix.runtime.actors.bootstrap.engine_sizes import EngineSizes
from raydix.runtime.actors.bootstrap.placement import NoRoom, bundles_for, require_node
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.loading import load_config

GROUP = KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=4)
SIZES = EngineSizes(
    layout=KvLayout(page_size=16, dtype="float32", dtype_bytes=4, groups=(GROUP,)),
    needs=DeviceNeeds(weight_bytes=1 << 30),
    num_pages=(10,),
    l1_bytes=1 << 29,
    max_model_len=100,
    arena_bytes=4 << 30,
    expert_store_bytes=0,
)


def config_on(device: str, **parallel: int) -> EngineConfig:
    cache: dict[str, Any] = {"l2": {"bytes_per_node": "4GiB"}}
    return load_config(
        {"model": {"path": "m", "device": device}, "parallel": parallel, "cache": cache}
    )


def total(bundles: list[dict[str, float]], resource: str) -> float:
    return sum(bundle.get(resource, 0.0) for bundle in bundles)


def test_cuda_engine_reserves_a_gpu_and_a_cpu_per_rank_and_its_experts() -> None:
    sizes = replace(SIZES, expert_store_bytes=1 << 30)
    bundles = bundles_for(config_on("cuda", dp=4), sizes)
    assert total(bundles, "GPU") == 4
    assert total(bundles, "CPU") == 5
    assert total(bundles, "memory") == 1 << 30


def test_cpu_engine_reserves_a_cpu_per_rank_and_all_its_memory() -> None:
    bundles = bundles_for(config_on("cpu", tp=2), SIZES)
    assert total(bundles, "CPU") == 2
    assert total(bundles, "memory") == (1 << 20) + 2 * (3 << 29)


def test_a_model_of_unknown_sizes_reserves_its_gpus_and_next_to_nothing_else() -> None:
    bundles = bundles_for(config_on("cuda", dp=4), None)
    assert total(bundles, "GPU") == 4
    assert total(bundles, "CPU") < 0.1
    assert total(bundles, "memory") == 0


def test_no_bundle_is_empty() -> None:
    for sizes in (None, replace(SIZES, arena_bytes=None)):
        bundles = bundles_for(config_on("cpu"), sizes)
        assert all(any(bundle.values()) for bundle in bundles)
        assert all(all(bundle.values()) for bundle in bundles)


def test_infeasible_placement_says_what_is_needed_and_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"needs .*2 GPU on one node.*1 GPU; .*1 GPU"):
        require_node([{"GPU": 1.0}, {"GPU": 1.0}], [{"GPU": 1.0, "CPU": 8.0}, {"GPU": 1.0}])


def test_infeasible_placement_says_which_keys_ask_for_less() -> None:
    with pytest.raises(ConfigError, match=r"Lower parallel\.dp or parallel\.tp"):
        require_node([{"GPU": 1.0}, {"GPU": 1.0}], [{"GPU": 1.0}])


def test_too_many_ranks_for_the_cpus_are_refused() -> None:
    bundles = bundles_for(config_on("cpu", dp=64), SIZES)
    with pytest.raises(ConfigError, match=r"needs 64 CPU, 96GiB memory.*have 4 CPU"):
        require_node(bundles, [{"CPU": 4.0, "memory": float(1 << 40)}])


def test_too_little_memory_names_the_keys_that_ask_for_it() -> None:
    bundles = bundles_for(config_on("cpu"), SIZES)
    with pytest.raises(
        ConfigError, match=r"1GiB memory\. Lower cache\.l2\.bytes_per.*, or lower parallel"
    ):
        require_node(bundles, [{"CPU": 4.0, "memory": float(1 << 30)}])


def test_feasible_placement_passes() -> None:
    require_node([{"GPU": 1.0}, {"CPU": 0.01}], [{"CPU": 1.0}, {"GPU": 2.0, "CPU": 1.0}])


def test_who_waits_for_resources_is_told_and_then_which(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group = SimpleNamespace(wait=lambda timeout_s: False)
    node = {"Alive": True, "Resources": {"CPU": 2.0, "memory": float(8 << 30)}}
    fake_ray = SimpleNamespace(
        util=SimpleNamespace(get_current_placement_group=lambda: None),
        nodes=lambda: [node],
        available_resources=lambda: {"CPU": 1.0, "memory": float(3 << 30)},
    )
    removed: list[object] = []
    monkeypatch.setattr(placement, "ray", fake_ray)
    monkeypatch.setattr(placement, "placement_group", lambda *_, **__: group)
    monkeypatch.setattr(placement, "remove_placement_group", removed.append)

    with pytest.raises(NoRoom, match="no more than 1 CPU, 3GiB memory were free"):
        placement.place(config_on("cpu"), SIZES)

    [record] = caplog.records
    assert "the engine needs 1 CPU, 1.501GiB memory on one node" in record.getMessage()
    assert removed == [group]


def test_a_named_node_gets_all_of_an_engine_or_it_is_told_what_that_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [
        {"Alive": True, "NodeID": "small", "Resources": {"CPU": 2.0, "memory": float(1 << 30)}},
        {"Alive": True, "NodeID": "large", "Resources": {"CPU": 2.0, "memory": float(8 << 30)}},
    ]
    util = SimpleNamespace(get_current_placement_group=lambda: None)
    monkeypatch.setattr(placement, "ray", SimpleNamespace(util=util, nodes=lambda: nodes))
    selectors: list[object] = []

    def make(bundles: list[object], **options: Any) -> Any:
        selectors.append(options["bundle_label_selector"])
        return SimpleNamespace(wait=lambda timeout_s: True)

    monkeypatch.setattr(placement, "placement_group", make)
    table = {"bundles_to_node_id": dict.fromkeys(range(2), "large")}
    monkeypatch.setattr(placement, "placement_group_table", lambda group: table)
    with pytest.raises(ConfigError, match="nodes have 2 CPU, 1GiB memory"):
        placement.place(config_on("cpu"), SIZES, "small")
    assert placement.place(config_on("cpu"), SIZES, "large").node_id == "large"
    placement.place(config_on("cpu"), SIZES)
    assert selectors == [[{"ray.io/node-id": "large"}] * 2, None]


H200, A100, UNKNOWN = {"accelerator_type:H200": 1.0}, {"accelerator_type:A100": 1.0}, {}
GPU, NO_GPU = {"GPU": 2.0}, {"CPU": 8.0}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([GPU | H200, NO_GPU], 3 << 30),
        ([GPU | A100], 6 << 30),
        ([GPU | UNKNOWN], 6 << 30),
        ([GPU | H200, GPU | A100], 6 << 30),
        ([NO_GPU], 6 << 30),
    ],
)
def test_experts_take_what_the_gpus_of_the_cluster_keep(
    nodes: list[dict[str, float]], expected: int
) -> None:
    sizes = replace(SIZES, expert_store_bytes=6 << 30, kept_store_bytes=3 << 30)
    assert placement.expert_store_bytes(sizes, nodes) == expected
    assert placement.expert_store_bytes(SIZES, nodes) == SIZES.expert_store_bytes


def test_an_engine_of_float8_is_placed_where_restored_experts_would_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resources = {"CPU": 4.0, "memory": float(8 << 30)} | GPU
    nodes = [{"Alive": True, "NodeID": "a", "Resources": resources | H200}]
    util = SimpleNamespace(get_current_placement_group=lambda: None)
    monkeypatch.setattr(placement, "ray", SimpleNamespace(util=util, nodes=lambda: nodes))
    asked: list[float] = []

    def make(bundles: list[dict[str, float]], **options: Any) -> Any:
        asked.append(total(bundles, "memory"))
        return SimpleNamespace(wait=lambda timeout_s: True)

    monkeypatch.setattr(placement, "placement_group", make)
    monkeypatch.setattr(
        placement, "placement_group_table", lambda group: {"bundles_to_node_id": ["a"]}
    )
    sizes = replace(SIZES, expert_store_bytes=6 << 30, kept_store_bytes=3 << 30)
    placement.place(config_on("cuda", dp=2), sizes)
    assert asked == [3 << 30]

    nodes[0]["Resources"] = resources | A100
    with pytest.raises(ConfigError, match=r"needs .*10GiB memory on one node"):
        placement.place(config_on("cuda", dp=2), sizes)
