import pytest

from raydix.errors import ConfigError
from raydix.moe.dispatch.transport import Transport
from raydix.runtime.actors.expert_place import check_transport


def test_a_gpu_that_does_not_know_float8_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"compute capability 8\.0; expected 8\.9 or more"):
        check_transport(Transport.FP8, (8, 0))


@pytest.mark.parametrize(
    ("transport", "capability"),
    [(Transport.AUTO, (8, 0)), (Transport.FP8, (9, 0)), (Transport.FP8, None)],
)
def test_others_are_not(transport: Transport, capability: tuple[int, int] | None) -> None:
    check_transport(transport, capability)
