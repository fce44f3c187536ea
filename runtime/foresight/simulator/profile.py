"""How long everything takes on a machine, with its spread: what the simulator draws from."""

import math
from pathlib import Path
from random import Random
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from raydix.errors import ConfigError
from raydix.runtime.config.values import Section, shortened

Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0.0, le=2.0)]
"""The standard deviation of the logarithm of a time; 0: it always takes as long."""
_LEAST_S = 1e-9


class StepTimes(Section):
    """The device time of a step, which is the sum of its parts."""

    fixed_s: Seconds
    """What a step takes whatever its rows are."""
    prompt_token_s: Seconds
    """What each token of a prompt adds."""
    prompt_pair_s: Seconds = 0.0
    """What each token of a prompt adds for each token that it looks back on."""
    decode_row_s: Seconds = 0.0
    """What each row that decodes adds."""
    decode_context_s: Seconds = 0.0
    """What a row that decodes adds for each token that it looks back on."""
    prompt_fixed_s: Seconds = 0.0
    """What a step with prompts takes besides."""
    launch_s: Seconds = 0.0
    """The host's time to enqueue a step with prompts, for which an idle device waits."""
    spread: Spread = 0.0

    def new_prompt_s(self, num_tokens: int) -> float:
        """The mean time of a step that computes a prompt of so many tokens, and nothing else."""
        # The first token looks back on none, the last one on all.
        num_pairs = num_tokens * num_tokens / 2
        prompt_s = self.prompt_token_s * num_tokens + self.prompt_pair_s * num_pairs
        return self.fixed_s + self.prompt_fixed_s + prompt_s

    @model_validator(mode="after")
    def _time_passes(self) -> Self:
        if self.fixed_s + self.decode_row_s + self.decode_context_s < _LEAST_S:
            raise ValueError(
                f"fixed_s is {self.fixed_s}, decode_row_s {self.decode_row_s} and "
                f"decode_context_s {self.decode_context_s}; expected {_LEAST_S} s of them at "
                "least, as time would else stand still while answers come. Set fixed_s to what a "
                "step takes."
            )
        return self


class CopyTimes(Section):
    """The time of copies over one link, one after the other."""

    fixed_s: Seconds = 0.0
    """What a copy takes whatever its size is."""
    bytes_per_s: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    spread: Spread = 0.0

    def seconds(self, num_bytes: float) -> float:
        """The mean time of a copy."""
        return self.fixed_s + num_bytes / self.bytes_per_s


class RestartTimes(Section):
    """How long what was killed is away."""

    rank_s: Seconds = 20.0
    host_s: Seconds = 2.0
    engine_s: Seconds = 30.0
    """The time to start all of an engine."""


class Profile(Section):
    """The times of one machine and model. `raydix profile` measures one."""

    name: str
    measured_on: str = ""
    """The device, and what it ran while it was measured."""
    step: StepTimes
    load: CopyTimes
    """From L2 to L1."""
    backup: CopyTimes
    """From L1 to L2."""
    pull: CopyTimes = CopyTimes(fixed_s=0.002, bytes_per_s=5e9)
    """From the L2 of another node."""
    storage_read: CopyTimes = CopyTimes(fixed_s=0.002, bytes_per_s=2e9)
    storage_write: CopyTimes = CopyTimes(fixed_s=0.002, bytes_per_s=2e9)
    storage_exists_s: Seconds = 0.001
    link_s: Seconds = 2.5e-4
    """How long a message between actors is on its way, with the turn that takes it."""
    client_s: Seconds = 2.5e-3
    """The time from a client's call to the Scheduler."""
    client_token_s: Seconds = 0.0
    """What each token of a prompt adds to that."""
    restart: RestartTimes = RestartTimes()


def read_profile(path: Path) -> Profile:
    """A profile from its file. Raises ConfigError, which names what does not fit."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        # Of what is missing there is no value but that of what it is missing in.
        given = "" if first["type"] == "missing" else f" (it is {shortened(first['input'], 80)})"
        raise ConfigError(
            f"{path} is no profile: {place}: {first['msg']}{given}. `raydix profile` writes one."
        ) from None


def draw_factor(spread: float, random: Random) -> float:
    """A factor whose mean is 1, by which a time differs from its mean."""
    if not spread:
        return 1.0
    return math.exp(random.gauss(0.0, spread) - spread * spread / 2)
