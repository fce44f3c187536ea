"""Kernels whose sums are taken in an order that depends on nothing but the row."""
