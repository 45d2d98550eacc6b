import itertools
import pathlib
import re
import subprocess
import sys

import pytest

HANDLER_LINES = 25
README_LINES, README_CELL = 120, 160
FOLDERS = ("bench", "docs", "ffi", "include", "kernels", "proto", "python", "tests")


def _pages(root: pathlib.Path) -> dict[str, str]:
    found = [*root.glob("*.md"), *(page for folder in FOLDERS for page in (root / folder).rglob("*.md"))]
    return {str(page.relative_to(root)): page.read_text() for page in sorted(found)}


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


# Pages whose examples need packages that .venv lacks. `./dev test --origins` runs them.
OF_ORIGINS = {"docs/saving.md"}
PAGES = _pages(pathlib.Path(__file__).resolve().parents[2])
EXAMPLES = [
    pytest.param(example, id=f"{page}-{number}")
    for page, text in PAGES.items()
    if page not in OF_ORIGINS
    for number, example in enumerate(_blocks(text, "python"), 1)
]


@pytest.fixture(scope="module")
def developers() -> str:
    return PAGES["docs/developers.md"]


def _section(page: str, title: str) -> str:
    match = re.search(rf"^(#+) [^\n]*{title}[^\n]*\n(.*?)(?=^#{{1,2}} |\Z)", page, re.MULTILINE | re.DOTALL | re.I)
    assert match, f"the page has no section '{title}'"
    return match[2]


def _body(source: str, function: str) -> list[str]:
    match = re.search(rf"^[^\n/]*\b{function}\([^;{{}}]*\)[^;{{}}]*\{{", source, re.MULTILINE)
    assert match, f"no definition of {function}"
    depth, at = 1, match.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
    return source[match.start() : at].splitlines()


@pytest.fixture(scope="module")
def frames(root, developers) -> list[tuple[str, str]]:
    """Returns (name, definition) of each C++ function that docs/developers.md lists for a call."""
    section = _section(developers, "From JAX to the fma loop")
    named = re.findall(r"^\d+\. `([\w:]+)` \(`((?:ffi|kernels)/[\w./]+)`\)", section, re.MULTILINE)
    return [(function, "\n".join(_body((root / path).read_text(), function))) for function, path in named]


def test_a_call_passes_nine_frames(frames):
    assert [function.split("::")[-1] for function, _ in frames] == [
        *("Execute", "Run", "GroupedGemm", "Run", "ParallelFor", "For", "Work", "RunTile", "TileGemm")
    ]


def test_each_frame_calls_the_next(frames):
    for (caller, definition), (callee, _) in itertools.pairwise(frames[:7]):
        name = callee.split("::")[-1]
        assert re.search(rf"\b{name}\(", definition.partition("{")[2]), f"{caller} does not call {name}"
    # Team::Work gets RunTile as a parameter, so its definition lacks the name.
    assert "RunTile" in frames[3][1]
    assert "MicrokernelArgs" in frames[7][1] and "MicrokernelArgs" in frames[8][1]


def test_handler_is_short(frames):
    function, definition = frames[0]
    assert len(definition.splitlines()) <= HANDLER_LINES, function


def test_guide_names_existing_files(root, developers):
    paths = re.findall(r"`([\w.-]+/[\w./-]*|[\w-]+\.\w+|dev)`", _section(developers, "guide to the files"))
    assert len(paths) >= 8
    assert [path for path in paths if not (root / path).exists()] == []


def test_guide_names_every_folder(root, developers):
    guide = _section(developers, "guide to the files")
    folders = {path.split("/")[0] for path in re.findall(r"`([\w.-]+/[\w./-]*)`", guide)}
    assert {"include", "kernels", "ffi", "proto", "python", "tests", "bench"} <= folders


def _anchors(page: str) -> set[str]:
    """Returns the anchors that GitHub makes from headings, and those of elements <a id="...">."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', page))


def _broken_links(root: pathlib.Path, page: str, text: str) -> list[str]:
    broken = []
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (root / page).parent / path if path else root / page
        if not target.exists() or (anchor and anchor not in _anchors(target.read_text())):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(root, page):
    assert _broken_links(root, page, PAGES[page]) == []


def test_readme_is_short():
    lines = PAGES["README.md"].splitlines()
    assert len(lines) <= README_LINES
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if len(cell) > README_CELL] == []


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_python_examples_run(example, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(example)
    subprocess.run([sys.executable, script], check=True, cwd=tmp_path, timeout=300)


@pytest.mark.slow
def test_cpp_examples_build_against_the_installed_package(build, tmp_path):
    examples = _blocks(PAGES["include/README.md"], "cpp")
    (cmake,) = _blocks(PAGES["include/README.md"], "cmake")
    (tmp_path / "CMakeLists.txt").write_text(cmake)
    subprocess.run(["cmake", "--install", build, "--prefix", "prefix"], check=True, cwd=tmp_path, timeout=300)
    configure = ["cmake", "-G", "Ninja", "-B", "build", "-DCMAKE_BUILD_TYPE=Release"]
    for example, call in zip(examples, ("GroupedGemm(", "MoeMlp("), strict=True):
        assert call in example
        (tmp_path / "example.cc").write_text(example)
        for command in (
            [*configure, f"-DCMAKE_PREFIX_PATH={tmp_path}/prefix"],
            ["cmake", "--build", "build"],
            ["build/example"],
        ):
            subprocess.run(command, check=True, cwd=tmp_path, timeout=300)
