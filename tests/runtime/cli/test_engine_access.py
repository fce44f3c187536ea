from raydix.runtime.cli.engine_access import open_engine
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
