"""What models write, and what it says."""

from raydix.runtime.api.tool_formats.events import (
    Arguments,
    CallBegun,
    CallBroken,
    CallEnded,
    Content,
    Event,
    Reasoning,
)
from raydix.runtime.config.policies import ToolFormatName

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
TOOLS = {"weather": SCHEMA, "time": {}}
BONN = '{"city": "Bonn"}'


def call(name: str = "weather", arguments: str = BONN, call_id: str | None = None) -> list[Event]:
    """A whole call."""
    return [CallBegun(name, call_id), Arguments(arguments), CallEnded()]


_HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
_OTHER = '<tool_call>{"name":"time","parameters":{}}</tool_call>'
HERMES: list[tuple[str, list[Event]]] = [
    ("", []),
    (" \n", [Content(" \n")]),
    ("\n\nPlain.\n", [Content("\n\nPlain.\n")]),
    ("a <tool and </tool_call> \n", [Content("a <tool and </tool_call> \n")]),
    (_HERMES, call()),
    (_HERMES.replace("\n", ""), call()),
    (f"\n\n{_HERMES}\n\n", call()),
    (f"I look.\n{_HERMES}", [Content("I look."), *call()]),
    (f"I look.\n\n{_HERMES}", [Content("I look.\n"), *call()]),
    (f"{_HERMES}\n{_OTHER}", [*call(), *call("time", "{}")]),
    (f"{_HERMES}\nDone.", [*call(), Content("\nDone.")]),
    (_HERMES.removesuffix("</tool_call>"), call()),
    ('<tool_call>{"name": "time"}</tool_call>', call("time", "{}")),
    ('<tool_call>{"name": "time", "arguments": null}</tool_call>', call("time", "{}")),
    ('<tool_call>{"arguments": {"city": "Bonn"}, "name": "weather"}</tool_call>', call()),
    (
        '<tool_call>{"id": [1, {"a": -2.5e3}], "name": "w\\u00e4", "arguments": "{}"}</tool_call>',
        call("wä", "{}"),
    ),
    (
        '<tool_call>{"name": "a", "arguments": {"b": "\\"}</tool_call>\\\\", "c": [{}]}}',
        call("a", '{"b": "\\"}</tool_call>\\\\", "c": [{}]}'),
    ),
    # What is none is content, before its name and after it.
    ("<tool_call>no</tool_call>", [Content("<tool_call>no</tool_call>")]),
    ("<tool_call>", [Content("<tool_call>")]),
    ('<tool_call>{"name": 5}</tool_call>', [Content('<tool_call>{"name": 5}</tool_call>')]),
    ('<tool_call>{"name": "\\ud800"}', [Content('<tool_call>{"name": "\\ud800"}')]),
    (
        '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
        [Content('<tool_call>{"name": "a", "arguments": [1]}</tool_call>')],
    ),
    (
        f'<tool_call>{{"name": "a", "arguments": {{"b": x}}}}</tool_call>{_HERMES}',
        [
            CallBegun("a"),
            Arguments('{"b": '),
            CallBroken('<tool_call>{"name": "a", "arguments": {"b": '),
            Content("x}}</tool_call>"),
            *call(),
        ],
    ),
    (
        '<tool_call>{"name": "a", "arguments": {"b": 1',
        [
            CallBegun("a"),
            Arguments('{"b": 1'),
            CallBroken('<tool_call>{"name": "a", "arguments": {"b": 1'),
        ],
    ),
]

JSON_BONN = '{"name": "weather", "parameters": {"city": "Bonn"}}'
LLAMA: list[tuple[str, list[Event]]] = [
    ("Plain; {}\n", [Content("Plain; {}\n")]),
    (JSON_BONN, call()),
    (f"<|python_tag|>{JSON_BONN}", call()),
    (f'{JSON_BONN}; {{"name": "time", "parameters": {{}}}}', [*call(), *call("time", "{}")]),
    (f"I look. <|python_tag|>{JSON_BONN}", [Content("I look. "), *call()]),
    (f"{JSON_BONN}; Done.", [*call(), Content("; Done.")]),
    ('{"name": "other", "parameters": {}}', [Content('{"name": "other", "parameters": {}}')]),
    ('{"city": "Bonn"}', [Content('{"city": "Bonn"}')]),
    ("<|python_tag|>print(5)", [Content("<|python_tag|>print(5)")]),
    (
        '{"name": "weather", "parameters": {"city" 1}}',
        [
            CallBegun("weather"),
            Arguments('{"city" '),
            CallBroken('{"name": "weather", "parameters": {"city" '),
            Content("1}}"),
        ],
    ),
]

_LISTED = '{"name": "weather", "arguments": {"city": "Bonn"}}'
MISTRAL: list[tuple[str, list[Event]]] = [
    ("[1] [TOOL]\n", [Content("[1] [TOOL]\n")]),
    ('[TOOL_CALLS]weather[ARGS]{"city": "Bonn"}', call()),
    ('[TOOL_CALLS]weather[CALL_ID]a12345678[ARGS]{"city": "Bonn"}', call(call_id="a12345678")),
    (
        'Well.\n[TOOL_CALLS]weather[ARGS]{"city": "Bonn"}[TOOL_CALLS]time[ARGS]{}',
        [Content("Well.\n"), *call(), *call("time", "{}")],
    ),
    (f"[TOOL_CALLS] [{_LISTED}]", call()),
    (f"[TOOL_CALLS][{_LISTED}, {_LISTED}]", [*call(), *call()]),
    (f"[TOOL_CALLS][{_LISTED}, 5]", [*call(), Content(", 5]")]),
    ("[TOOL_CALLS]no call", [Content("[TOOL_CALLS]no call")]),
    ("[TOOL_CALLS][ARGS]{}", [Content("[TOOL_CALLS][ARGS]{}")]),
    ("[TOOL_CALLS]a[ARGS]5", [Content("[TOOL_CALLS]a[ARGS]5")]),
]

_V31 = '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Bonn"}<｜tool▁call▁end｜>'
_V3 = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{"city": "Bonn"}\n```<｜tool▁call▁end｜>'
)
_TIME = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
DEEPSEEK: list[tuple[str, list[Event]]] = [
    ("Plain <｜tool.", [Content("Plain <｜tool.")]),
    (f"<｜tool▁calls▁begin｜>{_V31}<｜tool▁calls▁end｜>", call()),
    (f"<｜tool▁calls▁begin｜>{_V3}\n{_V3}<｜tool▁calls▁end｜>", [*call(), *call()]),
    (
        f"I look.\n\n<｜tool▁calls▁begin｜>{_V31}{_TIME}<｜tool▁calls▁end｜>",
        [Content("I look.\n\n"), *call(), *call("function", "{}")],
    ),
    ("<｜tool▁calls▁begin｜>a", [Content("<｜tool▁calls▁begin｜>a")]),
    (
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\nno",
        [Content("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\nno")],
    ),
]

_KIMI = (
    "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "Bonn"}<|tool_call_end|>'
)
_KIMI_TIME = "<|tool_call_begin|>time:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI: list[tuple[str, list[Event]]] = [
    ("Plain <|tool", [Content("Plain <|tool")]),
    (f"{_SECTION}{_KIMI}{_SECTION_END}", call(call_id="functions.weather:0")),
    (
        f"I look.{_SECTION}\n{_KIMI}\n{_KIMI_TIME}\n{_SECTION_END}",
        [
            Content("I look."),
            *call(call_id="functions.weather:0"),
            *call("time", "{}", "time:1"),
        ],
    ),
    (f"{_SECTION}{_SECTION_END}", [Content(f"{_SECTION}{_SECTION_END}")]),
    (
        "<|tool_call_begin|>time<|tool_call_end|>",
        [Content("<|tool_call_begin|>time<|tool_call_end|>")],
    ),
]

_PARAMETER = "<parameter=city>\nBonn\n</parameter>"
_CODER = f"<tool_call>\n<function=weather>\n{_PARAMETER}\n</function>\n</tool_call>"
CODER: list[tuple[str, list[Event]]] = [
    ("Plain <tool_call", [Content("Plain <tool_call")]),
    (_CODER, call()),
    (f"I look.\n\n{_CODER}\n{_CODER}", [Content("I look."), *call(), *call()]),
    ("<tool_call>\n<function=time>\n</function>\n</tool_call>", call("time", "{}")),
    (
        '<tool_call><function=weather><parameter=city>\n"a"\n<b>\\\n\n</parameter>'
        "<parameter=days>\n3\n</parameter><parameter=more>x</parameter></function></tool_call>",
        call(arguments='{"city": "\\"a\\"\\n<b>\\\\\\n", "days": 3, "more": "x"}'),
    ),
    ("<tool_call>\n{}\n</tool_call>", [Content("<tool_call>\n{}\n</tool_call>")]),
    (
        "<tool_call><function=weather><parameter=city>Bo",
        [
            CallBegun("weather"),
            Arguments('{"city": "Bo'),
            CallBroken("<tool_call><function=weather><parameter=city>Bo"),
        ],
    ),
]

_GLM = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n</tool_call>"
GLM: list[tuple[str, list[Event]]] = [
    ("Plain <tool_call", [Content("Plain <tool_call")]),
    (_GLM, call()),
    (_GLM.replace("\n", ""), call()),
    (f"I look.\n{_GLM}\n{_GLM}", [Content("I look."), *call(), *call()]),
    ("<tool_call>time\n</tool_call>", call("time", "{}")),
    (
        "<tool_call>weather<arg_key>days</arg_key><arg_value>[3]</arg_value>"
        "<arg_key>city</arg_key><arg_value> B\n</arg_value></tool_call>",
        call(arguments='{"days": [3], "city": " B\\n"}'),
    ),
    ("<tool_call></tool_call>", [Content("<tool_call></tool_call>")]),
    (
        "<tool_call>time<arg_key>a</arg_key>5</tool_call>",
        [
            CallBegun("time"),
            CallBroken("<tool_call>time<arg_key>a</arg_key>"),
            Content("5</tool_call>"),
        ],
    ),
]

_INVOKE = '<invoke name="weather">\n<parameter name="city">Bonn</parameter>\n</invoke>'
MINIMAX: list[tuple[str, list[Event]]] = [
    ("Plain <minimax", [Content("Plain <minimax")]),
    (f"<minimax:tool_call>\n{_INVOKE}\n</minimax:tool_call>", call()),
    (
        f"I look.\n<minimax:tool_call>\n{_INVOKE}\n{_INVOKE}\n</minimax:tool_call>",
        [Content("I look."), *call(), *call()],
    ),
    (
        '<minimax:tool_call><invoke name="time"></invoke></minimax:tool_call>',
        call("time", "{}"),
    ),
    ("<minimax:tool_call>no", [Content("<minimax:tool_call>no")]),
    (
        '<minimax:tool_call><invoke name="time">5',
        [
            CallBegun("time"),
            CallBroken('<minimax:tool_call><invoke name="time">'),
            Content("5"),
        ],
    ),
]

_ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|>"
_ASSISTANT = "<|start|>assistant"
_FINAL = "<|channel|>final<|message|>It is sunny."
_HEAD = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
_HARMONY = f"{_HEAD}{BONN}<|call|>"
HARMONY: list[tuple[str, list[Event]]] = [
    ("", []),
    ("No head. <|channe", [Content("No head. <|channe")]),
    (_FINAL, [Content("It is sunny.")]),
    (f"{_FINAL}<|return|>", [Content("It is sunny.")]),
    (
        f"{_ANALYSIS}{_ASSISTANT}{_FINAL}<|return|>",
        [Reasoning("Hm."), Content("It is sunny.")],
    ),
    (_HARMONY, call()),
    (_HARMONY.removesuffix("<|call|>"), call()),
    (_HARMONY.replace("<|call|>", "<|end|>"), call()),
    (f"{_ANALYSIS}{_ASSISTANT}{_HARMONY}", [Reasoning("Hm."), *call()]),
    (
        f"{_ANALYSIS}{_ASSISTANT} to=functions.weather<|channel|>commentary json<|message|>{BONN}",
        [Reasoning("Hm."), *call()],
    ),
    (" to=functions.time<|channel|>commentary<|message|><|call|>", call("time", "{}")),
    (
        f"{_ANALYSIS}{_ASSISTANT}<|channel|>commentary<|message|>I look.<|end|>"
        f"{_ASSISTANT}{_ANALYSIS}{_ASSISTANT}{_HARMONY}",
        [Reasoning("Hm."), Content("I look."), Reasoning("\nHm."), *call()],
    ),
    (
        f"<|channel|>commentary<|message|>I look.<|end|>{_ASSISTANT}{_FINAL}",
        [Content("I look.\nIt is sunny.")],
    ),
    (f"{_FINAL}<|end|>{_ASSISTANT}<|channel|>fi", [Content("It is sunny.")]),
    (f"{_ANALYSIS}{_ASSISTANT}<|channel|>analysis", [Reasoning("Hm.")]),
    (
        _HARMONY.replace('"Bonn"', "Bonn"),
        [
            CallBegun("weather"),
            Arguments('{"city": '),
            CallBroken('{"city": '),
            Content("Bonn}"),
        ],
    ),
]
_BY_NAME = {
    ToolFormatName.HARMONY: HARMONY,
    ToolFormatName.HERMES: HERMES,
    ToolFormatName.LLAMA: LLAMA,
    ToolFormatName.MISTRAL: MISTRAL,
    ToolFormatName.DEEPSEEK: DEEPSEEK,
    ToolFormatName.KIMI: KIMI,
    ToolFormatName.QWEN_CODER: CODER,
    ToolFormatName.GLM: GLM,
    ToolFormatName.MINIMAX: MINIMAX,
}
SAMPLES: list[tuple[ToolFormatName, str, list[Event]]] = [
    (name, text, events) for name, own in _BY_NAME.items() for text, events in own
]
