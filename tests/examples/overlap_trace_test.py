"""overlap_trace_test.py WARREN OVERLAP: what the example's timeline says, by the order of its events alone, whatever they took: no
allreduce overlaps the backward pass where one operation follows the other, and some do where a dependency engine runs them."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

WARREN, OVERLAP = sys.argv[1:3]
RANKS = 2
GRADIENT = "allreduce sum 20000 x f32"  # those that are put together are a call of their own besides
WAYS = ["one after the other", "by dependencies", "put together"]


def trace() -> dict[int, list[dict]]:
    """The events of each rank, as they happened."""
    with tempfile.TemporaryDirectory(prefix="warren-overlap-") as folder:
        path = pathlib.Path(folder) / "trace.json"
        subprocess.run([WARREN, "run", "-n", str(RANKS), f"--timeline={path}", "--", OVERLAP, "--steps=4"], check=True,
                       stdout=subprocess.DEVNULL, timeout=50)
        events = json.loads(path.read_text())
    ranks: dict[int, list[dict]] = {}
    for event in events:
        ranks.setdefault(event["pid"] >> 16, []).append(event)
    return ranks


def ways_of(events: list[dict]) -> list[list[dict]]:
    """What lies between the two barriers around each way."""
    barriers = [i for i, event in enumerate(events) if event["ph"] in "be" and event["name"] == "barrier"]
    # Of each barrier its beginning and its end.
    assert len(barriers) == 4 * len(WAYS), len(barriers)
    return [events[barriers[4 * way + 1]:barriers[4 * way + 2]] for way in range(len(WAYS))]


def during_backward(events: list[dict]) -> tuple[int, int, int]:
    """(backward spans, allreduces, those of them that ended within such a span, which had begun after they were called)."""
    spans, calls, within = 0, 0, 0
    open_spans: list[str] = []
    waiting: set[str] = set()  # that were called before the span that is open
    called: set[str] = set()
    span_row = None
    for event in events:
        if event["ph"] == "B" and event["name"].startswith("backward"):
            spans += 1
            span_row = (event["pid"], event["tid"])
            open_spans.append(event["name"])
            waiting = set(called)
        elif event["ph"] == "E" and open_spans and (event["pid"], event["tid"]) == span_row:
            open_spans.pop()
        elif event["ph"] == "b" and event["name"] == GRADIENT:
            calls += 1
            called.add(event["id"])
        elif event["ph"] == "e" and event["id"] in called:
            called.remove(event["id"])
            within += bool(open_spans) and event["id"] in waiting
    return spans, calls, within


class OverlapTrace(unittest.TestCase):
    def test_allreduces_end_during_the_backward_pass_where_an_engine_runs_them(self):
        ranks = trace()
        self.assertEqual(sorted(ranks), list(range(RANKS)))
        for rank, events in ranks.items():
            for way, of_way in zip(WAYS, ways_of(events)):
                with self.subTest(rank=rank, way=way):
                    spans, calls, within = during_backward(of_way)
                    self.assertEqual(spans, 64)  # 4 steps of 16 layers
                    self.assertEqual(calls, 64)
                    if way == WAYS[0]:
                        self.assertEqual(within, 0)
                    else:
                        self.assertGreater(within, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
