"""An exhaustive model of one-sided rounds without a closing exchange (docs/decisions/0038): small programs, every order of
steps, kills of processes and losses of hosts at every place.

A program is a list of calls that all ranks make: "all" (a round that needs everybody, and that the log keeps), or a
one-sided call, gather or scatter, which is a set of deliveries: a piece that one rank gives to another. Deliveries from
one rank to another are numbered. A sender publishes its piece in the memory of its host and returns; the receiver
publishes what has come in the memory of its own host, unless that has it, and returns. A generation ends with each
death; with the next one both ends of a link say how far they are, and the sender sends the rest from its host's memory.

A `Rule` leaves one of these things out. `explore` visits every state that can be reached and returns what can happen:

  done    all ranks finish
  differ  two lives of a rank were given different bytes by one delivery (I1)
  gap     a piece that is needed is in nobody's memory, and nobody will make it again
  order   a rank is sent what it does not wait for
  stuck   no rank can go on

Not in the model: large pieces, groups, checkpoints, disks.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Rule:
    publishes_first: bool = True      # the sender, before it returns
    receiver_publishes: bool = True
    reads_own_host: bool = True       # a new life finds what earlier ones of its host had been given
    sends_what_was_sent: bool = True  # a new life takes what its host's memory has for a piece, whatever it computes now
    greets: bool = True               # senders learn what has arrived
    takes_back: bool = True           # who lost its host's memory takes what another host's has of what had arrived
    keeps: bool = True                # sender and receiver share a host: a rank elsewhere publishes it, too, before the
                                      # receiver returns


@dataclasses.dataclass(frozen=True)
class Setting:
    hosts: tuple[int, ...]           # of each rank
    program: tuple[tuple, ...]       # ("all",), ("gather", root), ("scatter", root)
    kills: int = 1
    losses: int = 1                  # of hosts: the first at any moment, the next when all is as before
    same_in_each_life: bool = True   # a program gives the same pieces in each life


def deliveries(setting: Setting, rank: int, call: tuple) -> list[tuple[str, int]]:
    """What a rank does in a call, in order: ("send", to) or ("recv", from)."""
    others = [r for r in range(len(setting.hosts)) if r != rank]
    if call[0] == "all":
        return []
    gathers, is_root = call[0] == "gather", rank == call[1]
    if gathers:
        return [("recv", r) for r in others] if is_root else [("send", call[1])]
    return [("send", r) for r in others] if is_root else [("recv", call[1])]


def numbers(setting: Setting) -> dict[tuple[int, int, int], int]:
    """(rank, peer, call) of a send → its number among those of the link."""
    out, count = {}, {}
    for at, call in enumerate(setting.program):
        for rank in range(len(setting.hosts)):
            for what, peer in deliveries(setting, rank, call):
                if what == "send":
                    out[rank, peer, at] = count.get((rank, peer), 0)
                    count[rank, peer] = out[rank, peer, at] + 1
    return out


class Rank(NamedTuple):
    alive: bool
    life: int
    host: int
    call: int      # that it is in
    done: int      # of its deliveries
    entered: bool  # the round of this call
    furthest: tuple[int, int]  # (call, done) of any of its lives
    sent: tuple[tuple[int, int], ...]      # peer, pieces
    received: tuple[tuple[int, int], ...]  # peer, pieces


class State(NamedTuple):
    ranks: tuple[Rank, ...]
    memory: frozenset   # (host, from, to, number, value)
    links: tuple        # ((from, to), (number, value), ...): what is on its way
    open: bool          # a generation
    rounds: int         # calls "all" below are in the log
    given: frozenset    # (from, to, number, value): what programs were given
    kills: int
    losses: int
    hosts: int          # that there have been


def get(pairs, key):
    return dict(pairs).get(key, 0)


def put(pairs, key, value):
    return tuple(sorted({**dict(pairs), key: value}.items()))


class Explorer:
    def __init__(self, setting: Setting, rule: Rule):
        self.setting, self.rule, self.numbers = setting, rule, numbers(setting)
        self.outcomes: set[str] = set()

    def held(self, state: State, host: int, sender: int, to: int, number: int):
        return next((m[4] for m in state.memory if m[:4] == (host, sender, to, number)), None)

    def first(self) -> State:
        ranks = tuple(Rank(True, 0, host, 0, 0, False, (0, 0), (), ()) for host in self.setting.hosts)
        return State(ranks, frozenset(), (), True, 0, frozenset(), self.setting.kills, self.setting.losses,
                     1 + max(self.setting.hosts))

    def explore(self) -> set[str]:
        seen, todo = set(), [self.first()]
        while todo:
            state = todo.pop()
            if state in seen:
                continue
            seen.add(state)
            steps = list(self.steps(state))
            if all(r.call == len(self.setting.program) for r in state.ranks):
                self.outcomes.add("done")
            elif not steps:
                self.outcomes.add("stuck")
            todo += steps + list(self.faults(state))
        return self.outcomes

    # ---- faults

    def faults(self, state: State):
        for i, r in enumerate(state.ranks):
            if r.alive and state.kills:
                yield self.without(state, [i])._replace(kills=state.kills - 1)
        # The first loss may come at any moment; another one when what it took is there again.
        whole = state.losses == self.setting.losses or (
            all(r.alive and (r.call, r.done) >= r.furthest for r in state.ranks) and
            (not self.rule.keeps or all(self.kept(state, *m[1:4]) for m in state.memory)))
        if state.losses and whole:
            for host in {r.host for r in state.ranks}:
                lost = self.without(state, [i for i, r in enumerate(state.ranks) if r.host == host])
                ranks = tuple(r._replace(host=lost.hosts) if r.host == host else r for r in lost.ranks)
                yield lost._replace(ranks=ranks, hosts=lost.hosts + 1, losses=state.losses - 1,
                                    memory=frozenset(m for m in lost.memory if m[0] != host))

    def without(self, state: State, dead) -> State:
        ranks = tuple(Rank(False, r.life, r.host, 0, 0, False, r.furthest, (), ()) if i in dead else r
                      for i, r in enumerate(state.ranks))
        if not any(r.alive for r in ranks):  # the timeline rises: what was given has other names
            return self.first()._replace(kills=state.kills, losses=state.losses)
        return state._replace(ranks=ranks, links=(), open=False)

    # ---- what may happen next

    def steps(self, state: State):
        for i, r in enumerate(state.ranks):
            if not r.alive:
                yield self.with_rank(state, i, r._replace(alive=True, life=r.life + 1))
        if not all(r.alive for r in state.ranks):
            return
        if not state.open:
            yield from self.open(state)
            return
        for i, r in enumerate(state.ranks):
            if r.call < len(self.setting.program):
                yield from self.go(state, i)
        if self.rule.keeps:
            yield from self.keep(state)

    def with_rank(self, state: State, i: int, r: Rank) -> State:
        return state._replace(ranks=state.ranks[:i] + (r,) + state.ranks[i + 1:])

    def open(self, state: State):
        """A generation: both ends of each link say how far they are."""
        if self.rule.takes_back:
            state = self.taken_back(state)
        links = {}
        for to, receiver in enumerate(state.ranks):
            for sender in range(len(state.ranks)):
                if sender == to:
                    continue
                arrived = get(receiver.received, sender)
                if self.rule.reads_own_host:
                    while self.held(state, receiver.host, sender, to, arrived) is not None:
                        arrived += 1
                rest = []
                for number in range(arrived if self.rule.greets else 0, get(state.ranks[sender].sent, to)):
                    value = self.held(state, state.ranks[sender].host, sender, to, number)
                    if value is None:
                        self.outcomes.add("gap")
                        return
                    rest.append((number, value))
                links[sender, to] = (arrived, tuple(rest))
        yield state._replace(open=True, links=tuple(sorted(links.items())))

    def taken_back(self, state: State) -> State:
        memory = set(state.memory)
        for _, sender, to, number, value in state.memory:
            host = state.ranks[sender].host
            if self.held(state, host, sender, to, number) is None:
                memory.add((host, sender, to, number, value))
        return state._replace(memory=frozenset(memory))

    def link(self, state: State, sender: int, to: int):
        return dict(state.links).get((sender, to), (0, ()))

    def go(self, state: State, i: int):
        r = state.ranks[i]
        call = self.setting.program[r.call]
        todo = deliveries(self.setting, i, call)
        if call[0] == "all":
            yield from self.round(state, i)
        elif r.done == len(todo):
            yield self.with_rank(state, i, self.next(r))
        elif todo[r.done][0] == "send":
            yield from self.send(state, i, todo[r.done][1])
        else:
            yield from self.receive(state, i, todo[r.done][1])

    def next(self, r: Rank) -> Rank:
        return r._replace(call=r.call + 1, done=0, entered=False, furthest=max(r.furthest, (r.call + 1, 0)))

    def keeper(self, state: State, sender: int, to: int):
        """A host that is to publish a piece, too; None: those of its two ends are enough, or all that there are."""
        own = state.ranks[sender].host
        others = [r.host for r in state.ranks if r.host != own]
        return others[0] if own == state.ranks[to].host and others else None

    def kept(self, state: State, sender: int, to: int, number: int) -> bool:
        host = self.keeper(state, sender, to)
        return host is None or self.held(state, host, sender, to, number) is not None

    def keep(self, state: State):
        for host, sender, to, number, value in state.memory:
            if host == state.ranks[sender].host and not self.kept(state, sender, to, number):
                copy = (self.keeper(state, sender, to), sender, to, number, value)
                yield state._replace(memory=state.memory | {copy})

    def one_more(self, r: Rank) -> dict:
        return {"done": r.done + 1, "furthest": max(r.furthest, (r.call, r.done + 1))}

    def round(self, state: State, i: int):
        r = state.ranks[i]
        if r.call < state.rounds:
            yield self.with_rank(state, i, self.next(r))
        elif not r.entered:
            yield self.with_rank(state, i, r._replace(entered=True))
        elif all(o.entered and o.call == r.call for o in state.ranks):
            yield self.with_rank(state, i, self.next(r))._replace(rounds=r.call + 1)

    def send(self, state: State, i: int, to: int):
        r = state.ranks[i]
        number = get(r.sent, to)
        assert self.numbers[i, to, r.call] == number
        value = 0 if self.setting.same_in_each_life else r.life
        held = self.held(state, r.host, i, to, number)
        if held is not None and self.rule.sends_what_was_sent:
            value = held
        after = self.with_rank(state, i, r._replace(sent=put(r.sent, to, number + 1), **self.one_more(r)))
        if held is None and self.rule.publishes_first:
            after = after._replace(memory=after.memory | {(r.host, i, to, number, value)})
        arrived, queue = self.link(state, i, to)
        if number >= arrived or not self.rule.greets:
            links = {**dict(after.links), (i, to): (arrived, queue + ((number, value),))}
            after = after._replace(links=tuple(sorted(links.items())))
        yield after

    def receive(self, state: State, i: int, sender: int):
        r = state.ranks[i]
        number = get(r.received, sender)
        arrived, queue = self.link(state, sender, i)
        if self.rule.keeps and not self.kept(state, sender, i, number):
            return
        if number < arrived:
            value = self.held(state, r.host, sender, i, number)
            if value is None:
                self.outcomes.add("gap")
                return
        elif not queue:
            return
        else:
            (got, value), queue = queue[0], queue[1:]
            if got != number:
                self.outcomes.add("order")
                return
        if any(g[:3] == (sender, i, number) and g[3] != value for g in state.given):
            self.outcomes.add("differ")
            return
        links = {**dict(state.links), (sender, i): (arrived, queue)}
        memory = state.memory
        if self.rule.receiver_publishes and self.held(state, r.host, sender, i, number) is None:
            memory |= {(r.host, sender, i, number, value)}
        after = self.with_rank(state, i, r._replace(received=put(r.received, sender, number + 1), **self.one_more(r)))
        yield after._replace(links=tuple(sorted(links.items())), memory=memory,
                             given=state.given | {(sender, i, number, value)})


def explore(setting: Setting, rule: Rule = Rule()) -> set[str]:
    return Explorer(setting, rule).explore()
