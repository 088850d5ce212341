"""`penstock queue …`: the declarations; the work is in `work/queue`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import HTTP_DEFAULT, AsJson, Http

app = typer.Typer(help="Make, look at, receive from and look after queues.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]
Group = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="At most N messages.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_queues(*, http: Http = HTTP_DEFAULT, as_json: AsJson = False) -> None:
    """Every queue, with what waits and what is with consumers."""
    from penstock.cli.work import queue as queue_work

    queue_work.list_queues(http, as_json=as_json)


@app.command("describe")
def describe(topic: Topic, group: Group, *, http: Http = HTTP_DEFAULT, as_json: AsJson = False) -> None:
    """How a queue is set, and what is where."""
    from penstock.cli.work import queue as queue_work

    queue_work.describe(http, topic, group, as_json=as_json)


@app.command("create")
def create(
    topic: Topic,
    group: Group,
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
    lease: Annotated[
        str | None,
        typer.Option("--lease", metavar="DURATION", help="How long a message is with whoever got it. [30 seconds]"),
    ] = None,
    deliveries: Annotated[
        int | None,
        typer.Option(
            "--deliveries",
            min=0,
            metavar="N",
            help="After N deliveries a message becomes a dead letter; 0 means never. [5]",
        ),
    ] = None,
    ordering: Annotated[
        str | None, typer.Option("--ordering", metavar="none|key", help="key: in order for each key. [none]")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="earliest|latest", help="Where a new queue begins. [earliest]")
    ] = None,
    dead_letters: Annotated[
        str | None, typer.Option("--dead-letters", metavar="TOPIC", help="Where they go; '' means nowhere. [TOPIC-dlq]")
    ] = None,
) -> None:
    """Create a queue. If it exists, its settings are replaced: options that are not given become the default."""
    from penstock.cli.work import queue as queue_work

    options = {
        "deliveries_max": deliveries,
        "ordering": ordering,
        "start": start,
        "dead_letter_topic": dead_letters,
    }
    queue_work.create(http, topic, group, lease=lease, options=options, as_json=as_json)


@app.command("delete")
def delete(topic: Topic, group: Group, *, http: Http = HTTP_DEFAULT, yes: Yes = False, as_json: AsJson = False) -> None:
    """Forget a queue. The messages stay in the topic."""
    from penstock.cli.work import queue as queue_work

    queue_work.delete(http, topic, group, is_confirmed=yes, as_json=as_json)


@app.command("receive")
def receive(
    topic: Topic,
    group: Group,
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
    count: Count = 1,
    wait: Annotated[str, typer.Option("--wait", metavar="DURATION", help="For the first message.")] = "0s",
    lease: Annotated[
        str | None, typer.Option("--lease", metavar="DURATION", help="How long they are ours. [as the queue says]")
    ] = None,
    consumer: Annotated[str, typer.Option("--consumer", help="The name that others see.")] = "command-line",
    ack: Annotated[bool, typer.Option("--ack", help="Ack them once they are printed.")] = False,
) -> None:
    """Take messages, with the receipts to ack them by."""
    from penstock.cli.work import queue as queue_work

    queue_work.receive(
        http, topic, group, count=count, wait=wait, lease=lease, consumer=consumer, is_acked=ack, as_json=as_json
    )


@app.command("ack")
def ack(
    topic: Topic,
    group: Group,
    receipts: Annotated[list[str], typer.Argument(metavar="RECEIPT...", show_default=False)],
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Messages are done: they never come back."""
    from penstock.cli.work import queue as queue_work

    queue_work.ack(http, topic, group, receipts, as_json=as_json)


@app.command("peek")
def peek(topic: Topic, group: Group, *, http: Http = HTTP_DEFAULT, as_json: AsJson = False, count: Count = 10) -> None:
    """Look at the first messages, and take nothing."""
    from penstock.cli.work import queue as queue_work

    queue_work.peek(http, topic, group, count=count, as_json=as_json)


@app.command("pause")
def pause(topic: Topic, group: Group, *, http: Http = HTTP_DEFAULT, as_json: AsJson = False) -> None:
    """Deliver nothing until resumed."""
    from penstock.cli.work import queue as queue_work

    queue_work.tell(http, topic, group, "pause", "paused", as_json=as_json)


@app.command("resume")
def resume(topic: Topic, group: Group, *, http: Http = HTTP_DEFAULT, as_json: AsJson = False) -> None:
    """Deliver again."""
    from penstock.cli.work import queue as queue_work

    queue_work.tell(http, topic, group, "resume", "delivers again", as_json=as_json)


@app.command("purge")
def purge(topic: Topic, group: Group, *, http: Http = HTTP_DEFAULT, yes: Yes = False, as_json: AsJson = False) -> None:
    """Skip everything that is in the queue now. The topic keeps it."""
    from penstock.cli.work import queue as queue_work

    queue_work.purge(http, topic, group, is_confirmed=yes, as_json=as_json)
