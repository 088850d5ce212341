"""What is wrong with a node's settings, told to the person who wrote them."""

from __future__ import annotations


class ConfigError(Exception):
    """The configuration cannot be used; the message is one sentence for the person who wrote it."""
