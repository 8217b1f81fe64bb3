"""Command line of the benchmarks, run by ``make bench``; see ``--help``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec import structs

from benchmarks import (
    ceiling,
    embedded,
    growth,
    plot,
    report,
    results,
    runner,
    standin,
    subjects,
    workloads,
)
from benchmarks.results import Results
from benchmarks.sample import Sample

SHOWN: Final = (
    "rate",
    "client_cpu_us",
    "broker_cpu_us",
    "p50_us",
    "p99_us",
    "rss_mib",
    "first_seconds",
    "client_cores",
    "other_cores",
    "lost",
    "duplicated",
    "errors",
)
TITLES: Final = {one.name: one.title for one in (*workloads.ALL, *ceiling.ALL)}
QUICK: Final = {
    "rounds": 1,
    "tries": 1,
    "seconds": 1.5,
    "warmup_seconds": 1.0,
    "java_warmup_seconds": 3.0,
    "backlog": 200_000,
}


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        parsed.act(parsed)
    except ValueError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    _add_run_options(parser)
    parser.set_defaults(act=run_all, routes="all", prototypes=None, against=None,
                        same_encoding=False)  # fmt: skip
    commands = parser.add_subparsers(title="parts")
    run = commands.add_parser("run", help="against a real broker, beside the Java client")
    _add_run_options(run)
    run.set_defaults(act=run_broker)
    against = commands.add_parser("ceiling", help="against the C stand-in, beside a bare prototype")
    _add_ceiling_options(against)
    against.set_defaults(act=run_ceiling)
    table = commands.add_parser("report", help="print saved results again")
    table.add_argument("files", nargs="*", type=Path, help="default: the newest of each kind")
    table.add_argument("--markdown", action="store_true")
    table.add_argument("--reference", help="subject that ratios are to")
    table.add_argument("--picture", type=Path, help="PNG or SVG to draw, with all files in one")
    table.set_defaults(act=print_report)
    spark = commands.add_parser("spark-read", help="the Spark connector beside bare sources")
    spark.add_argument("--rows", type=_positive, default=1_000_000)
    spark.add_argument("--rounds", type=_positive, default=5)
    spark.add_argument("--brokers", default="standin,5.5.0", help="standin, and versions")
    spark.set_defaults(act=run_spark_read)
    inside = commands.add_parser("embedded", help="sends per second of an embedded broker")
    embedded.add_options(inside)
    inside.set_defaults(act=embedded.run)
    growing = commands.add_parser("growth", help="idle CPU and memory by queues, topics, ...")
    growth.add_options(growing)
    growing.set_defaults(act=growth.run)
    profile = commands.add_parser("profile", help="where the client's CPU goes, on the stand-in")
    profile.add_argument("route", choices=[route.name for route in ceiling.ALL])
    profile.add_argument("--seconds", type=float, default=4.0)
    profile.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    profile.set_defaults(act=run_profile)
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(workload.name for workload in workloads.ALL)
    add = parser.add_argument
    add("--workloads", default="all", metavar="A,B", help=f"some of: {names}")
    add("--subjects", default=",".join(subjects.default()), metavar="A,B",
        help=f"some of: {', '.join(subjects.ALL)}")  # fmt: skip
    add("--version", default="5.5.0", help="of the broker and of the Java client")
    add("--rounds", type=_positive, default=None, help="5 by default")
    add("--tries", type=_positive, default=None, help="for a quiet sample, 2 by default")
    add("--seconds", type=float, default=None, help="length of a window, 5 by default")
    add("--warmup-seconds", type=float, default=None, help="of the Python subjects, 2 by default")
    add("--java-warmup-seconds", type=float, default=None, help="30 by default")
    add("--backlog", type=int, default=None, help="messages to consume, 2 million by default")
    add("--quick", action="store_true", help="one short round: to see that it works, not to quote")


def _add_ceiling_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    names = ", ".join(route.name for route in ceiling.ALL)
    add("--routes", default="all", metavar="A,B", help=f"some of: {names}")
    add("--rounds", type=_positive, default=None, help="7 by default")
    add("--seconds", type=float, default=None, help="1.5 by default")
    add("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    add("--prototypes", type=Path, metavar="FOLDER",
        help="compare with bench_send_e2e.py and bench_pull.py of this folder too")  # fmt: skip
    add("--against", type=_checkout, metavar="FOLDER",
        help="measure the client of this checkout, too")  # fmt: skip
    add("--same-encoding", action="store_true",
        help="the stand-in answers in the encoding of the request, as 4.9 brokers do")  # fmt: skip
    add("--quick", action="store_true", help="one short round")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _checkout(text: str) -> Path:
    folder = Path(text).resolve()
    if not (folder / "benchmarks" / "subject").is_dir():
        raise argparse.ArgumentTypeError("expected a checkout of this repository")
    return folder


def run_all(parsed: argparse.Namespace) -> None:
    failed: SystemExit | None = None
    try:
        run_broker(parsed)
    except SystemExit as ended:  # a subject failed; the other half can still be measured
        failed = ended
    parsed.rounds = parsed.seconds = None
    parsed.loop = "asyncio"
    run_ceiling(parsed)
    if failed is not None:
        raise failed


def run_broker(parsed: argparse.Namespace) -> None:
    plan = runner.Plan(
        version=parsed.version,
        workloads=workloads.select(parsed.workloads),
        subjects=parsed.subjects.split(","),
    )
    changes = {name: getattr(parsed, name, None) for name in QUICK}
    quick = QUICK if parsed.quick else {}
    chosen = {name: value for name, value in changes.items() if value is not None}
    plan = replace(plan, **{**quick, **chosen})
    measuring = runner.Runner(plan, _show)
    settings: dict[str, str | int | float] = {
        name: getattr(plan, name) for name in ("version", *QUICK)
    }
    try:
        measuring.run()
    finally:  # keeps the samples taken before an interruption
        if measuring.samples:
            _finish(Results.taken_now("broker", settings, measuring.samples))
    if measuring.failures:
        sys.exit(f"{len(measuring.failures)} runs of a subject failed; their errors are above")


def run_ceiling(parsed: argparse.Namespace) -> None:
    measured = ceiling.Ceiling(
        _show,
        ceiling.select(parsed.routes),
        loop=parsed.loop,
        prototypes=parsed.prototypes,
        against=parsed.against,
        mirror_encoding=parsed.same_encoding,
    )
    measured.rounds = parsed.rounds or (1 if parsed.quick else measured.rounds)
    measured.seconds = parsed.seconds or measured.seconds
    samples = measured.run()
    settings: dict[str, str | int | float] = {
        "rounds": measured.rounds,
        "seconds": measured.seconds,
        "loop": measured.loop,
    }
    _finish(Results.taken_now("ceiling", settings, samples))


def print_report(parsed: argparse.Namespace) -> None:
    files = parsed.files or [
        path for kind in report.REFERENCES if (path := results.newest(kind)) is not None
    ]
    if not files:
        raise ValueError(f"no results in {results.FOLDER} yet")
    for path in files:
        _print_tables(results.load(path), markdown=parsed.markdown, reference=parsed.reference)
    if parsed.picture is not None:
        first, *others = map(results.load, files)
        if first.kind == growth.KIND:
            growth.draw(first, parsed.picture)
            return
        samples = [sample for each in (first, *others) for sample in each.samples]
        plot.draw(structs.replace(first, samples=samples), parsed.picture)


def run_profile(parsed: argparse.Namespace) -> None:
    [route] = ceiling.select(parsed.route)
    with tempfile.TemporaryDirectory() as folder:
        program = standin.build(Path(folder))
        with standin.running(
            program, body_bytes=route.body_bytes, messages=route.pull_batch
        ) as address:
            subprocess.run(
                [
                    *ceiling.command(route, "client", address, parsed.loop, parsed.seconds),
                    "--profile",
                ],
                check=True,
            )


def run_spark_read(parsed: argparse.Namespace) -> None:
    from benchmarks.spark import read  # only this one needs Spark

    read.run(parsed)


def _show(sample: Sample) -> None:
    shown = [f"{name}={sample.figures[name]:.6g}" for name in SHOWN if name in sample.figures]
    note = "" if sample.clean else " (not quiet)"
    print(f"{sample.workload:14} {sample.subject:10} {' '.join(shown)}{note}", flush=True)


def _finish(measured: Results) -> None:
    path = measured.save()
    print()
    _print_tables(measured, markdown=False, reference=None)
    print(path)
    if any("rate" in sample.figures for sample in measured.samples):
        picture = path.with_suffix(".png")
        plot.draw(measured, picture)
        print(picture)


def _print_tables(measured: Results, *, markdown: bool, reference: str | None) -> None:
    print(report.describe(measured) + "\n")
    if measured.kind == growth.KIND:
        tables = [(growth.TITLE, growth.table(measured.samples))]
    else:
        tables = report.tables(measured, TITLES, reference)
    for title, rows in tables:
        table = report.as_markdown(rows) if markdown else report.as_text(rows)
        print(f"{'### ' if markdown else ''}{title}\n\n{table}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
