"""templates_test.py SOURCE WARREN: what the examples for schedulers say is at least well-formed: YAML, shell, the flags of
`warren`, and numbers that depend on each other. Whether they work only a cluster can tell; those that no test runs say so."""

import pathlib
import re
import subprocess
import sys
import unittest

import processes

try:
    import yaml
except ImportError:
    print("SKIPPED: Python has no yaml (./dev setup installs it for Debian's python3)", file=sys.stderr)
    sys.exit(processes.SKIPPED)

SOURCE, WARREN = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
EXAMPLES = SOURCE / "examples"
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
SKYPILOT = EXAMPLES / "skypilot/digits.yaml"


def load(path: pathlib.Path) -> list[dict]:
    return list(yaml.safe_load_all(path.read_text()))


def find(tree, key: str) -> list:
    """The values of `key` at any depth."""
    found = []
    if isinstance(tree, dict):
        for name, value in tree.items():
            found += ([value] if name == key else []) + find(value, key)
    elif isinstance(tree, list):
        for value in tree:
            found += find(value, key)
    return found


def flags_of(command: str) -> set[str]:
    """All that `warren help COMMAND` knows."""
    shown = subprocess.run([WARREN, "help", command], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^\s*--?(\w+)", shown, re.M))


def commands_in(text: str) -> list[tuple[str, list[str]]]:
    """(command, names of its flags) of each `warren` that is run in a script or a list of words."""
    found = []
    for match in re.finditer(r"\bwarren (run|tracker|keygen)\b(.*?)(?: -- |\n(?!\s*-)|$)", text.replace("\\\n", " "), re.S):
        found.append((match.group(1), re.findall(r"(?:^|\s)--?([a-z]\w*)", match.group(2))))
    return found


class Templates(unittest.TestCase):
    def test_each_manifest_parses_and_names_its_kind(self):
        kinds = [document["kind"] for path in MANIFESTS for document in load(path)]
        self.assertEqual(sorted(kinds), ["Deployment", "Job", "JobSet", "NetworkPolicy", "NetworkPolicy",
                                         "PersistentVolumeClaim", "Service"])

    def test_what_was_not_run_says_so(self):
        for path in [*MANIFESTS, SKYPILOT]:
            self.assertIn("NOT RUN", path.read_text(), path)

    def test_containers_run_commands_that_there_are(self):
        count = 0
        for path in MANIFESTS:
            for command in find(load(path), "command"):
                (found,) = commands_in(" ".join(command) + " -- ")
                self.assertLessEqual(set(found[1]), flags_of(found[0]), path)
                count += 1
        self.assertEqual(count, 4)

    def test_scripts_are_shell_and_name_flags_that_there_are(self):
        task = load(SKYPILOT)[0]
        scripts = [path.read_text() for path in sorted((EXAMPLES / "slurm").glob("*.sbatch"))]
        self.assertEqual(len(scripts), 2)
        for script in [*scripts, task["setup"], task["run"]]:
            checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
            self.assertEqual(checked.returncode, 0, checked.stderr)
        for script in [*scripts, task["run"]]:
            code = "\n".join(line for line in script.splitlines() if not line.startswith("#"))
            found = commands_in(code)
            self.assertEqual(len(found), 1, script)
            self.assertLessEqual(set(found[0][1]), flags_of(found[0][0]), script)

    def test_numbers_agree(self):
        for path in MANIFESTS:
            for template in (value for value in find(load(path), "spec") if value.get("completions", 1) > 1):
                workers = template["completions"]
                self.assertEqual(template["parallelism"], workers)
                self.assertIn(str(workers), [variable.get("value") for env in find(template, "env") for variable in env
                                             if variable["name"] == "WORLD_SIZE"])
                (grace_s,) = find(template, "terminationGracePeriodSeconds")
                (command,) = find(template, "command")
                drain_ms = int(re.search(r"--drain_ms=(\d+)", " ".join(command)).group(1))
                self.assertGreater(grace_s * 1000, drain_ms + 1000, path)

    def test_the_ports_that_workers_listen_on_are_let_through(self):
        checked = 0
        for path in MANIFESTS:
            for policy in (document for document in load(path) if document["kind"] == "NetworkPolicy"):
                (allowed,) = find(policy, "ports")
                ports = list(range(allowed[0]["port"], allowed[0]["endPort"] + 1))
                commands = [" ".join(command) for command in find(load(path), "command")]
                ranges = [match for match in (re.search(r"--port_range=(\d+):(\d+)", text) for text in commands) if match]
                self.assertEqual([[int(bound) for bound in match.groups()] for match in ranges],
                                 [[ports[0], ports[-1]]], path)
                listed = [[port["containerPort"] for port in ports_of] for ports_of in find(load(path), "ports")
                          if "containerPort" in ports_of[0]]
                self.assertIn(ports, listed, path)
                checked += 1
        self.assertEqual(checked, 2)

    def test_volumes_are_those_that_containers_mount(self):
        for path in MANIFESTS:
            for pod in (value for value in find(load(path), "spec") if "containers" in value):
                self.assertEqual({mount["name"] for mount in sum(find(pod, "volumeMounts"), [])},
                                 {volume["name"] for volume in pod["volumes"]}, path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
