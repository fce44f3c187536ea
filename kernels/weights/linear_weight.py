"""What a product takes as its weight, and who makes it for the parts of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from raydix.kernels.int4.form import Int4Groups
from raydix.kernels.weights.int4_weight import Int4Weight, empty_int4_weight
from raydix.kernels.weights.kept_form import KeptForm, form_of_columns, form_of_rows
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.scaled_weight import ScaledWeight, empty_scaled_weight
from raydix.kernels.weights.weight import Weight, empty_weight

LinearWeight = Weight | ScaledWeight | Int4Weight
"""Plain floats, float8 in blocks, or four bits in groups: operations match which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMaker:
    """Makes the weights of a part of a model, uninitialised: a checkpoint fills them.

    Those that a checkpoint has in blocks, or groups, stay so, unless ranks would cut within one.
    """

    device: torch.device
    dtype: torch.dtype
    """The dtype of plain weights, and of biases."""
    forms: Mapping[str, KeptForm]
    """What is to stay as it is stored, by names within the part."""

    def within(self, part: str) -> "WeightMaker":
        """The maker of a part of this one."""
        prefix = f"{part}."
        forms = {
            name.removeprefix(prefix): form
            for name, form in self.forms.items()
            if name.startswith(prefix)
        }
        return replace(self, forms=forms)

    def whole(self, name: str, num_outputs: int, num_inputs: int, *, bias: bool) -> LinearWeight:
        """A weight of which every rank keeps the whole."""
        return self.rows({name: num_outputs}, num_inputs, bias=bias, share=RankShare())

    def rows(
        self,
        num_outputs: Mapping[str, int],
        num_inputs: int,
        *,
        bias: bool,
        share: RankShare,
        num_seats: int | None = None,
    ) -> LinearWeight:
        """Weights that one product takes together, of whose outputs ranks have a share.

        num_outputs: of this rank, by name, in their order. num_seats: of a bank; None: it is none.
        """
        form = form_of_rows(self.forms, num_outputs, num_inputs, share)
        return self._make(
            sum(num_outputs.values()), num_inputs, form, bias=bias, num_seats=num_seats
        )

    def columns(
        self,
        name: str,
        num_outputs: int,
        num_inputs: int,
        *,
        bias: bool,
        share: RankShare,
        num_seats: int | None = None,
    ) -> LinearWeight:
        """A weight of whose inputs ranks have a share: num_inputs of them this one."""
        form = form_of_columns(self.forms, name, num_inputs, share)
        return self._make(num_outputs, num_inputs, form, bias=bias, num_seats=num_seats)

    def of_floats(self) -> "WeightMaker":
        """The maker of the same part that leaves nothing as it is stored."""
        return replace(self, forms={})

    def plain(self, num_outputs: int, num_inputs: int, *, bias: bool) -> Weight:
        """A weight of floats, whatever the checkpoint has."""
        return empty_weight(
            num_outputs, num_inputs, bias=bias, device=self.device, dtype=self.dtype
        )

    def _make(
        self,
        num_outputs: int,
        num_inputs: int,
        form: KeptForm | None,
        *,
        bias: bool,
        num_seats: int | None,
    ) -> LinearWeight:
        if form is None:
            return empty_weight(
                num_outputs,
                num_inputs,
                bias=bias,
                device=self.device,
                dtype=self.dtype,
                num_seats=num_seats,
            )
        if isinstance(form, Int4Groups):
            return empty_int4_weight(
                num_outputs,
                num_inputs,
                form=form,
                bias=bias,
                device=self.device,
                dtype=self.dtype,
                num_seats=num_seats,
            )
        return empty_scaled_weight(
            num_outputs,
            num_inputs,
            block=form,
            bias=bias,
            device=self.device,
            dtype=self.dtype,
            num_seats=num_seats,
        )


def int4_bank(gate_up: LinearWeight, down: LinearWeight) -> tuple[Int4Weight, Int4Weight]:
    """Both weights of a bank in four bits, where one is."""
    assert isinstance(gate_up, Int4Weight), "a bank's weights are of one kind"
    assert isinstance(down, Int4Weight), "a bank's weights are of one kind"
    return gate_up, down


def scaled_bank(gate_up: LinearWeight, down: LinearWeight) -> tuple[ScaledWeight, ScaledWeight]:
    """Both weights of a bank in blocks, where one is."""
    assert isinstance(gate_up, ScaledWeight), "a bank's weights are of one kind"
    assert isinstance(down, ScaledWeight), "a bank's weights are of one kind"
    return gate_up, down
