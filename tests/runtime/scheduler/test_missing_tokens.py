"""Logits that are not finite: the request ends with an error, and nothing else notices."""

import pytest

from raydix.ids import NO_TOKEN
from raydix.runtime.messages.plan import DeviceSampling
from tests.runtime.scheduler.core_driver import CoreDriver

LONG = list(range(1, 13))


class BrokenDriver(CoreDriver):
    """Ranks that find no token for `broken` at one output position."""

    broken_position = 0

    def token_of(self, name: str, position: int) -> int:
        is_broken = name == "broken" and position >= self.broken_position
        return NO_TOKEN if is_broken else 1


@pytest.mark.parametrize("position", [0, 1, 3])
@pytest.mark.parametrize("num_logprobs", [None, 0])
def test_a_request_without_a_token_fails_and_the_others_go_on(
    position: int, num_logprobs: int | None
) -> None:
    driver = BrokenDriver()
    driver.broken_position = position
    sampling = DeviceSampling(seed=0, num_logprobs=num_logprobs)
    driver.submit(LONG, name="broken", max_tokens=6, sampling=sampling)
    other = driver.submit([7, 8, 9], max_tokens=6)

    driver.run()

    assert driver.answers["broken"].ending == "ModelFailed"
    assert driver.answers["broken"].tokens == [1] * position
    assert driver.answers[other].ending == "length"
    assert driver.answers[other].tokens == [1] * 6


def test_what_a_step_without_a_token_computed_is_not_cached() -> None:
    driver = BrokenDriver()
    driver.submit(LONG, name="broken")
    driver.run()
    again = driver.submit(LONG)
    driver.run()
    assert driver.answers["broken"].ending == "ModelFailed"
    sources = driver.answers[again].sources
    assert sources is not None
    assert "l1" not in sources
