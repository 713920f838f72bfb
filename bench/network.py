"""Hosts in network namespaces on a bridge, for programs that are measured between machines.

Nothing of them is seen from outside: the bridge lies in a namespace of its own, and none has a name. Each namespace is held by
a process that reads from this one, and that is its host's first process: when this one ends, however it ends, the holders
do, and with them whatever runs on the hosts, the cables and the bridge."""

import contextlib
import subprocess

BRIDGE = "10.78.0.1"
# What a link may send at once is what it sends in 1 ms: with less, a machine whose timers are late does not reach the rate; with
# more, a call after a rest is faster than the wire.
RATE = ["tbf", "rate", "1gbit", "burst", "128kb", "latency", "20ms"]


class Space:
    """One host: `enter` comes before a command that is to run there, and to end with it; `enter_network` before one that only
    takes part in its network."""

    def __init__(self, name: str):
        self.name = name
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-c",
             f"hostname {name} && ip link set lo up && echo up && exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        if self.holder.stdout.readline() != b"up\n":
            self.close()
            raise RuntimeError(f"no network namespace (it takes root): {name}")
        spaces = f"/proc/{self.holder.pid}/ns"
        self.enter_network = ["nsenter", f"--net={spaces}/net", f"--uts={spaces}/uts"]
        self.enter = [*self.enter_network, f"--mount={spaces}/mnt", f"--pid={spaces}/pid_for_children"]

    def run(self, *command: str) -> None:
        # Not among its processes: numbers of processes, which `ip` is told, are those of here.
        subprocess.run([*self.enter_network, *command], check=True)

    def close(self) -> None:
        self.holder.stdin.close()
        self.holder.wait()


class Network:
    """`hosts` hosts, each with an address, and a switch with the bridge, where trackers and mpirun run."""

    def __init__(self, stack: contextlib.ExitStack, hosts: int):
        def space(name: str) -> Space:
            made = Space(name)
            stack.callback(made.close)
            return made

        self.switch = space("switch")
        self.hosts = [space(f"host{i}") for i in range(hosts)]
        self.addresses = [f"10.78.0.{i + 2}" for i in range(hosts)]
        ip = lambda *arguments: self.switch.run("ip", *arguments)
        # With an address of its own: else it has that of a cable.
        ip("link", "add", "bridge", "address", "02:77:61:72:72:65", "type", "bridge")
        ip("addr", "add", f"{BRIDGE}/24", "dev", "bridge")
        ip("link", "set", "bridge", "up")
        for i, host in enumerate(self.hosts):
            ip("link", "add", f"cable{i}", "type", "veth", "peer", "name", "eth0", "netns", str(host.holder.pid))
            ip("link", "set", f"cable{i}", "master", "bridge", "up")
            host.run("ip", "addr", "add", f"{self.addresses[i]}/24", "dev", "eth0")
            host.run("ip", "link", "set", "eth0", "up")

    def spaces(self) -> list[Space]:
        return [self.switch, *self.hosts]

    def limit(self) -> None:
        """To 1 Gbit/s, on each host's cable, both ways."""
        for i, host in enumerate(self.hosts):
            host.run("tc", "qdisc", "add", "dev", "eth0", "root", *RATE)
            self.switch.run("tc", "qdisc", "add", "dev", f"cable{i}", "root", *RATE)


    def narrow(self, one: int, other: int, rate: str = "100mbit") -> None:
        """What these two hosts send to each other, of the 1 Gbit/s that limit() has left them."""
        for host, peer in ((one, other), (other, one)):
            tc = lambda *arguments: self.hosts[host].run("tc", *arguments)
            tc("qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "htb", "default", "3")
            tc("class", "add", "dev", "eth0", "parent", "1:", "classid", "1:1", "htb", "rate", "1gbit", "burst", "128kb")
            tc("class", "add", "dev", "eth0", "parent", "1:1", "classid", "1:2", "htb", "rate", rate, "quantum", "60000")
            tc("class", "add", "dev", "eth0", "parent", "1:1", "classid", "1:3", "htb", "rate", "900mbit", "ceil", "1gbit",
               "burst", "128kb", "quantum", "60000")
            tc("filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", "u32", "match", "ip", "dst",
               f"{self.addresses[peer]}/32", "flowid", "1:2")


@contextlib.contextmanager
def network(hosts: int):
    with contextlib.ExitStack() as stack:
        yield Network(stack, hosts)
