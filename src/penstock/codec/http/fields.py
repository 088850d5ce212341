"""What the bodies of the HTTP door are made of, for whoever writes them and for whoever reads them.

A value travels as text where it is text and as base64 where it is not; a key likewise.
"""

from __future__ import annotations

import base64
from typing import Annotated, Final

import msgspec
from msgspec import Meta

# A header of answers that rules may have shortened: as whom the node took the caller.
ANSWERED_AS: Final = "penstock-answered-as"
COUNT_MAX: Final = 10_000
# The end of the year 9999.
MOMENT_MS_MAX: Final = 253_402_300_799_999
# Far more than anybody means, and exact in every JSON reader.
NUMBER_MAX: Final = (1 << 53) - 1
TOPIC_TEXT: Final = "^[A-Za-z0-9._-]+$"
_BASE64_TEXT: Final = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

MomentMs = Annotated[int, Meta(ge=0, le=MOMENT_MS_MAX)]
# A pattern that is only told, because the code that reads it checks it anyway.
Base64 = Annotated[str, Meta(extra_json_schema={"pattern": _BASE64_TEXT, "contentEncoding": "base64"})]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of a request. A misspelt field is an error, not a silence; of a reply, what is not known is passed over."""


def text_or_base64(data: bytes | None) -> tuple[str | None, str | None]:
    """As the two fields of a body: text where it is text, else base64, neither for nothing."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


def readable_headers(headers: tuple[tuple[str, bytes | None], ...]) -> dict[str, str]:
    """The last of a name counts, as for everybody who asks for one. Bytes that are no text are shown as they can be."""
    return {name: (value or b"").decode(errors="backslashreplace") for name, value in headers}
