"""`raydix config ...`: about the configuration."""

import json

import typer

from raydix.runtime.config.engine import EngineConfig

app = typer.Typer(help="About the configuration.", no_args_is_help=True)


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration."""
    print(json.dumps(EngineConfig.model_json_schema(), indent=2))
