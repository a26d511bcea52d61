"""Logs with 26 features, as ranking logs have them: beside what the files say, what was known before a row.

All that is counted is counted on rows strictly earlier in time: of rows of one moment (a second of MovieLens, a day of Ta-Feng)
none knows of another. Counts and rates become ids by buckets; the last movies or products of a user are bags.
"""

import csv
import itertools
import math
import random
from collections import Counter, defaultdict, deque
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Callable, Iterable, Iterator

import numpy as np

from datasets import Dataset, Samples, bounds, cut, numbered, numbered_lists, read_zstd

REMEMBERED = 8  # Last movies or products of a user.
OFTEN = 5  # Ids seen less often in the training rows share a row of their table.


def steps(count: float) -> int:
    """A bucket for a count, two for each doubling."""
    return min(int(2 * math.log2(1 + count)), 30)


def level(rate: float) -> int:
    """A bucket for a share of one."""
    return round(20 * rate)


class Likes:
    """Counts and smoothed rates of a label per value."""

    def __init__(self, prior: float, strength: float = 5.0):
        self.prior, self.strength = prior, strength
        self.seen: Counter = Counter()
        self.hits: Counter = Counter()

    def add(self, value, label: int) -> None:
        self.seen[value] += 1
        self.hits[value] += label

    def rate(self, *values) -> float:
        """Of all these values together."""
        seen, hits = (sum(counter[value] for value in values) for counter in (self.seen, self.hits))
        return (hits + self.prior * self.strength) / (seen + self.strength)


def before_then_add(rows: Iterable, moment: Callable, known: Callable, add: Callable) -> Iterator:
    """What is `known` of every row before its moment; a moment's rows are then added together."""
    for _, together in itertools.groupby(rows, key=moment):
        together = list(together)
        yield from map(known, together)
        for row in together:
            add(row)


def columns(rows: Iterable[dict]) -> dict[str, list]:
    found = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            found[name].append(value)
    return found


def samples(label: list[int], named: dict[str, list], dense: dict[str, list[float]]) -> Samples:
    """Rows whose features are values, or tuples of them for bags."""
    train_count = bounds(len(label))[0]
    features = []
    for name, values in named.items():
        make = numbered_lists if isinstance(values[0], tuple) else numbered
        features.append(make(name, values, train_count, OFTEN))
    numbers = np.array(list(dense.values()), np.float32).T
    return Samples(np.array(label, np.float32), list(dense), numbers, features)


class Viewers:
    """What MovieLens knows of its users and movies by a moment."""

    def __init__(self, users: dict, movies: dict, prior: float):
        self.users, self.movies = users, movies
        self.user, self.movie, self.user_genre, self.user_decade, self.group_movie = (Likes(prior) for _ in range(5))
        self.liked: dict = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self.disliked: dict = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self.last: dict = {}

    def parts(self, rating: tuple) -> tuple:
        user, movie, *_ = rating
        gender, age, *_ = self.users[user]
        year, genres = self.movies[movie]
        return [(user, genre) for genre in genres], (user, year // 10), (gender, age, movie)

    def known(self, rating: tuple) -> dict:
        user, movie, _, time = rating
        of_genres, of_decade, of_group = self.parts(rating)
        gender, age, work, place = self.users[user]
        year, genres = self.movies[movie]
        moment = datetime.fromtimestamp(time, timezone.utc)
        last_time, last_movie = self.last.get(user, (0, ""))
        return {
            "user": user, "gender": gender, "age": age, "occupation": work, "region": place[:2],
            "movie": movie, "genres": genres, "first_genre": genres[0], "genre_count": len(genres), "year": year, "decade": year // 10,
            "hour": moment.hour, "weekday": moment.weekday(),
            "user_count": steps(self.user.seen[user]), "user_rate": level(self.user.rate(user)),
            "movie_count": steps(self.movie.seen[movie]), "movie_rate": level(self.movie.rate(movie)),
            "genres_count": steps(sum(self.user_genre.seen[one] for one in of_genres)), "genres_rate": level(self.user_genre.rate(*of_genres)),
            "decade_rate": level(self.user_decade.rate(of_decade)), "group_rate": level(self.group_movie.rate(of_group)),
            "liked": tuple(self.liked[user]), "disliked": tuple(self.disliked[user]),
            "liked_genres": tuple(genre for one in self.liked[user] for genre in self.movies[one][1]),
            "last_movie": last_movie, "gap": steps(time - last_time) if last_time else -1,
        }  # fmt: skip

    def add(self, rating: tuple) -> None:
        user, movie, label, time = rating
        of_genres, of_decade, of_group = self.parts(rating)
        self.user.add(user, label)
        self.movie.add(movie, label)
        self.user_decade.add(of_decade, label)
        self.group_movie.add(of_group, label)
        for one in of_genres:
            self.user_genre.add(one, label)
        (self.liked if label else self.disliked)[user].append(movie)
        self.last[user] = (time, movie)


def movielens_past(folder: Path) -> Dataset:
    """MovieLens 1M: does a user give a movie 4 or 5 stars? With what was known of both."""

    def table(name: str) -> list[list[str]]:
        return [line.split("::") for line in (folder / name).read_text("latin-1").splitlines()]

    users = {user: about for user, *about in table("users.dat")}
    movies = {movie: (int(title[-5:-1]), tuple(genres.split("|"))) for movie, title, genres in table("movies.dat")}
    ratings = [(user, movie, int(int(stars) >= 4), int(time)) for user, movie, stars, time in table("ratings.dat")]
    ratings.sort(key=lambda rating: rating[3])
    return cut("movielens_1m, 26 features", movielens_samples(ratings, users, movies))


def movielens_samples(ratings: list[tuple], users: dict, movies: dict) -> Samples:
    train_count = bounds(len(ratings))[0]
    label = [rating[2] for rating in ratings]
    prior = sum(label[:train_count]) / train_count
    viewers = Viewers(users, movies, prior)
    named = columns(before_then_add(ratings, lambda rating: rating[3], viewers.known, viewers.add))
    dense = {
        "years": [(year - 1980) / 20 for year in named["year"]],
        **{f"{name}_steps": [count / 16 for count in named[name]] for name in ("user_count", "movie_count")},
        **{f"{name}_level": [rate / 20 - prior for rate in named[name]] for name in ("user_rate", "movie_rate")},
    }
    return samples(label, named, dense)


class Shoppers:
    """What Ta-Feng knows of its customers and products by a day."""

    def __init__(self):
        self.count: Counter = Counter()
        self.day_of: dict = {}  # The last day of a customer, of a product with a customer, and so on.
        self.first_day: dict = {}
        self.week: dict = defaultdict(deque)  # Days of sales, of the last week once trimmed.
        self.bought: dict = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self.price: dict = {}
        self.margin: dict = {}
        self.spent: Counter = Counter()
        self.visits: Counter = Counter()
        self.subclass_counts: dict = defaultdict(Counter)

    def in_week(self, key, day: int) -> int:
        days = self.week[key]
        while days and days[0] < day - 7:
            days.popleft()
        return len(days)

    def gap(self, key, day: int) -> int:
        return steps(day - self.day_of[key]) if key in self.day_of else -1

    def known(self, offer: dict) -> dict:
        customer, product, subclass, day = (offer[name] for name in ("customer", "product", "subclass", "day"))
        bought, price = self.count[customer], self.price.get(product)
        usual = self.spent[customer] / bought if bought else None
        favourites = self.subclass_counts[customer].most_common(1) if customer in self.subclass_counts else []
        last = list(self.bought[customer])
        return {
            "customer": customer, "age": offer["age"], "zone": offer["zone"], "product": product, "subclass": subclass,
            "class": subclass[:4], "weekday": day % 7,
            "price": -1 if price is None else steps(price), "margin": self.margin.get(product, -1),
            "price_level": -1 if price is None or usual is None else steps(8 * price / max(usual, 1)),
            "product_count": steps(self.count[product]), "product_week": steps(self.in_week(product, day)),
            "subclass_week": steps(self.in_week(subclass, day)), "product_age": steps(day - self.first_day.get(product, day)),
            "customer_count": steps(bought), "visits": steps(self.visits[customer]), "customer_gap": self.gap(customer, day),
            "own_count": steps(self.count[customer, product]), "own_gap": self.gap((customer, product), day),
            "own_subclass_count": steps(self.count[customer, subclass]), "own_subclass_gap": self.gap((customer, subclass), day),
            "zone_count": steps(self.count[offer["zone"], product]), "age_count": steps(self.count[offer["age"], product]),
            "last_products": tuple(product for product, _ in last), "last_subclasses": tuple(subclass for _, subclass in last),
            "favourite": favourites[0][0] if favourites else "",
        }  # fmt: skip

    def add(self, offer: dict) -> None:
        if not offer["label"]:
            return
        customer, product, subclass, day = (offer[name] for name in ("customer", "product", "subclass", "day"))
        self.visits[customer] += self.day_of.get(customer) != day
        of_customer = [customer, (customer, product), (customer, subclass)]
        for key in [*of_customer, product, (offer["zone"], product), (offer["age"], product)]:
            self.count[key] += 1
        for key in of_customer:
            self.day_of[key] = day
        self.first_day.setdefault(product, day)
        for key in (product, subclass):
            self.week[key].append(day)
        self.bought[customer].append((product, subclass))
        self.price[product], self.margin[product] = offer["price"], offer["margin"]
        self.spent[customer] += offer["price"]
        self.subclass_counts[customer][subclass] += 1


def with_negatives(bought: list[dict], seed: int = 1) -> list[dict]:
    """After every purchase one that was not made: the same customer, and a product that somebody else bought that day, drawn as
    often as it was bought. Purchases are in order of their days."""
    draw, rows = random.Random(seed), []
    for _, of_day in itertools.groupby(bought, key=lambda row: row["day"]):
        of_day = list(of_day)
        own = {(row["customer"], row["product"]) for row in of_day}
        draw.shuffle(of_day)  # Customers in no order: the log has them sorted nearly.
        for row in of_day:
            others = (draw.choice(of_day) for _ in range(20))
            other = next((other for other in others if (row["customer"], other["product"]) not in own), None)
            rows.append({**row, "label": 1})
            if other is not None:
                of_product = {name: other[name] for name in ("product", "subclass", "price", "margin")}
                rows.append({**row, **of_product, "label": 0})
    return rows


def ta_feng(folder: Path) -> Dataset:
    """Ta-Feng, a grocery: does a customer buy this product today, or is it one that only others buy?"""
    first, bought = date(2000, 11, 1), []
    for row in csv.DictReader(read_zstd(folder / "transactions_by_date.csv.zst")):
        amount, asset, paid = (float(row[name]) for name in ("amount", "asset", "sales_price"))
        bought.append(
            {
                "day": (date.fromisoformat(row["date"]) - first).days,
                "customer": "c" + row["customer_id"],
                "age": row["age_group"],
                "zone": row["pin_code"],
                "product": row["product_id"],
                "subclass": row["product_subclass"],
                "price": paid / max(amount, 1),
                "margin": level(min(max(1 - asset / paid, -1), 1)) if paid > 0 else -99,
            }
        )
    return cut("ta_feng, 26 features", ta_feng_samples(with_negatives(bought)))


def ta_feng_samples(offers: list[dict]) -> Samples:
    shoppers = Shoppers()
    named = columns(before_then_add(offers, lambda offer: offer["day"], shoppers.known, shoppers.add))
    counts = ("product_count", "customer_count", "own_count", "own_subclass_count")
    dense = {f"{name}_steps": [count / 16 for count in named[name]] for name in counts}
    return samples([offer["label"] for offer in offers], named, dense)
