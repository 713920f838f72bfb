"""What deliveries_model.py shows: one-sided rounds need no closing exchange, and what each rule is for."""

import dataclasses
import unittest

from deliveries_model import Rule, Setting, explore

GATHER, SCATTER, ALL = ("gather", 0), ("scatter", 0), ("all",)
PROGRAMS = {"gather": (GATHER, ALL), "gathers": (GATHER, GATHER), "both": (GATHER, SCATTER, ALL),
            "two roots": (GATHER, ("gather", 1), ALL)}
TWO_HOSTS, ONE_HOST, SHARED = (0, 1), (0, 0), (0, 0, 1)


def without(rule: str, hosts: tuple[int, ...], program: tuple, losses: int, same: bool) -> set[str]:
    setting = Setting(hosts, program, losses=losses, same_in_each_life=same)
    return explore(setting, dataclasses.replace(Rule(), **{rule: False}))


class TheRule(unittest.TestCase):
    def test_every_life_is_given_the_same_bytes_whatever_is_lost(self):
        for name, program in PROGRAMS.items():
            for hosts in (TWO_HOSTS, ONE_HOST):
                for same in (True, False):
                    with self.subTest(program=name, hosts=hosts, same=same):
                        self.assertEqual(explore(Setting(hosts, program, losses=2, same_in_each_life=same)), {"done"})

    def test_also_where_ranks_share_a_host_beside_another_one(self):
        for same in (True, False):
            setting = Setting(SHARED, PROGRAMS["gather"], losses=2, same_in_each_life=same)
            self.assertEqual(explore(setting), {"done"})


class EachPartOfIt(unittest.TestCase):
    def test_a_piece_that_was_not_published_is_in_nobodys_memory(self):
        self.assertIn("gap", without("publishes_first", TWO_HOSTS, PROGRAMS["gather"], losses=0, same=True))

    def test_a_piece_that_arrived_is_not_sent_again(self):
        self.assertIn("order", without("greets", TWO_HOSTS, PROGRAMS["gathers"], losses=0, same=True))

    def test_programs_that_give_the_same_pieces_in_each_life_need_no_second_copy(self):
        for rule in ("receiver_publishes", "sends_what_was_sent", "takes_back", "keeps"):
            with self.subTest(rule):
                self.assertEqual(without(rule, SHARED, PROGRAMS["gather"], losses=1, same=True), {"done"})

    def test_other_programs_need_it(self):
        for rule, hosts, losses in (("receiver_publishes", TWO_HOSTS, 1), ("sends_what_was_sent", TWO_HOSTS, 1),
                                    ("takes_back", TWO_HOSTS, 2), ("keeps", SHARED, 1)):
            with self.subTest(rule):
                self.assertIn("differ", without(rule, hosts, PROGRAMS["gather"], losses, same=False))


if __name__ == "__main__":
    unittest.main()
