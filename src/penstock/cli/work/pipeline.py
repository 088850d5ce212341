"""The work of `penstock pipeline validate`, `explain` and `preview`: everything up to the start of a query."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.options import parse_pairs
from penstock.cli.output import print_json, print_table, say, write_text
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.address import parse_addresses
from penstock.pipeline.declared.document import Pipeline
from penstock.pipeline.declared.prepare import Loaded, check_topics, choose, load, prepare
from penstock.pipeline.session.spark import check_spark, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.declared.build import Built


def open_file(file: Path, names: Sequence[str], bootstrap: str | None) -> tuple[Loaded, Mapping[str, Pipeline]]:
    """The file, and those of its pipelines that were asked for. Mistakes are in `Loaded.problems`."""
    try:
        import yaml  # noqa: F401  an extra
    except ImportError as error:
        raise CommandError("pipelines need the extra: pip install 'penstock[spark]'") from error
    loaded = load(file, os.environ, bootstrap=bootstrap)
    if loaded.document is None:
        return loaded, {}
    chosen = choose(loaded.document, names)
    if isinstance(chosen, str):
        raise CommandError(chosen, exit_code=EXIT_USAGE)
    return loaded, chosen


def open_sound_file(file: Path, names: Sequence[str], bootstrap: str | None) -> tuple[Loaded, Mapping[str, Pipeline]]:
    """The same of a file that nothing is wrong with, as far as it can be seen without Spark."""
    loaded, pipelines = open_file(file, names, bootstrap)
    if loaded.problems.errors:
        tell_problems(loaded)
    return loaded, pipelines


def start_spark(loaded: Loaded, *, master: str | None, conf: Sequence[str] | None) -> SparkSession:
    """The flags override the file."""
    assert loaded.document is not None
    section = loaded.document.spark
    settings = section.conf | parse_pairs(list(conf or ()), option="--conf")
    # Spark's own log repeats with a stack what is told here in a sentence; details go to a file.
    return open_session(
        f"penstock {loaded.file.name}",
        master=master or settings.pop("spark.master", None) or section.master,
        conf=settings,
        log_level="OFF",
    )


def tell_problems(loaded: Loaded) -> None:
    """On standard error, in the order of the file; raises if one of them is an error."""
    for problem in loaded.problems.in_order():
        say(problem.sentence(str(loaded.file)))
    count = len(loaded.problems.errors)
    if count:
        raise CommandError(f"{loaded.file}: {count} problem{'s' if count > 1 else ''}")


# ------------------------------------------------------------------ validate


def validate(
    file: Path,
    names: Sequence[str],
    *,
    is_offline: bool,
    is_syntax_only: bool,
    conf: Sequence[str] | None,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    loaded, pipelines = open_file(file, names, bootstrap)
    if loaded.document is not None and not loaded.problems.errors and not is_syntax_only:
        check_spark()
        _prepare(loaded, pipelines, is_offline=is_offline, conf=conf)
    if as_json:
        problems = [msgspec.structs.asdict(problem) for problem in loaded.problems.in_order()]
        print_json({"file": str(file), "pipelines": list(pipelines), "problems": problems})
        if loaded.problems.errors:
            raise CommandError(f"{file}: {len(loaded.problems.errors)} problems")
        return
    tell_problems(loaded)
    what = "keys and values" if is_syntax_only else "schemas and SQL" if is_offline else "topics, schemas and SQL"
    say(f"{file}: {', '.join(pipelines)}: {what} are in order")


def _prepare(
    loaded: Loaded,
    pipelines: Mapping[str, Pipeline],
    *,
    is_offline: bool,
    conf: Sequence[str] | None,
    is_streaming: bool = True,
) -> list[Built]:
    async def work() -> list[Built]:
        if is_offline:
            return await prepare(start_spark(loaded, master=None, conf=conf), loaded, pipelines, client=None)
        async with ClusterClient(parse_addresses(loaded.site.bootstrap)) as client:
            await check_topics(client, pipelines, loaded.problems)
            spark = start_spark(loaded, master=None, conf=conf)
            return await prepare(spark, loaded, pipelines, client=client, is_streaming=is_streaming)

    return asyncio.run(work())


# ------------------------------------------------------------------ explain


def explain(
    file: Path,
    names: Sequence[str],
    *,
    is_offline: bool,
    is_mermaid_only: bool,
    with_plan: bool,
    conf: Sequence[str] | None,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    from penstock.pipeline.declared.explain import describe, mermaid

    loaded, pipelines = open_sound_file(file, names, bootstrap)
    builts = _prepare(loaded, pipelines, is_offline=is_offline, conf=conf)
    tell_problems(loaded)
    if is_mermaid_only:
        write_text(mermaid(builts) + "\n")
        return
    documents = [describe(built, loaded.site, with_plan=with_plan) for built in builts]
    if as_json:
        print_json({"pipelines": documents, "mermaid": mermaid(builts)})
        return
    for document in documents:
        _print_description(document)
    write_text(f"\n{mermaid(builts)}\n")


def _print_description(document: dict[str, Any]) -> None:
    facts = [(name, document[name]) for name in ("sink", "mode", "trigger", "bad rows", "checkpoint", "group")]
    print_table(None, facts, title=f"pipeline {document['name']}")
    for view in document["views"]:
        title = f"{view['kind']} {view['name']}" + (f" ({view['origin']})" if view["origin"] else "")
        # Not as a table's title: that is cut to the table's width.
        write_text(f"\n{title}\n")
        print_table(("column", "type"), [(column["name"], column["type"]) for column in view["columns"]])
    if document.get("plan"):
        write_text(f"\n{document['plan']}\n")


# ------------------------------------------------------------------ preview


def preview(
    file: Path,
    names: Sequence[str],
    *,
    limit: int,
    conf: Sequence[str] | None,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    loaded, pipelines = open_sound_file(file, names, bootstrap)
    builts = _prepare(loaded, pipelines, is_offline=False, conf=conf, is_streaming=False)
    tell_problems(loaded)
    found = {
        built.name: [row.asDict(recursive=True) for row in built.result.limit(limit).collect()] for built in builts
    }
    if as_json:
        print_json({name: [_as_plain(row) for row in rows] for name, rows in found.items()})
        return
    for built in builts:
        rows = [[_shown(value) for value in row.values()] for row in found[built.name]]
        if rows:
            print_table(built.result.columns, rows, title=f"{built.name}: what it would write")
        else:
            say(f"{built.name}: no rows")


def _as_plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _shown(value) for name, value in row.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return value if value is None or isinstance(value, int | float | str) else str(value)
