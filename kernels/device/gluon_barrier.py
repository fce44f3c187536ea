"""The names in Gluon that changed between versions of Triton, from 3.6 on."""

from triton.experimental.gluon import language as gl

# Renamed in 3.7.
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
"""Waits until every thread of the program, or of a partition of its warps, has arrived."""
