"""Executed notebooks as self-contained HTML pages: no address outside, readable in print."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.report.notebook import ADDED, read_notebook, tags

if TYPE_CHECKING:
    from nbconvert import HTMLExporter
    from nbconvert.filters.markdown_mistune import MarkdownWithMath

TEMPLATES = Path(__file__).parent / "templates"
WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """The file of one page, its title, and its short name in the navigation."""

    file: str
    title: str
    label: str


def page_of(notebook: Path) -> ReportPage:
    """Return the page of a notebook: the title is its first heading.

    The label is the file's name without its number: ``02_wait_budget`` is ``wait budget``.
    """
    title = notebook.stem
    for cell in read_notebook(notebook).cells:
        if found := re.search(r"^# +(.+?) *#*$", cell.source, flags=re.MULTILINE):
            title = found[1].replace("`", "")
            break
    label = re.sub(r"^\d+_", "", notebook.stem).replace("_", " ")
    return ReportPage(file=f"{notebook.stem}.html", title=title, label=label)


def write_page(
    notebook: Path, pages: Sequence[ReportPage], folder: Path, *, report_title: str
) -> Path:
    """Write the page of an executed notebook into a folder and return its path."""
    page = page_of(notebook)
    content = readable(read_notebook(notebook))
    resources = {
        "page": page,
        "pages": pages,
        "report_title": report_title,
        "css": style_sheet(),
        "charts_js": _asset("charts.js"),
        "vega": vega_bundle() if _has_charts(content) else None,
    }
    body, _ = exporter().from_notebook_node(content, resources=resources)
    target = folder / page.file
    target.write_text(body, encoding="utf-8")
    return target


def readable(notebook: Any) -> Any:
    """Return the notebook as a page shows it: without papermill's own cells and live widgets."""
    notebook.cells = [cell for cell in notebook.cells if not tags(cell) & ADDED]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if WIDGET not in o.get("data", {})]
    notebook.metadata.pop("widgets", None)
    return notebook


@cache
def exporter() -> HTMLExporter:
    """Return the exporter with our templates and filters; it fetches nothing."""
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    made = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="capplan",
        extra_template_basedirs=[str(TEMPLATES)],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        config=Config({"HTMLExporter": {"embed_images": True}}),
    )
    made.register_filter("markdown_with_math", markdown_to_html)  # type: ignore[no-untyped-call]
    return made


@cache
def vega_bundle() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script that may stand inside a page."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _has_charts(notebook: Any) -> bool:
    return any(
        '<figure class="chart"' in output.get("data", {}).get("text/html", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )


def style_sheet() -> str:
    """Return the styles that every page of a report shares."""
    return _asset("page.css")


def _asset(name: str) -> str:
    return (TEMPLATES / "capplan" / name).read_text(encoding="utf-8")


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
