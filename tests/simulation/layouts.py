"""KV layouts of the simulated engine: groups of every kind, in any mixture."""

import random
from collections.abc import Sequence
from dataclasses import replace

from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.pool_sizes import least_window_pages
from raydix.runtime.scheduler.settings import SchedulerSettings

PAGE_SIZE = 4
LAYOUT = KvLayout(
    page_size=PAGE_SIZE,
    dtype="float32",
    dtype_bytes=4,
    groups=(KvGroup(kind=GroupKind.FULL, layers=(0, 1), num_kv_heads=1, head_dim=8),),
)
TWO_GROUPS = replace(
    LAYOUT,
    groups=(
        KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=8),
        KvGroup(kind=GroupKind.FULL, layers=(1, 2), num_kv_heads=2, head_dim=8),
    ),
)
"""Layers that all see everything, in two groups whose pages differ in size."""
LATENT = replace(
    LAYOUT,
    groups=(KvGroup(kind=GroupKind.LATENT, layers=(0, 1), num_kv_heads=1, head_dim=16),),
)
"""Pages that are equal on all ranks of a lane: each moves a share of them for all."""
FULL_AND_LATENT = replace(
    LAYOUT,
    groups=(
        KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=2, head_dim=8),
        KvGroup(kind=GroupKind.LATENT, layers=(1, 2), num_kv_heads=1, head_dim=16),
    ),
)
WINDOWED = KvGroup(
    kind=GroupKind.WINDOW, layers=(3,), num_kv_heads=1, head_dim=8, window=2 * PAGE_SIZE
)
STATEFUL = KvGroup(kind=GroupKind.STATE, layers=(4,), num_kv_heads=1, head_dim=8)
FULL_AND_WINDOW = replace(LAYOUT, groups=(TWO_GROUPS.groups[0], WINDOWED))
_WINDOWS = (1, 1, 2, 4, 5, 6, 8, 9, 13, 16, 17, 40, 150)
"""Tokens of a window: as they suit pages or not, one token, and more than any prompt has."""
_STATE_SIZES = (1, 8, 64, 64, 256, 256, 4096)
"""Numbers of a state: of less weight than a token of other groups, and of more than any prompt."""
_WITHOUT_WINDOWS = (LAYOUT, TWO_GROUPS, LATENT, FULL_AND_LATENT)


def draw_layout(draw: random.Random) -> KvLayout:
    """Groups that see everything, or equal latents, or windows, or any of these together."""
    layout = draw.choice(_WITHOUT_WINDOWS)
    return draw_windows(draw, layout) if draw.random() < 0.7 else layout


def draw_windows(draw: random.Random, layout: KvLayout) -> KvLayout:
    """A layout with groups that look back over windows, between its other groups or without any."""
    groups = list(layout.groups) if draw.random() < 0.7 else []
    for _ in range(draw.choice([1, 1, 2, 3])):
        window = replace(WINDOWED, window=draw.choice(_WINDOWS))
        groups.insert(draw.randrange(len(groups) + 1), window)
    return replace(layout, groups=tuple(groups))


def draw_states(draw: random.Random, layout: KvLayout) -> KvLayout:
    """The same layout with layers that keep a state in place of some that have a window."""
    groups = [
        replace(STATEFUL, head_dim=draw.choice(_STATE_SIZES))
        if group.window is not None and draw.random() < 0.6
        else group
        for group in layout.groups
    ]
    return replace(layout, groups=tuple(groups))


def pool_sizes(
    draw: random.Random, settings: SchedulerSettings, sizes: Sequence[int]
) -> tuple[int, ...]:
    """Pages of each group's pool. `sizes`: those that see everything have one of these.

    WINDOW and STATE groups have room for one request, and often for no more.
    """
    max_pages = -(-settings.max_model_len // settings.page_size)
    least = least_window_pages(settings.layout, settings.max_step_tokens)
    return tuple(
        [
            draw.choice(sizes)
            if reach is None
            else (fewest if settings.chunked_prefill else min(max_pages, fewest))
            + draw.choice([0, 3, 20])
            for reach, fewest in zip(settings.reaches, least, strict=True)
        ]
    )


def least_pages(settings: SchedulerSettings) -> tuple[int, ...]:
    """Per KV group, pages without which a request that runs alone may wait for ever.

    The configuration makes no pools that are smaller.
    """
    context = -(-settings.max_model_len // settings.page_size)
    least = least_window_pages(settings.layout, settings.max_step_tokens)
    return tuple(
        [
            context if reach is None else min(context, fewest)
            for reach, fewest in zip(settings.reaches, least, strict=True)
        ]
    )


def with_windows(draw: random.Random, settings: SchedulerSettings) -> SchedulerSettings:
    """The same settings where some layers look back over a window, with pages of any size."""
    layout = draw_windows(draw, settings.layout)
    page_size = draw.choice([PAGE_SIZE, PAGE_SIZE, PAGE_SIZE, 1, 2, 8])
    settings = replace(
        settings,
        layout=replace(layout, page_size=page_size),
        # A chunk is a page at least, as the configuration demands.
        prefill_budget_tokens=max(page_size, settings.prefill_budget_tokens),
        prefix_caching=settings.prefix_caching and draw.random() < 0.9,
    )
    sizes = [num_pages * PAGE_SIZE // page_size for num_pages in (30, 40, 64)]
    return replace(settings, num_pages=pool_sizes(draw, settings, sizes))
