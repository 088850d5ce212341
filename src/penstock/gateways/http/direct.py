"""The straight way from a request to its handler and back, past the application's routing and middleware.

    uvicorn ─► guard ─► DirectRoutes ─► handler ─► reply, head and body in one write
                             └─ no such path, another method, HEAD ─► the application, which knows what to say

Routes and their order are the application's own, and so is what counts as a fit: a request that finds its handler here
would have found the same one there, after a dozen calls and two writes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, cast

from starlette.convertors import Convertor, StringConvertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.gateways.http.asgi import REPLY, Application, Receive, Reply, Scope, Send

# Requests for the same few queues come again and again; a longer path, or more of them, is matched each time.
PATHS_REMEMBERED: Final = 1_024
PATH_CHARACTERS_MAX: Final = 256

Handler = Callable[[Request], Awaitable[Response]]
# How a path is matched, who answers, and which of its parameters are more than text.
_Fitting = tuple[Callable[[str], re.Match[str] | None], Handler, list[tuple[str, Convertor[Any]]]]


class DirectRoutes:
    def __init__(self, application: Application, routes: Iterable[BaseRoute]) -> None:
        self._application = application
        # By method and number of slashes, which a parameter cannot hold: one or two of them are left to be tried.
        self._routes: dict[tuple[str, int], list[_Fitting]] = {}
        self._known: dict[tuple[str, str], tuple[Handler, dict[str, Any]]] = {}
        for route in routes:
            assert isinstance(route, Route), "all of ours are"
            converted = [
                (name, convertor)
                for name, convertor in route.param_convertors.items()
                if not isinstance(convertor, StringConvertor)
            ]
            for method in sorted((route.methods or set()) - {"HEAD"}):
                fitting = self._routes.setdefault((method, route.path.count("/")), [])
                fitting.append((route.path_regex.match, cast(Handler, route.endpoint), converted))

    def find(self, method: str, path: str) -> tuple[Handler, dict[str, Any]] | None:
        """The handler, and what the path says to it, to be read only."""
        known = self._known.get((method, path))
        if known is not None:
            return known
        found = self._match(method, path)
        if found is not None and len(path) <= PATH_CHARACTERS_MAX:
            if len(self._known) >= PATHS_REMEMBERED:
                self._known.clear()
            self._known[method, path] = found
        return found

    @property
    def remembered_count(self) -> int:
        return len(self._known)

    def _match(self, method: str, path: str) -> tuple[Handler, dict[str, Any]] | None:
        for match, handler, converted in self._routes.get((method, path.count("/")), ()):
            fit = match(path)
            if fit is not None:
                params = fit.groupdict()
                for name, convertor in converted:
                    params[name] = convertor.convert(params[name])
                return handler, params
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.find(scope["method"], scope["path"])
        if found is None:
            await self._application(scope, receive, send)
            return
        handler, scope["path_params"] = found
        response = await handler(Request(scope, receive, send))
        reply: Reply | None = scope.get("extensions", {}).get(REPLY)
        if reply is None:
            await response(scope, receive, send)
        else:
            await reply(send, response.status_code, response.raw_headers, bytes(response.body))
