"""Who a tool logs in as: said by the environment it was started in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.net.errors import LoginFailedError
from penstock.net.login import CLIENT_MECHANISMS, MECHANISM_DEFAULT, Credentials

USER_VARIABLE: Final = "PENSTOCK_USER"
PASSWORD_VARIABLE: Final = "PENSTOCK_PASSWORD"  # noqa: S105  the name of a variable
MECHANISM_VARIABLE: Final = "PENSTOCK_SASL_MECHANISM"
# For whoever is shut out and did not say who they are.
LOGIN_HINT: Final = f"it may ask for a login ({USER_VARIABLE})"


def credentials_from(environment: Mapping[str, str]) -> Credentials | None:
    """None: nobody is named, so nobody logs in."""
    user = environment.get(USER_VARIABLE, "")
    if not user:
        return None
    password = environment.get(PASSWORD_VARIABLE, "")
    mechanism = environment.get(MECHANISM_VARIABLE, "") or MECHANISM_DEFAULT
    if not password:
        raise LoginFailedError(f"{USER_VARIABLE} names {user!r}, but there is no password ({PASSWORD_VARIABLE})")
    if mechanism.upper() not in CLIENT_MECHANISMS:
        raise LoginFailedError(f"{mechanism!r} is not one of {', '.join(CLIENT_MECHANISMS)}")
    return Credentials(user, password, mechanism.upper())
