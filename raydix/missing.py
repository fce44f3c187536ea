"""What to say where a package that Raydix needs is not installed."""

_OWN = "raydix"


def advice(error: ModuleNotFoundError) -> str | None:
    """One line that names the package and what to do; None if it is a module of Raydix itself."""
    package = (error.name or "").partition(".")[0]
    if package in ("", _OWN):
        return None
    return (
        f"Raydix needs the package {package}, which this Python has not: pip install raydix. A "
        "submitted job can bring what the cluster lacks: ray job submit --runtime-env "
        "examples/runtime_env.yaml --working-dir . -- ..."
    )
