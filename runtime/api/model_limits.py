"""What a client checks its requests against before it sends them."""

from dataclasses import astuple, dataclass, fields
from typing import Self

from raydix.errors import BadParameter
from raydix.runtime.actors.supervision.engine_facts import ClientFacts
from raydix.runtime.config.policies import ReasoningFormatName, ToolFormatName


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the served model and the engine's queue allow."""

    fingerprint: str
    """Equal for engines that compute the same of the same tokens, in hexadecimal."""
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_waiting_requests: int
    tool_format: ToolFormatName = ToolFormatName.AUTO
    reasoning_format: ReasoningFormatName = ReasoningFormatName.AUTO
    tokenizer: str | None = None
    """Equal for engines with the same tokenizer and chat template; None: nobody has said it."""

    @classmethod
    def of(cls, facts: ClientFacts) -> Self:
        """The limits of a running engine."""
        return cls(
            fingerprint=facts.fingerprint,
            max_model_len=facts.max_model_len,
            vocab_size=facts.vocab_size,
            eos_token_ids=facts.eos_token_ids,
            max_waiting_requests=facts.max_waiting_requests,
            tool_format=facts.tool_format,
            reasoning_format=facts.reasoning_format,
            tokenizer=facts.tokenizer,
        )

    def differences(self, other: Self) -> list[str]:
        """The names of what differs."""
        values = zip(fields(self), astuple(self), astuple(other), strict=True)
        return [field.name for field, own, others in values if own != others]

    def check_num_requests(self, number: int, cache_salt: str | None) -> None:
        """Raise BadParameter if the engine would never let so many of one caller wait at once.

        It would answer `Overloaded`, however often they were sent again.
        """
        # A tenant may have as many waiting as there are places left.
        shares = 1 if cache_salt is None else 2
        most = -(-self.max_waiting_requests // shares)
        if number > most:
            raise BadParameter(
                "n",
                f"asks for {number} samples at once, but the engine lets {most} requests wait. "
                "Ask for fewer, or start it with "
                f"scheduler.max_waiting_requests of {number * shares} or more.",
            )
