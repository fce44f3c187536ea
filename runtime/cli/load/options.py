"""The options of `raydix bench`."""

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option(
        help="Ask any server of OpenAI's interface instead: http://HOST:PORT/v1. Its key is "
        "OPENAI_API_KEY of the environment."
    ),
]
Model = Annotated[
    str | None, typer.Option(help="--url: the model's name. Default: the first it names.")
]
EXTRA_BODY = '{"ignore_eos": true}'
ExtraBody = Annotated[
    str | None,
    typer.Option(
        help="--url: JSON laid over each request's body, for what this server knows. "
        f"Default: {EXTRA_BODY}"
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="Requests from a file (.gz, too): a Mooncake trace, or JSON lines with prompts. "
        "Default: made-up conversations."
    ),
]
MaxRequests = Annotated[
    int | None, typer.Option("--requests", min=1, help="Only so many of the trace.")
]
BlockTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens per block of a Mooncake trace; fewer shrink prompts and outputs alike. "
        "Default: as many as it has.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(min=1e-6, help="Requests per second, arriving at random (Poisson)."),
]
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, help="Requests in flight: the next is sent when one ends. Default: 4."),
]
Speed = Annotated[
    float | None,
    typer.Option(min=1e-6, help="Times the trace's own arrivals; its default is 1."),
]
Hints = Annotated[
    bool,
    typer.Option(
        "--hints",
        help="Say with each request of a trace's sessions when the session goes on, or that it "
        "ends. For an engine.",
    ),
]
SloTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--slo",
        help="What requests should keep, in s: 'ttft=0.2 tpot=0.02 latency=5'. Gives the goodput.",
        metavar="NAME=S",
    ),
]
Cold = Annotated[
    bool,
    typer.Option("--cold", help="Then once more what was measured, so that nothing is reused."),
]
Salt = Annotated[
    str | None,
    typer.Option(
        help="Cache salt of the requests. Default: a new one for an engine, none for --url."
    ),
]
Png = Annotated[Path | None, typer.Option(help="Draw the times and the tiers there.")]
Conversations = Annotated[
    int, typer.Option("--conversations", min=1, help="Made-up ones, without --trace.")
]
Turns = Annotated[
    int, typer.Option(min=2, help="Turns per conversation; all but the first are measured.")
]
PromptTokens = Annotated[int, typer.Option(min=1, help="Of a conversation's first prompt.")]
TurnTokens = Annotated[
    int, typer.Option(min=1, help="Added by each later turn, besides the output.")
]
OutputTokens = Annotated[int, typer.Option(min=1, help="Of each request, unless a trace says.")]
Seed = Annotated[int, typer.Option(help="Of made-up prompts and random arrivals.")]
