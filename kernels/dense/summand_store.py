# mypy: disable-error-code="no-untyped-def"
"""What programs that divide rows of tiles among them leave: see `small_linear`."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def store_summand(ptr, value, zeros, mask, summand, size, is_row_done, SUMMANDS: gl.constexpr):
    """Store a program's summand of a tile; and nothing for those that no program has.

    ptr: where the first summand's numbers are; size: from one summand to the next. The last
    program of a row of tiles, where `is_row_done`, stores for others: fewer programs than elsewhere
    may have met in this row.
    """
    gl.store(ptr + summand * size, value.to(ptr.dtype.element_ty), mask=mask)
    if is_row_done:
        nothing = zeros.to(ptr.dtype.element_ty)
        for other in range(summand + 1, SUMMANDS):
            gl.store(ptr + other * size, nothing, mask=mask)
