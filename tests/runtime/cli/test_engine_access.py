import pytest

from raydix.errors import ConfigError
from raydix.runtime.cli.engine_access import Where, open_engine
from raydix.runtime.cli.listen_options import split_connect
from raydix.runtime.config.loading import load_config


async def test_an_engine_for_one_command_does_not_take_the_name_of_one_that_stays_up(
    cluster, checkpoint
):
    names = []
    for _ in range(2):
        async with await open_engine(load_config(checkpoint), None, None) as engine:
            names.append(engine.name)
    assert len({*names, "raydix"}) == 3
    assert cluster.handle.is_shut_down


async def test_a_running_engine_is_reached_and_goes_on(cluster):
    cluster.engines["mine"] = cluster.handle
    async with await open_engine(None, "mine", None) as engine:
        assert engine.name == "mine"
    assert not cluster.handle.is_shut_down


@pytest.mark.parametrize(
    ("connect", "expected"),
    [
        ("raydix", ("raydix", None)),
        ("mine@gpu7:8901", ("mine", "gpu7:8901")),
        ("mine@[::1]:0", ("mine", "[::1]:0")),
    ],
)
def test_a_name_may_be_followed_by_an_address(connect, expected):
    assert split_connect(connect) == expected


async def test_options_that_contradict_each_other_are_refused(tmp_path):
    for connect in ("@gpu7:8901", "mine@", "@", "left@h", "left@h:99999"):
        with pytest.raises(ConfigError, match="xpected NAME or NAME@HOST:PORT"):
            await Where(connect).reach()
    with pytest.raises(ConfigError, match="--connect mine@HOST:PORT"):
        await Where("mine", None, tmp_path).reach()
    with pytest.raises(ConfigError, match="Leave one out"):
        await Where("mine@gpu7:8901", "ray-head:6379").reach()
