"""Carries out numbered plans: gathers tokens, runs the decoder, samples, keeps the tokens.

Sampled tokens are written to the slot's tokens on the device, so the next plan may use one that the
Scheduler has not seen yet. Lengths are known on the host; nothing here waits for the device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raydix.errors import AccountingError
from raydix.moe.sent_rows import SentRows
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.decoder.in_turns import MicroBatch
from raydix.runtime.model.grammars.library import ReadGrammars
from raydix.runtime.model.grammars.slot_matchers import SlotMatchers
from raydix.runtime.model.logit_rules.grammar_mask import GrammarMask
from raydix.runtime.model.logit_rules.table import LOGIT_RULES, LogitRules
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.slots.slot_sampling import SAMPLES_NOTHING, SamplingRows
from raydix.runtime.model.steps.captured_steps import CapturedSteps
from raydix.runtime.model.steps.column_steps import ColumnSteps
from raydix.runtime.model.steps.decode_columns import PackedColumns
from raydix.runtime.model.steps.group_place import (
    GroupPlace,
    LaneSizes,
    group_place_of,
    read_lane_sizes,
)
from raydix.runtime.model.steps.layer_waits import layer_waiter
from raydix.runtime.model.steps.micro_batches import halves, split_rows
from raydix.runtime.model.steps.prompt_rows import PromptTensors, look_at_prompts
from raydix.runtime.model.steps.shape_choice import (
    can_replay,
    choose_common_shape,
    choose_own_shape,
    shapes_of,
)
from raydix.runtime.model.steps.step_inputs import BatchInputs, InputMaker
from raydix.runtime.model.steps.step_output import StepOutput, finish_step, make_output
from raydix.runtime.model.steps.step_rows import (
    StepRows,
    idle_row,
    padding_row,
    prompts_of_padding,
    read_rows,
)
from raydix.runtime.model.steps.step_shapes import USUAL_PREFILL_TOKENS, StepShape
from raydix.runtime.model.steps.warm_up import CUTTING, GREEDY, asking_for_all, warm_up_rows
from raydix.runtime.tiers.transfers import WaitLayer

Part = tuple[StepRows, SentRows | None]
"""Rows that go through the layers together, and what this rank sends of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """What the layers have made of a step that is not captured."""

    hidden_RC: Tensor
    """The hidden states of the rows that sample."""
    inputs: BatchInputs
    """What sampling needs besides."""
    prompts: PromptTensors | None


def never_halved(num_tokens: int) -> bool:
    """Answer for runners whose every step is one batch."""
    return False


class ModelRunner:
    """Runs plans on one device, in order. Owns: the request slots. The pools belong to the caller.

    `pools`: one zeroed tensor per KV group, from `make_pools`; page 0 is padding. `is_halved` is
    asked only where ranks share experts, and says the same on all of them: whether a step that is
    not captured goes through the layers as two micro-batches, given the tokens of the busiest lane.
    `max_prefill_tokens`: those of prompts in a step, but of a longer one that is not cut.
    """

    def __init__(
        self,
        decoder: Decoder,
        pools: tuple[Tensor, ...],
        *,
        page_size: int,
        max_slots: int,
        max_model_len: int,
        device: torch.device,
        max_prefill_tokens: int = USUAL_PREFILL_TOKENS,
        is_halved: Callable[[int], bool] = never_halved,
        rules: LogitRules = LOGIT_RULES,
    ) -> None:
        self._decoder = decoder
        self._pools = pools
        self._device = device
        self.max_prefill_tokens = max_prefill_tokens
        self._is_halved = is_halved
        self._captured: CapturedSteps | None = None
        self._place = group_place_of(decoder)
        self._matchers = SlotMatchers(ReadGrammars())
        self.slots = RequestSlots(
            pool_pages=[pool.shape[0] - 1 for pool in pools],
            page_size=page_size,
            max_slots=max_slots,
            max_model_len=max_model_len,
            device=device,
            rules=(*rules, GrammarMask(self._matchers, decoder.ops)),
        )
        self._inputs = InputMaker(decoder, pools, self.slots, device)
        self._packed = PackedColumns(self.slots)
        self._columns = ColumnSteps(decoder, self.slots, self._inputs, self._place)
        # Of high priority: rows are sent at once while the other micro-batch computes.
        self._stream = torch.cuda.Stream(priority=-1) if device.type == "cuda" else None
        self.num_halved_steps = 0
        """Steps that went through the layers as two micro-batches."""

    @property
    def num_lanes(self) -> int:
        """The lanes that step together, this one among them."""
        return 1 if self._place is None else self._place.num_lanes

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run steps of all kinds and sizes, on padding, so that every kernel is compiled."""
        longest = min(self.max_prefill_tokens, self.slots.max_model_len)
        for num_tokens, start in warm_up_rows(longest, self.slots.max_model_len):
            self._run_padding(num_tokens, start)

        # The largest batch, with all that rows may ask for: it takes the most memory of all steps.
        for sampling in (CUTTING, asking_for_all(self.slots.sampling.rules)):
            self.slots.sampling.put(self.slots.scratch_slot, sampling)
            self._run_padding(longest, self.slots.max_model_len - longest, self.slots.max_slots)
        self.slots.sampling.put(self.slots.scratch_slot, GREEDY)
        if self._decoder.experts is not None:
            # Padding's rows do not count as load of experts.
            self._decoder.experts.routes.take_demand()

    @torch.inference_mode()
    def run_shapes(self) -> None:
        """Enqueue a step of each captured shape, of nothing but padding, without its graph."""
        for shape in self.captured_shapes():
            packed = torch.from_numpy(self._columns.padding(shape)).to(self._device)
            output = self._columns.run(packed, shape)
            self._columns.cut(packed, shape, output)

    @torch.inference_mode()
    def run_rows(self, num_rows: int, num_tokens: int, context_tokens: int) -> None:
        """Enqueue a step of so many rows of padding that end at that context, as one batch."""
        row = padding_row(num_tokens, context_tokens - num_tokens, self.slots)
        lanes = self._same_on_all_lanes(num_rows * num_tokens)
        self._run([self._whole(row.repeated(num_rows), lanes)], SAMPLES_NOTHING)

    @torch.inference_mode()
    def run_whole(self, num_tokens: int) -> None:
        """Enqueue a step of so many tokens of padding in each lane, as one batch."""
        rows = prompts_of_padding(num_tokens, self.slots)
        self._run([self._whole(rows, self._same_on_all_lanes(num_tokens))], SAMPLES_NOTHING)

    @torch.inference_mode()
    def run_halved(self, num_tokens: int) -> None:
        """Enqueue the same as two micro-batches."""
        assert self._place is not None, "others share the experts"
        rows = prompts_of_padding(num_tokens, self.slots)
        parts = self._halves(rows, self._same_on_all_lanes(num_tokens), self._place)
        self._run(parts, SAMPLES_NOTHING)

    def sent_rows(self, num_tokens: int) -> SentRows:
        """What this rank sends in each layer of a step of so many tokens in each lane."""
        assert self._place is not None, "others share the experts"
        return self._place.exact(self._same_on_all_lanes(num_tokens))

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture all `captured_shapes`, if operations allow it: once, before the first plan."""
        if self._decoder.is_capturable:
            self._captured = CapturedSteps(
                self._columns.run,
                self._columns.cut,
                padding=self._columns.padding,
                shapes=self.captured_shapes(),
                device=self._device,
            )

    def release(self) -> None:
        """Drop captured graphs, whose memory goes with them. No step runs any more."""
        self._captured = None

    def captured_shapes(self) -> tuple[StepShape, ...]:
        """Shapes of the steps that are captured; a step takes the first that holds it."""
        return shapes_of(self._decoder, self._place, self.slots, self.max_prefill_tokens)

    def apply(self, plan: StepPlan) -> None:
        """Carry out the plan's removals, additions and block-table changes: see `RequestSlots`."""
        self.slots.apply(plan)
        self._matchers.apply(plan)

    @torch.inference_mode()
    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> StepOutput:
        """Run the plan's rows, after `apply`; on cuda, enqueue them on the current stream.

        Without any it takes part in the other lanes' step, if they share experts and one has some.
        """
        rows = read_rows(plan, self.slots)
        sizes = read_lane_sizes(plan, self._place)
        if not any(sizes.tokens):
            return self._nothing()
        on_layer = layer_waiter(plan, wait_layer)
        sampling = rows.sampling_rows(self.slots.sampling)

        captured, common = self._captured, None
        if captured is not None:
            shape, common = self._choose_shapes(captured.shapes, rows, sizes, on_layer)
            if shape is not None:
                output = self._replay(captured, shape, rows, sampling, on_layer)
                return self._note_sampled(sampling, output)

        parts = self._parts(rows, sizes.tokens, common)
        output = self._sample(self._run(parts, sampling, on_layer), sampling)
        return self._note_sampled(sampling, output)

    def _note_sampled(self, sampling: SamplingRows, output: StepOutput) -> StepOutput:
        """Let grammars go on from what this step samples, once it is there."""
        self._matchers.note_sampled(sampling.slots, sampling.output_positions, output.token_id)
        slow_slots = self._matchers.take_slow_slots()
        return replace(output, slow_slots=int32_array(slow_slots)) if slow_slots else output

    def check(self) -> None:
        """Raise AccountingError if a block table names a page outside its pool. The host waits."""
        for group, (table_XN, pool) in enumerate(
            zip(self.slots.tables_XN, self._pools, strict=True)
        ):
            lowest, highest = (int(bound) for bound in table_XN.aminmax())
            if lowest < 0 or highest >= pool.shape[0]:
                raise AccountingError(
                    f"Block tables of group {group} name pages {lowest} to {highest}; its pool "
                    f"has {pool.shape[0]}."
                )

    def _choose_shapes(
        self,
        shapes: Sequence[StepShape],
        rows: StepRows,
        sizes: LaneSizes,
        on_layer: Callable[[int], None] | None,
    ) -> tuple[StepShape | None, StepShape | None]:
        """The shape of the replay, and that to which all lanes that step together fill it up."""
        if self._place is None:
            return choose_own_shape(self._decoder, shapes, rows, sizes, on_layer), None
        common = choose_common_shape(shapes, sizes, self._is_halved)
        if common is None or not can_replay(self._decoder, common, rows):
            return None, common
        return common, common

    def _parts(self, rows: StepRows, tokens: Sequence[int], common: StepShape | None) -> list[Part]:
        """The step whole, or its two halves. `tokens`: of each lane. For `common` see above."""
        place, most = self._place, max(tokens)
        if place is not None and common is not None:
            assert len(rows.slots), "a lane without rows replays any shape"
            return [(rows, place.padded(common))]
        # Of a step of single tokens the second half would be empty on every rank.
        if place is None or most < 2 or not self._is_halved(most):
            return [self._whole(rows, tokens)]
        self.num_halved_steps += 1
        return self._halves(rows, tokens, place)

    def _whole(self, rows: StepRows, tokens: Sequence[int]) -> Part:
        return rows, None if self._place is None else self._place.exact(tokens)

    def _halves(self, rows: StepRows, tokens: Sequence[int], place: GroupPlace) -> list[Part]:
        first, second = halves(tokens)
        return [
            (each, place.exact(some, self._stream))
            for each, some in zip(split_rows(rows, first[place.lane]), (first, second), strict=True)
        ]

    def _run(
        self,
        parts: Sequence[Part],
        sampling: SamplingRows,
        on_layer: Callable[[int], None] | None = None,
    ) -> _Ran:
        """Run the layers; returns hidden states of the rows that sample, and looks at prompts."""
        # Of two halves the second carries the sampling of both: nothing is sampled before it ran.
        of_part = [*(SAMPLES_NOTHING for _ in parts[1:]), sampling]
        inputs = [
            self._inputs.batch(rows if len(rows.slots) else idle_row(self.slots), sampled)
            for (rows, _), sampled in zip(parts, of_part, strict=True)
        ]
        batches = [
            MicroBatch(token_ids_T=each.token_ids_T, attention=each.attention, sent=sent)
            for each, (_, sent) in zip(inputs, parts, strict=True)
        ]

        hidden = self._decoder(batches, on_layer)
        sampled = [
            hidden_TC[each.sampled_R] for hidden_TC, each in zip(hidden, inputs, strict=True)
        ]
        return _Ran(
            hidden_RC=sampled[0] if len(sampled) == 1 else torch.cat(sampled),
            inputs=inputs[-1],
            prompts=look_at_prompts(
                self._decoder,
                list(zip(hidden, [rows for rows, _ in parts], strict=True)),
                self.slots,
            ),
        )

    def _replay(
        self,
        captured: CapturedSteps,
        shape: StepShape,
        rows: StepRows,
        sampling: SamplingRows,
        on_layer: Callable[[int], None] | None,
    ) -> StepOutput:
        """Replay a captured step, then do what is asked of its prompts, which is not captured."""
        if on_layer is not None and not shape.waits_by_layer:
            # The events of a load are made for this plan, so no graph can hold them: wait for the
            # last layer, and so for all of the load, first.
            on_layer(self._decoder.spec.num_layers - 1)
            on_layer = None

        num_rows = len(sampling.slots)
        columns = self._packed.pack(rows, sampling, shape)
        output = captured.replay(columns, shape, on_layer)
        if sampling.has_cuts:
            captured.replay_cut(shape)

        prompts = None
        if not shape.is_decode or num_rows < len(rows.slots):
            # In the order in which the columns have them.
            own = (output.hidden_TC, rows.sampling_first())
            prompts = look_at_prompts(self._decoder, [own], self.slots)
        if not num_rows:
            return self._nothing(prompts)
        return finish_step(
            self._decoder.ops,
            self.slots,
            output.logits_RV[:num_rows],
            output.token_ids_R[:num_rows],
            sampling,
            prompts,
        )

    def _sample(self, ran: _Ran, sampling: SamplingRows) -> StepOutput:
        """Sample as captured steps do, but enqueue one operation after another."""
        if not len(ran.hidden_RC):
            return self._nothing(ran.prompts)
        inputs = ran.inputs
        logits_RV = self._decoder.logits(ran.hidden_RC)
        token_ids_R = self._decoder.ops.sample_whole(logits_RV, inputs.columns)
        if sampling.has_cuts:
            self._decoder.ops.sample_cut(logits_RV, inputs.columns, token_ids_R)
        self.slots.keep_sampled(inputs.next_index_R, token_ids_R)
        return finish_step(
            self._decoder.ops, self.slots, logits_RV, token_ids_R, sampling, ran.prompts
        )

    def _nothing(self, prompts: PromptTensors | None = None) -> StepOutput:
        """The output of a step that samples nothing here."""
        return make_output(self.slots.copies, torch.empty(0, dtype=torch.int32), None, prompts)

    def _run_padding(self, num_tokens: int, start: int, num_samples: int = 1) -> None:
        """Run a row of padding, and sample `num_samples` tokens of it as the scratch slot asks."""
        rows = padding_row(num_tokens, start, self.slots)
        sampling = rows.repeated(num_samples).sampling_rows(self.slots.sampling)
        whole = self._whole(rows, self._same_on_all_lanes(num_tokens))
        ran = self._run([whole], sampling)
        self._sample(replace(ran, hidden_RC=ran.hidden_RC.repeat(num_samples, 1)), sampling)

    def _same_on_all_lanes(self, num_tokens: int) -> tuple[int, ...]:
        """Every rank of a step group warms up with the same sizes."""
        return (num_tokens,) * self.num_lanes
