import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.bootstrap.placement import bundles_for, require_node
from raydix.runtime.config.loading import load_config


def test_cuda_engine_reserves_one_gpu_per_rank() -> None:
    config = load_config(
        {
            "model": {"path": "m", "device": "cuda"},
            "parallel": {"dp": 4},
            "cache": {"l2": {"bytes_per_node": "1GiB"}},
        }
    )
    assert sum(bundle.get("GPU", 0) for bundle in bundles_for(config)) == 4


def test_infeasible_placement_says_what_is_needed_and_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"needs .*2 GPU on one node.*1 GPU; .*1 GPU"):
        require_node([{"GPU": 1.0}, {"GPU": 1.0}], [{"GPU": 1.0, "CPU": 8.0}, {"GPU": 1.0}])


def test_infeasible_placement_says_which_keys_ask_for_less() -> None:
    with pytest.raises(ConfigError, match=r"Lower parallel\.dp or parallel\.tp"):
        require_node([{"GPU": 1.0}, {"GPU": 1.0}], [{"GPU": 1.0}])


def test_feasible_placement_passes() -> None:
    require_node([{"GPU": 1.0}, {"CPU": 0.01}], [{"CPU": 1.0}, {"GPU": 2.0, "CPU": 1.0}])
