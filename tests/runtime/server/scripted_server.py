"""A server whose model says what the test tells it, under a chat template that knows tools."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from raydix.runtime.actors.gpu_model import (
    GpuModel,
    HostTimer,
    LoadedGpuModel,
    LoadReport,
    RankPlace,
)
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.api.tokenizer import Tokenizer, load_tokenizer
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.server.app import build_app
from raydix.runtime.server.listener import listening
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.llm import InProcessLLM
from raydix.runtime.testing.sleeping_runner import SleepingOutput
from raydix.runtime.tiers.transfers import WaitLayer
from tests.runtime.server.served_engine import MODEL, PAGE_SIZE, Server

END = "<|im_end|>"
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "write <tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}"
    "{% if message.content or not loop.first %}{{ '\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

THINKING_TEMPLATE = (
    "{% set last = namespace(question=-1) %}{% for message in messages %}"
    "{% if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}{% endfor %}"
    "{% if reasoning_effort %}<|im_start|>effort\n{{ reasoning_effort }}<|im_end|>\n{% endif %}"
    + TEMPLATE.replace(
        "{{ message.content or '' }}",
        "{% if message.reasoning_content and loop.index0 > last.question %}"
        "<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ message.content or '' }}",
    )
    + "{% if add_generation_prompt and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}"
)
"""It has a switch and a word for reasoning, which it keeps until the next question."""
OPENING_TEMPLATE = THINKING_TEMPLATE.replace(
    "{% if add_generation_prompt and enable_thinking is false %}",
    "{% if add_generation_prompt and enable_thinking is not false %}<think>\n"
    "{% elif add_generation_prompt %}",
)
"""The same, with prompts that begin the reasoning."""

HARMONY_TEMPLATE = (
    "{% if reasoning_effort %}<|start|>system<|message|>{{ reasoning_effort }}<|end|>{% endif %}"
    "{% if tools %}<|start|>developer<|message|>{% for tool in tools %}{{ tool | tojson }}"
    "{% endfor %}<|end|>{% endif %}{% for message in messages %}{% if message.tool_calls %}"
    "{% if message.content and message.thinking %}{{ raise_exception('not both') }}{% endif %}"
    "{% if message.thinking or message.content %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ message.thinking or message.content }}<|end|>{% endif %}"
    "{% set call = message.tool_calls[0].function %}<|start|>assistant<|channel|>commentary "
    "to=functions.{{ call.name }} <|constrain|>json<|message|>{{ call.arguments | tojson }}<|call|>"
    "{% elif message.role == 'tool' %}<|start|>functions to=assistant<|channel|>commentary"
    "<|message|>{{ message.content | tojson }}<|end|>"
    "{% elif message.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>"
    "{{ message.content }}<|end|>{% else %}<|start|>{{ message.role }}<|message|>"
    "{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""It has channels, as that of gpt-oss."""


class ScriptedModel:
    """Says the same to every prompt, token by token, and then the end of a turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self.say("")

    def say(self, text: str) -> None:
        """What it says from now on."""
        self._token_ids = self._tokenizer.encode(text + END)

    def apply(self, plan: StepPlan) -> None:
        """Keeps no state."""

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> SleepingOutput:
        """The script's tokens at the places that the plan asks for."""
        places = [place for place in plan.row_output_positions.tolist() if place >= 0]
        last = len(self._token_ids) - 1
        return SleepingOutput(int32_array([self._token_ids[min(each, last)] for each in places]))

    def build(self, config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        """The model of an engine without L2; it has no weights and no KV."""
        num_pages = config.cache.l1.num_pages
        assert num_pages is not None, "it is on no device"
        group = KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=8)
        size = config.cache.page_size
        [end_id] = self._tokenizer.encode(END)
        report = LoadReport(
            fingerprint=bytes(32),
            layout=KvLayout(page_size=size, dtype="float32", dtype_bytes=4, groups=(group,)),
            num_pages=(num_pages,),
            max_position_embeddings=4096,
            vocab_size=259,
            eos_token_ids=(end_id,),
        )
        model = GpuModel(
            runner=self, make_timer=HostTimer, make_transfers=None, enter_thread=lambda: None
        )
        return LoadedGpuModel(report=report, prepare=lambda _: model)


@contextlib.asynccontextmanager
async def scripted_serving(
    folder: Path,
    template: str = TEMPLATE,
    around: Callable[[ASGIApp, ScriptedModel], ASGIApp] | None = None,
    **model: Any,
) -> AsyncIterator[tuple[Server, ScriptedModel]]:
    """A server, and the model behind it.

    folder: a checkpoint, whose template is replaced. around: what is put around the application.
    model: of the section of the configuration.
    """
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "chat_template": template}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None, "the checkpoint has one"
    script = ScriptedModel(tokenizer)

    cache = {"l1": {"num_pages": 512}, "l2": None, "page_size": PAGE_SIZE}
    config = load_config({"model": {"path": str(folder), **model}, "cache": cache}, {})
    async with in_process_engine(config, script.build) as engine:
        llm = InProcessLLM(engine, await engine.connect(tokenizer))
        app: ASGIApp = build_app({MODEL: llm}, None)
        app = app if around is None else around(app, script)
        async with listening(app, TcpAddress("127.0.0.1", 0), 1.0) as url:
            yield Server(url, engine, llm), script
