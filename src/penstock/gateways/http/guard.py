"""What a web page may not do at the HTTP door: a browser beside the node must not act for any site it shows.

    Host            a name that is ours, or an address: a name of somebody else that leads here is DNS rebinding
    Origin,         a page of this door or no page at all; from other sites only links that are followed
    Sec-Fetch-Site
    Content-Type    none that a page can send without asking first: forms, plain text, nothing

Three lines, because old browsers leave out some of these headers and none leaves out all. No header is asked for that
programs do not send, so they notice none of it but the content type. Changes by GET are the SQS door's, which has a
rule of its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.domain.security.access import ANONYMOUS
from penstock.gateways.admission import Admission
from penstock.gateways.caller import HTTP, SQS, UNKNOWN, Caller
from penstock.gateways.http.asgi import CALLER, Application, Receive, Scope, Send
from penstock.gateways.http.problem import PROBLEM_TYPE

log = get_logger("http")

ANY_NAME: Final = "*"
# Where changes are made with bodies; SQS has the root and knows its clients by their headers.
BODIES_PREFIX: Final = "/v1/"
# CORS lets pages send these to anybody, and a body without a type.
_SIMPLE_TYPES: Final = frozenset({b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain"})
_TELLING: Final = frozenset(
    {
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"sec-fetch-mode",
        b"sec-fetch-dest",
        b"content-type",
        b"content-length",
        b"transfer-encoding",
    }
)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_OWN_SITES: Final = frozenset({b"none", b"same-origin"})
_DEFAULT_PORTS: Final = {b"http": b"80", b"https": b"443"}
_HOSTS_REMEMBERED: Final = 256
_SHOWN_BYTES: Final = 100
# Of a length that is worth reading: more bytes than any disk holds.
_DIGITS_MAX: Final = 18
# One sentence a minute: a page that tries, or a name that is missing from the settings, does so all the time.
REPORT_MS: Final = 60_000

Headers = dict[bytes, bytes]


class Refusal(msgspec.Struct, frozen=True):
    status: HTTPStatus
    title: str
    detail: str


def host_rule(names: Iterable[str]) -> Callable[[bytes], bool]:
    """Whether a Host header names this node. Addresses do: nobody can make a name of his lead to one of them in a
    browser's eyes. `.example.org` stands for everything below it."""
    known = {name.lower().rstrip(".") for name in names if name and not name.startswith(".")}
    endings = (".localhost", *(name.lower() for name in names if name.startswith(".")))

    @lru_cache(_HOSTS_REMEMBERED)
    def is_ours(host: bytes) -> bool:
        name = _name_of(host.decode("latin-1"))
        return name in known or name == "localhost" or name.endswith(endings) or _is_address(name)

    return (lambda _host: True) if ANY_NAME in known else is_ours


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def refusal_of(
    method: str, path: str, headers: Iterable[tuple[bytes, bytes]], is_ours: Callable[[bytes], bool]
) -> Refusal | None:
    return refusal_for(method, path, read_headers(headers), is_ours)


def refusal_for(method: str, path: str, asked: Headers | bytes, is_ours: Callable[[bytes], bool]) -> Refusal | None:
    """`asked`: as `read_headers` has found it."""
    if isinstance(asked, bytes):
        return Refusal(HTTPStatus.BAD_REQUEST, "Bad request", f"there is more than one header {asked.decode()}")
    host, is_safe = asked.get(b"host"), method in _SAFE_METHODS
    if host is not None and not is_ours(host):
        detail = (
            f"this node is not known as {_shown(host)!r}: if it should be, add the name to [http] host_names "
            "(PENSTOCK_HTTP__HOST_NAMES)"
        )
        return Refusal(HTTPStatus.FORBIDDEN, "Unknown host", detail)
    if (b"origin" in asked or b"sec-fetch-site" in asked) and _is_foreign(asked, is_safe=is_safe):
        page = _shown(asked.get(b"origin", b"another site"))
        return Refusal(HTTPStatus.FORBIDDEN, "Another site", f"a page of {page} may not use this node")
    return _refused_type(asked) if path.startswith(BODIES_PREFIX) and not is_safe else None


def _is_foreign(asked: Headers, *, is_safe: bool) -> bool:
    site, origin = asked.get(b"sec-fetch-site"), asked.get(b"origin")
    if site is not None and site not in _OWN_SITES:
        # Whoever follows a link to us sees what we answer, and the page with the link does not.
        is_link = asked.get(b"sec-fetch-mode") == b"navigate" and asked.get(b"sec-fetch-dest") == b"document"
        if not is_safe or not is_link:
            return True
    return origin is not None and not _is_same_place(origin, asked.get(b"host", b""))


def _is_same_place(origin: bytes, host: bytes) -> bool:
    """The scheme may differ: a proxy in front may speak TLS."""
    scheme, _, place = origin.lower().partition(b"://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and _with_port(place, port) == _with_port(host.lower(), port)


def _with_port(place: bytes, port: bytes) -> bytes:
    has_port = place.rpartition(b"]")[2].count(b":") == 1
    return place if has_port else place + b":" + port


def _refused_type(asked: Headers) -> Refusal | None:
    told_type = asked.get(b"content-type", b"")
    if told_type == b"application/json":
        return None
    essence = told_type.partition(b";")[0].strip().lower()
    has_body = b"transfer-encoding" in asked or asked.get(b"content-length", b"0") != b"0"
    if essence not in _SIMPLE_TYPES and (essence or not has_body):
        return None
    told = f"a body of type {_shown(essence)}" if essence else "a body without a type"
    detail = (
        f"{told} is what any web page can send, and is not taken: send JSON as application/json (curl --json), "
        "other bytes as application/octet-stream"
    )
    return Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Unsupported media type", detail)


def _shown(text: bytes) -> str:
    return text[:_SHOWN_BYTES].decode("latin-1")


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers | bytes:
    """Those that tell who asks; or the name of one that is there twice. Every request pays for it. Names come in
    lower case."""
    found: Headers = {}
    for name, value in headers:
        if name in _TELLING:
            if name in found:
                return name
            found[name] = value
    return found


def caller_at(path: str, client: tuple[str, int] | None) -> Caller:
    """Nobody has to log in at the doors of this port, so everybody is anonymous."""
    # SQS has the root, and its queues stand below an account's number.
    door = SQS if path == "/" or path[1:2].isdigit() else HTTP
    return Caller(ANONYMOUS, UNKNOWN if client is None else f"{client[0]}:{client[1]}", door)


def _body_bytes(asked: Headers | bytes) -> int:
    """As its length says; 0 where it does not."""
    text = None if isinstance(asked, bytes) else asked.get(b"content-length")
    if text is None:
        return 0
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else 0


class HttpGuard:
    """Stands before the application, writes down who asks, and answers what it refuses itself."""

    def __init__(self, application: Application, names: Iterable[str], clock: Clock, admission: Admission) -> None:
        self._application = application
        self._charge = admission.charge
        self._is_ours = host_rule(tuple(names))
        self._clock = clock
        self._reported_ms: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "there are no WebSockets and no lifespan here"
        asked = read_headers(scope["headers"])
        caller = scope[CALLER] = caller_at(scope["path"], scope.get("client"))
        self._charge(caller, 1, _body_bytes(asked))
        refusal = refusal_for(scope["method"], scope["path"], asked, self._is_ours)
        if refusal is None:
            await self._application(scope, receive, send)
            return
        self._report(refusal)
        await _response(refusal)(scope, receive, send)

    def _report(self, refusal: Refusal) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._reported_ms.get(refusal.title, -REPORT_MS) >= REPORT_MS:
            self._reported_ms[refusal.title] = now_ms
            log.warning("request refused", reason=refusal.detail)


def _response(refusal: Refusal) -> Response:
    """A problem, with the two fields that AWS clients look for."""
    fields = {
        "type": "about:blank",
        "title": refusal.title,
        "status": refusal.status,
        "detail": refusal.detail,
        "__type": "AccessDenied",
        "message": refusal.detail,
    }
    return Response(msgspec.json.encode(fields), refusal.status, media_type=PROBLEM_TYPE)
