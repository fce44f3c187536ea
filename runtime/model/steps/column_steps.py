"""Steps that are told all they need by columns on the device, so that CUDA graphs can hold them."""

from collections.abc import Callable, Mapping

from torch import Tensor

from raydix.kernels.attention.rows import AttentionRows, DecodeRows
from raydix.kernels.sampling.columns import as_sampling_columns
from raydix.moe.sent_rows import SentRows
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.decoder.in_turns import MicroBatch
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.staging.columns import Column
from raydix.runtime.model.steps.captured_steps import CapturedOutput
from raydix.runtime.model.steps.group_place import GroupPlace
from raydix.runtime.model.steps.step_inputs import InputMaker, decode_tiles, whole_rows
from raydix.runtime.model.steps.step_rows import padding_columns
from raydix.runtime.model.steps.step_shapes import StepShape


class ColumnSteps:
    """What `CapturedSteps` captures. `place`: among lanes that share experts; None: there are none.

    A captured step has the addresses of what it was made with, so nothing here is replaced.
    """

    def __init__(
        self, decoder: Decoder, slots: RequestSlots, inputs: InputMaker, place: GroupPlace | None
    ) -> None:
        self._decoder = decoder
        self._slots = slots
        self._inputs = inputs
        self._place = place

    def run(
        self,
        packed: Tensor,
        shape: StepShape,
        on_layer: Callable[[int], None] | None = None,
        /,
    ) -> CapturedOutput:
        """The step that `step_columns` describes. Reads nothing from the host but the shape."""
        columns = shape.layout.split(packed)
        tiles = decode_tiles(columns, shape.tokens_per_tile, self._slots.max_model_len)
        tiles_X4 = columns["tiles_X4"] if shape.num_prompt_tiles else None
        attention_rows = AttentionRows(
            decode=(tiles,),
            tiles_X4=tiles_X4,
            sequences=self._sequences(shape, columns, tiles),
        )
        batch = MicroBatch(
            token_ids_T=self._slots.tokens_XL.view(-1)[columns["token_index_T"]],
            attention=self._inputs.attention(attention_rows, columns),
            sent=self._padded(shape, columns["token_index_T"]),
        )
        [hidden_TC] = self._decoder([batch], on_layer)

        sampled_RC = hidden_TC if shape.is_decode else hidden_TC[columns["last_tokens_R"]]
        logits_RV = self._decoder.logits(sampled_RC)
        token_ids_R = self._decoder.ops.sample_whole(logits_RV, as_sampling_columns(columns))
        self._slots.keep_sampled(columns["next_index_R"], token_ids_R)
        return CapturedOutput(hidden_TC=hidden_TC, logits_RV=logits_RV, token_ids_R=token_ids_R)

    def cut(self, packed: Tensor, shape: StepShape, output: CapturedOutput) -> None:
        """Sample its rows that cut tokens, after `run`."""
        columns = shape.layout.split(packed)
        sampling = as_sampling_columns(columns)
        self._decoder.ops.sample_cut(output.logits_RV, sampling, output.token_ids_R)
        self._slots.keep_sampled(columns["next_index_R"], output.token_ids_R)

    def padding(self, shape: StepShape) -> Column:
        """The columns of a step of this shape that has nothing but padding."""
        return padding_columns(self._slots, shape)

    def _sequences(
        self, shape: StepShape, columns: Mapping[str, Tensor], tiles: DecodeRows
    ) -> tuple[DecodeRows, ...]:
        """The rows whole. The tiles of an extension are parts of its only row."""
        singles = (tiles,) if shape.is_decode or shape.num_prompt_tiles else ()
        if not shape.num_sequences:
            return singles
        longest = min(shape.num_tokens, self._slots.max_model_len)
        return (*singles, whole_rows(columns, longest, self._slots.max_model_len))

    def _padded(self, shape: StepShape, token_index_T: Tensor) -> SentRows | None:
        """What this rank sends in a captured step with these tokens."""
        if self._place is None:
            return None
        # The scratch slot is the last, and padding is the only thing there.
        is_padding_T = token_index_T >= self._slots.scratch_slot * self._slots.tokens_per_slot
        return self._place.padded(shape, is_padding_T)
