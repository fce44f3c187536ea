"""What the Scheduler sends to a GPU actor, and what comes back.

Steps are numbered per step group, without gaps, and carried out in order. The page copies of a plan
start at once; its rows form one model step, which a plan that stands lets ranks repeat. Columns
named `row_*` have one entry per row, `table_*` one per block-table change.

Every message belongs to the connection it came over, and what an earlier one still brings is
dropped: steps and transfers are numbered within it. A plan is never stale; what makes an answer
stale stands with it.
"""

from dataclasses import dataclass, field, replace

from raydix.ids import GrammarKey, RequestId, Slot
from raydix.runtime.messages.arrays import Int32Array, empty
from raydix.runtime.messages.grammar import GrammarChanges

MAX_BIAS = 100.0
"""The largest bias, as in OpenAI's interface: about twice what tells a certain token from a
hopeless one.
"""
MAX_BIASED_TOKENS = 1024
"""The most tokens with a bias in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSampling:
    """The part of `SamplingParams` that the device needs. `top_k == 0` keeps all tokens."""

    seed: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    masked_until_min_tokens: tuple[int, ...] = ()
    """EOS and stop ids, which may not be sampled before `min_tokens` output tokens."""
    biased_token_ids: tuple[int, ...] = ()
    """No id twice."""
    biases: tuple[float, ...] = ()
    """What is added to the logits of these tokens, in their order."""
    grammar: GrammarKey | None = None
    """The grammar by which tokens are sampled; the Scheduler alone sets it."""
    num_logprobs: int | None = None
    """How many logprobs are wanted. None: none. 0: of the sampled token alone. k: also of the k
    most likely.
    """
    num_prompt_logprobs: int | None = None
    """The same of the tokens of the prompt, but for the first."""

    def with_grammar(self, grammar: GrammarKey | None) -> "DeviceSampling":
        """The same with this grammar; most requests have none, and nothing is copied."""
        return self if grammar == self.grammar else replace(self, grammar=grammar)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedRequest:
    """A request takes `slot`. `token_ids` is the prompt followed by the output known so far."""

    slot: Slot
    request_id: RequestId
    token_ids: Int32Array
    num_prompt_tokens: int
    sampling: DeviceSampling
    num_scored_tokens: int = 0
    """The number of prompt tokens which need not be scored, since the logprobs of what follows them
    are known.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """Writes to block tables of one KV group.

    Entry i puts `counts[i]` page ids at `starts[i]` of slot `slots[i]`. `page_ids` holds the runs
    of all entries one after another. No two entries of a plan write the same place.
    """

    group: int = 0
    slots: Int32Array = field(default_factory=empty)
    starts: Int32Array = field(default_factory=empty)
    counts: Int32Array = field(default_factory=empty)
    page_ids: Int32Array = field(default_factory=empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCopies:
    """Page copies in columns: one entry per page. Entries of one transfer are adjacent."""

    transfer_ids: Int32Array = field(default_factory=empty)
    groups: Int32Array = field(default_factory=empty)
    page_ids: Int32Array = field(default_factory=empty)
    host_page_ids: Int32Array = field(default_factory=empty)
    generations: Int32Array = field(default_factory=empty)

    def __len__(self) -> int:
        return len(self.transfer_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCopies:
    """Experts to be copied from the host store into seats: one entry per copy.

    Every rank of a step group gets all of them, and carries out its own.
    """

    copy_ids: Int32Array = field(default_factory=empty)
    """Never used again in the life of the Scheduler."""
    layers: Int32Array = field(default_factory=empty)
    """Among those that have experts, from 0; so in all that follows."""
    experts: Int32Array = field(default_factory=empty)
    ranks: Int32Array = field(default_factory=empty)
    """The ranks of the step group, counted from 0."""
    seats: Int32Array = field(default_factory=empty)

    def __len__(self) -> int:
        return len(self.copy_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChange:
    """Which expert each seat of the step group holds in some layers, from this plan's rows on.

    Ranks derive their routes from it. Rows of one step find their experts even where some ranks
    have made a change and others have not.
    """

    version: int
    layers: Int32Array
    experts: Int32Array
    """The expert in each seat, rank after rank, of one of these layers after the other; -1: nothing
    is sent there.
    """
    demand: Int32Array
    """The load of each logical expert, of one of these layers after the other: what routes are
    levelled by.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One numbered plan for one lane. Without rows it only moves pages and changes state, unless
    another lane of the step group has rows.

    Order of effects: `removed_slots`, `grammars`, `added`, `tables`, `placement`, start
    `expert_copies` and `loads`, then the rows. `backups` start before the rows or behind them: they
    see all that earlier plans computed, and neither rows nor loads of the plan write what they
    copy. Rows may
    use pages that loads of this or an earlier plan fill: such a row names the load in `row_loads`
    and layer i waits until that load has brought layer i.

    While the Scheduler has not heard how often an earlier plan was repeated, rows say where they
    would begin if that one were repeated to its end. They begin where their slot's last row ended.
    """

    step: int
    removed_slots: Int32Array = field(default_factory=empty)
    grammars: GrammarChanges | None = None
    added: tuple[AddedRequest, ...] = ()
    tables: tuple[TableChanges, ...] = ()
    loads: PageCopies = field(default_factory=PageCopies)
    backups: PageCopies = field(default_factory=PageCopies)
    row_slots: Int32Array = field(default_factory=empty)
    row_starts: Int32Array = field(default_factory=empty)
    """Position in the sequence of the first token that the row computes."""
    row_num_tokens: Int32Array = field(default_factory=empty)
    row_write_starts: Int32Array = field(default_factory=empty)
    """First position to keep (normally row_starts): what is before goes to the padding page."""
    row_output_positions: Int32Array = field(default_factory=empty)
    """Output position (from 0) of the token sampled after the row's last token; -1: none."""
    row_loads: Int32Array = field(default_factory=empty)
    """Transfer id of the unfinished load that the row must wait for, layer by layer; -1: none."""
    row_repeats: Int32Array = field(default_factory=empty)
    """The number of further steps in which each row goes on, by one token in each, while no other
    plan comes. Its pages are there for all of them. Empty: no row goes on.
    """
    group_rows: Int32Array = field(default_factory=empty)
    """Rows of each lane of the step group, in order of lanes; empty for a lane that steps alone."""
    group_tokens: Int32Array = field(default_factory=empty)
    """Tokens of those rows. If any lane has some, the ranks of the others run padding."""
    expert_copies: ExpertCopies = field(default_factory=ExpertCopies)
    placement: PlacementChange | None = None

    @property
    def num_repeats(self) -> int:
        """The most steps in which the plan is repeated. They are numbered behind `step`, whether or
        not they are run, so that the next plan's number is behind them all.
        """
        return int(self.row_repeats.max()) if len(self.row_repeats) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities of one output position from raw logits.

    `token_ids[0]` is the sampled token; the k most likely follow, most likely first (the sampled
    one again if it is among them). `ranks` count from 1.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Log-probabilities of a run of prompt tokens from raw logits, in columns.

    float32 travels by its bits.
    """

    start: int
    """Position in the prompt of the first token that is told of, so 1 at least."""
    logprob_bits: Int32Array
    ranks: Int32Array
    """The ranks of the tokens, counted from 1."""
    num_top: int
    """The number of likeliest tokens that follow each place, the likeliest first."""
    top_ids: Int32Array = field(default_factory=empty)
    top_logprob_bits: Int32Array = field(default_factory=empty)

    def __len__(self) -> int:
        return len(self.ranks)


MAX_PROMPT_LOGPROB_BYTES = 4 << 20
"""The most bytes of one request and step: half of what may wait for a client before it counts as
gone.
"""


def prompt_logprob_bytes(num_tokens: int, num_top: int) -> int:
    """What so many prompt tokens take in messages, about."""
    return num_tokens * (8 + 8 * num_top)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A step is done on one rank.

    `token_ids` has one entry per sampling row, in row order (rank 0 of a lane only): `NO_TOKEN` for
    logits that are not finite. Never stale as a whole; a row is, if its request has ended or
    started another run since the plan was sent.
    """

    rank: int
    step: int
    token_ids: Int32Array = field(default_factory=empty)
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    """Empty if no row asked for logprobs, else one entry per sampling row."""
    scored_slots: Int32Array = field(default_factory=empty)
    """The slots of rows whose prompt tokens were scored, as their requests ask."""
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    """One entry for each of `scored_slots`."""
    not_finite_slots: Int32Array = field(default_factory=empty)
    """The slots of rows of prompts with hidden states that are not finite: whatever such a row has
    computed is void, whether it samples or not.
    """
    slow_slots: Int32Array = field(default_factory=empty)
    """The slots of rows whose grammars take so long for each token that steps wait for them."""
    compute_s: float = 0.0
    """Device time of the rows, or of padding, without their waits for loads; 0.0 without either."""
    expert_demand: Int32Array = field(default_factory=empty)
    """The number of this rank's rows that chose each expert of each layer with experts since the
    last report. Empty in most steps.
    """
    copied_experts: Int32Array = field(default_factory=empty)
    """Copies of experts, by `ExpertCopies.copy_ids`, that have landed on this rank since its last
    result: every later step may use them.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsLeftOut:
    """The last repetitions of a plan were not run, since another plan came: never stale."""

    rank: int
    step: int
    """The number of the first of them."""
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransfersDone:
    """Loads and backups that are complete on one rank, in order of completion.

    Never stale as a whole; a load is, if its request wants it no longer: then its pages and its
    lease just go back.
    """

    rank: int
    transfer_ids: Int32Array
    stale_transfer_ids: Int32Array = field(default_factory=empty)
    """The loads that read a host page of another generation than planned; their bytes are void."""
    num_bytes: int = 0
    seconds: float = 0.0
    """Bytes that this frame's loads moved and the time that took, for the bandwidth predictor."""


FromRank = StepResult | StepsLeftOut | TransfersDone
"""What a GPU actor says."""
