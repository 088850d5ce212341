from __future__ import annotations

import pytest

from penstock.client.environment import credentials_from
from penstock.net.errors import ClientError
from penstock.net.login import Credentials


def test_environment_names_who_logs_in() -> None:
    assert credentials_from({}) is None
    assert credentials_from({"PENSTOCK_PASSWORD": "x"}) is None
    named = {"PENSTOCK_USER": "alice", "PENSTOCK_PASSWORD": "secret", "PENSTOCK_SASL_MECHANISM": "plain"}
    assert credentials_from(named) == Credentials("alice", "secret", "PLAIN")
    for broken in ({"PENSTOCK_PASSWORD": ""}, {"PENSTOCK_SASL_MECHANISM": "GSSAPI"}):
        with pytest.raises(ClientError):
            credentials_from({**named, **broken})
