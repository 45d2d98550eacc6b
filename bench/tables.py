"""Tables in Markdown."""


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Aligned, so that it can be read as it is; the first column to the left."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]

    def line(fields: list[str]) -> str:
        return (
            "| "
            + " | ".join(f.rjust(w) if i else f.ljust(w) for i, (f, w) in enumerate(zip(fields, widths, strict=True)))
            + " |"
        )

    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def figure(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"
