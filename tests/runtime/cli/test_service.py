"""`raydix serve --autoscale` takes only what says how many engines there are to be."""

import pytest

from raydix.errors import ConfigError
from raydix.runtime.cli.service import rule_of


def test_times_of_a_rule_are_told_after_its_bounds() -> None:
    rule = rule_of(None, "1:4:0.5:300")
    assert rule is not None
    assert (rule.fewest, rule.most, rule.wait_s, rule.idle_s) == (1, 4, 0.5, 300.0)


@pytest.mark.parametrize("text", ["3:1", "0:2", "1", "1:2:3", "1:2:-1:3", "1:2:nan:3", "1:2:1:inf"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--autoscale is '{text}'; expected MIN:MAX"):
        rule_of(None, text)
