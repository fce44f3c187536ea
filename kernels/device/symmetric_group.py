"""Ranks as torch's symmetric memory wants to know them: by the name of a group."""

from torch.distributed.distributed_c10d import (
    PrefixStore,
    ProcessGroup,
    Store,
    _register_process_group,
)


def name_group(name: str, store: Store, rank: int, size: int) -> ProcessGroup:
    """Give this process's rank a name for its group, which holds as long as the result is kept.

    Names are torch's keys in this process, so that only ranks with processes of their own have one.
    Torch takes no name twice, also not once the first group is gone.
    """
    # Without a backend: it only says who the ranks are, and where they exchange their handles.
    group = ProcessGroup(PrefixStore(name, store), rank, size)
    group._set_group_name(name)
    _register_process_group(name, group)
    return group
