"""The table of `docs/formats.md`, which follows its text, is made from the formats.

python -m raydix.runtime.model.formats.document docs/formats.md     # write it anew
"""

import sys
from pathlib import Path

from raydix.runtime.model.formats.definition import NATIVE, RESTORE, WeightFormat
from raydix.runtime.model.formats.table import WEIGHT_FORMATS

MARKER = "<!-- What follows is made from the code. -->\n"
_HEAD = "\n| `quant_method` | what is stored | families | way |\n|---|---|---|---|\n"


def with_table(document: str) -> str:
    """The document as it should be: its own text up to the marker, then the table."""
    text, marker, _ = document.partition(MARKER)
    if not marker:
        raise ValueError(f"the document lacks the line {MARKER.strip()!r}, which the table follows")
    return text + marker + _HEAD + "".join(map(document_row, WEIGHT_FORMATS))


def document_row(each: WeightFormat) -> str:
    """The line of one format."""
    method = "none" if each.quant_method is None else f"`{each.quant_method}`"
    way = "as stored"
    if each.quant_method is not None:
        way = f"`{RESTORE}`" if each.kept is None else f"`{RESTORE}`, {each.kept} also `{NATIVE}`"
    families = (
        "all" if each.model_types is None else ", ".join(f"`{one}`" for one in each.model_types)
    )
    return f"| {method} | {each.summary} | {families} | {way} |\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text()))
