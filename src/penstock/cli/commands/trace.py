"""`penstock trace` and `penstock why`: the declarations; the work is in `work/trace`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli.options import HTTP_DEFAULT, AsJson, Http

MessageId = Annotated[str | None, typer.Argument(metavar="MESSAGE-ID", show_default=False)]
Topic = Annotated[
    str | None, typer.Option("--topic", help="The message's topic, instead of an id.", show_default=False)
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="With --topic: the partition. [0]", show_default=False)
]
Offset = Annotated[
    int | None, typer.Option("--offset", "-o", min=0, help="With --topic: the offset.", show_default=False)
]


class Form(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


def trace(
    message_id: MessageId = None,
    *,
    topic: Topic = None,
    partition: Partition = None,
    offset: Offset = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="With --topic: messages of that key.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="With --key. [1 hour ago]", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="With --key. [as of now]", show_default=False)
    ] = None,
    form: Annotated[Form, typer.Option("--format", "-f", help="How it is shown.")] = Form.TEXT,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """A message's whole journey: appended, leased, failed, acked, dead-lettered, passed by groups."""
    from penstock.cli.work import trace as trace_work

    asked = trace_work.Asked(message_id, topic, partition, offset)
    if key is not None:
        trace_work.trace_key(http, asked, key, since=since, until=until, form=form.value, as_json=as_json)
    else:
        trace_work.trace(http, asked, form=form.value, as_json=as_json)


def why(
    message_id: MessageId = None,
    *,
    topic: Topic = None,
    partition: Partition = None,
    offset: Offset = None,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Why a message has not been delivered yet, for each queue and group, and what would change it."""
    from penstock.cli.work import trace as trace_work

    trace_work.why(http, trace_work.Asked(message_id, topic, partition, offset), as_json=as_json)
