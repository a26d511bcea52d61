"""Campanile's planner and TorchRec's on the same random tables and clusters, each judged by the other's prices.

Two comparisons a case, each under one model of cost:

  our prices     both planners plan by themselves; TorchRec's plan is written as a plan file and priced by Campanile
  their prices   TorchRec's enumerator lists its sharding options with its own estimates; TorchRec picks among them, and
                 Campanile's search places the same options at the same prices

The figure is the load of the busiest rank, ours divided by theirs: at most 1 is no worse.
"""

import argparse
import json
import logging
import pathlib
import random
import subprocess
import sys
import tempfile
import tomllib
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch  # noqa: E402
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology  # noqa: E402
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation  # noqa: E402
from torchrec.modules.embedding_configs import EmbeddingBagConfig  # noqa: E402
from torchrec.modules.embedding_modules import EmbeddingBagCollection  # noqa: E402

COLUMN_BLOCK = 32  # where Campanile can cut columns; TorchRec is given the same grid
MILLISECOND = 1_000_000_000  # in picoseconds
# TorchRec's sharding types by where their parts may go.
SPREADS = {
    "table_wise": "ranks",
    "column_wise": "ranks",
    "row_wise": "everywhere",
    "table_row_wise": "hosts",
    "grid_shard": "hosts",
    "table_column_wise": None,
    "data_parallel": "everywhere",
}


def random_case(seed):
    """Tables with log-normal rows and ids on one to four hosts."""
    chance = random.Random(seed)
    hosts, per_host = chance.choice([1, 2, 4]), chance.choice([2, 4, 8])
    tables = []
    for number in range(chance.choice([10, 26, 60, 120])):
        tables.append(
            {
                "name": f"t{number:03}",
                "rows": int(chance.lognormvariate(11.5, 1.5)) + 1,
                "dim": chance.choice([32, 64, 128]),
                "ids": round(min(200.0, chance.lognormvariate(1.0, 1.2)), 2) + 1.0,
            }
        )
    held = sum(table["rows"] * (table["dim"] + 1) * 4 for table in tables)
    ranks = hosts * per_host
    # Plenty: what is compared is balance, and TorchRec finds no plan where memory is tight.
    mib = max(8192, int(8.0 * held / ranks / 2**20))
    return {
        "hosts": hosts,
        "ranks_per_host": per_host,
        "memory_mib_per_rank": mib,
        "batch_size": chance.choice([2048, 8192]),
        "tables": tables,
    }


class TheirPlanner:
    """TorchRec's planner for a case; rates are those of our topology, in bytes a millisecond."""

    def __init__(self, case, rates):
        ranks = case["hosts"] * case["ranks_per_host"]
        self.case = case
        topology = Topology(
            world_size=ranks,
            local_world_size=case["ranks_per_host"],
            compute_device="cpu",
            ddr_cap=case["memory_mib_per_rank"] << 20,
            ddr_mem_bw=rates["compute"]["copy_bytes_per_second"] / 1000,
            intra_host_bw=rates["in_host"]["bytes_per_second"] / 1000,
            inter_host_bw=rates["cross_host"]["bytes_per_second"] / 1000,
        )
        constraints = {
            table["name"]: ParameterConstraints(pooling_factors=[table["ids"]], min_partition=COLUMN_BLOCK)
            for table in case["tables"]
        }
        config = [
            EmbeddingBagConfig(
                name=table["name"],
                num_embeddings=table["rows"],
                embedding_dim=table["dim"],
                feature_names=[table["name"]],
            )
            for table in case["tables"]
        ]
        self.module = EmbeddingBagCollection(tables=config, device=torch.device("meta"))
        self.planner = EmbeddingShardingPlanner(
            topology=topology,
            batch_size=case["batch_size"] // ranks,
            constraints=constraints,
            storage_reservation=FixedPercentageStorageReservation(0.0),
            debug=False,
        )

    def plan(self):
        """The shards of every table, and the busiest rank's load by TorchRec's estimates in milliseconds."""
        sharders = [EmbeddingBagCollectionSharder()]
        plan = self.planner.plan(self.module, sharders)
        ranks = self.case["hosts"] * self.case["ranks_per_host"]
        loads = [0.0] * ranks
        for option in self.planner._best_plan:
            for shard in option.shards:
                # A replica has no rank of its own: every rank has one.
                for rank in range(ranks) if shard.rank is None else [shard.rank]:
                    loads[rank] += shard.perf.total
        shards = {}
        for parameters in plan.plan.values():
            for name, sharding in parameters.items():
                shards[name] = (sharding.sharding_type, sharding.sharding_spec, sharding.ranks)
        return shards, max(loads)

    def options(self):
        """All sharding options, table by table, as Campanile's search reads them."""
        sharders = [EmbeddingBagCollectionSharder()]
        by_table = {table["name"]: [] for table in self.case["tables"]}
        ranks = self.case["hosts"] * self.case["ranks_per_host"]
        for option in self.planner._enumerator.enumerate(self.module, sharders):
            spread = SPREADS.get(option.sharding_type)
            if option.sharding_type == "table_column_wise":
                # Column parts on the ranks of one host: allowed there, so allowed to us as parts on any ranks.
                spread = "ranks"
            parts = [[int(shard.perf.total * MILLISECOND), int(shard.storage.ddr)] for shard in option.shards]
            # Campanile keeps the parts of a table on different ranks; what needs more is left to TorchRec alone.
            if spread == "ranks" and len(parts) > ranks:
                continue
            if spread == "everywhere" and len(parts) != ranks:
                continue
            if spread == "hosts" and (len(parts) % self.case["ranks_per_host"] or len(parts) > ranks):
                continue
            by_table[option.name].append({"spread": spread, "parts": parts})
        return {
            "hosts": self.case["hosts"],
            "ranks_per_host": self.case["ranks_per_host"],
            "memory_bytes": self.case["memory_mib_per_rank"] << 20,
            "tables": list(by_table.values()),
        }


def plan_file(case, shards):
    """TorchRec's plan in Campanile's form."""
    ranks = case["hosts"] * case["ranks_per_host"]
    lines = [f"ranks = {ranks}"]
    for table in case["tables"]:
        kind, spec, owners = shards[table["name"]]
        rows, dim = table["rows"], table["dim"]
        if kind == "data_parallel":
            parts = [(rank, rows * rank // ranks, rows * (rank + 1) // ranks, 0, dim) for rank in range(ranks)]
            parts = [part for part in parts if part[1] < part[2]]
        else:
            parts = []
            for shard, owner in zip(spec.shards, owners):
                (row, column), (height, width) = shard.shard_offsets, shard.shard_sizes
                if height and width:
                    parts.append((owner, row, row + height, column, column + width))
        cut_by_rows = any((first, last) != (0, rows) for _, first, last, _, _ in parts)
        lines += ["[[table]]", f'name = "{table["name"]}"', f"rows = {rows}", f"dim = {dim}"]
        if kind == "data_parallel":
            lines.append("replicated = true")
        lines.append(f'returns = "{"rows" if cut_by_rows else "pooled"}"')
        shard = "  {{ rank = {}, rows = [{}, {}], columns = [{}, {}] }},"
        lines += ["shards = ["] + [shard.format(*part) for part in parts] + ["]"]
    return "\n".join(lines) + "\n"


def ask(campanile, *words):
    done = subprocess.run([campanile, "bench", "planner", *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"campanile bench planner {' '.join(map(str, words))}: {done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campanile", default="target/release/campanile", help="the program")
    parser.add_argument("--topology", default="examples/cluster/topology.toml", help="rates for both planners")
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--out", help="write the figures as JSON lines")
    arguments = parser.parse_args()
    rates = tomllib.loads(pathlib.Path(arguments.topology).read_text())
    print("| case | ranks | tables | ours/theirs at our prices | at their prices | ours above the bound | seconds |")
    print("|---|---|---|---|---|---|---|")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for seed in range(1, arguments.cases + 1):
            case = random_case(seed)
            theirs = TheirPlanner(case, rates)
            shards, their_load = theirs.plan()
            (folder / "case.json").write_text(json.dumps(case))
            (folder / "plan.toml").write_text(plan_file(case, shards))
            (folder / "prices.json").write_text(json.dumps(theirs.options()))
            ours = ask(
                arguments.campanile, "--topology", arguments.topology,
                "--case", folder / "case.json", "--plan", folder / "plan.toml",
            )
            placed = ask(arguments.campanile, "--prices", folder / "prices.json")
            at_ours = ours["ours"]["max_seconds"] / ours["other"]["max_seconds"]
            at_theirs = placed["max_seconds"] * 1000 / their_load
            above = ours["ours"]["max_seconds"] / ours["bound_seconds"] - 1
            result = {
                "seed": seed, "ranks": case["hosts"] * case["ranks_per_host"], "tables": len(case["tables"]),
                "at_our_prices": at_ours, "at_their_prices": at_theirs, "above_bound": above,
                "planning_seconds": ours["planning_seconds"],
            }
            results.append(result)
            print(
                f"| {seed} | {result['ranks']} | {result['tables']} | {at_ours:.3f} | {at_theirs:.3f} "
                f"| {100 * above:.1f} % | {result['planning_seconds']:.2f} |",
                flush=True,
            )
    for name, words in [("at_our_prices", "our prices"), ("at_their_prices", "their prices")]:
        ratios = sorted(result[name] for result in results)
        no_worse = sum(ratio <= 1.0 + 1e-9 for ratio in ratios)
        print(
            f"at {words}: no worse in {no_worse} of {len(ratios)} cases; median {ratios[len(ratios) // 2]:.3f}, "
            f"worst {ratios[-1]:.3f}"
        )
    if arguments.out:
        pathlib.Path(arguments.out).write_text("".join(json.dumps(result) + "\n" for result in results))


if __name__ == "__main__":
    main()
