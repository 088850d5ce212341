"""One durable log, consumed every way."""

__version__ = "0.1.0"
