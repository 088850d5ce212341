"""Real etcd for the tests of a module: three members, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.programs.etcd import EtcdCluster, require_etcd


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(require_etcd(), tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster
