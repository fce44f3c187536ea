"""Which tensors are those of routed experts."""


def is_of_experts(name: str) -> bool:
    """By a tensor's name, in a checkpoint or in a decoder. Shared experts are not meant."""
    return ".experts." in name
