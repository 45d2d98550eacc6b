"""Tests the tables that the benchmark makes of a report: means, best peers and failures."""

import json
import pathlib
import subprocess
import sys

import pytest
import report as bench_report

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(bench_report.__file__).parents[1]
LIMITS = {"threads": 2, "fma_gflops": 200.0, "overall_fma_gflops": 200.0, "read_gbps": 30.0, "store_gbps": 40.0}


def _case(rows=8, groups=4, **changes):
    """Returns a case of a report. By default raggemm has twice the speed of the best peer and half of the roofline."""
    case = {
        "case": f"2048x768/rows{rows}",
        "regime": "sweep",
        "mode": "forward",
        **dict.fromkeys(("lhs_dtype", "rhs_dtype", "out_dtype"), "f32"),
        **{"threads": 2, "rows": rows * groups, "groups": groups, "k": 2048, "n": 768},
        **{"ours_gflops": 100.0, "best_peer": "fast/outer", "best_peer_gflops": 50.0, "ratio": 2.0},
        **{"roofline_gflops": 200.0, "roofline_share": 0.5, "limits": dict(LIMITS)},
        "ours": {"name": "ours", "gflops": 100.0, "spread": 0.02, "rounds": 9},
        "peers": [
            {"name": "fast", "threading": "own", "gflops": 40.0, "spread": 0.01, "rounds": 9},
            {"name": "fast", "threading": "outer", "gflops": 50.0, "spread": 0.01, "rounds": 9},
            {"name": "wrong", "threading": "own", "error": "out[0] is 1, expected 2"},
        ],
    }
    return case | changes


def _quantized(rows, name="int4", **changes):
    peers = [{"name": "bf16", "threading": "ours", "gflops": 40.0, "spread": 0.01, "rounds": 9}]
    types = {"quantization": name, "lhs_dtype": "bf16", "rhs_dtype": "s4", "unit": "VPDPBUSD", "ratio": 2.5}
    return _case(rows, best_peer="bf16/ours", peers=peers, **types | changes)


def _report(cases, **machine):
    machine = {
        **{"cpu": "Some(R) CPU (family 6, model 1)", "isa": "avx2", "cores": 2, "compiler": "g++ 12.2.0"},
        **{"date": "2026-01-01", "selection": "default", "limits": [dict(LIMITS)]},
        "empty_call_microseconds": 1.234,
        "peers": [{"name": "fast", "description": "core new; fast 1.2; /opt/somewhere/libfast.so.1"}],
        "absent": [{"name": "slow", "description": "not there when the build was configured"}],
        **machine,
    }
    return {"machine": machine, "cases": cases}


def test_the_report_has_the_best_peer_of_every_case_and_the_failures(tmp_path):
    text = bench_report.write_report(_report([_case(), _case(64), _quantized(4)]), tmp_path, "some", True).read_text()
    assert "- fast: core new; fast 1.2; libfast.so.1\n- slow: absent, not there when the build was configured\n" in text
    (line,) = (line for line in text.splitlines() if line.startswith("| 2048x768/rows8 "))
    fields = [field.strip() for field in line.strip("|").split("|")]
    assert fields == ["2048x768/rows8", "f32 → f32", "2", "100.00", "50.00", "", "fast/outer", "2.00", "0.50", "0.02"]
    assert "- wrong/own, 2048x768/rows8 f32 → f32, forward, 2 threads: out[0] is 1, expected 2" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some-rows.png", "some.md"]


def test_a_busy_machine_is_a_warning_at_the_top():
    def text(cases, **machine):
        return bench_report.report_text(_report(cases, **machine), "", every_case=False)

    quiet = [_case(rows) for rows in (1, 8, 64)]
    assert "WARNING" not in text(quiet, probed_gflops=240.0)
    slow = text(quiet, probed_gflops=400.0)
    assert slow.splitlines()[2].startswith("**WARNING: the machine was busy")
    assert "2 threads reached 200.0 GFLOP/s of f32 fma, 25 % of what one reached" in slow
    shared = [_case(limits=LIMITS | {"overall_fma_gflops": of}) for of in (60.0, 100.0, 180.0)]
    assert "The rate of f32 fma on 2 threads has a spread of 60 % over the cases." in text(shared)
    jumpy = [_case(rows, ours={"name": "ours", "gflops": 100.0, "spread": 1.27, "rounds": 9}) for rows in (1, 8)]
    assert "our rate has a spread of 127 % or more" in text([*jumpy, _case()])


def test_the_script_records_and_updates_the_page(tmp_path):
    json_file, page = tmp_path / "report.json", tmp_path / "page.md"
    json_file.write_text(json.dumps(_report([_case(), _case(1, ratio=0.5), _quantized(1), _quantized(4, ratio=10.0)])))
    tables = (bench_report.PLAIN_HEADER, bench_report.QUANTIZED_HEADER, bench_report.BRIEF_HEADER)
    other = f"{bench_report.PLAIN_HEADER} other |\n|---|---|\n| x | y |"  # Begins like a table of results.
    page.write_text(
        "# Before\n\n| CPU | other |\n\n"
        + "\n\n".join(f"{header} old |\n|---|---|\n| x | y |" for header in tables)
        + f"\n\n{other}\n\nEnd\n"
    )
    command = [sys.executable, bench_report.__file__, json_file, "--record", tmp_path / "results", "--page", page]
    for _ in range(2):
        subprocess.run(command, capture_output=True, text=True, check=True)
    link = "[Some (family 6, model 1)](results/some-cpu-family-6-model-1.md)"
    text = page.read_text()
    assert f"{bench_report.PLAIN_HEADER} {link} |\n" in text and text.endswith(f"\n\n{other}\n\nEnd\n")
    assert "| forward, 4 to 16 | f32 | 2.00 / 0.50 |\n" in text and "| forward, 1 to 2 | f32 | 0.50 / 0.50 |\n" in text
    assert "| 1 to 16 | int4 | 5.00 / 0.50 |\n" in text and "| CPU | other |\n" in text
    assert f"| {link} | 0.50 / 0.50 | 2.00 / 0.50 |  |  |  |  |  |\n" in text


def test_the_tables_of_the_pages_match_the_recorded_results():
    for page, headers in (("docs/performance.md", 2), ("README.md", 1)):
        text = (ROOT / page).read_text()
        folder = "../bench/results" if page.startswith("docs") else "bench/results"
        tables = bench_report.page_tables(ROOT / "bench/results", folder)
        assert sum(table in text for table in tables.values()) == headers, page
