"""Errors over HTTP: problem+json (RFC 9457), a title to match on and a sentence that says what, which and how much."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

PROBLEM_TYPE: Final = "application/problem+json"


class Problem(msgspec.Struct, frozen=True):
    title: str
    status: int
    detail: str
    type: str = "about:blank"


class ProblemError(Exception):
    """Ends a request; the door answers with the problem."""

    def __init__(self, status: HTTPStatus, title: str, detail: str) -> None:
        super().__init__(detail)
        self.problem = Problem(title, status, detail)


def problem_response(problem: Problem) -> Response:
    return Response(msgspec.json.encode(problem), problem.status, media_type=PROBLEM_TYPE)


def bad_request(detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.BAD_REQUEST, "Bad request", detail)


def not_found(detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, "Not found", detail)


def damaged(detail: str) -> ProblemError:
    """It stays so until an operator has done what the detail says: not 503, for which many clients ask again."""
    return ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "Damaged", detail)


def unavailable(detail: str) -> ProblemError:
    """Nothing is wrong with the request: the same one may work in a moment."""
    return ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "Not available", detail)
