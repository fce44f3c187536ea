"""The version of what decoders compute, by which cached pages of another one are left alone."""

ARITHMETIC_VERSION = 1
"""Whoever makes the same weights and tokens come to other keys and values raises it by hand.

A correction does, and so does another rounding, or weights that stay in another form; another order
of sums does not. Pages in L3, and pages of other nodes, then have another namespace.
"""
