"""`penstock user …`: the declarations; the work is in `work/user`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import BOOTSTRAP_DEFAULT, AsJson, Bootstrap

app = typer.Typer(help="List, create and delete users that log in.", no_args_is_help=True)

UserArgument = Annotated[str, typer.Argument(metavar="USER", show_default=False)]


@app.command("list")
def list_users(*, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: AsJson = False) -> None:
    """Every user that has a password, and how it is kept."""
    from penstock.cli.work import user as user_work

    user_work.list_users(bootstrap, as_json=as_json)


@app.command("create")
def create(
    user: UserArgument,
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="The password is its first line; - for standard input. Without it you are asked.",
        ),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option("--mechanism", help="SCRAM-SHA-256 or SCRAM-SHA-512; may be repeated. Default: both."),
    ] = None,
    iterations: Annotated[int, typer.Option(min=4096, max=16384, help="Rounds of hashing.")] = 16_384,
    replace: Annotated[
        bool, typer.Option("--replace", help="Give a user that exists this password instead of the old one.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a user. One that exists keeps its password, unless --replace is given."""
    from penstock.cli.work import user as user_work

    user_work.create(
        bootstrap,
        user,
        password_file=password_file,
        mechanisms=mechanism or [],
        iterations=iterations,
        is_replacing=replace,
        as_json=as_json,
    )


@app.command("delete")
def delete(
    user: UserArgument,
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take a user's passwords away. Connections that are logged in stay until they end."""
    from penstock.cli.work import user as user_work

    user_work.delete(bootstrap, user, is_confirmed=yes, as_json=as_json)
