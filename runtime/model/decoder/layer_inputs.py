"""What each layer is told of each token besides the residual stream.

Legend: T tokens of the step, C hidden, L layers, I dims that each layer is told.
"""

import torch
from torch import Tensor, nn

from raydix.kernels.ops import ModelOps
from raydix.kernels.weights.weight import empty_weight
from raydix.kernels.weights.weight_part import WeightPart, prefixed
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.decoder.embedding import Embedding
from raydix.runtime.model.decoder.residual_stream import ResidualStream
from raydix.runtime.model.decoder.rms_norm import RmsNorm
from raydix.runtime.model.spec.spec import LayerInputSpec, ModelSpec


class LayerInputs(nn.Module):
    """Makes the inputs of all layers: of a token's own ones and of what its embedding says."""

    def __init__(
        self,
        spec: LayerInputSpec,
        model: ModelSpec,
        ops: ModelOps,
        *,
        collectives: Collectives,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._ops = ops
        self._num_layers = model.num_layers
        self._size = spec.size
        self._hidden_scale = model.hidden_size**-0.5
        whole_size = model.num_layers * spec.size
        self.table = Embedding(
            spec.vocab_size, whole_size, spec.size**0.5, collectives, device=device, dtype=dtype
        )
        # Every rank has all of it: what it makes is small, and all ranks need it whole.
        self.projection = empty_weight(
            whole_size, model.hidden_size, bias=False, device=device, dtype=dtype
        )
        self.norm = RmsNorm(spec.norm, spec.size, ops, device=device, dtype=dtype)

    def forward(self, token_ids_T: Tensor, embedded_TC: Tensor) -> Tensor:
        """[T, L, I], the same on all ranks."""
        projected_TX = self._ops.linear(embedded_TC, self.projection) * self._hidden_scale
        normed_NI = self.norm(projected_TX.view(-1, self._size))
        own_NI = self.table(token_ids_T).view(-1, self._size)
        # The sum is made as large as either.
        both_NI = (normed_NI + own_NI) * 2.0**-0.5
        return both_NI.view(-1, self._num_layers, self._size)

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        return {
            **prefixed("table", self.table.weights()),
            **prefixed("projection", self.projection.whole_parts()),
            "norm.weight": WeightPart(self.norm.weight),
        }


class InputGate(nn.Module):
    """Adds to the residual stream what a layer makes of its input: a narrow feed-forward."""

    def __init__(
        self,
        spec: LayerInputSpec,
        hidden_size: int,
        layer: int,
        ops: ModelOps,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._ops = ops
        self._layer = layer
        self._glu = spec.glu
        self.gate = empty_weight(spec.size, hidden_size, bias=False, device=device, dtype=dtype)
        self.output = empty_weight(hidden_size, spec.size, bias=False, device=device, dtype=dtype)
        self.norm = RmsNorm(spec.norm, hidden_size, ops, device=device, dtype=dtype)

    def forward(self, stream: ResidualStream) -> None:
        """Add to the stream, on every rank alike."""
        gate_TI = self._ops.linear(stream.settled(), self.gate)
        both_TX = torch.cat((gate_TI, stream.layer_input(self._layer)), dim=1)
        hidden_TI = self._ops.glu(both_TX, self._glu)
        stream.add(self.norm(self._ops.linear(hidden_TI, self.output)))

    def weights(self) -> dict[str, WeightPart]:
        """All tensors that a checkpoint has."""
        return {
            **prefixed("gate", self.gate.whole_parts()),
            **prefixed("output", self.output.whole_parts()),
            "norm.weight": WeightPart(self.norm.weight),
        }
