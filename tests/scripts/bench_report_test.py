"""The page of measurements: ratios are those of the numbers, failures are told, and only the part between markers changes."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import report  # noqa: E402


def cell(program: str, median_us: float, round_: int) -> dict:
    return {"program": program, "ranks": 2, "bytes": 1024, "median_us": median_us, "wrong": 0, "round": round_}


def results() -> dict:
    times = {"warren": (20, 30, 40), "warren again": (25, 30, 36), "warren without log": (24, 20, 26),
             "openmpi": (10, 60, 20), "gloo ring": (50, 55, 70)}
    return {"machine": {"cpu": "c", "cores": 2, "kernel": "6", "commit": "abc", "load_before": 0.1, "date": "2026-01-01"},
            "rounds": 3, "samples": 7, "failures": [], "commands": {"warren, 2 ranks": "warren run"},
            "cells": [cell(program, time, i) for program, series in times.items() for i, time in enumerate(series)]}


class Report(unittest.TestCase):
    def test_ratio_is_of_medians_over_the_best_peer(self):
        self.assertIn("| Warren ÷ best peer | **1.50** |", report.tables(results()))  # 30 over 20

    def test_spread_is_the_largest_either_way(self):
        self.assertAlmostEqual(report.spread(results(), 2, 1024), 1.25)
        self.assertIn("| same program twice, largest ratio | 1.25 |", report.tables(results()))

    def test_cost_of_the_log_is_a_ratio_of_medians(self):
        self.assertIn("| with ÷ without log | 1.25 |", report.tables(results()))  # 30 over 24

    def test_minimum_and_maximum_are_shown(self):
        self.assertIn("| openmpi | 20.0 (10.0–60.0) |", report.tables(results()))

    def test_a_failed_peer_leaves_a_gap_and_a_word(self):
        data = results()
        data["cells"] = [c for c in data["cells"] if c["program"].startswith("warren")]
        data["failures"] = ["openmpi with 2 ranks ended with [1]:"]
        text = report.tables(data)
        self.assertIn("| Warren ÷ best peer | – |", text)
        self.assertIn("openmpi with 2 ranks ended", text)

    def test_only_the_part_between_the_markers_changes(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
            report.write_page(page, results())
            text = page.read_text()
            self.assertTrue(text.startswith(f"before\n{report.BEGIN}\n") and text.endswith(f"{report.END}\nafter\n"), text)
            self.assertNotIn("old", text)
            page.write_text("no markers")
            with self.assertRaises(SystemExit):
                report.write_page(page, results())


if __name__ == "__main__":
    unittest.main()
