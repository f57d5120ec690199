"""Tests of mcp_ref: one class per page of the specification, in its order.

    python -m unittest                                    all of it, under a minute
    python test_mcp_ref.py --ledger                       clauses per page and state
    python test_mcp_ref.py --clause http-12               one clause: row, lines, tests

`@spec("http-12")` names the clauses that a test proves. Every exchange of the tests goes
through the real encoder and through `lint`, which holds what is true of all messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import mcp_ref
from mcp_ref import JSON, Context, Server

HERE = pathlib.Path(__file__).resolve().parent
SHARED = HERE.parent / "shared"
LIST_METHODS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
CACHEABLE = {*LIST_METHODS, "server/discover", "resources/read"}
ASKING = {"tools/call", "prompts/get", "resources/read"}
DEFINED_CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}
OWN_CODES = {403, 429, 503}  # outside the reserved range
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
ALL_CAPABILITIES = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}

logging.getLogger("mcp_ref").addHandler(logging.NullHandler())
logging.getLogger("mcp_ref").propagate = False


def spec(*clauses: str) -> Callable[[Any], Any]:
    """Name the clauses of the specification that a test proves."""

    def mark(test: Any) -> Any:
        test.clauses = clauses
        return test

    return mark


# --- the linter: what is true of every exchange -------------------------------------------


class Wire:
    """The official schema, when it is there, to hold all of our traffic against."""

    _schemas: dict[str, Any] = {}

    @classmethod
    def check(cls, name: str, value: JSON) -> None:
        path = SHARED / "spec" / "schema" / "2026-07-28.json"
        if not path.exists():
            return
        if name not in cls._schemas:
            document = json.loads(path.read_text(encoding="utf-8"))
            document["$ref"] = f"#/$defs/{name}"
            cls._schemas[name] = mcp_ref.Schema(document)
        violations = cls._schemas[name].violations(value)
        if violations:
            raise AssertionError(f"{name}: {'; '.join(map(str, violations))}\n{value}")


RESULT_TYPES = {
    "server/discover": "DiscoverResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "completion/complete": "CompleteResult",
    "subscriptions/listen": "SubscriptionsListenResult",
}
NOTIFICATION_TYPES = {
    "notifications/progress": "ProgressNotification",
    "notifications/message": "LoggingMessageNotification",
    "notifications/subscriptions/acknowledged": "SubscriptionsAcknowledgedNotification",
    "notifications/resources/updated": "ResourceUpdatedNotification",
    "notifications/tools/list_changed": "ToolListChangedNotification",
    "notifications/prompts/list_changed": "PromptListChangedNotification",
    "notifications/resources/list_changed": "ResourceListChangedNotification",
}


class Linter:
    """Check the messages of one exchange, in the order in which they come."""

    def __init__(self, request: mcp_ref.Request, extra_types: set[str]) -> None:
        self.request = request
        self.extra_types = extra_types
        self.seen: list[JSON] = []
        self.progress = float("-inf")
        self.answered = False

    def notification(self, message: JSON) -> None:
        assert not self.answered, f"a notification after the response: {message}"
        assert message["jsonrpc"] == "2.0" and "id" not in message, message
        method, params = message["method"], message.get("params", {})
        Wire.check(NOTIFICATION_TYPES[method], message)
        if self.request.method == "subscriptions/listen":
            self.subscription(method, params)
        else:
            assert method in ("notifications/progress", "notifications/message"), method
        meta = self.request.params.get("_meta", {})
        if method == "notifications/progress":
            assert same(params["progressToken"], meta.get("progressToken")), message
            assert params["progress"] > self.progress, message
            self.progress = params["progress"]
        if method == "notifications/message":
            levels = mcp_ref.LOG_LEVELS
            wanted = meta["io.modelcontextprotocol/logLevel"]
            assert levels.index(params["level"]) >= levels.index(wanted), message
        self.seen.append(message)

    def subscription(self, method: str, params: JSON) -> None:
        first = not self.seen
        acknowledged = method == "notifications/subscriptions/acknowledged"
        assert first == acknowledged, f"{method} as message {len(self.seen)}"
        found = params["_meta"]["io.modelcontextprotocol/subscriptionId"]
        assert same(found, self.request.id), (found, self.request.id)
        assert method not in ("notifications/progress", "notifications/message"), method

    def response(self, message: JSON) -> None:
        assert not self.answered, "a second response"
        self.answered = True
        assert message["jsonrpc"] == "2.0" and "method" not in message, message
        assert same(message["id"], self.request.id), (message, self.request.id)
        assert ("result" in message) != ("error" in message), message
        if "error" in message:
            self.error(message["error"])
        else:
            self.result(message["result"])

    def error(self, error: JSON) -> None:
        assert type(error["code"]) is int and isinstance(error["message"], str), error
        assert error["code"] in DEFINED_CODES | OWN_CODES, error
        if error["code"] == -32021:
            assert isinstance(error["data"]["requiredCapabilities"], dict), error
        if error["code"] == -32022:
            assert error["data"]["supported"] and "requested" in error["data"], error

    def result(self, result: JSON) -> None:
        kind, method = result["resultType"], self.request.method
        assert kind in {"complete", "input_required"} | self.extra_types, result
        assert "io.modelcontextprotocol/serverInfo" in result["_meta"], result
        if kind == "input_required":
            assert method in ASKING, f"{method} asks"
            assert result.get("inputRequests") or "requestState" in result, result
            assert "ttlMs" not in result and "cacheScope" not in result, result
            Wire.check("InputRequiredResult", result)
        elif kind == "complete":
            if method in CACHEABLE:
                assert type(result["ttlMs"]) is int and result["ttlMs"] >= 0, result
                assert result["cacheScope"] in ("public", "private"), result
            if method in RESULT_TYPES:
                Wire.check(RESULT_TYPES[method], result)


def same(left: Any, right: Any) -> bool:
    """Equal in value and type: 1 is not "1", and not True."""
    return type(left) is type(right) and left == right


def lint(exchange: mcp_ref.Exchange, extra_types: set[str] = set()) -> mcp_ref.Exchange:
    """Wrap an Exchange so that what holds for every exchange is asserted."""

    async def checked(request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        linter = Linter(request, extra_types)

        async def forward(message: JSON) -> None:
            linter.notification(message)
            await send(message)

        response = await exchange(request, forward)
        linter.response(response)
        return response

    return checked


# --- in memory: through the real encoder, both ways ---------------------------------------


def request(
    method: str,
    params: JSON = None,
    *,
    id: Any = 1,
    capabilities: JSON = None,
    meta: JSON = None,
    **facts: Any,
) -> mcp_ref.Request:
    """Build a request with a good _meta, through encode and decode."""
    full = dict(META)
    if capabilities is not None:
        full["io.modelcontextprotocol/clientCapabilities"] = capabilities
    body = {**(params or {}), "_meta": {**full, **(meta or {})}}
    data = mcp_ref.encode(mcp_ref.request_message(id, method, body))
    found = mcp_ref.read_message(mcp_ref.decode(data), **facts)
    assert isinstance(found, mcp_ref.Request)
    return found


class Reply(list[Any]):
    """The notifications of an exchange, and its response."""

    response: JSON

    @property
    def result(self) -> JSON:
        assert "result" in self.response, self.response
        return self.response["result"]

    @property
    def error(self) -> JSON:
        assert "error" in self.response, self.response
        return self.response["error"]

    @property
    def text(self) -> str:
        return "".join(one.get("text", "") for one in self.result["content"])


async def exchange(
    server: Any, message: mcp_ref.Request, extra_types: set[str] = set()
) -> Reply:
    """Carry out one request against a Server or Exchange, linted and encoded."""
    reply = Reply()

    async def send(notification: JSON) -> None:
        reply.append(json.loads(mcp_ref.encode(notification)))

    handle = getattr(server, "handle", server)
    response = await lint(handle, extra_types)(message, send)
    reply.response = json.loads(mcp_ref.encode_response(response)[0])
    return reply


class Case(unittest.IsolatedAsyncioTestCase):
    """What the test classes share. `self.server` is fresh for each test."""

    maxDiff = None

    def setUp(self) -> None:
        self.server = Server("test", "1.0")

    async def call(self, method: str, params: JSON = None, **options: Any) -> Reply:
        """Carry out one request against `self.server`."""
        return await exchange(self.server, request(method, params, **options))

    async def tool(self, name: str, arguments: JSON = None, **options: Any) -> Reply:
        """Call a tool of `self.server`."""
        params = {"name": name, "arguments": arguments or {}}
        return await self.call("tools/call", params | options.pop("more", {}), **options)

    async def answer(
        self, method: str, params: JSON, reply: Reply, responses: JSON, **options: Any
    ) -> Reply:
        """Retry a request that was answered with `input_required`."""
        more = {"inputResponses": responses}
        if "requestState" in reply.result:
            more["requestState"] = reply.result["requestState"]
        return await self.call(method, params | more, **options)


class Smoke(Case):
    async def test_discover(self) -> None:
        reply = await self.call("server/discover")
        self.assertEqual(reply.result["supportedVersions"], ["2026-07-28"])


if __name__ == "__main__":
    unittest.main()
