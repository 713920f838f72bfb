"""An exhaustive model of set-up rounds that nobody names (docs/decisions/0010): small programs, every order of steps, a
kill at every place.

A program makes rounds in versions. Most are *regular*: they depend on the version alone. A *set-up* round is made once
a process. A process that was started again makes its set-up rounds when the others do not, and is then given what they
gave before. But it cannot see alone whether a round is a set-up round or a regular one that recurs after some versions.

The model has lives of ranks, a log of rounds, commits, and a table of call sites that each commit carries. A `Rule`
says which results the table keeps, and when a life may take part in a round. `explore` visits every state that can be
reached, and returns what can happen:

  done      all ranks finish, and every value was right
  desync    ranks make different calls: an error, which ends the job
  stuck     no rank can go on
  restart   no rank can ever know which round comes next: all processes start again from the last commit
  wrong     a version is committed with a wrong value in it, or with ranks that hold different values of a set-up round

Not in the model: results that the log has lost, budgets, groups.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

REGULAR = "regular"
DECIDED = "decided"  # Rule.learns_in == "first": in the table of a job that looks for no more


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of the program's, from one site of its source."""
    site: str
    when: str = "always"    # "always", "setup" (once a life), "every" so many versions, "once": in one version alone
    phase: int = 0          # "always", "setup": the version modulo Program.phases
    every: int = 1          # "every": the versions that this divides; "once": the version
    first: int = 0          # "setup": the first version that has it
    age: int = 0            # "setup": how many versions a life goes through before
    of_state: bool = False  # "setup": its result depends on the version in which it is made

    @property
    def purpose(self) -> str:
        return f"{self.site}/{self.when}"


@dataclasses.dataclass(frozen=True)
class Program:
    phases: int
    versions: int
    calls: tuple[Call, ...]  # in the order in which a version makes them

    def made(self, version: int, load: int, has: frozenset[str]) -> tuple[Call, ...]:
        """The calls of a life that has loaded `load` and made the set-up rounds `has`."""
        out = []
        for call in self.calls:
            due = version % self.phases == call.phase
            if call.when == "setup":
                due = due and call.purpose not in has and version >= call.first and version - load >= call.age
            elif call.when == "every":
                due = version % call.every == 0
            elif call.when == "once":
                due = version == call.every
            if due:
                out.append(call)
        return tuple(out)


@dataclasses.dataclass(frozen=True)
class Rule:
    """How set-up rounds are found. The default is the only rule that serves all programs of setup_rounds_test.py."""
    asks_in: str = "every"    # a life asks in the version that it has loaded ("first"), or in "every" version
    learns_in: str = "every"  # rounds of the job's "first" version can be kept, or those of "every" version
    unit: str = "site"        # what is regular once it recurs: all calls from a "site", or each "call" by its number
    keeps: str = "newest"     # the "first" or the "newest" result of a round that new processes make again together
    # When a life makes a round of which no rank knows whether it is the next one:
    #   new       no other life has made this call in an earlier version, whatever it does now
    #   unmade    besides, all others wait with a question for the same place
    #   same      all others wait with a question for the same place and the same call; with another call: "restart"
    #   anything  all others wait with a question for the same place
    #   never     a guess: it is given what the table keeps, at once
    unknown: str = "unmade"


class Life(NamedTuple):
    load: int
    version: int
    calls: tuple[Call, ...]  # of this version
    at: int                  # the next of `calls`; beyond the last: the exchange at the version's end, the checkpoint
    sequence: int            # the next round's number in this version
    phase: str               # "computes"; "asks" which round comes next; "waits" in a round for the others
    made: tuple              # (unit, the first version in which this life made it)
    values: tuple            # (purpose, value) of set-up rounds
    rounds: tuple            # (site, number of the call, value) of this version's rounds
    wrong: bool              # it holds a wrong value
    table: tuple             # (unit, REGULAR or ((number of the call, value), ...)), when the version began
    next_table: tuple        # for the next version
    heard: tuple             # ((version, sequence), site) that this life was told; None: there is no such round
    counts: tuple            # (version, its rounds) of versions that it has ended


class State(NamedTuple):
    committed: int
    table: tuple             # of the commit
    log: tuple               # ((version, sequence), (site, purpose, value)) since the commit
    lives: tuple[Life, ...]  # by rank
    kills: int               # that are left
    restarts: int            # of all processes, likewise


class Outcome(Exception):
    pass


EXCHANGE = Call("exchange", "always")


class Model:
    def __init__(self, program: Program, rule: Rule, ranks: int, kills: int):
        self.program, self.rule, self.ranks, self.kills = program, rule, ranks, kills

    # ---- what a life is about to do

    def unit(self, site: str, number: int):
        return site if self.rule.unit == "site" else (site, number)

    def number(self, life: Life) -> int:
        """How many calls from its site the life has made in this version before."""
        return sum(call.site == life.calls[life.at].site for call in life.calls[:life.at])

    def next_call(self, life: Life) -> Call | None:
        if life.at < len(life.calls):
            return life.calls[life.at]
        if life.at == len(life.calls) and self.exchanges(life):
            return EXCHANGE
        return None

    def exchanges(self, life: Life) -> bool:
        """Whether ranks tell each other at the version's end what they have seen: the same on all of them."""
        if self.rule.learns_in == "first":
            return (DECIDED, REGULAR) not in life.table
        return any(self.entry(life.table, site, number) != REGULAR for site, number, _ in life.rounds)

    def entry(self, table: tuple, site: str, number: int):
        """REGULAR, a kept value in a tuple, or None."""
        at = dict(table).get(self.unit(site, number))
        if at is None or at == REGULAR:
            return at
        kept = dict(at)
        return (kept[number],) if number in kept else None

    def asks(self, life: Life) -> bool:
        if life.load == 0 or life.at >= len(life.calls):
            return False
        if self.rule.asks_in == "first" and life.version != life.load:
            return False
        call, number = life.calls[life.at], self.number(life)
        if self.unit(call.site, number) in {unit for unit, version in life.made if version < life.version}:
            return False
        return isinstance(self.entry(life.table, call.site, number), tuple)

    # ---- steps

    def begin_version(self, life: Life, version: int, table: tuple) -> Life:
        has = frozenset(purpose for purpose, _ in life.values)
        return life._replace(version=version, calls=self.program.made(version, life.load, has), at=0, sequence=0,
                             phase="computes", rounds=(), table=table, next_table=table)

    def new_life(self, state: State) -> Life:
        life = Life(state.committed, 0, (), 0, 0, "computes", (), (), (), False, (), (), (), ())
        return self.begin_version(life, state.committed, state.table)

    def start(self) -> State:
        state = State(0, (), (), (), self.kills, 2)
        return state._replace(lives=tuple(self.new_life(state) for _ in range(self.ranks)))

    def truth(self, call: Call, version: int):
        if call.when == "setup":
            return (call.purpose, version if call.of_state else None)
        return (call.purpose, version)

    def take(self, life: Life, call: Call, value, as_round: bool) -> Life:
        """The call has given `value`."""
        if call is EXCHANGE:
            return life._replace(at=life.at + 1, sequence=life.sequence + 1, phase="computes",
                                 next_table=self.learned(life, value))
        number, unit = self.number(life), self.unit(call.site, self.number(life))
        made = life.made if unit in dict(life.made) else (*life.made, (unit, life.version))
        if call.when == "setup":
            right = value[0] == call.purpose
            life = life._replace(values=tuple(sorted((*life.values, (call.purpose, value)))))
        else:
            right = value == self.truth(call, life.version)
        life = life._replace(at=life.at + 1, phase="computes", made=made, wrong=life.wrong or not right)
        if as_round:
            life = life._replace(sequence=life.sequence + 1, rounds=(*life.rounds, (call.site, number, value)))
        return life

    def seen_to_recur(self, life: Life) -> frozenset:
        """Units that this life has made as a round in this version, and in one before."""
        if self.rule.learns_in == "first":
            sites = {self.unit(site, number) for site, number, _ in life.rounds}
            return frozenset(sites | {DECIDED} if life.load < life.version else ())
        made = dict(life.made)
        return frozenset(unit for site, number, _ in life.rounds
                         if made[unit := self.unit(site, number)] < life.version)

    def learned(self, life: Life, recurs: frozenset) -> tuple:
        table = dict(life.table)
        if self.rule.learns_in == "first" and life.version > 0:
            # Calls of the first version that are not in the next version of a process that was not new in it.
            if DECIDED not in recurs:
                return life.table
            return tuple(sorted([entry for entry in table.items() if entry[0] not in recurs] + [(DECIDED, REGULAR)],
                                key=repr))
        for site, number, value in life.rounds:
            unit = self.unit(site, number)
            at = table.get(unit)
            if at == REGULAR:
                continue
            if unit in recurs:
                table[unit] = REGULAR
                continue
            kept = dict(at or ())
            if number not in kept or self.rule.keeps == "newest":
                kept[number] = value
            table[unit] = tuple(sorted(kept.items()))
        return tuple(sorted(table.items(), key=repr))

    def word(self, state: State, of: int, where: tuple) -> tuple[str, str | None]:
        """What a rank says of a round: ("round", site), ("over", None), ("asks", site) or ("later", None)."""
        life = state.lives[of]
        here = (life.version, life.sequence) == where
        if here and life.phase == "waits":
            return "round", self.next_call(life).site
        if where in dict(life.heard):
            site = dict(life.heard)[where]
            return ("over", None) if site is None else ("round", site)
        if here and life.phase == "asks":
            return "asks", life.calls[life.at].site
        if dict(life.counts).get(where[0], where[1] + 1) <= where[1]:
            return "over", None
        return "later", None

    def decide(self, state: State, rank: int) -> Life | str | None:
        """A life that asks: what it does, "restart", or None: it waits."""
        life = state.lives[rank]
        call = life.calls[life.at]
        where = (life.version, life.sequence)
        known = dict(state.log).get(where)
        words = [self.word(state, other, where) for other in range(self.ranks)]
        own = words.pop(rank)
        if own[0] != "asks":
            words.append(own)
        site = known[0] if known else next((s for word, s in words if word == "round"), None)
        over = any(word == "over" for word, _ in words)
        if site == call.site:
            return life._replace(phase="waits", heard=(*life.heard, (where, site)))
        if site is not None or over or self.rule.unknown == "never":
            if any(round_site == call.site for round_site, _, _ in life.rounds):
                raise Outcome("desync")  # this site makes rounds of both kinds
            kept = self.entry(life.table, call.site, self.number(life))[0]
            return self.take(life._replace(heard=(*life.heard, (where, site))), call, kept, False)
        unit = self.unit(call.site, self.number(life))
        unmade = all(dict(o.made).get(unit, life.version) >= life.version
                     for at, o in enumerate(state.lives) if at != rank)
        if self.rule.unknown == "new":
            return life._replace(phase="waits") if unmade else None
        if any(word == "later" for word, _ in words):
            return None
        if self.rule.unknown == "unmade":
            return life._replace(phase="waits") if unmade else None
        if self.rule.unknown == "anything" or all(s == call.site for _, s in words):
            return life._replace(phase="waits")
        return "restart"

    def complete(self, state: State) -> State:
        """Rounds that all ranks have begun, and commits that all have voted for."""
        while True:
            wheres = {(life.version, life.sequence) for life in state.lives if life.phase == "waits"}
            if len(wheres) == 1 and all(life.phase == "waits" for life in state.lives):
                (where,) = wheres
                calls = [self.next_call(life) for life in state.lives]
                if len({call.site for call in calls}) != 1:
                    raise Outcome("desync")
                if calls[0] is EXCHANGE:
                    value = frozenset().union(*(self.seen_to_recur(life) for life in state.lives))
                    purpose = "exchange"
                else:
                    purposes = {call.purpose for call in calls}
                    purpose = purposes.pop()
                    value = ("mixed", None) if purposes else self.truth(calls[0], where[0])
                lives = tuple(self.take(life, call, value, True) for life, call in zip(state.lives, calls))
                if self.differ(lives):
                    lives = tuple(life._replace(wrong=True) for life in lives)
                state = state._replace(log=(*state.log, (where, (calls[0].site, purpose, value))), lives=lives)
                continue
            if all(life.version > state.committed for life in state.lives):
                version = state.committed + 1
                ended = [life for life in state.lives if life.version == version]
                if len({dict(life.counts)[version - 1] for life in state.lives}) != 1:
                    raise Outcome("desync")
                if any(life.wrong for life in state.lives):
                    raise Outcome("wrong")
                if len({life.table for life in ended}) != 1:
                    raise Outcome("desync")
                state = state._replace(committed=version, table=ended[0].table,
                                       log=tuple(entry for entry in state.log if entry[0][0] >= version))
                continue
            return state

    def differ(self, lives: tuple) -> bool:
        """Whether lives hold different values of a set-up round."""
        held: dict = {}
        return any(held.setdefault(purpose, value) != value for life in lives for purpose, value in life.values)

    def step(self, state: State, rank: int) -> Life | str | None:
        """What a rank does next: its life after it, "restart", or None: it waits, or has finished."""
        life = state.lives[rank]
        if life.version == self.program.versions:
            return None
        if life.phase == "asks":
            return self.decide(state, rank)
        call = self.next_call(life)
        if call is None:
            if life.version > state.committed:
                return None  # one commit may be pending
            ended = life._replace(counts=(*life.counts, (life.version, life.sequence)))
            return self.begin_version(ended, life.version + 1, life.next_table)
        if life.phase == "computes" and self.asks(life):
            return life._replace(phase="asks")
        known = dict(state.log).get((life.version, life.sequence))
        if known is None:
            return life._replace(phase="waits") if life.phase == "computes" else None
        site, purpose, value = known
        if site != call.site:
            raise Outcome("desync")
        return self.take(life, call, value if call is EXCHANGE or purpose == call.purpose else ("mixed", None), True)

    def steps(self, state: State):
        """States that follow; in the place of one, the name of an outcome."""
        stands = True
        for rank in range(self.ranks):
            try:
                after = self.step(state, rank)
            except Outcome as outcome:
                after = str(outcome)
            if after is None:
                continue
            stands = False
            if isinstance(after, Life):
                yield state._replace(lives=(*state.lives[:rank], after, *state.lives[rank + 1:]))
                continue
            yield after
            if after == "restart":
                again = state._replace(log=(), restarts=state.restarts - 1)
                yield again._replace(lives=(self.new_life(again),) * self.ranks) if state.restarts > 0 else "stuck"
        for rank, life in enumerate(state.lives):
            if state.kills > 0 and life.version < self.program.versions:
                yield state._replace(lives=(*state.lives[:rank], self.new_life(state), *state.lives[rank + 1:]),
                                     kills=state.kills - 1)
        if stands:
            yield "done" if all(life.version == self.program.versions for life in state.lives) else "stuck"


def trimmed(state: State) -> State:
    """Without what no step looks at any more, so that equal states are one."""
    lives = []
    for life in state.lives:
        heard = tuple(sorted({entry for entry in life.heard if entry[0][0] >= state.committed}, key=repr))
        lives.append(life._replace(heard=heard, counts=life.counts[-2:]))
    return state._replace(lives=tuple(lives), log=tuple(sorted(state.log, key=lambda entry: entry[0])))


def explore(program: Program, rule: Rule, ranks: int = 2, kills: int = 2, limit: int = 2_000_000) -> dict[str, int]:
    """What can happen, how often, and in how many states."""
    model = Model(program, rule, ranks, kills)
    first = trimmed(model.start())
    seen, todo, found = {first}, [first], {}
    while todo:
        for after in model.steps(todo.pop()):
            if isinstance(after, State):
                try:
                    after = trimmed(model.complete(after))
                except Outcome as outcome:
                    after = str(outcome)
            if isinstance(after, str):
                found[after] = found.get(after, 0) + 1
            elif after not in seen:
                if len(seen) == limit:
                    raise AssertionError("too many states")
                seen.add(after)
                todo.append(after)
    found["states"] = len(seen)
    return found
