"""Which tensors are those of routed experts."""


def is_of_experts(name: str) -> bool:
    """Whether a tensor is of routed experts, by its name in a checkpoint or in a decoder."""
    return ".experts." in name
