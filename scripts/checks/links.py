"""Relative links in Markdown files: the file exists, and so does the heading behind a '#'. Every page in docs/ is linked."""

import pathlib
import re
import urllib.parse

from . import tree

LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^\s{0,3}\[[^\]]+\]:\s+<?(\S+?)>?(?:\s|$)")
EXTERNAL = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:")


def _prose(text: str):
    """Lines outside fenced code, with inline code blanked."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark:
            if fence is None:
                fence = mark.group(1)[0]
            elif mark.group(1)[0] == fence:
                fence = None
            continue
        if fence is None:
            yield number, line


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings."""
    found: dict[str, int] = {}
    names = set()
    for _, line in _prose(text):
        names.update(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", line))
        heading = re.match(r"\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$", line)
        if not heading:
            continue
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1))
        anchor = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        count = found.get(anchor, 0)
        found[anchor] = count + 1
        names.add(anchor if count == 0 else f"{anchor}-{count}")
    return names


def check(root: pathlib.Path) -> list[str]:
    problems = []
    cache: dict[pathlib.Path, set[str]] = {}
    linked: set[pathlib.Path] = set()
    for name in tree.files(root, ".md"):
        text = (root / name).read_text()
        for number, line in _prose(text):
            line = re.sub(r"`[^`]*`", "", line)
            targets = LINK.findall(line) + DEFINITION.findall(line)
            for target in targets:
                if EXTERNAL.match(target):
                    continue
                where = f"{name}:{number}"
                path, _, anchor = urllib.parse.unquote(target).partition("#")
                file = (root / name).parent / path if path else root / name
                if path.startswith("/"):
                    problems.append(f"{where}: '{target}' is absolute; link by a path relative to the file")
                    continue
                if not file.resolve().is_relative_to(root.resolve()):
                    problems.append(f"{where}: '{target}' leads out of the repository")
                    continue
                if not file.exists():
                    problems.append(f"{where}: '{target}' does not exist")
                    continue
                file = file.resolve()
                if file != (root / name).resolve():
                    linked.add(file)
                if anchor and file.suffix == ".md":
                    if file not in cache:
                        cache[file] = anchors(file.read_text())
                    if anchor not in cache[file]:
                        problems.append(f"{where}: '{target}': no heading gives the anchor '#{anchor}'")
    for name in tree.files(root, ".md"):
        if name.parts[0] == "docs" and name != pathlib.Path("docs/README.md") and (root / name).resolve() not in linked:
            problems.append(f"{name}: no page links to it; add it to docs/README.md")
    return problems
