"""How comments and pages are written: counts of vague openings and of long sentences, held under a budget.

A vague opening is a sentence that begins with Who, Whoever or What, or a comment, a paragraph, a list item or a table
cell that begins with It or That: the reader cannot tell what is spoken of. A long sentence has more than LONGEST words.
The budget is what the tree had when it was last lowered. The check fails when a count grows over it."""

import dataclasses
import io
import pathlib
import re
import tokenize
import typing

from . import tree

LONGEST = 25  # words
WORST = 20    # lines that show() prints of each kind
CODE = (".h", ".cc", ".cpp", ".c", ".cu", ".py")
PAGES = (".md",)
# Lower a number when the check says that its count has fallen. Never raise one.
BUDGET = {
    "comments": {"vague openings": 1052, "long sentences": 916},
    "pages": {"vague openings": 141, "long sentences": 834},
}

# The text of a C or C++ source: strings and characters, which are skipped, and comments.
CPP = re.compile(r'R"([^()\s\\]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'|'
                 r"(//[^\n]*)|(/\*.*?\*/)", re.S)
ITEM = re.compile(r"\A\s*(?:[-*+]|\d+\.|\(\w\))\s+")
SENTENCE = re.compile(r"(?<=[.!?])[)\"'*]*\s+(?=[\"'(*`\[]*[A-Z0-9`])")
OPENING = re.compile(r"[\s\"'(*]*(Whoever|Who|What|It|That)(?![\w'’])")
ANYWHERE = {"Who", "Whoever", "What"}


@dataclasses.dataclass(frozen=True)
class Block:
    """A comment, a paragraph, a list item or a table cell."""
    line: int
    text: str


@dataclasses.dataclass(frozen=True)
class Finding:
    kind: str  # "vague openings" or "long sentences"
    file: str
    line: int
    words: int
    text: str


def _comments(lines: typing.Iterable[tuple[int, int, str, bool]]) -> typing.Iterator[Block]:
    """Blocks of comment lines (line, column, text, whether code stands before it). A line beside code, a list item and
    an empty line begin a new block; rows of tables, drawings and code are left out."""
    block: list[str] = []
    start = last = place = 0
    for line, column, text, beside_code in lines:
        indented = len(text) - len(text.lstrip()) > 5
        drawing = indented or re.search(r"\S {2,}\S", ITEM.sub("", text, count=1)) or not text.strip()
        if block and (line != last + 1 or column != place or drawing or beside_code or ITEM.match(text)):
            yield Block(start, " ".join(block))
            block = []
        last = line
        if not drawing:
            if not block:
                start, place = line, column
            block.append(ITEM.sub("", text, count=1).strip())
    if block:
        yield Block(start, " ".join(block))


def cpp_blocks(text: str) -> list[Block]:
    lines = []
    for match in CPP.finditer(text):
        number = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        if match.group(2):
            code = text[match.start() - column + 1:match.start()].strip() != ""
            lines.append((number, column, match.group(2).lstrip("/"), code))
        elif match.group(3):
            for offset, line in enumerate(match.group(3)[2:-2].split("\n")):
                lines.append((number + offset, column, re.sub(r"^\s*\*+(?= |$)", "", line.lstrip("*")), False))
    return list(_comments(lines))


def python_blocks(text: str) -> list[Block]:
    lines = []
    previous = tokenize.INDENT
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            number, column = token.start
            if token.type == tokenize.COMMENT:
                if not token.string.startswith("#!"):
                    lines.append((number, column, token.string[1:], token.line[:column].strip() != ""))
            elif (token.type == tokenize.STRING and previous in (tokenize.INDENT, tokenize.NEWLINE) and
                  token.string.endswith('"""')):
                for offset, line in enumerate(token.string.lstrip("rRbBuUfF")[3:-3].split("\n")):
                    margin = min(column, len(line) - len(line.lstrip())) if offset else 0
                    lines.append((number + offset, column, line[margin:], False))
            if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.DEDENT):
                previous = token.type
    except (tokenize.TokenError, IndentationError):
        pass  # half a program: the comments that were found count
    return list(_comments(lines))


def page_blocks(text: str) -> list[Block]:
    """Paragraphs, list items and table cells of Markdown; headings, code and tables' heads say nothing in sentences."""
    blocks, block = [], []
    start, fence = 0, None

    def end():
        if block:
            blocks.append(Block(start, " ".join(block)))
            block.clear()

    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and fence in (None, mark.group(1)[0]):
            fence = None if fence else mark.group(1)[0]
        if mark or fence or not line.strip() or line.startswith(("#", "<")):
            end()
        elif line.lstrip().startswith("|"):
            end()
            head = number < len(lines) and re.fullmatch(r"[\s|:-]+", lines[number])
            if not head and not re.fullmatch(r"[\s|:-]+", line):
                blocks += [Block(number, cell.strip()) for cell in re.split(r"(?<!\\)\|", line) if cell.strip()]
        else:
            if ITEM.match(line):
                end()
            if not block:
                start = number
            block.append(ITEM.sub("", line, count=1).strip())
    end()
    return blocks


def _plain(text: str) -> str:
    """A line of code, a link's target and an address are a word each."""
    text = re.sub(r"`[^`]*`", "Code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"https?://\S+", "address", text)


def findings_of(name: str, blocks: list[Block]) -> list[Finding]:
    found = []
    for block in blocks:
        for index, sentence in enumerate(SENTENCE.split(_plain(block.text))):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            opening = OPENING.match(sentence)
            if opening and not sentence.rstrip().endswith("?") and (not index or opening.group(1) in ANYWHERE):
                found.append(Finding("vague openings", name, block.line, len(words), sentence))
            if len(words) > LONGEST:
                found.append(Finding("long sentences", name, block.line, len(words), sentence))
    return found


def findings(root: pathlib.Path) -> dict[str, list[Finding]]:
    """All findings, by part of the budget."""
    found: dict[str, list[Finding]] = {part: [] for part in BUDGET}
    for name in tree.files(root, *CODE, *PAGES):
        try:
            text = (root / name).read_text()
        except UnicodeDecodeError:
            continue
        blocks = (page_blocks if name.suffix in PAGES else python_blocks if name.suffix == ".py" else cpp_blocks)(text)
        found["pages" if name.suffix in PAGES else "comments"] += findings_of(name.as_posix(), blocks)
    return found


def _problems(found: dict[str, list[Finding]], budget: dict[str, dict[str, int]]) -> list[str]:
    problems = []
    for part, kinds in budget.items():
        for kind, most in kinds.items():
            count = sum(finding.kind == kind for finding in found[part])
            print(f"words: {kind} in {part}: {count} of {most}")
            if count > most:
                problems.append(f"{count} {kind} in {part}, and the budget is {most}: write short sentences that name "
                                "their subject (CONTRIBUTING.md); ./dev check words shows the worst")
            elif count < most:
                print(f"words: lower the budget of {kind} in {part} to {count} in scripts/checks/words.py")
    return problems


def check(root: pathlib.Path, budget: dict[str, dict[str, int]] | None = None) -> list[str]:
    return _problems(findings(root), budget or BUDGET)


def show(root: pathlib.Path, budget: dict[str, dict[str, int]] | None = None) -> list[str]:
    """As check(); prints the longest sentences, and the files with the most findings, before."""
    found = findings(root)
    for part, all_of_part in found.items():
        long = sorted((f for f in all_of_part if f.kind == "long sentences"), key=lambda f: (-f.words, f.file, f.line))
        print(f"The longest sentences in {part}:")
        for finding in long[:WORST]:
            print(f"  {finding.words} words, {finding.file}:{finding.line}: {finding.text[:70]}…")
        counts: dict[str, dict[str, int]] = {}
        for finding in all_of_part:
            of_file = counts.setdefault(finding.file, {})
            of_file[finding.kind] = of_file.get(finding.kind, 0) + 1
        print(f"The files with most findings in {part}:")
        for name in sorted(counts, key=lambda name: (-sum(counts[name].values()), name))[:WORST]:
            print(f"  {name}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts[name].items())))
    return _problems(found, budget or BUDGET)
