"""`penstock schedule …`: the declarations; the work is in `work/schedule`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.options import HTTP_DEFAULT, AsJson, Http, parse_pairs

app = typer.Typer(help="Cron schedules, and delayed messages that wait for their time.", no_args_is_help=True)


class MissedName(StrEnum):
    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
MessageId = Annotated[str, typer.Argument(metavar="ID", show_default=False)]
OfTopic = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="Needed only if several topics have one of this name."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("create")
def create(
    name: Name,
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
    cron: Annotated[
        str,
        typer.Option(
            "--cron",
            metavar="EXPRESSION",
            help="'*/5 * * * *': minute, hour, day, month, weekday; or with seconds in front.",
        ),
    ],
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="Where the messages go.")],
    timezone: Annotated[
        str, typer.Option("--timezone", metavar="ZONE", help="Whose clocks are meant, such as Europe/Berlin.")
    ] = "UTC",
    key: Annotated[str | None, typer.Option("--key", "-k", help="Of every message.")] = None,
    value: Annotated[str | None, typer.Option("--value", help="Of every message.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Of every message; may be repeated."),
    ] = None,
    missed: Annotated[
        MissedName,
        typer.Option("--missed", help="Times that passed while no node ran: send none, the last one, or all of them."),
    ] = MissedName.ONCE,
) -> None:
    """Send a message at the times of a cron expression. If the schedule exists, it is replaced."""
    from penstock.cli.work import schedule as schedule_work

    body = {
        "cron": cron,
        "timezone": timezone,
        "missed": missed.value,
        "key": key,
        "value": value,
        "headers": parse_pairs(header, option="--header"),
    }
    schedule_work.create(http, topic, name, body, as_json=as_json)


@app.command("list")
def list_crons(
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
    topic: Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only those of one.")] = None,
) -> None:
    """Every cron schedule, and when it is due next."""
    from penstock.cli.work import schedule as schedule_work

    schedule_work.list_crons(http, topic, as_json=as_json)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|ID", show_default=False)],
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
    topic: OfTopic = None,
) -> None:
    """A cron schedule with its next times, or a delayed message."""
    from penstock.cli.work import schedule as schedule_work

    schedule_work.show(http, name, topic, as_json=as_json)


@app.command("delete")
def delete(
    name: Name, *, http: Http = HTTP_DEFAULT, topic: OfTopic = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """End a cron schedule. What it has sent stays."""
    from penstock.cli.work import schedule as schedule_work

    schedule_work.delete(http, name, topic, is_confirmed=yes, as_json=as_json)


@app.command("pending")
def pending(
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Its messages. [how many of which topic]")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most N.")] = 100,
) -> None:
    """Delayed messages that wait for their time, the next one first."""
    from penstock.cli.work import schedule as schedule_work

    schedule_work.pending(http, topic, count=count, as_json=as_json)


@app.command("cancel")
def cancel(message_id: MessageId, *, http: Http = HTTP_DEFAULT, as_json: AsJson = False) -> None:
    """Nobody will ever get this delayed message."""
    from penstock.cli.work import schedule as schedule_work

    schedule_work.cancel(http, message_id, as_json=as_json)


@app.command("reschedule")
def reschedule(
    message_id: MessageId,
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
    after: Annotated[
        str | None, typer.Option("--in", metavar="DURATION", help="After this time, such as '5m'; '0s' means at once.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="At a time, such as '2026-12-24 18:00' or '18:00'.")
    ] = None,
) -> None:
    """Give a delayed message another time."""
    from penstock.cli.work import schedule as schedule_work

    if (after is None) == (at is None):
        raise CommandError("when? Either --in or --at says it", exit_code=EXIT_USAGE)
    schedule_work.reschedule(http, message_id, after=after, at=at, as_json=as_json)
