from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.base.config_error import ConfigError
from penstock.config import Config, describe_allowed, load_config
from penstock.gateways.node_address import split_address


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[kafka]\nlisten = "127.0.0.1:1"\nidle_ms_max = 7\n[node]\nid = 3\n[broker]\ndefault_partitions = 4\n'
    )
    environment = {"PENSTOCK_KAFKA__LISTEN": "127.0.0.1:2", "PENSTOCK_NODE__ID": "5", "PENSTOCK_BOOTSTRAP": "ignored"}
    config = load_config(file, environment, {"node": {"id": 6}})
    assert config.kafka.listen == "127.0.0.1:2"
    assert config.kafka.idle_ms_max == 7
    assert config.node.id == 6
    assert config.broker.default_partitions == 4


def test_yaml_is_read_like_toml(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("broker:\n  topic_defaults:\n    retention.ms: '1000'\n")
    assert load_config(file, {}, {}).broker.topic_defaults == {"retention.ms": "1000"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[kafak]\nlisten = 'x'\n", "there is no section 'kafak', did you mean 'kafka'?"),
        ("[kafka]\nlistn = 'x'\n", "[kafka] has no setting 'listn', did you mean 'listen'?"),
        ("[kafka]\nidle_ms_max = 'soon'\n", "penstock.toml: [kafka] idle_ms_max is 'soon'; allowed: a whole number"),
        ("[log]\nlevel = 'debugg'\n", "penstock.toml: [log] level is 'debugg'; allowed: debug, info, warning, error"),
        ("[node]\nid = -1\n", "penstock.toml: [node] id is '-1'; allowed: a whole number from 0 to 2,147,483,647"),
        (
            "[cluster]\nsession_ms = 500\n",
            "[cluster] session_ms is '500'; allowed: a whole number from 2,000 to 60,000",
        ),
        (
            "[broker]\ndefault_replication = -1\n",
            "[broker] default_replication is '-1'; allowed: a whole number from 0 to 32,767",
        ),
        ("[node]\nmemory = 'maybe'\n", "[node] memory is 'maybe'; allowed: true or false"),
        ("[kafka]\nusers = 'admin'\n", "[kafka] users is 'admin'; allowed: a table of texts"),
        ("[kafka]\nsasl_mechanisms = 3\n", "[kafka] sasl_mechanisms is '3'; allowed: a list of texts"),
        ("[metadata]\nallow_old_etcd = 'no!'\n", "[metadata] allow_old_etcd is 'no!'; allowed: true or false"),
        ("[metadata]\npassword = [5555]\n", "[metadata] password; allowed: a text"),
        ("[metadata]\npassword = 5555\n", "[metadata] password; allowed: a text"),
        ("top = 1\n", "expected sections such as [kafka]"),
        ("[kafka\n", "penstock.toml: Expected"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, {}, {})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text", "sentence"),
    [
        ("PENSTOCK_NODE__ID", "-5", "PENSTOCK_NODE__ID is '-5'; allowed: a whole number from 0"),
        ("PENSTOCK_LOG__LEVEL", "loud", "PENSTOCK_LOG__LEVEL is 'loud'; allowed: debug"),
        ("PENSTOCK_KAFKA__LISTN", "x", "environment: [kafka] has no setting 'listn', did you mean 'listen'?"),
    ],
)
def test_a_mistake_in_the_environment_is_named_by_its_variable(
    tmp_path: Path, variable: str, text: str, sentence: str
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[node]\nid = 3\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, {variable: text}, {})
    assert str(caught.value).startswith(sentence)


def test_a_table_in_a_message_does_not_show_its_values(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[kafka.users]\nadmin = 4711\nroot = ['secret']\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, {}, {})
    assert "[kafka] users; allowed: a table of texts" in str(caught.value)
    assert "4711" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_every_setting_can_be_described() -> None:
    for section in msgspec.structs.fields(Config):
        for setting in msgspec.structs.fields(section.type):
            assert "something else" not in describe_allowed(setting.type), f"[{section.name}] {setting.name}"


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "absent.toml", {}, {})


@pytest.mark.parametrize(("address", "parts"), [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9092", ("::1", 9092))])
def test_an_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address, "kafka") == parts


@pytest.mark.parametrize("address", ["9092", "host:", "host:port", "host:70000", ""])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        split_address(address, "kafka")


def test_environment_writes_lists_with_commas_and_tables_as_json() -> None:
    environment = {
        "PENSTOCK_KAFKA__SASL_MECHANISMS": "PLAIN, SCRAM-SHA-256",
        "PENSTOCK_KAFKA__USERS": '{"admin": "a, b=c"}',
        "PENSTOCK_ACCESS__SUPER_USERS": "User:admin",
        "PENSTOCK_ACCESS__ALLOW_WITHOUT_RULE": "false",
    }
    config = load_config(None, environment, {})
    assert config.kafka.sasl_mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert config.kafka.users == {"admin": "a, b=c"}
    assert (config.access.super_users, config.access.allow_without_rule) == (("User:admin",), False)


@pytest.mark.parametrize("text", ["admin=secret", '["secret"]', '{"admin": 1234567}'])
def test_table_that_cannot_be_read_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {"PENSTOCK_KAFKA__USERS": text}, {})
    assert "PENSTOCK_KAFKA__USERS" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "1234567" not in str(caught.value)
