"""How inputs of products are rounded to float8: what kernels and their twins agree on.

A block of a token's inputs is divided by the least power of two that makes all of them numbers of
float8, at most 448. So neither the division rounds nor the product with the scale, on any device.
"""

Block = tuple[int, int | None]
"""The outputs and inputs of a matrix that share a scale. The last of them may be fewer.

None: all inputs do, whatever part of them a rank has.
"""
BLOCK = 128
"""The inputs of a token that share a scale."""
IN_BLOCKS: Block = (BLOCK, BLOCK)
PER_OUTPUT: Block = (1, None)
KERNEL_BLOCKS = (IN_BLOCKS, PER_OUTPUT)
"""The blocks that kernels know; their twins know all."""
SMALLEST_MAGNITUDE = 2.0**-100
"""What the largest input of a block counts as at least: less has no inverse in float32."""
MANTISSA_BITS = 23
"""The bits of a float32 behind its exponent."""
ROUND_UP = 0x1FFFFF
"""Added to the bits of a float32 it carries into the exponent if that has more than 1.75 times its
power of two: 448 is 1.75 times 256.
"""
LARGEST_EXPONENT = 8
"""The exponent of 448."""
ROW_ALIGNMENT = 16
"""The size in bytes of which packed rows are multiples, so that a thread copies as much at once."""


def input_group(block: Block) -> int:
    """The inputs of a token that are rounded by one scale: those of a block, if it has some."""
    return block[1] or BLOCK


def scale_bytes(size: int) -> int:
    """The bytes before the numbers of a packed row of `size`: a float32 for each block of them."""
    return 4 * -(-size // BLOCK)


def packed_bytes(size: int) -> int:
    """The bytes of a row of `size` numbers on its way to other ranks, filled up with anything."""
    return -(-(scale_bytes(size) + size) // ROW_ALIGNMENT) * ROW_ALIGNMENT
