from __future__ import annotations

import re

from penstock import __version__
from penstock.main import ready_line

DOORS = {"kafka": "127.0.0.1:9092", "http": "127.0.0.1:8080"}


def test_ready_tells_doors_version_and_directory() -> None:
    line = ready_line(DOORS, data_dir="/var/lib/penstock", as_json=False)
    doors = f"http={DOORS['http']} kafka={DOORS['kafka']}"
    assert line == f"ready {doors} version={__version__} data_dir=/var/lib/penstock"


def test_whoever_looks_for_addresses_in_the_ready_line_finds_them() -> None:
    line = ready_line(DOORS, data_dir="/a b/kafka=x", as_json=False)
    assert line.startswith("ready ")
    assert dict(re.findall(r"\b(\w+)=(\S+)", line))["http"] == DOORS["http"]
    assert "data_dir='/a b/kafka=x'" in line
