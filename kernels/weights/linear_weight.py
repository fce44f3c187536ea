"""What a product takes as its weight, and who makes it for the parts of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from raydix.kernels.fp8.form import Block
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.scaled_weight import ScaledWeight, empty_scaled_weight, input_group
from raydix.kernels.weights.weight import Weight, empty_weight

LinearWeight = Weight | ScaledWeight
"""Plain floats, or float8 in blocks: operations match which."""
_ALIGNMENT = 16
"""The number of inputs of which float8 has a multiple, as kernels copy rows of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMaker:
    """Makes the weights of a part of a model, uninitialised: a checkpoint fills them.

    Those that a checkpoint has in blocks stay so, unless ranks would cut within a block.
    """

    device: torch.device
    dtype: torch.dtype
    """The dtype of plain weights, and of biases."""
    blocks: Mapping[str, Block]
    """What is to stay in blocks, by names within the part."""

    def within(self, part: str) -> "WeightMaker":
        """The maker of a part of this one."""
        prefix = f"{part}."
        blocks = {
            name.removeprefix(prefix): block
            for name, block in self.blocks.items()
            if name.startswith(prefix)
        }
        return replace(self, blocks=blocks)

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
        sizes = tuple(num_outputs.values())
        block = self._common_block(tuple(num_outputs))
        if block is not None:
            # The last block of a whole matrix may be short, that of a part not.
            divided = sizes if share.size > 1 else sizes[:-1]
            if any(size % block[0] for size in divided):
                block = None
        return self._make(sum(sizes), num_inputs, block, bias=bias, num_seats=num_seats)

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
        block = self._common_block((name,))
        if block is not None and share.size > 1 and num_inputs % input_group(block):
            block = None
        return self._make(num_outputs, num_inputs, block, bias=bias, num_seats=num_seats)

    def of_floats(self) -> "WeightMaker":
        """The maker of the same part that leaves nothing in blocks."""
        return replace(self, blocks={})

    def plain(self, num_outputs: int, num_inputs: int, *, bias: bool) -> Weight:
        """A weight of floats, whatever the checkpoint has."""
        return empty_weight(
            num_outputs, num_inputs, bias=bias, device=self.device, dtype=self.dtype
        )

    def _common_block(self, names: Sequence[str]) -> Block | None:
        blocks = {self.blocks.get(name) for name in names}
        return blocks.pop() if len(blocks) == 1 else None

    def _make(
        self,
        num_outputs: int,
        num_inputs: int,
        block: Block | None,
        *,
        bias: bool,
        num_seats: int | None,
    ) -> LinearWeight:
        if block is None or num_inputs % _ALIGNMENT:
            return empty_weight(
                num_outputs,
                num_inputs,
                bias=bias,
                device=self.device,
                dtype=self.dtype,
                num_seats=num_seats,
            )
        return empty_scaled_weight(
            num_outputs,
            num_inputs,
            block=block,
            bias=bias,
            device=self.device,
            dtype=self.dtype,
            num_seats=num_seats,
        )


def scaled_bank(gate_up: LinearWeight, down: LinearWeight) -> tuple[ScaledWeight, ScaledWeight]:
    """Both weights of a bank in blocks, where one is."""
    assert isinstance(gate_up, ScaledWeight), "a bank's weights are of one kind"
    assert isinstance(down, ScaledWeight), "a bank's weights are of one kind"
    return gate_up, down
