"""Which variants of kernels a rank's steps launch, found without a GPU and without weights."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from raydix.kernels.compiling.variants import TargetGpu, Variant, trace, versions
from raydix.kernels.device.gpu import META
from raydix.kernels.fixed_order.choice import choose_fixed_gpu_ops
from raydix.kernels.ops import choose_gpu_ops
from raydix.moe.bank import ExpertBank
from raydix.moe.dispatch.shaped import ShapedDispatcher
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.model.decoder.decoder import Decoder, make_decoder
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks
from raydix.runtime.model.spec.kv_groups import make_kv_layout
from raydix.runtime.model.spec.spec import ModelSpec
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.sent_tokens import SentTokens
from raydix.runtime.tiers.gpu_pool import make_pools
from raydix.runtime.tiers.kernel_copies import compile_page_copies

_FINE_TOKENS = 64
"""Steps of up to FINE_STEPS times so many tokens are tried at every multiple of it."""
_FINE_STEPS = 34
_FEW_TOKENS = (1, 2)
"""The tokens of a decode, and of an extension."""
_COARSE_FACTOR = 1.1
"""The factor from one size of a larger step to the next that is tried."""


class PretendedRank:
    """`Collectives` of one of several ranks that sum and gather nothing: shapes alone are right."""

    is_capturable = True

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def sum(self, part: Tensor) -> Tensor:
        """A sum has the shape of its parts."""
        return part

    def gather(self, part_RV: Tensor) -> Tensor:
        """The columns of all ranks."""
        return part_RV.repeat(1, self.size)

    def close(self) -> None:
        """Do nothing: no rank waits for this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """What bounds the steps of an engine."""

    max_slots: int
    max_model_len: int
    max_prefill_tokens: int
    max_step_tokens: int
    """Tokens of prompts and of the decodes beside them."""

    @classmethod
    def of(cls, config: EngineConfig, max_position_embeddings: int) -> "StepSizes":
        """The bounds of a configured engine, whatever number of pages it has room for."""
        asked, scheduler = config.model.max_model_len, config.scheduler
        max_model_len = min(asked or max_position_embeddings, max_position_embeddings)
        return cls(
            max_slots=scheduler.max_running_requests,
            max_model_len=max_model_len,
            max_prefill_tokens=scheduler.prefill_budget,
            max_step_tokens=scheduler.max_step_tokens(max_model_len),
        )


def identify(
    config: EngineConfig, spec: ModelSpec, max_position_embeddings: int, gpu: TargetGpu
) -> dict[str, str]:
    """What the variants of a model depend on, in words: they are others if a word differs."""
    digest = hashlib.sha256()
    # Which kernels are launched is decided there.
    folder = Path(__file__).parents[1]
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    major, minor = gpu.capability
    cache = config.cache
    return {
        "model": hashlib.sha256(repr(spec).encode()).hexdigest()[:16],
        "dtype": f"{config.model.dtype}, KV {config.kv_dtype}, codec {cache.codec.value}",
        "sums": "in a fixed order" if config.model.deterministic else "in any order",
        "page size": str(cache.page_size),
        "ranks": _told_ranks(config),
        "sizes": str(StepSizes.of(config, max_position_embeddings)),
        "gpu": f"compute capability {major}.{minor}, {gpu.num_sms} multiprocessors",
        "steps": digest.hexdigest()[:16],
        **versions(),
    }


def _told_ranks(config: EngineConfig) -> str:
    """How many ranks there are to one; `dp` follows from both if they share experts."""
    tp, ep, experts = config.parallel.tp, config.parallel.ep, config.experts
    told = f"tp {tp}, ep {ep}"
    if ep == 1:
        return told
    return (
        f"{told}, {experts.redundant_per_rank} redundant and {experts.spare_per_rank} spare seats, "
        f"transport {experts.transport.value}"
    )


def model_variants(
    config: EngineConfig,
    spec: ModelSpec,
    max_position_embeddings: int,
    on_found: Callable[[Variant], None] | None = None,
) -> tuple[Variant, ...]:
    """Every variant that a rank of the configured model may launch, in steps of whatever size.

    `on_found` is called with each as soon as it is found.

    To be called within `compiling_for`. Those are left out by which ranks that share experts send
    each other rows, and those of what reaches a rank in the form of a library of others.
    """
    model = ShapedModel(config, spec, max_position_embeddings)

    def launch() -> None:
        model.try_steps()
        compile_page_copies(model.pools, config.cache.codec)

    return trace(launch, on_found)


def tried_tokens(max_tokens: int) -> list[int]:
    """Sizes of steps so close to each other that no kernel changes between two of them alone."""
    sizes = [_FINE_TOKENS * count for count in range(1, _FINE_STEPS + 1)]
    while sizes[-1] < max_tokens:
        sizes.append(min(int(sizes[-1] * _COARSE_FACTOR), max_tokens))
    return [size for size in sizes if size <= max_tokens]


def tried_rows(sizes: StepSizes) -> Iterator[tuple[int, int, int]]:
    """Numbers of rows, their tokens and contexts: decodes and short extensions of every kind.

    By both it is decided how many programs read a row's keys.
    """
    max_rows, max_context = sizes.max_slots, sizes.max_model_len
    rows = [1 << bit for bit in range(max_rows.bit_length())]
    contexts = [4**power for power in range(max_context.bit_length() // 2 + 1)]
    for num_rows in (*rows, max_rows):
        for context in (*(each for each in contexts if each < max_context), max_context):
            for num_tokens in _FEW_TOKENS:
                if num_tokens <= context:
                    yield num_rows, num_tokens, context


class ShapedModel:
    """A rank's model on the meta device, with the operations of a GPU: shapes and no numbers.

    Of layers that are alike it has a few.
    """

    def __init__(self, config: EngineConfig, spec: ModelSpec, max_position_embeddings: int) -> None:
        self._sizes = StepSizes.of(config, max_position_embeddings)
        tp, page_size = config.parallel.tp, config.cache.page_size
        dtype: torch.dtype = getattr(torch, config.model.dtype)
        decoder = make_decoder(
            spec,
            device=META,
            dtype=dtype,
            collectives=PretendedRank(0, tp),
            expert_ranks=_expert_ranks(config, self._sizes.max_model_len),
            choose=choose_fixed_gpu_ops if config.model.deterministic else choose_gpu_ops,
        )
        decoder.keep_layers(_few_of_each(decoder))
        self._experts, self._dtype, self._hidden_size = decoder.experts, dtype, spec.hidden_size
        self._banks = [each for each in decoder.modules() if isinstance(each, ExpertBank)]
        layout = make_kv_layout(
            decoder.kv_groups,
            page_size=page_size,
            dtype=config.kv_dtype,
            codec=config.cache.codec,
        )
        shard = KvShard(layout=layout, rank=0, num_ranks=tp)
        self.pools = make_pools(shard, [1] * len(layout.groups), META)
        self.runner = ModelRunner(
            decoder,
            self.pools,
            page_size=page_size,
            max_slots=self._sizes.max_slots,
            max_model_len=self._sizes.max_model_len,
            max_prefill_tokens=self._sizes.max_prefill_tokens,
            device=META,
        )

    def try_steps(self) -> None:
        """Run steps of every kind and of sizes between which no kernel changes."""
        runner = self.runner
        runner.warm_up()
        runner.run_shapes()
        for num_tokens in tried_tokens(self._sizes.max_step_tokens):
            runner.run_whole(num_tokens)
        for num_rows, num_tokens, context in tried_rows(self._sizes):
            runner.run_rows(num_rows, num_tokens, context)
        self._try_received()

    @torch.inference_mode()
    def _try_received(self) -> None:
        """Run experts on rows of any number: lanes that step together have different ones."""
        if self._experts is None:
            return
        ranks, choices = self._experts.ranks, self._experts.experts_per_token
        few = [1 << bit for bit in range(_FINE_TOKENS.bit_length() - 1)]
        for bank in self._banks:
            for num_rows in (*few, *tried_tokens(ranks.size * ranks.max_tokens)):
                rows_NC = torch.empty(num_rows, self._hidden_size, dtype=self._dtype, device=META)
                weights_NK = torch.empty(num_rows, choices, device=META)
                bank(rows_NC, weights_NK, weights_NK.int())


def _expert_ranks(config: EngineConfig, max_model_len: int) -> ExpertRanks | None:
    """The first of the ranks that share experts; None if each lane has them to itself."""
    ep, experts = config.parallel.ep, config.experts
    if ep == 1:
        return None
    sent = SentTokens.of(config, max_model_len, "cuda")
    return ExpertRanks(
        rank=0,
        size=ep,
        connect=ShapedDispatcher,
        max_tokens=sent.most,
        max_low_latency_tokens=sent.most_low_latency,
        transport=experts.transport,
        redundant_per_rank=experts.redundant_per_rank,
        spare_seats=experts.spare_per_rank,
    )


def _few_of_each(decoder: Decoder) -> set[int]:
    """The first, second and last layer of each kind, which differ by their place in the cache."""
    alike: dict[object, list[int]] = defaultdict(list)
    for index, layer in enumerate(decoder.spec.layers):
        alike[layer].append(index)
    return {index for own in alike.values() for index in (*own[:2], own[-1])}
