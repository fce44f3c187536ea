"""What `raydix serve` makes of several models, and of how many engines there are to be."""

import pytest

from raydix.errors import ConfigError
from raydix.runtime.cli.http_front import model_names_of
from raydix.runtime.cli.service import require_one_cluster, rule_of, service_names
from raydix.runtime.config.loading import load_config


def test_times_of_a_rule_are_told_after_its_bounds() -> None:
    rule = rule_of(None, "1:4:0.5:300", 1)
    assert rule is not None
    assert (rule.fewest, rule.most, rule.wait_s, rule.idle_s) == (1, 4, 0.5, 300.0)


@pytest.mark.parametrize("text", ["3:1", "0:2", "1", "1:2:3", "1:2:-1:3", "1:2:nan:3", "1:2:1:inf"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--autoscale is '{text}'; expected MIN:MAX"):
        rule_of(None, text, 1)


def test_several_models_are_services_of_one_engine_each_unless_more_are_asked_for() -> None:
    assert rule_of(None, None, 1) is None
    rule = rule_of(None, None, 2)
    assert rule is not None
    assert (rule.fewest, rule.most) == (1, 1)
    more = rule_of(3, None, 2)
    assert more is not None
    assert more.fewest == 3


def test_services_are_called_after_their_models_where_there_are_several() -> None:
    assert service_names("prod", ["chat"]) == {"chat": "prod"}
    assert service_names("prod", ["a", "b"]) == {"a": "prod-a", "b": "prod-b"}
    assert service_names("prod", ["org/a", "b"]) == {"org/a": "prod-org-a", "b": "prod-b"}
    with pytest.raises(ConfigError, match="other names by --model-name"):
        service_names("prod", ["org/a", "org-a"])
    with pytest.raises(ConfigError, match="a name without /"):
        service_names("prod/x", ["a", "b"])


def test_each_model_has_a_name_of_its_own() -> None:
    assert model_names_of([], ["/models/a", "ORG/b"]) == ("a", "ORG/b")
    assert model_names_of(["x", "y"], ["/a", "/b"]) == ("x", "y")
    with pytest.raises(ConfigError, match="given 1 times for 2 models"):
        model_names_of(["x"], ["/a", "/b"])
    with pytest.raises(ConfigError, match="Two models are called a"):
        model_names_of([], ["/1/a", "/2/a"])


def test_models_of_one_cluster_agree_on_it() -> None:
    one = load_config({"model": {"path": "/a"}})
    require_one_cluster([one, load_config({"model": {"path": "/b"}})])
    other = load_config({"model": {"path": "/b"}, "ray": {"metrics_port": 1234}})
    with pytest.raises(ConfigError, match="Let these sections be equal"):
        require_one_cluster([one, other])
