"""The forms in which a matrix may stay as a checkpoint stores it, and when it does."""

from collections.abc import Iterable, Mapping

from raydix.kernels.fp8.form import Block, input_group
from raydix.kernels.int4 import form as int4
from raydix.kernels.int4.form import Int4Groups
from raydix.kernels.weights.rank_share import RankShare

KeptForm = Block | Int4Groups
"""Float8 in blocks, or four bits in groups of inputs."""
_ALIGNMENT = 16
"""The number of inputs of which what stays as it is stored has a multiple: kernels copy rows of
float8, and four bits lie in blocks of as many.
"""
assert _ALIGNMENT % int4.BLOCK == 0


def form_of_rows(
    forms: Mapping[str, KeptForm],
    num_outputs: Mapping[str, int],
    num_inputs: int,
    share: RankShare,
) -> KeptForm | None:
    """How weights stay that one product takes together, and whose outputs ranks share.

    forms: what may stay, by name. num_outputs: of this rank, by name, in their order. None: as
    floats.
    """
    form = _common_form(forms, num_outputs)
    if form is None or num_inputs % _ALIGNMENT:
        return None
    if isinstance(form, tuple):
        # The last block of a whole matrix may be short, that of a part not.
        sizes = tuple(num_outputs.values())
        divided = sizes if share.size > 1 else sizes[:-1]
        if any(size % form[0] for size in divided):
            return None
    return form


def form_of_columns(
    forms: Mapping[str, KeptForm], name: str, num_inputs: int, share: RankShare
) -> KeptForm | None:
    """How a weight stays of whose inputs ranks have a share: num_inputs of them this one."""
    form = _common_form(forms, (name,))
    if form is None or num_inputs % _ALIGNMENT:
        return None
    is_within = share.size > 1 and num_inputs % _shared_inputs(form)
    return None if is_within else form


def _common_form(forms: Mapping[str, KeptForm], names: Iterable[str]) -> KeptForm | None:
    found = {forms.get(name) for name in names}
    return found.pop() if len(found) == 1 else None


def _shared_inputs(form: KeptForm) -> int:
    """The inputs between which ranks do not cut."""
    if isinstance(form, Int4Groups):
        return form.inputs or int4.BLOCK
    return input_group(form)
