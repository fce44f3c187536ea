"""Size limits of the style guide: `python tests/check_sizes.py` prints breaches; 1 if any."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("raydix", "runtime", "kernels", "moe", "plugins", "tests", "benchmarks", "examples")
MAX_FILE_LINES = 380
MAX_LONG_FILE_LINES = 400
LONG_FILES = ("tests/runtime/scheduler/", "tests/simulation/")
"""Folders whose files may be a little longer so far."""
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 150
MAX_POSITIONAL = 6


def breaches(path: Path, source: str, max_function_lines: int) -> Iterator[str]:
    """Describe each limit that one file breaks."""
    num_lines = len(source.splitlines())
    most = MAX_LONG_FILE_LINES if path.as_posix().startswith(LONG_FILES) else MAX_FILE_LINES
    if num_lines > most:
        yield f"{path}: {num_lines} lines; at most {most}"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        place = f"{path}:{node.lineno}: {node.name}"

        num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if num_lines > max_function_lines:
            yield f"{place} has {num_lines} lines; at most {max_function_lines}"

        positional = [
            arg.arg
            for arg in node.args.posonlyargs + node.args.args
            if arg.arg not in ("self", "cls")
        ]
        is_kernel = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
        if len(positional) > MAX_POSITIONAL and not is_kernel:
            yield f"{place} has {len(positional)} positional parameters; at most {MAX_POSITIONAL}"


def sources(root: Path) -> Iterator[Path]:
    """Find our files below a checkout, each once: `raydix` has links to the other folders."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if path.resolve() == path:
                yield path.relative_to(root)


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    found = []
    for path in sources(root):
        limit = MAX_KERNEL_LINES if path.parts[0] == "kernels" else MAX_FUNCTION_LINES
        found += breaches(path, (root / path).read_text(), limit)
    print("\n".join(found) or "All files are within the size limits.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
