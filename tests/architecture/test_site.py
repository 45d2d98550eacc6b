import importlib
import pkgutil
import re
import subprocess
import sys

import pytest
import raggemm

DIRECTIVE = re.compile(r"^\.\. auto(?:function|class|data):: ([\w.]+)$", re.MULTILINE)
WHOLE_MODULE = re.compile(r"^\.\. automodule:: ([\w.]+)\n   :members:$", re.MULTILINE)
# Modules whose public names the reference must list, besides the modules of raggemm.compat.
MODULES = ["raggemm", "raggemm.nn", "raggemm.expert_parallel"]


@pytest.fixture(scope="module")
def docs(root):
    return root / "docs"


@pytest.fixture(scope="module", autouse=True)
def importable(docs):
    sys.path.insert(0, str(docs))
    yield
    sys.path.remove(str(docs))


def names_of(module: str) -> set[str]:
    return {f"{module}.{name}" for name in importlib.import_module(module).__all__}


def public_names() -> set[str]:
    compat = importlib.import_module("raggemm.compat")
    modules = [*MODULES, *(f"raggemm.compat.{name}" for name in compat.__all__)]
    return set().union(*map(names_of, modules))


def test_reference_has_exactly_the_public_names(docs):
    listed = []
    for page in (docs / "reference").glob("*.md"):
        text = page.read_text()
        listed += DIRECTIVE.findall(text)
        listed += [name for module in WHOLE_MODULE.findall(text) for name in names_of(module)]
    assert sorted(listed) == sorted(public_names())


def test_compat_lists_every_public_module():
    found = [module.name for module in pkgutil.iter_modules(raggemm.compat.__path__) if module.name[0] != "_"]
    assert sorted(found) == sorted(raggemm.compat.__all__)


def test_public_names_have_docstrings():
    for name in public_names():
        module, _, thing = name.rpartition(".")
        assert (getattr(importlib.import_module(module), thing).__doc__ or "").strip(), name


def test_every_header_is_on_the_page_of_the_headers(root, docs):
    named = re.findall(r"^```\{literalinclude\} \S+/(\S+)$", (docs / "reference/cpp.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in (root / "include/raggemm").glob("*.h"))


def test_every_page_outside_of_docs_is_included(root, docs):
    import outside

    pages = [*root.glob("*.md"), *(root / "bench/results").glob("*.md"), *(root / "python/examples").rglob("*.md")]
    pages += [root / "include/README.md", root / "ffi/README.md"]
    assert set(pages) == set(outside.includes(docs))


def test_links_name_the_file_and_not_the_page_that_includes_it(root, docs):
    """Some pages only include another file, and look empty on a repository host. Links lead to the included file."""
    import outside

    including_pages = set(outside.includes(docs).values())
    for page in [*docs.rglob("*.md"), *outside.includes(docs)]:
        targets = {(page.parent / link).resolve() for link in outside.LINK.findall(page.read_text())}
        assert not targets & including_pages, page


def test_links_become_those_of_the_site(docs):
    import outside

    placed = outside.includes(docs)
    text = "[1](docs/limits.md#faults) [2](SECURITY.md) [3](https://a.b/c) [4](#x) [5](nowhere)"
    found = outside.convert_links(docs / "which.md", f"{text}\n```\n[6](dev)\n```\n[7](dev)", docs.parent, placed)
    assert found.splitlines()[0] == "[1](limits.md#faults) [2](promises.md) [3](https://a.b/c) [4](#x) [5](nowhere)"
    assert found.splitlines()[2:] == ["[6](dev)", "```", "[7](../dev)"]
    assert "# Security" in outside.expand_includes(docs / "promises.md", (docs / "promises.md").read_text(), placed)


def test_pictures_have_a_title_and_follow_the_dark_theme(docs):
    for path in (docs / "pictures").glob("*.svg"):
        text = path.read_text()
        assert "<title>" in text and "prefers-color-scheme: dark" in text, path


def test_commands_on_pages_are_commands(root, docs):
    usage = subprocess.run([root / "dev", "help"], capture_output=True, text=True, check=True).stdout
    commands = {line.split()[0] for line in usage.splitlines() if line[:2] == "  " and line[2:3] != " "}
    pages = [*root.glob("*.md"), *docs.rglob("*.md"), root / "python/examples/README.md"]
    named = {(page.name, name) for page in pages for name in re.findall(r"\./dev ([a-z]\w*)", page.read_text())}
    assert not {(page, name) for page, name in named if name not in commands | {"help"}}
