"""`raydix simulate --prefill-nodes` and `--roles`: engines that compute prompts for others."""

from dataclasses import replace

from raydix.errors import BadRequest, ConfigError
from raydix.runtime.cli.service_roles import configs_by_role
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.policies import EngineRole
from raydix.runtime.foresight.simulator.simulation import Service
from raydix.runtime.foresight.simulator.world import Rules


def with_roles(
    service: Service,
    config: EngineConfig,
    rules: Rules,
    *,
    num_prefill: int | None,
    told: str | None,
) -> Service:
    """The service, of which so many nodes compute prompts, or each node has engines as `told`.

    Raises BadRequest for roles that there are not, and ConfigError for engines that could hand
    nothing over.
    """
    if num_prefill is not None:
        _require_other_nodes(service, config, num_prefill, told)
        service = replace(service, num_prefill=num_prefill)
    elif told is not None:
        roles = _roles_of(told)
        _require_shared_l2(config, roles)
        service = replace(service, node=replace(service.node, roles=roles))

    is_split = num_prefill is not None or EngineRole.PREFILL in service.node.roles
    if is_split and rules.tokens_per_simulated > 1:
        raise ConfigError(
            f"--tokens-per-simulated is {rules.tokens_per_simulated}, and engines compute prompts "
            "for others; expected 1, as what is to be seen is the time between tokens. Leave "
            "--tokens-per-simulated out."
        )
    return service


def named(service: Service) -> str:
    """The nodes of a service in words."""
    apart = f", {service.num_prefill} of them for prefill" if service.num_prefill else ""
    roles = service.node.roles
    each = f" of {', '.join(roles)}" if len(roles) > 1 else ""
    nodes = "1 node" if service.num_nodes == 1 else f"{service.num_nodes} nodes"
    return f"{nodes}{each}{apart}"


def _roles_of(told: str) -> tuple[EngineRole, ...]:
    names = [name.strip() for name in told.split(",")]
    if unknown := [name for name in names if name not in list(EngineRole)]:
        raise BadRequest(
            f"--roles is {told}, and {unknown[0] or 'nothing'} is no role; expected roles among "
            f"{', '.join(EngineRole)}, one for each engine of a node, such as prefill,decode."
        )
    return tuple(EngineRole(name) for name in names)


def _require_other_nodes(
    service: Service, config: EngineConfig, num_prefill: int, told: str | None
) -> None:
    if told is not None:
        raise ConfigError(
            f"--prefill-nodes is {num_prefill}, and --roles {told}; expected one of them. Nodes "
            "whose engines are all for prefill are --prefill-nodes, engines of one node --roles."
        )
    if num_prefill >= service.num_nodes:
        raise ConfigError(
            f"--prefill-nodes is {num_prefill}, and --nodes {service.num_nodes}; expected --nodes "
            f"{num_prefill + 1} at least, as one has to go on with what these begin."
        )
    configs_by_role(config, num_prefill)


def _require_shared_l2(config: EngineConfig, roles: tuple[EngineRole, ...]) -> None:
    if all(role is EngineRole.PREFILL for role in roles):
        raise ConfigError(
            "--roles has prefill alone, so that none would go on with what these engines begin. "
            "Add decode or both, such as --roles prefill,decode."
        )
    for role in roles:
        try:
            load_config(config, {"role": role})
        except ConfigError as error:
            raise ConfigError(f"--roles has {role}, and for these engines: {error}") from error
