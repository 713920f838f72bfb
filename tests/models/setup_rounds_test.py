"""What setup_rounds_model.py shows: which programs a rule for set-up rounds serves, and what happens to the others."""

import unittest

from setup_rounds_model import Call, Program, Rule, explore

# docs/decisions/0010, as it is built; and as it was first.
BUILT = Rule(unknown="same")
FIRST = Rule(asks_in="first", learns_in="first", keeps="first", unknown="anything")


def regular(site: str, phase: int = 0) -> Call:
    return Call(site, phase=phase)


ONE = Program(1, 4, (Call("x", "setup"), regular("r")))
AFTER = Program(1, 4, (regular("r"), Call("x", "setup")))
RECURS = Program(1, 7, (Call("x", "setup"), Call("q", "every", every=3), regular("r")))
ONCE = Program(1, 5, (Call("x", "setup"), Call("o", "once", every=2), regular("r")))
# As XGBoost: update and evaluation.
TWO = Program(2, 5, (Call("x", "setup"), regular("r"), regular("e", 1)))
THREE = Program(3, 7, (Call("x", "setup", phase=1), regular("r"), regular("e", 1), regular("f", 2)))
LATE = Program(1, 5, (Call("x", "setup", first=2), regular("r")))
LATE_OF_TWO = Program(2, 6, (Call("x", "setup", first=2), regular("r"), regular("e", 1)))
IN_BOTH = Program(2, 6, (Call("x", "setup"), Call("y", "setup", phase=1), regular("r"), regular("e", 1),
                         Call("q", "every", every=3)))
OF_STATE = Program(1, 4, (Call("x", "setup", of_state=True), regular("r")))

OF_ONE_VERSION = {"one": ONE, "after": AFTER, "recurs": RECURS, "once": ONCE}
OF_SEVERAL_VERSIONS = {"two": TWO, "three": THREE, "late": LATE, "late of two": LATE_OF_TWO, "in both": IN_BOTH}

# From one site, a set-up round and one that recurs in every version.
BOTH_KINDS = Program(1, 5, (Call("m", "setup"), Call("m"), regular("r")))
# In the second version that a life goes through: what a life that loads that version does not make, when it replays it.
OF_AGE = Program(1, 5, (Call("x", "setup", age=1), regular("r")))


def outcomes(program: Program, rule: Rule, **scope: int) -> set[str]:
    return set(explore(program, rule, **scope)) - {"states"}


class SetupRounds(unittest.TestCase):
    def test_a_table_that_learns_in_every_version_serves_all_programs(self):
        for name, program in {**OF_ONE_VERSION, **OF_SEVERAL_VERSIONS, "of state": OF_STATE}.items():
            with self.subTest(name):
                self.assertEqual(outcomes(program, Rule()), {"done"})

    def test_of_three_ranks_two_are_lost(self):
        for name, program in {"two": TWO, "late of two": LATE_OF_TWO}.items():
            with self.subTest(name):
                self.assertEqual(outcomes(program, Rule(), ranks=3), {"done"})

    def test_three_lives_are_lost(self):
        for name, program in {"two": TWO, "recurs": RECURS, "of state": OF_STATE}.items():
            with self.subTest(name):
                self.assertEqual(outcomes(program, Rule(), kills=3), {"done"})

    # ---- the rule as it is built

    def test_the_rule_that_is_built_serves_all_programs(self):
        for name, program in {**OF_ONE_VERSION, **OF_SEVERAL_VERSIONS, "of state": OF_STATE}.items():
            with self.subTest(name):
                self.assertEqual(outcomes(program, BUILT), {"done", "restart"} if program is RECURS else {"done"})

    # ---- the first rule

    def test_the_first_rule_serves_programs_of_one_version_an_iteration(self):
        for name, program in OF_ONE_VERSION.items():
            with self.subTest(name):
                self.assertEqual(outcomes(program, FIRST), {"done"})

    def test_the_first_rule_ends_jobs_of_several_versions_an_iteration_with_an_error(self):
        for name, program in OF_SEVERAL_VERSIONS.items():
            with self.subTest(name):
                self.assertEqual(outcomes(program, FIRST, kills=1), {"done", "desync"})

    def test_the_first_rule_leaves_ranks_with_different_results_after_all_were_started_again(self):
        self.assertEqual(outcomes(OF_STATE, FIRST, kills=3), {"done", "wrong"})

    # ---- what is needed of the rule that serves all

    def test_of_a_round_that_all_have_made_again_the_first_result_is_wrong(self):
        self.assertEqual(outcomes(OF_STATE, Rule(keeps="first"), kills=3), {"done", "wrong"})

    def test_ranks_that_ask_for_the_same_place_may_ask_for_different_calls(self):
        self.assertEqual(outcomes(RECURS, Rule(unknown="anything"), kills=3), {"done", "desync", "wrong"})
        self.assertEqual(outcomes(RECURS, Rule(unknown="same"), kills=3), {"done", "restart"})
        self.assertEqual(outcomes(RECURS, Rule(unknown="new"), kills=3), {"done"})

    def test_a_guess_is_wrong(self):
        self.assertIn("wrong", outcomes(RECURS, Rule(unknown="never"), kills=1))

    def test_only_the_version_that_was_loaded_is_too_few_to_ask_in(self):
        self.assertIn("desync", outcomes(TWO, Rule(asks_in="first")))

    def test_only_the_first_version_is_too_few_to_learn_in(self):
        self.assertIn("desync", outcomes(LATE, Rule(learns_in="first")))

    # ---- programs that no rule serves

    def test_a_site_of_both_kinds_is_an_error_with_one_loss_and_may_be_wrong_with_two(self):
        for rule in (FIRST, BUILT, Rule()):
            self.assertEqual(outcomes(BOTH_KINDS, rule, kills=1), {"done", "desync"})
            self.assertEqual(outcomes(BOTH_KINDS, rule, kills=2), {"done", "desync", "wrong"})

    def test_a_round_that_a_life_makes_after_its_first_iteration_cannot_be_replayed(self):
        for rule in (FIRST, BUILT, Rule()):
            self.assertIn("desync", outcomes(OF_AGE, rule, kills=1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
