"""Counters look only backwards, and drawn rows cannot be told by them. Run with `python3 -m unittest` in this folder."""

import csv
import pathlib
import random
import tempfile
import unittest
from unittest import mock

import prepare


def rows(path: pathlib.Path) -> list[dict]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Lately(unittest.TestCase):
    def test_what_is_older_than_the_window_is_forgotten(self):
        lately = prepare.Lately(10)
        for time, item in [(0, "a"), (1, "b"), (5, "a"), (9, "c")]:
            lately.add(time, item)
        self.assertEqual(dict(lately.counts), {"a": 2, "b": 1, "c": 1})
        lately.forget(11)
        self.assertEqual(dict(lately.counts), {"a": 1, "c": 1})
        dice = random.Random(1)
        self.assertEqual({lately.draw(dice, {"a"}) for _ in range(20)}, {"c"})
        self.assertIsNone(lately.draw(dice, {"a", "c"}))

    def test_drawing_is_even_whatever_was_removed(self):
        lately, dice = prepare.Lately(100), random.Random(2)
        for time in range(300):
            lately.add(time, time % 7 if time < 150 else time % 5)
            lately.forget(time)
        self.assertEqual(sorted(lately.items), sorted(lately.counts))
        drawn = [lately.draw(dice, set()) for _ in range(5000)]
        for item in range(5):
            self.assertAlmostEqual(drawn.count(item) / 5000, 0.2, delta=0.03)


class Datasets(unittest.TestCase):
    def test_a_rate_is_that_of_earlier_rows(self):
        log = [{"row": str(n), "click": str(n % 2), **{f"cat{c}": "x" for c in (1, 4, 6, 8, 9)}} for n in range(40)]
        shuffled = random.Random(3).sample(log, len(log))
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(prepare, "unpacked", lambda _: shuffled):
            prepare.attribution(pathlib.Path(folder), pathlib.Path(folder) / "out")
            found = rows(pathlib.Path(folder) / "out" / "all.csv")
        self.assertEqual([int(row["time"]) for row in found], list(range(40)))
        seen, hits = 0, 0
        for row in found:
            rate = (hits + 0.36 * 10) / (seen + 10) - 0.36
            self.assertAlmostEqual(float(row["cat8_rate"]), rate, places=4)
            seen, hits = seen + 1, hits + int(row["click"])

    def test_a_day_of_purchases_does_not_know_itself(self):
        def line(day, customer, product):
            values = {"date": f"2000-11-{day:02}", "customer_id": customer, "age_group": "A", "pin_code": "115"}
            return {**values, "product_subclass": "s", "product_id": product, "amount": "1", "sales_price": "3"}

        early = [line(day, "c", product) for day in (1, 5) for product in ("p", "q", "r", "s")]
        late = [line(day, "c", "p") for day in (9, 9, 10)]
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(prepare, "unpacked", lambda _: early + late):
            with mock.patch.object(prepare, "one_in", lambda *_: True):
                prepare.tafeng(pathlib.Path(folder), pathlib.Path(folder) / "out")
            found = rows(pathlib.Path(folder) / "out" / "all.csv")
        bought = [row for row in found if row["bought"] == "1"]
        # Both lines of the ninth day stand as the day began: two purchases before. The tenth knows of all four.
        self.assertEqual([row["had_product"] for row in bought], [prepare.logged(n) for n in (2, 2, 4)])
        self.assertIn(sum(row["bought"] == "0" for row in found), (7, 8, 9))  # a draw may miss among so few
        self.assertTrue(all(row["product"] != "p" for row in found if row["bought"] == "0"))


if __name__ == "__main__":
    unittest.main()
