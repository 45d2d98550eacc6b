"""Tables and pictures from a small report whose means and best ways are easy to see."""

import json
import re
import subprocess
import sys
from pathlib import Path

import classes
import pytest
import regimes
import report as bench_report
from matplotlib.text import Text

# The limits of a machine that does nothing else.
LIMITS = {"threads": 2, "fma_gflops": 200.0, "overall_fma_gflops": 200.0, "read_gbps": 30.0, "store_gbps": 40.0}


def _case(rows=8, groups=4, **changes):
    """One case of report.json: 100 GFLOP/s, twice the best peer, half the roofline."""
    case = {
        "case": f"2048x768/rows{rows}",
        "regime": "sweep",
        "mode": "forward",
        "lhs_dtype": "f32",
        "rhs_dtype": "f32",
        "out_dtype": "f32",
        "threads": 2,
        "rows": rows * groups,
        "groups": groups,
        "k": 2048,
        "n": 768,
        "ours_gflops": 100.0,
        "best_peer": "fast/outer",
        "best_peer_gflops": 50.0,
        "ratio": 2.0,
        "roofline_gflops": 200.0,
        "roofline_share": 0.5,
        "flops": 2.0 * rows * groups * 2048 * 768,
        "bytes": 4.0 * groups * 2048 * 768,
        "limits": dict(LIMITS),
        "ours": {"name": "ours", "gflops": 100.0, "spread": 0.02, "rounds": 9},
        "peers": [
            {"name": "fast", "way": "own", "gflops": 40.0, "spread": 0.01, "rounds": 9},
            {"name": "fast", "way": "outer", "gflops": 50.0, "spread": 0.01, "rounds": 9},
            {"name": "wrong", "way": "own", "error": "out[0] is 1, expected 2"},
        ],
        "bounds": [
            {"name": "ours, group by group", "gflops": 80.0, "rounds": 9},
            {"name": "ours, one dense product", "gflops": 125.0, "rounds": 9},
        ],
    }
    return case | changes


def _quantized(rows, name="int4", **changes):
    peers = [{"name": "bf16", "way": "ours", "gflops": 40.0, "spread": 0.01, "rounds": 9}]
    types = {"quantization": name, "lhs_dtype": "bf16", "rhs_dtype": "s4", "unit": "VPDPBUSD"}
    return _case(rows, best_peer="bf16/ours", ratio=2.5, peers=peers, bounds=[], **types | changes)


TILES = LIMITS | {"units": [{"name": "VDPBF16PS", "gflops": 100.0}, {"name": "TDPBF16PS", "gflops": 3000.0}]}


def _on_tiles(rows):
    return _case(rows, lhs_dtype="bf16", rhs_dtype="bf16", unit="TDPBF16PS", limits=TILES)


def _report(cases, isa="avx2"):
    machine = {
        "cpu": "Some(R) CPU (family 6, model 1)",
        "isa": isa,
        "cores": 2,
        "compiler": "g++ 12.2.0",
        "date": "2026-01-01",
        "selection": "default",
        "limits": [dict(LIMITS)],
        "overheads": [{"name": "custom call, empty problem", "microseconds": 1.234}],
        "peers": [{"name": "fast", "description": "core new; fast 1.2; /opt/somewhere/libfast.so.1"}],
        "absent": [{"name": "slow", "description": "not there when the build was configured"}],
    }
    return {"machine": machine, "cases": cases}


@pytest.mark.parametrize(
    ("rows", "mode", "kind", "expected"),
    [
        (1, "forward", "sweep", "forward, 1 to 2 rows"),
        (16, "forward", "sweep", "forward, 4 to 16 rows"),
        (32, "forward_transposed", "sweep", "transposed, 32 to 64 rows"),
        (512, "forward", "sweep", "forward, 128 rows and more"),
        (16, "wgrad", "sweep", "wgrad, 16 rows and more"),
        (8, "wgrad", "sweep", "wgrad, below 16 rows"),
        (20, "forward", "recorded", "forward, recorded"),
    ],
)
def test_regime(rows, mode, kind, expected):
    assert regimes.regime(_case(rows, mode=mode, regime=kind)) == expected


def test_quantized_operands_are_a_regime_of_their_own_beside_bf16(tmp_path):
    cases = [_quantized(1), _quantized(4), _quantized(64), _quantized(8, "w8a8", regime="recorded", case="some-decode")]
    cases[2]["absent"] = ["some-peer"]
    assert [str(cell) for cell in regimes.cells(_report(cases))] == [
        "quantized, 1 to 2 rows, int4 → f32, 2 threads",
        "quantized, 4 to 16 rows, int4 → f32, 2 threads",
        "quantized, 32 to 64 rows, int4 → f32, 2 threads",
        "quantized, recorded, w8a8 → f32, 2 threads",
    ]
    report = _report(cases)
    report["machine"]["limits"][0]["units"] = [{"name": "VPDPBUSD", "gflops": 900.0}]
    assert bench_report.file_name(report["machine"]) == "some-cpu-family-6-model-1"
    path = bench_report.write_report(report, tmp_path, "some")
    assert path.read_text().endswith("## Not implemented\n\n- some-peer: int4 → f32\n")
    assert "## Quantized, 4 to 16 rows" in path.read_text() and not list(tmp_path.glob("*.png"))
    plain = classes.read(bench_report.report_text(_report([_case()]), []), "plain.md")
    recorded = [classes.read(path.read_text(), path.name), plain]
    assert classes.quantized_table(recorded, "results").splitlines() == [
        f"{classes.QUANTIZED_HEADER} [Some (family 6, model 1)](results/some.md) |",  # the other one has none
        "|---|---|---:|",
        "| 1 to 16 | int4 | 2.50 / 0.50 |",
        "| 64 | int4 | 2.50 / 0.50 |",
        "| 1 to 16 | w8a8 | 2.50 / 0.50 |",
    ]
    assert len(bench_report.write_report(_report([*cases, _case()]), tmp_path, "all").read_text()) > 0
    assert len(list(tmp_path.glob("all*.png"))) == 2


def test_the_summary_has_geometric_means_and_the_least():
    (cell,) = regimes.cells(_report([_case(4, ratio=4.0), _case(16, ratio=1.0, roofline_share=0.125)]))
    fields = [field.strip() for field in bench_report.summary([cell]).splitlines()[2].split("|")]
    assert fields[1:-1] == ["forward, 4 to 16 rows", "f32 → f32", "f32 fma", "2", "2", "2.00", "1.00", "0.25", "0.12"]


def test_the_better_way_of_a_peer_counts():
    best = regimes.best_ways(_case())
    assert best["fast"]["way"] == "outer"
    assert "gflops" not in best["wrong"]


def test_gains_are_over_products_one_by_one_and_over_the_best_peer():
    gain = bench_report.gains(regimes.cells(_report([_case(), _case(ratio=0.5, bounds=[])])))
    assert gain.endswith(
        "| forward, 4 to 16 rows, f32 → f32, 2 threads |                     1.25 |               1.00 |"
    )


def test_a_busy_machine_is_a_warning_at_the_top():
    def text(cases, **machine):
        report = _report(cases)
        report["machine"] |= machine
        return bench_report.report_text(report, [])

    quiet = [_case(rows) for rows in (1, 8, 64)]
    for probed in (90.0, 110.0, 240.0):  # and of two threads of one core
        assert "WARNING" not in text(quiet, probed_gflops=probed)
    assert "WARNING" not in text(quiet)
    slow = text(quiet, probed_gflops=400.0)
    assert slow.splitlines()[2].startswith("**WARNING: the machine was busy")
    assert "2 threads reached 200.0 GFLOP/s of f32 fma, 25 % of what one reached" in slow
    assert "WARNING" not in text([_case(limits=LIMITS | {"overall_fma_gflops": of}) for of in (180.0, 190.0, 200.0)])
    shared = [_case(limits=LIMITS | {"overall_fma_gflops": of}) for of in (60.0, 100.0, 180.0)]
    assert "The rate of f32 fma on 2 threads has a spread of 60 % over the cases." in text(shared)
    unsteady = [_case(rows, limits=_case()["limits"] | {"read_gbps": 10.0 * rows}) for rows in (1, 2, 4)]
    assert "The rate of memory read on 2 threads has a spread of 75 % over the cases." in text(unsteady)
    jumpy = [_case(rows, ours={"name": "ours", "gflops": 100.0, "spread": 1.27, "rounds": 9}) for rows in (1, 8)]
    assert "our figure has a spread of 127 % or more" in text([*jumpy, _case()])
    assert "WARNING" not in text([jumpy[0], _case(), _case()])


@pytest.mark.parametrize(
    ("draw", "titles"),
    [
        ("roofline", ["bf16 → f32, TDPBF16PS, 2 threads"]),
        ("share_by_rows", ["bf16 on TDPBF16PS, 2048x768, 2 threads"]),
    ],
)
def test_pictures_are_legible_where_a_page_is_850_pixels_wide(draw, titles, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(bench_report.pictures, "_save", lambda figure, *_: drawn.append(figure))
    report = _report([make(rows) for make in (_case, _on_tiles) for rows in (1, 8, 64)])
    report["machine"]["limits"] = [TILES]
    getattr(bench_report.pictures, draw)(report, tmp_path, "some")
    (figure,) = drawn
    figure.draw_without_rendering()  # which makes the labels of the ticks
    assert {text.get_text() for text in figure.axes[0].get_legend().get_texts()} == {"raggemm", "best peer", "roofline"}
    assert [axis.get_title() for axis in figure.axes if "bf16" in axis.get_title()] == titles
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    pixels = {text.get_text(): text.get_fontsize() / 72 / figure.get_figwidth() * 850 for text in texts}
    assert "rows per group" in pixels or "GFLOP/s" in pixels
    assert {text: size for text, size in pixels.items() if size < 14} == {}


def test_report_has_tables_pictures_and_failures(tmp_path):
    cases = [_case(rows, lhs_dtype=dtype, rhs_dtype=dtype) for dtype in ("f32", "bf16") for rows in (1, 8, 64)]
    cases.append(_case(mode="wgrad", rows=64, bounds=[{"name": "ours, one thread", "error": "no memory"}]))
    path = bench_report.write_report(_report(cases), tmp_path, "some")
    text = path.read_text()
    assert "- fast: core new; fast 1.2; libfast.so.1\n- slow: absent, not there when the build was configured\n" in text
    assert "| custom call, empty problem | 1.23 |" in text
    assert "## Forward, 4 to 16 rows" in text
    assert "wrong/own, 2048x768/rows8 f32 → f32, forward, 2t: out[0] is 1, expected 2" in text
    assert "- ours, one thread, 2048x768/rows64 f32 → f32, wgrad, 2t: no memory" in text
    assert "failed" in text
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "some-roofline.png",
        "some-rows.png",
        "some.md",
    ]
    for picture in ("some-roofline.png", "some-rows.png"):
        assert f"]({picture})" in text
    for table in text.split("\n\n"):
        if table.startswith("|"):
            assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_a_run_without_peers_and_without_a_sweep_has_a_report_too(tmp_path):
    case = _case(regime="recorded", case="some-layer", peers=[])
    for name in ("best_peer", "best_peer_gflops", "ratio"):
        del case[name]
    text = bench_report.write_report(_report([case]), tmp_path, "some").read_text()
    assert "no peer" in text
    assert "rows.png" not in text


def test_the_script_records_under_the_name_of_the_cpu(tmp_path):
    json_file, readme = tmp_path / "report.json", tmp_path / "page.md"
    json_file.write_text(json.dumps(_report([_case()])))
    readme.write_text(f"{classes.HEADER}\n")
    command = [sys.executable, bench_report.__file__, json_file, "--record", tmp_path / "results", "--page", readme]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "forward, 4 to 16 rows" in done.stdout
    assert (tmp_path / "report.md").exists()
    recorded = tmp_path / "results" / "some-cpu-family-6-model-1.md"
    assert "](some-cpu-family-6-model-1-roofline.png)" in recorded.read_text()
    assert "](results/some-cpu-family-6-model-1.md)" in readme.read_text()


def test_the_unit_is_named_and_is_part_of_the_file_s_name():
    report = _report([_case(), _on_tiles(8)])
    report["machine"]["limits"] = [TILES]
    text = bench_report.report_text(report, [])
    assert "| threads | f32 fma, GFLOP/s | VDPBF16PS, GFLOP/s | TDPBF16PS, GFLOP/s | memory read, GB/s |" in text
    assert " 3000.0 |" in text
    assert bench_report.file_name(report["machine"]) == "some-cpu-family-6-model-1-tdpbf16ps"
    slower = TILES | {"units": TILES["units"][:1]}
    assert bench_report.file_name(report["machine"] | {"limits": [slower]}) == "some-cpu-family-6-model-1"


def test_classes_of_cpus_stand_side_by_side(tmp_path):
    results, readme = tmp_path / "results", tmp_path / "page.md"
    readme.write_text(f"# Before\n\n{classes.HEADER} old |\n|---|---|---|\n| x | y | z |\n\nbehind\n")
    several = [_case(), _case(64, mode="forward_transposed", ratio=0.5), _case(1, mode="forward_transposed", ratio=2.0)]
    bench_report.write_report(_report(several), results, "a")
    tiles = _report([_on_tiles(8)])
    tiles["machine"]["cpu"] = "Other(TM) Processor (family 7, model 2)"
    bench_report.write_report(tiles, results, "b")
    for _ in range(2):
        classes.update(readme, results)
    lines = readme.read_text().splitlines()
    assert lines[2] == (
        f"{classes.HEADER} [Some (family 6, model 1)](results/a.md) | [Other (family 7, model 2)](results/b.md) |"
    )
    assert "| fastest unit | f32 | f32 fma |  |" in lines and "| fastest unit | bf16 |  | TDPBF16PS |" in lines
    assert "| forward, 4 to 16 | f32 | 2.00 / 0.50 |  |" in lines
    assert "| forward, 4 to 16 | bf16 |  | 2.00 / 0.50 |" in lines
    assert "| transposed weights, 1 to 512 | f32 | 1.00 / 0.50 |  |" in lines
    assert lines[-2:] == ["", "behind"] and len(lines) == 4 + 2 * (1 + len(classes.ROWS)) + 2


def test_a_class_has_the_most_threads_of_a_report_and_peers_where_there_were_any(tmp_path):
    alone = _case(peers=[])
    del alone["ratio"]
    path = bench_report.write_report(_report([alone, _case(threads=1)]), tmp_path, "some")
    recorded = classes.read(path.read_text(), path.name)
    assert recorded.field(["forward, 4 to 16 rows"], "f32 → f32") == "no peer / 0.50"
    with pytest.raises(ValueError, match="is no report of"):
        classes.read("# Something else\n", "other.md")


def test_the_tables_of_the_pages_are_those_of_what_is_recorded():
    root = Path(classes.__file__).parents[1]
    recorded = [classes.read(file.read_text(), file.name) for file in classes.reports(root / "bench/results")]
    page = (root / "docs/performance.md").read_text()
    assert classes.table(recorded, "../bench/results") in page
    assert classes.quantized_table(recorded, "../bench/results") in page
    readme = (root / "README.md").read_text()
    assert classes.brief(recorded, "bench/results") in readme
    assert len(re.findall(r"^\| .* / [0-9.]+ \|$", readme, re.MULTILINE)) == len(recorded) > 1


def test_a_page_has_the_brief_table_or_the_other(tmp_path):
    results, page = tmp_path / "results", tmp_path / "page.md"
    bench_report.write_report(_report([_case(), _case(1, ratio=0.5)]), results, "a")
    page.write_text(f"# Before\n\n{classes.BRIEF_HEADER} old |\n|---|---|\n| x | y |\n\nbehind\n")
    for _ in range(2):
        classes.update(page, results)
    header, _, row, *rest = page.read_text().splitlines()[2:]
    fields = dict(zip(header.split(" | ")[1:], row.split(" | ")[1:], strict=True))
    assert fields["f32, 4 to 16"] == "2.00 / 0.50" and fields["f32, 1 to 2"] == "0.50 / 0.50"
    assert row.startswith("| [Some (family 6, model 1)](results/a.md) |") and rest == ["", "behind"]
    page.write_text("no table\n")
    with pytest.raises(ValueError, match="has these tables, not one of each at most: none"):
        classes.update(page, results)


def test_a_report_without_cases_is_refused(tmp_path):
    json_file = tmp_path / "report.json"
    json_file.write_text(json.dumps({"machine": {}}))
    done = subprocess.run([sys.executable, Path(bench_report.__file__), json_file], capture_output=True, text=True)
    assert done.returncode == 2
    assert "has no cases" in done.stderr


@pytest.mark.parametrize("text", [None, "{"])
def test_a_file_that_is_no_report_is_named(tmp_path, text, monkeypatch, capsys):
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["report.py", str(path)])
    with pytest.raises(SystemExit) as ended:
        bench_report.main()
    assert ended.value.code == 2 and f"{path}: " in capsys.readouterr().err
