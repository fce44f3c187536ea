"""How programs share the inputs of a product whose tiles of outputs are few."""

_PROGRAM_STEPS = 4
"""What beginning and ending a program takes, in steps of inputs."""


def share_inputs(
    num_tiles: int, num_steps: int, *, capacity: int, max_summands: int
) -> tuple[int, int]:
    """Steps of inputs per program, and how many programs share a tile of outputs.

    As many as let all programs that run at a time, `capacity`, end together. num_tiles: of outputs,
    for the tokens of one tile, so that the sums of a row do not depend on those beside it.
    """
    best, least_cost = num_steps, float("inf")
    for asked in range(1, min(max_summands, num_steps) + 1):
        steps = -(-num_steps // asked)
        num_programs = num_tiles * -(-num_steps // steps)
        cost = -(-num_programs // capacity) * (steps + _PROGRAM_STEPS)
        if cost < least_cost:
            best, least_cost = steps, cost
    return best, -(-num_steps // best)
