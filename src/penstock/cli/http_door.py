"""A node's HTTP door, as the commands use it that speak to it.

The door has no logins yet: it answers everybody as User:ANONYMOUS, whatever `--user` says. Where rules deny something
the command says so, instead of failing for a super user without a reason or showing a short list in silence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from penstock.cli.failure import CommandError
from penstock.cli.output import say
from penstock.client.environment import USER_VARIABLE
from penstock.client.http.client import TIMEOUT_SECONDS, HttpClient, RefusedError


@contextmanager
def http_door(address: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Iterator[HttpClient]:
    with HttpClient(address, timeout_seconds=timeout_seconds) as client:
        try:
            yield client
        except RefusedError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            way_out = "a rule for User:ANONYMOUS would allow it"
            raise CommandError(f"{error} ({_why_not_me()}; {way_out})") from error
        finally:
            # Also of a failure: what is not found may have been left out.
            if client.answered_as:
                say(f"note: what {client.answered_as} may not see is left out ({_why_not_me()})")


def _why_not_me() -> str:
    user = os.environ.get(USER_VARIABLE)
    ignored = f", so --user {user} is not used" if user else " and answers everybody alike"
    return f"the HTTP door has no logins yet{ignored}"
