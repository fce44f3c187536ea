"""`raydix serve --prefill-nodes`: which engines of a service compute prompts for the others."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.policies import EngineRole, RoutingPolicyName

if TYPE_CHECKING:
    from raydix.runtime.actors.service.scale import ScaleRule

logger = logging.getLogger(__name__)

PrefillNodes = Annotated[
    int | None,
    typer.Option(
        "--prefill-nodes",
        min=1,
        help="Of the nodes of --nodes or --autoscale, let the engines of K have the role prefill: "
        "they compute long prompts for the others, whose role is that of the configuration.",
        metavar="K",
    ),
]


def require_possible_roles(
    num_prefill: int | None, rule: "ScaleRule | None", routing: RoutingPolicyName
) -> None:
    """Raise ConfigError unless a service by this rule can have so many engines for prefill."""
    if num_prefill is None:
        return
    if rule is None:
        raise ConfigError(
            f"--prefill-nodes is {num_prefill}, and there is one engine, which does all. Add "
            "--nodes N or --autoscale MIN:MAX; both count the engines for prefill, too."
        )
    if num_prefill >= rule.fewest:
        raise ConfigError(
            f"--prefill-nodes is {num_prefill}, and the service may have as few as {rule.fewest} "
            f"engines; expected is {num_prefill + 1} of --nodes, or MIN of --autoscale, at least, "
            "as one has to go on with what these begin."
        )
    if routing is not RoutingPolicyName.KV:
        raise ConfigError(
            f"--prefill-nodes is given, and --routing {routing}, which knows no roles; expected "
            f"--routing {RoutingPolicyName.KV}. Leave one of them out."
        )


def warn_if_alone(config: EngineConfig, address: str | None) -> None:
    """Say that an engine's role means nothing, if its Ray cluster is to be its own."""
    from raydix.runtime.actors.bootstrap.cluster import named_cluster

    if config.role is not EngineRole.BOTH and named_cluster(address) is None:
        logger.warning(
            "role is %s, but without --address this engine's Ray cluster is its own, and so is its "
            "L2: no other engine goes on with what it begins, nor it with theirs. Start them on "
            "one cluster, by --address.",
            config.role,
        )


def configs_by_role(
    config: EngineConfig, num_prefill: int | None
) -> Mapping[EngineRole, EngineConfig]:
    """The configuration of the engines of each role that a service has. Raises ConfigError."""
    if num_prefill is None:
        return {config.role: config}
    if config.role is EngineRole.PREFILL:
        raise ConfigError(
            f"--prefill-nodes is {num_prefill}, and role prefill in the configuration, so that "
            "none would go on with what these engines begin. Set role to decode or both, which "
            "the others then have."
        )
    if config.cache.l2 is None or config.cache.l2.pull is None:
        raise ConfigError(
            "--prefill-nodes is given, and cache.l2.pull is not set: each engine of a service has "
            "a node of its own, and what those for prefill compute could not reach the others. "
            "Set cache.l2 and, in it, pull: {}."
        )
    try:
        prefill = load_config(config, {"role": EngineRole.PREFILL})
    except ConfigError as error:
        raise ConfigError(f"--prefill-nodes is given, and for these engines: {error}") from error
    return {config.role: config, EngineRole.PREFILL: prefill}
