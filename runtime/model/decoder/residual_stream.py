"""What goes from layer to layer.

Legend: T tokens of a batch, C hidden, L layers, I dims that each layer is told.
"""

from torch import Tensor

from raydix.runtime.model.decoder.rms_norm import RmsNorm


class ResidualStream:
    """Owns: the sum of a batch's embeddings and of what layers have said so far, [T, C].

    What a part of a layer says is added, in place, by the norm that follows: one kernel does both.
    `inputs_TLI`: what layers are told of each token besides, if they are.
    """

    def __init__(self, embedded_TC: Tensor, inputs_TLI: Tensor | None = None) -> None:
        self._sum_TC = embedded_TC
        self._inputs_TLI = inputs_TLI
        self._said: Tensor | None = None
        """What is still to be added, [T, C], or summands of it."""

    def add(self, said: Tensor) -> None:
        """Add what a part of a layer says, [T, C], or summands as of `ModelOps.linear_summands`."""
        assert self._said is None, "a norm follows each part of a layer"
        self._said = said

    def layer_input(self, layer: int) -> Tensor:
        """What a layer is told of each token, [T, I]."""
        assert self._inputs_TLI is not None, "layers of this model are told nothing"
        return self._inputs_TLI[:, layer]

    def settled(self) -> Tensor:
        """The sum itself, with all that has been said: who changes it changes the stream.

        What was said last must be no summands: a norm has to have followed it.
        """
        said, self._said = self._said, None
        return self._sum_TC if said is None else self._sum_TC.add_(said)

    def normed(self, norm: RmsNorm | None) -> Tensor:
        """The sum as a norm leaves it, [T, C]; without one the sum itself, to be read alone."""
        if norm is None:
            return self.settled()
        said, self._said = self._said, None
        return norm(self._sum_TC) if said is None else norm(said, self._sum_TC)
