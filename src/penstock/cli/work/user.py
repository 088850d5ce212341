"""What the user commands do. A password comes from a file, standard input or the keyboard, and is not shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import typer

from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.output import print_json, print_table, run_async, say
from penstock.cli.secret_input import ask_password, read_password
from penstock.client.kafka import users
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.users import UserInfo
from penstock.domain.security.scram import MECHANISMS
from penstock.net.address import parse_addresses


def list_users(bootstrap: str, *, as_json: bool) -> None:
    async def work() -> list[UserInfo]:
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            return await users.list_users(client)

    found = run_async(work())
    if as_json:
        print_json({"users": found})
        return
    if not found:
        say("there are no users with passwords")
        return
    rows = [(info.user, each.mechanism, each.iterations) for info in found for each in info.credentials]
    print_table(("user", "mechanism", "iterations"), rows)


def create(
    bootstrap: str,
    user: str,
    *,
    password_file: str | None,
    mechanisms: Sequence[str],
    iterations: int,
    is_replacing: bool,
    as_json: bool,
) -> None:
    chosen = _mechanisms(mechanisms)
    if not is_replacing:
        # Before anybody types a password twice.
        run_async(_refuse_known(bootstrap, user))
    password = ask_password(user, is_new=True) if password_file is None else read_password(password_file)

    async def work() -> None:
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            made = [
                await asyncio.to_thread(users.salted, user, password, MECHANISMS[name], iterations=iterations)
                for name in chosen
            ]
            await users.set_password(client, made)

    run_async(work())
    if as_json:
        print_json({"user": user, "mechanisms": chosen, "iterations": iterations})
    else:
        say(f"user {user!r} logs in by {' or '.join(chosen)}")


async def _refuse_known(bootstrap: str, user: str) -> None:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        if await users.find_user(client, user) is not None:
            raise CommandError(f"user {user!r} exists already: --replace gives it a new password")


def delete(bootstrap: str, user: str, *, is_confirmed: bool, as_json: bool) -> None:
    if not is_confirmed:
        typer.confirm(f"Delete user {user!r}?", abort=True, err=True)

    async def work() -> None:
        async with ClusterClient(parse_addresses(bootstrap)) as client:
            info = await users.find_user(client, user)
            if info is None:
                raise CommandError(f"user {user!r} does not exist")
            await users.delete_user(client, info)

    run_async(work())
    if as_json:
        print_json({"user": user, "is_deleted": True})
    else:
        say(f"user {user!r} is gone")


def _mechanisms(names: Sequence[str]) -> list[str]:
    chosen = [name.upper() for name in names] or list(MECHANISMS)
    for name in chosen:
        if name not in MECHANISMS:
            known = " and ".join(MECHANISMS)
            raise CommandError(f"--mechanism {name!r}: {known} are known", exit_code=EXIT_USAGE)
    return list(dict.fromkeys(chosen))
