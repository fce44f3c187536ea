"""Tests of the eviction policies that a tier may not have."""

from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.policies import EvictionPolicy


def load(section: str, policy: str, path: Path) -> EvictionPolicy:
    l3 = {"backend": "file", "path": str(path), "max_bytes": "1GiB"}
    l2 = {"bytes_per_node": "1GiB"}
    tier = (l3 if section == "l3" else l2) | {"eviction": policy}
    config = load_config({"model": {"path": str(path)}, "cache": {section: tier}})
    found = getattr(config.cache, section).eviction
    assert isinstance(found, EvictionPolicy)
    return found


@pytest.mark.parametrize(
    ("section", "policy", "who_may"),
    [
        ("l2", "tlru", "only L1, whose policy is cache.eviction"),
        ("l3", "tlru", "only L1, whose policy is cache.eviction"),
        ("l3", "reuse", "only L1 and L2, by cache.eviction and cache.l2.eviction, learn that one"),
    ],
)
def test_a_policy_of_another_tier_is_refused_by_its_whole_key(
    tmp_path: Path, section: str, policy: str, who_may: str
) -> None:
    words = rf"cache\.{section}\.eviction is '{policy}'; {who_may}.*; expected one of lru, lfu"
    with pytest.raises(ConfigError, match=words):
        load(section, policy, tmp_path)


def test_l2_may_learn(tmp_path: Path) -> None:
    assert load("l2", "reuse", tmp_path) is EvictionPolicy.REUSE
