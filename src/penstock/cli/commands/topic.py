"""`penstock topic …`: the declarations; the work is in `work/topic` and `work/topic_describe`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import BOOTSTRAP_DEFAULT, AsJson, Bootstrap, Configs, parse_pairs

app = typer.Typer(help="List, create, describe, change and delete topics.", no_args_is_help=True)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


@app.command("list")
def list_topics(
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics too.")] = False,
) -> None:
    """Every topic with its partitions and messages."""
    from penstock.cli.work import topic as topic_work

    topic_work.list_topics(bootstrap, with_internal=internal, as_json=as_json)


@app.command("create")
def create(
    topic: TopicName,
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="-1: the node's default.")] = -1,
    replication: Annotated[
        int, typer.Option("--replication", "-r", help="Replicas of each partition; -1: the cluster's default.")
    ] = -1,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="No error if it is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """A new topic."""
    from penstock.cli.work import topic as topic_work

    configs = parse_pairs(config, option="--config")
    topic_work.create(
        bootstrap,
        topic,
        partitions=partitions,
        replication=replication,
        configs=configs,
        if_not_exists=if_not_exists,
        as_json=as_json,
    )


@app.command("describe")
def describe(
    topic: TopicName,
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    all_configs: Annotated[bool, typer.Option("--all-configs", help="Also configs at their default.")] = False,
) -> None:
    """A topic's partitions with leader, replicas, watermarks, sizes and health, and its configs."""
    from penstock.cli.work import topic_describe

    topic_describe.describe(bootstrap, topic, all_configs=all_configs, as_json=as_json)


@app.command("alter")
def alter(
    topic: TopicName,
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="Back to its default; may be repeated."),
    ] = None,
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", help="More than there are.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change configs, add partitions."""
    from penstock.cli.work import topic as topic_work

    configs = parse_pairs(config, option="--config")
    topic_work.alter(
        bootstrap, topic, changes=configs, removals=delete_config or [], partitions=partitions, as_json=as_json
    )


@app.command("delete")
def delete(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)],
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete topics and everything in them."""
    from penstock.cli.work import topic as topic_work

    topic_work.delete(bootstrap, topics, is_confirmed=yes, as_json=as_json)
