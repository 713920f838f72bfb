"""The plot of a run's ratios over size, as SVG text: a panel for each comparison, a line for each number of ranks."""

import html
import math

WIDTH, HEIGHT = 380, 240  # of a panel's axes
LEFT, TOP, RIGHT, BOTTOM = 62, 48, 26, 52
COLUMNS = 2
COLORS = ["#0b6e99", "#c2571a", "#4d7d2a", "#7b4fa3"]
TICKS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]


def text(x: float, y: float, what: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(what)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, more: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


def panel(left: float, top: float, title: str, lines: list[dict], sizes: list[int], size_name) -> list[str]:
    """`lines`: each with a name, a color, whether it is dashed, and its points {bytes: ratio}."""
    ratios = [ratio for each in lines for ratio in each["points"].values()]
    low, high = math.log(min([0.5, *ratios]) / 1.1), math.log(max([2, *ratios]) * 1.1)
    first, last = math.log(sizes[0]), math.log(max(sizes[-1], 2 * sizes[0]))
    x = lambda size: left + WIDTH * (math.log(size) - first) / (last - first)
    y = lambda ratio: top + HEIGHT * (high - math.log(ratio)) / (high - low)
    out = [text(left, top - 14, title, "start", ' font-weight="bold"'),
           f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>']
    for tick in TICKS:
        if low <= math.log(tick) <= high:
            weight = 'stroke="#444" stroke-width="1.4"' if tick == 1 else 'stroke="#ddd"'
            out += [line(left, y(tick), left + WIDTH, y(tick), weight), text(left - 6, y(tick) + 4, f"{tick:g}", "end")]
    for size in sizes:
        out += [line(x(size), top, x(size), top + HEIGHT, 'stroke="#eee"'),
                text(x(size), top + HEIGHT + 14, size_name(size), "end",
                     f' transform="rotate(-35 {x(size):.1f} {top + HEIGHT + 14})"')]
    for each in lines:
        dash = ' stroke-dasharray="5 4"' if each["dashed"] else ""
        points = " ".join(f"{x(size):.1f},{y(ratio):.1f}" for size, ratio in sorted(each["points"].items()))
        out.append(f'<polyline points="{points}" fill="none" stroke="{each["color"]}" stroke-width="2"{dash}/>')
        out += [f'<circle cx="{x(size):.1f}" cy="{y(ratio):.1f}" r="2.6" fill="{each["color"]}"/>'
                for size, ratio in each["points"].items()]
    return out


def legend(lines: list[dict], left: float, top: float) -> list[str]:
    """Two rows of names: `top` is the upper one."""
    out, at = [], left
    for i, each in enumerate(lines):
        if i == (len(lines) + 1) // 2 and len(lines) > 4:
            at, top = left, top + 18
        dash = ' stroke-dasharray="5 4"' if each["dashed"] else ""
        out += [line(at, top - 4, at + 26, top - 4, f'stroke="{each["color"]}" stroke-width="2"{dash}'),
                text(at + 32, top, each["name"], "start")]
        at += 50 + 7 * len(each["name"])
    return out


def svg(panels: list[tuple[str, list[dict]]], sizes: list[int], size_name) -> str:
    """`panels`: (title, lines), as in panel(), but for the colors: a line of `ranks` has the same one everywhere."""
    ranks = sorted({each["ranks"] for _, lines in panels for each in lines})
    named = {}
    for _, lines in panels:
        for each in lines:
            each["color"] = COLORS[ranks.index(each["ranks"]) % len(COLORS)]
            named.setdefault(each["name"], each)
    rows = -(-len(panels) // COLUMNS)
    width = COLUMNS * (LEFT + WIDTH + RIGHT)
    height = rows * (TOP + HEIGHT + BOTTOM) + 52
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" '
           'fill="#222">', f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for i, (title, lines) in enumerate(panels):
        left = LEFT + i % COLUMNS * (LEFT + WIDTH + RIGHT)
        top = TOP + i // COLUMNS * (TOP + HEIGHT + BOTTOM)
        out += panel(left, top, title, lines, sizes, size_name)
    out += legend(list(named.values()), LEFT, height - 32)
    return "\n".join([*out, "</svg>", ""])
