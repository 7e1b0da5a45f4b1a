"""Manual pages of section 7: the installed documents, converted from Markdown.

Each table row is rendered as a tagged paragraph: the cells are sentences, and side by side they would be only a few
characters wide on a terminal of 80 columns.

Source: man-pages(7), man(7); CommonMark with tables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from markdown_it import MarkdownIt

from nodeagent.cli.roff import PROGRAM, escape, head, line, references, word
from nodeagent.cli.topics import topics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

SECTION: Final = 7
_DOCUMENT: Final = re.compile(r"(?:.*/)?([a-z-]+)\.md(?:#.*)?")
_DOCUMENT_LINK: Final = re.compile(r"\]\(([a-z-]+)\.md[#)]")
_FONTS: Final = {"strong_open": r"\fB", "strong_close": r"\fR", "em_open": r"\fI", "em_close": r"\fR"}


def document_pages() -> dict[str, str]:
    """Return the manual page of each installed document by file name, such as ``nodeagent-eviction.7``."""
    return {f"{_name(topic)}.{SECTION}": _page(topic, path.read_text("utf-8")) for topic, path in topics().items()}


def document_references() -> list[tuple[str, int]]:
    """Return the name and the section of the manual page of each document."""
    return [(_name(topic), SECTION) for topic in topics()]


def _name(topic: str) -> str:
    return f"{PROGRAM}-{topic}"


def _page(topic: str, text: str) -> str:
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    title = tokens[1].content
    lines = [*head(_name(topic), SECTION, "Documents", title), ".SH DESCRIPTION"]
    lines += _Converter(tokens[3:]).lines()
    linked = dict.fromkeys(each for each in _DOCUMENT_LINK.findall(text) if each != topic)
    lines += [".SH SEE ALSO", references([(PROGRAM, 1), *((_name(each), SECTION) for each in linked)])]
    return "\n".join(lines) + "\n"


class _Converter:
    """Converter of the Markdown tokens of a document to the roff lines of a manual page."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = iter(tokens)
        self._lists = 0
        self._at_start = True  # of a section or list item, where groff ignores a paragraph request with a warning

    def lines(self) -> Iterator[str]:
        """Yield the roff lines; the tokens are consumed, so that a second call yields nothing."""
        for token in self._tokens:
            match token.type:
                case "heading_open":
                    yield f"{'.SH' if token.tag == 'h2' else '.SS'} {word(_plain(self._inline()))}"
                    self._at_start = True
                case "paragraph_open":
                    yield from self._paragraph()
                    yield line(_styled(self._inline()))
                case "bullet_list_open" | "ordered_list_open":
                    self._lists += 1
                case "bullet_list_close" | "ordered_list_close":
                    self._lists -= 1
                case "list_item_open":
                    yield r".IP \(bu 2"
                    self._at_start = True
                case "fence" | "code_block":
                    yield from self._paragraph()
                    yield from (".RS 4", ".nf", *map(_verbatim, token.content.splitlines()), ".fi", ".RE")
                case "table_open":
                    yield from self._table()
                    self._at_start = False
                case _:
                    pass  # block ends and HTML comments produce no output

    def _inline(self) -> Token:
        return next(self._tokens)

    def _paragraph(self) -> Iterator[str]:
        if not self._at_start:
            yield ".IP" if self._lists else ".PP"
        self._at_start = False

    def _table(self) -> Iterator[str]:
        headings: list[str] = []
        cells: list[Token] = []
        is_heading = True
        for token in self._tokens:
            match token.type:
                case "inline":
                    cells.append(token)
                case "tr_close" if is_heading:
                    headings, cells, is_heading = [_styled(each) for each in cells], [], False
                case "tr_close":
                    yield from _row(headings, cells)
                    cells = []
                case "table_close":
                    return
                case _:
                    pass


def _row(headings: Sequence[str], cells: Sequence[Token]) -> Iterator[str]:
    """Yield a row as a tagged paragraph: the first cell as tag, then the other cells, if several with headings."""
    first, *others = map(_styled, cells)
    yield ".TP"
    yield line(first or "\\(em")
    for number, (heading, cell) in enumerate(zip(headings[1:], others, strict=True)):
        if number:
            yield ".br"
        named = len(others) > 1 and heading
        yield line(f"{heading}: {cell}" if named else cell)


def _styled(token: Token) -> str:
    r"""Return inline text, escaped, with its fonts; links to documents are references to their pages."""
    parts: list[str] = []
    targets: list[str] = []
    for each in token.children or ():
        match each.type:
            case "text":
                parts.append(escape(each.content))
            case "code_inline":
                parts.append(f"\\fB{escape(each.content)}\\fR")
            case "softbreak" | "hardbreak":
                parts.append(" ")
            case "link_open":
                targets.append(str(each.attrGet("href")))
            case "link_close":
                parts.append(_reference(targets.pop()))
            case kind:
                parts.append(_FONTS.get(kind, ""))
    return "".join(parts)


def _reference(target: str) -> str:
    """Return the text printed after a link: a manual page, a URL, or empty for a link within the same page."""
    found = _DOCUMENT.fullmatch(target)
    if found is not None:
        return f" (\\fB{escape(_name(found[1]))}\\fR({SECTION}))"
    return f" <{escape(target)}>" if "://" in target else ""


def _plain(token: Token) -> str:
    return "".join(each.content for each in token.children or ())


def _verbatim(line: str) -> str:
    r"""Return a line of an example with the prefix ``\&``, so that the line is never parsed as a request."""
    return f"\\&{escape(line, breakable=False)}"
