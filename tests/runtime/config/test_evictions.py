"""Which eviction policies a tier may have, and how others are refused."""

from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.config.loading import load_config


@pytest.mark.parametrize("section", ["l2", "l3"])
def test_a_policy_that_l1_alone_learns_is_refused_by_its_whole_key(
    tmp_path: Path, section: str
) -> None:
    l3 = {"backend": "file", "path": str(tmp_path), "max_bytes": "1GiB"}
    tier = (l3 if section == "l3" else {}) | {"eviction": "reuse"}
    with pytest.raises(ConfigError, match=rf"cache\.{section}\.eviction is 'reuse'; only L1"):
        load_config({"model": {"path": str(tmp_path)}, "cache": {section: tier}})
