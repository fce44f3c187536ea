"""The forms in which a matrix may stay as a checkpoint stores it."""

from raydix.kernels.fp8.form import Block
from raydix.kernels.int4.form import Int4Groups

KeptForm = Block | Int4Groups
"""Float8 in blocks, or four bits in groups of inputs."""
