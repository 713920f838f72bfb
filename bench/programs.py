"""The programs that are compared, where each one runs, and how each one is started."""

import dataclasses
import os
import pathlib
import sys

import network
import rabit

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/bench"
BIN = ROOT / "build/release/bin"
WARREN = BIN / "warren"

# Where ranks run.
HOST = "one host"
PAIRS = "2 network namespaces of 2 ranks"
OPEN = "4 network namespaces"
LIMITED = "4 network namespaces, 1 Gbit/s"
PLACES = [HOST, PAIRS, OPEN, LIMITED]
RANKS_APART = 4  # where hosts are namespaces
HOSTS = {PAIRS: 2, OPEN: 4, LIMITED: 4}

# What says tcp goes over TCP on loopback; Gloo has nothing else. The rest may use that all ranks are on one host.
PROGRAMS = {
    HOST: ["warren", "warren again", "warren allocated", "warren allocated again", "warren tcp", "warren tcp again",
           "warren without log", "warren allocated without log", "warren tcp without log", "openmpi", "openmpi tcp", "mpich",
           "mpich tcp", "gloo ring tcp", "gloo halving_doubling tcp", "rabit tcp", "rabit fault-tolerant tcp", "floor shared",
           "floor staged", "floor read", "floor tcp"],
    PAIRS: ["warren", "warren again", "openmpi", "gloo ring", "gloo halving_doubling", "floor tcp"],
    OPEN: ["warren", "warren again", "openmpi", "gloo ring", "gloo halving_doubling", "floor tcp"],
    LIMITED: ["warren", "warren again", "openmpi", "gloo ring", "gloo halving_doubling", "floor stream"],
}
# (source, program, compiler, libraries)
SOURCES = [("mpi_bench.cc", "openmpi_bench", "mpicxx.openmpi", []), ("mpi_bench.cc", "mpich_bench", "mpicxx.mpich", []),
           ("gloo_bench.cc", "gloo_bench", "g++", ["-lgloo", "-lpthread"]), ("floor_bench.cc", "floor_bench", "g++", [])]


@dataclasses.dataclass
class Start:
    """What one run starts: `aside` beside it, to be ended with it; it has ended when all of `processes` have."""
    processes: list[list[str]]
    aside: list[list[str]] = dataclasses.field(default_factory=list)


def is_warren(program: str) -> bool:
    return program.startswith("warren")


def is_floor(program: str) -> bool:
    return program.startswith("floor")


def is_peer(program: str) -> bool:
    return not is_warren(program) and not is_floor(program)


def programs_of(place: str, ranks: int) -> list[str]:
    """MPICH waits through the time slices of others where ranks outnumber cores; over TCP 1 MiB takes it a quarter of a second then,
    and larger sizes would take most of the run."""
    crowded = ranks > (os.cpu_count() or 1)
    return [program for program in PROGRAMS[place] if not (crowded and program == "mpich tcp")]


def start(program: str, ranks: int, folder: pathlib.Path, disk: pathlib.Path, arguments: list[str],
          hosts: network.Network | None) -> Start:
    """`folder`: new for each run, and where the ranks meet; `disk`: new too, on a disk. `hosts`: each has as many of
    the ranks, in their order; None: all are here."""
    common = [f"--name={program}", f"--meeting={folder}/meeting", *arguments]
    kind = program.split()[0]
    if kind == "warren":
        return warren(program, ranks, folder, disk, common, hosts)
    if kind == "openmpi":
        return Start([openmpi(program, ranks, folder, common, hosts)])
    if kind == "mpich":
        # With more ranks than cores its waiting takes the time slices of those that are waited for: Debian's device (ch4:ucx)
        # has no setting that yields. Bound to cores in turn, at least they do not move about too.
        network_alone = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"} if program == "mpich tcp" else {}
        flags = [word for name, value in network_alone.items() for word in ("-genv", name, value)]
        return Start([["mpiexec.mpich", "-bind-to", "core", *flags, "-n", str(ranks), str(BUILD / "mpich_bench"), *common]])
    if kind == "rabit":
        bench = BUILD / ("rabit_robust_bench" if "fault-tolerant" in program else "rabit_bench")
        launcher = [sys.executable, str(ROOT / "bench/peers/rabit_run.py"), str(rabit.tracker()), str(ranks)]
        return Start([[*launcher, str(bench), *common]])
    which = program.split()[1]
    words = {"gloo": [str(BUILD / "gloo_bench"), f"--algorithm={which}", f"--store={folder}/store"],
             "floor": [str(BUILD / "floor_bench"), f"--how={which}"]}[kind]
    each = ranks // len(hosts.hosts) if hosts else ranks
    enter = [hosts.hosts[rank // each].enter if hosts else [] for rank in range(ranks)]
    addresses = [hosts.addresses[rank // each] if hosts else "127.0.0.1" for rank in range(ranks)]
    return Start([[*enter[rank], *words, f"--rank={rank}", f"--ranks={ranks}", f"--host={addresses[rank]}", *common]
                  for rank in range(ranks)])


def warren(program: str, ranks: int, folder: pathlib.Path, disk: pathlib.Path, common: list[str],
           hosts: network.Network | None, settings: list[str] = []) -> Start:
    """With fault tolerance, which is two copies of each result, and RocksDB on a disk written behind the calls; or
    without any."""
    bench = ["--", str(BIN / "warren_bench"), *(["--allocated=1"] if program.startswith("warren allocated") else []), *common]
    if hosts is None:
        flags = ["--replicas=0"] if program.endswith("without log") else [f"--data_dir={disk}"]
        flags += ["--transport=tcp"] if program.startswith("warren tcp") else []
        # As the peers that can be bound are.
        flags += ["--bind_to_core"] if ranks <= (os.cpu_count() or 1) else []
        return Start([[str(WARREN), "run", "-n", str(ranks), *flags, *bench]])
    secret = f"--secret_file={folder}/secret"
    tracker = [*hosts.switch.enter, str(WARREN), "tracker", f"--bind={network.BRIDGE}", f"--advertise={network.BRIDGE}",
               "--http_port=-1", secret, f"--data_dir={disk}/tracker"]
    # By itself all would be one failure domain, this machine, and no result would have a second copy.
    each = ranks // len(hosts.hosts)
    launchers = [[*host.enter, str(WARREN), "run", "-n", str(each), f"--first_worker={number * each}", f"--world_size={ranks}",
                  f"--tracker={network.BRIDGE}", secret, f"--domain_id=host{number}",
                  f"--data_dir={disk}/host{number}", *settings, *bench]
                 for number, host in enumerate(hosts.hosts)]
    return Start(launchers, [tracker])


def openmpi(program: str, ranks: int, folder: pathlib.Path, common: list[str], hosts: network.Network | None) -> list[str]:
    crowded = ranks > (os.cpu_count() or 1)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    yielding = ["--mca", "mpi_yield_when_idle", "1"] if crowded else []
    # Each of several hosts would bind its rank to the same core, the first one.
    binding = ["--bind-to", "none" if crowded or hosts else "core"]
    tail = [*binding, *yielding, "-np", str(ranks), str(BUILD / "openmpi_bench"), *common]
    if hosts is None:
        btl = "self,tcp" if program == "openmpi tcp" else "self,vader"
        interface = ["--mca", "btl_tcp_if_include", "lo"] if program == "openmpi tcp" else []
        return ["mpirun.openmpi", *root, "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", btl, *interface, *tail]
    agent = folder / "agent"
    cases = "".join(f"{address}) enter='{' '.join(host.enter)}' ;;\n" for address, host in zip(hosts.addresses, hosts.hosts))
    agent.write_text(f'#!/bin/sh\n# HOST COMMAND: runs the command there, as ssh would\ncase $1 in\n{cases}esac\nshift\n'
                     'exec $enter sh -c "$*"\n')
    agent.chmod(0o700)
    each = ranks // len(hosts.hosts)
    where = ",".join(f"{address}:{each}" for address in hosts.addresses)
    btl = "self,tcp" if each == 1 else "self,vader,tcp"
    # Its agent finds the other hosts among the processes of this one.
    return [*hosts.switch.enter_network, "mpirun.openmpi", *root, "--host", where, "--mca", "plm_rsh_agent", str(agent),
            "--mca", "pml", "ob1", "--mca", "btl", btl, "--mca", "btl_tcp_if_include", "eth0", *tail]
