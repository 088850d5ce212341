"""Real etcd for the tests of a module: three members, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.programs.etcd import EtcdCluster, find_etcd


@pytest.fixture(scope="session")
def etcd_program() -> str:
    program = find_etcd()
    if program is None:
        pytest.skip("there is no etcd here, and none can be fetched")
    return program


@pytest.fixture(scope="module")
def etcd(etcd_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(etcd_program, tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster
