"""The work of `penstock report`: what the node tells of queues, then Spark, then one file."""

from __future__ import annotations

from pathlib import Path

from penstock.base.clock import SystemClock
from penstock.cli.failure import CommandError
from penstock.cli.http_door import http_door
from penstock.cli.option_values import moment_ms_if_given
from penstock.cli.output import counted, print_json, run_async, say
from penstock.cli.progress import BenchProgress
from penstock.client.errors import TopicMissingError
from penstock.client.http.queues import list_dead_letters, list_queues
from penstock.client.http.settlements import settlements_of
from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.domain.topic_rules import CONSUMER_OFFSETS
from penstock.net.address import parse_addresses
from penstock.net.errors import ClientError
from penstock.pipeline.report.job import ReportJob, ReportRequest, Settlements
from penstock.pipeline.report.page import render_page
from penstock.pipeline.report.values import TopicReport
from penstock.pipeline.session.spark import SparkStartError, open_session

STEPS = 6


def report(
    topic: str,
    *,
    output: Path | None,
    since: str | None,
    until: str | None,
    master: str | None,
    bootstrap: str,
    http: str,
    as_json: bool,
) -> None:
    clock = SystemClock()
    now_ms = clock.now_ms()
    info, has_commits = run_async(_look_at(bootstrap, topic))
    gaps: list[str] = []
    settlements, letters = _ask_node(http, topic, gaps)
    request = ReportRequest(
        topic,
        bootstrap,
        now_ms,
        since_ms=moment_ms_if_given(since, "--since", now_ms=now_ms),
        until_ms=moment_ms_if_given(until, "--until", now_ms=now_ms),
        dead_letter_topics=letters,
        partition_count=len(info.partitions),
        topic_id=info.topic_id,
        has_commits=has_commits,
    )
    found = _compute(request, settlements, gaps, master)
    path = output or Path(f"{topic}.html")
    if not as_json or output is not None:
        try:
            path.write_text(render_page(found), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}") from error
        say(f"{path}: {counted(found.record_count, 'record')} of {topic!r}")
    if as_json:
        print_json(found)


def _compute(
    request: ReportRequest, settlements: list[Settlements], gaps: list[str], master: str | None
) -> TopicReport:
    with BenchProgress(f"report on {request.topic}", STEPS) as progress:
        done = 0

        def on_step(name: str) -> None:
            nonlocal done
            progress.update(done, name)
            done += 1

        on_step("starting Spark")
        try:
            spark = open_session(f"report {request.topic}", master=master)
        except SparkStartError as error:
            raise CommandError(str(error)) from error
        try:
            return ReportJob(spark, request, on_step=on_step).run(settlements, gaps)
        finally:
            spark.stop()


def _ask_node(http: str, topic: str, gaps: list[str]) -> tuple[list[Settlements], tuple[str, ...]]:
    try:
        with http_door(http) as client:
            queues = [queue for queue in list_queues(client) if queue.topic == topic]
            settlements: list[Settlements] = [
                (queue.group, settlements_of(client, topic, queue.group)) for queue in queues
            ]
            letters = tuple(
                each.topic
                for each in list_dead_letters(client)
                if any(source.topic == topic for source in each.sources)
            )
    except ClientError as error:
        gaps.append(f"queues and dead letters: {error}")
        return [], ()
    return settlements, letters


async def _look_at(bootstrap: str, topic: str) -> tuple[TopicInfo, bool]:
    """The topic, and whether there is one that tells of commits."""
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        info = await client.topic(topic)
        try:
            await client.topic(CONSUMER_OFFSETS)
        except TopicMissingError:
            return info, False
    return info, True
