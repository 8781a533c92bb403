"""What the documents say is there: code runs, commands parse, files and columns exist."""

import re
import shlex
from pathlib import Path

import pytest

from capplan import schema

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "GLOSSARY.md")]
TABLES = {"trace": schema.TRACE, "requests": schema.REQUESTS, "timeline": schema.TIMELINE}

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COLUMN = re.compile(r"`(trace|requests|timeline)\.(\w+)`")
FILE = re.compile(
    r"`((?:capplan|data|notebooks|tests|\.ci)/[\w./-]+\.\w+|\w[\w.-]*\.(?:md|yml|toml))`"
)


def blocks(document, language):
    return [code for lang, code in BLOCK.findall(document.read_text()) if lang == language]


def commands(first):
    """Return the words of each shell line of the documents that starts with ``first``."""
    lines = [
        shlex.split(line, comments=True)
        for document in DOCUMENTS
        for block in blocks(document, "sh")
        for line in block.splitlines()
    ]
    return [words for words in lines if words and words[0] == first]


def targets():
    """Return the Makefile's targets and whether `make help` lists them."""
    text = (ROOT / "Makefile").read_text()
    [phony] = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    return {
        name: bool(re.search(rf"^{name}:.*## \S", text, re.MULTILINE)) for name in phony.split()
    }


@pytest.mark.parametrize("code", blocks(ROOT / "README.md", "python"))
def test_python_of_the_readme_runs(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    promised = re.findall(r"print\(.*\)  # (\w+)", code)
    assert promised
    assert capsys.readouterr().out.split()[: len(promised)] == promised


@pytest.mark.parametrize("words", commands("capplan"), ids=" ".join)
def test_commands_of_the_documents_parse(words):
    from capplan.cli import _parser

    assert _parser().parse_args(words[1:]).command == words[1]


def test_make_targets_of_the_documents_exist():
    named = {words[1] for words in commands("make") if len(words) > 1}
    assert named
    assert named <= set(targets())


def test_every_make_target_is_listed_by_help():
    assert [name for name, listed in targets().items() if not listed] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_named_in_a_document_exist(document):
    named = set(FILE.findall(document.read_text()))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_bundled_data_folder_is_described():
    text = (ROOT / "data" / "README.md").read_text()
    folders = [path.name for path in (ROOT / "data").iterdir() if path.is_dir()]
    assert folders
    assert [name for name in folders if f"`{name}/`" not in text] == []


def test_every_module_has_its_line_in_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    modules = {path.stem for path in (ROOT / "capplan").glob("[a-z]*.py")}
    packages = {path.parent.name for path in (ROOT / "capplan").glob("*/__init__.py")}
    listed = set(re.findall(r"^    (\w+)  +\w", text, re.MULTILINE))
    assert sorted((modules | packages) - listed) == []


def test_columns_named_in_the_glossary_exist():
    named = COLUMN.findall((ROOT / "GLOSSARY.md").read_text())
    known = {(table, column.name) for table, columns in TABLES.items() for column in columns}
    assert set(named) - known == set()


@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_explained_by_the_glossary(table):
    named = {c for t, c in COLUMN.findall((ROOT / "GLOSSARY.md").read_text()) if t == table}
    assert set(schema.names(TABLES[table])) - named - {"time_s", "request_id"} == set()


def test_every_outcome_and_layer_is_in_the_glossary():
    text = (ROOT / "GLOSSARY.md").read_text()
    assert [word for word in (*schema.OUTCOMES, *schema.LAYERS) if f"`{word}`" not in text] == []
