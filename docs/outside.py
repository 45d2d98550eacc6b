"""Includes pages outside of docs in the site, and converts links.

A page of the site may include a Markdown file. Links in the file are relative to the file, so that they also work on a
repository host. A link to an included file becomes a link to the page that includes it. Sphinx copies the targets of
other links. Broken links are not changed, and Sphinx warns about them.
"""

import os
import pathlib
import re

DOCS = pathlib.Path(__file__).parent
INCLUDE = re.compile(r"^```\{include\} (\S+\.md)\n```$", re.MULTILINE)
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(?=(?:#[^)\s]*)?\))")


def includes(docs: pathlib.Path = DOCS) -> dict[pathlib.Path, pathlib.Path]:
    """Returns a dict from each included file to the page that includes it."""
    pages = sorted(docs.rglob("*.md"))
    return {
        (page.parent / file).resolve(): page.resolve() for page in pages for file in INCLUDE.findall(page.read_text())
    }


def convert_links(page: pathlib.Path, text: str, folder: pathlib.Path, placed: dict) -> str:
    """Rewrites relative links in `text`, which start in `folder`, so that they work in the page `page`."""

    def link(match: re.Match) -> str:
        target = (folder / match[1]).resolve()
        return os.path.relpath(placed.get(target, target), page.parent) if target.exists() else match[0]

    parts = FENCE.split(text)
    return "".join(part if FENCE.match(part) else LINK.sub(link, part) for part in parts)


def expand_includes(page: pathlib.Path, text: str, placed: dict) -> str:
    """Returns the text of a page with its includes, and links relative to the page."""
    text = convert_links(page, text, page.parent, placed)

    def included(match: re.Match) -> str:
        file = (page.parent / match[1]).resolve()
        return convert_links(page, file.read_text(), file.parent, placed)

    return INCLUDE.sub(included, text)


def setup(app) -> None:
    placed = includes()

    def read(app, name: str, content: list[str]) -> None:
        page = pathlib.Path(app.env.doc2path(name))
        if page.suffix == ".md":
            content[0] = expand_includes(page.resolve(), content[0], placed)

    app.connect("source-read", read)
