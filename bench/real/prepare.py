#!/usr/bin/env python3
"""Real logs as streams for `campanile experiment real`: one CSV in the order of time, and one for each domain.

    bench/real/prepare.py DATASET SOURCE TARGET        DATASET: movielens, globo, tafeng, attribution or talkingdata

SOURCE is the data set's folder, TARGET where `all.csv` and `DOMAIN.csv` go. Needs Python alone, and the program `zstd`.

Every counter of a row ("clicks of this article in the last hour") is made of earlier rows only. Logs that hold positives
alone get negatives: items that others took shortly before, evenly drawn, and a positive is kept only if it was one of those
too, so that no counter tells drawn rows from real ones. What is drawn follows from a fixed seed.
"""

import csv
import math
import pathlib
import random
import subprocess
import sys
import zlib
from collections import Counter, defaultdict, deque
from datetime import date, datetime, timezone

SEED = 20_261_116


class Streams:
    """Writes rows to `all.csv`, and to the file of their domain."""

    def __init__(self, target: pathlib.Path, columns: str):
        self.target, self.columns, self.rows = target, columns.split(), Counter()
        target.mkdir(parents=True, exist_ok=True)
        self.files, self.writers = [], {}

    def add(self, row: list, domain: str | None = None) -> None:
        for name in ("all", domain) if domain else ("all",):
            if name not in self.writers:
                self.files.append(open(self.target / f"{name}.csv", "w", newline="", encoding="utf-8"))
                self.writers[name] = csv.writer(self.files[-1], lineterminator="\n")
                self.writers[name].writerow(self.columns)
            self.writers[name].writerow(row)
            self.rows[name] += 1

    def close(self) -> None:
        for file in self.files:
            file.close()
        for name, count in self.rows.most_common():
            print(f"{count:>9} rows in {self.target / name}.csv")


class PastRate:
    """By value: how often it was seen so far, and the smoothed share of positives among that."""

    def __init__(self, prior: float, strength: float = 10.0):
        self.prior, self.strength = prior, strength
        self.seen, self.hits = Counter(), Counter()

    def of(self, value) -> tuple[str, str]:
        seen, hits = self.seen[value], self.hits[value]
        rate = (hits + self.prior * self.strength) / (seen + self.strength)
        return number(math.log1p(seen) / 8), number(rate - self.prior)

    def add(self, value, label: int) -> None:
        self.seen[value] += 1
        self.hits[value] += label


class Lately:
    """Things that happened within some time, countable and drawable."""

    def __init__(self, window: float):
        self.window, self.events, self.counts = window, deque(), Counter()
        self.items, self.place = [], {}

    def add(self, time: float, item) -> None:
        self.events.append((time, item))
        if item not in self.place:
            self.place[item] = len(self.items)
            self.items.append(item)
        self.counts[item] += 1

    def forget(self, now: float) -> None:
        while self.events and self.events[0][0] <= now - self.window:
            _, item = self.events.popleft()
            self.counts[item] -= 1
            if self.counts[item] == 0:
                del self.counts[item]
                # The last one takes its place, so that drawing stays a matter of one index.
                hole, last = self.place.pop(item), self.items.pop()
                if last != item:
                    self.items[hole], self.place[last] = last, hole

    def draw(self, dice: random.Random, but: set):
        for _ in range(20):
            item = self.items[dice.randrange(len(self.items))]
            if item not in but:
                return item
        return None


def number(value: float) -> str:
    return f"{value:.5g}"


def logged(value: float) -> str:
    return number(math.log1p(value) / 4)


def one_in(count: int, value: str) -> bool:
    """Whether a value is among the one in `count` that are kept; the same ones every time."""
    return zlib.crc32(value.encode()) % count == 0


def unpacked(path: pathlib.Path):
    with subprocess.Popen(["zstd", "-dc", str(path)], stdout=subprocess.PIPE, text=True) as process:
        yield from csv.DictReader(process.stdout)


def movielens(source: pathlib.Path, target: pathlib.Path) -> None:
    """Two behaviours: four stars or more, and five. The teacher alone sees past counts and rates."""

    def table(name: str) -> list[list[str]]:
        return [line.split("::") for line in (source / name).read_text("latin-1").splitlines()]

    users = {user: [gender, age, work] for user, gender, age, work, _ in table("users.dat")}
    movies = {movie: (int(title[-5:-1]), genres) for movie, title, genres in table("movies.dat")}
    ratings = sorted(table("ratings.dat"), key=lambda rating: int(rating[3]))
    streams = Streams(
        target,
        "time like love user gender age occupation movie genres year user_count user_rate user_love_rate movie_count "
        "movie_rate movie_love_rate",
    )
    by_user, by_movie = (PastRate(0.57), PastRate(0.22)), (PastRate(0.57), PastRate(0.22))
    for user, movie, stars, time in ratings:
        labels = int(stars) >= 4, int(stars) >= 5
        year, genres = movies[movie]
        counters = []
        for rates, value in ((by_user, user), (by_movie, movie)):
            (count, like), (_, love) = rates[0].of(value), rates[1].of(value)
            counters += [count, like, love]
            for rate, label in zip(rates, labels):
                rate.add(value, int(label))
        row = [time, *map(int, labels), user, *users[user], movie, genres, number((year - 1980) / 20), *counters]
        streams.add(row)
    streams.close()


def globo(source: pathlib.Path, target: pathlib.Path) -> None:
    """A news portal over three days; domains are kinds of devices. One user in three, three drawn articles for a click."""
    start_ms, days, hour_s = 1506826800000, 3, 3600.0
    domains = {"1": "desktop", "3": "mobile", "4": "tablet"}
    streams = Streams(
        target,
        "time click user article environment device os country region referrer hour last clicks_hour clicks_quarter clicks_all "
        "age user_clicks",
    )
    dice = random.Random(SEED)
    hour, quarter = Lately(hour_s), Lately(hour_s / 4)
    clicks_all, first_seen, user_clicks, last = Counter(), {}, Counter(), defaultdict(lambda: deque(maxlen=5))
    for click in unpacked(source / "clicks_by_time.csv.zst"):
        time_ms = int(click["click_timestamp"])
        if time_ms >= start_ms + days * 86_400_000:
            break
        time, user, article = time_ms / 1000, click["user_id"], click["click_article_id"]
        hour.forget(time)
        quarter.forget(time)
        domain = domains.get(click["click_deviceGroup"])
        # Half a day fills the counters before the first row.
        if time_ms > start_ms + 43_200_000 and domain and one_in(3, user) and article in hour.counts:
            drawn = {article}
            shown = [(article, 1)]
            for _ in range(3):
                other = hour.draw(dice, drawn)
                if other is not None:
                    drawn.add(other)
                    shown.append((other, 0))
            dice.shuffle(shown)
            context = [click[f"click_{name}"] for name in "environment deviceGroup os country region referrer_type".split()]
            for item, label in shown:
                counters = [logged(hour.counts[item]), logged(quarter.counts[item]), logged(clicks_all[item])]
                counters += [logged((time - first_seen[item]) / 60), logged(user_clicks[user])]
                of_day = int(time // 3600) % 24
                streams.add([int(time), label, user, item, *context, of_day, "|".join(last[user]), *counters], domain)
        hour.add(time, article)
        quarter.add(time, article)
        clicks_all[article] += 1
        first_seen.setdefault(article, time)
        user_clicks[user] += 1
        last[user].append(article)
    streams.close()


def tafeng(source: pathlib.Path, target: pathlib.Path) -> None:
    """A grocer over four months; domains are zones. One customer in four, three drawn products for a purchase.

    Days are the only times, so counters stand as they did when the day began."""
    domains = {"115": "zone_115", "221": "zone_221", "110": "zone_110"}
    streams = Streams(
        target,
        "time bought customer age zone product subclass weekday had_product had_subclass sold_week sold_all customer_lines price",
    )
    dice = random.Random(SEED)
    week, sold_all, lines = Lately(7.0), Counter(), Counter()
    had_product, had_subclass, subclass_of, price = Counter(), Counter(), {}, {}
    days = defaultdict(list)
    for line in unpacked(source / "transactions_by_date.csv.zst"):
        days[line["date"]].append(line)
    for text, bought in sorted(days.items()):
        day = date.fromisoformat(text)
        time = day.toordinal() - date(2000, 11, 1).toordinal()
        week.forget(time)
        for line in bought if time >= 7 else []:
            customer, product = line["customer_id"], line["product_id"]
            if not one_in(4, customer) or product not in week.counts:
                continue
            drawn, shown = {product}, [(product, 1)]
            for _ in range(3):
                other = week.draw(dice, drawn)
                if other is not None:
                    drawn.add(other)
                    shown.append((other, 0))
            dice.shuffle(shown)
            for item, label in shown:
                subclass = subclass_of[item]
                counters = [had_product[customer, item], had_subclass[customer, subclass], week.counts[item]]
                counters = [logged(count) for count in [*counters, sold_all[item], lines[customer]]]
                row = [time, label, customer, line["age_group"], line["pin_code"], item, subclass, day.weekday()]
                streams.add([*row, *counters, logged(price[item])], domains.get(line["pin_code"]))
        for line in bought:
            customer, product, subclass = line["customer_id"], line["product_id"], line["product_subclass"]
            week.add(time, product)
            sold_all[product] += 1
            lines[customer] += 1
            subclass_of[product] = subclass
            had_product[customer, product] += 1
            had_subclass[customer, subclass] += 1
            price[product] = max(float(line["sales_price"]) / max(float(line["amount"]), 1.0), 0.0)
    streams.close()


def attribution(source: pathlib.Path, target: pathlib.Path) -> None:
    """Criteo's attribution log: five ids and a click; the row's number stands for its time."""
    names = ["cat1", "cat4", "cat6", "cat8", "cat9"]
    streams = Streams(target, " ".join(["time", "click", *names, *(f"{name}_rate" for name in names), "pair_rate"]))
    rates, pairs = {name: PastRate(0.36) for name in names}, PastRate(0.36)
    rows = sorted(unpacked(source / "impressions.csv.zst"), key=lambda row: int(row["row"]))
    for row in rows:
        label, pair = int(row["click"]), (row["cat1"], row["cat8"], row["cat9"])
        past = [rates[name].of(row[name])[1] for name in names] + [pairs.of(pair)[1]]
        streams.add([row["row"], label, *(row[name] for name in names), *past])
        pairs.add(pair, label)
        for name in names:
            rates[name].add(row[name], label)
    streams.close()


def talkingdata(source: pathlib.Path, target: pathlib.Path) -> None:
    """Clicks on ads and the installs that follow, which are very rare. The teacher alone sees addresses and rates."""
    streams = Streams(target, "time install ip app device os channel hour app_count app_rate channel_count channel_rate ip_count ip_rate")
    rates = {name: PastRate(0.0023, 200.0) for name in ("app", "channel", "ip")}
    for row in unpacked(source / "clicks_by_time.csv.zst"):
        at = datetime.strptime(row["click_time"], "%Y-%m-%d %H:%M").replace(tzinfo=timezone.utc)
        label = int(row["is_attributed"])
        past = [text for name in rates for text in rates[name].of(row[name])]
        ids = [row[name] for name in ("ip", "app", "device", "os", "channel")]
        streams.add([int(at.timestamp()), label, *ids, at.hour, *past])
        for name in rates:
            rates[name].add(row[name], label)
    streams.close()


DATASETS = {one.__name__: one for one in (movielens, globo, tafeng, attribution, talkingdata)}

if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in DATASETS:
        sys.exit(__doc__)
    DATASETS[sys.argv[1]](pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
