"""The section about experts that are divided among ranks."""

from pydantic import Field

from raydix.runtime.config.policies import DispatchBackend
from raydix.runtime.config.values import Choice, Section


class ExpertsSection(Section):
    """How tokens reach experts on other ranks, where `parallel.ep` is more than 1."""

    dispatch: Choice[DispatchBackend] = Field(
        DispatchBackend.AUTO,
        description="What carries them: `gloo` (through the host's memory); `deepep`, `nixl_ep`, "
        "`mooncake_ep` or `mori`, libraries of others that docs/dispatch.md describes; or "
        "`auto`, the fastest that needs none of these.",
    )
