"""Draws the pictures of the site: draw.py [FOLDER]. By default into its own folder, where they are kept."""

import pathlib
import sys

from svg import Picture

SIZES, KINDS = (3, 0, 4, 1), ("blue", "none", "orange", "green")


def groups() -> Picture:
    p = Picture(600, 330, "Rows in four groups, each multiplied by its expert's matrix")
    row, top = 28, 70
    p.text(118, 30, "lhs [8, K]", "bold", "middle")
    p.text(118, 50, "rows, sorted by expert", "small soft", "middle")
    p.text(310, 30, "rhs [4, K, N]", "bold", "middle")
    p.text(310, 50, "a matrix for each expert", "small soft", "middle")
    p.text(520, 30, "out [8, N]", "bold", "middle")
    y = top
    for group, (size, kind) in enumerate(zip(SIZES, KINDS, strict=True)):
        matrix = top + group * 58
        p.box(265, matrix, 90, 48, kind)
        p.text(310, matrix + 22, f"expert {group}", "", "middle")
        p.text(310, matrix + 40, "not read" if not size else "K x N", "small", "middle")
        middle, end = y + size * row / 2, matrix + 24
        for i in range(size):
            p.box(58, y + i * row, 120, row - 4, kind)
            p.box(470, y + i * row, 100, row - 4, kind)
        if size:
            p.line((184, middle - 2), (260, end), tip=True)
            p.line((360, end), (464, middle - 2), tip=True)
        p.text(24, middle + 4 if size else y + 4, str(size), "bold", "middle")
        y += size * row
    p.text(24, 30, "sizes", "bold", "middle")
    p.text(
        300,
        318,
        "group_sizes = [3, 0, 4, 1] is data: known when the call runs, other in each batch",
        "small soft",
        "middle",
    )
    return p


def sides() -> Picture:
    p = Picture(600, 520, "The five modes, by the side of the product that groups divide")
    modes = [
        ("ragged M", "rows: forward", "rows", "each", "rows"),
        ("ragged K", "what is contracted: gradient of weights", "columns", "rows", "each"),
        ("ragged N", "columns", "whole", "columns", "columns"),
        ("uniform", "nothing: a batch", "each", "each", "each"),
        ("all ragged", "every matrix has its own shape", "own", "own", "own"),
    ]
    kinds, shares = ("blue", "orange", "green"), (0.4, 0.35, 0.25)

    def matrix(x: float, y: float, how: str) -> None:
        w, h = 96.0, 60.0
        at = 0.0
        for i, (kind, share) in enumerate(zip(kinds, shares, strict=True)):
            if how == "rows":
                p.box(x, y + at * h, w, share * h, kind, 0)
            elif how == "columns":
                p.box(x + at * w, y, share * w, h, kind, 0)
            elif how == "each":
                p.box(x + 14 * i, y + 8 * i, w - 28, h - 16, kind, 2)
            elif how == "own":
                p.box(x + at * w, y + (1 - share * 2.3) * h / 2, share * w - 4, share * 2.3 * h, kind, 2)
            at += share
        if how == "whole":
            p.box(x, y, w, h, "box", 0)

    for i, (name, what, *hows) in enumerate(modes):
        y = 42 + i * 98
        p.text(20, y - 12, name, "bold")
        p.text(118, y - 12, what, "soft")
        for x, how, label in zip((40, 220, 420), hows, ("lhs", "rhs", "out"), strict=True):
            matrix(x, y, how)
            p.text(x - 8, y + 35, label, "small soft", "end")
        p.text(164, y + 36, "x", "bold", "middle")
        p.text(356, y + 36, "=", "bold", "middle")
    return p


def which() -> Picture:
    p = Picture(600, 560, "Five questions that lead to the call")
    rows = [
        (["Code that calls", "another library?"], ["raggemm.compat", "or the override"], "violet"),
        (["Only tokens, and", "no layer yet?"], ["raggemm.nn"], "green"),
        (["A router, and experts", "that are MLPs?"], ["route, sort_by_expert,", "moe_mlp"], "green"),
        (["Sorted rows, a matrix", "for each expert?"], ["gmm, ragged_dot"], "blue"),
        (["Two matrices whose", "common axis is divided?"], ["tgmm"], "blue"),
    ]
    for i, (question, answer, kind) in enumerate(rows):
        y = 20 + i * 92
        p.box(20, y, 230, 60, "box", 8)
        p.lines(135, y + 26, question, "", "middle")
        p.line((250, y + 30), (340, y + 30), tip=True)
        p.text(292, y + 22, "yes", "small soft", "middle")
        p.box(342, y, 238, 60, kind, 8)
        p.lines(461, y + (35 if len(answer) == 1 else 26), answer, "code", "middle")
        p.line((135, y + 60), (135, y + 91), tip=True)
        p.text(146, y + 80, "no", "small soft")
    p.box(20, 480, 230, 60, "box", 8)
    p.lines(135, 506, ["Another ragged side, bias,", "activation, rows by index"], "", "middle")
    p.line((250, 510), (340, 510), tip=True)
    p.box(342, 480, 238, 60, "orange", 8)
    p.text(461, 515, "grouped_gemm", "code", "middle")
    return p


def call() -> Picture:
    p = Picture(600, 420, "The four frames of a call, from Python to the kernels")
    frames = [
        ("1  Python", "raggemm.gmm(rows, experts, sizes)", "checks shapes and dtypes", "violet"),
        ("2  XLA", "custom call raggemm_grouped_gemm_v1", "compiled once for these shapes", "blue"),
        ("3  Plugin", "sizes -> checks -> plan", "instruction set, tiles, threads", "orange"),
        ("4  Kernels", "tile, tile, tile, ...", "sums in registers, one rounding at the end", "green"),
    ]
    for i, (name, code, what, kind) in enumerate(frames):
        y = 20 + i * 98
        p.box(120, y, 460, 72, kind, 8)
        p.text(136, y + 26, name, "bold")
        p.text(244, y + 26, code, "code")
        p.text(244, y + 52, what)
        if i < 3:
            p.line((350, y + 72), (350, y + 97), tip=True)
    for y, texts in (
        (20, ["once, when", "traced and", "compiled"]),
        (216, ["in each", "call, by the", "sizes it has"]),
    ):
        p.line((106, y), (98, y), (98, y + 170), (106, y + 170))
        p.lines(88, y + 68, texts, "small soft", "end", 18)
    return p


def memory() -> Picture:
    p = Picture(600, 400, "Where the memory of a call is")
    p.text(20, 32, "raggemm.gmm", "code bold")
    p.box(20, 46, 150, 90, "blue")
    p.lines(95, 84, ["rows", "[M, K]"], "", "middle")
    p.box(182, 46, 240, 90, "orange")
    p.lines(302, 84, ["experts", "[G, K, N]"], "", "middle")
    p.box(434, 46, 146, 90, "green")
    p.lines(507, 84, ["out", "[M, N]"], "", "middle")
    p.box(20, 150, 40, 26, "violet")
    p.text(70, 168, "workspace: a few int64 for each group", "soft")
    p.box(20, 184, 40, 26, "violet")
    p.text(70, 202, "pack buffers: 2 MiB a thread, kept for the next call", "soft")
    p.line((20, 232), (580, 232))
    p.text(20, 264, "jax.lax.ragged_dot on CPU, besides rows, experts and out", "bold")
    for i in range(4):
        p.box(20 + i * 142, 280, 134, 80, "none")
        p.lines(87 + i * 142, 314, ["rows masked", f"for expert {i}" if i < 3 else "... G times"], "small", "middle")
    p.text(20, 384, "a temporary [G, M, K]: G times the rows, nearly all of it zero", "soft")
    return p


def threads() -> Picture:
    p = Picture(600, 350, "Tiles of groups, and the threads that compute them")
    p.text(20, 30, "groups become tiles of about the same cost", "bold")
    x = 20.0
    tiles = (5, 0, 6, 1)
    for group, (count, kind) in enumerate(zip(tiles, KINDS, strict=True)):
        width = max(count * 41, 46)
        at, anchor = (x + 37, "end") if group == len(tiles) - 1 else (x + width / 2 - 3, "middle")
        p.text(at, 56, f"group {group}", "small soft", anchor)
        for i in range(count):
            p.box(x + i * 41, 66, 37, 37, kind)
        if not count:
            p.text(x + 20, 90, "none", "small soft", "middle")
        x += width + 8
    p.text(20, 144, "each thread has a range of them", "bold")
    order = [kind for count, kind in zip(tiles, KINDS, strict=True) for _ in range(count)]
    for thread in range(2):
        y = 160 + thread * 58
        p.text(20, y + 25, f"thread {thread}", "soft")
        for i, kind in enumerate(order[thread * 6 : thread * 6 + 6]):
            p.box(100 + i * 50, y, 46, 38, kind)
    p.text(420, 185, "is done early, takes", "small")
    p.text(420, 203, "what is left of 1's", "small")
    p.line((416, 192), (376, 236), tip=True)
    p.lines(
        20,
        300,
        [
            "No sum is divided: a tile has all steps of k of its elements.",
            "So the bits are the same on any number of threads.",
        ],
        "soft",
        step=22,
    )
    return p


PICTURES = (groups, sides, which, call, memory, threads)

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for draw in PICTURES:
        (folder / f"{draw.__name__}.svg").write_text(str(draw()))
