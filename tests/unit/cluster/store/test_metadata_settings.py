from __future__ import annotations

import pytest

from penstock.cluster.store.settings import (
    EtcdLocation,
    EtcdMember,
    LocationInvalidError,
    MetadataConfig,
    SqliteLocation,
    parse_location,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqlite:data/metadata.sqlite", SqliteLocation("data/metadata.sqlite")),
        ("etcd:http://a:2379", EtcdLocation((EtcdMember("a", 2379),))),
        ("etcd:http://a,http://b:1/", EtcdLocation((EtcdMember("a", 2379), EtcdMember("b", 1)))),
        ("etcd:http://a:1,http://b:2/east/one", EtcdLocation((EtcdMember("a", 1), EtcdMember("b", 2)), "/east/one")),
        ("etcd:https://[::1]:2379/x/", EtcdLocation((EtcdMember("::1", 2379, is_tls=True),), "/x")),
    ],
)
def test_locations_are_read(text: str, expected: object) -> None:
    assert parse_location(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sqlite:", "neither sqlite:PATH nor etcd:URL"),
        ("zookeeper:a:1", "neither sqlite:PATH nor etcd:URL"),
        ("etcd:a:2379", "no address of an etcd member"),
        ("etcd:http://a:0", "no address of an etcd member"),
        ("etcd:http://a:99999", "no address of an etcd member"),
        ("etcd:http://a/x,http://b", "no address of an etcd member"),
        ("etcd:http://a?x=1", "no address of an etcd member"),
        ("etcd:http://a,https://b", "http:// and https:// at once"),
        ("etcd:http://a/é", "ASCII only"),
    ],
)
def test_what_is_no_location_is_told(text: str, words: str) -> None:
    with pytest.raises(LocationInvalidError, match=words):
        parse_location(text)


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(LocationInvalidError) as caught:
        parse_location("etcd:http://me:s3cret@a:2379")
    assert "settings of [metadata]" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_members_are_shown_as_they_are_written() -> None:
    assert [str(member) for member in (EtcdMember("a", 1), EtcdMember("::1", 2, is_tls=True))] == [
        "http://a:1",
        "https://[::1]:2",
    ]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (MetadataConfig(), None),
        (MetadataConfig(user="a", password="b", cert_file="c", key_file="k"), None),
        (MetadataConfig(user="a"), "user and password"),
        (MetadataConfig(password="b"), "user and password"),
        (MetadataConfig(cert_file="c"), "cert_file and key_file"),
    ],
)
def test_halves_of_settings_are_refused(config: MetadataConfig, words: str | None) -> None:
    problem = config.check()
    assert problem is None if words is None else problem is not None and words in problem


def test_the_password_is_never_shown() -> None:
    assert "s3cret" not in repr(MetadataConfig(user="me", password="s3cret"))
