"""Form of docstrings and attribute docs: `python tests/check_docs.py` prints breaches; 1 if any.

A doc begins with a capital letter and is a sentence or phrase that stands alone: it neither goes on
from the doc before it ("Of those under way"), nor only points elsewhere ("See X."), nor consists of
a word or two.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from check_sizes import sources

MIN_WORDS = 3
OPENINGS = (
    *("Also", "And", "As", "Because", "Before", "Beside", "Between", "But", "By", "Counting"),
    *("Else", "Except", "For", "Hence", "In", "Like", "Likewise", "Nor", "Of", "On", "Or"),
    *("Otherwise", "See", "So", "Than", "That", "Then", "Those", "To", "Too", "Until", "While"),
    *("Whom", "Whose", "With", "Without", "Yet"),
)
"""Words with which no doc begins, since what follows them hangs on something before."""
VERBS = ("Are", "Has", "Is")
"""Verbs with which a doc begins only if it is a question."""
_WORD = re.compile(r"[^\s]*\w[^\s]*")
_QUESTION = re.compile(r"[^.]*\?")
_NAME = re.compile(r"[a-z]+[\d._*(/-][^ ]*|[a-z]\w*[A-Z_][^ ]*")
"""A name of code or of a file, which may begin in lower case."""


def docs(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find line and text of each docstring and each string below an assignment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documented: ast.AST | None = node
            for statement in node.body:
                if documented is not None and _is_text(statement):
                    yield statement.lineno, statement.value.value
                documented = (
                    statement if isinstance(statement, ast.Assign | ast.AnnAssign) else None
                )


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def faults(text: str) -> Iterator[str]:
    """Say what is wrong with a doc, given on one line."""
    words = _WORD.findall(text)
    if len(words) < MIN_WORDS:
        yield "has fewer than three words"
    if text[:1].islower() and not _NAME.match(text):
        yield "begins in lower case"
    if words and (words[0] in OPENINGS or (words[0] in VERBS and not _QUESTION.match(text))):
        yield f"begins with {words[0]!r}, in the middle of a sentence"


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    found = []
    for path in sources(root):
        for line, doc in docs(ast.parse((root / path).read_text())):
            text = " ".join(doc.split())
            found += [f"{path}:{line}: {fault}: {text[:160]}" for fault in faults(text)]
    print("\n".join(found) or "All docs stand alone.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
