"""Where a command takes a password from: a file, standard input, or the keyboard. Never its own arguments, which every
user of the machine can read while it runs."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Final

from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.client.environment import MECHANISM_VARIABLE, PASSWORD_VARIABLE, USER_VARIABLE

STANDARD_INPUT: Final = "-"


def read_password(source: str) -> str:
    """The first line of a file, or of standard input."""
    try:
        text = sys.stdin.readline() if source == STANDARD_INPUT else Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"password file {source}: {getattr(error, 'strerror', None) or 'it is not text'}") from error
    password = text.splitlines()[0] if text else ""
    if not password:
        raise CommandError(f"password file {source}: its first line is empty", exit_code=EXIT_USAGE)
    return password


def remember_login(user: str, *, password_file: str | None, mechanism: str | None) -> None:
    """Every client of this process logs in so, and so do the processes that it starts: they look at the environment."""
    os.environ[USER_VARIABLE] = user
    if password_file is not None:
        os.environ[PASSWORD_VARIABLE] = read_password(password_file)
    elif not os.environ.get(PASSWORD_VARIABLE):
        os.environ[PASSWORD_VARIABLE] = ask_password(user)
    if mechanism is not None:
        os.environ[MECHANISM_VARIABLE] = mechanism


def ask_password(user: str, *, is_new: bool = False) -> str:
    if not sys.stdin.isatty():
        raise CommandError(f"there is no password for {user!r}, and nobody to ask: see --password-file")
    password = getpass.getpass(f"Password of {user}: ")
    if not password:
        raise CommandError("an empty password is none", exit_code=EXIT_USAGE)
    if is_new and getpass.getpass("The same again: ") != password:
        raise CommandError("the two passwords differ", exit_code=EXIT_USAGE)
    return password
