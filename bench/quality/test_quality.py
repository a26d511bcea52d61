"""Tests of the comparison itself. Run with `python3 -m unittest` in this folder."""

import tempfile
import tomllib
import unittest
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import torch

import campanile_side
import torch_side
from compare import Comparison, table
from datasets import Feature, PastRates, Samples, cut, numbered, numbered_lists, training_order
from files import write
from job import Place, job_text
from metrics import Quality, auc, quality
from settings import ARCHITECTURES, SETTINGS

# One thread: these layers are too small to share.
torch.set_num_threads(1)

SETTING = replace(SETTINGS["movielens_1m"], batch_size=64, dim=4, bottom=(8, 4), top=(8,), epochs=3)


def samples(count: int = 400, seed: int = 0) -> Samples:
    """Clicks that follow the parity of an id and a number."""
    random = np.random.default_rng(seed)
    ids, numbers = random.integers(0, 10, count), random.normal(size=(count, 2)).astype(np.float32)
    bags = [tuple(random.integers(0, 4, random.integers(0, 4))) for _ in range(count)]
    chance = 1 / (1 + np.exp(-(3.0 * (ids % 2) - 1.5 + numbers[:, 0])))
    label = (random.random(count) < chance).astype(np.float32)
    features = [numbered("item", list(ids), count, 1), numbered_lists("tags", bags, count, 1)]
    return Samples(label, ["a", "b"], numbers, features)


class DatasetTest(unittest.TestCase):
    def test_ids_are_numbered_on_training_rows_by_falling_count(self):
        feature = numbered("f", ["b", "a", "a", "c", "d", "a"], train_count=4, min_count=1)
        self.assertEqual(list(feature.ids), [2, 1, 1, 3, 0, 1])
        self.assertEqual(feature.row_count, 4)
        self.assertEqual(list(numbered("f", ["b", "a", "a"], 3, min_count=2).ids), [0, 1, 1])

    def test_taking_rows_takes_their_bags(self):
        feature = Feature("f", 9, np.array([0, 2, 2, 5]), np.array([1, 2, 3, 4, 5]))
        taken = feature.take(np.array([2, 0, 1, 0]))
        self.assertEqual(list(taken.ids), [3, 4, 5, 1, 2, 1, 2])
        self.assertEqual(list(taken.offsets), [0, 3, 5, 5, 7])

    def test_counters_look_only_back(self):
        past = PastRates(prior=0.5, strength=2.0)
        self.assertEqual(past.before_then_add("a", 1), (0.0, 0.0))
        self.assertAlmostEqual(past.before_then_add("a", 0)[1], 2 / 3 - 0.5)

    def test_an_epoch_is_whole_batches_of_different_rows(self):
        order = training_order(103, 10, 2, seed=1).reshape(2, 100)
        for epoch in order:
            self.assertEqual(len(set(epoch)), 100)
        self.assertFalse(np.array_equal(order[0], order[1]))
        self.assertFalse(np.array_equal(order[0], training_order(103, 10, 1, seed=2)))


class FilesTest(unittest.TestCase):
    def test_both_forms_hold_the_same_bits(self):
        original = samples(50)
        with tempfile.TemporaryDirectory() as folder:
            for form in ("csv", "parquet"):
                path = Path(folder) / f"train.{form}"
                write(original, path)
                read = pyarrow.csv.read_csv(path) if form == "csv" else pyarrow.parquet.read_table(path)
                self.assertEqual(read.column_names, ["label", "a", "b", "item", "tags"])
                numbers = read["a"].to_numpy().astype(np.float32)
                np.testing.assert_array_equal(numbers, original.dense[:, 0])
                self.assertEqual(list(read["item"].to_numpy()), list(original.features[0].ids))
                bags = read["tags"].to_pylist()
                if form == "csv":
                    bags = [[int(row) for row in str(bag).split("|") if row] for bag in bags]
                tags = original.features[1]
                self.assertEqual(sum(bags, []), list(tags.ids))
                self.assertEqual([len(bag) for bag in bags], list(np.diff(tags.offsets)))

    def test_the_job_is_toml_with_every_column(self):
        place = Place(Path("data"), Path("out"), "csv")
        for architecture in ARCHITECTURES:
            job = tomllib.loads(job_text(samples(), SETTING, architecture, 7, place))
            self.assertEqual(job["run"]["seed"], 7)
            self.assertEqual([column["name"] for column in job["run"]["data"]["sparse"]], ["item", "tags"])
            self.assertEqual(job["run"]["data"]["sparse"][1]["pooling"], "mean")
            self.assertEqual(job["run"]["model"]["kind"], architecture)
            self.assertEqual(job["process"]["data"]["train"], ["data/train_7.csv"])


class MetricsTest(unittest.TestCase):
    def test_auc_is_the_share_of_ordered_pairs(self):
        random = np.random.default_rng(0)
        logits, labels = random.integers(0, 5, 60).astype(float), random.integers(0, 2, 60)
        positive, negative = logits[labels == 1], logits[labels == 0]
        pairs = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
        self.assertAlmostEqual(auc(logits, labels), pairs.mean())

    def test_the_mean_label_has_ne_one(self):
        labels = np.array([1, 0, 0, 0])
        got = quality(np.full(4, np.log(1 / 3)), labels)
        self.assertAlmostEqual(got.ne, 1.0)
        self.assertAlmostEqual(got.auc, 0.5)

    def test_the_report_is_read_or_its_lack_is_told(self):
        report = {"evaluation": {"test": {"tasks": [{"ne": 0.9, "logloss": 0.5, "auc": 0.7}]}, "valid": None}}
        self.assertEqual(campanile_side.read_quality(report, "test"), Quality(0.9, 0.5, 0.7))
        with self.assertRaisesRegex(campanile_side.CampanileFailed, "valid split"):
            campanile_side.read_quality(report, "valid")


class TorchTest(unittest.TestCase):
    def test_rows_follow_the_formula(self):
        rows = torch_side.Rows([Feature("f", 3, np.array([0, 1]), np.array([2]))], SETTING)
        before = rows.weight.detach().clone()
        one = Samples(np.zeros(2), [], np.zeros((2, 0)), [Feature("f", 3, np.array([0, 1, 3]), np.array([2, 2, 0]))])
        pooled = rows.pool(one, 0, 2)
        # The second bag is a mean of two rows.
        torch.testing.assert_close(pooled[1, 0], (before[2] + before[0]) / 2)
        pooled.sum().backward()
        rows.update()
        # Row 2 has gradient 1.5 everywhere: s = 2.25, so its step is the rate; so is row 0's with 0.5. Row 1 rests.
        torch.testing.assert_close(rows.weight[2].detach(), before[2] - SETTING.row_rate)
        torch.testing.assert_close(rows.weight[0].detach(), before[0] - SETTING.row_rate)
        torch.testing.assert_close(rows.weight[1].detach(), before[1])

    def test_every_network_learns(self):
        dataset = cut("tiny", samples(4000))
        for architecture in ARCHITECTURES:
            for structure, rank in (("stacked", None), ("parallel", 3)):
                settings = replace(SETTING, structure=structure, cross_rank=rank)
                scores = torch_side.train(dataset, settings, architecture, seed=1)
                self.assertGreater(scores["test"].auc, 0.8, (architecture, structure))
                self.assertLess(scores["test"].ne, 0.8, (architecture, structure))


class TableTest(unittest.TestCase):
    def test_a_difference_beyond_noise_is_named(self):
        def comparison(shift: float) -> Comparison:
            one = Comparison("d", "dlrm")
            for seed in range(1, 6):
                noise = 0.001 * (-1) ** seed
                one.runs["pytorch"][seed] = Quality(0.8, 0.5, 0.7)
                one.runs["campanile"][seed] = Quality(0.8 + shift + noise, 0.5, 0.7)
            return one

        self.assertEqual(comparison(0.01).verdict(), "WORSE")
        self.assertEqual(comparison(-0.01).verdict(), "better")
        self.assertEqual(comparison(0.0).verdict(), "no difference beyond noise")
        self.assertIn("| d | DLRM | Campanile | 5 |", table([comparison(0.0)]))


if __name__ == "__main__":
    unittest.main()
