"""A picture as SVG text, on a ground of its own that is light or dark as its reader's page is."""

from html import escape

STYLE = """
text { font: 15px system-ui, sans-serif; fill: #1f2328 }
.small { font-size: 13px } .bold { font-weight: 600 } .code { font-family: ui-monospace, monospace; font-size: 14px }
.soft { fill: #59636e }
.ground { fill: #ffffff }
.box, .blue, .orange, .green, .violet, .none { stroke: #8c959f }
.box { fill: #f6f8fa } .none { fill: #eceef1; stroke-dasharray: 4 3 }
.blue { fill: #b6d7ff } .orange { fill: #ffd8a8 } .green { fill: #b9e4c0 } .violet { fill: #e0d4ff }
.line { stroke: #59636e; stroke-width: 1.5; fill: none } .tip { fill: #59636e }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .soft { fill: #9da7b1 }
  .ground { fill: #161b22 }
  .box, .blue, .orange, .green, .violet, .none { stroke: #6e7681 }
  .box { fill: #21262d } .none { fill: #1c2128 }
  .blue { fill: #1f4b7f } .orange { fill: #7a4a12 } .green { fill: #1f5c33 } .violet { fill: #4a3a7a }
  .line { stroke: #9da7b1 } .tip { fill: #9da7b1 }
}
"""


class Picture:
    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, kind: str = "box", round_: float = 4) -> None:
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round_:g}"/>')

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """With its baseline at y."""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def lines(
        self, x: float, y: float, texts: list[str], kind: str = "", anchor: str = "start", step: int = 20
    ) -> None:
        for i, text in enumerate(texts):
            self.text(x, y + i * step, text, kind, anchor)

    def line(self, *points: tuple[float, float], tip: bool = False) -> None:
        path = " ".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
        self.parts.append(f'<path class="line" d="{path}"/>')
        if tip:
            (x0, y0), (x, y) = points[-2:]
            length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
            dx, dy = 8 * (x - x0) / length, 8 * (y - y0) / length
            ends = ((x, y), (x - dx - dy / 2, y - dy + dx / 2), (x - dx + dy / 2, y - dy - dx / 2))
            self.parts.append(f'<polygon class="tip" points="{" ".join(f"{a:.4g},{b:.4g}" for a, b in ends)}"/>')

    def __str__(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img">'
        ground = f'<rect class="ground" width="{self.width}" height="{self.height}" rx="8"/>'
        title = f"<title>{escape(self.title)}</title>"
        return "\n".join([head, title, f"<style>{STYLE}</style>", ground, *self.parts, "</svg>\n"])
