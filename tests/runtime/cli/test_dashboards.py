"""`raydix dashboards`: what it writes, and where."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from raydix.errors import ConfigError
from raydix.runtime.cli.main import app


def run(*arguments: str) -> list[Path]:
    result = CliRunner().invoke(app, ["dashboards", *arguments])
    if result.exception is not None:
        raise result.exception
    return [Path(line) for line in result.output.splitlines()]


def test_the_targets_are_scraped_and_the_alerts_read(tmp_path: Path) -> None:
    written = run("--out", str(tmp_path), "--target", "a:9477", "--target", "b:9477")

    assert all(path.is_file() for path in written)
    config = yaml.safe_load((tmp_path / "prometheus.yml").read_text())
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["a:9477", "b:9477"]}]
    assert [(tmp_path / name).is_file() for name in config["rule_files"]] == [True]


def test_metrics_have_the_names_of_the_endpoint_that_is_scraped(tmp_path: Path) -> None:
    run("--out", str(tmp_path / "ray"))
    run("--out", str(tmp_path / "http"), "--http")

    for endpoint, name in (("ray", "ray_raydix_steps_total"), ("http", "raydix_steps_total")):
        text = (tmp_path / endpoint / "raydix-dashboard.json").read_text()
        assert f"(rate({name}{{" in text


def test_rays_folder_has_the_dashboard_beside_rays_own(tmp_path: Path) -> None:
    folder = tmp_path / "session_latest/metrics/grafana/dashboards"
    folder.mkdir(parents=True)

    [written] = run("--ray", str(tmp_path))

    assert written.parent == folder
    assert json.loads(written.read_text())["title"] == "Raydix"


def test_a_folder_that_is_none_of_rays_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not exist\. Give the temporary folder"):
        run("--ray", str(tmp_path))
    with pytest.raises(ConfigError, match="nothing says where to write"):
        run()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match=r"--out .*taken cannot be written: "):
        run("--out", str(tmp_path / "taken"))
