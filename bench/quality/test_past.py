"""Tests of the logs with 26 features. Run with `python3 -m unittest test_past` in this folder."""

import unittest

import numpy as np

from past import Shoppers, before_then_add, level, movielens_samples, steps, ta_feng_samples, with_negatives

USERS = {str(user): ["FM"[user % 2], "25", str(user % 3), f"{user}0000"] for user in range(4)}
MOVIES = {str(movie): (1960 + 7 * movie, ("Drama", "War")[: 1 + movie % 2]) for movie in range(5)}


def ratings(count=200):
    """Two a second, so that every second has rows that must not know of each other."""
    draw = np.random.default_rng(3)
    return [(str(draw.integers(4)), str(draw.integers(5)), int(draw.integers(2)), row // 2) for row in range(count)]


def purchases(count=200):
    draw = np.random.default_rng(4)
    made = []
    for row in range(count):
        product = int(draw.integers(12))
        about = {"age": "A", "zone": "115", "price": float(draw.integers(1, 90)), "margin": 3}
        made.append({"day": row // 20, "customer": f"c{draw.integers(6)}", "product": str(product), "subclass": f"10{product % 4}", **about})
    return made


def seen(samples, rows):
    """All that a model sees of these rows."""
    bags = [[list(f.ids[f.offsets[row] : f.offsets[row + 1]]) for f in samples.features] for row in rows]
    return bags, samples.dense[rows].tolist()


def named(samples, name):
    return next(feature for feature in samples.features if feature.name == name)


class PastTest(unittest.TestCase):
    def test_rows_of_one_moment_do_not_know_of_each_other(self):
        sums = [0]
        rows = [(1, 5), (1, 6), (2, 7)]
        found = before_then_add(rows, lambda row: row[0], lambda _: sums[0], lambda row: sums.append(sums.pop() + row[1]))
        self.assertEqual(list(found), [0, 0, 11])

    def test_buckets_grow_and_end(self):
        self.assertEqual([steps(count) for count in (0, 1, 3, 7)], [0, 2, 4, 6])
        self.assertEqual(steps(1e12), 30)
        self.assertEqual((level(0.0), level(0.5), level(1.0)), (0, 10, 20))

    def test_movielens_has_26_features_and_no_row_sees_its_own_moment_or_later(self):
        one = ratings()
        # The training rows stay, for ids are numbered on them; labels change from second 85 on.
        other = [(u, m, 1 - label if time >= 85 else label, time) for u, m, label, time in one]
        a, b = (movielens_samples(rows, USERS, MOVIES) for rows in (one, other))
        self.assertEqual(len(a.features), 26)
        self.assertEqual(seen(a, range(172)), seen(b, range(172)))
        self.assertNotEqual(seen(a, range(172, 200)), seen(b, range(172, 200)))

    def test_movielens_remembers_what_a_user_liked(self):
        rows = [("0", "1", 1, 1), ("0", "2", 0, 2), ("1", "3", 1, 3), ("0", "4", 1, 4)] * 10
        rows = [(user, movie, label, 10 * turn + time) for turn, (user, movie, label, time) in enumerate(rows)]
        liked = named(movielens_samples(rows, USERS, MOVIES), "liked")
        # Before the first row nothing; before the fourth the one movie that this user liked.
        self.assertEqual(list(np.diff(liked.offsets)[:6]), [0, 1, 0, 1, 2, 3])

    def test_ta_feng_has_26_features_and_no_row_sees_its_own_day_or_later(self):
        one = with_negatives(purchases())
        last = one[-1]["day"]
        other = [{**row, "label": 1 - row["label"]} if row["day"] == last - 1 else row for row in one]
        a, b = (ta_feng_samples(rows) for rows in (one, other))
        self.assertEqual(len(a.features), 26)
        before = [row for row, offer in enumerate(one) if offer["day"] < last]
        after = [row for row, offer in enumerate(one) if offer["day"] == last]
        self.assertEqual(seen(a, before), seen(b, before))
        self.assertNotEqual(seen(a, after), seen(b, after))

    def test_what_was_not_bought_is_counted_nowhere(self):
        offers = with_negatives(purchases())

        def known_of_purchases(rows):
            shoppers = Shoppers()
            known = before_then_add(rows, lambda row: row["day"], shoppers.known, shoppers.add)
            return [one for one, row in zip(known, rows) if row["label"]]

        self.assertEqual(known_of_purchases(offers), known_of_purchases([row for row in offers if row["label"]]))

    def test_a_negative_is_a_product_that_others_bought_that_day(self):
        made = purchases()
        offers = with_negatives(made)
        bought = {(row["day"], row["customer"], row["product"]) for row in made}
        of_day = {(row["day"], row["product"]) for row in made}
        refused = [row for row in offers if not row["label"]]
        self.assertGreater(len(refused), len(made) * 0.9)
        for row in refused:
            self.assertNotIn((row["day"], row["customer"], row["product"]), bought)
            self.assertIn((row["day"], row["product"]), of_day)
        self.assertEqual(with_negatives(made), offers)


if __name__ == "__main__":
    unittest.main()
