"""Tables of a page: words to the left, figures to the right."""

from __future__ import annotations

import re

NEUTRAL = {"", "unknown", "never", "no bound", "nan", "none", "–", "-"}
"""What stands for a figure, and says nothing of the kind of its column."""

_ROW = re.compile(r"<tr\b.*?</tr>", flags=re.DOTALL)
_CELL = re.compile(r"<(t[dh])\b([^>]*)>(.*?)</t[dh]>", flags=re.DOTALL)


def words_left(html: str) -> str:
    """Return HTML in which the cells of columns that hold words carry the class ``text``.

    Tables with cells that span others are left as they are.

    >>> words_left("<table><tr><th>class</th></tr><tr><td>chat</td></tr></table>")
    '<table><tr><th class="text">class</th></tr><tr><td class="text">chat</td></tr></table>'
    """
    return re.sub(r"<table\b.*?</table>", lambda m: _aligned(m[0]), html, flags=re.DOTALL)


def _aligned(table: str) -> str:
    if re.search(r"\b(col|row)span=", table):
        return table
    columns = {
        position
        for row in _ROW.findall(table)
        for position, (tag, _, content) in enumerate(_CELL.findall(row))
        if tag == "td" and not _is_figure(content)
    }
    return _ROW.sub(lambda row: _marked(row[0], columns), table)


def _marked(row: str, columns: set[int]) -> str:
    position = -1

    def mark(cell: re.Match[str]) -> str:
        nonlocal position
        position += 1
        if position not in columns:
            return cell[0]
        tag, attributes, content = cell.groups()
        if 'class="' in attributes:
            attributes = attributes.replace('class="', 'class="text ', 1)
        else:
            attributes += ' class="text"'
        return f"<{tag}{attributes}>{content}</{tag}>"

    return _CELL.sub(mark, row)


def _is_figure(content: str) -> bool:
    text = re.sub(r"<[^>]+>|&nbsp;", "", content).strip()
    return text.lower() in NEUTRAL or bool(re.match(r"[<>≤≥≈~±+−$-]*\s*[\d.∞]", text))
