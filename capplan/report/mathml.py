"""Markdown to HTML with formulas as MathML, which browsers draw without any script."""

from __future__ import annotations

import html
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbconvert.filters.markdown_mistune import MarkdownWithMath


def markdown_to_html(source: str) -> str:
    """Return Markdown as HTML; ``$…$`` and ``$$…$$`` become MathML.

    A dollar sign followed by a space, or preceded by one where the formula would end, is money:
    ``$3 and $4`` stays as it is.
    """
    rendered: str = _markdown().render(source)
    return rendered


def mathml(formula: str, *, block: bool) -> str:
    r"""Return a LaTeX formula as MathML; as code where it can't be read.

    >>> mathml("x", block=False).partition(">")[2]
    '<mrow><mi>x</mi></mrow></math>'
    >>> mathml(r"\frac{", block=False)
    '<code>\\frac{</code>'
    """
    from latex2mathml.converter import convert

    problems: tuple[type[Exception], ...] = (*_problems(), KeyError, IndexError)
    try:
        converted: str = convert(formula, display="block" if block else "inline")
    except problems:
        return f"<code>{html.escape(formula)}</code>"
    return converted


@cache
def _problems() -> tuple[type[Exception], ...]:
    """Return what latex2mathml raises; its exceptions have no common base of their own."""
    from latex2mathml import exceptions

    found = [kind for kind in vars(exceptions).values() if isinstance(kind, type)]
    return tuple(kind for kind in found if issubclass(kind, Exception))


@cache
def _markdown() -> MarkdownWithMath:
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def inline_math(self, body: str) -> str:
            if body != body.strip():
                return f"${html.escape(body, quote=False)}$"
            return mathml(body, block=False)

        def block_math(self, body: str) -> str:
            return mathml(body.strip(), block=True)

        def latex_environment(self, name: str, body: str) -> str:
            return mathml(rf"\begin{{{name}}}{body}\end{{{name}}}", block=True)

    return MarkdownWithMath(renderer=Renderer(escape=False, exclude_anchor_links=True))
