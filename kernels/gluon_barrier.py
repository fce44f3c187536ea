"""What Triton 3.6 and later ones call by different names in Gluon."""

from triton.experimental.gluon import language as gl

# Renamed in 3.7.
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
"""Wait until every thread of the program, or of a partition of its warps, is here."""
