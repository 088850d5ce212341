"""How a node gets into etcd: as whom, and by which certificates. Shared by the loop and the thread that renews."""

from __future__ import annotations

import ssl

from penstock.cluster.store.etcd import messages
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.cluster.store.settings import MetadataConfig


class Access:
    def __init__(self, config: MetadataConfig, *, has_tls: bool) -> None:
        self.user = config.user
        self._password = config.password
        self.tls = _tls_context(config) if has_tls else None
        # What the last login gave. Whoever finds it used up logs in again; two who do so at once do no harm.
        self.token = ""

    @property
    def has_login(self) -> bool:
        return not self.user or bool(self.token)

    def login_body(self) -> messages.Body:
        return {"name": self.user, "password": self._password}


def _tls_context(config: MetadataConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca_file or None)
        if config.cert_file:
            context.load_cert_chain(config.cert_file, config.key_file)
    except OSError as error:
        # SSLError is one too: a file that is there and holds something else.
        names = ", ".join(filter(None, (config.ca_file, config.cert_file, config.key_file)))
        words = error.strerror or "no PEM file"
        raise StoreUnavailableError(f"etcd's certificates cannot be read ({names}): {words.lower()}") from error
    return context
