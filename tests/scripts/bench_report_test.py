"""The page of measurements: ratios are those of the numbers, failures are told, and only the part between markers changes."""

import pathlib
import sys
import tempfile
import unittest
import xml.dom.minidom

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import choice  # noqa: E402
import report  # noqa: E402
from programs import HOST, LIMITED  # noqa: E402


def cells(place: str, size: int, times: dict[str, tuple], ranks: int = 2) -> list[dict]:
    return [{"place": place, "program": program, "ranks": ranks, "bytes": size, "median_us": time, "samples": 7, "batch": 2,
             "written": 0, "checked": size // 4, "wrong": 0, "bad": 0, "repeats": 0, "round": i}
            for program, series in times.items() for i, time in enumerate(series)]


def results(*more: dict) -> dict:
    times = {"warren": (20, 30, 40), "warren again": (25, 40, 36), "warren without log": (24, 20, 26),
             "openmpi": (10, 60, 20), "gloo ring tcp": (50, 55, 70), "floor staged": (4, 5, 6), "floor read": (7, 8, 9)}
    command = ["warren", "run", "--name=warren", "--meeting=DIR/meeting", "--sizes=1K"]
    return {"machine": {"cpu": "c", "cores": 2, "kernel": "6", "commit": "abc", "load_before": 0.1, "date": "2026-01-01"},
            "rounds": 3, "samples": 7, "failures": [], "commands": {"one host, 2 ranks: warren": command},
            "cells": [*cells(HOST, 1024, times), *more]}


class Report(unittest.TestCase):
    def test_ratio_is_of_medians_over_the_best_peer(self):
        self.assertIn("| Warren ÷ best peer | **1.50** (≤ 1) |", report.tables(results()))  # 30 over 20

    def test_floor_is_the_least_and_no_peer(self):
        self.assertIn("| Warren ÷ floor | **6.00** |", report.tables(results()))  # 30 over 5

    def test_spread_is_of_the_medians_and_of_the_worst_round_either_way(self):
        self.assertIn("| warren twice: medians, worst round | 1.20, 1.33 |", report.tables(results()))  # 36 over 30; 40 over 30

    def test_misses_are_told_and_what_lies_within_the_spread_is_none(self):
        missed = cells(HOST, 64 << 10, {"warren": (60, 60, 60), "warren again": (60, 120, 60), "openmpi": (100, 100, 100)})
        within = cells(HOST, 1024, {"warren": (20, 20), "warren again": (20, 30), "openmpi": (18, 18)})
        text = report.tables(results() | {"cells": missed + within})
        self.assertIn("0 of 2 cells meet them, 1 lie within the spread, 1 miss them", text)
        self.assertIn("| one host: Warren ÷ best peer | 2 | 64 KiB | 0.60 | ≤ 0.55 | 1.00, 2.00 | **missed** |", text)
        self.assertIn("| one host: Warren ÷ best peer | 2 | 1 KiB | 1.11 | ≤ 1 | 1.25, 1.50 | within the spread |", text)

    def test_a_later_run_takes_the_place_of_its_tables_alone(self):
        later = results() | {"cells": cells(HOST, 1024, {"warren": (5,), "warren again": (5,), "openmpi": (10,)}),
                             "commands": {"one host, 2 ranks: openmpi": ["mpirun"]}}
        later["machine"] |= {"commit": "def", "load_before": 3.0}
        first = results(*cells(HOST, 1024, {"warren": (7,), "openmpi": (8,)}, 4)) | {
            "failures": ["one host, 2 ranks: openmpi was late", "one host, 4 ranks: openmpi was lost"]}
        text = report.tables(report.with_later(first, later))
        self.assertIn("| Warren ÷ best peer | **0.50** (≤ 1) |", text)
        self.assertIn("| warren | 7.0 (7.0–7.0) |", text)
        self.assertNotIn("gloo", text)
        self.assertNotIn("meeting", text)  # of the command that was replaced
        self.assertIn("Runs that failed and are left out: one host, 4 ranks: openmpi was lost.", text)
        self.assertIn("2026-01-01, commit abc", text)
        self.assertIn("Of 2026-01-01, commit def, c, load before the run 3.0: one host, 2 ranks.", text)
        self.assertIn("**The machine was not idle", text)

    def test_more_ranks_than_cores_are_told_apart(self):
        times = {"warren": (50,), "warren again": (50,), "openmpi": (100,)}
        text = report.tables(results() | {"cells": cells(HOST, 1024, times, 2) + cells(HOST, 1024, times, 4)})
        self.assertIn("no more ranks than cores (2): 1 of 1 cells", text)
        self.assertIn("Targets, more ranks than cores: 1 of 1 cells", text)

    def test_a_limited_network_is_measured_by_a_raw_stream(self):
        times = {"warren": (105,), "warren again": (105,), "gloo ring": (110,), "floor stream": (100,)}
        text = report.tables(results(*cells(LIMITED, 1 << 20, times, 4)))
        self.assertIn("| Warren ÷ raw stream of a ring's bytes | **1.05** (≤ 1.05) |", text)
        self.assertIn("| Warren ÷ best peer | **0.95** |", text)

    def test_what_all_commands_share_is_said_once(self):
        text = report.tables(results())
        self.assertIn("\nwarren run ARGUMENTS\n", text)
        self.assertIn("`--name=… --meeting=DIR/meeting --sizes=1K`", text)

    def test_the_plot_has_a_line_for_each_number_of_ranks(self):
        more = [*cells(HOST, 1 << 20, {"warren": (50,), "openmpi": (100,)}),
                *cells(HOST, 1 << 20, {"warren": (80,), "openmpi": (100,)}, 4)]
        drawn = xml.dom.minidom.parseString(report.plot(results(*more)))
        lines = [line.getAttribute("points").split() for line in drawn.getElementsByTagName("polyline")]
        self.assertEqual(sorted(map(len, lines)), [1, 1, 2])  # over the peer: 4 ranks, 2 ranks; over the floor: 2 ranks

    def test_cost_of_the_log_is_a_ratio_of_medians(self):
        self.assertIn("| with ÷ without log | **1.25** |", report.tables(results()))  # 30 over 24

    def test_cost_of_the_log_is_judged_from_16_mib_on(self):
        for size, program, others, expected in ((8 << 20, "warren", "warren without log", "| with ÷ without log | **1.30** |"),
                                                (16 << 20, "warren", "warren without log", "| with ÷ without log | **1.30** (≤ 1.15) |"),
                                                (256 << 20, "warren tcp", "warren tcp without log",
                                                 "| over TCP: with ÷ without log | **1.30** (≤ 1.15) |"),
                                                (16 << 20, "warren allocated", "warren allocated without log",
                                                 "| allocated buffers: with ÷ without log | **1.30** (≤ 1.4) |")):
            times = {program: (130,), f"{program} again": (130,), others: (100,)}
            self.assertIn(expected, report.tables(results() | {"cells": cells(HOST, size, times)}))

    def test_what_survives_failures_is_compared_by_itself(self):
        times = {"warren tcp": (50,), "warren tcp again": (50,), "rabit tcp": (40,), "rabit fault-tolerant tcp": (100,)}
        text = report.tables(results() | {"cells": cells(HOST, 16 << 20, times)})
        self.assertIn("| over TCP: Warren ÷ best peer | **1.25** (≤ 1) |", text)
        self.assertIn("| over TCP: Warren ÷ best peer that survives failures | **0.50** (≤ 0.6) |", text)
        self.assertNotIn("No rabit", text)
        self.assertIn("No rabit (no network)", report.tables(results() | {"without_rabit": "no network"}))

    def test_what_was_checked_and_written_is_said(self):
        data = results() | {"cells": cells(HOST, 1 << 20, {"warren": (1, 1)})}
        for cell in data["cells"]:
            cell["written"] = 4 << 20
        data["cells"][0]["wrong"] = 3
        text = report.tables(data)
        self.assertIn("524,288 elements in all, 3 of them wrong", text)
        self.assertIn("| warren: written to disk ÷ size of the results | 0.25 |", text)  # 8 samples of 2 calls

    def test_a_machine_that_was_not_idle_is_told(self):
        self.assertNotIn("not idle", report.tables(results()))
        data = results()
        data["machine"]["load_before"] = 0.6
        self.assertIn("**The machine was not idle: the load before the run was 0.6", report.tables(data))

    def test_kernels_under_the_bandwidth_are_told(self):
        kernel = {"type": "f32", "op": "sum", "operands": "8 tree", "ns": 1, "streaming_gb_s": 12}
        data = results() | {"kernels": [kernel | {"bytes": 4, "gb_s": 1, "access_gb_s": 0, "ratio": 0},
                                        kernel | {"bytes": 8192, "gb_s": 95, "access_gb_s": 100, "ratio": 0.95},
                                        kernel | {"bytes": 64 << 20, "gb_s": 8, "access_gb_s": 10, "ratio": 0.8}]}
        text = report.tables(data)
        self.assertIn("| f32 sum 8 tree | 95.0 (0.95) | 8.0 (**0.80**) | 12.0 |", text)
        self.assertIn("1 of 2 are at 0.9 or above", text)

    def test_minimum_and_maximum_are_shown(self):
        self.assertIn("| openmpi | 20.0 (10.0–60.0) |", report.tables(results()))

    def test_a_failed_peer_leaves_a_gap_and_a_word(self):
        data = results()
        data["cells"] = [cell for cell in data["cells"] if cell["program"].startswith("warren")]
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
            self.assertNotIn("\nold\n", text)
            self.assertIn("](page.svg)", text)
            self.assertTrue((pathlib.Path(folder) / "page.svg").read_text().startswith("<svg "))
            page.write_text("no markers")
            with self.assertRaises(SystemExit):
                report.write_page(page, results())


class Choice(unittest.TestCase):
    def cell(self, by_best: float, spread: float, best_spread: float) -> dict:
        run = {"ranks": 2, "transport": "tcp", "bytes": 4, "chosen": "ring", "best": "ring", "auto_by_best": by_best, "spread": spread,
               "best_spread": best_spread, "algorithms": {"ring": {"median_us": 1.0}}}
        return {"default": run, "fitted": run}

    def test_what_auto_is_from_itself_excuses_nothing(self):
        self.assertTrue(choice.fails(self.cell(1.5, 1.5, 1.1)["default"]))
        self.assertFalse(choice.fails(self.cell(1.5, 1.1, 1.6)["default"]))
        self.assertFalse(choice.fails(self.cell(1.14, 1.0, 1.0)["default"]))

    def test_more_jobs_tell_a_wrong_choice_from_a_bad_moment(self):
        cell = self.cell(1.5, 1.5, 1.1)["default"]
        cell["again"] = [self.cell(ratio, 1.0, 1.05)["default"] for ratio in (1.02, 1.17)]
        self.assertTrue(choice.fails(cell))
        self.assertEqual(choice.ratio_text(cell), "**1.50, again 1.02 and 1.17**")
        cell["again"][1]["auto_by_best"] = 1.14
        self.assertFalse(choice.fails(cell))
        self.assertEqual(choice.ratio_text(cell), "1.50, again 1.02 and 1.14")

    def test_a_row_has_a_column_for_each_title(self):
        lines = choice.page_text([self.cell(1.5, 1.5, 1.1)], results()["machine"]).splitlines()
        rows = [line for line in lines if line.startswith("|")]
        self.assertEqual(len(rows), 3)
        self.assertEqual(len({row.count("|") for row in rows}), 1)
        self.assertIn("| ring | **1.50** | 1.10 | 1.50 |", rows[2])


if __name__ == "__main__":
    unittest.main()
