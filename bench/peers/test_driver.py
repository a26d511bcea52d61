"""Tests of the driver with a pretended competitor. Run with `python3 -m unittest` in this folder."""

import os
import sys
import unittest
from unittest import mock

import machine
from compare import OURS, Entry, Outcome, detail_lines, fit_in_memory, hopeless, table_line, verdict
from competitor import Competitor, CompetitorFailed, Round, without_folders
from goals import GOALS, goal_of, standard_configurations
from workload import ROW_COUNTS, Configuration, make_batches

SMALL = Configuration("kaggle", "dot", 1, 128, "f32", 2)
COMMAND = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_in.py"), *SMALL.flags()]


def rounds(*rates: float, foreign: float = 0.0) -> list[Round]:
    return [Round(int(rate), 1.0, 2.0, foreign) for rate in rates]


class CompetitorTest(unittest.TestCase):
    def test_a_turn_is_what_the_competitor_says(self):
        with Competitor(COMMAND, {}) as competitor:
            self.assertEqual(competitor.wait_ready(30), {})
            turn = competitor.go(0.5, 30)
            self.assertEqual((turn.samples, turn.wall_s, turn.cpu_s), (12800, 0.5, 0.5))

    def test_failures_are_told_with_their_reason(self):
        with Competitor(COMMAND, {"STAND_IN": "dies"}) as competitor:
            with self.assertRaisesRegex(CompetitorFailed, "ended with code 1: stand-in: told to die"):
                competitor.wait_ready(30)
        with Competitor(COMMAND, {"STAND_IN": "babbles"}) as competitor:
            competitor.wait_ready(30)
            with self.assertRaisesRegex(CompetitorFailed, "answered 'nonsense'"):
                competitor.go(0.5, 30)
        with Competitor(COMMAND, {"STAND_IN": "hangs"}) as competitor:
            competitor.wait_ready(30)
            with self.assertRaisesRegex(CompetitorFailed, "took more than 0.2 s"):
                competitor.go(0.5, 0.2)

    def test_no_folder_is_named_in_what_is_kept(self):
        self.assertEqual(without_folders("`/a/b-c/campanile bench` ended: /x.y/z.rs:3"), "`campanile bench` ended: z.rs:3")

    def test_the_process_ends_with_its_context(self):
        with Competitor(COMMAND, {}) as competitor:
            competitor.wait_ready(30)
        self.assertEqual(competitor.process.returncode, 0)


class OutcomeTest(unittest.TestCase):
    def test_the_ratio_is_taken_round_by_round_against_the_best_peer(self):
        outcome = Outcome(SMALL, {OURS: rounds(40, 20, 44), "a": rounds(20, 10, 20), "b": rounds(15, 9, 15)})
        self.assertEqual(outcome.best_peer(), "a")
        self.assertEqual(outcome.ratios(OURS, "a"), [2.0, 2.0, 2.2])
        self.assertIn("**2.00x** (2.00–2.20)", table_line(outcome))
        self.assertEqual(verdict(outcome, "a", 2.0), "met")
        self.assertEqual(verdict(outcome, "a", 3.0), "stretch met")
        self.assertEqual(verdict(outcome, "a", 1.99), "NOT met")

    def test_disturbed_rounds_count_only_when_there_are_too_few_others(self):
        quiet, loud = rounds(10, 10, 10), rounds(99, foreign=1.0)
        self.assertEqual(Outcome(SMALL, {"a": quiet + loud}).rate("a"), 10)
        few = Outcome(SMALL, {OURS: quiet[:1] + loud * 2, "a": quiet})
        self.assertEqual(few.rate(OURS), 99)
        self.assertEqual(verdict(few, "a", 9.9), "disturbed, no verdict")

    def test_a_hopeless_variant_is_judged_by_undisturbed_turns_only(self):
        entries = [Entry(name, None, name) for name in ("fast", "slow", "hindered")]
        warm = {"fast": rounds(100)[0], "slow": rounds(49)[0], "hindered": rounds(10, foreign=1.0)[0]}
        self.assertEqual([entry.name for entry in hopeless(entries, warm)], ["slow"])

    def test_a_variant_that_could_not_run_is_shown_and_voids_the_goal(self):
        outcome = Outcome(SMALL, {OURS: rounds(40, 40, 44), "fused-eager": rounds(20, 20, 20)})
        outcome.missing["plain-eager"] = "30.0 GB needed, 20.0 GB free"
        self.assertIn("fused-eager; could not run: plain-eager", table_line(outcome))
        self.assertIn("void", table_line(outcome))
        self.assertNotIn("met", verdict(outcome, "fused-eager", 2.0))
        self.assertIn("plain-eager", "".join(detail_lines(outcome)))

    def test_plain_tables_without_memory_are_missing_and_not_forgotten(self):
        outcome = Outcome(Configuration("terabyte", "dot", 1, 2048, "f32", 2))
        free = int(outcome.configuration.table_bytes() * 2.2) + 4_000_000_000
        with mock.patch.object(machine, "memory_bytes", return_value=free):
            self.assertEqual(fit_in_memory(outcome, ["fused-eager", "plain-eager"], 1), ["fused-eager"])
        self.assertEqual(list(outcome.missing), ["plain-eager"])

    def test_a_configuration_without_results_says_so(self):
        self.assertIn("not measured", table_line(Outcome(SMALL)))


class WorkloadTest(unittest.TestCase):
    def test_ids_stay_in_their_tables_and_repeat_as_zipf_says(self):
        made = make_batches(SMALL)
        self.assertGreaterEqual(len(made.ids), 4)
        for table, row_count in enumerate(ROW_COUNTS):
            self.assertTrue(0 <= made.ids[:, table].min() and made.ids[:, table].max() < row_count)
        self.assertTrue(0.65 < made.distinct_share() < 0.85, made.distinct_share())

    def test_products_of_a_sample_are_those_of_the_layers(self):
        flops = {
            (config, arch): Configuration(config, arch, 1, 1, "f32", 1).step_flops() / 1e6
            for config in ("kaggle", "terabyte")
            for arch in ("dot", "dcn")
        }
        self.assertAlmostEqual(flops["kaggle", "dot"], 2.9, delta=0.1)
        self.assertAlmostEqual(flops["kaggle", "dcn"], 4.0, delta=0.1)
        self.assertAlmostEqual(flops["terabyte", "dot"], 14.75, delta=0.15)
        self.assertAlmostEqual(flops["terabyte", "dcn"], 40.4, delta=0.4)

    def test_every_standard_configuration_is_measured_goals_first(self):
        chosen = standard_configurations(["f32", "bf16"], 2, only_goals=False)
        self.assertEqual(len(chosen), 2 * len(GOALS))
        have_goals = [goal_of(configuration) is not None for configuration in chosen]
        self.assertEqual(have_goals, sorted(have_goals, reverse=True))


class MachineTest(unittest.TestCase):
    def test_the_folder_name_is_plain(self):
        with mock.patch.object(machine, "cpu_model", return_value="Intel(R) Xeon(R) CPU @ 2.00GHz"):
            self.assertRegex(machine.slug(), r"^intel-xeon-\d+-cores$")


if __name__ == "__main__":
    unittest.main()
