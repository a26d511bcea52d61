"""Trains ours and PyTorch's variants in turns on the standard configurations, and prints the ratios.

Turns are short and many: load on a shared machine comes and goes in seconds, and hits all competitors of a
round alike. The order rotates from round to round. Usage: see `README.md`, or `compare.py --help`.
"""

import argparse
import contextlib
import datetime
import json
import shlex
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import machine
import torch_settings
from competitor import Competitor, CompetitorFailed, Round, without_folders
from goals import GOALS, SCALING_GOAL, goal_of, standard_configurations
from workload import SHAPES, Configuration

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent

VARIANTS = ["fused-compiled", "fused-eager", "plain-compiled", "plain-eager"]
OURS = "ours"
OURS_ONE_THREAD = "ours, 1 thread"

# Room for a process besides its rows: libraries, activations, gradients, compiled code.
PROCESS_BYTES = 1_500_000_000
# A peer's variant this far behind the best one while warming up cannot win, and is not run again.
HOPELESS_SHARE = 0.5
# A bf16 step known to be hopeless is tried if it takes less than this.
SLOW_STEP_SECONDS_MAX = 10.0
# With fewer undisturbed rounds than this, disturbed ones count too, and the table says so.
ROUNDS_MIN = 3


@dataclass
class Entry:
    """One line of competition inside a configuration."""

    name: str
    competitor: Competitor
    variant: str | None
    rounds: list[Round] = field(default_factory=list)


@dataclass
class Outcome:
    """What was measured on one configuration."""

    configuration: Configuration
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    info: dict[str, dict] = field(default_factory=dict)
    # The peer's variants that could not run: no memory, or a failure. They void the goal.
    missing: dict[str, str] = field(default_factory=dict)
    # Ours with all threads and with one, in turns of their own: the peer is not to lack memory for it.
    scaling: "Outcome | None" = None

    def counted(self, *names: str) -> list[tuple[Round, ...]]:
        """The rounds of these competitors side by side: undisturbed ones if there are enough, otherwise all."""
        together = list(zip(*(self.rounds[name] for name in names)))
        quiet = [rounds for rounds in together if all(r.undisturbed() for r in rounds)]
        return quiet if len(quiet) >= ROUNDS_MIN else together

    def disturbed(self, *names: str) -> bool:
        return not all(r.undisturbed() for rounds in self.counted(*names) for r in rounds)

    def rate(self, name: str) -> float:
        return median(r.per_wall_second() for (r,) in self.counted(name))

    def spread(self, name: str) -> float:
        """Half the distance between the fastest and the slowest round, as a share of the median."""
        rates = [r.per_wall_second() for (r,) in self.counted(name)]
        return (max(rates) - min(rates)) / 2 / median(rates)

    def best_peer(self) -> str | None:
        peers = [name for name in self.rounds if not name.startswith(OURS)]
        return max(peers, key=self.rate, default=None)

    def ratios(self, above: str, below: str, per_cpu: bool = False) -> list[float]:
        """Round by round, so that load which slows both cancels."""
        rate = Round.per_cpu_second if per_cpu else Round.per_wall_second
        return [rate(a) / rate(b) for a, b in self.counted(above, below)]


def variants_of(configuration: Configuration, settings: torch_settings.TorchSettings, wanted: list[str]) -> list[str]:
    if configuration.precision == "f32":
        return wanted
    if settings.bf16_is_hopeless():
        in_f32 = [f"{variant}@f32" for variant in wanted]
        step_s = configuration.step_flops() / (settings.bf16_gflops * 1e9)
        # One of them shows the figure all the same, where it does not take for ever.
        return in_f32 + [v for v in wanted if v == "fused-eager" and step_s < SLOW_STEP_SECONDS_MAX]
    # The two that may still win in f32 stand beside bf16, so that a peer's best setting is found in either.
    return wanted + [f"{variant}@f32" for variant in wanted if variant.startswith("fused")]


def fit_in_memory(outcome: Outcome, variants: list[str], ours: int) -> list[str]:
    """The variants for which there is memory; plain tables need as much again for AdaGrad's state."""
    available, tables = machine.memory_bytes("MemAvailable"), outcome.configuration.table_bytes()

    def needed(kept: list[str]) -> int:
        copies = 1 + any(variant.startswith("plain") for variant in kept)
        return int(ours * tables * 1.1) + copies * tables + (ours + 1) * PROCESS_BYTES

    fused = [variant for variant in variants if variant.startswith("fused")]
    kept = next((some for some in (variants, fused) if some and needed(some) <= available), [])
    for variant in variants:
        if variant not in kept:
            outcome.missing[variant] = f"{needed(variants) / 1e9:.1f} GB needed, {available / 1e9:.1f} GB free"
    return kept


class Starter:
    """Starts competitors one after the other, each waited for: their preparations are not to disturb."""

    def __init__(self, given: argparse.Namespace, outcome: Outcome, stack: contextlib.ExitStack):
        self.given, self.outcome, self.stack = given, outcome, stack

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> Competitor | None:
        try:
            competitor = self.stack.enter_context(Competitor(command, environment))
            self.outcome.info[name] = competitor.wait_ready(self.given.ready_seconds)
            return competitor
        except (CompetitorFailed, OSError) as failure:
            self.outcome.notes.append(without_folders(f"{name}: {failure}"))
            return None

    def start_ours(self, name: str, threads: int) -> list[Entry]:
        flags = Configuration(**{**vars(self.outcome.configuration), "threads": threads}).flags()
        program, *words = shlex.split(self.given.ours)
        program = str(PROJECT / program) if (PROJECT / program).exists() else program
        competitor = self.start(name, [program, *words, *flags, "--serve-rounds"], {})
        return [Entry(name, competitor, None)] if competitor else []

    def start_torch(self, settings: torch_settings.TorchSettings, variants: list[str]) -> list[Entry]:
        command = [self.given.python, "-W", "ignore", str(HERE / "torch_peer.py"), *self.outcome.configuration.flags()]
        competitor = self.start("torch", [*command, "--variants", ",".join(variants)], settings.environment)
        if competitor is None:
            self.outcome.missing |= {variant: "it did not start, see the notes" for variant in variants}
            return []
        info = self.outcome.info["torch"]
        self.outcome.missing |= {name: without_folders(reason) for name, reason in info["failures"].items()}
        return [Entry(variant, competitor, variant) for variant in info["variants"]]


def start_all(starter: Starter, settings: torch_settings.TorchSettings) -> list[Entry]:
    """Ours, and the peer's variants for which there is memory."""
    with_ours = starter.given.ours != "none"
    variants = variants_of(starter.outcome.configuration, settings, starter.given.variants)
    variants = fit_in_memory(starter.outcome, variants, int(with_ours))
    if not variants:
        return []
    ours = starter.start_ours(OURS, starter.outcome.configuration.threads) if with_ours else []
    return ours + starter.start_torch(settings, variants)


def hopeless(entries: list[Entry], warm: dict[str, Round]) -> list[Entry]:
    """Peer's variants that cannot win; none is judged by a turn that others disturbed."""
    peers = [entry for entry in entries if entry.variant and warm[entry.name].undisturbed()]
    best = max((warm[entry.name].per_wall_second() for entry in peers), default=0.0)
    return [entry for entry in peers if warm[entry.name].per_wall_second() < HOPELESS_SHARE * best]


def play(given: argparse.Namespace, entries: list[Entry], outcome: Outcome) -> None:
    """One turn each to warm up, then rounds until enough of them were undisturbed, or twice as many were played."""

    def turn(entry: Entry) -> Round | None:
        machine.wait_for_quiet(given.quiet_seconds)
        try:
            return entry.competitor.go(given.seconds, given.turn_seconds_max, entry.variant)
        except CompetitorFailed as failure:
            outcome.notes.append(f"{entry.name}: {failure}")
            if entry.variant:
                outcome.missing[entry.name] = str(failure)
            return None

    warm = {entry.name: turn(entry) for entry in entries}
    entries = [entry for entry in entries if warm[entry.name] is not None]
    for entry in hopeless(entries, warm):
        outcome.notes.append(
            f"{entry.name}: {warm[entry.name].per_wall_second():,.0f} samples/s when warming up, less than "
            f"{HOPELESS_SHARE:.0%} of the best peer; left out"
        )
        entries.remove(entry)

    quiet_rounds = 0
    for number in range(2 * given.rounds):
        if quiet_rounds == given.rounds or not entries:
            break
        shift = number % len(entries)
        played = {}
        for entry in entries[shift:] + entries[:shift]:
            played[entry.name] = turn(entry)
        entries = [entry for entry in entries if played[entry.name] is not None]
        for entry in entries:
            entry.rounds.append(played[entry.name])
        quiet_rounds += all(played[entry.name].undisturbed() for entry in entries)
    outcome.rounds = {entry.name: entry.rounds for entry in entries if entry.rounds}


def measure(given: argparse.Namespace, configuration: Configuration, settings) -> Outcome:
    outcome = Outcome(configuration)
    with contextlib.ExitStack() as stack:
        play(given, start_all(Starter(given, outcome, stack), settings), outcome)
    if given.scaling and given.ours != "none" and configuration.threads > 1:
        outcome.scaling = Outcome(configuration)
        with contextlib.ExitStack() as stack:
            starter = Starter(given, outcome.scaling, stack)
            entries = starter.start_ours(OURS, configuration.threads) + starter.start_ours(OURS_ONE_THREAD, 1)
            play(given, entries, outcome.scaling)
        outcome.notes += outcome.scaling.notes
    return outcome


def detail_lines(outcome: Outcome) -> list[str]:
    """Every competitor of one configuration."""
    lines = [f"{outcome.configuration.name()}, threads {outcome.configuration.threads}"]
    for name in sorted(outcome.rounds, key=outcome.rate, reverse=True):
        rounds = outcome.rounds[name]
        per_cpu = median(r.per_cpu_second() for (r,) in outcome.counted(name))
        quiet = sum(r.undisturbed() for r in rounds)
        lines.append(
            f"  {name:22} {outcome.rate(name):10,.0f} samples/s ±{outcome.spread(name):4.0%}"
            f"   {per_cpu:10,.0f} per CPU second   {quiet} of {len(rounds)} rounds undisturbed"
        )
    lines += [f"  {name:22} could not run: {reason}" for name, reason in sorted(outcome.missing.items())]
    return lines + [f"  note: {note}" for note in outcome.notes]


def verdict(outcome: Outcome, best: str, ratio: float) -> str:
    goal = goal_of(outcome.configuration)
    # The fastest of the variants that ran is no baseline if another one might have been faster.
    if outcome.missing:
        return "void: variants could not run"
    # Two threads that wait for each other at every layer suffer more from load than one figure can tell.
    if outcome.disturbed(OURS, best):
        return "disturbed, no verdict"
    if goal is None:
        return "no goal"
    if goal.stretch and ratio >= goal.stretch:
        return "stretch met"
    return "met" if ratio >= goal.ratio else "NOT met"


def table_line(outcome: Outcome) -> str:
    configuration, best = outcome.configuration, outcome.best_peer()
    goal = goal_of(configuration)
    cells = [configuration.name(), "–", "–", "–", "–", "–", goal.text() if goal else "–", "not measured"]
    if OURS in outcome.rounds:
        cells[1] = f"{outcome.rate(OURS):,.0f} ±{outcome.spread(OURS):.0%}"
    if best:
        cells[2] = f"{outcome.rate(best):,.0f} ±{outcome.spread(best):.0%}"
        cells[3] = best
    if outcome.missing:
        cells[3] += "; could not run: " + ", ".join(sorted(outcome.missing))
        cells[7] = "void: variants could not run"
    if best and OURS in outcome.rounds:
        ratios = outcome.ratios(OURS, best)
        cells[4] = f"**{median(ratios):.2f}x** ({min(ratios):.2f}–{max(ratios):.2f})"
        cells[5] = f"{median(outcome.ratios(OURS, best, per_cpu=True)):.2f}x"
        cells[7] = verdict(outcome, best, median(ratios))
    return "| " + " | ".join(cells) + " |"


def table(outcomes: list[Outcome], notes: list[str]) -> str:
    lines = [
        "| configuration | ours, samples/s | best peer, samples/s | which | ratio (range) | ratio per CPU second "
        "| goal [stretch] | |",
        "|---|---|---|---|---|---|---|---|",
        *map(table_line, outcomes),
    ]
    scaled = [o.scaling for o in outcomes if o.scaling and {OURS, OURS_ONE_THREAD} <= o.scaling.rounds.keys()]
    for outcome in scaled:
        ratio = median(outcome.ratios(OURS, OURS_ONE_THREAD))
        word = "met" if ratio >= SCALING_GOAL else "NOT met"
        lines.append(
            f"\nOurs, {outcome.configuration.threads} threads / 1 thread, {outcome.configuration.name()}: "
            f"{ratio:.2f}x (goal {SCALING_GOAL}x: {word})"
        )
    return "\n".join(lines + [""] + [f"- {note}" for note in notes])


def json_line(outcome: Outcome, about: dict) -> str:
    best = outcome.best_peer()
    both = best is not None and OURS in outcome.rounds
    return json.dumps(
        {
            **about,
            **vars(outcome.configuration),
            "rounds": {name: [vars(r) for r in rounds] for name, rounds in outcome.rounds.items()},
            "best_peer": best,
            "ratios": [round(r, 4) for r in outcome.ratios(OURS, best)] if both else [],
            "goal": vars(goal) if (goal := goal_of(outcome.configuration)) else None,
            "info": outcome.info,
            "missing": outcome.missing,
            "scaling": {n: [vars(r) for r in rounds] for n, rounds in outcome.scaling.rounds.items()}
            if outcome.scaling
            else {},
            "notes": outcome.notes,
        }
    )


def parse() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    flags.add_argument("--ours", default="target/release/campanile bench train", help="command, or none")
    flags.add_argument("--python", default=sys.executable, help="a Python that has PyTorch and FBGEMM")
    flags.add_argument("--config", choices=list(SHAPES), help="only this one")
    flags.add_argument("--arch", choices=["dot", "dcn"], help="only this one")
    flags.add_argument("--ids", type=int, choices=sorted({key[2] for key in GOALS}), help="only this many ids a bag")
    flags.add_argument("--batch", type=int, choices=sorted({key[3] for key in GOALS}), help="only this batch size")
    flags.add_argument("--precision", default="f32,bf16", help="comma-separated")
    flags.add_argument("--threads", type=int, default=2)
    flags.add_argument("--goals", action="store_true", help="only configurations that have a goal")
    flags.add_argument("--scaling", action="store_true", help="ours with all threads and with one, in turns after the peer has ended")
    flags.add_argument("--variants", default=",".join(VARIANTS), help="PyTorch's, comma-separated")
    flags.add_argument("--rounds", type=int, default=7, help="undisturbed rounds wanted; at most twice as many")
    flags.add_argument("--seconds", type=float, default=1.5, help="length of a turn")
    flags.add_argument("--quiet-seconds", type=float, default=3, help="how long a turn may wait for a quiet machine")
    flags.add_argument("--minutes-max", type=float, default=120, help="no configuration is begun after this")
    flags.add_argument("--ready-seconds", type=float, default=900, help="limit for a competitor to be ready")
    flags.add_argument("--turn-seconds-max", type=float, default=300, help="limit for one turn")
    flags.add_argument("--save", action="store_true", help="also JSON lines under bench/runs/DATE-MACHINE/")
    given = flags.parse_args()
    given.variants = given.variants.split(",")
    return given


def selected(given: argparse.Namespace) -> list[Configuration]:
    chosen = standard_configurations(given.precision.split(","), given.threads, given.goals)
    for key in ("config", "arch", "ids", "batch"):
        wanted = getattr(given, key)
        chosen = [c for c in chosen if wanted is None or getattr(c, key) == wanted]
    if not chosen:
        raise SystemExit("error: no standard configuration has all of these; drop --goals, --ids or --batch")
    return chosen


def main() -> None:
    given = parse()
    # A time limit from outside ends the run as Ctrl-C does: processes are ended, and the table is printed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    configurations = selected(given)
    settings = torch_settings.find(given.python)
    about = {"machine": machine.describe(), "torch": settings.torch_version, "date": str(datetime.date.today())}
    print(f"{about['machine']}\n" + "\n".join(settings.notes), flush=True)
    results = None
    if given.save:
        folder = PROJECT / "bench" / "runs" / f"{about['date']}-{machine.slug()}"
        folder.mkdir(parents=True, exist_ok=True)
        results = folder / "peers.jsonl"
    outcomes, begin, notes = [], time.monotonic(), list(settings.notes)
    try:
        for configuration in configurations:
            if time.monotonic() - begin > given.minutes_max * 60:
                notes.append(f"{configuration.name()}: not begun, {given.minutes_max:g} minutes were over")
                continue
            outcome = measure(given, configuration, settings)
            outcomes.append(outcome)
            print("\n" + "\n".join(detail_lines(outcome)), flush=True)
            if results:
                with results.open("a") as file:
                    file.write(json_line(outcome, about) + "\n")
    except KeyboardInterrupt:
        notes.append("interrupted: what follows is missing")
    print("\n" + table(outcomes, notes))
    if results:
        print(f"\nrounds: {results.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
