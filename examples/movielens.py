"""Joins MovieLens 1M's three files into one CSV in order of time, for examples/movielens.toml.

Run with `python3 examples/movielens.py data/ml-1m data/movielens.csv`; needs Python alone.
"""

import csv
import pathlib
import sys


def rows(path):
    with open(path, encoding="latin-1") as lines:
        return [line.rstrip("\n").split("::") for line in lines]


def main(folder, target):
    folder = pathlib.Path(folder)
    users = {user: [gender, age, work] for user, gender, age, work, _ in rows(folder / "users.dat")}
    genres = {movie: kinds for movie, _, kinds in rows(folder / "movies.dat")}
    ratings = sorted(rows(folder / "ratings.dat"), key=lambda rating: int(rating[3]))
    with open(target, "w", newline="", encoding="utf-8") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow("timestamp user_id gender age occupation movie_id genres rating".split())
        for user, movie, stars, time in ratings:
            table.writerow([time, user, *users[user], movie, genres[movie], stars])
    print(f"{len(ratings)} ratings in {target}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
