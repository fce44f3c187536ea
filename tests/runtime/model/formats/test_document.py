"""The document of formats has the table that the code makes."""

from pathlib import Path

from raydix.runtime.model.formats.document import with_table

DOCUMENT = Path(__file__).parents[4] / "docs" / "formats.md"


def test_the_document_has_the_table_of_the_formats() -> None:
    text = DOCUMENT.read_text()
    assert with_table(text) == text
