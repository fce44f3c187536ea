"""What a tier holds of a prompt, page by page, and how much of the prompt that is good for."""

from pathlib import Path

from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.cache.kv_match import Availability, match_groups
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key, split_keys
from raydix.runtime.messages.host import PageSource
from raydix.runtime.testing.engine import InProcessEngine
from tests.exactness.reference import Prompt
from tests.exactness.states import State


def held_pages(
    engine: InProcessEngine, tier: State, prompt: Prompt, l3: Path | None = None
) -> tuple[Availability, ...]:
    """Per KV group, which full pages of a prompt a tier has; `l3` is the folder of a file store."""
    layout = engine.facts.layout
    keys = split_keys(extend_keys(root_key(), pack_tokens(prompt), layout.page_size))
    maps: list[list[bool]] = []
    for group in range(len(layout.groups)):
        match tier:
            case State.L1:
                scheduler = engine.spawner.latest(ActorKind.SCHEDULER)
                assert scheduler is not None
                tree = scheduler.plain._core._lanes[0].l1.tree
                ids = tree.match(root_key(), pack_tokens(prompt)).page_ids[group].tolist()
                maps.append([bool(page_id) for page_id in ids] + [False] * (len(keys) - len(ids)))
            case State.L2:
                host = engine.spawner.latest(ActorKind.HOST_MEMORY)
                assert host is not None
                index = host.plain.host._core._index
                maps.append([index.find(group, key) is not None for key in keys])
            case State.L3:
                assert l3 is not None
                stored = {path.name.removesuffix(".page") for path in l3.glob("*/*/*.page")}
                suffix = f".g{group}" if len(layout.groups) > 1 else ""
                maps.append([key.hex() + suffix in stored for key in keys])
            case State.COLD | State.RETRACTION:
                raise ValueError("no page is kept in this state")
    source = PageSource[tier.name]
    return tuple(bytes(source if has else PageSource.NOT_FOUND for has in pages) for pages in maps)


def usable_pages(
    engine: InProcessEngine, tier: State, prompt: Prompt, l3: Path | None = None
) -> int:
    """The pages of a prompt after which its next token can be computed from what a tier holds."""
    layout = engine.facts.layout
    held = held_pages(engine, tier, prompt, l3)
    return match_groups(layout.groups, held, page_size=layout.page_size).num_pages
