"""Every check of scripts/checks passes on a good tree and fails on a bad one."""

import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from checks import format_check, includes, leftovers, links, sources, standalone, tidy, words  # noqa: E402


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()

    def write(self, name: str, text: str):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def assert_problem(self, problems: list[str], *words: str):
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])


class Includes(TreeTest):
    def test_allowed_directions_pass(self):
        self.write("recovery/base/a.cc", '#include <vector>\n#include "recovery/base/ids.h"\n')
        self.write("storage/a.cc", '#include <fstream>\n#include <rocksdb/db.h>\n#include "recovery/base/ids.h"\n')
        self.write("worker/a.cc", '#include "storage/secret.h"\n#include "warren/c_api.h"\n')
        self.write("cli/a.cc", '#include "tracker/server.h"\n#include "worker/kernels/form.h"\n')
        self.write("include/warren/warren.h", '#include <vector>\n#include <warren/c_api.h>\n')
        self.write("include/warren/c_api.h", '#include <stdint.h>\n')
        self.assertEqual(includes.check(self.root), [])

    def test_tracker_and_worker_never_include_each_other(self):
        self.write("tracker/a.cc", '#include "worker/kernels/form.h"\n')
        self.assert_problem(includes.check(self.root), "tracker/a.cc:1", "worker/kernels/form.h")
        self.write("tracker/a.cc", "")
        self.write("worker/a.h", '\n#include "tracker/server.h"\n')
        self.assert_problem(includes.check(self.root), "worker/a.h:2", "tracker/server.h")

    def test_recovery_includes_none_of_ours(self):
        self.write("recovery/base/a.cc", '#include "storage/secret.h"\n')
        self.assert_problem(includes.check(self.root), "recovery/base/a.cc:1")

    def test_examples_see_public_headers_only(self):
        self.write("examples/a.cc", '#include <warren/warren.h>\n#include "recovery/base/ids.h"\n')
        self.assert_problem(includes.check(self.root), "examples/a.cc:2")

    def test_recovery_is_pure(self):
        for header in ("thread", "chrono", "random", "iostream", "mutex", "sys/socket.h", "unordered_map"):
            self.write("recovery/base/a.cc", f"#include <{header}>\n")
            self.assert_problem(includes.check(self.root), "recovery/base/a.cc:1", header)
        for call in ("int r = std::rand();", "const char* e = std::getenv(name);", 'printf("x");', "std::mutex m; f(std::mutex{});"):
            self.write("recovery/base/a.cc", call + "\n")
            self.assert_problem(includes.check(self.root), "recovery/base/a.cc:1")
        self.write("recovery/base/a.cc", "int x; // as std::rand() would\nresult.time(3);\n")
        self.assertEqual(includes.check(self.root), [])

    def test_public_headers_show_no_dependency(self):
        for include in ("<zmq.h>", '"recovery/base/ids.h"', "<rocksdb/db.h>", "<sys/socket.h>"):
            self.write("include/warren/warren.h", f"#include {include}\n")
            self.assert_problem(includes.check(self.root), "warren.h:1", "public header")

        self.write("include/warren/warren.h", "")
        for include in ("<warren/c_api.h>", '"worker/kernels/form.h"', "<dmlc/io.h>"):
            self.write("rabit/include/rabit/rabit.h", f'#include "rabit/c_api.h"\n#include {include}\n')
            self.assert_problem(includes.check(self.root), "rabit.h:2", "public header")
        self.write("rabit/include/rabit/rabit.h", "")
        self.write("rabit/include/rabit/serializable.h", "#include <dmlc/io.h>\n")
        self.assertEqual(includes.check(self.root), [])

    def test_the_python_package_lies_over_the_c_interface_alone(self):
        for include in ('"warren/warren.h"', '"recovery/base/ids.h"'):
            self.write("python/src/a.cc", f'#include "warren/c_api.h"\n#include {include}\n')
            self.assert_problem(includes.check(self.root), "python/src/a.cc:2")
        self.write("python/src/a.cc", '#include "python/src/a.h"\n#include "warren/c_api.h"\n')
        self.assertEqual(includes.check(self.root), [])

    def test_a_room_includes_the_rooms_below_it(self):
        self.write("worker/session/a.cc", '#include "worker/rounds/engine.h"\n')
        self.write("recovery/tracker/a.cc", '#include "recovery/decide/verdict.h"\n#include "recovery/wire/messages.pb.h"\n')
        self.assertEqual(includes.check(self.root), [])
        self.write("worker/rounds/a.cc", '#include "worker/session/session.h"\n')
        self.assert_problem(includes.check(self.root), "worker/rounds/a.cc:1", "worker/session/")
        self.write("worker/rounds/a.cc", "")
        self.write("recovery/tracker/a.cc", '#include "recovery/worker/worker_machine.h"\n')
        self.assert_problem(includes.check(self.root), "recovery/tracker/a.cc:1", "recovery/worker/")

    def test_a_source_is_in_a_room(self):
        self.write("worker/a.cc", '#include "worker/rounds/engine.h"\n')
        self.assert_problem(includes.check(self.root), "worker/a.cc:1", "in no room")

    def test_a_new_folder_needs_a_line_in_the_table(self):
        self.write("misc/a.cc", "")
        self.assert_problem(includes.check(self.root), "misc/")


class Links(TreeTest):
    def test_good_links_pass(self):
        self.write("README.md", "# Top\n[a](docs/a.md) [b](docs/a.md#two-words--more) [c](#top) [d](https://x.org/y)\n"
                                "`[no](link)`\n```\n[no](link)\n```\n")
        self.write("docs/a.md", "## Two words — more\n[up](../README.md)\n")
        self.assertEqual(links.check(self.root), [])

    def test_missing_file(self):
        self.write("README.md", "text\n[a](docs/gone.md)\n")
        self.assert_problem(links.check(self.root), "README.md:2", "docs/gone.md")

    def test_missing_anchor(self):
        self.write("README.md", "# Top\n[a](#bottom)\n")
        self.assert_problem(links.check(self.root), "README.md:2", "#bottom")

    def test_reference_definitions_count(self):
        self.write("README.md", "[a]: docs/gone.md\n")
        self.assert_problem(links.check(self.root), "docs/gone.md")

    def test_a_page_that_nothing_links_to(self):
        self.write("docs/README.md", "[a](a.md)\n")
        self.write("docs/a.md", "text\n")
        self.assertEqual(links.check(self.root), [])
        self.write("docs/b.md", "[myself](b.md)\n")
        self.assert_problem(links.check(self.root), "docs/b.md", "no page links")

    def test_leading_out_of_the_tree(self):
        self.write("README.md", "[a](../other.md)\n")
        self.assert_problem(links.check(self.root), "leads out")


class Leftovers(TreeTest):
    def test_clean_tree_passes(self):
        self.write("worker/a.cc", "// what remains to be done is done\nint todo_list;\n")
        self.assertEqual(leftovers.check(self.root), [])

    def test_notes_and_skips_and_markers(self):
        for name, line in (("worker/a.cc", "// TO" + "DO: later"), ("dev", "# FIX" + "ME"),
                           ("tests/a.cc", "GTEST_" + "SKIP();"), ("tests/b.cc", "TEST(A, DISABLED" + "_B) {}"),
                           ("docs/a.md", "<<<<<<< HEAD")):
            self.write(name, line + "\n")
            self.assert_problem(leftovers.check(self.root), f"{name}:1")
            (self.root / name).unlink()


class Words(TreeTest):
    LONG = "One " + "more " * (words.LONGEST - 1) + "word."  # a word too many

    def found(self, name: str, text: str) -> list[tuple[str, int]]:
        """(kind, line) of each finding in a file of this text."""
        self.write(name, text)
        found = [(finding.kind, finding.line) for part in words.findings(self.root).values() for finding in part]
        (self.root / name).unlink()
        return found

    def check(self, check=words.check, **comments: int) -> tuple[list[str], str]:
        """Problems and output with this budget for comments, and none for pages."""
        none = {"vague openings": 0, "long sentences": 0}
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            problems = check(self.root, {"comments": none | {kind.replace("_", " "): n for kind, n in comments.items()},
                                         "pages": none})
        return problems, output.getvalue()

    def test_good_words_pass(self):
        self.assertEqual(self.found("a.cc", "// The worker waits. It retries.\n// That ends.\nint what;  // whose\n"
                                            'auto s = "// What";\n'), [])
        self.assertEqual(self.found("a.py", '"""The tracker."""\ns = """What"""\nx = 1  # ranks\n'), [])
        self.assertEqual(self.found("a.md", "# What it is\n| What | Who |\n| --- | --- |\n| a | b |\n\n"
                                            "```\nWhat code\n```\nWho waits? The worker.\n"), [])

    def test_vague_openings(self):
        for word in ("Who", "Whoever", "What", "It", "That"):
            self.assertEqual(self.found("a.cc", f"int a;\n// {word} waits.\n"), [("vague openings", 2)])
            self.assertEqual(self.found("a.h", f"/* Ok. */\nint a;  /* {word} waits. */\n"), [("vague openings", 2)])
            self.assertEqual(self.found("a.py", f'def f():\n    """{word} waits."""\n'), [("vague openings", 2)])
            self.assertEqual(self.found("a.md", f"A rank.\n\n- {word} waits.\n"), [("vague openings", 3)])
            self.assertEqual(self.found("a.md", f"| a |\n| --- |\n| {word} waits. |\n"), [("vague openings", 3)])
        self.assertEqual(self.found("a.cc", "// A rank waits. Who\n// comes waits too.\n"), [("vague openings", 1)])

    def test_each_comment_beside_code_is_one(self):
        self.assertEqual(self.found("a.cc", "int a;  // a rank\nint b;  // What a rank has\n        // or had.\n"),
                         [("vague openings", 2)])

    def test_long_sentences(self):
        first, rest = self.LONG[:60].rsplit(" ", 1)[0], self.LONG[len(self.LONG[:60].rsplit(" ", 1)[0]) + 1:]
        for name, text in (("a.cc", f"// {first}\n// {rest}\n"), ("a.py", f"# {first}\n# {rest}\n"),
                           ("a.md", f"{first}\n{rest}\n")):
            self.assertEqual(self.found(name, text), [("long sentences", 1)])
            self.assertEqual(self.found(name, text.replace("One more", "One. More")), [])
            self.assertEqual(self.found(name, text.replace("One more", "One")), [])

    def test_a_line_of_code_is_one_word(self):
        self.assertEqual(self.found("a.md", f"Run `{self.LONG}` now.\n"), [])

    def test_a_count_over_its_budget_is_a_problem(self):
        self.write("a.cc", "// What waits.\n\n// Who waits.\n")
        self.assert_problem(self.check()[0], "2 vague openings in comments", "budget is 0")
        self.assert_problem(self.check(vague_openings=1)[0], "budget is 1")
        self.assertEqual(self.check(vague_openings=2)[0], [])
        problems, output = self.check(vague_openings=3)
        self.assertEqual(problems, [])
        self.assertIn("lower the budget of vague openings in comments to 2", output)

    def test_the_worst_are_shown_on_request(self):
        self.write("a.md", f"{self.LONG}\n\nWhat waits.\n")
        self.assertNotIn("a.md", self.check()[1])
        problems, output = self.check(words.show)
        self.assertEqual(len(problems), 2, problems)
        self.assertIn(f"{words.LONGEST + 1} words, a.md:1", output)
        self.assertIn("a.md: 1 long sentences, 1 vague openings", output)


class Format(TreeTest):
    def test_formatted_passes_and_unformatted_fails(self):
        self.write(".clang-format", "BasedOnStyle: Google\n")
        self.write("worker/a.cc", "int f() { return 1; }\n")
        self.assertEqual(format_check.check(self.root), [])
        self.write("worker/b.cc", "int  g( ){return 1;}\n")
        self.assert_problem(format_check.check(self.root), "worker/b.cc:1")


class Sources(TreeTest):
    """Two sources with a command each, in a repository of the test's own."""

    def setUp(self):
        super().setUp()
        self.git("init", "-q")
        self.write(".gitignore", "build/\n")
        self.write(".clang-tidy", "Checks: '-*,readability-container-size-empty'\nWarningsAsErrors: '*'\n")

    def git(self, *arguments: str):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false",
                        "-c", "core.hooksPath=/dev/null", *arguments], cwd=self.root, check=True, capture_output=True)

    def commit(self, **texts: str):
        for name, text in texts.items():
            self.write(f"worker/{name}.cc", text)
        self.git("add", ".")
        self.git("commit", "-q", "-m", "one")

    def configure(self, *names: str):
        entries = ", ".join(f'{{"directory": "{self.root}/build/alone", "file": "{self.root}/worker/{name}.cc", '
                            f'"command": "/usr/bin/ccache clang++-14 -std=c++20 -o {name}.o -c {self.root}/worker/{name}.cc"}}'
                            for name in names)
        self.write("build/alone/compile_commands.json", f"[{entries}]")


class Tidy(Sources):
    def test_only_changed_files_are_looked_at_and_findings_are_problems(self):
        bad = "#include <string>\nbool f(const std::string& s) { return s.size() == 0; }\n"
        self.commit(old=bad, new="int one() { return 1; }\n")
        self.assert_problem(tidy.check(self.root), "compile_commands.json")
        self.configure("old", "new")
        self.assertEqual(tidy.check(self.root), [])
        self.commit(new="int two() { return 2; }\n")
        self.assertEqual(sources.changed(self.root, sources.PRODUCT), ["worker/new.cc"])
        self.assertEqual(tidy.check(self.root), [])
        self.write("worker/new.cc", bad)
        self.assert_problem(tidy.check(self.root), "worker/new.cc:2", "container-size-empty")


class Standalone(Sources):
    FORGETS = "bool f(const std::string& s) { return s.empty(); }\n"

    def test_a_changed_source_that_forgets_an_include_is_a_problem(self):
        self.commit(old="int one() { return 1; }\n")
        self.assert_problem(standalone.check(self.root), "compile_commands.json")
        self.commit(new=self.FORGETS)
        self.configure("old", "new")
        self.assert_problem(standalone.check(self.root), "worker/new.cc", "std")
        self.write("worker/new.cc", "#include <string>\n" + self.FORGETS)
        self.assertEqual(standalone.check(self.root), [])

    def test_commands_of_another_folder_are_a_problem(self):
        self.commit(new="int one() { return 1; }\n")
        self.write("build/alone/compile_commands.json", '[{"file": "/elsewhere/worker/new.cc", "command": "c++ new.cc"}]')
        self.assert_problem(standalone.check_all(self.root), "compile_commands.json")

    def test_every_source_is_looked_at_when_all_are(self):
        self.commit(old=self.FORGETS)
        self.commit(new="int one() { return 1; }\n")
        self.configure("old", "new")
        self.assertEqual(standalone.check(self.root), [])
        self.assert_problem(standalone.check_all(self.root), "worker/old.cc")
        # The release build has it in no batch.
        self.write("build/release/compile_commands.json", f'[{{"file": "{self.root}/worker/old.cc"}}]')
        self.assertEqual(standalone.check_all(self.root), [])


class Program(unittest.TestCase):
    def run_check(self, *arguments: str):
        return subprocess.run([sys.executable, str(ROOT / "scripts/check.py"), *arguments], capture_output=True, text=True)

    def test_a_problem_is_exit_status_1(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "README.md").write_text("[a](gone.md)\n")
            result = self.run_check("--root", folder, "links")
            self.assertEqual(result.returncode, 1)
            self.assertIn("gone.md", result.stderr)
            (path / "README.md").write_text("text\n")
            self.assertEqual(self.run_check("--root", folder, "links").returncode, 0)

    def test_an_unknown_check_is_exit_status_2(self):
        self.assertEqual(self.run_check("nonsense").returncode, 2)


if __name__ == "__main__":
    unittest.main()
