"""Pages of the repository that stand outside docs, and links that lead there.

A page of the site with an include of Markdown is that file's place in the site; its links are relative to where the
file stands, so that they hold on a repository's host too. What a link names becomes the page that includes it, or else
the file itself, which Sphinx then copies. A link that leads nowhere is left, and Sphinx warns of it.
"""

import os
import pathlib
import re

DOCS = pathlib.Path(__file__).parent
INCLUDE = re.compile(r"^```\{include\} (\S+\.md)\n```$", re.MULTILINE)
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(?=(?:#[^)\s]*)?\))")


def includes(docs: pathlib.Path = DOCS) -> dict[pathlib.Path, pathlib.Path]:
    """The page of the site that includes a file, by the file."""
    pages = sorted(docs.rglob("*.md"))
    return {
        (page.parent / file).resolve(): page.resolve() for page in pages for file in INCLUDE.findall(page.read_text())
    }


def with_links_of(page: pathlib.Path, text: str, folder: pathlib.Path, placed: dict) -> str:
    """text, whose links are relative to the folder, with the links that the page needs."""

    def link(match: re.Match) -> str:
        target = (folder / match[1]).resolve()
        return os.path.relpath(placed.get(target, target), page.parent) if target.exists() else match[0]

    parts = FENCE.split(text)
    return "".join(part if FENCE.match(part) else LINK.sub(link, part) for part in parts)


def whole(page: pathlib.Path, text: str, placed: dict) -> str:
    """The text of a page with what it includes, all links as the page needs them."""
    text = with_links_of(page, text, page.parent, placed)

    def included(match: re.Match) -> str:
        file = (page.parent / match[1]).resolve()
        return with_links_of(page, file.read_text(), file.parent, placed)

    return INCLUDE.sub(included, text)


def setup(app) -> None:
    placed = includes()

    def read(app, name: str, content: list[str]) -> None:
        page = pathlib.Path(app.env.doc2path(name))
        if page.suffix == ".md":
            content[0] = whole(page.resolve(), content[0], placed)

    app.connect("source-read", read)
