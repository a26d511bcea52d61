"""Tests of the turns and of the counted arithmetic. Run with `python3 -m unittest test_towers_data` in this folder."""

import unittest

import numpy as np

from datasets import Samples, cut, numbered, numbered_lists
from towers_data import Over, module_multiply_adds, turned


class TurnsTest(unittest.TestCase):
    def test_every_row_is_tested_once_and_keeps_its_bags(self):
        count, turns = 50, 10
        bags = [tuple(range(row % 4)) for row in range(count)]
        features = [numbered("item", list(range(count)), count, 1), numbered_lists("tags", bags, count, 1)]
        numbers = np.arange(count, dtype=np.float32)
        dataset = cut("a log", Samples(numbers, ["row"], numbers[:, None], features))
        tested = []
        for turn in range(turns):
            test = turned(dataset, turn, turns).test
            tested += list(test.label)
            self.assertTrue((test.dense[:, 0] == test.label).all())
            self.assertEqual(list(np.diff(test.features[1].offsets)), [int(row) % 4 for row in test.label])
        self.assertEqual(sorted(tested), list(range(count)))


class ArithmeticTest(unittest.TestCase):
    def test_every_matrix_is_counted_once(self):
        # A cross layer is 2 x 10 and 10 x 2; the deep one 10 x 3; the logit sees both ends.
        self.assertEqual(Over(1, 2, (3,)).multiply_adds(10), 40 + 30 + 13)
        # Towers of one and of two features of 32 floats: a square matrix, and one to 8 floats a feature.
        self.assertEqual(module_multiply_adds([1, 2], 8), 32 * 32 + 8 * 32 + 64 * 64 + 16 * 64)


if __name__ == "__main__":
    unittest.main()
