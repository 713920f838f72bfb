"""slurm_test.py SOURCE WARREN MARCHER: examples/slurm under a Slurm of the test's own, with one slurmd for each of some
nodes on this machine. Elements of the array job are preempted by a higher partition, end with 75 and are queued again, are
requeued without time to drain; each comes back, one on another node and address, the others never start again, and the
result is that of a run in which nothing happened, byte for byte."""

import os
import pathlib
import pwd
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import processes
from processes import output_of, wait_until

SOURCE, WARREN, MARCHER = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
os.environ["PATH"] += ":/usr/sbin"  # where daemons are; in few users' paths
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue", "srun")
ELEMENTS = 3
WORKERS = 2  # of each
# One that is never preempted, and one more than there are elements.
SERVICE, NODES = "n0", ["n1", "n2", "n3", "n4"]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# The least that Slurm takes; it waits for so long before it starts again what was requeued.
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
RequeueExit=75
{nodes}
PartitionName=service Nodes={service} PreemptMode=OFF
PartitionName=low Nodes={workers} PriorityTier=1 GraceTime=20 Default=YES
PartitionName=high Nodes={workers} PriorityTier=10 PreemptMode=OFF
"""


def address_of(node: str) -> str:
    return f"127.0.0.1{node.removeprefix('n')}"


class Slurm:
    """munged, slurmctld and the nodes' slurmd, with everything that they write below `folder`."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.env = processes.environment(SLURM_CONF=str(folder / "slurm.conf"))
        names = [SERVICE, *NODES]
        ctld_port, *ports = processes.free_ports(1 + len(names))
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1"
                          for name, port in zip(names, ports))
        (folder / "slurm.conf").write_text(CONFIGURATION.format(
            host=host, ctld_port=ctld_port, user=pwd.getpwuid(os.getuid()).pw_name, folder=folder, nodes=nodes,
            service=SERVICE, workers=",".join(NODES)))
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        (folder / "state").mkdir()
        self.start("munged", "--foreground", "--force", *(f"--{option}={folder / name}" for option, name in (
            ("socket", "munge.socket"), ("key-file", "munge.key"), ("log-file", "munged.log"), ("pid-file", "munged.pid"),
            ("seed-file", "munged.seed"))))
        wait_until("munged listens", (folder / "munge.socket").exists)
        self.start("slurmctld", "-D", "-c")
        wait_until("slurmctld listens", lambda: processes.is_listening(ctld_port))
        for name in names:
            (folder / f"spool-{name}").mkdir()
            self.start("slurmd", "-D", "-N", name)
        wait_until("all nodes are idle", lambda: self.ask("sinfo", "-h", "-N", "-o", "%N %T").split().count("idle") >=
                   2 * len(NODES) + 1)

    def start(self, program: str, *arguments: str) -> None:
        processes.start(self.folder / "daemons.out", self.env, program, *arguments)

    def ask(self, *command) -> str:
        return output_of(self.env, *command)

    def submit(self, *arguments, **variables: str) -> str:
        """The id of the job."""
        out = output_of(self.env | variables, "sbatch", "--parsable", f"--chdir={self.folder}", *arguments)
        return out.strip()

    def element(self, job: str, index: int) -> dict[str, str]:
        """What Slurm tells of an element, by name."""
        shown = self.ask("scontrol", "show", "job", f"{job}_{index}", "--oneliner")
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)


class Elements(unittest.TestCase):
    def setUp(self):
        # Below /tmp itself: the name of a socket in it may not be long.
        folder = tempfile.TemporaryDirectory(prefix="warren-slurm-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.folder.chmod(0o755)
        self.addCleanup(processes.end_all)
        processes.adopt_orphans()

    def lines(self, index: int) -> str:
        """All that an element has said in all its lives."""
        files = list(self.folder.glob(f"warren-workers-*_{index}.out"))
        return files[0].read_text(errors="replace") if files else ""

    def lives(self, index: int) -> list[set[str]]:
        """The ranks of an element's workers, for each of its lives in which all of them have begun."""
        ranks = re.findall(r"(\d+) begins after step ", self.lines(index))
        return [set(ranks[i:i + WORKERS]) for i in range(0, len(ranks) - WORKERS + 1, WORKERS)]

    def test_elements_come_back_and_the_result_is_the_same(self):
        with processes.shown_on_failure(self.folder):
            self.disturb_and_compare()

    def disturb_and_compare(self):
        slurm = Slurm(self.folder)
        (tracker_port,) = processes.free_ports(1)
        output_of(slurm.env, WARREN, "keygen", f"--out={self.folder}/secret")
        path = f"{WARREN.parent}:{os.environ['PATH']}"
        slurm.submit("--partition=service", SOURCE / "examples/slurm/tracker.sbatch", f"--secret_file={self.folder}/secret",
                     f"--data_dir={self.folder}/tracker", "--bind=127.0.0.1", f"--port={tracker_port}", "--http_port=-1", "--log_level=debug",
                     PATH=path)
        # What a node is on a real cluster, its slurmd is here: an address, and what dies together.
        wrapper = self.folder / "on_node"
        wrapper.write_text("#!/bin/sh\nexport WARREN_HOST_ID=$SLURMD_NODENAME WARREN_DOMAIN_ID=$SLURMD_NODENAME\n"
                           'export WARREN_BIND_ADDRESS=127.0.0.1${SLURMD_NODENAME#n}\necho "here is $SLURMD_NODENAME"\n'
                           'exec "$@"\n')
        wrapper.chmod(0o755)
        stop, storm = self.folder / "stop", self.folder / "storm.result"
        job = slurm.submit(f"--array=0-{ELEMENTS - 1}", "--partition=low", SOURCE / "examples/slurm/workers.sbatch", wrapper,
                           MARCHER, stop, storm, PATH=path, WARREN_TRACKER=f"127.0.0.1:{tracker_port}",
                           WARREN_SECRET_FILE=f"{self.folder}/secret", DRAIN_MS="15000", WORKERS_PER_ELEMENT=str(WORKERS))
        wait_until("all elements are in the job", lambda: all(len(self.lives(i)) == 1 for i in range(ELEMENTS)))
        log = self.folder / "warren-tracker.out"
        processes.wait_for_commits(log)

        # A higher partition needs the node of element 0. Another node is free, so that is where the element comes back.
        before = slurm.element(job, 0)["BatchHost"]
        released = self.folder / "released"
        slurm.submit("--partition=high", f"--nodelist={before}", "--output=high.out",
                     f"--wrap=until [ -e {released} ]; do sleep 0.1; done")
        wait_until("the preempted element is back", lambda: len(self.lives(0)) == 2)
        self.assertEqual(slurm.element(job, 0)["Restarts"], "1")
        after = slurm.element(job, 0)["BatchHost"]
        self.assertNotEqual(after, before)
        self.assertEqual(re.findall(r"\] here is (\S+)", self.lines(0)), [before] * WORKERS + [after] * WORKERS)
        self.assertEqual(re.findall(r" bind_address=(\S+)", self.lines(0)),
                         [address_of(before)] * WORKERS + [address_of(after)] * WORKERS)
        self.assertIn("between two rounds", self.lines(0))
        released.touch()
        processes.wait_for_commits(log)

        # Its step gets SIGTERM: it ends with 75, and RequeueExit does the rest.
        slurm.ask("scancel", "--signal=TERM", f"{job}_1")
        wait_until("the element that ended with 75 is back", lambda: len(self.lives(1)) == 2)
        self.assertEqual(slurm.element(job, 1)["Restarts"], "1")
        self.assertIn("between two rounds", self.lines(1))
        processes.wait_for_commits(log)

        # As at a preemption without a time of grace: all processes are signalled, those that hand the signal on too.
        slurm.ask("scontrol", "requeue", f"{job}_2")
        wait_until("the requeued element is back", lambda: len(self.lives(2)) == 2)
        self.assertEqual(slurm.element(job, 2)["Restarts"], "1")
        processes.wait_for_commits(log)

        stop.touch()
        wait_until("all elements have ended", lambda: not slurm.ask("squeue", "-h", "-j", job).strip())
        for i in range(ELEMENTS):
            self.assertEqual((slurm.element(job, i)["JobState"], slurm.element(job, i)["ExitCode"]), ("COMPLETED", "0:0"))
            first, second = self.lives(i)
            self.assertEqual(first, second, "an element's workers have other ranks now")
            self.assertNotIn("failed ", self.lines(i))
        self.assertEqual(set.union(*(self.lives(i)[0] for i in range(ELEMENTS))),
                         {str(rank) for rank in range(ELEMENTS * WORKERS)})
        # Those that were given time told the tracker, and left before anybody missed them: with the first of an element's
        # workers the generation is over, and the others need not wait for the end of a round.
        told = log.read_text(errors="replace")
        for i in range(2):
            self.assertRegex(told, f"rank_drains: rank ({'|'.join(self.lives(i)[0])}) ")
        interrupted = re.findall(r"interrupted: (.*)", told)
        self.assertEqual(len(interrupted), ELEMENTS, interrupted)
        for why in interrupted[:2]:
            self.assertIn("was preempted", why)

        # The same steps, undisturbed.
        result = storm.read_bytes()
        steps = struct.unpack("=q", result[:8])[0]
        calm = self.folder / "calm.result"
        on_nodes = f'export SLURMD_NODENAME=n$((WARREN_WORKER_ID / {WORKERS} + 1)); exec "$@"'
        output_of(slurm.env, WARREN, "run", "-n", ELEMENTS * WORKERS, "--", "sh", "-c", on_nodes, "sh", wrapper, MARCHER,
                  steps, calm, within_s=120)
        self.assertGreater(steps, 3)
        self.assertEqual(result, calm.read_bytes())
        print(f"{steps} steps, interrupted:", *interrupted, sep="\n", flush=True)


if __name__ == "__main__":
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        print(f"SKIPPED: not installed: {', '.join(missing)} (./dev setup installs them)", file=sys.stderr)
        sys.exit(processes.SKIPPED)
    unittest.main(argv=sys.argv[:1], verbosity=2)
