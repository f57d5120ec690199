"""Tests of mcp_ref: one class per page of the specification, in its order.

    python -m unittest                                    all of it, under a minute
    python test_mcp_ref.py --ledger                       clauses per page and state
    python test_mcp_ref.py --clause http-12               one clause: row, lines, tests

`@spec("http-12")` names the clauses that a test proves. Every exchange of the tests goes
through the real encoder and through `lint`, which holds what is true of all messages.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import base64
import collections
import contextlib
import contextvars
import copy
import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import io
import itertools
import json
import logging
import math
import os
import pathlib
import queue
import random
import re
import shlex
import signal
import hmac
import ssl
import struct
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import tokenize
import types
import typing
import unittest
import unittest.mock
import uuid
from collections import abc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union
from unittest import mock

import mcp_ref
from mcp_ref import (
    Authorization,
    Client,
    ClientGroup,
    Context,
    HttpClient,
    HttpLimits,
    InvalidResponse,
    JSON,
    LegacyServer,
    META_CLIENT_CAPABILITIES,
    META_CLIENT_INFO,
    META_LOG_LEVEL,
    META_PROTOCOL_VERSION,
    META_SUBSCRIPTION_ID,
    Principal,
    RemoteError,
    Request,
    Server,
    SseDecoder,
    StdioClient,
    SyncClient,
    TransportError,
    UnansweredInput,
    parse_challenges,
    serve_http,
    static_tokens,
)

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
logging.getLogger("asyncio").setLevel(logging.ERROR)  # debug mode tells slow steps


def spec(*clauses: str) -> Callable[[Any], Any]:
    """Name the clauses of the specification that a test proves."""

    def mark(test: Any) -> Any:
        test.clauses = clauses
        return test

    return mark


# --- the linter: what is true of every exchange -------------------------------------------


class Wire:
    """The official schema, when it is there, to hold all of our traffic against."""

    _schema: Any = None  # compiled once for all: a value is checked as {name: value}

    @classmethod
    def check(cls, name: str, value: JSON) -> None:
        path = SHARED / "spec" / "schema" / "2026-07-28.json"
        if not path.exists():
            return
        if cls._schema is None:
            document = json.loads(path.read_text(encoding="utf-8"))
            types_ = {one: {"$ref": f"#/$defs/{one}"} for one in document["$defs"]}
            cls._schema = mcp_ref.Schema({**document, "properties": types_})
        violations = cls._schema.violations({name: value})
        if violations:
            raise AssertionError(f"{'; '.join(map(str, violations))}\n{value}")


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
            try:
                linter.notification(message)
            except Exception as error:  # raised below: what calls this may catch it
                faults.append(error)
            await send(message)

        faults: list[Exception] = []
        response = await exchange(request, forward)
        linter.response(response)
        if faults:
            raise faults[0]
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
    async with asyncio.timeout(10):  # rather a failure than a test that hangs
        response = await lint(handle, extra_types)(message, send)
    reply.response = json.loads(mcp_ref.encode_response(response)[0])
    return reply


class AsyncCase(unittest.IsolatedAsyncioTestCase):
    """A test case without asyncio's debug mode, which takes a quarter of all time."""

    def _setupAsyncioRunner(self) -> None:  # unittest offers no public way
        super()._setupAsyncioRunner()  # type: ignore[misc]
        self._asyncioRunner.get_loop().set_debug(False)


class Case(AsyncCase):
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
        return await self.call(
            "tools/call", params | options.pop("more", {}), **options
        )

    async def answer(
        self, method: str, params: JSON, reply: Reply, responses: JSON, **options: Any
    ) -> Reply:
        """Retry a request that was answered with `input_required`."""
        more = {"inputResponses": responses}
        if "requestState" in reply.result:
            more["requestState"] = reply.result["requestState"]
        return await self.call(method, params | more, **options)


# needs: import dataclasses, import types

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
ODD_IDS = [
    0,
    "",
    "0",
    1,
    "1",
    -1,
    2**53 + 1,
    2**70,
    "a b",
    "\u2028",
    "\ud83d",
    "é" * 99,
]
ALL_METHODS: dict[str, JSON] = {
    "server/discover": {},
    "tools/list": {},
    "tools/call": {"name": "echo", "arguments": {"value": 1}},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "note://a"},
    "prompts/list": {},
    "prompts/get": {"name": "greet", "arguments": {"name": "Ann"}},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "greet"},
        "argument": {"name": "name", "value": "A"},
    },
    "subscriptions/listen": {"notifications": {}},
}


def full_server(**options: Any) -> Server:
    """Build a server on which each method exists."""
    server = Server("full", "1.0", **options)

    @server.tool
    def echo(value: Any) -> Any:
        return {"value": value}

    @server.tool
    async def meta(ctx: Context) -> Any:
        return {"fields": ctx.meta.fields}

    @server.resource("note://a")
    def note() -> str:
        return "a"

    @server.resource("page://{name}")
    def page(name: str) -> str:
        return name

    @server.prompt
    def greet(name: str) -> str:
        return f"Hello {name}"

    server.complete("greet", "name", values=["Ann", "Bob"])
    return server


def refused(data: bytes) -> mcp_ref.McpError:
    """Return the error that reading a message gives."""
    try:
        found = mcp_ref.read_message(mcp_ref.decode(data))
    except mcp_ref.McpError as error:
        return error
    raise AssertionError(f"accepted: {found}")


def bare(
    method: str, params: JSON = None, id: Any = 1, **facts: Any
) -> mcp_ref.Request:
    """Build a request just as it is, without adding a `_meta`."""
    message = mcp_ref.request_message(id, method, params or {})
    found = mcp_ref.read_message(mcp_ref.decode(mcp_ref.encode(message)), **facts)
    assert isinstance(found, mcp_ref.Request)
    return found


class BaseProtocol(Case):
    """spec: basic/index"""

    def setUp(self) -> None:
        self.server = full_server()

    async def end_after_acknowledgement(self, message: mcp_ref.Request) -> Reply:
        """Carry out a request; a listen stream is ended once it is open."""
        task = asyncio.create_task(exchange(self.server, message))
        while not task.done() and not len(self.server.subscriptions):
            await asyncio.sleep(0)
        self.server.subscriptions.end()
        return await task

    # --- bytes ------------------------------------------------------------------------

    @spec("transports-01", "mrtr-30")
    def test_what_is_not_json_in_utf_8_is_a_parse_error(self) -> None:
        request = '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}'
        nested = "[" * 100_000 + "]" * 100_000
        cases = {
            "STD-05, a byte of Latin-1": b'{"jsonrpc":"2.0","id":7,"method":"caf\xe9"}',
            "a lone surrogate as bytes": b'{"id":"\xed\xa0\x80"}',
            "overlong": b'{"id":"\xc0\x80"}',
            "UTF-16": request.encode("utf-16"),
            "UTF-32": request.encode("utf-32-be"),
            "STD-26, half a message": b'{"jsonrpc":"2.0","id":1,',
            "STD-22, a fragment": b"{",
            "STD-21, a header": b"Content-Length: 60",
            "two on one line": f"{request} {request}".encode(),
            "JSN-01, NaN": b'{"v":NaN}',
            "JSN-01, Infinity": b'{"v":Infinity}',
            "JSN-01, -Infinity": b'{"v":[-Infinity]}',
            "single quotes": b"{'v':1}",
            "a comment": b'{"v":1} // one',
            "a trailing comma": b'{"v":1,}',
            "a raw control character": b'{"v":"a\tb"}',
            "JSN-04, nested 100,000 deep": nested.encode(),
            "JSN-04, nested objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
            "an integer of 5,000 digits": b'{"v":' + b"9" * 5000 + b"}",
            "nothing": b"",
        }
        for name, data in cases.items():
            with self.subTest(name):
                self.assertEqual(refused(data).code, -32700)

    @spec("base-03", "base-04", "base-05", "http-11", "http-12")
    def test_json_that_is_not_one_request_or_notification_is_an_invalid_request(
        self,
    ) -> None:
        cases = {
            "STD-26, null": "null",
            "STD-26, a string": '"str"',
            "STD-26, a number": "123",
            "STD-26, true": "true",
            "STD-26, empty": "{}",
            "JSN-12, a batch": '[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]',
            "JSN-12, an empty batch": "[]",
            "JSN-06, a null id": '{"jsonrpc":"2.0","id":null,"method":"tools/list"}',
            "JSN-09, a fraction": '{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}',
            "JSN-10, true as id": '{"jsonrpc":"2.0","id":true,"method":"tools/list"}',
            "JSN-10, a list as id": '{"jsonrpc":"2.0","id":[1],"method":"tools/list"}',
            "JSN-10, an object as id": '{"jsonrpc":"2.0","id":{"a":1},"method":"x"}',
            "JSN-13, no jsonrpc": '{"id":1,"method":"tools/list"}',
            "JSN-13, 1.0": '{"jsonrpc":"1.0","id":1,"method":"tools/list"}',
            "JSN-13, a number": '{"jsonrpc":2.0,"id":1,"method":"tools/list"}',
            "JSN-13, the method a number": '{"jsonrpc":"2.0","id":1,"method":5}',
            "JSN-13, no method": '{"jsonrpc":"2.0","id":1}',
            "JSN-13, no method, no id": '{"jsonrpc":"2.0"}',
            "params a list": '{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}',
            "params null": '{"jsonrpc":"2.0","id":1,"method":"x","params":null}',
            "params a string": '{"jsonrpc":"2.0","method":"x","params":"a"}',
            "JSN-15, a response": '{"jsonrpc":"2.0","id":99,"result":{}}',
            "JSN-15, an error": '{"jsonrpc":"2.0","id":9,"error":{"code":1}}',
        }
        for name, text in cases.items():
            with self.subTest(name):
                self.assertEqual(refused(text.encode()).code, -32600)

    @spec("base-15", "base-16", "base-17")
    def test_an_error_has_the_id_where_it_could_be_read_and_else_none(self) -> None:
        cases = [
            (b"{", ...),
            (b"[]", ...),
            (b'{"jsonrpc":"2.0","id":null,"method":"x"}', ...),
            (b'{"jsonrpc":"2.0","id":true,"method":"x"}', ...),
            (b'{"jsonrpc":"2.0","id":1.5,"method":"x"}', ...),
            (b'{"jsonrpc":"1.0","id":0,"method":"x"}', 0),
            (b'{"jsonrpc":"2.0","id":"a","method":5}', "a"),
            (b'{"jsonrpc":"2.0","id":"","method":"x","params":[]}', ""),
        ]
        for data, id in cases:
            with self.subTest(data):
                error = refused(data)
                message = mcp_ref.error_response(getattr(error, "id", None), error)
                self.assertTrue(same(message.get("id", ...), id), message)
                self.assertIs(type(message["error"]["code"]), int)
                self.assertTrue(message["error"]["message"])
                Wire.check("JSONRPCErrorResponse", message)

    @spec("base-07", "base-08", "base-10", "base-15")
    async def test_ids_come_back_the_same_in_type_and_value(self) -> None:
        for id in ODD_IDS:
            with self.subTest("JSN-07, JSN-08, JSN-11", id=id):
                reply = await self.call("server/discover", id=id)
                self.assertTrue(same(reply.response["id"], id), reply.response["id"])
                self.assertEqual(reply.result["resultType"], "complete")
                reply = await self.call("no/such", id=id)
                self.assertTrue(same(reply.response["id"], id), reply.response["id"])

    def test_a_float_as_id_is_refused_or_comes_back_as_it_was(self) -> None:
        for text in ("20050.0", "1e3"):
            with self.subTest("JSN-09", id=text):
                data = f'{{"jsonrpc":"2.0","id":{text},"method":"tools/list"}}'
                self.assertEqual(refused(data.encode()).code, -32600)

    async def test_what_is_dispatched_is_what_was_compared(self) -> None:
        # JSN-05: of repeated names a proxy may have read the first
        meta = json.dumps(META)
        data = (
            '{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call",'
            '"params":'
            '{"name":"echo","name":"admin","arguments":{"value":1},"_meta":%s}}' % meta
        )
        headers = {
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "echo",
        }
        message = mcp_ref.read_message(mcp_ref.decode(data.encode()), headers=headers)
        assert isinstance(message, mcp_ref.Request)
        reply = await exchange(self.server, message)
        self.assertEqual(reply.error["code"], -32020)

    @spec("stdio-01")
    def test_a_message_is_written_as_one_line_of_ascii(self) -> None:
        value = {
            "text": "a\nb\r\u2028\u2029\x85\x0b\x0c\0 é 日本 🚀 \ud83d",
            "é": [1.5, None],
        }
        data = mcp_ref.encode(value)
        self.assertTrue(data.isascii())
        self.assertEqual(data.splitlines(), [data])
        self.assertNotIn(b"\r", data)
        self.assertEqual(mcp_ref.decode(data), value)

    def test_text_comes_back_code_point_by_code_point(self) -> None:
        texts = [
            "a\u2028b\u2029c\x85d",
            "€𝄞",
            "bad \ud83d end",
            "\ufeff",
            "e\u0301",
            "",
        ]
        for text in texts:
            with self.subTest("STD-04, JSN-03", text=text):
                reply = asyncio.run(self.tool("echo", {"value": text}))
                self.assertEqual(reply.result["structuredContent"], {"value": text})

    async def test_an_answer_that_is_not_json_becomes_an_error_of_that_request(
        self,
    ) -> None:
        circle: list[Any] = []
        circle.append(circle)
        deep: Any = 1
        for _ in range(100_000):
            deep = [deep]
        for value in (
            float("nan"),
            float("inf"),
            [float("-inf")],
            circle,
            deep,
            {1, 2},
        ):
            with self.subTest(type(value)):
                message = mcp_ref.result_response("a", {"value": value})
                data, written = mcp_ref.encode_response(message)
                self.assertEqual(json.loads(data), written)
                self.assertEqual(written["id"], "a")
                self.assertEqual(written["error"]["code"], -32603)

    async def test_a_number_too_large_for_a_float_never_comes_back_as_infinity(
        self,
    ) -> None:
        data = json.dumps(
            {"name": "echo", "arguments": {"value": "huge"}, "_meta": META}
        ).replace('"huge"', "1e999")
        data = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{data}}}'
        message = mcp_ref.read_message(mcp_ref.decode(data.encode()))
        assert isinstance(message, mcp_ref.Request)
        response = await self.server.handle(message, no_send)
        text = mcp_ref.encode_response(response)[0].decode()
        found = json.loads(text, parse_constant=lambda word: self.fail(word))
        self.assertEqual(found["id"], 1)

    async def test_values_nested_900_deep_are_answered(self) -> None:
        value: Any = 1
        for _ in range(900):
            value = [value]
        with self.subTest("JSN-04"):
            message = request("tools/call", {"name": "echo", "arguments": {}})
            message.params["arguments"]["value"] = value
            response = await self.server.handle(message, no_send)
            self.assertEqual(json.loads(mcp_ref.encode_response(response)[0])["id"], 1)

    async def test_integers_keep_all_their_digits(self) -> None:
        for number in (2**53 + 1, -(2**63), 10**40):
            with self.subTest("JSN-11", number=number):
                reply = await self.tool("echo", {"value": number})
                self.assertEqual(reply.result["structuredContent"], {"value": number})

    # --- notifications ----------------------------------------------------------------

    @spec("base-25", "base-26")
    def test_a_notification_is_what_has_no_id_at_all(self) -> None:
        found = mcp_ref.read_message({"jsonrpc": "2.0", "method": "notifications/x"})
        self.assertEqual(found, mcp_ref.Notification("notifications/x", {}))
        self.assertNotIn("id", mcp_ref.notification("notifications/x", {}))

    # --- error codes ------------------------------------------------------------------

    @spec("base-19", "base-21", "base-22", "base-24")
    def test_each_error_class_has_a_code_that_may_be_sent(self) -> None:
        classes = [mcp_ref.McpError]
        for one in classes:
            classes.extend(one.__subclasses__())
        for one in classes:
            with self.subTest(one.__name__):
                code = one.code
                defined = code in DEFINED_CODES
                self.assertTrue(defined or not -32768 <= code <= -32000, code)
                self.assertIs(type(code), int)

    @spec("base-19", "base-21", "base-22")
    async def test_no_handler_can_send_a_code_that_is_retired_or_not_defined(
        self,
    ) -> None:
        for code in (-32000, -32001, -32002, -32019, -32023, -32042, -32099):
            for kind in (mcp_ref.McpError, mcp_ref.RemoteError):
                with self.subTest(kind.__name__, code=code):
                    self.setUp()

                    @self.server.prompt
                    def fails() -> str:
                        raise kind("not here", {"more": 1}, code=code)

                    reply = await self.call("prompts/get", {"name": "fails"})
                    self.assertIn(reply.error["code"], DEFINED_CODES)

    @spec("base-18", "base-24")
    async def test_a_handler_can_send_codes_of_its_own_with_data(self) -> None:
        @self.server.prompt
        def fails() -> str:
            raise mcp_ref.McpError("out of paper", {"tray": 2}, code=1001)

        message = request("prompts/get", {"name": "fails"}, id="a")
        response = await self.server.handle(message, no_send)
        error = {"code": 1001, "message": "out of paper", "data": {"tray": 2}}
        self.assertEqual(response, {"jsonrpc": "2.0", "id": "a", "error": error})

    @spec("base-53", "base-57", "http-28", "http-29")
    def test_codes_travel_with_the_http_status_that_the_specification_wants(
        self,
    ) -> None:
        wanted = {-32601: 404, -32602: 400, -32020: 400, -32021: 400, -32022: 400}
        wanted |= {-32700: 400, -32600: 400}
        for code, status in wanted.items():
            with self.subTest(code=code):
                self.assertEqual(mcp_ref.HTTP_STATUS[code], status)

    async def test_what_does_not_exist_is_the_protocols_error(self) -> None:
        cases: list[tuple[str, str, JSON, int]] = [
            ("unknown method", "tools/frobnicate", {}, -32601),
            ("no slash", "ping", {}, -32601),
            ("empty", "", {}, -32601),
            ("ERR-01", "tools/call", {"name": "ghost", "arguments": {}}, -32602),
            ("ERR-01, empty", "tools/call", {"name": "", "arguments": {}}, -32602),
            ("ERR-01, a number", "tools/call", {"name": 5, "arguments": {}}, -32602),
            ("ERR-01, none", "tools/call", {}, -32602),
            (
                "arguments a list",
                "tools/call",
                {"name": "echo", "arguments": []},
                -32602,
            ),
            ("ERR-04", "prompts/get", {"name": "ghost"}, -32602),
            ("ERR-04, missing", "prompts/get", {"name": "greet"}, -32602),
            (
                "ERR-04, a number",
                "prompts/get",
                {"name": "greet", "arguments": {"name": 5}},
                -32602,
            ),
            ("no such resource", "resources/read", {"uri": "note://zzz"}, -32602),
            ("not a URI", "resources/read", {"uri": "zzz"}, -32602),
            ("no URI", "resources/read", {}, -32602),
        ]
        for name, method, params, code in cases:
            with self.subTest(name):
                reply = await self.call(method, params)
                self.assertEqual(reply.error["code"], code, reply.error)

    async def test_methods_of_features_that_are_not_used_do_not_exist(self) -> None:
        self.server = Server("empty")
        for method, params in ALL_METHODS.items():
            if method in ("server/discover", "subscriptions/listen"):
                continue
            with self.subTest(method):
                reply = await self.call(method, params)
                self.assertEqual(reply.error["code"], -32601)

    async def test_a_failing_handler_tells_the_client_nothing_by_default(self) -> None:
        def boom(*_: Any) -> str:
            raise RuntimeError("db password=hunter2 at /srv/app/x.py")

        for masked in (True, False):
            self.server = Server("fails", mask_errors=masked)
            self.server.tool(lambda: boom(), name="boom")
            self.server.resource("boom://x")(lambda: boom())
            self.server.prompt(lambda: boom(), name="boom")
            self.server.resource("boom://{x}")(lambda x: boom())
            self.server.complete("boom://{x}", "x")(lambda value: boom())
            ref = {"type": "ref/resource", "uri": "boom://{x}"}
            cases = {
                "resources/read": {"uri": "boom://x"},
                "prompts/get": {"name": "boom"},
                "completion/complete": {
                    "ref": ref,
                    "argument": {"name": "x", "value": ""},
                },
            }
            for method, params in cases.items():
                with self.subTest("ERR-02", method=method, masked=masked):
                    error = (await self.call(method, params)).error
                    self.assertEqual(error["code"], -32603)
                    self.assertEqual("hunter2" in json.dumps(error), not masked)
            with self.subTest("ERR-02", method="tools/call", masked=masked):
                reply = await self.tool("boom")
                self.assertTrue(reply.result["isError"])
                self.assertEqual("hunter2" in reply.text, not masked)
                self.assertNotIn("Traceback", reply.text)

    async def test_whatever_a_handler_raises_is_one_answer(self) -> None:
        def leave() -> str:
            sys.exit(3)

        def deep() -> str:
            return deep()

        def interrupted() -> str:
            raise KeyboardInterrupt

        def generator() -> str:
            raise GeneratorExit

        def stop() -> str:
            raise StopIteration

        def memory() -> str:
            raise MemoryError

        def group() -> str:
            raise BaseExceptionGroup("two", [ValueError("a"), SystemExit(2)])

        async def cancelled() -> str:
            raise asyncio.CancelledError

        async def leave_on_loop() -> str:
            sys.exit(3)

        async def stop_on_loop() -> str:
            raise StopIteration

        async def group_on_loop() -> str:
            raise BaseExceptionGroup("two", [ValueError("a"), SystemExit(2)])

        plain = [leave, deep, interrupted, generator, stop, memory, group]
        handlers = [*plain, cancelled, leave_on_loop, stop_on_loop, group_on_loop]
        for function in handlers:
            name = function.__name__
            self.server.tool(function, name=name)
            self.server.prompt(function, name=name)
            self.server.resource(f"raises://{name.replace('_', '-')}")(function)
        for function in handlers:
            name = function.__name__
            with self.subTest("ERR-03, a tool", name=name):
                response = (await self.tool(name)).response
                failed = response.get("error") or response["result"]["isError"]
                self.assertTrue(failed, response)
            with self.subTest("ERR-03, a prompt", name=name):
                reply = await self.call("prompts/get", {"name": name})
                self.assertEqual(reply.error["code"], -32603)
            with self.subTest("ERR-03, a resource", name=name):
                uri = f"raises://{name.replace('_', '-')}"
                reply = await self.call("resources/read", {"uri": uri})
                self.assertEqual(reply.error["code"], -32603)
        await self.call("server/discover")

    # --- _meta ------------------------------------------------------------------------

    @spec("base-51", "base-52", "mrtr-02")
    async def test_each_method_demands_the_required_metadata(self) -> None:
        metas: dict[str, JSON] = {
            "ERA-08, null": None,
            "ERA-08, a list": [],
            "ERA-08, a string": "x",
            "ERA-08, empty": {},
            "no version": {CAPABILITIES: {}},
            "no capabilities": {VERSION: "2026-07-28"},
            "ERA-08, the version a number": {VERSION: 20260728, CAPABILITIES: {}},
            "the version null": {VERSION: None, CAPABILITIES: {}},
            "ERA-08, capabilities null": {VERSION: "2026-07-28", CAPABILITIES: None},
            "ERA-08, capabilities a list": {VERSION: "2026-07-28", CAPABILITIES: []},
            "capabilities true": {VERSION: "2026-07-28", CAPABILITIES: True},
        }
        for method, params in ALL_METHODS.items():
            with self.subTest(method, meta="none"):
                reply = await exchange(self.server, bare(method, params))
                self.assertEqual(reply.error["code"], -32602)
            for name, meta in metas.items():
                with self.subTest(method, meta=name):
                    message = bare(method, {**params, "_meta": meta})
                    reply = await exchange(self.server, message)
                    self.assertEqual(reply.error["code"], -32602)

    async def test_the_error_names_the_field_that_is_missing(self) -> None:
        for key in (VERSION, CAPABILITIES):
            with self.subTest("ERA-08", key=key):
                meta = {k: v for k, v in META.items() if k != key}
                reply = await exchange(self.server, bare("tools/list", {"_meta": meta}))
                self.assertIn(key, reply.error["message"])

    @spec("progress-02", "logging-06")
    async def test_optional_fields_of_the_wrong_type_are_refused(self) -> None:
        wrong: list[JSON] = [
            {"progressToken": True},
            {"progressToken": 1.5},
            {"progressToken": []},
            {"progressToken": {"a": 1}},
            {LOG_LEVEL: "loud"},
            {LOG_LEVEL: "DEBUG"},
            {LOG_LEVEL: None},
            {LOG_LEVEL: 7},
            {LOG_LEVEL: ["info"]},
            {CLIENT_INFO: "x"},
            {CLIENT_INFO: []},
        ]
        for meta in wrong:
            with self.subTest("ERR-05", meta=meta):
                reply = await self.call("tools/list", meta=meta)
                self.assertEqual(reply.error["code"], -32602)

    @spec("base-45")
    async def test_keys_of_others_and_trace_context_pass_through(self) -> None:
        more = {
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01",
            "tracestate": "vendor=opaque",
            "baggage": "user=ann",
            "com.example/thing": {"deep": [1, None]},
            "io.modelcontextprotocol/later": True,
            "io.modelcontextprotocol/subscriptionId": 5,
            "": 0,
            "not a key/at all!": "x",
        }
        reply = await self.tool("meta", meta=more)
        self.assertEqual(reply.result["structuredContent"], {"fields": META | more})

    @spec("base-09", "versioning-06")
    async def test_capabilities_and_parameters_that_are_not_known_are_ignored(
        self,
    ) -> None:
        capabilities = {
            "roots": {"listChanged": True},
            "sampling": {"zzz": {}},
            "elicitation": {"form": {}, "url": {}, "later": {}},
            "foo": {"bar": 1},
            "extensions": {"com.example/x": {}},
        }
        info = {"name": "c", "version": "1", "later": [1]}
        for method, params in ALL_METHODS.items():
            with self.subTest("ERA-09", method=method):
                message = request(
                    method,
                    {**params, "later": {"a": 1}},
                    capabilities=capabilities,
                    meta={CLIENT_INFO: info},
                )
                reply = await self.end_after_acknowledgement(message)
                self.assertIn("result", reply.response)

    @spec("base-59", "discover-04")
    async def test_who_the_client_says_it_is_changes_nothing(self) -> None:
        for method, params in ALL_METHODS.items():
            if method == "subscriptions/listen":
                continue
            with self.subTest("ERA-07", method=method):
                plain = await self.call(method, params)
                for name in ("inspector", "", "Ann"):
                    info = {CLIENT_INFO: {"name": name, "version": "9"}}
                    named = await self.call(method, params, meta=info)
                    self.assertEqual(named.response, plain.response)

    @spec("base-58", "base-10", "discover-03")
    async def test_each_result_says_which_server_it_is_from(self) -> None:
        for method, params in ALL_METHODS.items():
            with self.subTest(method):
                message = request(method, params)
                reply = await self.end_after_acknowledgement(message)
                info = reply.result["_meta"]["io.modelcontextprotocol/serverInfo"]
                self.assertEqual(info, {"name": "full", "version": "1.0"})

    @spec("base-46", "base-47", "base-49", "base-50")
    def test_keys_that_we_write_follow_the_grammar(self) -> None:
        good = [
            *("a", "A1", "a-b_c.d", "1", "", "com.example/", "com.example/a", "a/b"),
            *("a1-b.c2/x", "io.modelcontextprotocol/x", "x.y.z/0.9"),
        ]
        bad = [
            *("-a", "a-", ".a", "a.", "_a", "a b", "é", "a\n", "a/b/c", "/a", "1a/b"),
            *("a-/b", "a..b/c", ".a/b", "a./b", "a_b/c", "-a/b", "com.example/-a", " "),
        ]
        for key in good:
            with self.subTest("good", key=key):
                self.assertEqual(mcp_ref.check_meta_key(key), key)
        for key in bad:
            with self.subTest("bad", key=key), self.assertRaises(ValueError):
                mcp_ref.check_meta_key(key)

    @spec("base-46")
    def test_no_builder_writes_a_malformed_key(self) -> None:
        server, bad = Server("s"), {"no good/key!": 1}

        def function() -> str:
            return ""

        builders: dict[str, Callable[[], Any]] = {
            "text": lambda: mcp_ref.text("a", meta=bad),
            "image": lambda: mcp_ref.image(b"a", "image/png", meta=bad),
            "contents": lambda: mcp_ref.contents("a:b", "", meta=bad),
            "result": lambda: mcp_ref.result(["a"], meta=bad),
            "tool": lambda: server.tool(function, meta=bad),
            "resource": lambda: server.resource("a:b", meta=bad)(function),
            "prompt": lambda: server.prompt(function, meta=bad),
        }
        for name, build in builders.items():
            with self.subTest(name), self.assertRaises(ValueError):
                build()

    # --- statelessness ----------------------------------------------------------------

    @spec("base-27", "base-29")
    async def test_each_request_stands_alone(self) -> None:
        # ERA-10: a discover, or an initialize, opens nothing for what follows
        steps: list[tuple[str, JSON, int | None]] = [
            ("tools/list", META, None),
            ("server/discover", META, None),
            ("tools/list", {}, -32602),
            ("initialize", {}, -32601),
            ("tools/list", {}, -32602),
            ("tools/list", META, None),
            ("server/discover", {**META, VERSION: "2025-11-25"}, -32022),
            ("tools/list", META, None),
        ]
        for method, meta, code in steps:
            with self.subTest(method, meta=meta):
                reply = await exchange(self.server, bare(method, {"_meta": meta}))
                error = reply.response.get("error", {})
                self.assertEqual(error.get("code"), code)

    @spec("base-27", "base-55")
    async def test_capabilities_of_an_earlier_request_do_not_count(self) -> None:
        @self.server.tool
        async def can(ctx: Context) -> bool:
            return ctx.supports("roots")

        for declared in (True, False, True):
            capabilities = {"roots": {}} if declared else {}
            reply = await self.tool("can", capabilities=capabilities)
            self.assertEqual(reply.result["structuredContent"], declared)

    @spec("base-27", "tools-06", "resources-04", "prompts-04")
    async def test_lists_depend_neither_on_the_connection_nor_on_what_came_before(
        self,
    ) -> None:
        listed = {method: await self.call(method) for method in LIST_METHODS}
        for method, params in ALL_METHODS.items():
            if method != "subscriptions/listen":
                await self.call(method, params)
        await self.call("initialize")
        for method, before in listed.items():
            for facts in ({}, {"peer": "10.0.0.9"}, {"headers": None}):
                with self.subTest(method, facts=facts):
                    after = await self.call(
                        method, capabilities=ALL_CAPABILITIES, id="x", **facts
                    )
                    self.assertEqual(after.result, before.result)

    @spec("base-28")
    async def test_many_requests_at_once_are_each_answered_with_their_own(self) -> None:
        @self.server.tool
        async def later(n: int) -> int:
            for _ in range(50 - n):
                await asyncio.sleep(0)
            return n

        calls = [self.tool("later", {"n": n}, id=f"id {n}") for n in range(50)]
        for n, reply in enumerate(await asyncio.gather(*calls)):
            self.assertEqual(reply.response["id"], f"id {n}")
            self.assertEqual(reply.result["structuredContent"], n)

    async def test_contextvars_of_one_call_are_not_seen_by_another(self) -> None:
        seen = contextvars.ContextVar("seen", default="nobody")
        barrier = threading.Barrier(3)

        @self.server.tool
        def who(name: str) -> str:
            before = seen.get()
            seen.set(name)
            barrier.wait(5)
            return f"{before} {seen.get()}"

        found = await asyncio.gather(*(self.tool("who", {"name": n}) for n in "abc"))
        self.assertEqual([one.text for one in found], [f"nobody {n}" for n in "abc"])

    # --- JSON Schema use --------------------------------------------------------------

    @spec("base-35", "base-36", "base-37", "base-34")
    async def test_a_schema_without_dialect_is_2020_12(self) -> None:
        schema = {
            "type": "object",
            "properties": {
                "pair": {"prefixItems": [{"type": "integer"}, {"type": "string"}]}
            },
            "dependentRequired": {"pair": ["why"]},
        }
        named = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        for number, one in enumerate((schema, named)):
            name = f"dialect-{number}"
            self.server.tool(lambda arguments: "ok", name=name, schema=one)
            for wrong in ({"pair": [1, "a"]}, {"pair": ["a", 1], "why": 1}):
                with self.subTest(name, arguments=wrong):
                    self.assertTrue((await self.tool(name, wrong)).result["isError"])

    @spec("base-38", "base-40", "base-41", "base-42", "base-43")
    def test_schemas_that_cannot_be_used_are_refused_at_registration(self) -> None:
        cases: dict[str, JSON] = {
            "another dialect": {"$schema": "http://json-schema.org/draft-04/schema#"},
            "a made-up dialect": {"$schema": "https://example.com/mine"},
            "not a schema": {"properties": {"a": {"type": "strnig"}}},
            "a number for required": {"required": 5},
            "a network reference": {
                "properties": {"a": {"$ref": "https://example.com/a.json"}}
            },
            "a reference to nothing": {"properties": {"a": {"$ref": "#/$defs/none"}}},
        }
        for name, schema in cases.items():
            with self.subTest(name), self.assertRaises(ValueError) as caught:
                self.server.tool(
                    lambda arguments: "", name="t", schema={"type": "object", **schema}
                )
            if "dialect" in name:
                self.assertIn(schema["$schema"], str(caught.exception))

    @spec("base-44")
    async def test_a_validation_that_explodes_is_given_up(self) -> None:
        schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}}
        names = [f"d{n}" for n in range(24)]
        definitions: JSON = {}
        for this, following in zip(names, names[1:]):
            definitions[this] = {"allOf": [{"$ref": f"#/$defs/{following}"}] * 2}
        definitions[names[-1]] = {"type": "integer"}
        self.server.tool(
            lambda arguments: "", name="t", schema=schema | {"$defs": definitions}
        )
        self.assertTrue((await self.tool("t", {"a": 1})).result["isError"])

    # --- icons ------------------------------------------------------------------------

    @spec("base-65")
    def test_icons_with_unsafe_schemes_are_not_sent(self) -> None:
        for src in (
            "javascript:alert(1)",
            "file:///etc/passwd",
            "ftp://a/b",
            "ws://a",
            5,
        ):
            with self.subTest(src=src), self.assertRaises(ValueError):
                self.server.tool(lambda: "", name="t", icons=[{"src": src}])
        self.server.tool(
            lambda: "", name="t", icons=[{"src": "https://a.example/i.png"}]
        )


async def no_send(message: JSON) -> None:
    """Refuse a notification."""
    raise AssertionError(message)


class Versioning(Case):
    """spec: basic/versioning"""

    def setUp(self) -> None:
        self.server = full_server()

    @spec("versioning-01")
    async def test_each_method_refuses_a_version_that_is_not_spoken(self) -> None:
        for method, params in ALL_METHODS.items():
            for version in ("2025-11-25", "1900-01-01", "", "2026-07-28 ", "DRAFT"):
                with self.subTest(method, version=version):
                    reply = await self.call(method, params, meta={VERSION: version})
                    self.assertEqual(reply.error["code"], -32022)
                    data = {"supported": ["2026-07-28"], "requested": version}
                    self.assertEqual(reply.error["data"], data)
                    Wire.check("UnsupportedProtocolVersionError", reply.response)

    @spec("versioning-03", "discover-01")
    async def test_discover_says_what_is_there_and_nothing_else(self) -> None:
        reply = await self.call("server/discover")
        self.assertEqual(reply.result["supportedVersions"], ["2026-07-28"])
        wanted = {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }
        self.assertEqual(reply.result["capabilities"], wanted)
        self.assertNotIn("instructions", reply.result)
        self.server = Server("empty", "2", instructions="Ask.", title="Empty")
        reply = await self.call("server/discover")
        self.assertEqual(reply.result["capabilities"], {})
        self.assertEqual(reply.result["instructions"], "Ask.")

    async def test_without_subscriptions_no_change_is_promised(self) -> None:
        self.server = full_server(subscriptions=False)
        found = (await self.call("server/discover")).result["capabilities"]
        self.assertEqual(
            [found[k] for k in ("tools", "resources", "prompts")], [{}] * 3
        )
        reply = await self.call("subscriptions/listen", {"notifications": {}})
        self.assertEqual(reply.error["code"], -32601)

    async def test_a_feature_can_be_declared_before_its_first_entry(self) -> None:
        self.server = Server("early", declare=["tools", "prompts"])
        found = (await self.call("server/discover")).result["capabilities"]
        self.assertEqual(set(found), {"tools", "prompts"})
        self.assertEqual((await self.call("tools/list")).result["tools"], [])

    async def test_any_method_may_come_first(self) -> None:
        reply = await self.tool("echo", {"value": "first"})
        self.assertEqual(reply.result["structuredContent"], {"value": "first"})

    @spec("versioning-10")
    async def test_an_initialize_is_told_the_versions(self) -> None:
        params = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "0"},
        }
        for given in (params, {**params, "_meta": META}, {}):
            with self.subTest("ERA-05", params=given):
                reply = await exchange(self.server, bare("initialize", given, id=0))
                self.assertIn("2026-07-28", reply.error["message"])
                self.assertIn(reply.error["code"], (-32601, -32602, -32022))

    # --- extensions -------------------------------------------------------------------

    def extend(self, **more: Any) -> mcp_ref.Extension:
        found = mcp_ref.Extension("com.example/queue", {"depth": 3}, **more)
        self.server.extend(found)
        return found

    @spec("versioning-05")
    def test_an_extension_identifier_has_a_prefix(self) -> None:
        for name in ("queue", "", "com..example/q", "1com/q", "a/-q", "a/b/c"):
            with self.subTest(name=name), self.assertRaises(ValueError):
                self.server.extend(mcp_ref.Extension(name))
        self.assertEqual(self.server.capabilities.get("extensions"), None)

    async def test_an_extension_is_declared_with_its_settings(self) -> None:
        self.extend()
        found = (await self.call("server/discover")).result["capabilities"]
        self.assertEqual(found["extensions"], {"com.example/queue": {"depth": 3}})

    @spec("base-11", "base-12")
    async def test_an_extension_adds_methods_and_result_types(self) -> None:
        async def put(server: Server, ctx: Context, params: JSON) -> JSON:
            return {"resultType": params["kind"], "queued": params["item"]}

        self.extend(methods={"queue/put": put}, result_types=frozenset({"queued"}))
        params = {"item": [1], "kind": "queued"}
        known = {"extensions": {"com.example/queue": {}}}
        message = request("queue/put", params, capabilities=known)
        reply = await exchange(self.server, message, {"queued"})
        self.assertEqual(reply.result["queued"], [1])
        self.assertEqual(reply.result["resultType"], "queued")
        for kind in ("other", "input_required", 5, None):
            with self.subTest("not declared", kind=kind):
                reply = await self.call("queue/put", params | {"kind": kind})
                self.assertEqual(reply.error["code"], -32603)

    @spec("versioning-06")
    async def test_a_client_that_does_not_know_the_extension_is_refused(self) -> None:
        async def put(server: Server, ctx: Context, params: JSON) -> JSON:
            return {"resultType": "queued"}

        self.extend(methods={"queue/put": put}, result_types=frozenset({"queued"}))
        for declared in ({}, {"extensions": {}}, {"extensions": {"com.example/x": {}}}):
            with self.subTest(declared=declared):
                reply = await self.call("queue/put", capabilities=declared)
                self.assertEqual(reply.error["code"], -32021)
                self.assertEqual(
                    reply.error["data"]["requiredCapabilities"],
                    {"extensions": {"com.example/queue": {}}},
                )

    @spec("base-12")
    async def test_a_result_type_of_no_extension_is_never_sent(self) -> None:
        @self.server.tool
        def task() -> Any:
            found = mcp_ref.result(["later"])
            found["resultType"] = "task"
            return found

        self.assertEqual((await self.tool("task")).error["code"], -32603)
        self.extend(result_types=frozenset({"task"}))
        params = {"name": "task", "arguments": {}}
        known = {"extensions": {"com.example/queue": {}}}
        message = request("tools/call", params, capabilities=known)
        reply = await exchange(self.server, message, {"task"})
        self.assertEqual(reply.result["resultType"], "task")

    @spec("base-52", "versioning-01")
    async def test_methods_of_an_extension_obey_the_same_rules(self) -> None:
        async def get(server: Server, ctx: Context, params: JSON) -> JSON:
            if params.get("ask"):
                raise mcp_ref.InputRequired({"q": mcp_ref.list_roots()})
            return {}

        self.extend(methods={"queue/get": get})
        reply = await exchange(self.server, bare("queue/get"))
        self.assertEqual(reply.error["code"], -32602)
        reply = await self.call("queue/get", meta={VERSION: "2099-01-01"})
        self.assertEqual(reply.error["code"], -32022)
        with self.subTest("mrtr-05"):
            reply = await self.call(
                "queue/get", {"ask": True}, capabilities=ALL_CAPABILITIES
            )
            self.assertEqual(reply.error["code"], -32603)

    @spec("versioning-06")
    async def test_without_the_extension_its_methods_do_not_exist(self) -> None:
        reply = await self.call(
            "queue/get", capabilities={"extensions": {"com.example/queue": {}}}
        )
        self.assertEqual(reply.error["code"], -32601)

    @spec("versioning-06")
    async def test_a_handler_sees_whether_the_client_has_the_extension(self) -> None:
        @self.server.tool
        async def has(ctx: Context) -> bool:
            return ctx.supports("extensions", "com.example/queue")

        declared = {"extensions": {"com.example/queue": {}}}
        for capabilities, wanted in ((declared, True), ({}, False)):
            reply = await self.tool("has", capabilities=capabilities)
            self.assertEqual(reply.result["structuredContent"], wanted)

    async def test_a_method_that_exists_cannot_be_taken_over(self) -> None:
        async def get(server: Server, ctx: Context, params: JSON) -> JSON:
            return {}

        with self.assertRaises(ValueError):
            self.extend(methods={"tools/list": get})
        self.assertTrue((await self.call("tools/list")).result["tools"])

    async def test_filters_may_agree_on_the_same_key(self) -> None:
        def agree(ctx: Context, value: JSON) -> Any:
            return value, ["queue"]

        self.extend(filters={"one": agree, "two": agree})
        params = {"notifications": {"one": True, "two": True}}
        message = request("subscriptions/listen", params, id="L")
        seen: asyncio.Queue[JSON] = asyncio.Queue()
        task = asyncio.create_task(self.server.handle(message, seen.put))
        await asyncio.wait_for(seen.get(), 5)
        self.server.subscriptions.end()
        self.assertIn("result", await task)
        self.assertEqual(len(self.server.subscriptions), 0)

    async def test_an_extension_adds_a_listen_filter(self) -> None:
        def agree(ctx: Context, value: JSON) -> Any:
            honoured = [one for one in value if one.startswith("q")]
            return honoured, [("queue", one) for one in honoured]

        self.extend(filters={"queueIds": agree})
        seen: asyncio.Queue[JSON] = asyncio.Queue()
        params = {"notifications": {"queueIds": ["q1", "x"]}}
        message = request("subscriptions/listen", params, id="L")
        task = asyncio.create_task(self.server.handle(message, seen.put))
        acknowledged = await asyncio.wait_for(seen.get(), 5)
        self.assertEqual(acknowledged["params"]["notifications"], {"queueIds": ["q1"]})
        method = "notifications/com.example/queue"
        self.server.subscriptions.publish(("queue", "x"), method, {"id": "x"})
        self.server.subscriptions.publish(("queue", "q1"), method, {"id": "q1"})
        told = await asyncio.wait_for(seen.get(), 5)
        meta = {"io.modelcontextprotocol/subscriptionId": "L"}
        self.assertEqual(told["params"], {"id": "q1", "_meta": meta})
        self.assertTrue(seen.empty())
        self.server.subscriptions.end()
        await task

    @spec("versioning-06")
    async def test_a_listen_filter_can_refuse_clients_without_the_extension(
        self,
    ) -> None:
        def agree(ctx: Context, value: JSON) -> Any:
            if not ctx.supports("extensions", "com.example/queue"):
                needed = {"extensions": {"com.example/queue": {}}}
                raise mcp_ref.MissingRequiredClientCapability(needed)
            return value, [("queue", one) for one in value]

        self.extend(filters={"queueIds": agree})
        params = {"notifications": {"queueIds": ["q1"], "toolsListChanged": True}}
        message = request("subscriptions/listen", params)
        reply = await asyncio.wait_for(exchange(self.server, message), 5)
        self.assertEqual(reply.error["code"], -32021)
        self.assertEqual(reply, [])
        self.assertEqual(len(self.server.subscriptions), 0)

    async def test_an_extension_names_what_mcp_name_mirrors(self) -> None:
        async def get(server: Server, ctx: Context, params: JSON) -> JSON:
            return {"found": params["id"]}

        self.extend(methods={"queue/get": get}, names={"queue/get": "id"})
        for name, code in (("q1", None), ("q2", -32020), (None, -32020)):
            headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "queue/get"}
            if name is not None:
                headers["mcp-name"] = name
            with self.subTest(name=name):
                message = request("queue/get", {"id": "q1"}, headers=headers)
                reply = await exchange(self.server, message)
                self.assertEqual(reply.response.get("error", {}).get("code"), code)


class Smoke(Case):
    async def test_discover(self) -> None:
        reply = await self.call("server/discover")
        self.assertEqual(reply.result["supportedVersions"], ["2026-07-28"])


SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
NAME_FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2}},
    "required": ["name"],
}


def accept(**content: Any) -> JSON:
    """Build the ElicitResult of a user who agreed."""
    return {"action": "accept", "content": content}


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Wait until a condition holds, and fail if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        await asyncio.sleep(0.001)


class Progress(Case):
    """spec: basic/patterns/progress"""

    def steps(self, *values: Any, **options: Any) -> None:
        """Register tools `steps` (on the loop) and `plain` (in a thread)."""

        @self.server.tool
        async def steps(ctx: Context) -> str:
            for value in values:
                await ctx.progress(value, **options)
            return "done"

        @self.server.tool
        def plain(ctx: Context) -> str:
            for value in values:
                ctx.progress(value, **options)
            return "done"

    async def seen(self, tool: str, **meta: Any) -> list[Any]:
        """Return the params of the notifications of a call."""
        return [one["params"] for one in await self.tool(tool, meta=meta)]

    async def unlinted(self, tool: str) -> tuple[list[JSON], JSON]:
        """Return what a call sends, now and later, and its response."""
        seen: list[JSON] = []

        async def send(message: JSON) -> None:
            seen.append(message)

        message = request(
            "tools/call",
            {"name": tool, "arguments": {}},
            meta={"progressToken": 1, LOG_LEVEL: "debug"},
        )
        return seen, await self.server.handle(message, send)

    @spec("progress-02", "progress-04", "progress-08", "progress-01")
    async def test_the_token_comes_back_the_same_in_type_and_value(self) -> None:
        self.steps(1)
        for token in [0, "", "0", 1, -5, 2**70, "a\u2028b"]:
            for tool in ("steps", "plain"):
                with self.subTest("PRG-01", tool=tool, token=token):
                    (params,) = await self.seen(tool, progressToken=token)
                    self.assertTrue(same(params["progressToken"], token), params)

    @spec("progress-08")
    async def test_without_a_token_there_is_no_progress(self) -> None:
        self.steps(1, 2, 3)
        for tool in ("steps", "plain"):
            with self.subTest("PRG-02", tool=tool):
                self.assertEqual(await self.seen(tool), [])

    @spec("progress-05", "progress-06")
    async def test_only_values_that_rise_are_sent(self) -> None:
        cases = [
            ([1, 1, 0.5, 2, float("nan"), 3], [1, 2, 3]),
            ([0, 0.0, -1, 0.25, 0.5, 0.5], [0, 0.25, 0.5]),
            ([float("-inf"), -3, float("inf"), -2], [-3, -2]),
            ([float("inf"), 7], [7]),
            ([10**400, 10**400 + 1], [10**400, 10**400 + 1]),
        ]
        for values, wanted in cases:
            self.setUp()
            self.steps(*values)
            for tool in ("steps", "plain"):
                with self.subTest("PRG-03", tool=tool, values=values[:3]):
                    found = await self.seen(tool, progressToken=1)
                    self.assertEqual([one["progress"] for one in found], wanted)

    @spec("progress-07")
    async def test_total_and_message_are_there_when_given(self) -> None:
        self.steps(1, total=4.5, message="one")
        wanted = {"progressToken": 1, "progress": 1, "total": 4.5, "message": "one"}
        self.assertEqual(await self.seen("steps", progressToken=1), [wanted])
        self.setUp()
        self.steps(1, total=float("nan"))
        wanted = {"progressToken": 1, "progress": 1}
        self.assertEqual(await self.seen("steps", progressToken=1), [wanted])

    @spec("patterns-02")
    async def test_every_kind_of_handler_can_report(self) -> None:
        server = self.server

        @server.prompt
        async def p(ctx: Context) -> str:
            await ctx.progress(1)
            return "a"

        @server.resource("a://b")
        def r(ctx: Context) -> str:
            ctx.progress(1)
            return "a"

        for method, params in (
            ("prompts/get", {"name": "p"}),
            ("resources/read", {"uri": "a://b"}),
        ):
            with self.subTest(method):
                reply = await self.call(method, params, meta={"progressToken": "t"})
                self.assertEqual(len(reply), 1)

    @spec("progress-03", "progress-08")
    async def test_calls_side_by_side_report_under_their_own_tokens(self) -> None:
        both = asyncio.Barrier(2)

        @self.server.tool
        async def steps(ctx: Context, base: int) -> None:
            for step in range(5):
                await both.wait()
                await ctx.progress(base + step)

        replies = await asyncio.gather(
            self.tool("steps", {"base": 10}, id=1, meta={"progressToken": "a"}),
            self.tool("steps", {"base": 20}, id=2, meta={"progressToken": "b"}),
        )
        for reply, token, base in zip(replies, "ab", (10, 20)):
            found = [
                (m["params"]["progressToken"], m["params"]["progress"]) for m in reply
            ]
            self.assertEqual(found, [(token, base + step) for step in range(5)])

    @spec("progress-12")
    async def test_nothing_comes_after_the_response(self) -> None:
        # PRG-04: a thread that the tool left running
        for before in (False, True):
            answered, tried = threading.Event(), threading.Event()
            raised: list[BaseException] = []

            def late(ctx: Context) -> None:
                answered.wait(5)
                try:
                    ctx.progress(9)
                    ctx.log("error", "late")
                except BaseException as error:
                    raised.append(error)
                tried.set()

            def leaves(ctx: Context) -> str:
                if before:
                    ctx.progress(1)
                threading.Thread(target=late, args=(ctx,), daemon=True).start()
                return "done"

            self.setUp()
            self.server.tool(leaves)
            with self.subTest("PRG-04", before=before):
                seen, _ = await self.unlinted("leaves")
                count = len(seen)
                answered.set()
                await until(tried.is_set)
                await asyncio.sleep(0.02)
                self.assertEqual((len(seen), raised), (count, []))

    @spec("progress-12")
    async def test_a_task_that_outlives_its_call_reports_nothing(self) -> None:
        answered, tasks = asyncio.Event(), []

        @self.server.tool
        async def leaves(ctx: Context) -> None:
            async def late() -> None:
                await answered.wait()
                await ctx.progress(9)

            tasks.append(asyncio.create_task(late()))

        seen, _ = await self.unlinted("leaves")
        answered.set()
        await tasks[0]
        await asyncio.sleep(0.01)
        self.assertEqual(seen, [])

    @spec("progress-11", "progress-09")
    async def test_a_flood_is_thinned_out_but_its_last_value_arrives(self) -> None:
        self.steps(*range(10_000))
        for tool in ("steps", "plain"):
            with self.subTest(tool):
                found = await self.seen(tool, progressToken=1)
                values = [one["progress"] for one in found]
                self.assertEqual(values[:3], [0, 1, 2])
                self.assertEqual(values[-1], 9_999)
                self.assertLess(len(values), 500)

    async def test_what_the_rate_held_back_is_sent_while_the_call_runs(self) -> None:
        arrived = asyncio.Event()

        @self.server.tool
        async def flood(ctx: Context) -> None:
            for value in range(200):
                await ctx.progress(value)
            await asyncio.wait_for(arrived.wait(), 5)

        async def send(message: JSON) -> None:
            if message["params"]["progress"] == 199:
                arrived.set()

        params = {"name": "flood", "arguments": {}}
        message = request("tools/call", params, meta={"progressToken": 1})
        response = await lint(self.server.handle)(message, send)
        self.assertNotIn("isError", response["result"])

    @spec("progress-05")
    async def test_threads_of_one_call_never_send_a_value_that_falls(self) -> None:
        @self.server.tool
        def many(ctx: Context) -> None:
            def report(first: int) -> None:
                for value in range(first, 4000, 8):
                    ctx.progress(value)

            threads = [threading.Thread(target=report, args=(n,)) for n in range(8)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()

        interval, burst = sys.getswitchinterval(), mcp_ref.PROGRESS_BURST
        mcp_ref.PROGRESS_BURST = 10**6
        sys.setswitchinterval(1e-6)
        try:
            seen, _ = await self.unlinted("many")
        finally:
            sys.setswitchinterval(interval)
            mcp_ref.PROGRESS_BURST = burst
        values = [message["params"]["progress"] for message in seen]
        self.assertEqual(values, sorted(set(values)))
        self.assertEqual(values[-1], 3999)

    @spec("logging-03", "logging-04", "logging-05")
    async def test_log_messages_stay_with_the_request_that_asked(self) -> None:
        both = asyncio.Barrier(3)

        @self.server.tool
        async def logs(ctx: Context, name: str) -> None:
            for level in mcp_ref.LOG_LEVELS:
                await both.wait()
                await ctx.log(level, {"name": name})

        async def run(name: str, level: str | None) -> list[str]:
            meta = {LOG_LEVEL: level} if level else {}
            reply = await self.tool("logs", {"name": name}, id=name, meta=meta)
            for message in reply:
                self.assertEqual(message["params"]["data"], {"name": name})
            return [message["params"]["level"] for message in reply]

        found = await asyncio.gather(
            run("a", None), run("b", "error"), run("c", "debug")
        )
        levels = list(mcp_ref.LOG_LEVELS)
        self.assertEqual(found, [[], levels[levels.index("error") :], levels])

    async def test_a_plain_handler_with_a_loop_of_its_own_can_report(self) -> None:
        @self.server.tool
        def runs(ctx: Context) -> str:
            async def steps() -> str:
                for value in range(3):
                    await ctx.progress(value)
                await ctx.log("info", "half done")
                return "done"

            return asyncio.run(steps())

        reply = await self.tool("runs", meta={"progressToken": 1, LOG_LEVEL: "info"})
        self.assertEqual(reply.text, "done")
        self.assertEqual(len(reply), 4)

    async def test_a_flood_of_log_messages_costs_bounded_memory(self) -> None:
        loop, go, seen = asyncio.get_running_loop(), asyncio.Event(), []

        async def slow(message: JSON) -> None:
            await go.wait()
            seen.append(message["params"]["data"])

        @self.server.tool
        def flood(ctx: Context) -> None:
            for number in range(4000):
                ctx.log("info", number)
            loop.call_soon_threadsafe(go.set)

        message = request(
            "tools/call", {"name": "flood", "arguments": {}}, meta={LOG_LEVEL: "info"}
        )
        await self.server.handle(message, slow)
        self.assertLessEqual(len(seen), mcp_ref.OUTBOX_SIZE + 1)
        self.assertEqual(seen, sorted(seen))

    async def test_a_send_that_fails_is_no_riddle_for_the_handler(self) -> None:
        async def gone(message: JSON) -> None:
            raise ConnectionResetError("the client is gone")

        @self.server.tool
        def plain(ctx: Context) -> str:
            ctx.progress(1)
            return "done"

        message = request(
            "tools/call", {"name": "plain", "arguments": {}}, meta={"progressToken": 1}
        )
        response = await self.server.handle(message, gone)
        self.assertEqual(response["id"], 1)


class Cancellation(Case):
    """spec: basic/patterns/cancellation, in memory; the transports' part is theirs"""

    def start(self, tool: str, **meta: Any) -> tuple[asyncio.Task[JSON], list[JSON]]:
        seen: list[JSON] = []

        async def send(message: JSON) -> None:
            seen.append(message)

        message = request("tools/call", {"name": tool, "arguments": {}}, meta=meta)
        return asyncio.create_task(lint(self.server.handle)(message, send)), seen

    async def cancel(self, task: asyncio.Task[JSON]) -> None:
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task

    @spec("cancellation-13")
    async def test_cancelling_ends_the_handler_and_frees_what_it_holds(self) -> None:
        started, freed = asyncio.Event(), asyncio.Event()

        @self.server.tool
        async def waits() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                freed.set()

        task, seen = self.start("waits")
        await started.wait()
        await self.cancel(task)
        self.assertTrue(freed.is_set())
        self.assertEqual(seen, [])

    @spec("cancellation-13")
    async def test_a_plain_handler_sees_that_it_was_cancelled(self) -> None:
        started, ended = threading.Event(), threading.Event()

        @self.server.tool
        def waits(ctx: Context) -> None:
            started.set()
            for _ in range(5000):
                if ctx.cancelled:
                    ended.set()
                    return
                time.sleep(0.001)

        task, _ = self.start("waits")
        await until(started.is_set)
        await self.cancel(task)
        await until(ended.is_set)

    @spec("cancellation-13", "progress-12")
    async def test_nothing_is_sent_for_a_cancelled_request(self) -> None:
        go, started, ended = threading.Event(), threading.Event(), threading.Event()

        @self.server.tool
        def goes_on(ctx: Context) -> None:
            ctx.progress(1)
            started.set()
            go.wait(5)
            ctx.progress(2)
            ctx.log("error", "still here")
            ended.set()

        level = {LOG_LEVEL: "debug"}
        task, seen = self.start("goes_on", progressToken=1, **level)
        await until(lambda: started.is_set() and seen)
        await self.cancel(task)
        count = len(seen)
        go.set()
        await until(ended.is_set)
        await asyncio.sleep(0.02)
        self.assertEqual(len(seen), count)

    async def test_a_handler_that_swallows_its_cancellation_ends_too(self) -> None:
        started = asyncio.Event()

        @self.server.tool
        async def stubborn() -> str:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            return "never mind"

        task, _ = self.start("stubborn")
        await started.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)

    @spec("cancellation-07")
    async def test_a_timeout_around_an_exchange_is_a_cancellation(self) -> None:
        freed = asyncio.Event()

        @self.server.tool
        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                freed.set()

        with self.assertRaises(TimeoutError):
            async with asyncio.timeout(0.02):
                await self.tool("waits")
        self.assertTrue(freed.is_set())

    @spec("cancellation-16")
    async def test_cancelling_at_any_moment_leaves_the_server_well(self) -> None:
        @self.server.tool
        async def steps(ctx: Context) -> None:
            for value in range(5):
                await ctx.progress(value)
                await asyncio.sleep(0)

        @self.server.tool
        def plain(ctx: Context) -> None:
            ctx.progress(1)

        for tool in ("steps", "plain"):
            for turns in range(14):
                with self.subTest(tool, turns=turns):
                    task, _ = self.start(tool, progressToken=1)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                    if not task.cancelled():
                        self.assertIn("result", task.result())
        await self.tool("plain")
        await until(lambda: len(asyncio.all_tasks()) == 1)

    async def test_workers_that_are_left_behind_do_not_starve_the_rest(self) -> None:
        go = threading.Event()
        self.server = Server("small", workers=mcp_ref.Workers(3))
        self.addCleanup(go.set)

        @self.server.tool
        def block() -> None:
            go.wait(5)

        @self.server.tool
        async def fine() -> str:
            return "fine"

        tasks = [self.start("block")[0] for _ in range(3)]
        await asyncio.sleep(0.01)
        reply = await self.tool("block")
        self.assertEqual(reply.error["code"], 503)
        with self.subTest("CAN-04"):
            self.assertEqual((await self.tool("fine")).text, "fine")
            await self.call("server/discover")
        go.set()
        await asyncio.gather(*tasks)
        self.assertNotIn("isError", (await self.tool("block")).result)


class MultiRoundTrip(Case):
    """spec: basic/patterns/mrtr"""

    alice = mcp_ref.Principal("alice", "app")

    def setUp(self) -> None:
        self.now = 1_000_000.0
        self.runs: list[str] = []
        self.server = self.build()

    def build(self, name: str = "test", **options: Any) -> Server:
        """Build a server whose tools ask in each of the ways."""
        options = {"keys": [b"k" * 32], "clock": lambda: self.now} | options
        server = Server(name, "1.0", **options)

        @server.tool
        async def greet(ctx: Context, greeting: str = "Hello", times: int = 1) -> str:
            self.runs.append("greet")
            answer = await ctx.elicit("Who are you?", NAME_FORM, key="q")
            if not answer.accepted:
                return answer.action
            return f"{greeting} {answer.content['name']}" * times

        @server.tool
        def greet_plain(ctx: Context, greeting: str = "Hello", times: int = 1) -> str:
            self.runs.append("greet_plain")
            answer = ctx.elicit("Who are you?", NAME_FORM, key="q")
            if not answer.accepted:
                return answer.action
            return f"{greeting} {answer.content['name']}" * times

        return server

    async def ask(
        self, name: str = "greet", arguments: JSON = None, **more: Any
    ) -> Reply:
        """Call a tool that asks."""
        more.setdefault("capabilities", ALL_CAPABILITIES)
        reply = await self.tool(name, arguments, **more)
        self.assertEqual(reply.result["resultType"], "input_required")
        return reply

    async def retry(
        self,
        reply: Reply,
        responses: JSON,
        name: str = "greet",
        arguments: JSON = None,
        **more: Any,
    ) -> Reply:
        """Call it again with the client's responses, under another id."""
        more = {"id": 2, "capabilities": ALL_CAPABILITIES} | more
        params = {"name": name, "arguments": arguments or {}}
        return await self.answer("tools/call", params, reply, responses, **more)

    def questions(self, reply: Reply) -> list[str]:
        self.assertEqual(reply.result["resultType"], "input_required", reply.result)
        return sorted(reply.result.get("inputRequests", {}))

    # --- the basic workflow -----------------------------------------------------------

    @spec(
        "mrtr-01",
        "mrtr-04",
        "mrtr-06",
        "mrtr-07",
        "mrtr-09",
        "mrtr-10",
        "mrtr-17",
        "tools-09",
    )
    async def test_a_tool_asks_and_runs_again_with_the_answer(self) -> None:
        for name in ("greet", "greet_plain"):
            with self.subTest(name):
                reply = await self.ask(name)
                params = {"mode": "form", "message": "Who are you?"}
                params["requestedSchema"] = NAME_FORM
                wanted = {"q": {"method": "elicitation/create", "params": params}}
                self.assertEqual(reply.result["inputRequests"], wanted)
                done = await self.retry(reply, {"q": accept(name="Ann")}, name)
                self.assertEqual(done.text, "Hello Ann")
                self.assertEqual(self.runs.count(name), 2)

    @spec("mrtr-04", "mrtr-05")
    async def test_prompts_and_resources_ask_in_the_same_way(self) -> None:
        server = self.server

        @server.prompt
        async def p(ctx: Context, greeting: str) -> str:
            return (
                f"{greeting} {(await ctx.elicit('Who?', NAME_FORM, key='q')).content}"
            )

        @server.prompt
        def p_plain(ctx: Context, greeting: str) -> str:
            return f"{greeting} {ctx.elicit('Who?', NAME_FORM, key='q').content}"

        @server.resource("who://{greeting}")
        async def r(ctx: Context, greeting: str) -> str:
            return (
                f"{greeting} {(await ctx.elicit('Who?', NAME_FORM, key='q')).content}"
            )

        @server.resource("plain://hi")
        def r_plain(ctx: Context) -> str:
            return f"hi {ctx.elicit('Who?', NAME_FORM, key='q').content}"

        cases: list[tuple[str, JSON]] = [
            ("prompts/get", {"name": "p", "arguments": {"greeting": "hi"}}),
            ("prompts/get", {"name": "p_plain", "arguments": {"greeting": "hi"}}),
            ("resources/read", {"uri": "who://hi"}),
            ("resources/read", {"uri": "plain://hi"}),
        ]
        for method, params in cases:
            with self.subTest(method, params=params):
                capable = {"capabilities": {"elicitation": {}}}
                reply = await self.call(method, params, **capable)
                self.assertEqual(self.questions(reply), ["q"])
                responses = {"q": accept(name="Ann")}
                done = await self.answer(
                    method, params, reply, responses, id=2, **capable
                )
                self.assertIn("hi {'name': 'Ann'}", json.dumps(done.result))
                # a state for one URI or argument is not one for another
                other = {"uri": "who://you"} if "uri" in params else {"name": "p"}
                moved = await self.answer(method, other, reply, responses, **capable)
                self.assertEqual(moved.error["code"], -32602)

    @spec("mrtr-05")
    async def test_no_other_method_ever_asks(self) -> None:
        async def asks(ctx: Context, value: str) -> list[str]:
            await ctx.elicit("Who?", NAME_FORM)
            return []

        async def raises(ctx: Context, value: str) -> list[str]:
            raise mcp_ref.InputRequired({"q": mcp_ref.list_roots()})

        self.server.prompt(lambda a, b: "", name="p")
        self.server.complete("p", "a")(asks)
        self.server.complete("p", "b")(raises)
        for argument in "ab":
            with self.subTest("completion/complete", argument=argument):
                params = {
                    "ref": {"type": "ref/prompt", "name": "p"},
                    "argument": {"name": argument, "value": ""},
                }
                reply = await self.call(
                    "completion/complete", params, capabilities=ALL_CAPABILITIES
                )
                self.assertEqual(reply.error["code"], -32603)

    @spec("mrtr-09")
    async def test_each_kind_of_question_goes_out_and_its_answer_comes_in(self) -> None:
        @self.server.tool
        async def kinds(ctx: Context) -> Any:
            found = await ctx.ask(
                form=mcp_ref.elicitation("Who?", NAME_FORM),
                page=mcp_ref.elicitation_url("Sign in", "https://a.example/login?x=1"),
                model=mcp_ref.sampling("Say hi", 10),
                places=mcp_ref.list_roots(),
            )
            return {key: found[key] for key in sorted(found)}

        reply = await self.ask("kinds")
        asked = reply.result["inputRequests"]
        methods = {key: one["method"] for key, one in asked.items()}
        wanted = {
            "form": "elicitation/create",
            "page": "elicitation/create",
            "model": "sampling/createMessage",
            "places": "roots/list",
        }
        self.assertEqual(methods, wanted)
        for one in asked.values():
            Wire.check("InputRequest", one)
        model = {
            "role": "assistant",
            "content": {"type": "text", "text": "hi"},
            "model": "m",
        }
        responses = {
            "form": accept(name="Ann"),
            "page": {"action": "accept"},
            "model": model,
            "places": {"roots": [{"uri": "file:///a", "name": "a"}]},
        }
        found = (await self.retry(reply, responses, "kinds")).result[
            "structuredContent"
        ]
        self.assertEqual(found["form"]["content"], {"name": "Ann"})
        self.assertEqual(found["page"], {"action": "accept"})
        self.assertEqual(found["model"], model)
        self.assertEqual(found["places"], [{"uri": "file:///a", "name": "a"}])

    @spec("mrtr-08", "mrtr-21")
    async def test_questions_one_after_the_other_take_a_round_each(self) -> None:
        def lines(plain: bool) -> Any:
            async def on_loop(ctx: Context) -> str:
                names = [
                    (await ctx.elicit(f"{n}?", NAME_FORM)).content for n in range(3)
                ]
                return json.dumps(names)

            def in_thread(ctx: Context) -> str:
                names = [ctx.elicit(f"{n}?", NAME_FORM).content for n in range(3)]
                return json.dumps(names)

            return in_thread if plain else on_loop

        for plain in (False, True):
            name = f"three-{plain}"
            self.server.tool(lines(plain), name=name)
            reply, keys = await self.ask(name), []
            for number in range(3):
                (key,) = self.questions(reply)
                keys.append(key)
                responses = {key: accept(name=f"n{number}")}
                reply = await self.retry(reply, responses, name, id=f"r{number}")
            with self.subTest(name):
                self.assertEqual(len(set(keys)), 3)
                wanted = [{"name": f"n{number}"} for number in range(3)]
                self.assertEqual(json.loads(reply.text), wanted)

    @spec("mrtr-32", "mrtr-21")
    async def test_what_is_missing_is_asked_again_and_what_came_is_kept(self) -> None:
        @self.server.tool
        async def both(ctx: Context) -> str:
            found = await ctx.ask(
                a=mcp_ref.elicitation("A?", NAME_FORM),
                b=mcp_ref.elicitation("B?", NAME_FORM),
            )
            return f"{found['a'].content['name']} {found['b'].content['name']}"

        first = await self.ask("both")
        self.assertEqual(self.questions(first), ["a", "b"])
        second = await self.retry(first, {"b": accept(name="Bob")}, "both")
        self.assertEqual(self.questions(second), ["a"])
        third = await self.retry(second, {}, "both")
        self.assertEqual(self.questions(third), ["a"])
        done = await self.retry(third, {"a": accept(name="Ann")}, "both")
        self.assertEqual(done.text, "Ann Bob")

    @spec("mrtr-31", "mrtr-32")
    async def test_missing_and_extra_responses(self) -> None:
        reply = await self.ask()
        good = accept(name="Ann")
        for responses in ({}, {"other": good}, {"Q": good}, {"q ": good}):
            with self.subTest("MRT-06, asked again", responses=responses):
                again = await self.retry(reply, responses)
                self.assertEqual(self.questions(again), ["q"])
        with self.subTest("MRT-06, extra"):
            extra = {"q": good, "extra": {"action": "nonsense"}, "": {}}
            done = await self.retry(reply, extra)
            self.assertEqual(done.text, "Hello Ann")
        with self.subTest("a retry without inputResponses"):
            params = {"name": "greet", "arguments": {}}
            params["requestState"] = reply.result["requestState"]
            again = await self.call("tools/call", params, capabilities=ALL_CAPABILITIES)
            self.assertEqual(self.questions(again), ["q"])

    @spec("mrtr-29", "mrtr-30")
    async def test_malformed_responses_are_invalid_params(self) -> None:
        reply = await self.ask()
        for responses in ([], "x", 5, True, None, {"q": None}, {"q": []}, {"q": "yes"}):
            with self.subTest("MRT-06", responses=responses):
                failed = await self.retry(reply, responses)
                self.assertEqual(failed.error["code"], -32602)
        for responses in ({"q": {}}, {"q": {"action": "reject"}}, {"q": {"action": 1}}):
            with self.subTest("MRT-05", responses=responses):
                failed = await self.retry(reply, responses)
                self.assertEqual(failed.error["code"], -32602)

    async def test_responses_on_the_first_request_do_no_harm(self) -> None:
        for responses in ({"q": accept(name="Ann")}, {}, {"zzz": {}}):
            with self.subTest("MRT-06", responses=responses):
                params = {"name": "greet", "arguments": {}, "inputResponses": responses}
                reply = await self.call(
                    "tools/call", params, capabilities=ALL_CAPABILITIES
                )
                self.assertIn("result", reply.response)

    @spec("elicitation-24")
    async def test_decline_and_cancel_reach_the_handler_unchecked(self) -> None:
        reply = await self.ask()
        for action in ("decline", "cancel"):
            for more in ({}, {"content": {"n": 1}}, {"content": None}):
                with self.subTest("MRT-05", action=action, more=more):
                    done = await self.retry(reply, {"q": {"action": action, **more}})
                    self.assertEqual(done.text, action)

    @spec("elicitation-46", "mrtr-29")
    async def test_an_answer_that_does_not_fit_is_asked_for_again(self) -> None:
        reply = await self.ask()
        bad: list[JSON] = [
            {"action": "accept"},
            {"action": "accept", "content": None},
            {"action": "accept", "content": []},
            accept(),
            accept(name=5),
            accept(name="A"),
        ]
        for response in bad:
            with self.subTest("MRT-05", response=response):
                again = await self.retry(reply, {"q": response})
                self.assertEqual(self.questions(again), ["q"])
                params = again.result["inputRequests"]["q"]["params"]
                self.assertTrue(params["message"].startswith("Who are you?"))
                self.assertGreater(len(params["message"]), len("Who are you?"))
                done = await self.retry(again, {"q": accept(name="Ann")})
                self.assertEqual(done.text, "Hello Ann")

    @spec("mrtr-02")
    async def test_a_retry_needs_its_metadata_like_any_request(self) -> None:
        reply = await self.ask()
        params = {
            "name": "greet",
            "arguments": {},
            "requestState": reply.result["requestState"],
            "inputResponses": {"q": accept(name="Ann")},
        }
        failed = await exchange(self.server, bare("tools/call", params))
        self.assertEqual(failed.error["code"], -32602)

    async def test_a_handlers_except_clause_does_not_catch_the_question(self) -> None:
        @self.server.tool
        async def careful(ctx: Context) -> str:
            try:
                return (await ctx.elicit("Who?", NAME_FORM, key="q")).action
            except Exception:
                return "caught"
            finally:
                self.runs.append("finally")

        reply = await self.ask("careful")
        self.assertEqual(self.runs, ["finally"])
        done = await self.retry(reply, {"q": accept(name="Ann")}, "careful")
        self.assertEqual(done.text, "accept")

    @spec("mrtr-20")
    async def test_nothing_waits_for_a_client_that_never_comes_back(self) -> None:
        for _ in range(50):
            await self.ask()
            await self.ask("greet_plain")
        self.assertEqual(len(asyncio.all_tasks()), 1)

    @spec("mrtr-28", "base-31")
    async def test_calls_side_by_side_do_not_share_answers(self) -> None:
        first = await self.ask(arguments={"greeting": "Hi"})
        second = await self.ask(arguments={"greeting": "Yo"})
        done = await self.retry(
            second, {"q": accept(name="Bob")}, arguments={"greeting": "Yo"}
        )
        self.assertEqual(done.text, "Yo Bob")
        again = await self.ask(arguments={"greeting": "Hi"})
        self.assertEqual(self.questions(again), ["q"])
        done = await self.retry(
            first, {"q": accept(name="Ann")}, arguments={"greeting": "Hi"}
        )
        self.assertEqual(done.text, "Hi Ann")

    async def test_notifications_come_before_the_question(self) -> None:
        @self.server.tool
        async def tells(ctx: Context) -> str:
            await ctx.progress(1)
            await ctx.log("info", "asking")
            return (await ctx.elicit("Who?", NAME_FORM)).action

        meta = {"progressToken": 1, LOG_LEVEL: "info"}
        self.assertEqual(len(await self.ask("tells", meta=meta)), 2)

    # --- several at once --------------------------------------------------------------

    @spec("mrtr-08")
    async def test_tasks_that_ask_side_by_side_are_united_in_one_round(self) -> None:
        @self.server.tool
        async def group(ctx: Context) -> str:
            async with asyncio.TaskGroup() as tasks:
                found = [
                    tasks.create_task(self.one(ctx, message))
                    for message in ("A?", "B?")
                ]
            return " ".join(task.result() for task in found)

        reply = await self.ask("group")
        asked = reply.result["inputRequests"]
        messages = {key: one["params"]["message"] for key, one in asked.items()}
        self.assertEqual(sorted(messages.values()), ["A?", "B?"])
        responses = {key: accept(name=f"for {m}") for key, m in messages.items()}
        done = await self.retry(reply, responses, "group")
        self.assertEqual(done.text, "for A? for B?")

    async def one(self, ctx: Context, message: str) -> str:
        return str((await ctx.elicit(message, NAME_FORM)).content["name"])

    async def test_nested_task_groups_are_united_too(self) -> None:
        @self.server.tool
        async def nested(ctx: Context) -> str:
            async def inner() -> None:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self.one(ctx, "B?"))
                    tasks.create_task(self.one(ctx, "C?"))

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.one(ctx, "A?"))
                tasks.create_task(inner())
            return "done"

        reply, rounds = await self.ask("nested"), 1
        while reply.result["resultType"] == "input_required":
            responses = {key: accept(name="Ann") for key in self.questions(reply)}
            reply, rounds = await self.retry(reply, responses, "nested"), rounds + 1
            self.assertLess(rounds, 5)
        self.assertEqual(reply.text, "done")

    async def test_a_task_group_that_asks_and_fails_is_an_error(self) -> None:
        @self.server.tool
        async def mixed(ctx: Context) -> str:
            async def fails() -> None:
                raise ValueError("broken")

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.one(ctx, "A?"))
                tasks.create_task(fails())
            return "done"

        response = (await self.tool("mixed", capabilities=ALL_CAPABILITIES)).response
        self.assertTrue("error" in response or response["result"].get("isError"))

    async def test_gathered_questions_are_answered_in_the_end(self) -> None:
        @self.server.tool
        async def gathers(ctx: Context) -> str:
            found = await asyncio.gather(*(self.one(ctx, f"{n}?") for n in range(3)))
            return " ".join(found)

        reply, rounds = await self.ask("gathers"), 1
        while reply.result["resultType"] == "input_required":
            responses = {key: accept(name=key[-1] * 2) for key in self.questions(reply)}
            reply, rounds = await self.retry(reply, responses, "gathers"), rounds + 1
            self.assertLess(rounds, 6)
        self.assertEqual(reply.text, "11 22 33")

    # --- once, and raw state ----------------------------------------------------------

    async def test_once_runs_a_side_effect_once(self) -> None:
        effects: list[str] = []

        def effect(kind: str) -> Any:
            effects.append(kind)
            return {"n": len(effects), "when": datetime.date(2026, 7, 28)}

        async def later(kind: str) -> Any:
            await asyncio.sleep(0)
            return effect(kind)

        @self.server.tool
        async def on_loop(ctx: Context) -> Any:
            a = await ctx.once("a", lambda: effect("a"))
            b = await ctx.once("b", lambda: later("b"))
            answers = [(await ctx.elicit(f"{n}?", NAME_FORM)).action for n in range(2)]
            c = await ctx.once("none", lambda: effects.append("c"))
            return {"found": [a, b, c], "answers": answers}

        @self.server.tool
        def in_thread(ctx: Context) -> Any:
            a = ctx.once("a", lambda: effect("a"))
            b = ctx.once("b", lambda: effect("b"))
            answers = [ctx.elicit(f"{n}?", NAME_FORM).action for n in range(2)]
            c = ctx.once("none", lambda: effects.append("c"))
            return {"found": [a, b, c], "answers": answers}

        for name in ("on_loop", "in_thread"):
            with self.subTest(name):
                effects.clear()
                reply = await self.ask(name)
                for _ in range(2):
                    (key,) = self.questions(reply)
                    reply = await self.retry(reply, {key: {"action": "decline"}}, name)
                self.assertEqual(effects, ["a", "b", "c"])
                found = reply.result["structuredContent"]["found"]
                wanted = [{"n": n, "when": "2026-07-28"} for n in (1, 2)]
                self.assertEqual(found, [*wanted, None])

    @spec("mrtr-23", "mrtr-17")
    async def test_a_state_alone_can_be_handed_round(self) -> None:
        states: list[JSON] = [0, "", False, [], {}, 1, "a", {"deep": [None, "\ud83d"]}]
        for state in states:
            for plain in (False, True):

                def body(ctx: Context) -> str:
                    if ctx.state is None:
                        raise mcp_ref.InputRequired(state=state)
                    return json.dumps(ctx.state)

                async def on_loop(ctx: Context) -> str:
                    return body(ctx)

                self.server = self.build()
                self.server.tool(body if plain else on_loop, name="raw")
                with self.subTest(state=state, plain=plain):
                    reply = await self.tool("raw", capabilities={})
                    self.assertNotIn("inputRequests", reply.result)
                    params = {"name": "raw", "arguments": {}}
                    params["requestState"] = reply.result["requestState"]
                    done = await self.call("tools/call", params, id=2)
                    self.assertEqual(json.loads(done.text), state)

    @spec("mrtr-31")
    async def test_raw_requests_and_their_responses(self) -> None:
        @self.server.tool
        async def raw(ctx: Context) -> Any:
            if not ctx.input_responses:
                question = mcp_ref.elicitation("Who?", NAME_FORM)
                raise mcp_ref.InputRequired({"mine": question}, state={"round": 1})
            return {"state": ctx.state, "responses": ctx.input_responses}

        reply = await self.ask("raw")
        self.assertEqual(self.questions(reply), ["mine"])
        given = {"mine": accept(name="Ann"), "extra": {}}
        done = await self.retry(reply, given, "raw")
        wanted = {"state": {"round": 1}, "responses": {"mine": accept(name="Ann")}}
        self.assertEqual(done.result["structuredContent"], wanted)

    @spec("mrtr-17")
    def test_asking_for_nothing_is_refused(self) -> None:
        for arguments in ({}, {"requests": {}}, {"requests": None, "state": None}):
            with self.subTest(arguments), self.assertRaises(ValueError):
                mcp_ref.InputRequired(**arguments)

    # --- capabilities -----------------------------------------------------------------

    @spec("mrtr-18", "mrtr-19", "base-55", "base-56", "elicitation-06", "sampling-05")
    async def test_nothing_is_asked_that_the_client_did_not_declare(self) -> None:
        form = mcp_ref.elicitation("Who?", NAME_FORM)
        page = mcp_ref.elicitation_url("Sign in", "https://a.example/")
        tools = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
        plain, with_tools = (
            mcp_ref.sampling("Hi"),
            mcp_ref.sampling("Hi", options=tools),
        )
        context = mcp_ref.sampling("Hi", options={"includeContext": "thisServer"})
        roots = mcp_ref.list_roots()
        needs_form, needs_url = (
            {"elicitation": {"form": {}}},
            {"elicitation": {"url": {}}},
        )
        cases: list[tuple[str, Any, JSON, JSON]] = [
            ("form, none", form, {}, needs_form),
            ("form, only url", form, needs_url, needs_form),
            ("form, sampling", form, {"sampling": {}, "roots": {}}, needs_form),
            ("form, empty means form", form, {"elicitation": {}}, None),
            ("form, form", form, needs_form, None),
            ("form, null", form, {"elicitation": None}, needs_form),
            ("form, true", form, {"elicitation": True}, needs_form),
            ("url, none", page, {}, needs_url),
            ("url, empty means form", page, {"elicitation": {}}, needs_url),
            ("url, only form", page, needs_form, needs_url),
            ("url, url", page, needs_url, None),
            ("sampling, none", plain, {}, {"sampling": {}}),
            ("sampling, plain", plain, {"sampling": {}}, None),
            ("tools, plain", with_tools, {"sampling": {}}, {"sampling": {"tools": {}}}),
            ("tools, tools", with_tools, {"sampling": {"tools": {}}}, None),
            ("context", context, {"sampling": {}}, {"sampling": {"context": {}}}),
            ("roots, none", roots, needs_form, {"roots": {}}),
            ("roots, roots", roots, {"roots": {}}, None),
        ]
        for name, question, capabilities, required in cases:
            self.server = self.build()

            async def asks(ctx: Context) -> str:
                await ctx.ask(q=question)
                return "done"

            def raises(ctx: Context) -> str:
                raise mcp_ref.InputRequired({"q": question}, state=1)

            for function in (asks, raises):
                self.server.tool(function)
                with self.subTest("MRT-04, MRT-07", name=name, by=function.__name__):
                    reply = await self.tool(
                        function.__name__, capabilities=capabilities
                    )
                    if required is None:
                        self.assertEqual(self.questions(reply), ["q"])
                        continue
                    self.assertEqual(reply.error["code"], -32021)
                    data = {"requiredCapabilities": required}
                    self.assertEqual(reply.error["data"], data)
                    self.assertNotIn("Who?", json.dumps(reply.response))
                    Wire.check("MissingRequiredClientCapabilityError", reply.response)

    @spec("base-56")
    async def test_all_capabilities_that_are_missing_are_listed(self) -> None:
        @self.server.tool
        async def much(ctx: Context) -> str:
            await ctx.ask(
                a=mcp_ref.elicitation("Who?", NAME_FORM),
                b=mcp_ref.elicitation_url("Sign in", "https://a.example/"),
                c=mcp_ref.list_roots(),
                d=mcp_ref.sampling("Hi"),
            )
            return ""

        reply = await self.tool("much", capabilities={"sampling": {}})
        wanted = {"elicitation": {"form": {}, "url": {}}, "roots": {}}
        self.assertEqual(reply.error["data"]["requiredCapabilities"], wanted)

    @spec("base-27", "base-55")
    async def test_a_retry_declares_its_capabilities_anew(self) -> None:
        reply = await self.ask()
        again = await self.retry(reply, {}, capabilities={})
        self.assertEqual(again.error["code"], -32021)

    # --- the sealed state -------------------------------------------------------------

    async def rejected(self, state: JSON, **more: Any) -> JSON:
        params = {
            "name": more.pop("name", "greet"),
            "arguments": more.pop("arguments", {}),
            "requestState": state,
            "inputResponses": {"q": accept(name="Ann")},
        }
        method = more.pop("method", "tools/call")
        more.setdefault("capabilities", ALL_CAPABILITIES)
        before = len(self.runs)
        reply = await self.call(method, params, **more)
        self.assertEqual(reply.error["code"], -32602, reply.response)
        self.assertEqual(len(self.runs), before, "the handler ran")
        return reply.error

    @spec("mrtr-11", "mrtr-12", "mrtr-13", "mrtr-33")
    async def test_a_state_with_any_character_changed_is_rejected(self) -> None:
        state = (await self.ask()).result["requestState"]
        errors = set()
        for position in range(len(state)):
            for other in "A_.= \u00e9":
                if state[position] != other:
                    changed = state[:position] + other + state[position + 1 :]
                    errors.add(json.dumps(await self.rejected(changed)))
        for position in range(len(state)):
            errors.add(json.dumps(await self.rejected(state[:position])))
            shorter = state[:position] + state[position + 1 :]
            errors.add(json.dumps(await self.rejected(shorter)))
        self.assertEqual(len(errors), 1, "the error tells what was wrong")

    @spec("mrtr-11", "mrtr-12", "mrtr-13")
    async def test_states_that_we_never_made_are_rejected(self) -> None:
        state = (await self.ask()).result["requestState"]
        body, mac = state.split(".")
        other, other_mac = mcp_ref.seal({"s": {}}, [b"k" * 32]).split(".")
        payload = json.loads(base64.urlsafe_b64decode(body))
        payload["s"]["answers"] = {}
        forged = base64.urlsafe_b64encode(json.dumps(payload).encode()).decode()
        cursor = mcp_ref.seal(["tools", 1], [b"k" * 32])
        cases: dict[str, JSON] = {
            "appended": state + "A",
            "a newline": state + "\n",
            "padding": state + "=",
            "in front": " " + state,
            "twice": f"{state}.{state}",
            "empty": "",
            "a dot": ".",
            "no mac": body + ".",
            "no body": "." + mac,
            "mac of another": f"{body}.{other_mac}",
            "body of another": f"{other}.{mac}",
            "forged body": f"{forged}.{mac}",
            "sealed, but no state": f"{other}.{other_mac}",
            "a cursor": cursor,
            "another key": mcp_ref.seal(payload, [b"x" * 32]),
            "the empty key": mcp_ref.seal(payload, [b""]),
            "null": None,
            "a number": 5,
            "a list": [state],
            "an object": {"state": state},
            "true": True,
            "a lone surrogate": "\ud83d" + state,
            "huge": "A" * 1_000_000,
        }
        for name, value in cases.items():
            with self.subTest(name):
                await self.rejected(value)

    async def test_a_state_is_no_cursor(self) -> None:
        state = (await self.ask()).result["requestState"]
        reply = await self.call("tools/list", {"cursor": state})
        self.assertEqual(reply.error["code"], -32602)

    @spec("mrtr-15")
    async def test_a_state_belongs_to_its_request(self) -> None:
        @self.server.prompt(name="greet")
        async def prompt(ctx: Context) -> str:
            return (await ctx.elicit("Who are you?", NAME_FORM, key="q")).action

        arguments = {"greeting": "Hi", "times": 2}
        state = (await self.ask(arguments=arguments)).result["requestState"]
        cases: dict[str, JSON] = {
            "another value": {"arguments": {"greeting": "Ho", "times": 2}},
            "another type": {"arguments": {"greeting": "Hi", "times": 3}},
            "one less": {"arguments": {"greeting": "Hi"}},
            "none": {"arguments": {}},
            "another tool": {"name": "greet_plain", "arguments": arguments},
            "an unknown tool": {"name": "ghost", "arguments": arguments},
        }
        for name, more in cases.items():
            with self.subTest(name):
                await self.rejected(state, **more)
        with self.subTest("another method"):
            bare_state = (await self.ask()).result["requestState"]
            await self.rejected(bare_state, method="prompts/get")
        with self.subTest("the order of arguments does not count"):
            params = {
                "name": "greet",
                "arguments": {"times": 2, "greeting": "Hi"},
                "requestState": state,
                "inputResponses": {"q": accept(name="Ann")},
            }
            done = await self.call("tools/call", params, capabilities=ALL_CAPABILITIES)
            self.assertEqual(done.text, "Hi AnnHi Ann")

    @spec("mrtr-15")
    async def test_a_state_belongs_to_its_principal(self) -> None:
        reply = await self.ask(principal=self.alice)
        state = reply.result["requestState"]
        others = {
            "nobody": None,
            "another user": mcp_ref.Principal("bob", "app"),
            "another client": mcp_ref.Principal("alice", "other"),
            "no client": mcp_ref.Principal("alice"),
            "empty": mcp_ref.Principal(""),
        }
        for name, principal in others.items():
            with self.subTest(name):
                await self.rejected(state, principal=principal)
        done = await self.retry(
            reply,
            {"q": accept(name="Ann")},
            principal=mcp_ref.Principal("alice", "app"),
        )
        self.assertEqual(done.text, "Hello Ann")
        state = (await self.ask()).result["requestState"]
        await self.rejected(state, principal=self.alice)

    @spec("mrtr-15")
    async def test_a_state_expires(self) -> None:
        reply = await self.ask()
        self.now += 599
        done = await self.retry(reply, {"q": accept(name="Ann")})
        self.assertEqual(done.text, "Hello Ann")
        for seconds in (1, 1, 1e9):
            self.now += seconds
            with self.subTest(now=self.now):
                await self.rejected(reply.result["requestState"])

    async def test_how_long_is_the_servers_choice(self) -> None:
        self.server = self.build(state_seconds=5)
        state = (await self.ask()).result["requestState"]
        self.now += 6
        await self.rejected(state)

    @spec("base-29", "base-31")
    async def test_any_process_with_the_key_can_serve_the_retry(self) -> None:
        reply = await self.ask()
        self.server = self.build()
        done = await self.retry(reply, {"q": accept(name="Ann")})
        self.assertEqual(done.text, "Hello Ann")

    @spec("mrtr-12")
    async def test_keys_rotate(self) -> None:
        old, new = b"o" * 32, b"n" * 32
        self.server = self.build(keys=[old])
        by_old = await self.ask()
        self.server = self.build(keys=[new, old])
        by_new = await self.ask()
        for reply in (by_old, by_new):
            done = await self.retry(reply, {"q": accept(name="Ann")})
            self.assertEqual(done.text, "Hello Ann")
        self.server = self.build(keys=[new])
        await self.rejected(by_old.result["requestState"])
        done = await self.retry(by_new, {"q": accept(name="Ann")})
        self.assertEqual(done.text, "Hello Ann")

    @spec("mrtr-12", "mrtr-13")
    async def test_a_state_of_another_server_is_rejected(self) -> None:
        state = (await self.ask()).result["requestState"]
        self.server = self.build("other")
        with self.subTest("another name, the same key"):
            await self.rejected(state)
        self.server = self.build(keys=())
        with self.subTest("a key made up at start"):
            await self.rejected(state)
            own = (await self.ask()).result["requestState"]
        self.server = self.build(keys=())
        await self.rejected(own)

    async def test_an_answer_is_never_taken_for_another_questions(self) -> None:
        text = ["Delete all?"]

        @self.server.tool
        async def changing(ctx: Context) -> str:
            return (await ctx.elicit(text[0], NAME_FORM, key="q")).action

        reply = await self.ask("changing")
        text[0] = "Delete one?"
        again = await self.retry(reply, {"q": accept(name="Ann")}, "changing")
        self.assertEqual(self.questions(again), ["q"])
        message = again.result["inputRequests"]["q"]["params"]["message"]
        self.assertEqual(message, "Delete one?")


class Stream:
    """An open listen request of a test."""

    def __init__(
        self, server: Server, notifications: JSON, id: Any, **more: Any
    ) -> None:
        self.messages: asyncio.Queue[JSON] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.gate.set()
        params = {"notifications": notifications}
        message = request("subscriptions/listen", params, id=id, **more)
        self.id = message.id
        self.task = asyncio.create_task(lint(server.handle)(message, self.send))

    async def send(self, message: JSON) -> None:
        await self.gate.wait()
        self.messages.put_nowait(json.loads(mcp_ref.encode(message)))

    async def next(self) -> JSON:
        """Return the next message's method and params, without its _meta."""
        if self.messages.empty():
            coming = asyncio.create_task(self.messages.get())
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait([coming, self.task], timeout=5, return_when=first)
            if not coming.done():
                coming.cancel()
                raise AssertionError(f"nothing came: {self.task}")
            message = coming.result()
        else:
            message = self.messages.get_nowait()
        found = message["params"]["_meta"][SUBSCRIPTION_ID]
        assert same(found, self.id), message
        params = {k: v for k, v in message["params"].items() if k != "_meta"}
        return message["method"].removeprefix("notifications/"), params

    async def open(self) -> JSON:
        """Wait for the acknowledgement, return what is honoured."""
        method, params = await self.next()
        assert method == "subscriptions/acknowledged", method
        return params["notifications"]

    async def close(self) -> None:
        """Cancel it, as a client does."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def silent(self) -> bool:
        """Tell whether nothing more comes."""
        for _ in range(5):
            await asyncio.sleep(0)
        return self.messages.empty()


TOLD_TOOLS = ("tools/list_changed", {})
TOLD_PROMPTS = ("prompts/list_changed", {})
TOLD_RESOURCES = ("resources/list_changed", {})
EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["note://a"],
}


def told(uri: str) -> Any:
    """Return what a stream hears of an updated resource."""
    return "resources/updated", {"uri": uri}


class Subscriptions(Case):
    """spec: basic/patterns/subscriptions"""

    def setUp(self) -> None:
        self.server = full_server()
        self.streams: list[Stream] = []

    async def asyncTearDown(self) -> None:
        for stream in self.streams:
            await stream.close()
        self.assertEqual(len(self.server.subscriptions), 0)

    def listen(
        self, notifications: JSON = EVERYTHING, id: Any = 1, **more: Any
    ) -> Stream:
        self.streams.append(Stream(self.server, notifications, id, **more))
        return self.streams[-1]

    @spec("subscriptions-02", "base-60")
    async def test_the_acknowledgement_comes_first_whatever_happens(self) -> None:
        stream = self.listen()
        stream.gate.clear()
        self.server.resource_updated("note://a")  # before it is open: not for us
        await asyncio.sleep(0)
        for _ in range(3):
            self.server.resource_updated("note://a")
            self.server.tool(lambda: "", name=f"t{time.monotonic_ns()}")
            await asyncio.sleep(0)
        stream.gate.set()
        self.assertEqual(await stream.open(), EVERYTHING)
        self.assertEqual(await stream.next(), told("note://a"))
        self.assertEqual(await stream.next(), TOLD_TOOLS)
        self.assertTrue(await stream.silent())

    @spec("base-60", "subscriptions-06")
    async def test_the_subscription_id_is_the_requests_id_in_type_and_value(
        self,
    ) -> None:
        streams = [self.listen(id=id) for id in ODD_IDS]
        for stream in streams:
            await stream.open()
        self.server.resource_updated("note://a")
        for stream in streams:
            with self.subTest("SUB-05", id=stream.id):
                self.assertEqual(await stream.next(), told("note://a"))
        self.server.subscriptions.end()
        for stream in streams:
            response = await stream.task
            found = response["result"]["_meta"][SUBSCRIPTION_ID]
            self.assertTrue(same(found, stream.id), response)
            Wire.check("SubscriptionsListenResultResponse", response)

    @spec("subscriptions-01", "subscriptions-04")
    async def test_exactly_what_is_honoured_is_acknowledged(self) -> None:
        cases: list[tuple[JSON, JSON]] = [
            ({}, {}),
            ({"toolsListChanged": True}, {"toolsListChanged": True}),
            ({"toolsListChanged": False}, {}),
            (
                {"toolsListChanged": False, "promptsListChanged": True},
                {"promptsListChanged": True},
            ),
            (
                {"zzz": True, "resourcesListChanged": True},
                {"resourcesListChanged": True},
            ),
            ({"resourceSubscriptions": []}, {"resourceSubscriptions": []}),
            (
                {"resourceSubscriptions": ["note://a", "note://a"]},
                {"resourceSubscriptions": ["note://a"]},
            ),
            (
                {"resourceSubscriptions": ["nope://x", "page://b", "note://a"]},
                {"resourceSubscriptions": ["page://b", "note://a"]},
            ),
            (EVERYTHING, EVERYTHING),
        ]
        for wanted, honoured in cases:
            with self.subTest("SUB-02", wanted=wanted):
                stream = self.listen(wanted)
                self.assertEqual(await stream.open(), honoured)
                await stream.close()

    async def test_a_server_honours_only_what_it_has(self) -> None:
        self.server = Server("tools only")
        self.server.tool(lambda: "", name="t")
        stream = self.listen()
        self.assertEqual(await stream.open(), {"toolsListChanged": True})
        self.server.prompt(lambda: "", name="p")
        self.assertTrue(await stream.silent())

    async def test_malformed_filters_are_invalid_params(self) -> None:
        cases: list[JSON] = [
            {},
            {"notifications": None},
            {"notifications": []},
            {"notifications": True},
            {"notifications": {"toolsListChanged": 1}},
            {"notifications": {"toolsListChanged": "yes"}},
            {"notifications": {"toolsListChanged": None}},
            {"notifications": {"resourceSubscriptions": "note://a"}},
            {"notifications": {"resourceSubscriptions": True}},
            {"notifications": {"resourceSubscriptions": ["note://a", 5]}},
            {"notifications": {"resourceSubscriptions": {"note://a": True}}},
        ]
        for params in cases:
            with self.subTest("SUB-02", params=params):
                reply = await self.call("subscriptions/listen", params)
                self.assertEqual(reply.error["code"], -32602)
                self.assertEqual(list(reply), [])

    @spec("subscriptions-01")
    async def test_updates_go_to_exactly_the_uris_that_were_asked_for(self) -> None:
        one = self.listen({"resourceSubscriptions": ["note://a"]}, id="a")
        two = self.listen({"resourceSubscriptions": ["page://x", "page://y"]}, id="xy")
        lists = self.listen({"resourcesListChanged": True}, id="lists")
        for stream in (one, two, lists):
            await stream.open()
        for uri in (
            "note://b",
            "note://A",
            "note://a/",
            "note://a?",
            "NOTE://a",
            "",
            "note://",
            "note:///a",
            "note://%61",
            "page://{name}",
            "page://z",
        ):
            self.server.resource_updated(uri)
        for stream in (one, two, lists):
            self.assertTrue(await stream.silent())
        self.server.resource_updated("note://a")
        self.server.resource_updated("page://y")
        self.assertEqual(await one.next(), told("note://a"))
        self.assertEqual(await two.next(), told("page://y"))
        for stream in (one, two, lists):
            self.assertTrue(await stream.silent())

    @spec("subscriptions-01", "tools-11", "resources-08", "prompts-07")
    async def test_adding_and_removing_is_told_to_those_who_asked(self) -> None:
        server = self.server
        names = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")
        streams = {name: self.listen({name: True}, id=name) for name in names}
        streams["none"] = self.listen({}, id="none")
        for stream in streams.values():
            await stream.open()
        changes: list[tuple[str, Any, Callable[[], Any]]] = [
            (names[0], TOLD_TOOLS, lambda: server.tool(lambda: "", name="new")),
            (names[0], TOLD_TOOLS, lambda: server.remove_tool("new")),
            (names[1], TOLD_PROMPTS, lambda: server.prompt(lambda: "", name="new")),
            (names[1], TOLD_PROMPTS, lambda: server.remove_prompt("new")),
            (names[2], TOLD_RESOURCES, lambda: server.resource("n://n")(lambda: "")),
            (names[2], TOLD_RESOURCES, lambda: server.remove_resource("n://n")),
            (names[2], TOLD_RESOURCES, lambda: server.resource("n://{x}")(lambda x: x)),
            (names[2], TOLD_RESOURCES, lambda: server.remove_resource("n://{x}")),
        ]
        for in_thread in (False, True):
            for name, wanted, change in changes:
                with self.subTest(name, in_thread=in_thread):
                    if in_thread:
                        await asyncio.to_thread(change)
                    else:
                        change()
                    self.assertEqual(await streams[name].next(), wanted)
                    for stream in streams.values():
                        self.assertTrue(await stream.silent())
        for remove in (
            server.remove_tool,
            server.remove_prompt,
            server.remove_resource,
        ):
            with self.assertRaises(KeyError):
                remove("ghost")
        for stream in streams.values():
            self.assertTrue(await stream.silent())

    async def test_a_handler_can_change_the_lists(self) -> None:
        @self.server.tool
        def grow() -> None:
            self.server.tool(lambda: "", name="grown")
            self.server.resource_updated("note://a")

        stream = self.listen()
        await stream.open()
        await self.tool("grow")
        found = [await stream.next(), await stream.next()]
        self.assertEqual(found, [TOLD_TOOLS, told("note://a")])
        listed = (await self.call("tools/list")).result["tools"]
        self.assertEqual(listed[-1]["name"], "grown")

    @spec("logging-05", "progress-08")
    async def test_nothing_of_other_requests_comes_on_a_stream(self) -> None:
        @self.server.tool
        async def noisy(ctx: Context) -> None:
            await ctx.log("emergency", "here")
            await ctx.progress(1)

        meta = {"progressToken": 1, LOG_LEVEL: "debug"}
        stream = self.listen(meta=meta)
        await stream.open()
        await self.tool("noisy", meta=meta)
        await self.tool("noisy", id=1)
        self.assertTrue(await stream.silent())

    # --- load -------------------------------------------------------------------------

    async def test_changes_that_wait_are_sent_once(self) -> None:
        slow = self.listen(
            {"resourceSubscriptions": ["note://a", "page://b"]}, id="slow"
        )
        quick = self.listen({"resourceSubscriptions": ["note://a"]}, id="quick")
        await slow.open()
        await quick.open()
        slow.gate.clear()
        for _ in range(1000):
            self.server.resource_updated("page://b")
            self.server.resource_updated("note://a")
        with self.subTest("SUB-03, the other listener is told"):
            self.assertEqual(await quick.next(), told("note://a"))
        for _ in range(10):
            self.server.resource_updated("note://a")
            await asyncio.sleep(0)
        slow.gate.set()
        found = [await slow.next()]
        while not await slow.silent():
            found.append(await slow.next())
        with self.subTest("SUB-03, each change a few times at most"):
            self.assertLess(len(found), 5)
            self.assertIn(told("note://a"), found)
            self.assertIn(told("page://b"), found)

    async def test_no_change_is_lost_after_the_acknowledgement(self) -> None:
        for number in range(40):
            stream = self.listen(id=number)
            await stream.open()
            self.server.resource_updated("note://a")
            self.assertEqual(await stream.next(), told("note://a"))
            await stream.close()

    async def test_no_change_from_a_thread_is_lost(self) -> None:
        stream = self.listen({"resourceSubscriptions": ["note://a"]})
        await stream.open()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)

        def publish() -> None:
            for _ in range(3000):
                self.server.resource_updated("note://a")

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(4):
                    tasks.create_task(asyncio.to_thread(publish))
        finally:
            sys.setswitchinterval(interval)
        while not await stream.silent():
            await stream.next()
        for _ in range(3):
            await asyncio.to_thread(self.server.resource_updated, "note://a")
            self.assertEqual(await stream.next(), told("note://a"))

    async def test_many_streams_are_each_told_once(self) -> None:
        streams = [self.listen(id=number) for number in range(150)]
        for stream in streams:
            await stream.open()
        self.assertEqual(len(self.server.subscriptions), 150)
        self.server.resource_updated("note://a")
        for stream in streams:
            self.assertEqual(await stream.next(), told("note://a"))
        for stream in streams:
            self.assertTrue(stream.messages.empty())
            stream.task.cancel()
        await asyncio.wait([stream.task for stream in streams])
        with self.subTest("SUB-06"):
            self.assertEqual(len(self.server.subscriptions), 0)

    @spec("cancellation-13")
    async def test_a_cancelled_stream_is_forgotten_and_hears_no_more(self) -> None:
        gone, stays = self.listen(id="1"), self.listen(id=1)
        await gone.open()
        await stays.open()
        await gone.close()
        self.assertEqual(len(self.server.subscriptions), 1)
        self.server.resource_updated("note://a")
        self.assertEqual(await stays.next(), told("note://a"))
        self.assertTrue(await gone.silent())

    async def test_a_stream_that_dies_while_it_is_written_to_is_forgotten(self) -> None:
        async def gone(message: JSON) -> None:
            raise ConnectionResetError("gone")

        message = request("subscriptions/listen", {"notifications": EVERYTHING})
        await self.server.handle(message, gone)
        self.assertEqual(len(self.server.subscriptions), 0)

    async def test_there_is_a_stated_limit(self) -> None:
        limit = mcp_ref.LISTEN_STREAMS
        self.addCleanup(setattr, mcp_ref, "LISTEN_STREAMS", limit)
        mcp_ref.LISTEN_STREAMS = 2
        streams = [self.listen(id=n) for n in range(2)]
        for stream in streams:
            await stream.open()
        reply = await self.call("subscriptions/listen", {"notifications": {}})
        self.assertEqual(reply.error["code"], 503)
        await streams[0].close()
        await self.listen(id="again").open()

    # --- the end ----------------------------------------------------------------------

    @spec("subscriptions-07", "subscriptions-08", "cancellation-03", "cancellation-12")
    async def test_the_server_ends_a_stream_with_a_result(self) -> None:
        # SUB-07: of the two pages that contradict each other, this is the one we follow
        streams = [self.listen(id=number) for number in range(3)]
        for stream in streams:
            await stream.open()
        self.server.resource_updated("note://a")
        self.server.subscriptions.end()
        for stream in streams:
            response = await asyncio.wait_for(stream.task, 5)
            self.assertEqual(response["result"]["resultType"], "complete")
            self.assertEqual(response["result"]["_meta"][SUBSCRIPTION_ID], stream.id)
            with self.subTest("what was pending comes before the end"):
                self.assertEqual(await stream.next(), told("note://a"))
        self.assertEqual(len(self.server.subscriptions), 0)

    def test_changes_are_told_on_each_event_loop(self) -> None:
        ready, published = threading.Barrier(3), threading.Event()
        found: list[Any] = []

        async def serve(id: str) -> None:
            stream = Stream(self.server, EVERYTHING, id)
            await stream.open()
            await asyncio.to_thread(ready.wait, 5)
            found.append(await stream.next())
            await stream.close()

        threads = [
            threading.Thread(target=lambda id=id: asyncio.run(serve(id))) for id in "ab"
        ]
        for one in threads:
            one.start()
        ready.wait(5)
        self.server.resource_updated("note://a")
        published.set()
        for one in threads:
            one.join(5)
        self.assertEqual(found, [told("note://a")] * 2)
        self.assertEqual(len(self.server.subscriptions), 0)

    def test_without_listeners_or_after_the_loop_a_change_is_no_error(self) -> None:
        async def serve() -> None:
            stream = Stream(self.server, EVERYTHING, 1)
            await stream.open()

        self.server.resource_updated("note://a")
        asyncio.run(serve())
        self.server.resource_updated("note://a")
        self.server.tool(lambda: "", name="later")
        self.assertEqual(len(self.server.subscriptions), 0)


# needs: import queue
PROGRAM = pathlib.Path(mcp_ref.__file__).resolve()
FIXTURE = '''
import asyncio, logging, os, subprocess, sys, threading, time
from typing import Any

import mcp_ref
from mcp_ref import Context, Server

server = Server("fixture", "1.0", keys=[b"k" * 32])
go = threading.Event()


@server.tool
def echo(value: Any) -> Any:
    return {"value": value}


@server.tool
async def add(a: int, b: int) -> int:
    return a + b


@server.tool
def noisy() -> str:
    print("printed")
    print("half a line", end="")
    sys.stdout.write("x" * 100_000)
    logging.StreamHandler(sys.stdout).emit(logging.makeLogRecord({"msg": "logged"}))
    os.system("echo from a shell")
    os.write(1, b"written to descriptor 1")
    return "ok"


@server.tool
def child() -> str:
    """Start processes that read all of the standard input that they get."""
    eaten = subprocess.run(["cat"], stdout=subprocess.PIPE).stdout
    os.system("cat > /dev/null")
    return f"{len(eaten)} {sys.stdin.read()!r}"


@server.tool
def block(ctx: Context) -> str:
    go.wait(10)
    return "cancelled" if ctx.cancelled else "released"


@server.tool
async def release() -> None:
    go.set()


@server.tool
async def hold() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        sys.stderr.write("held until now\\n")


@server.tool
async def stubborn() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass
    return "never mind"


@server.tool
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@server.tool
async def steps(ctx: Context, n: int) -> str:
    for step in range(n):
        await ctx.progress(step + 1, n)
    return "done"


@server.tool
async def greet(ctx: Context) -> str:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    answer = await ctx.elicit("Who are you?", schema, key="q")
    return f"Hello {answer.content.get('name', 'nobody')}"


@server.tool
def grow() -> None:
    server.tool(lambda: "", name=f"tool-{time.monotonic_ns()}")


@server.tool
def touch(uri: str) -> None:
    server.resource_updated(uri)


@server.tool
def leave() -> None:
    sys.exit(3)


@server.resource("note://a")
def note() -> str:
    return "日本語 ✓ 🚀"


@server.resource("note://b")
def other() -> str:
    return "b"


@server.prompt
def ask(name: str) -> str:
    return f"Ask {name}"
'''
COMPILED = tempfile.TemporaryDirectory()
unittest.addModuleCleanup(COMPILED.cleanup)
RUN = "\nsys.exit(server.run())\n"


def call(id: Any, tool: str, meta: JSON = None, /, **arguments: Any) -> JSON:
    """Build a tools/call message."""
    params = {"name": tool, "arguments": arguments, "_meta": {**META, **(meta or {})}}
    return mcp_ref.request_message(id, "tools/call", params)


def discover(id: Any) -> JSON:
    """Build a server/discover message."""
    return mcp_ref.request_message(id, "server/discover", {"_meta": META})


def cancel(id: Any, **more: Any) -> JSON:
    """Build a notifications/cancelled message."""
    return mcp_ref.notification("notifications/cancelled", {"requestId": id, **more})


def line(message: JSON) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Process:
    """A server in a subprocess of its own, and the lines that it writes."""

    def __init__(
        self, command: list[str], reading: bool = True, **options: Any
    ) -> None:
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.errors = b""
        self.noticed = threading.Condition()
        environment = {
            "PYTHONPATH": str(PROGRAM.parent),
            "PYTHONPYCACHEPREFIX": COMPILED.name,  # compiled once, not for each test
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONUNBUFFERED": "",
            **options.pop("env", {}),
        }
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | options
        self.popen = subprocess.Popen(
            command, stderr=subprocess.PIPE, env=os.environ | environment, **options
        )
        self.readers = [threading.Thread(target=self._read_errors, daemon=True)]
        if self.popen.stdout is not None:
            self.readers.append(threading.Thread(target=self._read, daemon=True))
        for reader in self.readers[: 1 if not reading else 2]:
            reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for data in self.popen.stdout:
            self.lines.put(data)
        self.lines.put(b"")

    def _read_errors(self) -> None:
        assert self.popen.stderr is not None
        while data := os.read(self.popen.stderr.fileno(), 65536):
            with self.noticed:
                self.errors += data
                self.noticed.notify_all()

    def start_reading(self) -> None:
        self.readers[1].start()

    def write(self, data: bytes) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(data)
        self.popen.stdin.flush()

    def send(self, *messages: JSON) -> None:
        self.write(b"".join(map(line, messages)))

    def next(self) -> JSON:
        """Return the next message; each line has to be one."""
        data = self.lines.get(timeout=10)
        assert data.endswith(b"\n") and data.isascii() and b"\r" not in data, data[:200]
        message = json.loads(data)
        assert message["jsonrpc"] == "2.0", message
        assert "id" not in message or "method" not in message, message
        return message

    def answers(self, *ids: Any) -> dict[Any, JSON]:
        """Return the next responses, which have these ids, by id."""
        found = {}
        for _ in ids:
            message = self.next()
            found[type(message["id"]), message["id"]] = message
        assert set(found) == {(type(id), id) for id in ids}, list(found)
        return {id: found[type(id), id] for id in ids}

    def answer(self, message: JSON) -> JSON:
        """Send a request and return its response, which is all that may come."""
        self.send(message)
        found = self.next()
        assert same(found.get("id"), message["id"]), found
        return found

    def says(self, text: bytes) -> None:
        """Wait until the standard error holds a text."""
        with self.noticed:
            assert self.noticed.wait_for(lambda: text in self.errors, 10), self.errors

    def close(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()

    def end(self) -> tuple[int, list[bytes], str]:
        """Wait for the exit; return status, the lines left, and the standard error."""
        status = self.popen.wait(10)
        for reader in self.readers:
            if reader.ident is not None:
                reader.join(10)
        left = []
        while not self.lines.empty():
            left.append(self.lines.get())
        return status, [data for data in left if data], self.errors.decode()

    def stop(self) -> None:
        """End it, however it is, and release its descriptors."""
        self.popen.kill()
        with contextlib.suppress(OSError):
            if self.popen.stdin is not None:
                self.popen.stdin.close()
        self.popen.wait(10)
        for reader, pipe in zip(self.readers, (self.popen.stderr, self.popen.stdout)):
            if reader.ident is not None:
                reader.join(10)
            if pipe is not None:
                pipe.close()


class StdioCase(unittest.TestCase):
    """Starts servers, and looks after them."""

    directory: tempfile.TemporaryDirectory[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)

    @classmethod
    def script(cls, end: str = RUN, start: str = "") -> str:
        """Write a program: the fixture, and how it runs."""
        number = len(os.listdir(cls.directory.name))
        path = pathlib.Path(cls.directory.name, f"server{number}.py")
        path.write_text(start + FIXTURE + end, encoding="utf-8")
        return str(path)

    def start(self, end: str = RUN, start: str = "", **options: Any) -> Process:
        """Start the fixture in a process that lives as long as the test."""
        process = Process([sys.executable, self.script(end, start)], **options)
        self.addCleanup(process.stop)
        return process

    def shell(self, command: str, end: str = RUN, **options: Any) -> Process:
        """Start it through a shell: `$RUN` in the command is what starts it."""
        run = f"exec '{sys.executable}' '{self.script(end)}'"
        process = Process(["sh", "-c", command.replace("$RUN", run)], **options)
        self.addCleanup(process.stop)
        return process

    def clean_exit(self, process: Process, status: int = 0) -> list[bytes]:
        """Wait for a good end, and return the lines that had not been read."""
        found, left, errors = process.end()
        self.assertEqual(found, status, errors)
        self.assertNotIn("Traceback", errors)
        self.assertNotIn("Fatal", errors)
        return left


class StdioFraming(StdioCase):
    """spec: basic/transports/stdio: bytes. The tests share one process: it survives."""

    server: Process

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.server = Process([sys.executable, cls.script()])
        cls.addClassCleanup(cls.server.stop)

    def tearDown(self) -> None:
        """Nothing has been left over, and the next request is answered."""
        self.server.answer(discover(f"after {self.id()}"))

    @spec("stdio-01", "stdio-04")
    def test_crlf_and_blank_lines_are_no_messages(self) -> None:
        a, b = json.dumps(discover("a")).encode(), json.dumps(discover("b")).encode()
        with self.subTest("STD-02"):
            self.server.write(b"\r\n\n   \r\n" + a + b"\r\n\r\n\t\n" + b + b" \r\n")
            self.server.answers("a", "b")

    @spec("transports-01", "base-15", "mrtr-30")
    def test_a_bad_line_never_ends_the_loop(self) -> None:
        cases: list[tuple[str, bytes, int]] = [
            ("STD-05", b'{"jsonrpc":"2.0","id":7,"method":"caf\xe9"}', -32700),
            ("STD-26, half", b'{"jsonrpc":"2.0","id":1,', -32700),
            ("STD-26, null", b"null", -32600),
            ("STD-26, a string", b'"str"', -32600),
            ("STD-26, a number", b"123", -32600),
            ("STD-26, empty", b"{}", -32600),
            ("STD-21", b"Content-Length: 60\r", -32700),
            (
                "JSN-01",
                b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":NaN}}',
                -32700,
            ),
            ("JSN-04", b"[" * 100_000 + b"]" * 100_000, -32700),
            ("JSN-04, objects", b'{"a":' * 100_000, -32700),
            ("5,000 digits", b'{"id":' + b"9" * 5000 + b"}", -32700),
            ("JSN-06", b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600),
            ("JSN-10", b'{"jsonrpc":"2.0","id":{"a":1},"method":"tools/list"}', -32600),
            ("JSN-12", b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', -32600),
            ("a NUL", b"\0", -32700),
            ("a BOM, but not at the start", b"\xef\xbb\xbf{}", -32700),
        ]
        for name, data, code in cases:
            with self.subTest(name):
                self.server.write(data + b"\n")
                message = self.server.next()
                self.assertEqual(message["error"]["code"], code)
                self.assertNotIn("id", message)
                self.server.answer(discover(name))

    def test_errors_have_the_id_where_it_could_be_read(self) -> None:
        for id in (0, "", "a"):
            with self.subTest(id=id):
                self.server.send({"jsonrpc": "1.0", "id": id, "method": "x"})
                message = self.server.next()
                self.assertTrue(same(message["id"], id))
                self.assertEqual(message["error"]["code"], -32600)

    def test_pretty_printed_json_is_refused_line_by_line(self) -> None:
        with self.subTest("STD-22"):
            data = json.dumps(discover(1), indent=2).encode() + b"\n"
            self.server.write(data)
            for _ in data.splitlines():
                self.assertIn("error", self.server.next())

    @spec(
        "base-25", "stdio-07", "cancellation-14", "cancellation-19", "cancellation-16"
    )
    def test_notifications_and_responses_are_never_answered(self) -> None:
        silent: list[JSON] = [
            {"method": "notifications/initialized"},
            {"method": "notifications/no/such", "params": {"a": 1}},
            {"method": "tools/call", "params": {"name": "leave", "arguments": {}}},
            {"method": "notifications/cancelled", "params": {"requestId": 12345}},
            {"method": "notifications/cancelled", "params": {"requestId": {"a": 1}}},
            {"method": "notifications/cancelled", "params": {"requestId": None}},
            {"method": "notifications/cancelled", "params": {"requestId": True}},
            {"method": "notifications/cancelled", "params": {}},
            {"method": "notifications/cancelled"},
            {
                "method": "notifications/cancelled",
                "params": {"requestId": 1, "reason": {}},
            },
            {"id": 99, "result": {}},
            {"id": 99, "error": {"code": -1, "message": "x"}},
            {"result": {}},
        ]
        for message in silent:
            with self.subTest("CAN-03, JSN-15", message=message):
                self.server.send({"jsonrpc": "2.0", **message})
                self.server.answer(discover("next"))
        with self.subTest("CAN-03, a list for params"):
            self.server.send(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": []}
            )
            self.server.send(discover("next"))
            message = self.server.next()
            if "error" in message:  # an invalid request may be told, if without an id
                self.assertNotIn("id", message)
                message = self.server.next()
            self.assertEqual(message["id"], "next")

    @spec("base-07", "base-04")
    def test_ids_come_back_the_same_in_type_and_value(self) -> None:
        for id in ODD_IDS:
            with self.subTest("JSN-07, JSN-11", id=id):
                self.server.answer(call(id, "add", a=1, b=2))

    @spec("transports-01", "stdio-01")
    def test_only_a_newline_ends_a_message(self) -> None:
        text = "a\u2028b\u2029c\x85d\x0b\x0c\r\ufeff €𝄞"
        message = call(5, "echo", value=text)
        data = json.dumps(message, ensure_ascii=False).encode() + b"\n"
        data = data.replace(b"\\u000b", b"\\u000b")
        with self.subTest("STD-04"):
            self.server.write(data)
            found = self.server.next()["result"]["structuredContent"]
            self.assertEqual(found, {"value": text})
        with self.subTest("JSN-03"):
            found = self.server.answer(call(6, "echo", value="bad \ud83d end"))
            self.assertEqual(
                found["result"]["structuredContent"]["value"], "bad \ud83d end"
            )

    @spec("transports-02")
    def test_large_messages_pass_whole_in_both_directions(self) -> None:
        for size in (70_000, 2_600_000):
            with self.subTest("STD-10, STD-16", size=size):
                text = "é" * size
                message = call(size, "echo", value=text)
                data = json.dumps(message, ensure_ascii=False).encode() + b"\n"
                self.server.write(data)
                found = self.server.next()["result"]["structuredContent"]["value"]
                self.assertEqual(len(found), size)
                self.assertEqual(found, text)

    def test_messages_may_come_in_pieces_or_many_at_once(self) -> None:
        message = call(1, "echo", value="€𝄞")
        with self.subTest("STD-13, one byte at a time"):
            data = json.dumps(message, ensure_ascii=False).encode() + b"\n"
            for byte in data:
                self.server.write(bytes([byte]))
            found = self.server.next()["result"]["structuredContent"]
            self.assertEqual(found, {"value": "€𝄞"})
        with self.subTest("STD-13, many in one write"):
            ids = list(range(100))
            self.server.send(*map(discover, ids))
            self.server.answers(*ids)

    @spec("stdio-04", "stdio-02")
    def test_nothing_that_tools_print_comes_on_the_standard_output(self) -> None:
        with self.subTest("STD-08"):
            found = self.server.answer(call(1, "noisy"))
            self.assertEqual(found["result"]["content"][0]["text"], "ok")
            self.server.says(b"from a shell")
            self.server.says(b"written to descriptor 1")

    def test_child_processes_of_tools_cannot_eat_messages(self) -> None:
        self.server.send(call(1, "child"), *(discover(n) for n in range(2, 50)))
        found = self.server.answers(*range(1, 50))
        self.assertEqual(found[1]["result"]["content"][0]["text"], "0 ''")

    # --- several at once --------------------------------------------------------------

    @spec("base-28")
    def test_answers_and_notifications_of_many_requests_never_mix_in_a_line(
        self,
    ) -> None:
        text = "x" * 100_000
        messages = [call(n, "echo", value=f"{n} {text}") for n in range(50)]
        messages += [
            call(n, "steps", {"progressToken": n}, n=20) for n in range(50, 75)
        ]
        writer = threading.Thread(target=self.server.send, args=messages)
        with self.subTest("STD-17"):
            writer.start()
            answered = {}
            while len(answered) < 75:
                message = self.server.next()
                if "id" in message:
                    answered[message["id"]] = message["result"]
            writer.join()
            for n in range(50):
                found = answered[n]["structuredContent"]["value"]
                self.assertEqual(found, f"{n} {text}")

    @spec("base-28", "cancellation-13", "stdio-11")
    def test_a_blocked_plain_handler_stops_nothing_else(self) -> None:
        self.server.send(call(1, "block"), call(3, "block"), discover(2))
        self.server.answers(2)
        self.server.send(cancel(1, reason="user"), call(4, "add", a=1, b=2))
        self.server.answers(4)
        with self.subTest("CAN-04, no answer for what was cancelled"):
            self.server.send(call(5, "release"))
            found = self.server.answers(3, 5)
            self.assertEqual(found[3]["result"]["content"][0]["text"], "released")

    @spec("stdio-11", "cancellation-13", "progress-12")
    def test_nothing_is_written_for_a_cancelled_request(self) -> None:
        for tool in ("hold", "stubborn"):
            with self.subTest("CAN-02", tool=tool):
                meta = {"progressToken": 9}
                self.server.send(call(9, tool, meta), discover(10))
                self.server.answers(10)
                self.server.send(cancel(9, reason="user"), cancel(9), discover(11))
                self.server.answers(11)
                # the id may be used again
                self.server.answer(call(9, "add", a=1, b=2))
        self.server.says(b"held until now")

    @spec("base-07", "cancellation-11")
    def test_ids_that_differ_in_type_are_different_requests(self) -> None:
        with self.subTest("JSN-08"):
            self.server.send(call(1, "sleep", seconds=0.02), call("1", "hold"))
            self.server.send(cancel("1"))
            self.server.answers(1)
        with self.subTest("JSN-07, cancelling 0 and the empty string"):
            self.server.send(call(0, "hold"), call("", "hold"), cancel(0), cancel(""))
            self.server.answer(discover(0))
            self.server.answer(discover(""))

    @spec("base-06")
    def test_an_id_in_flight_cannot_be_taken(self) -> None:
        with self.subTest("JSN-14"):
            self.server.send(call(5, "sleep", seconds=0.05), call(5, "add", a=1, b=2))
            messages = [self.server.next(), self.server.next()]
            errors = [one["error"]["code"] for one in messages if "error" in one]
            self.assertEqual(errors, [-32600])
            texts = [
                one["result"]["content"][0]["text"]
                for one in messages
                if "result" in one
            ]
            self.assertEqual(texts, ["slept"])
        self.server.answer(call(5, "add", a=1, b=2))

    @spec("cancellation-16")
    def test_cancels_that_race_with_the_answer_do_no_harm(self) -> None:
        messages = []
        for number in range(200):
            tool = ("add", {"a": 1, "b": 2}) if number % 2 else ("echo", {"value": 1})
            messages += [call(number, tool[0], **tool[1]), cancel(number)]
        self.server.send(*messages, discover("last"))
        while self.server.next()["id"] != "last":
            pass
        while self.server.answer(discover("quiet"))["id"] != "quiet":
            pass

    # --- subscriptions ----------------------------------------------------------------

    def listen(self, id: Any, **notifications: JSON) -> JSON:
        """Open a stream and return what is honoured."""
        params = {"notifications": notifications, "_meta": META}
        self.server.send(mcp_ref.request_message(id, "subscriptions/listen", params))
        return self.told(id, "subscriptions/acknowledged")["notifications"]

    def told(self, id: Any, method: str) -> JSON:
        message = self.server.next()
        self.assertEqual(message["method"], f"notifications/{method}")
        found = message["params"]["_meta"][SUBSCRIPTION_ID]
        self.assertTrue(same(found, id), message)
        return message["params"]

    @spec("subscriptions-01", "subscriptions-03", "stdio-08", "base-60")
    def test_streams_share_the_channel_and_keep_apart(self) -> None:
        with self.subTest("SUB-05"):
            wanted = {"resourceSubscriptions": ["note://a"]}
            self.assertEqual(self.listen("L1", **wanted), wanted)
            self.assertEqual(
                self.listen(7, toolsListChanged=True), {"toolsListChanged": True}
            )
            self.server.answer(call(1, "touch", uri="note://b"))
            self.server.send(call(2, "touch", uri="note://a"))
            found = [self.server.next() for _ in range(2)]
            told = [one for one in found if "method" in one]
            self.assertEqual(told[0]["params"]["uri"], "note://a")
            self.assertEqual(told[0]["params"]["_meta"], {SUBSCRIPTION_ID: "L1"})
            self.server.send(call(3, "grow"))
            found = [self.server.next() for _ in range(2)]
            told = [one for one in found if "method" in one]
            self.assertEqual(told[0]["method"], "notifications/tools/list_changed")
            self.assertEqual(told[0]["params"]["_meta"], {SUBSCRIPTION_ID: 7})
        self.server.send(cancel("L1"), cancel(7))
        self.server.answer(call(4, "touch", uri="note://a"))
        self.server.answer(call(5, "grow"))

    def test_streams_that_are_cancelled_leave_nothing(self) -> None:
        with self.subTest("SUB-06"):
            for number in range(300):
                self.listen(number, toolsListChanged=True)
                self.server.send(cancel(number))
            self.server.answer(call("grow", "grow"))

    @spec("mrtr-01", "stdio-09", "patterns-01")
    def test_the_server_asks_without_ever_sending_a_request(self) -> None:
        meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
        # Process.next() fails on a message that has both a method and an id.
        result = self.server.answer(call(1, "greet", meta))["result"]
        self.assertEqual(result["resultType"], "input_required")
        message = call(2, "greet", meta)
        message["params"]["requestState"] = result["requestState"]
        message["params"]["inputResponses"] = {"q": accept(name="Ann")}
        found = self.server.answer(message)["result"]
        self.assertEqual(found["content"][0]["text"], "Hello Ann")


class Stdio(StdioCase):
    """spec: basic/transports/stdio: the process"""

    def test_one_byte_order_mark_at_the_start_is_left_out(self) -> None:
        server = self.start()
        with self.subTest("STD-01"):
            server.write(b"\xef\xbb\xbf" + line(discover(1)))
            server.answers(1)

    @spec("stdio-04")
    def test_an_over_long_line_is_skipped_and_told_once(self) -> None:
        server = self.start("\nsys.exit(server.run(limit=1000))\n")
        exact = json.dumps(discover("exact")).encode()
        exact += b" " * (1000 - len(exact))
        cases = {
            "STD-12, behind a good one": line(discover(1)) + b"y" * 1001 + b"\n",
            "STD-11, long": line(discover(1)) + b"{" + b"x" * 3_000_000 + b"\n",
        }
        for name, data in cases.items():
            with self.subTest(name):
                server.write(data)
                messages = [server.next(), server.next()]
                (error,) = [one for one in messages if "error" in one]
                self.assertNotIn("id", error)
                self.assertEqual(error["error"]["code"], -32700)
                server.answer(discover(2))
        server.write(exact + b"\n")
        server.answers("exact")
        server.write(exact + b" \n")
        self.assertIn("error", server.next())
        with self.subTest("STD-11, never ended"):
            server.write(b"z" * 100_000)
            server.close()
            self.assertEqual(self.clean_exit(server), [])

    def test_cutting_lines_takes_linear_time(self) -> None:
        splitter = mcp_ref.LineSplitter(100 * 2**20)
        self.assertEqual(splitter.feed(b"a\n\nb\r\nc"), [b"a", b"", b"b\r"])
        self.assertEqual(splitter.end(), b"c")
        for _ in range(20_000):
            self.assertEqual(splitter.feed(b"x" * 1000), [])
        (found,) = splitter.feed(b"\n")
        self.assertEqual(len(found or b""), 20_000_000)
        small = mcp_ref.LineSplitter(3)
        found = (
            small.feed(b"abc\nabcd\nabc\nab")
            + small.feed(b"c\nabcdefg")
            + small.feed(b"\n")
        )
        self.assertEqual(found, [b"abc", None, b"abc", b"abc", None])

    # --- the end of the input ---------------------------------------------------------

    @spec("stdio-13")
    def test_at_the_end_of_the_input_the_server_exits(self) -> None:
        with self.subTest("STD-18, an empty input"):
            self.clean_exit(self.start(stdin=subprocess.DEVNULL))
        with self.subTest("after some work"):
            server = self.start()
            server.answer(discover(1))
            server.close()
            self.assertEqual(self.clean_exit(server), [])

    def test_requests_in_flight_at_the_end_of_the_input_are_answered(self) -> None:
        for last in (b"\n", b""):
            with self.subTest("STD-14, STD-15", last=last):
                server = self.start()
                data = line(discover(1)) + line(call(2, "sleep", seconds=0.2))
                server.write(data[:-1] + last)
                server.close()
                server.answers(1, 2)
                self.assertEqual(self.clean_exit(server), [])

    def test_half_a_message_at_the_end_is_dropped(self) -> None:
        for data in (b'{"jsonrpc":"2.0","id":2,"met', b"{"):
            with self.subTest("STD-14", data=data):
                server = self.start()
                server.write(line(discover(1)) + data)
                server.close()
                server.answers(1)
                self.assertEqual(self.clean_exit(server), [])

    @spec("stdio-13", "subscriptions-07", "subscriptions-08")
    def test_what_does_not_end_in_time_is_cancelled(self) -> None:
        server = self.start("\nsys.exit(server.run(grace=0.1))\n")
        params = {"notifications": {"toolsListChanged": True}, "_meta": META}
        server.send(
            mcp_ref.request_message("L", "subscriptions/listen", params),
            call(1, "hold"),
            call(2, "block"),
            discover(3),
        )
        ids = [server.next().get("id") for _ in range(2)]
        self.assertEqual(ids, [None, 3])
        server.close()
        with self.subTest("CAN-06, the stream ends with its result"):
            result = server.answers("L")["L"]["result"]
            self.assertEqual(result["_meta"][SUBSCRIPTION_ID], "L")
        with self.subTest("STD-18"):
            self.assertEqual(self.clean_exit(server), [])
            self.assertIn("held until now", server.errors.decode())

    @spec("subscriptions-07")
    def test_the_streams_of_a_wrapped_server_end_with_their_result(self) -> None:
        server = self.start("""
limited = mcp_ref.rate_limit(server.handle, per_second=10)
sys.exit(mcp_ref.run_until_signal(mcp_ref.serve_stdio(limited)))
""")
        params = {"notifications": {"toolsListChanged": True}, "_meta": META}
        listen = mcp_ref.request_message("L", "subscriptions/listen", params)
        server.send(listen)
        server.next()
        server.close()
        self.assertIn("result", server.answers("L")["L"])
        self.assertEqual(self.clean_exit(server), [])

    def test_when_nobody_reads_any_more_the_server_exits(self) -> None:
        server = self.start(reading=False)
        server.send(discover(1))
        assert server.popen.stdout is not None
        self.assertTrue(server.popen.stdout.readline())
        server.popen.stdout.close()
        server.send(discover(2))
        self.clean_exit(server)

    @spec("cancellation-17")
    def test_the_reason_of_a_cancellation_goes_to_the_log(self) -> None:
        start = "import logging\nlogging.basicConfig(level=logging.INFO)\n"
        server = self.start(start=start)
        server.send(call(1, "hold"), discover(2))
        server.answers(2)
        server.send(cancel(1, reason="changed my mind"))
        server.says(b"changed my mind")

    # --- signals ----------------------------------------------------------------------

    def test_one_signal_ends_the_server_without_a_traceback(self) -> None:
        params = {"notifications": {"toolsListChanged": True}, "_meta": META}
        listen = mcp_ref.request_message("L", "subscriptions/listen", params)
        busy = [listen, call(1, "hold"), call(2, "block"), call(3, "sleep", seconds=30)]
        for number in (signal.SIGINT, signal.SIGTERM):
            for messages in ([], busy):
                with self.subTest("STD-19", signal=number, busy=bool(messages)):
                    server = self.start()
                    server.send(*messages, discover("up"))
                    while server.next().get("id") != "up":
                        pass
                    server.popen.send_signal(number)
                    self.clean_exit(server, 128 + number)

    # --- the standard streams ---------------------------------------------------------

    def test_descriptors_that_are_closed_at_the_start(self) -> None:
        for closed, output in (
            ("2>&-", True),
            (">&-", False),
            ("<&- >&-", False),
            ("<&- >&- 2>&-", False),
        ):
            with self.subTest(closed=closed):
                server = self.shell(f"$RUN {closed}")
                if output:
                    server.answer(discover(1))
                    server.answer(call(1, "noisy"))
                server.close()
                self.assertEqual(self.clean_exit(server), [])

    def test_the_streams_may_be_files(self) -> None:
        folder = pathlib.Path(self.directory.name)
        requests, answers = folder / "requests", folder / "answers"
        requests.write_bytes(
            b"".join(line(call(n, "add", a=n, b=1)) for n in range(500))
        )
        with self.subTest("STD-25"):
            server = self.shell(f"$RUN < '{requests}' > '{answers}'")
            self.clean_exit(server)
            found = [json.loads(one) for one in answers.read_bytes().splitlines()]
            self.assertEqual(sorted(one["id"] for one in found), list(range(500)))

    def test_descriptors_that_do_not_block_work_too(self) -> None:
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        theirs.setblocking(False)
        server = Process([sys.executable, self.script()], stdin=theirs, stdout=theirs)
        self.addCleanup(server.stop)
        theirs.close()
        ours.settimeout(10)
        text = "x" * 3_000_000
        sender = threading.Thread(
            target=ours.sendall, args=(line(call(1, "echo", value=text)),)
        )
        sender.start()
        with ours.makefile("rb") as file:
            found = json.loads(file.readline())
        sender.join()
        self.assertEqual(found["result"]["structuredContent"]["value"], text)

    @spec("transports-01")
    def test_the_locale_does_not_matter(self) -> None:
        with self.subTest("STD-07"):
            server = self.start(
                env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
            )
            params = {"uri": "note://a", "_meta": META}
            message = mcp_ref.request_message("é", "resources/read", params)
            server.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
            (contents,) = server.answers("é")["é"]["result"]["contents"]
            self.assertEqual(contents["text"], "日本語 ✓ 🚀")

    def test_a_text_layer_that_translates_newlines_does_not_matter(self) -> None:
        with self.subTest("STD-03"):
            server = self.start(
                "\nimport io"
                "\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, newline='\\r\\n')"
                "\nsys.exit(server.run())\n"
            )
            server.answer(discover(1))  # Process.next() looks at the bytes

    def test_afterwards_the_standard_streams_work_and_a_second_run_too(self) -> None:
        again = (
            "\nfirst = server.run()"
            "\nprint('bye', first)"
            "\nprint('again', server.run(), repr(sys.stdin.read()), flush=True)\n"
        )
        server = self.start(again, start="import sys\nprint('hello', flush=True)\n")
        self.assertEqual(server.lines.get(timeout=10), b"hello\n")
        with self.subTest("STD-09"):
            server.answer(call(1, "noisy"))
            server.close()
            left = self.clean_exit(server)
            self.assertEqual(left, [b"bye 0\n", b"again 0 ''\n"])

    def test_requests_are_read_while_nobody_reads_the_answers(self) -> None:
        server = self.start(reading=False)
        text = "x" * 100_000
        messages = [call(n, "echo", value=text) for n in range(50)]
        writer = threading.Thread(target=server.send, args=messages, daemon=True)
        writer.start()
        writer.join(10)
        self.assertFalse(writer.is_alive(), "each waits for the other to read")
        server.start_reading()
        server.answers(*range(50))

    def test_a_signal_ends_the_server_while_nobody_reads_the_answers(self) -> None:
        server = self.start(reading=False)
        server.send(discover(1), call(2, "echo", value="x" * 1_000_000))
        assert server.popen.stdout is not None
        self.assertTrue(server.popen.stdout.readline().startswith(b'{"jsonrpc'))
        self.assertTrue(server.popen.stdout.read(1))  # the second answer has begun
        server.popen.send_signal(signal.SIGTERM)
        self.assertEqual(server.popen.wait(2), 143)

    # --- the command line -------------------------------------------------------------

    def serve(self, *arguments: str) -> Process:
        process = Process([sys.executable, str(PROGRAM), "serve", *arguments])
        self.addCleanup(process.stop)
        return process

    def test_the_built_in_demo(self) -> None:
        server = self.serve()
        server.answer(discover(1))
        cases = {"2 + 3 * 4": "14", "sin(30)": "0.5", "sqrt(16)": "4"}
        for expression, value in cases.items():
            with self.subTest(expression):
                message = call(2, "calculator_arithmetic", expression=expression)
                found = server.answer(message)["result"]["content"][0]["text"]
                self.assertEqual(found, value)
        server.close()
        self.assertEqual(self.clean_exit(server), [])

    def test_the_calculator_knows_arithmetic_only_and_cannot_grow(self) -> None:
        for expression, value in {
            "(1 + 2) * -3 ** 2 // 4 % 5": "3",
            "999999999999999": "999999999999999",
            "round(2 / 3, 2) + round(pi) + abs(-e)": "6.38828182845904",
            "round(1, -10 ** 9)": "0",  # as a whole number: 10 ** 10 ** 9 in memory
        }.items():
            with self.subTest(expression):
                self.assertEqual(mcp_ref._calculate(expression), value)
        for expression in (
            "9 ** 9 ** 9",
            "10 ** 400",
            "1 / 0",
            "'a' * 9",
            "True",
            "2 << 9",
            "pi.real",
            "[1][0]",
            "__import__('os')",
            "(lambda: 1)()",
            "abs(*[1])",
            "round(number=1)",
            "sqrt",
            "pi(2)",
            "1 +",
            "\ud800",
            "\0",
            "1 + " * 50 + "1",
        ):
            with self.subTest(expression), self.assertRaises(mcp_ref.ToolError):
                mcp_ref._calculate(expression)

    def test_a_closed_standard_error_does_not_turn_the_end_into_a_failure(self) -> None:
        command = f"exec {shlex.quote(sys.executable)} {shlex.quote(str(PROGRAM))} serve"
        done = subprocess.run(
            ["sh", "-c", f"{command} 2>&-"],
            input=json.dumps(discover(1)),
            stdout=subprocess.PIPE,
            text=True,
            timeout=30,
        )
        self.assertEqual(json.loads(done.stdout)["id"], 1)
        self.assertEqual(done.returncode, 0)

    def test_a_file_is_served_and_a_thread_left_behind_does_not_keep_it_alive(
        self,
    ) -> None:
        left = "\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
        server = self.serve(self.script(left))
        server.answer(call(1, "add", a=1, b=2))
        server.close()
        with self.subTest("STD-18"):
            self.assertEqual(self.clean_exit(server), [])

    def test_what_cannot_be_served_is_said_in_one_line(self) -> None:
        for arguments in (
            ["no-such-file.py"],
            [f"{self.script('')}:nothing"],
            [self.script("\nsecond = mcp_ref.Server('second')\n")],
        ):
            with self.subTest(arguments):
                server = self.serve(*arguments)
                status, left, errors = server.end()
                self.assertEqual((status, left), (2, []))
                self.assertEqual(len(errors.splitlines()), 1, errors)


# --- one script, three transports ---------------------------------------------------
#
# "->" begins a message of the client, "<-" what has to come back. What the client says
# gets jsonrpc and the required _meta; of one that comes back, what is written must be
# there. "$x" stands for whatever came, and for that again later; "..." for anything.

STOP = b"no line"
TRANSCRIPTS = {
    "requests one after the other": """
        -> {"id": 0, "method": "server/discover"}
        <- {"id": 0, "result": {"resultType": "complete", "supportedVersions":
           ["2026-07-28"]}}
        -> {"id": "", "method": "tools/call", "params": {"name": "add", "arguments":
           {"a": 1, "b": 2}}}
        <- {"id": "", "result": {"content": [{"type": "text", "text": "3"}],
           "structuredContent": 3}}
        -> {"id": 1180591620717411303424, "method": "resources/read", "params": {"uri":
           "note://a"}}
        <- {"id": 1180591620717411303424,
           "result": {"contents": [{"text": "日本語 ✓ 🚀"}]}}
        -> {"id": "x", "method": "prompts/get", "params": {"name": "ask", "arguments":
           {"name": "Ann"}}}
        <- {"id": "x", "result": {"messages": [{"role": "user", "content": {"text":
           "Ask Ann"}}]}}
    """,
    "errors": """
        -> {"id": 1, "method": "no/such"}
        <- {"id": 1, "error": {"code": -32601}}
        -> {"id": 2, "method": "tools/call", "params": {"name": "ghost", "arguments":
           {}}}
        <- {"id": 2, "error": {"code": -32602}}
        -> {"id": 3, "method": "tools/call", "params": {"name": "add", "arguments":
           {"a": "x", "b": 1}}}
        <- {"id": 3, "result": {"isError": true}}
        -> {"id": 4, "method": "resources/read", "params": {"uri": "note://zzz"}}
        <- {"id": 4, "error": {"code": -32602, "data": {"uri": "note://zzz"}}}
        -> {"id": 5, "method": "tools/call", "params": {"name": "leave", "arguments":
           {}}}
        <- {"id": 5, "result": {"isError": true}}
        -> {"id": 6, "method": "tools/list", "params": {"_meta":
           {"io.modelcontextprotocol/protocolVersion": "1900-01-01"}}}
        <- {"id": 6, "error": {"code": -32022, "data": {"requested": "1900-01-01"}}}
        -> {"id": 7, "method": "tools/list", "params": {"_meta":
           {"io.modelcontextprotocol/clientCapabilities": null}}}
        <- {"id": 7, "error": {"code": -32602}}
        -> {"id": 8, "method": "tools/call", "params": {"name": "greet", "arguments":
           {}}}
        <- {"id": 8, "error": {"code": -32021, "data": {"requiredCapabilities":
           {"elicitation": {"form": {}}}}}}
    """,
    "progress": """
        -> {"id": 1, "method": "tools/call", "params": {"name": "steps", "arguments":
           {"n": 2}, "_meta": {"progressToken": 1}}}
        <- {"method": "notifications/progress", "params": {"progressToken": 1,
           "progress": 1, "total": 2}}
        <- {"method": "notifications/progress", "params": {"progressToken": 1,
           "progress": 2}}
        <- {"id": 1, "result": {"content": [{"text": "done"}]}}
    """,
    "a question": """
        -> {"id": 1, "method": "tools/call", "params": {"name": "greet", "arguments":
           {}, "_meta": {"io.modelcontextprotocol/clientCapabilities": {"elicitation":
           {}}}}}
        <- {"id": 1, "result": {"resultType": "input_required", "inputRequests": {"q":
           {"method": "elicitation/create"}}, "requestState": "$state"}}
        -> {"id": 2, "method": "tools/call", "params": {"name": "greet", "arguments":
           {}, "requestState": "$state", "inputResponses": {"q": {"action": "accept",
           "content": {"name": "Ann"}}}, "_meta":
           {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}}}
        <- {"id": 2, "result": {"resultType": "complete", "content": [{"text":
           "Hello Ann"}]}}
    """,
    "a stream": """
        -> {"id": "L", "method": "subscriptions/listen", "params": {"notifications":
           {"toolsListChanged": true, "resourceSubscriptions": ["note://a",
           "nope://x"]}}}
        <- {"method": "notifications/subscriptions/acknowledged", "params": {"_meta":
           {"io.modelcontextprotocol/subscriptionId": "L"}, "notifications":
           {"toolsListChanged": true, "resourceSubscriptions": ["note://a"]}}}
        -> {"id": 2, "method": "tools/call", "params": {"name": "touch", "arguments":
           {"uri": "note://b"}}}
        <- {"id": 2, "result": {}}
        -> {"id": 3, "method": "tools/call", "params": {"name": "touch", "arguments":
           {"uri": "note://a"}}}
        <- {"id": 3, "result": {}}
        <- {"method": "notifications/resources/updated", "params": {"_meta":
           {"io.modelcontextprotocol/subscriptionId": "L"}, "uri": "note://a"}}
        -> {"id": 4, "method": "tools/call", "params": {"name": "grow", "arguments":
           {}}}
        <- {"method": "notifications/tools/list_changed", "params": {"_meta":
           {"io.modelcontextprotocol/subscriptionId": "L"}}}
        <- {"id": 4, "result": {}}
        -> {"method": "notifications/cancelled", "params": {"requestId": "L"}}
        -> {"id": 5, "method": "tools/call", "params": {"name": "echo", "arguments":
           {"value": 1}}}
        <- {"id": 5, "result": {}}
        -> {"id": 6, "method": "tools/call", "params": {"name": "grow", "arguments":
           {}}}
        <- {"id": 6, "result": {}}
    """,
    "cancelling": """
        -> {"id": 1, "method": "tools/call", "params": {"name": "hold", "arguments":
           {}}}
        -> {"id": 2, "method": "server/discover"}
        <- {"id": 2, "result": {}}
        -> {"method": "notifications/cancelled", "params": {"requestId": 1, "reason":
           "enough"}}
        -> {"id": 1, "method": "tools/call", "params": {"name": "add", "arguments":
           {"a": 2, "b": 2}}}
        <- {"id": 1, "result": {"content": [{"text": "4"}]}}
    """,
    "several at once": """
        -> {"id": 1, "method": "tools/call", "params": {"name": "block", "arguments":
           {}}}
        -> {"id": "1", "method": "tools/call", "params": {"name": "block", "arguments":
           {}}}
        -> {"id": 2, "method": "server/discover"}
        <- {"id": 2, "result": {}}
        -> {"id": 3, "method": "tools/call", "params": {"name": "release", "arguments":
           {}}}
        <- {"id": 1, "result": {"content": [{"text": "released"}]}}
        <- {"id": "1", "result": {"content": [{"text": "released"}]}}
        <- {"id": 3, "result": {}}
    """,
}


def fixture() -> Server:
    """Build the fixture in this process."""
    names: dict[str, Any] = {}
    exec(compile(FIXTURE, "fixture", "exec", flags=0, dont_inherit=True), names)
    found = names["server"]
    assert isinstance(found, Server)
    return found


def matches(pattern: JSON, found: JSON, known: dict[str, JSON]) -> bool:
    """Tell whether a message holds what a transcript says."""
    if pattern == "...":
        return True
    if isinstance(pattern, str) and pattern.startswith("$"):
        return same(known.setdefault(pattern, found), found)
    if isinstance(pattern, dict) and isinstance(found, dict):
        return all(
            k in found and matches(v, found[k], known) for k, v in pattern.items()
        )
    if isinstance(pattern, list) and isinstance(found, list):
        pairs = zip(pattern, found)
        return len(pattern) == len(found) and all(matches(*two, known) for two in pairs)
    return same(pattern, found)


def belongs_to(message: JSON) -> Any:
    """Return the id of the request that a message belongs to."""
    if "id" in message:
        found = message["id"]
    else:
        params = message["params"]
        found = params.get(
            "progressToken", params.get("_meta", {}).get(SUBSCRIPTION_ID)
        )
    return type(found), found


class Transcripts:
    """Runs each transcript over one transport, against a fresh fixture."""

    incoming: asyncio.Queue[JSON]

    async def connect(self) -> None:
        raise NotImplementedError

    async def send(self, message: JSON) -> None:
        raise NotImplementedError

    async def disconnect(self) -> None:
        raise NotImplementedError

    async def test_transcripts(self: Any) -> None:
        for name, text in TRANSCRIPTS.items():
            with self.subTest(name):
                self.incoming = asyncio.Queue()
                await self.connect()
                try:
                    await self.play(text)
                finally:
                    await self.disconnect()

    async def play(self: Any, text: str) -> None:
        waiting: list[JSON] = []
        known: dict[str, JSON] = {}
        for arrow, body in re.findall(
            r"^ *(->|<-)(.*(?:\n(?! *(?:->|<-)).*)*)", text, re.M
        ):
            message = json.loads(body)
            if arrow == "->":
                await self.send(self.complete(message, known))
                continue
            while not (
                mine := [m for m in waiting if belongs_to(m) == belongs_to(message)]
            ):
                waiting.append(await asyncio.wait_for(self.incoming.get(), 5))
            waiting.remove(mine[0])
            self.assertTrue(matches(message, mine[0], known), f"{body}\n{mine[0]}")
        await self.send(
            self.complete({"id": "end", "method": "server/discover"}, known)
        )
        while not waiting or belongs_to(waiting[-1]) != (str, "end"):
            waiting.append(await asyncio.wait_for(self.incoming.get(), 5))
        self.assertEqual(len(waiting), 1, waiting)

    def complete(self, message: JSON, known: dict[str, JSON]) -> JSON:
        """Add what each message has, and put in what came before."""
        text = json.dumps({"jsonrpc": "2.0", **message})
        for name, value in known.items():
            text = text.replace(json.dumps(name), json.dumps(value))
        message = json.loads(text)
        if "id" in message:
            params = message.setdefault("params", {})
            params["_meta"] = {**META, **params.get("_meta", {})}
        return message


class TranscriptsInMemory(Transcripts, AsyncCase):
    """The in-memory transport: the Exchange itself, through the real encoder."""

    async def connect(self) -> None:
        self.exchange = lint(fixture().handle)
        self.tasks: dict[Any, asyncio.Task[None]] = {}

    async def send(self, message: JSON) -> None:
        found = mcp_ref.read_message(mcp_ref.decode(mcp_ref.encode(message)))
        if isinstance(found, mcp_ref.Request):
            key = type(found.id), found.id
            self.tasks[key] = asyncio.create_task(self.run_one(found))
            await asyncio.sleep(0)
        elif found.method == "notifications/cancelled":
            id = found.params["requestId"]
            self.tasks[type(id), id].cancel()

    async def run_one(self, found: mcp_ref.Request) -> None:
        async def send(message: JSON) -> None:
            self.incoming.put_nowait(json.loads(mcp_ref.encode(message)))

        response = await self.exchange(found, send)
        self.incoming.put_nowait(json.loads(mcp_ref.encode_response(response)[0]))

    async def disconnect(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.wait(self.tasks.values())


class TranscriptsOverStdio(Transcripts, AsyncCase):
    """A real subprocess, one for all of them."""

    process: Process | None = None

    async def connect(self) -> None:
        if self.process is None:
            self.process = self.begin()
        self.reader = asyncio.create_task(self.read())

    def begin(self) -> Process:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = pathlib.Path(directory.name, "server.py")
        path.write_text(FIXTURE + RUN, encoding="utf-8")
        process = Process([sys.executable, str(path)])
        self.addCleanup(process.stop)
        return process

    async def read(self) -> None:
        assert self.process is not None
        while (data := await asyncio.to_thread(self.process.lines.get)) != STOP:
            self.incoming.put_nowait(json.loads(data))

    async def send(self, message: JSON) -> None:
        assert self.process is not None
        self.process.send(message)

    async def disconnect(self) -> None:
        assert self.process is not None
        self.process.lines.put(STOP)
        await self.reader


@unittest.skipUnless(hasattr(mcp_ref, "serve_http"), "without Streamable HTTP")
class TranscriptsOverHttp(Transcripts, AsyncCase):
    """A real socket: one connection per request."""

    async def connect(self) -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.server = asyncio.create_task(
            mcp_ref.serve_http(fixture(), "127.0.0.1", 0, on_ready=ready.set_result)
        )
        await asyncio.wait([self.server, ready], return_when=asyncio.FIRST_COMPLETED)
        self.address = (await ready).split("/")[2]
        self.open: dict[Any, tuple[asyncio.Task[None], asyncio.StreamWriter]] = {}

    async def send(self, message: JSON) -> None:
        params = message.get("params", {})
        if message["method"] == "notifications/cancelled":
            # Closing the stream is the cancellation.
            id = params["requestId"]
            task, writer = self.open.pop((type(id), id))
            task.cancel()
            writer.close()
            return
        body = json.dumps(message).encode()
        meta = params["_meta"]
        fields = {
            "Host": self.address,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Content-Length": len(body),
            "MCP-Protocol-Version": meta["io.modelcontextprotocol/protocolVersion"],
            "Mcp-Method": message["method"],
        }
        if "name" in params or "uri" in params:
            fields["Mcp-Name"] = params.get("name", params.get("uri"))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        host, port = self.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
        task = asyncio.create_task(self.read(reader, writer))
        self.open[type(message["id"]), message["id"]] = task, writer

    async def read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if "text/event-stream" not in head:
            (length,) = re.findall(r"content-length: (\d+)", head)
            self.incoming.put_nowait(json.loads(await reader.readexactly(int(length))))
        elif "transfer-encoding: chunked" in head:
            while size := int(await reader.readline(), 16):
                data = await reader.readexactly(size + 2)
                self.events(data[:-2].decode())
        else:
            self.events((await reader.read()).decode())
        writer.close()

    def events(self, text: str) -> None:
        for event in text.split("\n\n"):
            data = [one[5:] for one in event.splitlines() if one.startswith("data:")]
            if "".join(data).strip():
                self.incoming.put_nowait(json.loads("\n".join(data)))

    async def disconnect(self) -> None:
        for task, writer in self.open.values():
            task.cancel()
            writer.close()
        self.server.cancel()
        await asyncio.wait([self.server])


class ServeOptions(unittest.TestCase):
    """What `serve` is told, by hand and by a host's configuration."""

    def serve(self, *options: str, lines: str = "", **more: str) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "mcp_ref", "serve", *options],
            cwd=HERE,
            input=lines,
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, **more},
        )

    def test_options_that_make_no_sense_are_refused_in_one_line(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            broken = pathlib.Path(scratch) / "broken.py"
            broken.write_text("1 / 0\n", encoding="utf-8")
            for options, said in [
                (["--token-env", "HOME"], "need --http"),
                (["--allow-host", "a"], "need --http"),
                (["--key-env", "NOT_SET_AT_ALL"], "NOT_SET_AT_ALL is not set"),
                (["--http", "1", "--token-env", "NOT_SET_AT_ALL"], "is not set"),
                (["--http", "x"], "not PORT or HOST:PORT"),
                ([str(broken)], "ZeroDivisionError: division by zero"),
            ]:
                with self.subTest(options=options):
                    done = self.serve(*options)
                    self.assertEqual(done.returncode, 2)
                    self.assertIn(said, done.stderr.splitlines()[-1])
                    self.assertEqual(done.stdout, "")

    @spec("base-29", "mrtr-12", "mrtr-13")
    def test_processes_with_the_same_key_answer_each_others_questions(self) -> None:
        meta = {
            **META,
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        }
        params: JSON = {"name": "table_book", "arguments": {}, "_meta": meta}
        ask = json.dumps(mcp_ref.request_message(1, "tools/call", params))
        asked = self.serve("--key-env", "K", lines=ask, K="a shared secret")
        found = json.loads(asked.stdout)["result"]
        (key,) = found["inputRequests"]
        params["requestState"] = found["requestState"]
        answer = {"action": "accept", "content": {"day": "2026-12-24"}}
        params["inputResponses"] = {key: answer}
        retry = json.dumps(mcp_ref.request_message(2, "tools/call", params))
        for secret, good in (("a shared secret", True), ("another", False)):
            with self.subTest(good=good):
                done = self.serve("--key-env", "K", lines=retry, K=secret)
                self.assertEqual("result" in json.loads(done.stdout), good)

    def run_script(self, file: str, *command: str) -> Any:
        """Serve a file whose text is given, mcp_ref.py being the script."""
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch) / "given.py"
            path.write_text(textwrap.dedent(file), encoding="utf-8")
            return subprocess.run(
                [sys.executable, *command, "serve", str(path)],
                cwd=HERE,
                input="",
                capture_output=True,
                text=True,
                timeout=30,
            )

    def test_the_script_is_over_when_serving_begins(self) -> None:
        """So that CPython lets go of its syntax tree; not where others run it."""
        file = """
            import sys
            frame, held = sys._getframe(), False
            while frame:
                code = frame.f_code
                held |= code.co_filename.endswith("mcp_ref.py") and (
                    code.co_name == "<module>"
                )
                frame = frame.f_back
            raise LookupError(f"held: {held}")
        """
        other = "import runpy; runpy.run_path('mcp_ref.py', run_name='__main__')"
        for command, held in ((["mcp_ref.py"], False), (["-c", other], True)):
            with self.subTest(command=command):
                done = self.run_script(file, *command)
                self.assertEqual(done.returncode, 2)
                self.assertIn(f"held: {held}", done.stderr.splitlines()[-1])

    def test_what_ends_the_command_line_ends_the_process(self) -> None:
        for raised, status, said in [
            ("ZeroDivisionError('crashed')", 1, "ZeroDivisionError: crashed"),
            ("KeyboardInterrupt()", 130, ""),
            ("SystemExit(7)", 7, ""),
        ]:
            with self.subTest(raised=raised):
                file = f"""
                    import mcp_ref
                    class Ends(mcp_ref.Server):
                        def run(self, *arguments, **more):
                            raise {raised}
                    server = Ends("ends")
                """
                done = self.run_script(file, "mcp_ref.py")
                self.assertEqual(done.returncode, status)
                *_, last = ["", *done.stderr.splitlines()]
                self.assertEqual(last, said)
                self.assertEqual(done.stderr.count("Traceback"), bool(said))
                self.assertNotIn("hook", done.stderr.splitlines()[-1:])


# --- basic/transports/streamable-http, Request Metadata -----------------------------------


class HeaderMirroring(Case):
    """Standard and custom headers against the body, in memory."""

    ROUTE = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "on": {"type": "boolean", "x-mcp-header": "On"},
            "n": {"type": "integer", "x-mcp-header": "N"},
            "where": {
                "type": "object",
                "properties": {
                    "zone": {"type": ["string", "null"], "x-mcp-header": "zoNE"}
                },
            },
        },
    }

    def setUp(self) -> None:
        super().setUp()
        server = self.server

        @server.tool(schema=self.ROUTE)
        def route(**arguments: Any) -> str:
            return json.dumps(arguments, sort_keys=True)

        @server.tool(name="grüße an alle")
        def greet() -> str:
            return "hallo"

        @server.tool(name="=?base64?literal?=")
        def literal() -> str:
            return "literal"

        @server.resource("note://{name}")
        def note(name: str) -> str:
            return name

        @server.prompt
        def help() -> str:
            return "help"

        @server.complete("note://{name}", "name")
        def names(value: str) -> list[str]:
            return []

    def mirror(self, method: str, params: JSON) -> dict[str, str]:
        """Return the right standard headers for a request."""
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
        name = params.get({"resources/read": "uri"}.get(method, "name"))
        if isinstance(name, str):
            headers["mcp-name"] = mcp_ref.encode_header_value(name)
        return headers

    async def post(
        self, method: str, params: JSON = None, headers: JSON = None, **options: Any
    ) -> Reply:
        """Carry out a request with good headers, some of them replaced or removed."""
        params = params or {}
        merged = self.mirror(method, params) | (headers or {})
        given = {k: v for k, v in merged.items() if v is not None}
        return await self.call(method, params, headers=given, **options)

    async def route(self, arguments: JSON, **param: str) -> Reply:
        headers = {f"mcp-param-{name.lower()}": value for name, value in param.items()}
        params = {"name": "route", "arguments": arguments}
        return await self.post("tools/call", params, headers)

    def assertMismatch(self, reply: Reply, *words: str) -> None:
        """http-61, http-69: the code, the status that goes with it, and what differs."""
        self.assertEqual(reply.error["code"], -32020)
        self.assertEqual(mcp_ref.HTTP_STATUS[reply.error["code"]], 400)
        for word in words:
            self.assertIn(word, reply.error["message"])

    EVERY = [
        ("server/discover", {}),
        ("tools/list", {}),
        ("tools/call", {"name": "route"}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "note://a"}),
        ("prompts/list", {}),
        ("prompts/get", {"name": "help"}),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/resource", "uri": "note://{name}"},
                "argument": {"name": "name", "value": ""},
            },
        ),
    ]

    @spec("http-26", "http-32", "http-67", "transports-03")
    async def test_headers_that_say_what_the_body_says_are_accepted(self) -> None:
        for method, params in self.EVERY:
            with self.subTest(method):
                self.assertIn("result", (await self.post(method, params)).response)

    @spec("http-25", "http-31", "http-32", "http-69")
    async def test_each_standard_header_is_required_on_every_request(self) -> None:
        for method, params in self.EVERY:
            names = ["mcp-protocol-version", "mcp-method"]
            if {"name", "uri"} & params.keys():
                names.append("mcp-name")
            for name in names:
                with self.subTest(method, missing=name):
                    reply = await self.post(method, params, {name: None})
                    self.assertMismatch(reply, "missing")

    @spec("http-31", "versioning-10")
    async def test_who_sends_no_version_header_learns_the_versions(self) -> None:
        for method in ("tools/list", "initialize", "no/such"):
            with self.subTest(method):
                reply = await self.post(method, {}, {"mcp-protocol-version": None})
                self.assertMismatch(reply, "MCP-Protocol-Version", "2026-07-28")
                old = mcp_ref.request_message(1, method, {})  # knows no _meta either
                headers = {"mcp-method": method}
                found = mcp_ref.read_message(old, headers=headers)
                reply = await exchange(self.server, found)
                self.assertMismatch(reply, "MCP-Protocol-Version", "2026-07-28")

    @spec("http-26", "http-27", "http-60", "http-67", "http-69")
    async def test_headers_that_differ_from_the_body_are_refused(self) -> None:
        bad = {
            "mcp-protocol-version": ("2025-11-25", "2026-07-28 ", "", "2026-07-28, a"),
            "mcp-method": ("tools/list", "Tools/Call", "TOOLS/CALL", "", "tools/call2"),
            "mcp-name": ("other", "Route", "route ", "", "route,route", '"route"'),
        }
        for name, values in bad.items():
            for value in values:
                if value == "route ":  # optional whitespace is no part of the value
                    continue
                with self.subTest(name, value=value):
                    params = {"name": "route", "arguments": {}}
                    reply = await self.post("tools/call", params, {name: value})
                    self.assertMismatch(reply)

    @spec("http-27", "http-28", "versioning-01")
    async def test_headers_are_compared_before_the_version_is_judged(self) -> None:
        old = {"io.modelcontextprotocol/protocolVersion": "2025-11-25"}
        differs = await self.post("tools/list", meta=old)
        self.assertMismatch(differs, "2026-07-28", "2025-11-25")
        agrees = await self.post(
            "tools/list", None, {"mcp-protocol-version": "2025-11-25"}, meta=old
        )
        self.assertEqual(agrees.error["code"], -32022)
        self.assertEqual(agrees.error["data"]["supported"], ["2026-07-28"])
        self.assertEqual(agrees.error["data"]["requested"], "2025-11-25")
        self.assertEqual(mcp_ref.HTTP_STATUS[-32022], 400)

    @spec("base-52", "base-53")
    async def test_a_body_without_meta_is_the_fault_of_the_body(self) -> None:
        for meta in ({}, {"io.modelcontextprotocol/protocolVersion": 5}, None, "x"):
            with self.subTest(meta=meta):
                message = mcp_ref.request_message(1, "tools/list", {"_meta": meta})
                found = mcp_ref.read_message(
                    message, headers=self.mirror("tools/list", {})
                )
                reply = await exchange(self.server, found)
                self.assertEqual(reply.error["code"], -32602)

    @spec("http-29")
    async def test_an_unknown_method_is_404_once_its_headers_agree(self) -> None:
        reply = await self.post("tools/lisp")
        self.assertEqual(reply.error["code"], -32601)
        self.assertEqual(mcp_ref.HTTP_STATUS[-32601], 404)
        self.assertMismatch(
            await self.post("tools/lisp", {}, {"mcp-method": "tools/list"})
        )

    async def test_without_headers_nothing_is_compared(self) -> None:
        """stdio has none, and `headers=None` says so; an empty mapping is HTTP."""
        self.assertIn("eu", (await self.tool("route", {"region": "eu"})).text)
        self.assertMismatch(await self.call("tools/list", headers={}))

    async def test_mcp_name_counts_only_where_it_mirrors_something(self) -> None:
        for method, params in self.EVERY:
            if {"name", "uri"} & params.keys():
                continue
            with self.subTest(method):
                for extra in ({"name": "x"}, {"uri": "x"}, {"": "x"}):
                    reply = await self.call(
                        method,
                        params | extra,
                        headers=self.mirror(method, {}) | {"mcp-name": "whatever"},
                    )
                    self.assertIn("result", reply.response)

    async def test_a_name_that_is_no_string_is_the_fault_of_the_body(self) -> None:
        for params in ({}, {"name": 5}, {"name": None}, {"name": ["route"]}):
            with self.subTest(params):
                reply = await self.post("tools/call", params, {"mcp-name": None})
                self.assertEqual(reply.error["code"], -32602)

    @spec("http-51", "http-53", "http-54", "http-60", "http-70")
    async def test_an_encoded_name_is_decoded_before_it_is_compared(self) -> None:
        """UNTESTED B4."""
        cases = [
            ("tools/call", "name", "grüße an alle", "=?base64?Z3LDvMOfZSBhbiBhbGxl?="),
            ("tools/call", "name", "route", "=?base64?cm91dGU=?="),
            ("prompts/get", "name", "help", "=?base64?aGVscA==?="),
            ("resources/read", "uri", "note://a", "=?base64?bm90ZTovL2E=?="),
        ]
        for method, key, name, header in cases:
            with self.subTest(header):
                reply = await self.post(method, {key: name}, {"mcp-name": header})
                self.assertIn("result", reply.response)
                other = await self.post(method, {key: name + "x"}, {"mcp-name": header})
                self.assertMismatch(other)

    @spec("http-52", "http-54", "http-69", "http-70")
    async def test_a_name_in_bad_base64_is_refused(self) -> None:
        for header in (
            "=?BASE64?cm91dGU=?=",  # http-52: the marker is lower case
            "=?base64?cm91dGU?=",  # no padding
            "=?base64?cm91dGU==?=",  # too much of it
            "=?base64?cm91 dGU=?=",
            "=?base64?cm91dGV=?=",  # bits behind the end
            "=?base64?cm-1dGU=?=",  # the alphabet of URLs
            "=?base64?/w==?=",  # not UTF-8
            "=?base64?cm91dGU=",
            "cm91dGU=?=",
            "route\x01",
            "rout\xe9",
        ):
            with self.subTest(header):
                reply = await self.post(
                    "tools/call", {"name": "route"}, {"mcp-name": header}
                )
                self.assertMismatch(reply, "Mcp-Name")

    @spec("http-55")
    async def test_a_name_that_looks_encoded_must_come_encoded(self) -> None:
        params = {"name": "=?base64?literal?="}
        self.assertEqual((await self.post("tools/call", params)).text, "literal")
        plain = {"mcp-name": "=?base64?literal?="}
        self.assertMismatch(await self.post("tools/call", params, plain))

    # --- the encoding of values -----------------------------------------------------------

    ENCODED = [  # the table of the specification, and the edges around it
        ("us-west1", "us-west1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("=?base64?", "=?base64?"),
        ("=?BASE64?a?=", "=?BASE64?a?="),
        ("a\tb c", "a\tb c"),
        ("\ta", "=?base64?CWE=?="),
        ("a\x7f", "=?base64?YX8=?="),
        ("a\r\nEvil: 1", "=?base64?YQ0KRXZpbDogMQ==?="),
        ("", ""),
        ("\x00", "=?base64?AA==?="),
        ("ÿ", "=?base64?w78=?="),
        (42, "42"),
        (-7, "-7"),
        (0, "0"),
        (2**53 - 1, "9007199254740991"),
        (True, "true"),
        (False, "false"),
    ]

    @spec("http-49", "http-50", "http-52", "http-55")
    def test_values_are_written_as_the_specification_shows(self) -> None:
        for value, header in self.ENCODED:
            with self.subTest(value=value):
                self.assertEqual(mcp_ref.encode_header_value(value), header)

    @spec("http-53", "http-54")
    def test_what_was_written_is_read_back(self) -> None:
        chance = random.Random(7)
        texts = [value for value, _ in self.ENCODED if isinstance(value, str)]
        alphabet = 'aZ0 \t=?base64,:;%"\\\r\n\x00\x7fäß世\U0001f600'
        texts += ["".join(chance.choices(alphabet, k=n % 12)) for n in range(500)]
        for text in texts:
            with self.subTest(text):
                header = mcp_ref.encode_header_value(text)
                self.assertRegex(header, r"\A[\t -~]*\Z")
                self.assertEqual(header, header.strip())
                self.assertEqual(mcp_ref.decode_header_value(header), text)

    @spec("http-53", "http-59")
    def test_headers_that_cannot_be_read_raise(self) -> None:
        for header in (
            "a\x01b",
            "ü",
            "a\x7f",
            "a\nb",
            "=?base64?a?=",
            "=?base64?YQ?=",
            "=?base64?YR==?=",
            "=?base64?Y Q==?=",
            "=?base64?YQ==\t?=",
            "=?base64?_w==?=",
            "=?base64?/w==?=",
            "=?base64?7aCA?=",  # a surrogate, which no UTF-8 holds
        ):
            with self.subTest(header), self.assertRaises(ValueError):
                mcp_ref.decode_header_value(header)

    # --- custom headers -------------------------------------------------------------------

    @spec("http-60", "http-61", "http-62", "http-65", "tools-28")
    async def test_arguments_and_their_headers_must_agree(self) -> None:
        """XMH-02, UNTESTED B1."""
        good = [
            ({}, {}),
            ({"region": "us"}, {"Region": "us"}),
            ({"region": ""}, {"Region": ""}),
            ({"region": "ü "}, {"Region": "=?base64?w7wg?="}),
            ({"region": "us"}, {"Region": "=?base64?dXM=?="}),
            ({"region": "null"}, {"Region": "null"}),
            ({"on": True}, {"On": "true"}),
            ({"on": False}, {"On": "false"}),
            ({"n": -7}, {"N": "-7"}),
            ({"where": {"zone": "a"}}, {"Zone": "a"}),
            ({"where": {}}, {}),
        ]
        for arguments, headers in good:
            with self.subTest(arguments=arguments, headers=headers):
                reply = await self.route(arguments, **headers)
                self.assertEqual(json.loads(reply.text), arguments)
        bad = [
            ({"region": "us"}, {}),
            ({}, {"Region": "us"}),
            ({}, {"Region": ""}),
            ({"region": "us"}, {"Region": "US"}),
            ({"region": "us"}, {"Region": "eu"}),
            ({"region": "us"}, {"Region": ""}),
            ({"region": ""}, {}),
            ({"on": True}, {"On": "True"}),
            ({"on": True}, {"On": "1"}),
            ({"on": True}, {"On": "false"}),
            ({"on": False}, {"On": ""}),
            ({"where": {"zone": "a"}}, {}),
            ({"where": {"zone": "a"}}, {"Zone": "b"}),
            ({"where": "a"}, {"Zone": "a"}),
            ({"zone": "a"}, {"Zone": "a"}),
            ({"region": {}}, {"Region": "{}"}),
        ]
        for arguments, headers in bad:
            with self.subTest(arguments=arguments, headers=headers):
                self.assertMismatch(
                    await self.route(arguments, **headers), "Mcp-Param-"
                )

    @spec("http-63", "http-64")
    async def test_no_header_is_expected_for_what_is_null_or_absent(self) -> None:
        """UNTESTED B6."""
        for arguments in ({}, {"where": {"zone": None}}, {"where": {}}):
            with self.subTest(arguments=arguments):
                reply = await self.route(arguments)
                self.assertEqual(json.loads(reply.text), arguments)
        for header in ("null", "None", "", "a"):
            with self.subTest(header):
                arguments = {"where": {"zone": None}}
                self.assertMismatch(await self.route(arguments, Zone=header))

    @spec("http-42", "http-68", "tools-27")
    async def test_integers_are_compared_as_numbers_and_kept_safe(self) -> None:
        """XMH-03, UNTESTED B6."""
        top = 2**53 - 1
        for value, header in (
            (42, "42"),
            (42, "42.0"),
            (42.0, "42"),
            (42, "42.000"),
            (0, "0"),
            (0, "-0"),
            (top, str(top)),
            (-top, str(-top)),
        ):
            with self.subTest(value=value, header=header):
                reply = await self.route({"n": value}, N=header)
                self.assertEqual(json.loads(reply.text), {"n": value})
        for value, header in (
            (42, "43"),
            (42, "42.5"),
            (42, ""),
            (42, "0x2A"),
            (42, "NaN"),
            (42, "Infinity"),
            (42, "4_2"),
            (42, "٤٢"),
            (42, "forty-two"),
            (1, "9" * 5000),
            (1, "1." + "0" * 5000),
            (top + 1, str(top + 1)),
            (-top - 1, str(-top - 1)),
            (top, str(top - 1)),
            (10**400, "1" + "0" * 400),
        ):
            with self.subTest(value=value, header=header[:20]):
                self.assertMismatch(await self.route({"n": value}, N=header))

    @spec("http-60")
    async def test_arguments_of_the_wrong_type_are_told_to_the_model(self) -> None:
        """The header agrees, so what is wrong is the argument: an isError text."""
        for arguments, headers in (
            ({"n": "5"}, {"N": "5"}),
            ({"n": True}, {"N": "true"}),
            ({"n": 1.5}, {"N": "1.5"}),
            ({"on": "true"}, {"On": "true"}),
            ({"region": 5}, {"Region": "5"}),
        ):
            with self.subTest(arguments=arguments):
                reply = await self.route(arguments, **headers)
                if arguments == {"n": 1.5}:  # no header can say that: refused before
                    self.assertMismatch(reply)
                    continue
                self.assertTrue(reply.result["isError"])
                self.assertIn(next(iter(arguments)), reply.text)

    @spec("http-58", "http-59")
    async def test_unknown_headers_are_ignored_and_known_ones_read_strictly(
        self,
    ) -> None:
        """XMH-04."""
        reply = await self.route({}, Unknown="x", Other="a\x01b")
        self.assertEqual(json.loads(reply.text), {})
        for header in ("a\x01b", "\xc3\xbc", "ü", "=?base64?YQ?=", "=?base64?/w==?="):
            with self.subTest(header):
                self.assertMismatch(await self.route({"region": "a"}, Region=header))
                self.assertMismatch(await self.route({}, Region=header))

    @spec("http-54", "http-60", "http-70")
    async def test_encoded_parameters_are_read_strictly(self) -> None:
        """UNTESTED B5."""
        raw = "r" * 2
        right = base64.b64encode(raw.encode()).decode()
        for text in (right, right.rstrip("="), right + "=", right[:-1] + "\n", " "):
            with self.subTest(text):
                reply = await self.route({"region": raw}, Region=f"=?base64?{text}?=")
                if text == right:
                    self.assertIn("result", reply.response)
                else:
                    self.assertMismatch(reply)

    @spec("http-66")
    async def test_names_of_headers_have_no_case(self) -> None:
        """Transports hand over lower case; the annotation may be written as one likes."""
        reply = await self.route({"where": {"zone": "a"}}, ZONE="a")
        self.assertIn("result", reply.response)

    # --- annotations that are refused when the tool is registered -------------------------

    @spec(
        *("http-37", "http-38", "http-39", "tools-22", "tools-23", "tools-24"),
        *("http-40", "http-41", "tools-25", "tools-26"),
    )
    def test_annotations_that_break_a_rule_are_refused(self) -> None:
        """XMH-01."""
        text = {"type": "string"}

        def named(name: JSON) -> JSON:
            return {"a": {**text, "x-mcp-header": name}}

        def typed(kind: JSON) -> JSON:
            return {"a": {"type": kind, "x-mcp-header": "A"}}

        for properties in (
            *map(named, ("", "a b", "a:b", "x\r\nEvil: 1", "a\n", "ä", "a,b", "a/b")),
            *map(named, (5, None, True, ["A"], {"name": "A"}, "a\x00", " a", "(a)")),
            *map(typed, ("number", "object", "array", "null", ["string", "integer"])),
            *map(typed, (["null"], ["number", "null"], ["string", "null", "integer"])),
            {"a": {"x-mcp-header": "A"}},
            {"a": {"enum": ["x"], "x-mcp-header": "A"}},
            named("Region") | {"b": {**text, "x-mcp-header": "Region"}},
            named("Region") | {"b": {**text, "x-mcp-header": "REGION"}},
            named("R")
            | {
                "b": {
                    "type": "object",
                    "properties": {"c": {**text, "x-mcp-header": "r"}},
                }
            },
        ):
            with self.subTest(properties):
                self.assertRefused({"type": "object", "properties": properties})

    @spec("http-43", "http-44", "tools-28")
    def test_annotations_off_the_path_of_properties_are_refused(self) -> None:
        mirrored = {"type": "string", "x-mcp-header": "A"}
        inside = {"type": "object", "properties": {"a": mirrored}}
        for schema in (
            {"x-mcp-header": "A"},
            {"properties": {"l": {"type": "array", "items": mirrored}}},
            {"properties": {"l": {"type": "array", "items": inside}}},
            {"properties": {"l": {"type": "array", "prefixItems": [mirrored]}}},
            {"properties": {"l": {"type": "array", "contains": mirrored}}},
            {"properties": {"l": {"type": "array", "unevaluatedItems": mirrored}}},
            {"properties": {"l": {"allOf": [mirrored]}}},
            {"allOf": [inside]},
            {"anyOf": [inside, True]},
            {"oneOf": [inside]},
            {"not": {"not": inside}},
            {"if": inside},
            {"then": inside},
            {"else": inside},
            {"$defs": {"d": mirrored}},
            {"$defs": {"d": mirrored}, "properties": {"a": {"$ref": "#/$defs/d"}}},
            {"patternProperties": {"^a": mirrored}},
            {"additionalProperties": mirrored},
            {"propertyNames": mirrored},
            {"unevaluatedProperties": mirrored},
            {"dependentSchemas": {"a": inside}},
            {"definitions": {"d": mirrored}},
        ):
            with self.subTest(schema):
                self.assertRefused({"type": "object", **schema})

    def assertRefused(self, schema: JSON) -> None:
        server = Server("t")
        with self.assertRaisesRegex(ValueError, "x-mcp-header"):
            server.tool(lambda **arguments: None, name="t", schema=schema)
        self.assertNotIn("tools", server.capabilities)

    @spec("http-37", "http-43")
    def test_annotations_that_keep_the_rules_are_found_with_their_path(self) -> None:
        found = {one.path: one for one in mcp_ref.mirrored_parameters(self.ROUTE)}
        self.assertEqual(
            {path: (one.name, one.type) for path, one in found.items()},
            {
                ("region",): ("Region", "string"),
                ("on",): ("On", "boolean"),
                ("n",): ("N", "integer"),
                ("where", "zone"): ("zoNE", "string"),
            },
        )
        every = "!#$%&'*+-.^_`|~09azAZ"  # tchar
        schema = {"properties": {"a": {"type": "string", "x-mcp-header": every}}}
        self.assertEqual(mcp_ref.mirrored_parameters(schema)[0].name, every)

    def test_data_that_looks_like_an_annotation_is_none(self) -> None:
        looks = {"x-mcp-header": "a b"}
        for schema in (
            {"properties": {"a": {"const": looks}}},
            {"properties": {"a": {"enum": [looks]}}},
            {"properties": {"a": {"default": looks, "examples": [looks]}}},
            {"properties": {"x-mcp-header": {"type": "string"}}},
            {"properties": {"properties": {"type": "string"}}},
            True,
            {},
        ):
            with self.subTest(schema):
                self.assertEqual(mcp_ref.mirrored_parameters(schema), ())

    @spec("http-34", "tools-13")
    async def test_an_annotation_may_come_from_a_type_hint(self) -> None:
        server = self.server

        @server.tool
        def place(
            region: Annotated[str, {"x-mcp-header": "Region"}], n: int = 0
        ) -> str:
            return region

        (wire,) = [one for one in await self.listed() if one["name"] == "place"]
        self.assertEqual(
            wire["inputSchema"]["properties"]["region"]["x-mcp-header"], "Region"
        )
        params = {"name": "place", "arguments": {"region": "eu"}}
        good = await self.post("tools/call", params, {"mcp-param-region": "eu"})
        self.assertEqual(good.text, "eu")
        self.assertMismatch(await self.post("tools/call", params))

    async def listed(self) -> list[JSON]:
        tools: list[JSON] = (await self.call("tools/list")).result["tools"]
        return tools


logging.getLogger("asyncio").setLevel(logging.ERROR)


# --- support --------------------------------------------------------------------------

HTTP_VERSION = "2026-07-28"
BASE_META = {
    "io.modelcontextprotocol/protocolVersion": HTTP_VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
BASE = {
    "Host": "127.0.0.1:8000",
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": HTTP_VERSION,
}


def message(method: str = "echo", id: Any = 1, **params: Any) -> JSON:
    """Build a request; without id (None) a notification."""
    found = {
        "jsonrpc": "2.0",
        "method": method,
        "params": {**params, "_meta": BASE_META},
    }
    return found if id is None else {**found, "id": id}


def http_request(
    body: Any = b"",
    *,
    method: Any = "POST",
    target: Any = "/mcp",
    lines: Any = (),
    **fields: Any,
) -> bytes:
    """Build a request; fields replace those of BASE, None drops one; _ stands for -."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    found: dict[str, str | None] = dict(BASE)
    found["Content-Length"] = str(len(body))
    for name, value in fields.items():
        name = name.replace("_", "-")
        same = next((key for key in found if key.lower() == name.lower()), name)
        found[same] = value
    head = [f"{method} {target} HTTP/1.1"]
    head += [f"{name}: {value}" for name, value in found.items() if value is not None]
    text = "\r\n".join([*head, *lines]) + "\r\n\r\n"
    return text.encode("latin-1") + bytes(body)


def as_chunks(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """Frame parts as chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


class HttpResponse:
    """What came back for one request."""

    def __init__(self, status: int, fields: list[tuple[str, str]]) -> None:
        self.status = status
        self.fields = fields
        self.body = b""

    def __getitem__(self, name: str) -> str | None:
        found = [value for key, value in self.fields if key == name.lower()]
        assert len(found) < 2, found
        return found[0] if found else None

    @property
    def json(self) -> JSON:
        return json.loads(self.body)

    @property
    def events(self) -> list[JSON]:
        return [
            json.loads(line[6:])
            for line in self.body.decode().split("\n")
            if line.startswith("data: ")
        ]


class RawPeer:
    """One raw connection to a server."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self.reader: asyncio.StreamReader = reader
        self.writer: asyncio.StreamWriter = writer

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def head(self) -> HttpResponse:
        """Read a status line and fields."""
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.rstrip("\r\n").split("\r\n")
        pairs = [line.split(": ", 1) for line in lines]
        assert first.startswith("HTTP/1.1 "), first
        return HttpResponse(int(first[9:12]), [(k.lower(), v) for k, v in pairs])

    async def answer(self, *, bodiless: bool = False) -> HttpResponse:
        """Read a whole answer."""
        found = await self.head()
        if found["transfer-encoding"] == "chunked":
            while chunk := await self.chunk():
                found.body += chunk
        elif found["content-length"] is not None and not bodiless:
            found.body = await self.reader.readexactly(int(found["content-length"]))
        elif found["connection"] == "close" and not bodiless:
            found.body = await self.reader.read()
        return found

    async def chunk(self) -> bytes:
        """Read one chunk."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def ask(self, *data: bytes) -> HttpResponse:
        """Send a request and read its answer."""
        self.send(*data)
        return await self.answer()

    async def ended(self) -> bool:
        """Wait for the server to close; tell whether nothing else came before."""
        with contextlib.suppress(ConnectionError):
            return not await self.reader.read()
        return True

    def reset(self) -> None:
        """Close with RST."""
        linger = struct.pack("ii", 1, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    @property
    def socket(self) -> socket.socket:
        found: socket.socket = self.writer.get_extra_info("socket")
        return found


class Script:
    """An Exchange for tests, driven by the method's name."""

    def __init__(self) -> None:
        self.requests: list[mcp_ref.Request] = []
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.ended = asyncio.Event()
        self.go = asyncio.Event()
        self.sends: list[Any] = []
        self.subscriptions = Streams()

    async def __call__(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        self.requests.append(request)
        self.started.set()
        self.sends.append(send)
        try:
            found = await getattr(self, request.method)(request, send)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.ended.set()
        if isinstance(found, mcp_ref.McpError):
            return mcp_ref.error_response(request.id, found)
        return mcp_ref.result_response(request.id, {"resultType": "complete", **found})

    async def echo(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        return {"echo": request.params.get("text")}

    async def wait(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        await self.go.wait()
        return {}

    async def hold(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        await asyncio.sleep(30)
        return {}

    async def progress(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        for number in range(request.params.get("count", 2)):
            await send(mcp_ref.notification("notifications/progress", {"n": number}))
        if request.params.get("hold"):
            await asyncio.sleep(30)
        return {}

    async def flood(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        while True:
            text = "x" * 65536
            await send(mcp_ref.notification("notifications/message", {"data": text}))
            self.flooded = getattr(self, "flooded", 0) + 1

    async def big(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        return {"data": "x" * request.params["size"]}

    async def fail(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        return mcp_ref.McpError("no", request.params["data"], request.params["code"])

    async def crash(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        raise RuntimeError("secret detail")

    async def refuse(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        raise mcp_ref.TooManyRequests("slow down", 7)


class Streams(mcp_ref.Subscriptions):
    """The open streams of a Script."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0
        self.over = asyncio.Event()

    def end(self) -> None:
        self.over.set()


async def listen(script: Script, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
    """Stand in for subscriptions/listen: acknowledge, then wait for the end."""
    script.subscriptions.open += 1
    try:
        name = "notifications/subscriptions/acknowledged"
        await send(mcp_ref.notification(name, {}))
        await script.subscriptions.over.wait()
        return {"ended": True}
    finally:
        script.subscriptions.open -= 1


setattr(Script, "subscriptions/listen", listen)


class HttpCase(AsyncCase):
    """A server for each test; `self.script` is its Exchange."""

    async def asyncSetUp(self) -> None:
        self.script = Script()
        self.port = 0
        self.url = ""
        self.peers: list[RawPeer] = []
        self.task: asyncio.Task[None] | None = None
        self.site: Any = None  # what the server's connections share
        self.ready = asyncio.Event()

    async def asyncTearDown(self) -> None:
        for peer in self.peers:
            peer.writer.close()
        await self.stop()

    async def serve(self, exchange: Any = None, **options: Any) -> None:
        """Start the server."""

        def ready(url: str) -> None:
            self.url = url
            self.port = int(url.rsplit(":", 1)[1].split("/")[0])
            self.ready.set()

        self.ready.clear()

        def make_site(*arguments: Any) -> Any:
            self.site = real(*arguments)
            return self.site

        exchange = self.script if exchange is None else exchange
        options.setdefault("port", 0)
        real = mcp_ref._HttpSite
        with mock.patch.object(mcp_ref, "_HttpSite", make_site):
            serving = serve_http(exchange, on_ready=ready, **options)
            self.task = asyncio.create_task(serving)
            waiting = asyncio.create_task(self.ready.wait())
            await asyncio.wait({self.task, waiting}, return_when="FIRST_COMPLETED")
        if self.task.done():
            waiting.cancel()
            self.task.result()

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
            self.task = None

    async def peer(self, host: str = "127.0.0.1", **options: Any) -> RawPeer:
        """Connect."""
        opened = await asyncio.open_connection(host, self.port, **options)
        self.peers.append(RawPeer(*opened))
        return self.peers[-1]

    async def ask(self, *data: bytes) -> HttpResponse:
        """Carry out one request on a connection of its own."""
        peer = await self.peer()
        found: HttpResponse = await within(peer.ask(*data))
        peer.writer.close()
        return found

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for a condition."""
        async with asyncio.timeout(5):
            while not true():
                await asyncio.sleep(0.001)

    async def alive(self) -> None:
        """Check the standing post-condition: the next good request is answered."""
        found = await within(self.ask(http_request(message("echo", text="alive"))), 1)
        self.assertEqual(found.json["result"]["echo"], "alive")


async def within(awaitable: Any, seconds: float = 5.0) -> Any:
    """Wait, but not for ever."""
    async with asyncio.timeout(seconds):
        return await awaitable


# --- 4 transports: Streamable HTTP, the endpoint's rules ------------------------------


class HttpRules(HttpCase):
    """Request line and header fields."""

    @spec("http-01", "http-07", "http-16")
    async def test_a_request_is_answered_with_one_json_object(self) -> None:
        await self.serve()
        found = await self.ask(http_request(message("echo", text="é", id="a")))
        self.assertEqual(found.status, 200)
        self.assertEqual(found["content-type"], "application/json")
        self.assertIsNotNone(found["date"])
        self.assertEqual(found.json["id"], "a")
        self.assertEqual(found.json["result"]["echo"], "é")
        self.assertEqual(self.url, f"http://127.0.0.1:{self.port}/mcp")

    async def test_the_request_carries_what_the_transport_knows(self) -> None:
        await self.serve()
        fields = {"X_Multi": "a", "authorization": "Bearer secret"}
        await self.ask(http_request(message(), lines=("X-Multi: b",), **fields))
        request = self.script.requests[0]
        assert request.headers is not None
        self.assertEqual(request.headers["x-multi"], "a, b")
        self.assertEqual(request.headers["mcp-protocol-version"], HTTP_VERSION)
        self.assertEqual(request.peer, "127.0.0.1")
        self.assertNotIn("secret", repr(request))
        with self.assertRaises(TypeError):
            request.headers["x"] = "1"  # type: ignore[index]

    @spec("http-02", "http-03", "http-04")
    async def test_an_origin_is_parsed_and_a_wrong_one_refused(self) -> None:
        # HTP-02, HTP-03
        await self.serve(allowed_origins=["https://App.example:443/"])
        refused = [
            "null",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example:8000",
            "http://evil.example/?x=http://localhost",
            "http://evil.example#http://localhost",
            "http://localhost@evil.example",
            "http://localhost:8000:80",
            "http://localhost:99999999",
            "ftp://localhost",
            "localhost",
            "http://",
            "",
            "https://app.example:8443",
            "http://app.example",
            "https://app.example, http://localhost",
            "https://xapp.example",
        ]
        for origin in refused:
            for method in ("POST", "GET", "OPTIONS", "DELETE", "BREW"):
                with self.subTest(origin=origin, method=method):
                    data = http_request(message(), method=method, Origin=origin)
                    found = await self.ask(data)
                    self.assertEqual(found.status, 403)
                    self.assertIsNone(found["access-control-allow-origin"])
                    self.assertNotIn("id", found.json)
                    self.assertIn("allowed_origins", found.json["error"]["message"])
        self.assertEqual(self.script.requests, [])
        allowed: list[str | None] = [
            None,
            "http://localhost",
            "http://localhost:5173",
            "https://127.0.0.1:8443",
            "http://[::1]:3000",
            "https://app.example",
        ]
        for name in allowed:
            with self.subTest(origin=name):
                found = await self.ask(http_request(message(), Origin=name))
                self.assertEqual(found.status, 200)
                self.assertEqual(found["access-control-allow-origin"], name)

    @spec("http-02")
    async def test_null_passes_only_if_listed(self) -> None:
        # HTP-03
        await self.serve(allowed_origins=["null"])
        found = await self.ask(http_request(message(), Origin="null"))
        self.assertEqual(found.status, 200)

    @spec("http-02", "http-05")
    async def test_on_loopback_only_loopback_names_pass_as_host(self) -> None:
        # HTP-01
        await self.serve(allowed_hosts=["tools.example.com", "other.example:8443"])
        good = ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]", "[::1]:9"]
        good += ["tools.example.com", "Tools.Example.com:99", "other.example:8443"]
        for host in good:
            with self.subTest(host=host):
                found = await self.ask(http_request(message(), Host=host))
                self.assertEqual(found.status, 200)
        bad = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example"]
        bad += ["other.example", "xtools.example.com", "0.0.0.0", "::1.evil"]
        for host in bad:
            for method in ("POST", "GET", "OPTIONS", "DELETE"):
                with self.subTest(host=host, method=method):
                    # a fine Origin does not help
                    data = http_request(
                        message(), method=method, Host=host, Origin="http://localhost"
                    )
                    found = await self.ask(data)
                    self.assertEqual(found.status, 400 if host == "::1.evil" else 403)
                    if found.status == 403:
                        why = found.json["error"]["message"]
                        self.assertIn("allowed_hosts", why)

    @spec("http-05")
    async def test_elsewhere_every_host_passes_unless_some_are_listed(self) -> None:
        # HTP-01
        with self.assertLogs("mcp_ref", "WARNING") as logs:
            await self.serve(host="0.0.0.0")
        self.assertIn("allowed_hosts", logs.output[0])
        found = await self.ask(http_request(message(), Host="tools.example.com"))
        self.assertEqual(found.status, 200)
        # there, loopback is just another origin
        found = await self.ask(http_request(message(), Origin="http://localhost"))
        self.assertEqual(found.status, 403)
        self.assertIn("http://localhost:", self.url)
        await self.stop()
        with self.assertNoLogs("mcp_ref", "WARNING"):
            await self.serve(host="0.0.0.0", allowed_hosts=["tools.example.com"])
        for host, status in (("tools.example.com", 200), ("127.0.0.1", 403)):
            found = await self.ask(http_request(message(), Host=host))
            self.assertEqual(found.status, status)

    async def test_localhost_listens_on_both_families(self) -> None:
        # HTP-04
        loop = asyncio.get_running_loop()
        real = loop.create_server
        with mock.patch.object(loop, "create_server", side_effect=real) as create:
            await self.serve(host="localhost")
        made = [call.args[1:] for call in create.call_args_list]
        self.assertEqual(made, [("127.0.0.1", 0), ("::1", self.port)])
        self.assertEqual(self.url, f"http://localhost:{self.port}/mcp")
        await self.alive()
        try:
            peer = await self.peer("::1")
        except OSError:
            self.skipTest("no IPv6 here")
        found = await peer.ask(http_request(message(), Host=f"[::1]:{self.port}"))
        self.assertEqual(found.status, 200)

    @spec("http-09", "http-16")
    async def test_accept_decides_which_form_the_answer_has(self) -> None:
        # HTP-05: Accept, form of a plain answer, form after a notification, listen
        json_, sse = "application/json", "text/event-stream"
        cases = [
            (None, json_, sse, 200),
            ("*/*", json_, sse, 200),
            ("application/*, text/*", json_, sse, 200),
            ("TEXT/EVENT-STREAM;q=0.9 , application/json;q=1.0", json_, sse, 200),
            ("application/json", json_, json_, 406),
            ("application/json, text/event-stream;q=0", json_, json_, 406),
            ("*/*, text/event-stream; q=0.000", json_, json_, 406),
            ("application/json;q=0, text/event-stream", sse, sse, 200),
            ("text/event-stream", sse, sse, 200),
            ("text/html", json_, json_, 406),
            ("", json_, json_, 406),
        ]
        await self.serve()
        for accept, plain, streamed, status in cases:
            with self.subTest(accept=accept):
                found = await self.ask(http_request(message(), Accept=accept))
                self.assertEqual((found.status, found["content-type"]), (200, plain))
                found = await self.ask(http_request(message("progress"), Accept=accept))
                self.assertEqual((found.status, found["content-type"]), (200, streamed))
                if streamed == json_:
                    self.assertIn("result", found.json)
                else:
                    self.assertEqual(len(found.events), 3)
                peer = await self.peer()
                peer.send(
                    http_request(message("subscriptions/listen", id=9), Accept=accept)
                )
                found = await within(peer.head())
                self.assertEqual(found.status, status)
                if status == 406:
                    size = int(found["content-length"] or 0)
                    body = json.loads(await peer.reader.readexactly(size))
                    self.assertEqual(body["id"], 9)
                peer.writer.close()

    async def test_content_types_compare_without_case_and_parameters(self) -> None:
        # HTP-06
        await self.serve()
        for kind in (
            "application/json; charset=UTF-8",
            "Application/JSON",
            'application/json;charset="utf-8"',
            "application/json ; profile=x",
        ):
            with self.subTest(kind=kind):
                found = await self.ask(http_request(message(), Content_Type=kind))
                self.assertEqual(found.status, 200)
        found = await self.ask(
            http_request(message(), Content_Type="application/json; charset=utf-16")
        )
        self.assertEqual(found.status, 415)

    async def test_other_content_types_are_refused_before_anything_runs(self) -> None:
        # HTP-07
        await self.serve()
        for kind in (
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "text/plain; application/json",
            "application/jsonx",
            "",
            None,
        ):
            with self.subTest(kind=kind):
                found = await self.ask(http_request(message(), Content_Type=kind))
                self.assertEqual(found.status, 415)
        self.assertEqual(self.script.requests, [])

    @spec("http-01")
    async def test_the_path_is_served_or_404_and_never_redirected(self) -> None:
        # HTP-08
        await self.serve()
        for target in ("/mcp", "/mcp/", "/mcp?x=1", "/mcp/?x=1", "//mcp"):
            with self.subTest(target=target):
                found = await self.ask(http_request(message(), target=target))
                self.assertEqual(found.status, 200)
        for target in ("/", "/mc", "/mcpx", "/mcp/x", "/MCP", "*", "mcp"):
            with self.subTest(target=target):
                found = await self.ask(http_request(message(), target=target))
                self.assertEqual(found.status, 404)
                self.assertIsNone(found["location"])
                self.assertEqual(found.json["error"]["code"], 404)

    async def test_the_absolute_form_of_the_target_is_read(self) -> None:
        await self.serve()
        for target, status in (
            ("http://127.0.0.1:8000/mcp", 200),
            ("HTTP://127.0.0.1:8000/mcp?x", 200),
            ("http://127.0.0.1:8000", 404),
            ("http://evil.example/mcp", 400),
        ):
            with self.subTest(target=target):
                found = await self.ask(http_request(message(), target=target))
                self.assertEqual(found.status, status)

    async def test_cors_lets_allowed_origins_in_and_nobody_else(self) -> None:
        # HTP-09
        await self.serve(allowed_origins=["https://app.example"])
        asked = (
            "authorization,content-type,mcp-method,mcp-name,mcp-param-region,"
            "mcp-protocol-version,traceparent"
        )
        preflight = {
            "method": "OPTIONS",
            "Access_Control_Request_Method": "POST",
            "Access_Control_Request_Headers": asked,
            "Content_Type": None,
            "Accept": None,
        }
        found = await self.ask(http_request(Origin="https://app.example", **preflight))
        self.assertEqual(found.status, 204)
        self.assertIsNone(found["content-length"])
        self.assertEqual(found["access-control-allow-origin"], "https://app.example")
        self.assertIn("POST", found["access-control-allow-methods"] or "")
        allowed = (found["access-control-allow-headers"] or "").split(", ")
        self.assertEqual(allowed, asked.split(","))
        self.assertEqual(found["vary"], "Origin")
        # also on errors, so that a page can read them
        for data in (
            http_request(message(), Origin="https://app.example", target="/nope"),
            http_request(b"{", Origin="https://app.example"),
            http_request(
                message(), Origin="https://app.example", Content_Type="text/plain"
            ),
        ):
            found = await self.ask(data)
            self.assertGreaterEqual(found.status, 400)
            self.assertEqual(
                found["access-control-allow-origin"], "https://app.example"
            )
            self.assertIn(
                "WWW-Authenticate", found["access-control-expose-headers"] or ""
            )
        found = await self.ask(http_request(Origin="https://evil.example", **preflight))
        self.assertEqual(found.status, 403)
        self.assertIsNone(found["access-control-allow-origin"])
        found = await self.ask(
            http_request(message("progress"), Origin="https://app.example")
        )
        self.assertEqual(found["access-control-allow-origin"], "https://app.example")
        found = await self.ask(http_request(method="OPTIONS"))
        self.assertEqual((found.status, found["allow"]), (204, "POST, OPTIONS"))

    @spec("http-76", "http-08")
    async def test_other_methods_are_405_and_say_what_is_allowed(self) -> None:
        # HTP-16
        await self.serve()
        for method in ("GET", "DELETE", "PUT", "PATCH", "BREW", "HEAD"):
            for accept in ("*/*", "text/event-stream"):
                with self.subTest(method=method, accept=accept):
                    data = http_request(
                        method=method, Accept=accept, Mcp_Session_Id="x"
                    )
                    peer = await self.peer()
                    peer.send(data)
                    found = await within(peer.answer(bodiless=method == "HEAD"))
                    self.assertEqual(found.status, 405)
                    self.assertEqual(found["allow"], "POST, OPTIONS")
                    again = await within(peer.ask(http_request(message())))
                    self.assertEqual(again.status, 200)

    async def test_compressed_bodies_are_415(self) -> None:
        # HTP-17
        await self.serve()
        for coding, status in (("gzip", 415), ("br", 415), ("Identity", 200)):
            found = await self.ask(http_request(message(), Content_Encoding=coding))
            self.assertEqual(found.status, status)

    @spec("http-13", "http-14", "base-26")
    async def test_a_notification_is_202_without_body(self) -> None:
        # HTP-19, HTP-20, CAN-03
        await self.serve()
        for body in (
            message("notifications/example", id=None),
            message("echo", id=None),
            {"jsonrpc": "2.0", "method": "notifications/cancelled"},
            {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": {"a": 1}},
            },
        ):
            for version in (HTTP_VERSION, None):
                with self.subTest(body=body, version=version):
                    data = http_request(body, MCP_Protocol_Version=version)
                    found = await self.ask(data)
                    self.assertEqual((found.status, found.body), (202, b""))
                    self.assertEqual(found["content-length"], "0")
        self.assertEqual(self.script.requests, [])

    @spec("http-11", "http-12", "http-14", "base-05", "base-15", "http-15")
    async def test_a_body_that_is_not_one_message_is_400(self) -> None:
        await self.serve()
        cases: list[tuple[bytes, int, Any]] = [
            (b"", -32700, None),
            (b"{", -32700, None),
            (b"\xff{}", -32700, None),
            (b"NaN", -32700, None),
            (b"[]", -32600, None),
            (json.dumps([message()]).encode(), -32600, None),
            (b"1", -32600, None),
            (b'{"jsonrpc":"2.0","id":7,"result":{}}', -32600, 7),
            (b'{"jsonrpc":"2.0","id":"x","error":{"code":1}}', -32600, "x"),
            (b'{"jsonrpc":"2.0","id":null,"method":"echo"}', -32600, None),
            (b'{"jsonrpc":"2.0","id":1.5,"method":"echo"}', -32600, None),
            (b'{"jsonrpc":"1.0","id":3,"method":"echo"}', -32600, 3),
            (b'{"jsonrpc":"2.0","id":4,"method":5}', -32600, 4),
            (b'{"jsonrpc":"2.0","id":4,"method":"echo","params":[]}', -32600, 4),
            (b'{"jsonrpc":"2.0","method":"notify","params":[]}', -32600, None),
            (b"[" * 100_000, -32700, None),
        ]
        peer = await self.peer()
        for body, code, id in cases:
            with self.subTest(body=body[:50]):
                found = await within(peer.ask(http_request(body)))
                self.assertEqual(found.status, 400)
                self.assertEqual(found["content-type"], "application/json")
                self.assertEqual(found.json["error"]["code"], code)
                self.assertEqual(found.json.get("id"), id)
                self.assertEqual("id" in found.json, id is not None)
        self.assertEqual(self.script.requests, [])

    @spec("http-26", "http-27", "http-60", "http-61", "http-67", "http-69")
    async def test_a_singleton_field_that_is_repeated_is_refused(self) -> None:
        # HTP-27
        await self.serve()
        for line in (
            "Mcp-Name: admin",
            "mcp-method: echo",
            f"MCP-PROTOCOL-VERSION: {HTTP_VERSION}",
            "Mcp-Param-Region: eu",
        ):
            with self.subTest(line=line):
                fields = {"Mcp_Name": "echo", "Mcp_Method": "echo"}
                data = http_request(
                    message(), lines=(line,), Mcp_Param_Region="us", **fields
                )
                found = await self.ask(data)
                self.assertEqual(found.status, 400)
                self.assertEqual(found.json["error"]["code"], -32020)
        for line in (
            "Host: 127.0.0.1:8000",
            "Origin: http://localhost",
            "Content-Type: application/json",
            "Authorization: Bearer b",
            "Content-Length: 2",
            "Content-Encoding: identity",
        ):
            with self.subTest(line=line):
                fields = {"Origin": "http://localhost", "Authorization": "Bearer a"}
                fields["Content_Encoding"] = "identity"
                found = await self.ask(http_request(message(), lines=(line,), **fields))
                self.assertEqual(found.status, 400)
        self.assertEqual(self.script.requests, [])

    @spec("auth-39")
    async def test_a_token_in_the_query_is_refused(self) -> None:
        await self.serve()
        for target in ("/mcp?access_token=x", "/mcp?a=1&access_token=x"):
            found = await self.ask(http_request(message(), target=target))
            self.assertEqual(found.status, 400)
        found = await self.ask(http_request(message(), target="/mcp?no_access_token=x"))
        self.assertEqual(found.status, 200)

    @spec("http-29", "http-61", "http-69")
    async def test_the_code_decides_the_status(self) -> None:
        # HTP-25
        await self.serve()
        cases: list[Any] = [
            (-32601, None, 404, None),
            (-32602, None, 400, None),
            (-32603, None, 200, None),
            (-32020, None, 400, None),
            (-32021, {"requiredCapabilities": {}}, 400, None),
            (-32022, {"supported": []}, 400, None),
            (429, {"retryAfter": 7}, 429, "7"),
            (503, {"retryAfter": 1}, 503, "1"),
            (429, {"retryAfter": "1\r\nX-Evil: 1"}, 429, None),
            (429, {}, 429, None),
            (403, {"requiredScopes": ["a"]}, 403, None),
            (1, "text", 200, None),
        ]
        for code, data, status, after in cases:
            with self.subTest(code=code):
                body = message("fail", id="i", code=code, data=data)
                found = await self.ask(http_request(body))
                self.assertEqual(found.status, status)
                self.assertEqual(found["retry-after"], after)
                self.assertEqual(found.json["id"], "i")
                self.assertEqual(found.json["error"]["code"], code)

    async def test_an_exchange_that_raises_is_answered(self) -> None:
        await self.serve()
        found = await self.ask(http_request(message("crash", id=5)))
        self.assertEqual(found.json["error"]["code"], -32603)
        self.assertEqual(found.json["id"], 5)
        self.assertNotIn(b"secret", found.body)
        found = await self.ask(http_request(message("refuse", id=6)))
        self.assertEqual((found.status, found["retry-after"]), (429, "7"))
        self.assertEqual(found.json["id"], 6)

    @spec("http-76")
    async def test_sessions_of_earlier_revisions_are_ignored(self) -> None:
        # HTP-33
        await self.serve()
        data = http_request(message(), Mcp_Session_Id="abc", Last_Event_ID="7")
        found = await self.ask(data)
        self.assertEqual(found.status, 200)
        self.assertIsNone(found["mcp-session-id"])

    async def test_an_unknown_expectation_is_417(self) -> None:
        # HTP-15
        await self.serve()
        found = await self.ask(http_request(message(), Expect="foo"))
        self.assertEqual(found.status, 417)


class HttpServer(HttpCase):
    """The rules that `Server` and the transport keep together."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.server = mcp_ref.Server("test", "1.0")

        @self.server.tool
        def echo(text: str) -> str:
            return text

        @self.server.tool(name="größe")
        def size() -> str:
            return "big"

        await self.serve(self.server)

    def tool(self, name: Any = "echo", **fields: Any) -> bytes:
        body = message("tools/call", name=name, arguments={"text": "x"})
        options = {"Mcp_Method": "tools/call", "Mcp_Name": name, **fields}
        return http_request(options.pop("body", body), **options)

    @spec("http-66", "http-67")
    async def test_white_space_and_case_around_values_and_names(self) -> None:
        # HTP-23
        names = ("Mcp_Method", "Mcp_Name", "MCP_Protocol_Version")
        fields: Any = dict.fromkeys(names)
        lines = (
            "Mcp-Method:\t tools/call  ",
            "mCP-nAME:   echo\t",
            f"MCP-PROTOCOL-VERSION:{HTTP_VERSION}",
        )
        found = await self.ask(self.tool(lines=lines, **fields))
        self.assertEqual(found.status, 200)
        found = await self.ask(self.tool(Mcp_Method="Tools/Call"))
        self.assertEqual(found.status, 400)
        self.assertEqual(found.json["error"]["code"], -32020)

    @spec("http-25", "http-27", "http-28", "http-29", "http-31", "http-32")
    async def test_errors_have_their_status(self) -> None:
        # HTP-24, HTP-25, HTP-26
        old = {**BASE_META, "io.modelcontextprotocol/protocolVersion": "1900-01-01"}
        call = message("tools/call", name="echo", arguments={"text": "x"})
        ancient = {**call, "params": {**call["params"], "_meta": old}}
        bare = {**call, "params": {"name": "echo", "arguments": {"text": "x"}}}
        cases = [
            (self.tool(MCP_Protocol_Version="2025-11-25"), 400, -32020),
            (self.tool(MCP_Protocol_Version=None), 400, -32020),
            (self.tool(MCP_Protocol_Version="1900-01-01", body=ancient), 400, -32022),
            (http_request(message("nope/nope"), Mcp_Method="nope/nope"), 404, -32601),
            (http_request(message("ping"), Mcp_Method="ping"), 404, -32601),
            (http_request(message("initialize"), Mcp_Method="initialize"), 404, -32601),
            (self.tool(body=bare), 400, -32602),
            (self.tool(Mcp_Name="foo"), 400, -32020),
            (self.tool(Mcp_Name=None), 400, -32020),
            (self.tool(Mcp_Method=None), 400, -32020),
            (self.tool(body=b"{"), 400, -32700),
        ]
        peer = await self.peer()
        for data, status, code in cases:
            with self.subTest(code=code):
                found = await within(peer.ask(data))
                self.assertEqual(found.status, status)
                self.assertEqual(found["content-type"], "application/json")
                self.assertEqual(found.json["error"]["code"], code)
                if code != -32700:
                    self.assertEqual(found.json["id"], 1)
        found = await within(peer.ask(self.tool()))
        self.assertEqual(found.status, 200)

    @spec("http-53", "http-54", "http-70")
    async def test_encoded_names_are_decoded_before_they_are_compared(self) -> None:
        # HTP-28
        for name, header in (
            ("größe", "=?base64?Z3LDtsOfZQ==?="),
            ("echo", "=?base64?ZWNobw==?="),
        ):
            found = await self.ask(self.tool(name, Mcp_Name=header))
            self.assertEqual(found.status, 200, found.body)
        # raw, as Latin-1 bytes
        found = await self.ask(self.tool("größe", Mcp_Name="größe"))
        self.assertEqual(found.json["error"]["code"], -32020)

    async def test_two_servers_need_no_affinity(self) -> None:
        # DEP-01
        first = self.port
        other = HttpCase("alive")
        await other.asyncSetUp()
        await other.serve(self.server)
        for port in (first, other.port, first):
            self.port = port
            found = await self.ask(self.tool())
            self.assertEqual(found.status, 200)
        await other.asyncTearDown()

    @spec("http-21", "http-22", "subscriptions-02", "subscriptions-08")
    async def test_a_listen_stream_ends_with_its_result(self) -> None:
        # CAN-06
        body = message(
            "subscriptions/listen", id="L", notifications={"toolsListChanged": True}
        )
        peer = await self.peer()
        peer.send(http_request(body, Mcp_Method="subscriptions/listen"))
        await within(peer.head())
        first = await within(peer.chunk())
        self.assertIn(b"subscriptions/acknowledged", first)

        @self.server.tool
        def more() -> str:
            return ""

        second = await within(peer.chunk())
        self.assertIn(b"notifications/tools/list_changed", second)
        self.assertIn(b'"io.modelcontextprotocol/subscriptionId":"L"', second)
        begun = time.monotonic()
        await self.stop()
        self.assertLess(time.monotonic() - begun, 1.5)
        last = json.loads((await within(peer.chunk()))[6:])
        self.assertEqual(last["id"], "L")
        self.assertEqual(await within(peer.chunk()), b"")
        self.assertTrue(await within(peer.ended()))


# --- streams --------------------------------------------------------------------------


class HttpStreams(HttpCase):
    """SSE answers, back-pressure, cancellation."""

    @spec("http-16", "http-18", "http-21", "http-22", "stdio-01")
    async def test_a_notification_turns_the_answer_into_a_stream(self) -> None:
        # HTP-10
        await self.serve()
        peer = await self.peer()
        found = await within(peer.ask(http_request(message("progress", id=3))))
        self.assertEqual(found["content-type"], "text/event-stream")
        self.assertEqual(found["x-accel-buffering"], "no")
        self.assertEqual(found["cache-control"], "no-cache, no-transform")
        self.assertEqual(len(found.events), 3)
        self.assertEqual(found.events[-1]["id"], 3)
        self.assertEqual(found.body.count(b"data: "), 3)
        again = await within(peer.ask(http_request(message())))
        self.assertEqual(again.status, 200)

    async def test_header_and_first_event_come_at_once_and_comments_later(self) -> None:
        # HTP-10
        await self.serve(limits=HttpLimits(keep_alive_seconds=0.1))
        peer = await self.peer()
        peer.send(http_request(message("progress", hold=True, count=1)))
        await within(peer.head())
        self.assertIn(b"notifications/progress", await within(peer.chunk()))
        self.assertEqual(await within(peer.chunk()), b":\n\n")
        self.assertEqual(await within(peer.chunk()), b":\n\n")

    async def test_http_1_0_gets_a_stream_without_chunks(self) -> None:
        await self.serve()
        data = http_request(message("progress")).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        found = await self.ask(data)
        self.assertIsNone(found["transfer-encoding"])
        self.assertEqual(found["connection"], "close")
        self.assertEqual(len(found.events), 3)
        data = http_request(message()).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        found = await self.ask(data)
        self.assertEqual(found["connection"], "close")

    @spec("http-19")
    async def test_nothing_is_sent_after_the_response(self) -> None:
        await self.serve()
        peer = await self.peer()
        await within(peer.ask(http_request(message())))
        await self.script.sends[0](mcp_ref.notification("notifications/message", {}))
        found = await within(peer.ask(http_request(message(id=2))))
        self.assertEqual((found.status, found.json["id"]), (200, 2))

    @spec("http-23", "http-24", "cancellation-04", "cancellation-16")
    async def test_a_client_that_goes_away_cancels_its_request(self) -> None:
        # CAN-05: FIN and RST, while nothing was written and in a stream
        await self.serve()
        for body in (message("hold"), message("progress", hold=True)):
            for leave in ("close", "reset", "half-close"):
                with self.subTest(body=body["method"], leave=leave):
                    self.script.started.clear()
                    self.script.cancelled.clear()
                    peer = await self.peer()
                    peer.send(http_request(body))
                    await within(self.script.started.wait())
                    if body["method"] == "progress":
                        await within(peer.head())
                    if leave == "close":
                        peer.writer.close()
                    elif leave == "reset":
                        peer.reset()
                    else:
                        peer.writer.write_eof()
                    await within(self.script.cancelled.wait(), 1)
        await self.alive()

    async def test_a_half_closed_client_gets_an_answer_that_needs_no_waiting(
        self,
    ) -> None:
        # CAN-05, the tricky neighbour: printf ... | nc -N
        await self.serve()
        peer = await self.peer()
        peer.send(http_request(message()))
        peer.writer.write_eof()
        found = await within(peer.answer())
        self.assertEqual(found.status, 200)
        self.assertTrue(await within(peer.ended()))

    async def test_a_stream_with_a_slow_reader_waits_and_is_then_cut_off(self) -> None:
        await self.serve(limits=HttpLimits(blocked_seconds=0.3))
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
        await asyncio.get_running_loop().sock_sendall(
            raw, http_request(message("flood"))
        )
        await within(self.script.cancelled.wait(), 10)
        raw.close()
        # what waited was what the kernel holds, and one buffer of ours
        self.assertLess(self.script.flooded * 65536, 64 * 1024 * 1024)
        await self.alive()

    async def test_a_slow_reader_that_comes_back_loses_nothing(self) -> None:
        await self.serve()
        peer = await self.peer(limit=2**16)
        peer.send(http_request(message("progress", count=5_000)))
        await within(self.script.started.wait())
        await asyncio.sleep(0.05)
        found = await within(peer.answer(), 20)
        numbers = [one["params"]["n"] for one in found.events[:-1]]
        self.assertEqual(numbers, list(range(5_000)))

    async def test_a_large_answer_to_a_reader_that_stalls_is_cut_off(self) -> None:
        await self.serve(limits=HttpLimits(blocked_seconds=0.2))
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, ("127.0.0.1", self.port))
        await loop.sock_sendall(raw, http_request(message("big", size=30_000_000)))
        await within(self.script.ended.wait())
        await asyncio.sleep(0.05)
        received = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(8):
                await asyncio.sleep(0.05)
            while chunk := await within(loop.sock_recv(raw, 65536)):
                received += len(chunk)
        self.assertLess(received, 30_000_000)
        raw.close()

    async def test_streams_have_a_limit_of_their_own(self) -> None:
        await self.serve(limits=HttpLimits(streams=2, requests=1))
        for _ in range(2):
            peer = await self.peer()
            peer.send(http_request(message("subscriptions/listen")))
            self.assertEqual((await within(peer.head())).status, 200)
        found = await self.ask(http_request(message("subscriptions/listen", id=8)))
        self.assertEqual((found.status, found["retry-after"]), (503, "1"))
        self.assertEqual(found.json["id"], 8)
        await self.alive()

    async def test_requests_in_flight_have_a_limit(self) -> None:
        await self.serve(limits=HttpLimits(requests=2))
        peers = [await self.peer() for _ in range(2)]
        for peer in peers:
            peer.send(http_request(message("wait")))
        await self.until(lambda: len(self.script.requests) == 2)
        found = await self.ask(http_request(message("wait", id=4)))
        self.assertEqual((found.status, found["retry-after"]), (503, "1"))
        self.script.go.set()
        for peer in peers:
            self.assertEqual((await within(peer.answer())).status, 200)
        await self.alive()


# --- connections and framing ----------------------------------------------------------


class HttpFraming(HttpCase):
    """What is a request, and where it ends."""

    async def test_a_connection_is_kept_after_every_kind_of_answer(self) -> None:
        # HTP-11
        await self.serve()
        peer = await self.peer()
        for data, status in (
            (http_request(message()), 200),
            (http_request(message(id=None)), 202),
            (http_request(method="GET"), 405),
            (http_request(message(), Origin="null"), 403),
            (http_request(message(), target="/x"), 404),
            (http_request(message(), Content_Type="text/plain"), 415),
            (http_request(b"{"), 400),
            (http_request(method="OPTIONS"), 204),
            (http_request(message("progress")), 200),
            (http_request(message()), 200),
        ):
            with self.subTest(status=status):
                found = await within(peer.ask(data))
                self.assertEqual(found.status, status)
                self.assertIsNone(found["connection"])

    async def test_connection_close_closes(self) -> None:
        await self.serve()
        for value in ("close", "Close", "keep-alive, close"):
            peer = await self.peer()
            found = await within(peer.ask(http_request(message(), Connection=value)))
            self.assertEqual((found.status, found["connection"]), (200, "close"))
            self.assertTrue(await within(peer.ended()))

    async def test_what_follows_a_request_to_close_does_not_lose_the_answer(
        self,
    ) -> None:
        await self.serve()
        loop = asyncio.get_running_loop()
        for body in (message(), message("progress"), message("big", size=100_000)):
            raw = socket.socket()
            raw.setblocking(False)
            await loop.sock_connect(raw, ("127.0.0.1", self.port))
            data = http_request(body, Connection="close") + b"x" * 300_000
            await within(loop.sock_sendall(raw, data))
            await asyncio.sleep(0.05)
            answer = b""
            while chunk := await within(loop.sock_recv(raw, 65536)):
                answer += chunk
            raw.close()
            self.assertIn(b"\r\nConnection: close\r\n", answer)
            self.assertIn(b'"result"', answer)
            self.assertEqual(answer.count(b"HTTP/1.1"), 1)

    async def test_pipelined_requests_are_answered_in_order(self) -> None:
        await self.serve()
        peer = await self.peer()
        data = [http_request(message("wait", id=0))]
        data += [http_request(message("echo", id=number)) for number in range(1, 50)]
        data += [
            http_request(message(), target="/x"),
            http_request(message("progress", id=50)),
        ]
        data += [
            http_request(message("big", id=51, size=1_000_000)),
            http_request(message(id=52)),
        ]
        data += [
            http_request(message(id=53, text="x" * 300_000)),
            http_request(message(id=54)),
        ]
        peer.send(*data)
        await within(self.script.started.wait())
        self.script.go.set()
        for number in range(50):
            self.assertEqual((await within(peer.answer())).json["id"], number)
        self.assertEqual((await within(peer.answer())).status, 404)
        self.assertEqual((await within(peer.answer())).events[-1]["id"], 50)
        for number in range(51, 55):
            self.assertEqual((await within(peer.answer())).json["id"], number)

    async def test_who_sends_requests_but_reads_no_answers_is_held_back(self) -> None:
        await self.serve()
        loop = asyncio.get_running_loop()
        for first in (
            http_request(message("hold")),
            http_request(message("big", size=8_000_000)) * 9,
        ):
            self.script.requests.clear()
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            await loop.sock_connect(raw, ("127.0.0.1", self.port))
            flood = http_request(message(text="x" * 1_000_000)) * 30
            with contextlib.suppress(TimeoutError):
                await within(loop.sock_sendall(raw, first + flood), 0.5)
            raw.close()
            self.assertEqual(len(self.script.requests), 1)
            (connection,) = self.site.connections
            self.assertLess(len(connection.buffer), 400_000)
            while self.site.connections:
                connection.transport.abort()
                await asyncio.sleep(0.01)
        await self.alive()

    async def test_pipelined_requests_do_not_share_context_variables(self) -> None:
        variable = contextvars.ContextVar("variable", default=0)
        seen = []

        async def exchange(request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
            seen.append(variable.get())
            variable.set(1)
            return mcp_ref.result_response(request.id, {})

        await self.serve(exchange)
        peer = await self.peer()
        peer.send(http_request(message()) * 3)
        for _ in range(3):
            await within(peer.answer())
        self.assertEqual(seen, [0, 0, 0])

    async def test_a_request_may_come_byte_by_byte(self) -> None:
        await self.serve()
        for data in (
            http_request(message(text="slow")),
            http_request(
                as_chunks(json.dumps(message(text="slow")).encode()),
                Content_Length=None,
                Transfer_Encoding="chunked",
            ),
        ):
            peer = await self.peer()
            peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for index in range(len(data)):
                peer.send(data[index : index + 1])
                await asyncio.sleep(0)
            found = await within(peer.answer())
            self.assertEqual(found.json["result"]["echo"], "slow")

    async def test_empty_lines_before_a_request_are_skipped(self) -> None:
        await self.serve()
        found = await self.ask(b"\r\n\r\n" + http_request(message()))
        self.assertEqual(found.status, 200)

    async def test_chunked_bodies_are_read(self) -> None:
        # HTP-12
        await self.serve()
        body = json.dumps(message(text="chunks")).encode()
        for data in (
            as_chunks(body),
            as_chunks(body[:5], body[5:7], body[7:]),
            as_chunks(*(bytes([byte]) for byte in body)),
            b'5;ext=1\r\n%b\r\n2 ; a="b"\r\n%b\r\n' % (body[:5], body[5:7])
            + as_chunks(body[7:], end=b"000\r\nTrailer: x\r\n\r\n"),
            b"%X\r\n%b\r\n0\r\n\r\n" % (len(body), body),
        ):
            with self.subTest(data=data[:20]):
                peer = await self.peer()
                options = {"Content_Length": None, "Transfer_Encoding": "Chunked"}
                found = await within(peer.ask(http_request(data, **options)))
                self.assertEqual(found.json["result"]["echo"], "chunks")
                found = await within(peer.ask(http_request(message())))
                self.assertEqual(found.status, 200)

    async def test_ambiguous_framing_is_refused_and_closed(self) -> None:
        # HTP-30 and the list of "HTTP framing"
        await self.serve()
        body = json.dumps(message()).encode()
        size = str(len(body))
        te = "Transfer-Encoding: "
        good = http_request(body)
        line, rest = good.split(b"\r\n", 1)
        cases: list[tuple[str, bytes, set[int]]] = [
            (
                "two lengths",
                http_request(body, lines=(f"Content-Length: {size}",)),
                {400},
            ),
            (
                "two lengths differ",
                http_request(body, lines=("Content-Length: 1",)),
                {400},
            ),
            ("list", http_request(body, Content_Length=f"{size}, {size}"), {400}),
            ("empty", http_request(body, Content_Length=""), {400}),
            ("plus", http_request(body, Content_Length=f"+{size}"), {400}),
            ("minus", http_request(body, Content_Length=f"-{size}"), {400}),
            ("underscore", http_request(body, Content_Length="1_0"), {400}),
            ("hex", http_request(body, Content_Length="0x14"), {400}),
            ("float", http_request(body, Content_Length="20.0"), {400}),
            ("inner space", http_request(body, Content_Length="2 0"), {400}),
            ("superscript", http_request(body, Content_Length="2\xb2"), {400}),
            ("nbsp", http_request(body, Content_Length=f"\xa0{size}"), {400}),
            ("both", http_request(as_chunks(body), lines=(te + "chunked",)), {400}),
            (
                "unknown coding",
                http_request(body, Content_Length=None, lines=(te + "gzip",)),
                {501},
            ),
            (
                "coding list",
                http_request(
                    as_chunks(body), Content_Length=None, lines=(te + "gzip, chunked",)
                ),
                {501},
            ),
            (
                "twice",
                http_request(
                    as_chunks(body),
                    Content_Length=None,
                    lines=(te + "chunked", te + "chunked"),
                ),
                {400},
            ),
            (
                "chunked in 1.0",
                http_request(
                    as_chunks(body), Content_Length=None, lines=(te + "chunked",)
                ).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
                {400},
            ),
            (
                "coding tab",
                http_request(body, Content_Length=None, lines=(te + "\x0bchunked",)),
                {400},
            ),
            ("fold", http_request(body, lines=("Mcp-Name: echo", "  admin")), {400}),
            ("fold tab", http_request(body, lines=("X-Long: a", "\tb")), {400}),
            ("fold first", line + b"\r\n x: y\r\n" + rest, {400}),
            (
                "fold of a token",
                http_request(body, lines=("Authorization: B a", " b")),
                {400},
            ),
            ("space before colon", http_request(body, lines=("X-A : 1",)), {400}),
            ("space length", http_request(body, lines=("Content-Length : 1",)), {400}),
            ("no colon", http_request(body, lines=("not a header",)), {400}),
            ("no name", http_request(body, lines=(": x",)), {400}),
            ("bare CR", http_request(body, lines=("X-A: a\rb",)), {400}),
            ("CR at the end", http_request(body, lines=("X-A: a\r",)), {400}),
            ("bare LF", http_request(body, lines=("X-A: a\nX-B: b",)), {400}),
            ("LF only", good.replace(b"\r\n", b"\n"), {400}),
            ("NUL", http_request(body, lines=("X-A: a\0b",)), {400}),
            ("NUL in a name", http_request(body, lines=("X\0A: b",)), {400}),
            ("control", http_request(body, lines=("X-A: a\x1fb",)), {400}),
            ("DEL", http_request(body, lines=("X-A: a\x7fb",)), {400}),
            ("Latin-1 name", http_request(body, lines=("X-\xe9: b",)), {400}),
            ("no Host", http_request(body, Host=None), {400}),
            ("two Hosts", http_request(body, lines=("Host: 127.0.0.1:8000",)), {400}),
            ("odd Host", http_request(body, Host="a/b"), {400}),
            ("Host with user", http_request(body, Host="x@127.0.0.1"), {400}),
            ("two words", b"POST /mcp\r\n" + rest, {400}),
            ("two spaces", b"POST  /mcp HTTP/1.1\r\n" + rest, {400}),
            ("tab", b"POST\t/mcp HTTP/1.1\r\n" + rest, {400}),
            ("four words", b"POST /mcp x HTTP/1.1\r\n" + rest, {400}),
            ("space first", b" POST /mcp HTTP/1.1\r\n" + rest, {400}),
            ("target", b"POST /m\xc3\xa9 HTTP/1.1\r\n" + rest, {400}),
            ("HTTP/2", b"POST /mcp HTTP/2.0\r\n" + rest, {400, 505}),
            ("HTTP/0.9", b"POST /mcp HTTP/0.9\r\n" + rest, {400, 505}),
            ("no version", b"POST /mcp FTP/1.1\r\n" + rest, {400}),
            ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
            ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", {400}),
        ]
        for name, data, statuses in cases:
            with self.subTest(name=name):
                peer = await self.peer()
                smuggled = http_request(message("echo", text="smuggled"))
                peer.send(data, smuggled)
                found = await within(peer.answer())
                self.assertIn(found.status, statuses)
                self.assertEqual(found["connection"], "close")
                self.assertNotIn("id", found.json)
                self.assertTrue(await within(peer.ended()))
                peer.writer.close()
        # refused at once, not when the client has lost its patience
        found = await within(self.ask(good.replace(b"\r\n", b"\n")))
        self.assertEqual(found.status, 400)
        self.assertEqual(self.script.requests, [])
        await self.alive()

    async def test_malformed_chunks_are_refused_and_closed(self) -> None:
        await self.serve(limits=HttpLimits(body_bytes=100_000, chunk_overhead=5000))
        body = json.dumps(message(text="x" * 1500)).encode()
        size, rest = b"%x" % len(body), b"\r\n%b\r\n0\r\n\r\n" % body
        for name, data, status in (
            ("whole, space before", b" " + size + rest, 400),
            ("whole, space after", size + b" " + rest, 400),
            ("whole, 0x", b"0x" + size + rest, 400),
            ("whole, plus", b"+" + size + rest, 400),
            ("whole, overhead", as_chunks(*(b"%c" % byte for byte in body)), 400),
            ("not hex", b"g\r\n", 400),
            ("0x", b"0x5\r\nhello\r\n", 400),
            ("plus", b"+5\r\nhello\r\n", 400),
            ("underscore", b"1_0\r\n", 400),
            ("space before", b" 5\r\nhello\r\n", 400),
            ("space after", b"5 \r\nhello\r\n", 400),
            ("empty", b"\r\n", 400),
            ("only ;", b";a\r\n", 400),
            ("bare LF", b"5\nhello\r\n0\r\n\r\n", 400),
            ("LF in extension", b"5;a\nb\r\nhello\r\n0\r\n\r\n", 400),
            ("content too long", b"5\r\nhellox\r\n0\r\n\r\n", 400),
            ("content LF", b"5\r\nhello\n0\r\n\r\n", 400),
            ("trailer fold", b"0\r\nA: b\r\n c\r\n\r\n", 400),
            ("trailer bare", b"0\r\nnonsense\r\n\r\n", 400),
            ("17 digits", b"00000000000000005\r\nhello\r\n", 400),
            ("4 GiB", b"FFFFFFFF\r\n", 413),
            ("64 bits", b"FFFFFFFFFFFFFFFF\r\n", 413),
            ("endless", (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 30, 413),
            ("overhead", b"1\r\nx\r\n" * 2000, 400),
            ("long extension", b"1;" + b"x" * 6000, 400),
            ("many trailers", b"0\r\n" + b"A: b\r\n" * 2000, 400),
        ):
            with self.subTest(name=name):
                options = {"Content_Length": None, "Transfer_Encoding": "chunked"}
                peer = await self.peer()
                peer.send(http_request(data, **options), http_request(message()))
                found = await within(peer.answer())
                self.assertEqual((found.status, found["connection"]), (status, "close"))
                self.assertTrue(await within(peer.ended()))
                peer.writer.close()
        found = await within(self.ask(http_request(b"1;" + b"x" * 6000, **options)))
        self.assertEqual(found.status, 400)
        self.assertEqual(self.script.requests, [])

    async def test_the_body_of_a_refused_request_is_never_a_request(self) -> None:
        await self.serve()
        inner = http_request(message("echo", text="smuggled"))
        for options in (
            {"target": "/x"},
            {"method": "GET"},
            {"Origin": "null"},
            {"Content_Type": "text/plain"},
        ):
            with self.subTest(options=options):
                peer = await self.peer()
                peer.send(http_request(inner, **options))
                self.assertGreaterEqual((await within(peer.answer())).status, 400)
                found = await within(peer.ask(http_request(message(text="next"))))
                self.assertEqual(found.json["result"]["echo"], "next")
                # chunked, too long to skip, or to come after 100: closed instead
                for more in (
                    http_request(
                        as_chunks(inner),
                        Content_Length=None,
                        Transfer_Encoding="chunked",
                        **options,
                    ),
                    http_request(inner + b" " * 100_000, **options),
                    http_request(inner, Expect="100-continue", **options),
                ):
                    peer = await self.peer()
                    peer.send(more)
                    found = await within(peer.answer())
                    self.assertGreaterEqual(found.status, 400)
                    self.assertEqual(found["connection"], "close")
                    self.assertTrue(await within(peer.ended()))
        texts = [one.params.get("text") for one in self.script.requests]
        self.assertEqual(texts, ["next"] * 4)

    async def test_after_a_skipped_body_the_next_request_is_like_any_other(
        self,
    ) -> None:
        await self.serve(limits=HttpLimits(body_seconds=0.3))
        peer = await self.peer()
        refused = http_request(b"x" * 1000, target="/x")
        peer.send(refused[:-10])
        self.assertEqual((await within(peer.answer())).status, 404)
        body = json.dumps(message()).encode()
        whole = http_request(body, Expect="100-continue")
        peer.send(refused[-10:], whole[: -len(body)])
        self.assertEqual((await within(peer.head())).status, 100)
        self.assertEqual((await within(peer.ask(body))).status, 200)

    async def test_expect_100_continue(self) -> None:
        # HTP-15
        await self.serve()
        body = json.dumps(message(text="x" * 200_000)).encode()
        peer = await self.peer()
        whole = http_request(body, Expect="100-Continue")
        head = whole[: -len(body)]
        peer.send(head)
        self.assertEqual((await within(peer.head())).status, 100)
        found = await within(peer.ask(body))
        self.assertEqual(found.status, 200)
        # a client that did not wait is not told to go on
        found = await within(peer.ask(whole))
        self.assertEqual(found.status, 200)
        peer.send(
            http_request(body, Expect="100-continue", Origin="null")[: -len(body)]
        )
        found = await within(peer.answer())
        self.assertEqual((found.status, found["connection"]), (403, "close"))

    async def test_a_refused_client_can_read_why(self) -> None:
        # an answer that is followed by RST would be lost
        await self.serve(limits=HttpLimits(body_bytes=1000))
        raw, loop = socket.socket(), asyncio.get_running_loop()
        raw.setblocking(False)
        await loop.sock_connect(raw, ("127.0.0.1", self.port))
        await within(loop.sock_sendall(raw, http_request(b"x" * 3_000_000)))
        await asyncio.sleep(0.05)
        answer = b""
        while chunk := await within(loop.sock_recv(raw, 65536)):
            answer += chunk
        raw.close()
        self.assertTrue(answer.startswith(b"HTTP/1.1 413 "))
        self.assertIn(b"Connection: close", answer)

    async def test_head_has_no_body(self) -> None:
        # HTP-16
        await self.serve()
        peer = await self.peer()
        peer.send(http_request(method="HEAD"), http_request(message()))
        found = await within(peer.answer(bodiless=True))
        self.assertEqual(found.status, 405)
        self.assertEqual((await within(peer.answer())).status, 200)


class HttpLimitsCase(HttpCase):
    """Each limit, and its status."""

    async def test_lines_and_headers(self) -> None:
        # HTP-31
        limits = HttpLimits(request_line=1000, header_bytes=4000, header_count=20)
        await self.serve(limits=limits)
        many = tuple(f"X-{number}: 1" for number in range(30))
        for name, data, status in (
            ("line", http_request(message(), target="/mcp?" + "a" * 2000), 414),
            ("line without end", b"POST /mcp?" + b"a" * 70_000, 414),
            ("field", http_request(message(), X_A="a" * 5000), 431),
            (
                "field without end",
                http_request(message(), X_A="a" * 70_000)[:-200],
                431,
            ),
            ("token", http_request(message(), Authorization="a" * 5000), 431),
            ("count", http_request(message(), lines=many), 431),
            ("fits", http_request(message(), lines=many[:10]), 200),
        ):
            with self.subTest(name=name):
                found = await self.ask(data)
                self.assertEqual(found.status, status)
        await self.alive()

    async def test_the_defaults_hold_without_being_set(self) -> None:
        # HTP-31, HTP-13
        await self.serve()
        many = tuple(f"X-{number}: 1" for number in range(150))
        legal = tuple(f"Mcp-Param-{number}: 1" for number in range(90))
        for data, status in (
            (http_request(message(), target="/mcp?" + "a" * 70_000), 414),
            (http_request(message(), X_A="a" * 70_000), 431),
            (http_request(message(), lines=many), 431),
            (http_request(message(), lines=legal), 200),
            (http_request(b"x" * 10, Content_Length="99999999999"), 413),
            (http_request(b"x" * 10, Content_Length="9" * 30), 413),
            (http_request(b"x" * 10, Content_Length="0" * 5000 + "20"), 413),
        ):
            found = await self.ask(data)
            self.assertEqual(found.status, status)

    async def test_a_body_is_refused_by_its_length_without_being_read(self) -> None:
        # HTP-13
        await self.serve(limits=HttpLimits(body_bytes=1000))
        peer = await self.peer()
        peer.send(http_request(b"x" * 10, Content_Length="1001"))
        found = await within(peer.answer())
        self.assertEqual((found.status, found["connection"]), (413, "close"))
        body = json.dumps(message()).encode()
        found = await self.ask(http_request(body + b" " * (1000 - len(body))))
        self.assertEqual(found.status, 200)

    async def test_bodies_that_are_not_complete_share_a_limit(self) -> None:
        await self.serve(limits=HttpLimits(waiting_bytes=250_000))
        body = json.dumps(message(text="x" * 100_000)).encode()
        options = {"Content_Length": None, "Transfer_Encoding": "chunked"}
        data = http_request(as_chunks(body), **options)
        peers = [await self.peer() for _ in range(2)]
        for _ in range(2):
            for peer in peers:
                peer.send(data[:-9])
            await self.until(lambda: self.site.held > 200_000)
            other = await self.peer()
            other.send(http_request(body)[:-9])
            found = await within(other.answer())
            self.assertEqual((found.status, found["retry-after"]), (503, "1"))
            for peer in peers:
                peer.send(data[-9:])
                self.assertEqual((await within(peer.answer())).status, 200)
            # who goes away gives the room back, too
            gone = await self.peer()
            gone.send(http_request(body)[:-9])
            await self.until(lambda: self.site.held > 100_000)
            gone.reset()
            await self.until(lambda: self.site.held == 0)

    async def test_a_slow_header_is_408_and_an_idle_socket_closed(self) -> None:
        # HTP-14
        limits = HttpLimits(header_seconds=0.2, idle_seconds=0.2, body_seconds=0.2)
        await self.serve(limits=limits)
        silent = await self.peer()
        slow = await self.peer()
        slow.send(b"POST /mcp")
        body = await self.peer()
        body.send(http_request(message())[:-5])
        skipping = await self.peer()
        skipping.send(http_request(message(), target="/x")[:-5])
        self.assertEqual((await within(skipping.answer())).status, 404)
        kept = await self.peer()
        await within(kept.ask(http_request(message())))
        trickle = await self.peer()

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    trickle.send(b"X")
                    await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        await self.alive()
        for peer in (slow, body, trickle):
            found = await within(peer.answer(), 3)
            self.assertEqual((found.status, found["connection"]), (408, "close"))
        dripping.cancel()
        for peer in (silent, kept, skipping):
            self.assertTrue(await within(peer.ended(), 3))

    async def test_a_running_request_has_no_time_limit_of_ours(self) -> None:
        limits = HttpLimits(header_seconds=0.1, idle_seconds=0.1, body_seconds=0.1)
        await self.serve(limits=limits)
        peer = await self.peer()
        peer.send(http_request(message("wait")))
        await within(self.script.started.wait())
        for _ in range(6):
            await asyncio.sleep(0.05)
        self.script.go.set()
        self.assertEqual((await within(peer.answer())).status, 200)

    async def test_connections_over_the_limit_are_refused_cleanly(self) -> None:
        # HTP-14
        await self.serve(limits=HttpLimits(connections=3))
        peers = [await self.peer() for _ in range(3)]
        for peer in peers:
            self.assertEqual(
                (await within(peer.ask(http_request(message())))).status, 200
            )
        found = await self.ask(http_request(message()))
        self.assertEqual((found.status, found["retry-after"]), (503, "1"))
        peers[0].writer.close()
        await peers[0].writer.wait_closed()
        for _ in range(100):
            if (await self.ask(http_request(message()))).status == 200:
                break
            await asyncio.sleep(0.01)
        else:
            self.fail("the place was not given back")

    async def test_idle_and_slow_sockets_do_not_block_others(self) -> None:
        # HTP-14
        await self.serve()
        for _ in range(5):
            await self.peer()
            (await self.peer()).send(b"P")
            (await self.peer()).send(http_request(message("subscriptions/listen")))
            (await self.peer()).send(http_request(message("hold")))
        await self.alive()


class HttpEnd(HttpCase):
    """Shutdown."""

    @spec("subscriptions-07", "subscriptions-08")
    async def test_the_end_is_graceful_and_the_port_free_at_once(self) -> None:
        # CAN-06
        await self.serve(limits=HttpLimits(shutdown_seconds=0.3))
        port = self.port
        stream, idle, short, long, partial = [await self.peer() for _ in range(5)]
        stream.send(http_request(message("subscriptions/listen", id=1)))
        await within(stream.head())
        await within(stream.chunk())
        await within(idle.ask(http_request(message())))
        short.send(http_request(message("wait", id=2)))
        long.send(http_request(message("hold", id=3)))
        partial.send(b"POST")
        await self.until(lambda: len(self.script.requests) == 4)
        assert self.task is not None
        self.task.cancel()
        await asyncio.sleep(0.02)
        self.script.go.set()
        found = await within(short.answer())
        self.assertEqual((found.status, found["connection"]), (200, "close"))
        self.assertIn(b'"ended":true', await within(stream.chunk()))
        self.assertEqual(await within(stream.chunk()), b"")
        for peer in (stream, idle, short, long, partial):
            self.assertTrue(await within(peer.ended(), 3))
        self.assertTrue(self.script.cancelled.is_set())
        await self.stop()
        self.assertEqual(self.script.subscriptions.open, 0)
        await self.serve(port=port)
        await self.alive()

    async def test_a_handler_that_refuses_to_end_does_not_hold_the_server(self) -> None:
        async def stubborn(request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
            self.script.started.set()
            for _ in range(100):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)
                if self.script.go.is_set():
                    break
            return mcp_ref.result_response(request.id, {})

        await self.serve(stubborn, limits=HttpLimits(shutdown_seconds=0.1))
        peer = await self.peer()
        peer.send(http_request(message()))
        await within(self.script.started.wait())
        await within(self.stop(), 2)
        self.script.go.set()
        self.assertTrue(await within(peer.ended()))

    async def test_a_second_cancel_ends_at_once(self) -> None:
        await self.serve(limits=HttpLimits(shutdown_seconds=30))
        peer = await self.peer()
        peer.send(http_request(message("hold")))
        await within(self.script.started.wait())
        assert self.task is not None
        self.task.cancel()
        await asyncio.sleep(0.02)
        await within(self.stop(), 1)
        self.assertTrue(self.script.cancelled.is_set())

    async def test_a_taken_port_is_an_error(self) -> None:
        await self.serve()
        other = HttpCase("alive")
        await other.asyncSetUp()
        with self.assertRaises(OSError):
            await other.serve(self.script, port=self.port)

    async def test_wrappers_made_with_wraps_keep_the_graceful_end(self) -> None:
        server = mcp_ref.Server("test", "1.0")
        wrapped = mcp_ref.rate_limit(server.handle, per_second=10)
        for exchange in (server.handle, wrapped):
            with mock.patch.object(server.subscriptions, "end") as end:
                mcp_ref._end_streams(exchange)
                end.assert_called_once_with()
        plain = mock.Mock(spec=())  # an exchange without streams
        mcp_ref._end_streams(plain)
        self.assertEqual(plain.mock_calls, [])

    async def test_tls(self) -> None:
        import ssl
        import subprocess
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            pem = os.path.join(directory, "pem")
            command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"]
            command += ["-subj", "/CN=localhost", "-keyout", pem, "-out", pem + "2"]
            try:
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                self.skipTest("no openssl here")
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(pem + "2", pem)
        await self.serve(ssl=context, limits=HttpLimits(body_bytes=10_000))
        self.assertTrue(self.url.startswith("https://"))
        trusting = ssl.create_default_context()
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        peer = await self.peer(ssl=trusting)
        found = await within(peer.ask(http_request(message("progress"))))
        self.assertEqual(len(found.events), 3)
        found = await within(peer.ask(http_request(b"x" * 100_000)))
        self.assertEqual((found.status, found["connection"]), (413, "close"))
        peer = await self.peer(ssl=trusting)
        self.script.started.clear()
        peer.send(http_request(message("hold")))
        await within(self.script.started.wait())
        peer.writer.close()
        await within(self.script.cancelled.wait(), 2)


class HttpHostile(HttpCase):
    """Noise."""

    async def test_mutated_requests_never_hurt(self) -> None:
        await self.serve(limits=HttpLimits(header_seconds=0.5, body_seconds=0.5))
        rng = random.Random(20260728)
        seeds = [
            http_request(message(text="x")),
            http_request(message("progress")),
            http_request(message(), method="OPTIONS", Origin="http://localhost"),
            http_request(
                as_chunks(json.dumps(message()).encode()),
                Content_Length=None,
                Transfer_Encoding="chunked",
            ),
        ]
        failures: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: failures.append(str(context))
        )

        async def throw(data: bytes) -> None:
            with contextlib.suppress(ConnectionError):
                peer = await self.peer()
                peer.send(data)
                if rng.random() < 0.5:
                    peer.writer.write_eof()
                else:
                    peer.send(b"\r\n\r\n")
                with contextlib.suppress(TimeoutError):
                    answer = await within(peer.reader.read(65536), 0.2)
                    self.assertNotIn(b"Traceback", answer)
                    if answer:
                        self.assertTrue(answer.startswith(b"HTTP/1.1 "), answer[:99])
                peer.writer.close()

        for _ in range(8):  # examples/fuzz.py throws 20,000
            batch = []
            for _ in range(20):
                data = bytearray(rng.choice(seeds))
                for _ in range(rng.randint(1, 4)):
                    where = rng.randrange(len(data))
                    kind = rng.randrange(4)
                    if kind == 0:
                        data[where] = rng.randrange(256)
                    elif kind == 1:
                        del data[where : where + rng.randrange(8)]
                    elif kind == 2:
                        data[where:where] = rng.randbytes(rng.randrange(1, 4))
                    else:
                        data[where:where] = data[: rng.randrange(40)]
                    data = data or bytearray(b"x")
                batch.append(throw(bytes(data)))
            await asyncio.gather(*batch)
        await self.alive()
        self.assertEqual(failures, [])


# --- ASGI -----------------------------------------------------------------------------


class Asgi:
    """An ASGI server's side of one request."""

    def __init__(self, data: bytes, **scope: Any) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        path, _, query = target.partition("?")
        pairs = [one.split(":", 1) for one in lines]
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [
                (k.lower().encode("latin-1"), v.strip().encode("latin-1"))
                for k, v in pairs
            ],
            "server": ("127.0.0.1", 8000),
            "client": ("10.1.2.3", 999),
            "root_path": "",
            **scope,
        }
        self.incoming: asyncio.Queue[JSON] = asyncio.Queue()
        self.sent: list[JSON] = []
        self.arrived = asyncio.Event()
        self.receive_body(body, False)

    def receive_body(self, body: bytes, more: bool) -> None:
        event = {"type": "http.request", "body": body, "more_body": more}
        self.incoming.put_nowait(event)

    def leave(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})

    async def send(self, event: JSON) -> None:
        self.sent.append(event)
        self.arrived.set()

    async def run(self, app: Any) -> HttpResponse:
        await within(app(self.scope, self.incoming.get, self.send))
        return self.response

    @property
    def response(self) -> HttpResponse:
        start, *rest = self.sent
        fields = [
            (k.decode("latin-1"), v.decode("latin-1")) for k, v in start["headers"]
        ]
        found = HttpResponse(start["status"], fields)
        found.body = b"".join(event["body"] for event in rest)
        assert not rest[-1]["more_body"]
        return found


class HttpAsgi(HttpCase):
    """The same endpoint behind somebody else's server."""

    def app(self, **options: Any) -> Any:
        return mcp_ref.asgi_app(self.script, **options)

    async def test_json_and_stream(self) -> None:
        found = await Asgi(http_request(message(text="x"))).run(self.app())
        self.assertEqual((found.status, found.json["result"]["echo"]), (200, "x"))
        self.assertEqual(found["content-length"], str(len(found.body)))
        self.assertEqual(self.script.requests[0].peer, "10.1.2.3")
        found = await Asgi(http_request(message("progress"))).run(self.app())
        self.assertEqual(found["content-type"], "text/event-stream")
        self.assertEqual(found["x-accel-buffering"], "no")
        self.assertEqual(len(found.events), 3)

    @spec("http-02", "http-03", "http-13", "http-76")
    async def test_the_rules_are_the_same_as_those_of_the_built_in_server(self) -> None:
        await self.serve(limits=HttpLimits(body_bytes=5000))
        app = self.app(limits=HttpLimits(body_bytes=5000))
        for data in (
            http_request(message()),
            http_request(message("progress")),
            http_request(message(id=None)),
            http_request(message("fail", code=429, data={"retryAfter": 3})),
            http_request(message("crash")),
            http_request(b"{"),
            http_request(b"[]"),
            http_request(method="GET"),
            http_request(method="OPTIONS"),
            http_request(message(), Origin="null"),
            http_request(message(), Origin="http://localhost:1"),
            http_request(method="OPTIONS", Origin="http://localhost:1"),
            http_request(message(), Host="evil.example"),
            http_request(message(), target="/x"),
            http_request(message(), target="/mcp/"),
            http_request(message(), target="/mcp?access_token=1"),
            http_request(message(), Content_Type="text/plain"),
            http_request(message(), Content_Encoding="gzip"),
            http_request(message(), Expect="x"),
            http_request(message(), lines=("Mcp-Name: a", "Mcp-Name: b")),
            http_request(message("progress"), Accept="application/json"),
            http_request(message("subscriptions/listen"), Accept="application/json"),
            http_request(b" " * 6000),
        ):
            with self.subTest(data=data[:200]):
                own = await self.ask(data)
                other = await Asgi(data).run(app)
                self.assertEqual(own.status, other.status)
                self.assertEqual(own.body, other.body)
                left_out = {"date", "connection", "transfer-encoding"}
                fields = [one for one in own.fields if one[0] not in left_out]
                self.assertEqual(sorted(fields), sorted(other.fields))

    async def test_a_body_in_parts_and_its_limit(self) -> None:
        app = self.app(limits=HttpLimits(body_bytes=1000))
        body = json.dumps(message(text="parts")).encode()
        peer = Asgi(http_request(b"", Content_Length=None))
        peer.incoming.get_nowait()
        for index in range(len(body)):
            peer.receive_body(body[index : index + 1], True)
        peer.receive_body(b"", False)
        found = await peer.run(app)
        self.assertEqual(found.json["result"]["echo"], "parts")
        peer = Asgi(http_request(b"", Content_Length=None))
        peer.incoming.get_nowait()
        for _ in range(11):
            peer.receive_body(b"x" * 100, True)
        self.assertEqual((await peer.run(app)).status, 413)
        peer = Asgi(http_request(b""))
        peer.incoming.get_nowait()
        app = self.app(limits=HttpLimits(body_seconds=0.05))
        self.assertEqual((await peer.run(app)).status, 408)

    @spec("http-23", "cancellation-04")
    async def test_a_disconnect_cancels(self) -> None:
        for body in (message("hold"), message("progress", hold=True)):
            self.script.started.clear()
            self.script.cancelled.clear()
            peer = Asgi(http_request(body))
            task = asyncio.create_task(
                self.app()(peer.scope, peer.incoming.get, peer.send)
            )
            await within(self.script.started.wait())
            peer.leave()
            await within(task)
            self.assertTrue(self.script.cancelled.is_set())
        peer = Asgi(http_request(message()))
        peer.incoming.get_nowait()
        peer.leave()  # before the body was complete
        await within(self.app()(peer.scope, peer.incoming.get, peer.send))
        self.assertEqual(peer.sent, [])

    async def test_a_cancelled_application_cancels_the_request(self) -> None:
        peer = Asgi(http_request(message("hold")))
        task = asyncio.create_task(self.app()(peer.scope, peer.incoming.get, peer.send))
        await within(self.script.started.wait())
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await within(task)
        self.assertTrue(self.script.cancelled.is_set())

    async def test_quiet_streams_get_comments(self) -> None:
        app = self.app(limits=HttpLimits(keep_alive_seconds=0.02))
        peer = Asgi(http_request(message("progress", hold=True, count=1)))
        task = asyncio.create_task(app(peer.scope, peer.incoming.get, peer.send))
        while len(peer.sent) < 4:
            await within(peer.arrived.wait())
            peer.arrived.clear()
        self.assertEqual(peer.sent[2]["body"], b":\n\n")
        peer.leave()
        await within(task)

    async def test_no_comment_comes_after_the_last_event(self) -> None:
        app = self.app(limits=HttpLimits(keep_alive_seconds=0.02))
        peer = Asgi(http_request(message("progress", count=1)))

        async def slow(event: JSON) -> None:
            if event.get("more_body") is False:
                await asyncio.sleep(0.05)
            await peer.send(event)

        await within(app(peer.scope, peer.incoming.get, slow))
        more = [event.get("more_body") for event in peer.sent]
        self.assertEqual(more, [None, True, False])

    async def test_who_does_not_read_is_cut_off(self) -> None:
        app = self.app(limits=HttpLimits(blocked_seconds=0.05))
        peer = Asgi(http_request(message("flood")))

        async def stuck(event: JSON) -> None:
            if event["type"] == "http.response.body":
                await asyncio.sleep(30)

        await within(app(peer.scope, peer.incoming.get, stuck), 2)
        self.assertTrue(self.script.cancelled.is_set())

    async def test_it_can_be_mounted(self) -> None:
        cases = [
            ("/mcp", "/api", "/api/mcp", 200),
            ("/mcp", "/api", "/mcp", 200),  # servers that cut the root off themselves
            ("/mcp", "/api", "/api/x", 404),
            ("/", "/tools", "/tools", 200),
            ("/", "/tools", "/tools/", 200),
            ("/", "/tools", "/toolsx", 404),
            ("/", "", "/", 200),
        ]
        for path, root, target, status in cases:
            with self.subTest(path=path, root=root, target=target):
                peer = Asgi(http_request(message(), target=target), root_path=root)
                found = await peer.run(self.app(path=path))
                self.assertEqual(found.status, status)

    async def test_the_lifespan_ends_the_streams(self) -> None:
        app = self.app()
        events: asyncio.Queue[JSON] = asyncio.Queue()
        sent: asyncio.Queue[JSON] = asyncio.Queue()
        life = asyncio.create_task(app({"type": "lifespan"}, events.get, sent.put))
        events.put_nowait({"type": "lifespan.startup"})
        self.assertEqual(
            await within(sent.get()), {"type": "lifespan.startup.complete"}
        )
        peer = Asgi(http_request(message("subscriptions/listen", id=4)))
        task = asyncio.create_task(app(peer.scope, peer.incoming.get, peer.send))
        await within(peer.arrived.wait())
        events.put_nowait({"type": "lifespan.shutdown"})
        self.assertEqual(
            await within(sent.get()), {"type": "lifespan.shutdown.complete"}
        )
        await within(life)
        await within(task)
        self.assertEqual(peer.response.events[-1]["id"], 4)

    async def test_loopback_rules_depend_on_the_address_of_the_server(self) -> None:
        for server, status in (
            (("127.0.0.1", 1), 403),
            (("192.0.2.1", 1), 200),
            (("/tmp/socket", None), 200),
            (None, 200),
        ):
            peer = Asgi(
                http_request(message(), Host="tools.example.com"), server=server
            )
            self.assertEqual((await peer.run(self.app())).status, status)

    async def test_websockets_are_not_served(self) -> None:
        with self.assertRaises(ValueError):
            await self.app()({"type": "websocket"}, None, None)


RESOURCE = "https://mcp.example.com/mcp"
ISSUER = "https://auth.example.com"
SECRET = "s3cr3t-t0ken"
ALICE = Principal(
    "alice",
    client="app",
    scopes=frozenset({"read"}),
    audience=RESOURCE,
    expires=2000.0,
    claims={"jti": SECRET},
)


def challenge(found: HttpResponse) -> dict[str, str]:
    """Read WWW-Authenticate."""
    text = found["www-authenticate"]
    assert text is not None and re.match(r"Bearer( |$)", text), text
    pairs = re.findall(r'(\w+)="([^"]*)"', text)
    rest = re.sub(r'\w+="[^"]*"', "", text.removeprefix("Bearer"))
    assert not rest.strip(" ,"), text
    return dict(pairs)


class AuthCase(HttpCase):
    """A server that knows one token; `self.now` is its clock."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.now = 1000.0
        self.who: Any = ALICE
        self.seen: list[str] = []

    def verify(self, token: str) -> Principal | None:
        self.seen.append(token)
        if isinstance(self.who, Exception):
            raise self.who
        return self.who if token == SECRET else None

    def authorization(self, **options: Any) -> Authorization:
        options.setdefault("resource", RESOURCE)
        options.setdefault("authorization_servers", (ISSUER,))
        options.setdefault("clock", lambda: self.now)
        return Authorization(options.pop("verify", self.verify), **options)

    async def start(self, exchange: Any = None, **options: Any) -> None:
        await self.serve(exchange, verifier=self.authorization(**options))

    async def call(self, token: str | None = SECRET, **options: Any) -> HttpResponse:
        fields = {"Authorization": token and f"Bearer {token}", **options}
        return await self.ask(http_request(fields.pop("body", message()), **fields))


class AuthChecks(AuthCase):
    """Tokens."""

    @spec(
        "auth-40", "auth-security-31", "auth-36", "auth-security-32", "auth-security-34"
    )
    async def test_a_good_token_becomes_the_principal(self) -> None:
        await self.start()
        self.assertEqual((await self.call()).status, 200)
        request = self.script.requests[0]
        assert request.principal is not None
        self.assertEqual(request.principal, ALICE)
        self.assertEqual(self.seen, [SECRET])
        # auth-security-34: the token goes no further
        self.assertNotIn("authorization", request.headers or {})

    async def test_the_scheme_has_no_case(self) -> None:
        await self.start()
        for value in (f"bearer {SECRET}", f"BEARER   {SECRET}", f"\tBearer {SECRET} "):
            found = await self.call(Authorization=value)
            self.assertEqual(found.status, 200)

    @spec("auth-13", "auth-52", "auth-discovery-04", "http-06")
    async def test_without_a_token_the_challenge_has_no_error(self) -> None:
        await self.start(required_scopes=frozenset({"b", "a"}))
        for body in (message(), message(id=None), b"{"):
            found = await self.call(None, body=body)
            self.assertEqual(found.status, 401)
            metadata = "https://mcp.example.com/.well-known/oauth-protected-resource"
            self.assertEqual(
                challenge(found),
                {"scope": "a b", "resource_metadata": f"{metadata}/mcp"},
            )
            self.assertNotIn("id", found.json)
        self.assertEqual(self.script.requests, [])

    async def test_without_a_token_the_body_is_not_waited_for(self) -> None:
        await self.start()
        peer = await self.peer()
        peer.send(http_request(b"x", Content_Length="10000000"))
        self.assertEqual((await within(peer.answer())).status, 401)

    @spec("auth-42", "auth-43")
    async def test_bad_tokens_are_401_invalid_token(self) -> None:
        await self.start()
        for value in (
            "Bearer other",
            "Bearer",
            "Bearer ",
            f"Basic {SECRET}",
            f"Bearer {SECRET} x",
            f"Bearer {SECRET},x",
            f'Bearer "{SECRET}"',
            f"Bearer{SECRET}",
            SECRET,
            "",
        ):
            with self.subTest(value=value):
                found = await self.call(Authorization=value)
                self.assertEqual(found.status, 401)
                self.assertEqual(challenge(found)["error"], "invalid_token")
                self.assertIn("error_description", challenge(found))
                self.assertNotIn(SECRET.encode(), found.body)
        self.assertEqual(self.script.requests, [])

    @spec("auth-43")
    async def test_an_expired_token_is_401(self) -> None:
        await self.start()
        self.now = 1999.9
        self.assertEqual((await self.call()).status, 200)
        self.now = 2000.0
        found = await self.call()
        self.assertEqual(found.status, 401)
        self.assertIn("expired", challenge(found)["error_description"])
        self.who = dataclasses.replace(ALICE, expires=None)
        self.assertEqual((await self.call()).status, 200)

    @spec(
        "auth-33",
        "auth-34",
        "auth-41",
        "auth-45",
        "auth-46",
        "auth-security-04",
        "auth-security-33",
    )
    async def test_a_token_for_somebody_else_is_401(self) -> None:
        await self.start()
        for audience, status in (
            (RESOURCE, 200),
            ("HTTPS://MCP.Example.com/mcp/", 200),
            (["https://other.example", RESOURCE], 200),
            ("https://mcp.example.com", 401),
            ("https://mcp.example.com/MCP", 401),
            ("https://mcp.example.com/mcp/x", 401),
            ("https://mcp.example.com.evil.example/mcp", 401),
            (RESOURCE + "?x", 401),
            ([], 401),
            ("", 401),
            (None, 401),
        ):
            with self.subTest(audience=audience):
                self.who = dataclasses.replace(ALICE, audience=audience)
                self.assertEqual((await self.call()).status, status)

    @spec("auth-53", "auth-54", "auth-55", "auth-63")
    async def test_missing_scopes_are_named_all_at_once(self) -> None:
        def implied(scopes: frozenset[str]) -> frozenset[str]:
            return scopes | {"read"} if "admin" in scopes else scopes

        required = frozenset({"read", "b", "a"})
        await self.start(required_scopes=required, implied=implied)
        self.who = dataclasses.replace(ALICE, scopes=frozenset({"admin"}))
        found = await self.call()
        self.assertEqual(found.status, 403)
        given = challenge(found)
        self.assertEqual(given["error"], "insufficient_scope")
        self.assertEqual(given["scope"], "a b")
        self.assertIn("resource_metadata", given)
        self.assertIn("error_description", given)
        self.who = dataclasses.replace(ALICE, scopes=frozenset({"admin", "a", "b"}))
        self.assertEqual((await self.call()).status, 200)
        principal = self.script.requests[-1].principal
        assert principal is not None
        self.assertEqual(principal.scopes, {"admin", "a", "b", "read"})

    @spec("auth-53", "auth-54", "auth-55", "auth-14")
    async def test_the_scopes_of_a_tool_are_asked_for_with_403(self) -> None:
        server = mcp_ref.Server("test", "1.0")

        @server.tool(scopes=["files:write", "files:read"])
        def write() -> str:
            return "written"

        await self.start(server)
        body = message("tools/call", name="write", arguments={})
        fields = {"Mcp_Method": "tools/call", "Mcp_Name": "write", "body": body}
        found = await self.call(**fields)
        self.assertEqual(found.status, 403)
        self.assertEqual(challenge(found)["scope"], "files:read files:write")
        self.assertEqual(found.json["id"], 1)
        scopes = frozenset({"files:write", "files:read"})
        self.who = dataclasses.replace(ALICE, scopes=scopes)
        self.assertEqual((await self.call(**fields)).status, 200)

    async def test_a_verifier_may_be_async_and_may_fail(self) -> None:
        async def verify(token: str) -> Principal | None:
            await asyncio.sleep(0)
            return self.verify(token)

        await self.start(verify=verify)
        self.assertEqual((await self.call()).status, 200)
        self.who = RuntimeError(f"cannot reach https://x/?token={SECRET}")
        with self.assertLogs("mcp_ref", "ERROR") as logs:
            found = await self.call()
        self.assertEqual(found.status, 500)
        self.assertNotIn(SECRET, found.body.decode() + repr(logs.output))

    @spec("auth-security-05")
    async def test_tokens_are_nowhere_to_be_read(self) -> None:
        for text in (repr(ALICE), str(ALICE), repr(static_tokens({SECRET: "a"}))):
            self.assertNotIn(SECRET, text)
        self.assertIn("alice", repr(ALICE))
        await self.start()
        with self.assertNoLogs("mcp_ref", "DEBUG"):
            await self.call()
            await self.call(SECRET + "x")
        self.assertNotIn(SECRET, repr(self.script.requests))

    @spec("auth-security-05")
    async def test_credentials_are_never_remembered(self) -> None:
        await self.start()
        for _ in range(3):
            self.assertEqual((await self.call()).status, 200)
            self.assertEqual((await self.call(Cookie=f"k={SECRET}")).status, 200)
            self.assertEqual((await self.call("wrong")).status, 401)
            twice = ("Mcp-Name: a", "Mcp-Name: b", f"Cookie: k={SECRET}")
            self.assertEqual((await self.call(lines=twice)).status, 400)
        self.assertEqual(len(self.site.memo), 1)
        self.assertNotIn(SECRET.encode(), b"".join(self.site.memo))
        self.assertNotIn(SECRET, repr(list(self.site.memo.values())))

    async def test_pipelined_requests_keep_their_own_tokens(self) -> None:
        await self.start()
        good = http_request(message(), Authorization=f"Bearer {SECRET}")
        peer = await self.peer()
        peer.send(good, http_request(message()), good)
        peer.send(http_request(message(), Authorization="Bearer x"), good)
        statuses = [(await within(peer.answer())).status for _ in range(5)]
        self.assertEqual(statuses, [200, 401, 200, 401, 200])

    async def test_repeated_authorization_is_refused(self) -> None:
        await self.start()
        line = f"Authorization: Bearer {SECRET}"
        for first in (SECRET, "x"):
            found = await self.call(first, lines=(line,))
            self.assertEqual(found.status, 400)
        data = http_request(message(), lines=(line, line))
        app = mcp_ref.asgi_app(self.script, verifier=self.authorization())
        self.assertEqual((await Asgi(data).run(app)).status, 400)
        self.assertEqual(self.script.requests, [])

    async def test_scopes_that_others_name_cannot_break_the_header(self) -> None:
        await self.start()
        evil = ['a"', "b\r\nX-Evil: 1", "ok", "\u2028", 5]
        for scopes in (evil, "text", {"a": 1}, None):
            body = message("fail", code=403, data={"requiredScopes": scopes})
            found = await self.call(body=body)
            self.assertEqual(found.status, 403)
            if scopes is evil:
                self.assertEqual(challenge(found)["scope"], "5 ok")

    @spec("auth-39")
    async def test_a_token_in_the_query_does_not_count(self) -> None:
        await self.start()
        target = f"/mcp?access_token={SECRET}"
        for token in (None, SECRET):
            found = await self.call(token, target=target)
            self.assertEqual(found.status, 400)
            self.assertNotIn(SECRET.encode(), found.body)
        self.assertEqual(self.script.requests, [])

    async def test_a_preflight_needs_no_token(self) -> None:
        # HTP-09
        await self.start()
        found = await self.call(None, method="OPTIONS", Origin="http://localhost")
        self.assertEqual(found.status, 204)
        found = await self.call(None, Origin="http://localhost")
        self.assertEqual(found.status, 401)
        self.assertIsNotNone(found["access-control-allow-origin"])


class AuthMetadata(AuthCase):
    """The protected resource metadata document."""

    @spec("auth-07", "auth-discovery-01", "auth-discovery-02", "auth-discovery-04")
    async def test_it_is_served_in_root_and_path_form(self) -> None:
        await self.start(scopes_supported=("read",))
        well_known = "/.well-known/oauth-protected-resource"
        for target in (well_known, well_known + "/mcp"):
            # a page of any origin may read it, and needs no token
            found = await self.call(
                None, method="GET", target=target, Origin="https://app.example"
            )
            self.assertEqual(found.status, 200)
            self.assertEqual(found["content-type"], "application/json")
            self.assertEqual(found["access-control-allow-origin"], "*")
            self.assertEqual(
                found.json,
                {
                    "resource": RESOURCE,
                    "authorization_servers": [ISSUER],
                    "bearer_methods_supported": ["header"],
                    "scopes_supported": ["read"],
                },
            )
            found = await self.call(None, method="OPTIONS", target=target)
            self.assertEqual(found.status, 204)
            found = await self.call(None, target=target)
            self.assertEqual((found.status, found["allow"]), (405, "GET"))
        found = await self.call(None, method="GET", target=well_known + "/x")
        self.assertEqual(found.status, 404)

    async def test_asgi_serves_it_too(self) -> None:
        app = mcp_ref.asgi_app(self.script, verifier=self.authorization())
        target = "/.well-known/oauth-protected-resource/mcp"
        found = await Asgi(http_request(method="GET", target=target)).run(app)
        self.assertEqual(found.json["resource"], RESOURCE)
        found = await Asgi(http_request(message())).run(app)
        self.assertEqual(found.status, 401)
        data = http_request(message(), Authorization=f"Bearer {SECRET}")
        self.assertEqual((await Asgi(data).run(app)).status, 200)
        self.assertEqual(self.script.requests[0].principal, ALICE)
        self.assertNotIn("authorization", self.script.requests[0].headers or {})

    @spec("auth-discovery-02")
    async def test_a_resource_without_authorization_server_is_an_error(self) -> None:
        for options in (
            {"authorization_servers": ()},
            {"resource": ""},
            {"resource": "mcp.example.com"},
            {"resource": "https://mcp.example.com#x"},
        ):
            with self.assertRaises(ValueError):
                self.authorization(**options)

    @spec("auth-51")
    async def test_offline_access_is_warned_about(self) -> None:
        with self.assertLogs("mcp_ref", "WARNING"):
            self.authorization(scopes_supported=("offline_access",))


class AuthStatic(AuthCase):
    """Fixed tokens and API keys."""

    async def test_three_lines_are_enough(self) -> None:
        keys = static_tokens({SECRET: "alice", "other": Principal("bob")})
        await self.serve(verifier=keys)
        self.assertEqual((await self.call()).status, 200)
        self.assertEqual((await self.call("other")).status, 200)
        subjects = [
            one.principal and one.principal.subject for one in self.script.requests
        ]
        self.assertEqual(subjects, ["alice", "bob"])
        found = await self.call(None)
        self.assertEqual((found.status, found["www-authenticate"]), (401, "Bearer"))
        found = await self.call("wrong")
        self.assertEqual(challenge(found)["error"], "invalid_token")
        found = await self.call(
            None, method="GET", target="/.well-known/oauth-protected-resource"
        )
        self.assertEqual(found.status, 404)

    def test_every_token_is_compared_in_constant_time(self) -> None:
        verify = static_tokens({"a": "one", "b": "two", "é": "three"})
        real = hmac.compare_digest
        with mock.patch.object(hmac, "compare_digest", side_effect=real) as compare:
            found = verify("a")
            self.assertEqual(compare.call_count, 3)
            for call in compare.call_args_list:
                self.assertEqual([len(one) for one in call.args], [32, 32])
        assert isinstance(found, Principal)
        self.assertEqual(found.subject, "one")
        self.assertIsNone(verify(""))


class RateLimits(AsyncCase):
    """rate_limit()."""

    def setUp(self) -> None:
        self.now = 0.0
        self.calls = 0
        self.go = asyncio.Event()
        self.go.set()

    async def exchange(self, request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
        self.calls += 1
        await self.go.wait()
        return mcp_ref.result_response(request.id, {})

    def limited(self, **options: Any) -> mcp_ref.Exchange:
        options = {"per_second": 1, "burst": 2, "clock": lambda: self.now, **options}
        return mcp_ref.rate_limit(self.exchange, **options)

    async def ask(self, exchange: mcp_ref.Exchange, who: str | None = "a") -> JSON:
        principal = None if who is None or who.startswith("10.") else Principal(who)
        peer = who if principal is None else "10.0.0.9"
        request = mcp_ref.Request("id", "echo", {}, principal=principal, peer=peer)

        async def send(message: JSON) -> None:
            pass

        return await exchange(request, send)

    async def test_a_burst_passes_and_then_the_rate_counts(self) -> None:
        limited = self.limited()
        for _ in range(2):
            self.assertIn("result", await self.ask(limited))
        refused = await self.ask(limited)
        self.assertEqual(refused["id"], "id")
        self.assertEqual(refused["error"]["code"], 429)
        self.assertEqual(refused["error"]["data"], {"retryAfter": 1})
        self.assertEqual(self.calls, 2)
        self.now = 1.0
        self.assertIn("result", await self.ask(limited))
        self.assertIn("error", await self.ask(limited))
        self.now = 100.0
        for _ in range(2):
            self.assertIn("result", await self.ask(limited))
        self.assertIn("error", await self.ask(limited))

    async def test_retry_after_says_when(self) -> None:
        limited = self.limited(per_second=0.1, burst=1)
        await self.ask(limited)
        refused = await self.ask(limited)
        self.assertEqual(refused["error"]["data"], {"retryAfter": 10})

    async def test_callers_do_not_share(self) -> None:
        limited = self.limited(burst=1)
        for who in ("a", "b", "10.0.0.9", "10.0.0.1", None):
            self.assertIn("result", await self.ask(limited, who))
            self.assertIn("error", await self.ask(limited, who))

    async def test_concurrent_requests_are_counted(self) -> None:
        limited = self.limited(burst=100, concurrent=2)
        self.go.clear()
        tasks = [asyncio.create_task(self.ask(limited)) for _ in range(2)]
        while self.calls < 2:
            await asyncio.sleep(0)
        self.assertEqual((await self.ask(limited))["error"]["code"], 429)
        tasks[0].cancel()
        await asyncio.sleep(0)
        self.go.set()
        self.assertIn("result", await self.ask(limited))
        self.assertIn("result", await tasks[1])

    async def test_the_table_is_bounded(self) -> None:
        limited = self.limited(burst=1, callers=10)
        await self.ask(limited, "first")
        for number in range(50):
            await self.ask(limited, f"u{number}")
        # forgotten, so it starts afresh
        self.assertIn("result", await self.ask(limited, "first"))
        self.assertIn("error", await self.ask(limited, "u49"))

    async def test_callers_with_requests_in_flight_are_not_forgotten(self) -> None:
        limited = self.limited(burst=2, callers=2, concurrent=1)
        self.go.clear()
        task = asyncio.create_task(self.ask(limited, "first"))
        while not self.calls:
            await asyncio.sleep(0)
        self.go.set()
        for number in range(10):
            await self.ask(limited, f"u{number}")
        await task


class RateLimitsHttp(HttpCase):
    """The same over HTTP."""

    async def test_it_is_429_with_retry_after(self) -> None:
        limited = mcp_ref.rate_limit(self.script, per_second=0.5, burst=1)
        await self.serve(limited)
        self.assertEqual((await self.ask(http_request(message()))).status, 200)
        found = await self.ask(http_request(message(id=9)))
        self.assertEqual((found.status, found["retry-after"]), (429, "2"))
        self.assertEqual((found.json["id"], found.json["error"]["code"]), (9, 429))


# --- client/elicitation -------------------------------------------------------------------


class FormColor(enum.Enum):
    RED = "#FF0000"
    GREEN = "#00FF00"


class FormSize(enum.Enum):
    SMALL = "s"
    TWO = 2


@dataclass
class FormContact:
    name: Annotated[str, "Your full name"]
    email: Annotated[str, {"format": "email"}]
    age: Annotated[int, {"minimum": 18}] = 18
    nick: str | None = None
    colors: list[Literal["r", "g"]] | None = None


class FormTicket(TypedDict, total=False):
    seat: str
    window: bool


@dataclass
class FormNested:
    inner: FormContact


def form(**properties: JSON) -> JSON:
    """Return a form's schema; all fields are optional."""
    return {"type": "object", "properties": properties}


TEXT = {"type": "string"}
FORM = {"elicitation": {"form": {}}}
URL = {"elicitation": {"url": {}}}


class Elicitation(Case):
    """Forms and URLs: what may be asked, of whom, and what is made of the answers."""

    def asking(self, schema: Any, message: str = "Which?") -> None:
        """Register a tool `ask` that elicits once and reports the answer."""

        async def ask(ctx: Context) -> Any:
            answer = await ctx.elicit(message, schema, key="q")
            return {
                "action": answer.action,
                "accepted": answer.accepted,
                "content": answer.content,
                "value": repr(answer.value),
            }

        self.server.tool(ask)

    async def ask(self, capabilities: JSON = FORM, **options: Any) -> Reply:
        return await self.tool("ask", capabilities=capabilities, **options)

    async def reply(self, first: Reply, result: JSON, **options: Any) -> Reply:
        params = {"name": "ask", "arguments": {}}
        options.setdefault("capabilities", ALL_CAPABILITIES)
        return await self.answer("tools/call", params, first, {"q": result}, **options)

    # --- what goes out --------------------------------------------------------------------

    EXAMPLES = [  # client/elicitation, Requested Schema
        {
            "type": "string",
            "title": "Display Name",
            "description": "Description text",
            "minLength": 3,
            "maxLength": 50,
            "format": "email",
            "default": "user@example.com",
        },
        {"type": "number", "title": "N", "minimum": 0, "maximum": 100, "default": 50},
        {"type": "integer", "title": "N", "minimum": 0, "maximum": 100, "default": 50},
        {"type": "boolean", "title": "B", "description": "text", "default": False},
        {"type": "string", "enum": ["Red", "Green", "Blue"], "default": "Red"},
        {
            "type": "string",
            "oneOf": [{"const": "#F00", "title": "R"}, {"const": "#0F0", "title": "G"}],
            "default": "#F00",
        },
        {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {"type": "string", "enum": ["Red", "Green"]},
            "default": ["Red"],
        },
        {
            "type": "array",
            "items": {"anyOf": [{"const": "#F00", "title": "Red"}]},
            "default": ["#F00"],
        },
    ]

    @spec("elicitation-07", "elicitation-08", "elicitation-11")
    async def test_the_forms_of_the_specification_go_out_as_they_are(self) -> None:
        for field in self.EXAMPLES:
            with self.subTest(field):
                self.setUp()
                schema = form(name=field) | {"required": ["name"]}
                self.asking(copy.deepcopy(schema), "Please choose")
                reply = await self.ask()
                self.assertEqual(reply.result["resultType"], "input_required")
                self.assertEqual(
                    reply.result["inputRequests"]["q"],
                    {
                        "method": "elicitation/create",
                        "params": {
                            "mode": "form",
                            "message": "Please choose",
                            "requestedSchema": schema,
                        },
                    },
                )

    def test_type_hints_become_forms(self) -> None:
        contact = {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "Your full name"},
                "email": {"type": "string", "format": "email"},
                "age": {"type": "integer", "minimum": 18, "default": 18},
                "nick": {"type": "string"},
                "colors": {
                    "type": "array",
                    "items": {"type": "string", "enum": ["r", "g"]},
                },
            },
            "required": ["name", "email"],
        }
        ticket = form(seat=TEXT, window={"type": "boolean"})

        def one(schema: JSON) -> JSON:
            return form(value=schema) | {"required": ["value"]}

        for hint, schema in (
            (FormContact, contact),
            (FormTicket, ticket),
            (bool, one({"type": "boolean"})),
            (str, one({"type": "string"})),
            (int, one({"type": "integer"})),
            (float, one({"type": "number"})),
            (Literal["a", "b"], one({"type": "string", "enum": ["a", "b"]})),
            (FormColor, one({"type": "string", "enum": ["#FF0000", "#00FF00"]})),
            (
                list[Literal["a"]],
                one({"type": "array", "items": {"type": "string", "enum": ["a"]}}),
            ),
        ):
            with self.subTest(hint):
                question = mcp_ref.elicitation("m", hint)
                self.assertEqual(question.params["requestedSchema"], schema)
                Wire.check("ElicitRequest", question.request)

    def test_forms_beyond_flat_primitive_fields_are_refused(self) -> None:
        nested = {"type": "object", "properties": {"a": TEXT}}
        for schema in (
            {},
            TEXT,
            {"type": "object"},
            {"type": "object", "properties": []},
            {"type": "array", "items": TEXT},
            {"properties": {"a": TEXT}},
            form(a=nested),
            form(a={"type": "array", "items": nested}),
            form(a={"type": "array", "items": {"anyOf": [nested]}}),
            form(a={"type": "array", "items": TEXT}),
            form(a={"type": "array", "items": [TEXT]}),
            form(a={"type": "array"}),
            form(a={"type": "null"}),
            form(a={"type": ["string", "null"]}),
            form(a={"anyOf": [TEXT]}),
            form(a={"$ref": "#/$defs/a"}),
            form(a={}),
            form(a=True),
            form(a=TEXT | {"format": "hostname"}),
            form(a=TEXT | {"minLength": "three"}),
            form(a=TEXT | {"pattern": "("}),
            FormNested,
            list[str],
            list[FormContact],
            tuple[int, int],
            dict[str, str],
            FormSize,
        ):
            with self.subTest(schema), self.assertRaises((ValueError, TypeError)):
                question = mcp_ref.elicitation("m", schema)
                self.assertNotEqual(
                    question.params["requestedSchema"]["properties"], {}
                )

    @spec("elicitation-01", "elicitation-02", "elicitation-44")
    def test_a_form_never_asks_for_secrets(self) -> None:
        """UNTESTED B33."""
        for name in (
            *("password", "Password", "passphrase", "pin", "PIN", "api_key", "apiKey"),
            *("API-Key", "access_token", "accessToken", "refresh_token", "secret"),
            *(
                "client_secret",
                "private_key",
                "creditCard",
                "card_number",
                "cvv",
                "CVC",
            ),
        ):
            with self.subTest(name):
                with self.assertRaisesRegex(ValueError, "elicit_url"):
                    mcp_ref.elicitation("m", form(**{name: TEXT}))
        for name in ("pinned", "secretary", "username", "tokenizer", "card_holder"):
            with self.subTest(name):
                mcp_ref.elicitation("m", form(**{name: TEXT}))

    @spec("elicitation-01", "elicitation-44")
    async def test_a_tool_that_asks_for_a_secret_fails_instead(self) -> None:
        self.asking(form(password=TEXT))
        reply = await self.ask()
        self.assertTrue(reply.result["isError"])
        self.assertNotIn("inputRequests", reply.result)

    @spec("elicitation-13", "elicitation-14")
    async def test_a_url_goes_out_with_its_mode(self) -> None:
        @self.server.tool
        async def ask(ctx: Context) -> str:
            answer = await ctx.elicit_url(
                "Please log in", "https://mcp.example.com/c?d=1#e"
            )
            return f"{answer.action} {answer.content}"

        reply = await self.ask(URL)
        (asked,) = reply.result["inputRequests"].values()
        self.assertEqual(
            asked,
            {
                "method": "elicitation/create",
                "params": {
                    "mode": "url",
                    "message": "Please log in",
                    "url": "https://mcp.example.com/c?d=1#e",
                },
            },
        )
        Wire.check("ElicitRequest", asked)
        for action in ("accept", "decline", "cancel"):
            with self.subTest(action):
                done = await self.answer(
                    "tools/call",
                    {"name": "ask", "arguments": {}},
                    reply,
                    {"question-1": {"action": action}},
                    capabilities=URL,
                )
                self.assertEqual(done.text, f"{action} {{}}")

    @spec("elicitation-14", "elicitation-30", "elicitation-31")
    def test_bad_urls_and_urls_with_credentials_are_refused(self) -> None:
        """UNTESTED B33."""
        for url in (
            *("", "example.com", "/path", "//example.com/", "https://", "https:///a"),
            *("http:example.com", "ftp://example.com/", "file:///etc/passwd"),
            *("javascript:alert(1)", "data:text/html,a", "mailto:a@example.com"),
            *(
                "https://example.com/a b",
                "https://example.com/\n",
                "https://e\x00.com/",
            ),
            *("https://example.com/<script>", 'https://example.com/"', " https://a.b/"),
            *("https://example.com:x/", "https://example.com:65536/"),
            *("https://[::1/", "https://user@example.com/", "https://u:p@example.com/"),
            *("https://:p@example.com/", "https://@example.com/"),
        ):
            with self.subTest(url), self.assertRaises(ValueError):
                mcp_ref.elicitation_url("m", url)

    @spec("elicitation-33")
    def test_http_outside_of_this_machine_is_warned_about(self) -> None:
        for url, warns in (
            ("https://example.com/", False),
            ("http://localhost:8000/", False),
            ("http://127.0.0.1/", False),
            ("http://[::1]:80/", False),
            ("http://example.com/", True),
            ("http://localhost.example.com/", True),
        ):
            with self.subTest(url):
                if warns:
                    with self.assertLogs("mcp_ref", "WARNING"):
                        mcp_ref.elicitation_url("m", url)
                else:
                    with self.assertNoLogs("mcp_ref", "WARNING"):
                        mcp_ref.elicitation_url("m", url)

    @spec("elicitation-32")
    def test_a_url_in_a_form_is_warned_about(self) -> None:
        for message, schema in (
            ("see https://example.com/", form(a=TEXT)),
            ("m", form(a=TEXT | {"description": "from http://example.com/"})),
            ("m", form(a=TEXT | {"title": "HTTP https://example.com/"})),
        ):
            with self.subTest(message, schema=schema):
                with self.assertLogs("mcp_ref", "WARNING"):
                    mcp_ref.elicitation(message, schema)
        with self.assertNoLogs("mcp_ref", "WARNING"):
            mcp_ref.elicitation("which web page?", form(a=TEXT | {"format": "uri"}))

    # --- of whom --------------------------------------------------------------------------

    @spec("elicitation-05", "elicitation-06", "elicitation-02", "mrtr-18", "base-55")
    async def test_only_modes_that_the_client_declared_are_asked(self) -> None:
        """UNTESTED B25, B33."""

        @self.server.tool
        async def ask(ctx: Context, mode: str) -> str:
            if mode == "form":
                return str((await ctx.elicit("m", bool)).action)
            return str((await ctx.elicit_url("m", "https://example.com/")).action)

        for declared, modes in (
            ({}, ""),
            ({"elicitation": {}}, "form"),
            ({"elicitation": {"form": {}}}, "form"),
            ({"elicitation": {"url": {}}}, "url"),
            ({"elicitation": {"form": {}, "url": {}}}, "form url"),
            ({"elicitation": {"future": {}}}, ""),
            ({"elicitation": None}, ""),
            ({"elicitation": True}, ""),
            ({"elicitation": {"url": True}}, ""),
            ({"sampling": {}, "roots": {}}, ""),
        ):
            for mode in ("form", "url"):
                with self.subTest(declared, mode=mode):
                    reply = await self.ask(declared, arguments={"mode": mode})
                    if mode in modes.split():
                        self.assertEqual(reply.result["resultType"], "input_required")
                        continue
                    self.assertEqual(reply.error["code"], -32021)
                    self.assertEqual(
                        reply.error["data"]["requiredCapabilities"],
                        {"elicitation": {mode: {}}},
                    )

    @spec("base-56")
    async def test_everything_that_is_missing_is_named_at_once(self) -> None:
        @self.server.tool
        async def ask(ctx: Context) -> str:
            await ctx.ask(
                a=mcp_ref.elicitation("m", bool),
                b=mcp_ref.elicitation_url("m", "https://example.com/"),
                c=mcp_ref.sampling("hi", options={"tools": []}),
                d=mcp_ref.list_roots(),
            )
            return "done"

        reply = await self.ask({"elicitation": {}})
        self.assertEqual(
            reply.error["data"]["requiredCapabilities"],
            {"elicitation": {"url": {}}, "sampling": {"tools": {}}, "roots": {}},
        )

    @spec(
        *("elicitation-16", "elicitation-17", "elicitation-18"),
        *("elicitation-25", "elicitation-42"),
    )
    async def test_an_answer_counts_only_for_the_user_who_was_asked(self) -> None:
        self.asking(bool)
        alice, bob = mcp_ref.Principal("alice"), mcp_ref.Principal("bob")
        other = mcp_ref.Principal("alice", client="another app")
        yes = {"action": "accept", "content": {"value": True}}
        for asked, answers, fits in (
            (alice, alice, True),
            (alice, bob, False),
            (alice, other, False),
            (alice, None, False),
            (None, alice, False),
            (None, None, True),
        ):
            with self.subTest(asked=asked, answers=answers):
                first = await self.ask(principal=asked)
                reply = await self.reply(first, yes, principal=answers)
                if fits:
                    self.assertEqual(reply.result["structuredContent"]["value"], "True")
                else:
                    self.assertEqual(reply.error["code"], -32602)

    # --- what comes back ------------------------------------------------------------------

    @spec("elicitation-24")
    async def test_each_of_the_three_actions_reaches_the_handler(self) -> None:
        self.asking(form(a=TEXT))
        first = await self.ask()
        for result, content in (
            ({"action": "accept", "content": {"a": "x"}}, {"a": "x"}),
            ({"action": "accept", "content": {}}, {}),
            ({"action": "decline"}, {}),
            ({"action": "cancel"}, {}),
            ({"action": "cancel", "content": None}, {}),
            ({"action": "decline", "content": {"a": "x"}}, {}),
        ):
            with self.subTest(result):
                reply = await self.reply(first, result)
                found = reply.result["structuredContent"]
                self.assertEqual(found["action"], result["action"])
                self.assertEqual(found["accepted"], result["action"] == "accept")
                self.assertEqual(found["content"], content)

    async def test_content_comes_back_in_the_type_that_was_asked_for(self) -> None:
        contact = {"name": "Mona", "email": "m@example.com", "age": 30}
        for hint, content, value in (
            (bool, {"value": True}, "True"),
            (int, {"value": 5.0}, "5"),
            (FormColor, {"value": "#FF0000"}, repr(FormColor.RED)),
            (Literal["a", "b"], {"value": "b"}, "'b'"),
            (
                FormContact,
                contact,
                repr(FormContact("Mona", "m@example.com", 30)),
            ),
            (FormTicket, {"seat": "1A"}, "{'seat': '1A'}"),
            (form(a=TEXT), {"a": "x"}, "{'a': 'x'}"),
        ):
            with self.subTest(hint):
                self.setUp()
                self.asking(hint)
                reply = await self.reply(
                    await self.ask(), {"action": "accept", "content": content}
                )
                self.assertEqual(reply.result["structuredContent"]["value"], value)

    @spec("elicitation-46", "mrtr-29")
    async def test_an_answer_that_does_not_fit_is_asked_for_again(self) -> None:
        schema = form(
            n={"type": "integer", "minimum": 1},
            mail=TEXT | {"format": "email"},
            day=TEXT | {"format": "date"},
            when=TEXT | {"format": "date-time"},
            page=TEXT | {"format": "uri"},
            many={"type": "array", "items": {"type": "string", "enum": ["a"]}},
        )
        self.asking(schema | {"required": ["n"]})
        first = await self.ask()
        for content, word in (
            (None, "content"),
            ([], "content"),
            ("yes", "content"),
            ({}, "n"),
            ({"n": 0}, "n"),
            ({"n": "1"}, "n"),
            ({"n": 1, "mail": "nobody"}, "mail"),
            ({"n": 1, "day": "28.7.2026"}, "day"),
            ({"n": 1, "when": "2026-07-28"}, "when"),
            ({"n": 1, "page": "no uri"}, "page"),
            ({"n": 1, "many": ["b"]}, "many"),
            ({"n": 1, "many": "a"}, "many"),
        ):
            with self.subTest(content):
                result = {"action": "accept", "content": content}
                again = await self.reply(first, result)
                params = again.result["inputRequests"]["q"]["params"]
                self.assertIn("Which?", params["message"])
                self.assertIn(word, params["message"])
                self.assertEqual(params["requestedSchema"]["required"], ["n"])
                good = {"action": "accept", "content": {"n": 1}}
                done = await self.reply(again, good)
                self.assertEqual(done.result["structuredContent"]["content"], {"n": 1})

    @spec("elicitation-24", "mrtr-32")
    async def test_a_question_without_an_answer_is_asked_again(self) -> None:
        self.asking(bool)
        first = await self.ask()
        for responses in ({}, {"other": {"action": "accept"}}):
            with self.subTest(responses):
                again = await self.answer(
                    "tools/call",
                    {"name": "ask", "arguments": {}},
                    first,
                    responses,
                    capabilities=FORM,
                )
                self.assertEqual(
                    again.result["inputRequests"], first.result["inputRequests"]
                )

    @spec("elicitation-24", "mrtr-29")
    async def test_what_is_no_answer_at_all_is_an_error(self) -> None:
        self.asking(bool)
        first = await self.ask()
        for result in (
            {},
            {"action": "ok"},
            {"action": 1},
            {"action": ["accept"]},
            {"action": None},
            {"content": {"value": True}},
            {"code": -32603, "message": "the client failed"},
            None,
            "accept",
            [],
        ):
            with self.subTest(result):
                reply = await self.reply(first, result)
                self.assertEqual(reply.error["code"], -32602)

    async def test_a_plain_function_asks_as_well(self) -> None:
        @self.server.tool
        def ask(ctx: Context) -> str:
            answer = ctx.elicit("m", int, key="q")
            return f"{answer.action} {answer.value!r}"

        first = await self.ask()
        result = {"action": "accept", "content": {"value": 5}}
        self.assertEqual((await self.reply(first, result)).text, "accept 5")


# --- client/sampling ----------------------------------------------------------------------


def says(role: str, *blocks: JSON) -> JSON:
    """Return a sampling message; one block stands alone, several are a list."""
    return {"role": role, "content": blocks[0] if len(blocks) == 1 else list(blocks)}


def use(id: str) -> JSON:
    return {"type": "tool_use", "id": id, "name": "t", "input": {}}


def outcome(id: str) -> JSON:
    return {"type": "tool_result", "toolUseId": id, "content": []}


class Sampling(Case):
    """Asking the client's model."""

    HI = {"type": "text", "text": "hi"}
    PARIS = {
        "role": "assistant",
        "content": {"type": "text", "text": "Paris"},
        "model": "m",
        "stopReason": "endTurn",
    }

    async def sample(self, question: Any, capabilities: JSON) -> Reply:
        async def run(ctx: Context) -> Any:
            return (await ctx.ask(q=question))["q"]

        self.server = mcp_ref.Server("test")
        self.server.tool(run)
        return await self.tool("run", capabilities=capabilities)

    @spec("sampling-13")
    async def test_a_text_becomes_a_message_of_the_users(self) -> None:
        question = mcp_ref.sampling("hi", 50, {"systemPrompt": "be brief"})
        reply = await self.sample(question, {"sampling": {}})
        (asked,) = reply.result["inputRequests"].values()
        self.assertEqual(
            asked,
            {
                "method": "sampling/createMessage",
                "params": {
                    "messages": [{"role": "user", "content": self.HI}],
                    "maxTokens": 50,
                    "systemPrompt": "be brief",
                },
            },
        )
        Wire.check("CreateMessageRequest", asked)

    async def test_the_result_comes_back_as_it_is(self) -> None:
        first = await self.sample(mcp_ref.sampling("hi"), {"sampling": {}})
        params = {"name": "run", "arguments": {}}
        uses = self.PARIS | {"content": [use("a")], "stopReason": "toolUse"}
        for result in (self.PARIS, uses):
            with self.subTest(result):
                done = await self.answer(
                    "tools/call", params, first, {"q": result}, capabilities={}
                )
                self.assertEqual(done.result["structuredContent"], result)

    @spec("sampling-22", "mrtr-29")
    async def test_what_is_no_result_is_an_error(self) -> None:
        first = await self.sample(mcp_ref.sampling("hi"), {"sampling": {}})
        params = {"name": "run", "arguments": {}}
        for result in ({}, {"action": "accept"}, None, self.PARIS | {"role": "system"}):
            with self.subTest(result):
                reply = await self.answer("tools/call", params, first, {"q": result})
                self.assertEqual(reply.error["code"], -32602)

    @spec("sampling-05", "sampling-07", "mrtr-18", "base-55")
    async def test_only_what_the_client_declared_is_asked(self) -> None:
        """UNTESTED B25."""
        tool = {"name": "t", "inputSchema": {"type": "object"}}
        for options, needs in (
            ({}, {}),
            ({"temperature": 0.1, "includeContext": "none"}, {}),
            ({"tools": [tool]}, {"tools": {}}),
            ({"tools": []}, {"tools": {}}),
            ({"toolChoice": {"mode": "none"}}, {"tools": {}}),
            ({"includeContext": "thisServer"}, {"context": {}}),
            ({"includeContext": "allServers"}, {"context": {}}),
            (
                {"tools": [tool], "includeContext": "thisServer"},
                {"tools": {}, "context": {}},
            ),
        ):
            question = mcp_ref.sampling("hi", options=options)
            Wire.check("CreateMessageRequest", question.request)
            for declared in (
                {},
                {"sampling": {}},
                {"sampling": {"tools": {}}},
                {"sampling": {"context": {}}},
                {"sampling": {"tools": {}, "context": {}}},
                {"elicitation": {}, "roots": {}},
            ):
                with self.subTest(options, declared=declared):
                    reply = await self.sample(question, declared)
                    has = declared.get("sampling")
                    if has is not None and needs.keys() <= has.keys():
                        self.assertIn("q", reply.result["inputRequests"])
                        continue
                    self.assertEqual(reply.error["code"], -32021)
                    self.assertEqual(
                        reply.error["data"],
                        {"requiredCapabilities": {"sampling": needs}},
                    )

    @spec("sampling-08", "sampling-09", "sampling-13", "sampling-22", "sampling-26")
    def test_messages_keep_roles_and_the_balance_of_tool_uses(self) -> None:
        user = says("user", self.HI)
        good = (
            [user],
            [],
            [user, says("assistant", self.HI), user],
            [user, says("assistant", use("a")), says("user", outcome("a"))],
            [
                user,
                says("assistant", self.HI, use("a"), use("b")),
                says("user", outcome("b"), outcome("a")),
                says("assistant", use("a")),
                says("user", outcome("a")),
                says("assistant", self.HI),
            ],
        )
        for messages in good:
            with self.subTest(messages):
                question = mcp_ref.sampling(messages)
                self.assertEqual(question.params["messages"], messages)
        bad = (
            [says("system", self.HI)],
            [{"content": self.HI}],
            [{"role": "user"}],
            [user, says("assistant", use("a"))],
            [user, says("assistant", use("a")), user, says("user", outcome("a"))],
            [user, says("assistant", use("a")), says("user", outcome("b"))],
            [user, says("assistant", use("a"), use("b")), says("user", outcome("a"))],
            [user, says("assistant", use("a")), says("user", outcome("a"), self.HI)],
            [user, says("assistant", use("a")), says("assistant", outcome("a"))],
            [user, says("user", outcome("a"))],
            [user, says("user", use("a")), says("user", outcome("a"))],
            [{"role": "user", "content": "hi"}],
            [{"role": "user", "content": ["hi"]}],
            ["hi"],
            [None],
        )
        for messages in bad:
            with self.subTest(messages), self.assertRaises(ValueError):
                mcp_ref.sampling(messages)

    async def test_builders_make_messages(self) -> None:
        picture = mcp_ref.image(b"\x89PNG", "image/png")
        question = mcp_ref.sampling([mcp_ref.user(picture), mcp_ref.assistant("nice")])
        Wire.check("CreateMessageRequest", question.request)
        roles = [one["role"] for one in question.params["messages"]]
        self.assertEqual(roles, ["user", "assistant"])

    async def test_context_samples_from_both_kinds_of_handler(self) -> None:
        @self.server.tool
        async def slow(ctx: Context) -> str:
            found = await ctx.sample("hi", max_tokens=5, options={"temperature": 0})
            return str(found["content"]["text"])

        @self.server.tool
        def plain(ctx: Context) -> str:
            return str(ctx.sample([mcp_ref.user("hi")])["content"]["text"])

        for name in ("slow", "plain"):
            with self.subTest(name):
                first = await self.tool(name, capabilities={"sampling": {}})
                done = await self.answer(
                    "tools/call",
                    {"name": name, "arguments": {}},
                    first,
                    {"question-1": self.PARIS},
                )
                self.assertEqual(done.text, "Paris")


# --- client/roots -------------------------------------------------------------------------


class Roots(Case):
    """Asking for the client's roots."""

    ROOTS = {"roots": [{"uri": "file:///home/a", "name": "A"}, {"uri": "file:///b"}]}

    def setUp(self) -> None:
        super().setUp()

        @self.server.tool
        async def look(ctx: Context) -> str:
            return json.dumps(await ctx.roots(key="q"))

        @self.server.tool
        def glance(ctx: Context) -> str:
            return json.dumps(ctx.roots(key="q"))

    async def look(self, result: JSON, name: str = "look") -> Reply:
        first = await self.tool(name, capabilities={"roots": {}})
        self.assertEqual(first.result["inputRequests"], {"q": {"method": "roots/list"}})
        return await self.answer(
            "tools/call", {"name": name, "arguments": {}}, first, {"q": result}
        )

    async def test_the_list_comes_back(self) -> None:
        for name in ("look", "glance"):
            for result in (self.ROOTS, {"roots": []}):
                with self.subTest(name, result=result):
                    reply = await self.look(result, name)
                    self.assertEqual(json.loads(reply.text), result["roots"])

    @spec("roots-07", "mrtr-18", "base-55")
    async def test_only_a_client_with_roots_is_asked(self) -> None:
        for declared in ({}, {"elicitation": {}}, {"roots": None}, {"roots": False}):
            with self.subTest(declared):
                reply = await self.tool("look", capabilities=declared)
                self.assertEqual(reply.error["code"], -32021)
                self.assertEqual(
                    reply.error["data"], {"requiredCapabilities": {"roots": {}}}
                )

    @spec("roots-03", "roots-05")
    async def test_roots_that_are_not_files_are_refused(self) -> None:
        for result in (
            {"roots": [{"uri": "https://example.com/"}]},
            {"roots": [{"uri": "/home/a"}]},
            {"roots": [{"uri": "FILE:/a"}]},
            {"roots": [{"uri": 5}]},
            {"roots": [{}]},
            {"roots": ["file:///a"]},
            {"roots": {"uri": "file:///a"}},
            {"roots": None},
            {},
            None,
        ):
            with self.subTest(result):
                self.assertEqual((await self.look(result)).error["code"], -32602)


def returning(value: Any) -> Callable[[], Any]:
    """Make a handler that returns a value."""
    return lambda: value


def raising(error: BaseException) -> list[Callable[[], Any]]:
    """Make two handlers that raise an error: a plain and an async one."""

    def plain() -> None:
        raise error

    async def later() -> None:
        raise error

    return [plain, later]


async def heard(server: Server, wanted: JSON, act: Callable[[], Any]) -> list[Any]:
    """Return what a listen stream hears of what happens in another thread."""
    messages: list[JSON] = []
    acknowledged = asyncio.Event()

    async def send(message: JSON) -> None:
        messages.append(json.loads(mcp_ref.encode(message)))
        acknowledged.set()

    message = request("subscriptions/listen", {"notifications": wanted}, id="s")
    stream = asyncio.create_task(lint(server.handle)(message, send))
    await acknowledged.wait()
    await asyncio.to_thread(act)
    await asyncio.sleep(0)
    server.subscriptions.end()
    await stream
    return [(one["method"], one["params"].get("uri")) for one in messages[1:]]


# --- server/discover ----------------------------------------------------------------------


class Discovery(Case):
    """What a server says of itself, and what it lets pass."""

    @spec("discover-01", "versioning-03", "discover-03", "base-58")
    async def test_a_bare_server_answers_with_versions_and_identity(self) -> None:
        result = (await self.call("server/discover")).result
        self.assertEqual(
            result,
            {
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {},
                "ttlMs": 0,
                "cacheScope": "public",
                "_meta": {
                    "io.modelcontextprotocol/serverInfo": {
                        "name": "test",
                        "version": "1.0",
                    }
                },
            },
        )

    @spec("discover-03", "base-58")
    async def test_identity_and_instructions_go_out_in_full(self) -> None:
        icons = [{"src": "https://example.com/i.png", "sizes": ["48x48"]}]
        self.server = Server(
            "n",
            "2",
            title="T",
            instructions="Use it.",
            website_url="https://example.com/",
            icons=icons,
        )
        result = (await self.call("server/discover")).result
        self.assertEqual(result["instructions"], "Use it.")
        self.assertEqual(
            result["_meta"]["io.modelcontextprotocol/serverInfo"],
            {
                "name": "n",
                "version": "2",
                "title": "T",
                "websiteUrl": "https://example.com/",
                "icons": icons,
            },
        )

    @spec(
        *("tools-04", "resources-02", "prompts-02", "completion-02", "logging-02"),
        "prompts-15",
    )
    async def test_capabilities_are_those_of_what_is_registered(self) -> None:
        def tool(server: Server) -> None:
            server.tool(lambda: 1, name="t")

        def logs(server: Server) -> None:
            def t(ctx: Context) -> None: ...

            server.tool(t)

        def resource(server: Server) -> None:
            server.resource("a:b")(lambda: "x")

        def template(server: Server) -> None:
            server.resource("a:{b}")(lambda b: "x")

        def prompt(server: Server) -> None:
            server.prompt(lambda a: "x", name="p")

        def completes(server: Server) -> None:
            prompt(server)
            server.complete("p", "a", ["x"])

        def nothing(server: Server) -> None: ...

        for register, listens, silent in (
            (nothing, {}, {}),
            (tool, {"tools": {"listChanged": True}}, {"tools": {}}),
            (
                logs,
                {"tools": {"listChanged": True}, "logging": {}},
                {"tools": {}, "logging": {}},
            ),
            (
                resource,
                {"resources": {"listChanged": True, "subscribe": True}},
                {"resources": {}},
            ),
            (
                template,
                {"resources": {"listChanged": True, "subscribe": True}},
                {"resources": {}},
            ),
            (prompt, {"prompts": {"listChanged": True}}, {"prompts": {}}),
            (
                completes,
                {"prompts": {"listChanged": True}, "completions": {}},
                {"prompts": {}, "completions": {}},
            ),
        ):
            for subscriptions, expected in ((True, listens), (False, silent)):
                with self.subTest(register.__name__, subscriptions=subscriptions):
                    self.server = Server("t", subscriptions=subscriptions)
                    register(self.server)
                    result = (await self.call("server/discover")).result
                    self.assertEqual(result["capabilities"], expected)

    async def test_a_capability_can_be_declared_before_anything_is_there(self) -> None:
        self.server = Server("t", declare=["tools", "resources", "prompts"])
        result = (await self.call("server/discover")).result
        self.assertEqual(set(result["capabilities"]), {"tools", "resources", "prompts"})
        for method, member in LIST_METHODS.items():
            with self.subTest(method):
                self.assertEqual((await self.call(method)).result[member], [])
        with self.assertRaises((ValueError, KeyError)):
            Server("t", declare=["magic"])

    @spec("http-29", "completion-03", "prompts-15")
    async def test_methods_without_their_capability_do_not_exist(self) -> None:
        for method in [*mcp_ref.METHODS, "initialize", "ping", "tools/lisp", ""]:
            if method in ("server/discover", "subscriptions/listen"):
                continue
            with self.subTest(method):
                error = (await self.call(method, {"name": "x", "uri": "a:b"})).error
                self.assertEqual(error["code"], -32601)

    @spec("versioning-10")
    async def test_initialize_is_told_which_versions_there_are(self) -> None:
        error = (await self.call("initialize")).error
        self.assertEqual(error["code"], -32601)
        self.assertIn("2026-07-28", error["message"])

    async def test_subscriptions_can_be_turned_off(self) -> None:
        self.server = Server("t", subscriptions=False)
        reply = await self.call("subscriptions/listen", {"notifications": {}})
        self.assertEqual(reply.error["code"], -32601)

    @spec(
        *("base-51", "base-52", "base-53", "tools-01", "resources-01"),
        *("prompts-01", "completion-01", "pagination-01"),
    )
    async def test_every_method_demands_its_meta(self) -> None:
        """UNTESTED B7."""
        self.server.tool(lambda: 1, name="t")
        self.server.resource("a:b")(lambda: "x")
        self.server.prompt(lambda a: "x", name="p")
        self.server.complete("p", "a", ["x"])
        version, capabilities = META
        for method in mcp_ref.METHODS:
            for meta in (
                ...,
                None,
                [],
                {},
                {version: "2026-07-28"},
                {capabilities: {}},
                {version: None, capabilities: {}},
                {version: 20260728, capabilities: {}},
                {version: "2026-07-28", capabilities: None},
                {version: "2026-07-28", capabilities: []},
            ):
                with self.subTest(method, meta=meta):
                    params = {"name": "t", "uri": "a:b", "notifications": {}}
                    if meta is not ...:
                        params["_meta"] = meta
                    message = mcp_ref.request_message(1, method, params)
                    found = mcp_ref.read_message(message)
                    reply = await exchange(self.server, found)
                    self.assertEqual(reply.error["code"], -32602)
                    self.assertEqual(mcp_ref.HTTP_STATUS[-32602], 400)

    async def test_trace_context_and_unknown_keys_are_tolerated_and_handed_on(
        self,
    ) -> None:
        """UNTESTED B35."""
        given = {
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "tracestate": "a=b",
            "baggage": "c=d",
            "com.example/own": [1, {"deep": None}],
            "": 0,
            "io.modelcontextprotocol/future": True,
        }

        @self.server.tool
        def see(ctx: Context) -> Any:
            return {key: ctx.meta.fields[key] for key in given}

        reply = await self.tool("see", meta=given)
        self.assertEqual(reply.result["structuredContent"], given)
        for method in ("server/discover", "tools/list"):
            with self.subTest(method):
                reply = await self.call(method, {"unknown": 1}, meta=given)
                self.assertIn("result", reply.response)


# --- server/tools -------------------------------------------------------------------------


class ToolColor(enum.Enum):
    RED = "r"
    ON = True
    TWO = 2


@dataclass
class ToolPoint:
    x: int
    tags: list[str] = field(default_factory=list)


class ToolOptions(TypedDict, total=False):
    verbose: bool


class ToolPair(NamedTuple):
    left: int
    right: str = "r"


@dataclass
class ToolNode:
    value: int
    next: "ToolNode | None" = None


TOOL_USER: contextvars.ContextVar[str] = contextvars.ContextVar("TOOL_USER")


def tool_schema(function: Any) -> JSON:
    """Return the input schema that a function is registered with."""
    server = Server("t")
    server.tool(function, name="t")
    return server._registries["tools"]["t"].wire["inputSchema"]


class Tools(Case):
    """From a function to a tool, from a call to a result."""

    async def listed(self, **options: Any) -> dict[str, JSON]:
        tools = (await self.call("tools/list", **options)).result["tools"]
        return {tool["name"]: tool for tool in tools}

    def assertFails(self, reply: Reply, *words: str) -> None:
        """The tool failed: a text for the model that holds these words."""
        self.assertIs(reply.result.get("isError"), True)
        self.assertNotIn("structuredContent", reply.result)
        for word in words:
            self.assertIn(word, reply.text)

    # --- registration ---------------------------------------------------------------------

    @spec("tools-05", "tools-12")
    async def test_a_function_becomes_a_definition(self) -> None:
        @self.server.tool
        def get_weather(location: str, days: int = 1) -> str:
            """Get the weather.

            More prose.

            Args:
                location: City name or zip code.
                days: How far to look ahead.
            """
            return ""

        self.assertEqual(
            await self.listed(),
            {
                "get_weather": {
                    "name": "get_weather",
                    "description": "Get the weather.\n\nMore prose.",
                    "inputSchema": {
                        "type": "object",
                        "properties": {
                            "location": {
                                "type": "string",
                                "description": "City name or zip code.",
                            },
                            "days": {
                                "type": "integer",
                                "default": 1,
                                "description": "How far to look ahead.",
                            },
                        },
                        "required": ["location"],
                        "additionalProperties": False,
                    },
                }
            },
        )

    async def test_everything_else_of_a_definition_can_be_given(self) -> None:
        icons = [{"src": "data:image/png;base64,AA==", "theme": "dark"}]
        hints = {"readOnlyHint": True, "destructiveHint": False, "title": "t"}

        @self.server.tool(
            name="n",
            title="T",
            description="D",
            annotations=hints,
            icons=icons,
            meta={"com.example/k": 1},
            output_schema={"type": "object"},
        )
        def function() -> dict[str, int]:
            "Not this text."
            return {}

        self.assertEqual(
            (await self.listed())["n"],
            {
                "name": "n",
                "title": "T",
                "description": "D",
                "annotations": hints,
                "icons": icons,
                "_meta": {"com.example/k": 1},
                "inputSchema": {
                    "type": "object",
                    "properties": {},
                    "additionalProperties": False,
                },
                "outputSchema": {"type": "object"},
            },
        )
        self.assertEqual(function(), {})  # the decorator gives back what it got

    @spec("tools-12", "base-40")
    async def test_an_explicit_schema_is_used_as_it_is(self) -> None:
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"type": "number", "exclusiveMinimum": 0}},
            "patternProperties": {"^x-": True},
            "unevaluatedProperties": False,
        }

        @self.server.tool(schema=schema)
        def f(**arguments: Any) -> Any:
            return arguments

        self.assertEqual((await self.listed())["f"]["inputSchema"], schema)
        reply = await self.tool("f", {"a": 5.0, "x-y": [1]})
        self.assertEqual(reply.result["structuredContent"], {"a": 5.0, "x-y": [1]})
        self.assertFails(await self.tool("f", {"a": 0}), "a")
        self.assertFails(await self.tool("f", {"b": 0}), "b")

    @spec("tools-12", "base-40", "base-43")
    async def test_schemas_that_cannot_be_are_refused_at_registration(self) -> None:
        """TOL-14, TOL-15."""
        inside = {"type": "object", "properties": {}}
        for schema in (
            *({}, {"type": "array"}, {"type": "string"}, True, False, [], "object"),
            {"type": ["object", "null"]},
            {"properties": {}},
            inside | {"properties": []},
            inside | {"required": "a"},
            inside | {"properties": {"a": {"type": "strin"}}},
            inside | {"properties": {"a": {"pattern": "("}}},
            inside | {"$schema": "http://json-schema.org/draft-04/schema#"},
            inside | {"$schema": "http://json-schema.org/draft-07/schema#"},
            inside | {"$schema": "https://example.com/unknown"},
            inside | {"properties": {"a": {"$ref": "http://127.0.0.1:9/s.json"}}},
            inside | {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
            inside | {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        ):
            with self.subTest(schema):
                with self.assertRaisesRegex(ValueError, "schema of 'bad'"):
                    self.server.tool(lambda **k: 1, name="bad", schema=schema)
                fits_results = isinstance(schema, dict) and schema.keys() <= {"type"}
                if fits_results or schema == {"properties": {}}:
                    continue
                with self.assertRaisesRegex(ValueError, "output schema of 'bad'"):
                    self.server.tool(lambda: 1, name="bad", output_schema=schema)
        self.server.tool(lambda: 1, name="good")
        self.assertEqual(list(await self.listed()), ["good"])

    @spec("base-41", "base-42")
    def test_references_are_never_fetched(self) -> None:
        """TOL-15: nothing comes to the port that the reference names."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(0)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/s.json"
            with self.assertRaises(ValueError):
                self.server.tool(
                    lambda: {},
                    name="t",
                    output_schema={
                        "type": "object",
                        "properties": {"x": {"$ref": url}},
                    },
                )
            with self.assertRaises(BlockingIOError):
                listener.accept()

    async def test_signatures_that_cannot_be_are_refused_at_registration(self) -> None:
        """TOL-08, TOL-10: and the list goes on to work."""

        def many(*args: int) -> None: ...

        def custom(a: threading.Lock) -> None: ...

        def unresolved(a: "NoSuchName") -> None: ...  # noqa: F821

        def twice(a: Context, b: Context) -> None: ...

        for function in (many, custom, unresolved, twice):
            with self.subTest(function.__name__):
                with self.assertRaisesRegex(TypeError, function.__name__):
                    self.server.tool(function)
        self.server.tool(lambda: 1, name="good")
        self.assertEqual(list(await self.listed()), ["good"])

    async def test_definitions_that_are_not_json_are_refused(self) -> None:
        """TOL-08: they would break every tools/list."""
        for options in (
            {"meta": {"com.example/a": float("nan")}},
            {"meta": {"com.example/a": object()}},
            {"meta": {"bad key": 1}},
            {"meta": {"com..example/a": 1}},
            {"annotations": {"x": {1, 2}}},
            {"annotations": {"readOnlyHint": "yes"}},
            {"icons": [{"src": "javascript:alert(1)"}]},
            {"icons": [{"src": "file:///a.png"}]},
            {"icons": [{"mimeType": "image/png"}]},
        ):
            with self.subTest(options):
                with self.assertRaises((ValueError, TypeError)):
                    self.server.tool(lambda: 1, name="bad", **options)
        self.server.tool(lambda: 1, name="good")
        self.assertEqual(list(await self.listed()), ["good"])

    @spec("tools-15", "tools-17", "tools-18")
    def test_names_that_hosts_do_not_expect_are_warned_about(self) -> None:
        for name in ("getUser", "DATA_EXPORT_v2", "admin.tools.list", "a-b", "x" * 128):
            with self.subTest(name), self.assertNoLogs("mcp_ref", "WARNING"):
                self.server.tool(lambda: 1, name=name)
        for name in ("a b", "a,b", "x" * 129, "ä", "a/b", "a\nb"):
            with self.subTest(name), self.assertLogs("mcp_ref", "WARNING"):
                self.server.tool(lambda: 1, name=name)

    @spec("tools-16", "tools-19")
    async def test_names_are_unique_and_have_case(self) -> None:
        """TOL-13."""
        self.server.tool(lambda: "lower", name="get")
        self.server.tool(lambda: "upper", name="GET")
        self.assertEqual((await self.tool("get")).text, "lower")
        self.assertEqual((await self.tool("GET")).text, "upper")
        with self.assertRaisesRegex(ValueError, "get"):
            self.server.tool(lambda: "other", name="get")
        self.assertEqual((await self.tool("get")).text, "lower")
        self.assertEqual((await self.tool("Get")).error["code"], -32602)

    def test_type_hints_become_the_schema(self) -> None:
        """TOL-07, TOL-09, TOL-11: this file has its hints as strings."""

        def f(
            p: ToolPoint,
            t: ToolOptions,
            u: ToolPair,
            a: int | None = None,
            b: Optional[Literal["x", "y"]] = None,
            c: int | str = 1,
            q: Annotated[int, "how many", {"minimum": 0}] = 3,
            seen: list[int] = [],  # noqa: B006
            when: datetime.date = datetime.date(2026, 7, 28),
            *,
            ctx: Context,
            last: bool = False,
        ) -> None: ...

        schema = tool_schema(f)
        properties = schema["properties"]
        self.assertEqual(schema["required"], ["p", "t", "u"])
        self.assertNotIn("ctx", properties)
        self.assertEqual(
            properties["p"],
            {
                "type": "object",
                "properties": {
                    "x": {"type": "integer"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["x"],
                "additionalProperties": False,
            },
        )
        self.assertEqual(
            properties["a"],
            {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        )
        self.assertEqual(
            properties["b"]["anyOf"][0], {"type": "string", "enum": ["x", "y"]}
        )
        self.assertEqual(properties["c"]["default"], 1)
        self.assertEqual(
            properties["q"],
            {
                "type": "integer",
                "description": "how many",
                "minimum": 0,
                "default": 3,
            },
        )
        self.assertEqual(properties["when"]["default"], "2026-07-28")
        self.assertEqual(properties["when"]["format"], "date")
        mcp_ref.Schema(schema)

    async def test_recursive_types_use_references(self) -> None:
        @self.server.tool
        def depth(node: ToolNode) -> int:
            return 1 + (depth(node.next) if node.next else 0)

        chain = {"value": 1, "next": {"value": 2, "next": {"value": 3}}}
        self.assertEqual((await self.tool("depth", {"node": chain})).text, "3")
        bad = {"value": 1, "next": {"value": "2"}}
        self.assertFails(await self.tool("depth", {"node": bad}), "node.next.value")

    # --- arguments ------------------------------------------------------------------------

    async def test_strings_that_look_like_json_stay_strings(self) -> None:
        """TOL-01."""

        @self.server.tool
        def echo(text: str) -> str:
            return repr(text)

        for text in ('{"a": 1}', "123", "null", "[1]", "true", "1e5", "", '"'):
            with self.subTest(text):
                reply = await self.tool("echo", {"text": text})
                self.assertEqual(reply.text, repr(text))

    async def test_malformed_calls_are_errors_of_the_protocol(self) -> None:
        """TOL-02, TOL-03, ERR-01."""
        self.server.tool(lambda: "x", name="now")
        for params in (
            {"name": "now", "arguments": '{"text": "x"}'},
            {"name": "now", "arguments": [1]},
            {"name": "now", "arguments": 5},
            {"name": "now", "arguments": None},
            {"name": 5},
            {"name": None},
            {"name": ["now"]},
            {},
        ):
            with self.subTest(params):
                self.assertEqual(
                    (await self.call("tools/call", params)).error["code"], -32602
                )

    async def test_calls_without_arguments_are_calls_with_none(self) -> None:
        """TOL-03."""
        self.server.tool(lambda: "x", name="now")
        self.server.tool(lambda a: a, name="needs")
        self.assertEqual((await self.call("tools/call", {"name": "now"})).text, "x")
        self.assertFails(await self.call("tools/call", {"name": "needs"}), "'a'")

    async def test_an_unknown_tool_is_an_error_of_the_protocol(self) -> None:
        """ERR-01, UNTESTED B17."""
        self.server.tool(lambda: 1, name="known")
        for name in ("no_such_tool", "", "Known", "known ", "x" * 100_000, "\ud800"):
            with self.subTest(name[:20]):
                error = (await self.tool(name)).error
                self.assertEqual(error["code"], -32602)
                self.assertIn(name[:20], error["message"])
                self.assertLess(len(error["message"]), 300)

    @spec("tools-42")
    async def test_bad_arguments_are_told_to_the_model_by_name(self) -> None:
        """TOL-04, TOL-05, TOL-06, TOL-11, UNTESTED B18."""

        @self.server.tool
        def add(a: int, b: int = 0) -> str:
            return repr((a, b))

        @self.server.tool
        def move(p: ToolPoint, color: ToolColor = ToolColor.RED, f: float = 0) -> str:
            return repr((p, color, f))

        for name, arguments, words in (
            ("add", {}, ("a",)),
            ("add", {"a": 5.7}, ("a", "integer", "5.7")),
            ("add", {"a": True}, ("a", "integer", "true")),
            ("add", {"a": "5"}, ("a", "integer", "'5'")),
            ("add", {"a": None}, ("a", "integer", "null")),
            ("add", {"a": [1]}, ("a", "integer")),
            ("add", {"a": 1, "c": 2}, ("'c'", "a, b")),
            ("add", {"a": "x", "b": "y", "c": 1}, ("a:", "b:", "'c'")),
            ("move", {"p": {"x": "1"}}, ("p.x", "integer")),
            ("move", {"p": {"x": 1, "y": 2}}, ("p", "'y'")),
            ("move", {"p": {"x": 1, "tags": ["a", 2]}}, ("p.tags[1]", "string")),
            ("move", {"p": {"x": 1}, "color": "blue"}, ("color", "'r'")),
            ("move", {"p": {"x": 1}, "color": 1}, ("color",)),
            ("move", {"p": {"x": 1}, "f": "3"}, ("f", "number")),
            ("move", {"p": "here"}, ("p", "object")),
        ):
            with self.subTest(name, arguments=arguments):
                reply = await self.tool(name, arguments)
                self.assertFails(reply, "Invalid arguments", *words)
                self.assertLess(len(reply.text), 500)

    async def test_good_arguments_come_in_the_type_of_the_hint(self) -> None:
        """TOL-05, TOL-08, TOL-11."""

        @self.server.tool
        def show(
            a: int = 0,
            f: float = 0.5,
            flag: bool = False,
            p: ToolPoint | None = None,
            c: ToolColor | None = None,
            m: Literal[True, 1, "a", None] = "a",
            pair: ToolPair | None = None,
            day: datetime.date | None = None,
            id: uuid.UUID | None = None,
            money: decimal.Decimal | None = None,
            raw: bytes = b"",
            path: pathlib.Path | None = None,
            some: set[int] | None = None,
        ) -> str:
            return repr({k: v for k, v in locals().items() if k == key})

        for key, given, value in (
            ("a", 5.0, 5),
            ("a", 2**70, 2**70),
            ("f", 3, 3.0),
            ("flag", True, True),
            ("p", {"x": 1}, ToolPoint(1)),
            ("c", "r", ToolColor.RED),
            ("c", True, ToolColor.ON),
            ("c", 2, ToolColor.TWO),
            ("m", 1, 1),
            ("m", True, True),
            ("m", None, None),
            ("pair", {"left": 1}, ToolPair(1)),
            ("day", "2026-07-28", datetime.date(2026, 7, 28)),
            ("id", str(uuid.UUID(int=1)), uuid.UUID(int=1)),
            ("money", "1.10", decimal.Decimal("1.10")),
            ("raw", "+/8=", b"\xfb\xff"),
            ("path", "a/b", pathlib.Path("a/b")),
            ("some", [1, 2], {1, 2}),
        ):
            with self.subTest(key, given=given):
                reply = await self.tool("show", {key: given})
                self.assertEqual(reply.text, repr({key: value}))

    async def test_defaults_are_not_shared_between_calls(self) -> None:
        """TOL-11."""

        @self.server.tool
        def collect(item: int, seen: list[int] = []) -> list[int]:  # noqa: B006
            seen.append(item)
            return seen

        for item in (1, 2):
            reply = await self.tool("collect", {"item": item})
            self.assertEqual(reply.result["structuredContent"], [item])

    async def test_odd_names_of_parameters_are_no_trouble(self) -> None:
        """TOL-10."""

        @self.server.tool
        def d(
            name: str, arguments: dict[str, int], self: int = 0, method: str = ""
        ) -> str:
            return repr((name, arguments, self, method))

        @self.server.tool
        def rest(**ctx: int) -> str:
            return repr(sorted(ctx.items()))

        @self.server.tool
        def untyped(ctx, x, /):  # type: ignore[no-untyped-def]
            return repr((ctx, x))

        arguments = {"name": "n", "arguments": {"a": 1}, "self": 2, "method": "m"}
        reply = await self.tool("d", arguments)
        self.assertEqual(reply.text, repr(("n", {"a": 1}, 2, "m")))
        reply = await self.tool("rest", {"self": 1, "function": 2, "ctx": 3})
        self.assertEqual(reply.text, "[('ctx', 3), ('function', 2), ('self', 1)]")
        self.assertFails(await self.tool("rest", {"a": "x"}), "a", "integer")
        reply = await self.tool("untyped", {"ctx": 1, "x": None})
        self.assertEqual(reply.text, "(1, None)")

    @spec("base-44")
    async def test_hostile_arguments_and_schemas_stop_at_a_budget(self) -> None:
        """TOL-16."""
        names = [f"d{n}" for n in range(40)]
        defs = {
            a: {"allOf": [{"$ref": f"#/$defs/{b}"}] * 2}
            for a, b in itertools.pairwise(names)
        }
        defs[names[-1]] = {"type": "object"}
        schema = {"type": "object", "$defs": defs, "allOf": [{"$ref": "#/$defs/d0"}]}
        self.server.tool(lambda **k: 1, name="doubling", schema=schema)
        self.server.tool(lambda a: 1, name="any")
        self.assertFails(await self.tool("doubling"), "Invalid arguments")
        deep: JSON = []
        for _ in range(400):
            deep = [deep]
        self.assertEqual((await self.tool("any", {"a": deep})).text, "1")

    # --- callables and threads ------------------------------------------------------------

    async def test_all_kinds_of_callables_can_be_tools(self) -> None:
        class Object:
            def method(self, a: int) -> int:
                return a + 1

            async def later(self, a: int) -> int:
                return a + 2

            def __call__(self, a: int) -> int:
                return a + 3

            @staticmethod
            def static(a: int) -> int:
                return a + 4

        def add(a: int, b: int) -> int:
            return a + b

        async def add_later(a: int, b: int) -> int:
            return a + b

        @functools.wraps(add)
        def wrapped(*args: Any, **more: Any) -> int:
            return add(*args, **more) + 100

        one = Object()
        for n, function in enumerate(
            (
                *(one.method, one.later, one, one.static),
                functools.partial(add, b=5),
                functools.partial(add_later, b=6),
            ),
            1,
        ):
            with self.subTest(n):
                self.server.tool(function, name=f"t{n}")
                self.assertEqual((await self.tool(f"t{n}", {"a": 0})).text, str(n))
        self.server.tool(wrapped)
        self.assertEqual((await self.tool("add", {"a": 1, "b": 1})).text, "102")

    async def test_parameters_without_a_keyword_can_be_left_out(self) -> None:
        @self.server.tool
        def tell(a: int, b: int = 2, c: int = 3, /, d: int = 4) -> list[int]:
            return [a, b, c, d]

        for arguments, expected in (
            ({"a": 1}, [1, 2, 3, 4]),
            ({"a": 1, "c": 0}, [1, 2, 0, 4]),
            ({"d": 0, "c": 0, "b": 0, "a": 0}, [0, 0, 0, 0]),
        ):
            with self.subTest(arguments):
                result = (await self.tool("tell", arguments)).result
                self.assertEqual(result["structuredContent"], expected)

    async def test_plain_functions_run_in_threads_with_their_callers_context(
        self,
    ) -> None:
        """TOL-17."""

        @self.server.tool
        def who() -> str:
            return f"{TOOL_USER.get()} {threading.current_thread() is main}"

        main = threading.current_thread()

        async def one(name: str) -> str:
            TOOL_USER.set(name)
            return (await self.tool("who")).text

        names = [f"u{n}" for n in range(20)]
        found = await asyncio.gather(*map(one, names))
        self.assertEqual(found, [f"{name} False" for name in names])

    async def test_the_context_belongs_to_the_request(self) -> None:
        @self.server.tool
        def who(ctx: Context) -> str:
            return f"{ctx.headers.get('x-user')} {ctx.request.id} {ctx.request.peer}"

        async def one(n: int) -> str:
            headers = {"x-user": f"u{n}", "mcp-method": "tools/call", "mcp-name": "who"}
            headers["mcp-protocol-version"] = "2026-07-28"
            return (await self.tool("who", id=n, headers=headers, peer=f"p{n}")).text

        found = await asyncio.gather(*map(one, range(20)))
        self.assertEqual(found, [f"u{n} {n} p{n}" for n in range(20)])

    # --- results --------------------------------------------------------------------------

    @spec("tools-37")
    async def test_values_become_text_and_structured_content(self) -> None:
        """OUT-02, OUT-03, OUT-04, OUT-06."""
        utc = datetime.timezone.utc
        nothing = object()
        for value, content, structured in (
            ("x", ["x"], nothing),
            ("", [""], nothing),
            ("\ud800", ["\ud800"], nothing),
            (None, [], nothing),
            ([], ["[]"], []),
            ({}, ["{}"], {}),
            (0, ["0"], 0),
            (False, ["false"], False),
            (1.5, ["1.5"], 1.5),
            ({"a": [1, None]}, ['{"a": [1, null]}'], {"a": [1, None]}),
            ({"ü": "ü"}, ['{"ü": "ü"}'], {"ü": "ü"}),
            ((1, 2), ["[1, 2]"], [1, 2]),
            ({3, 1}, ["[1, 3]"], [1, 3]),
            ({5: "a"}, ['{"5": "a"}'], {"5": "a"}),
            (iter([1]), ["[1]"], [1]),
            (
                datetime.datetime(2026, 7, 28, tzinfo=utc),
                ["2026-07-28T00:00:00+00:00"],
                "2026-07-28T00:00:00+00:00",
            ),
            (decimal.Decimal("1.10"), ["1.10"], "1.10"),
            (uuid.UUID(int=1), [str(uuid.UUID(int=1))], str(uuid.UUID(int=1))),
            (b"\xfb\xff", ["+/8="], "+/8="),
            (pathlib.PurePosixPath("a/b"), ["a/b"], "a/b"),
            (ToolColor.RED, ["r"], "r"),
            (
                ToolPoint(1),
                ['{"x": 1, "tags": []}'],
                {"x": 1, "tags": []},
            ),
            (ToolPair(1), ['{"left": 1, "right": "r"}'], {"left": 1, "right": "r"}),
        ):
            with self.subTest(repr(value)):
                self.setUp()
                self.server.tool(returning(value), name="t")
                result = (await self.tool("t")).result
                self.assertEqual([one["text"] for one in result["content"]], content)
                self.assertEqual(result.get("structuredContent", nothing), structured)
                self.assertNotIn("isError", result)

    @spec("tools-34", "tools-35", "prompts-08", "prompts-09", "prompts-11")
    async def test_content_blocks_of_every_kind_go_out_as_they_are(self) -> None:
        notes = mcp_ref.annotations(["user"], 0.9, "2025-05-03T14:30:00Z")
        raw, coded = b"\xfb\xff\xfe", "+//+"
        blocks = [
            (mcp_ref.text("a"), {"type": "text", "text": "a"}),
            (
                mcp_ref.image(raw, "image/png"),
                {"type": "image", "data": coded, "mimeType": "image/png"},
            ),
            (
                mcp_ref.audio(raw, "audio/wav"),
                {"type": "audio", "data": coded, "mimeType": "audio/wav"},
            ),
            (
                mcp_ref.embedded("file:///a.rs", "fn", "text/x-rust"),
                {
                    "type": "resource",
                    "resource": {
                        "uri": "file:///a.rs",
                        "mimeType": "text/x-rust",
                        "text": "fn",
                    },
                },
            ),
            (
                mcp_ref.embedded("a:b", raw, "image/png"),
                {
                    "type": "resource",
                    "resource": {"uri": "a:b", "mimeType": "image/png", "blob": coded},
                },
            ),
            (
                mcp_ref.resource_link(
                    "file:///a.rs",
                    "a.rs",
                    title="A",
                    description="d",
                    mime_type="text/x-rust",
                    size=2,
                ),
                {
                    "type": "resource_link",
                    "uri": "file:///a.rs",
                    "name": "a.rs",
                    "title": "A",
                    "description": "d",
                    "mimeType": "text/x-rust",
                    "size": 2,
                },
            ),
            (
                mcp_ref.text("a", annotations=notes, meta={"com.example/k": 1}),
                {
                    "type": "text",
                    "text": "a",
                    "annotations": {
                        "audience": ["user"],
                        "priority": 0.9,
                        "lastModified": "2025-05-03T14:30:00Z",
                    },
                    "_meta": {"com.example/k": 1},
                },
            ),
        ]
        for given, wire in blocks:
            with self.subTest(wire["type"]):
                self.setUp()
                self.server.tool(returning(given), name="t")
                self.assertEqual((await self.tool("t")).result["content"], [wire])
        every = [given for given, _ in blocks]
        self.server.tool(lambda: every, name="list")
        self.server.tool(lambda: (*every, "text", {"a": 1}), name="mixed")
        wires = [wire for _, wire in blocks]
        self.assertEqual((await self.tool("list")).result["content"], wires)
        mixed = (await self.tool("mixed")).result
        self.assertEqual(
            mixed["content"],
            [
                *wires,
                {"type": "text", "text": "text"},
                {"type": "text", "text": '{"a": 1}'},
            ],
        )
        self.assertNotIn("structuredContent", mixed)

    @spec("prompts-08", "prompts-09", "prompts-11", "resources-12")
    def test_blocks_that_cannot_be_are_refused(self) -> None:
        for build in (
            lambda: mcp_ref.image(b"", "png"),
            lambda: mcp_ref.image(b"", ""),
            lambda: mcp_ref.audio(b"", "audio/"),
            lambda: mcp_ref.audio(b"", "audio/wav\r\nX: y"),
            lambda: mcp_ref.embedded("no uri", "a", "text/plain"),
            lambda: mcp_ref.resource_link("no uri", "a"),
            lambda: mcp_ref.text("a", meta={"bad key": 1}),
            lambda: mcp_ref.annotations(audience=["model"]),
            lambda: mcp_ref.annotations(priority=1.1),
            lambda: mcp_ref.annotations(priority=-0.1),
            lambda: mcp_ref.annotations(last_modified="yesterday"),
            lambda: mcp_ref.text("a", annotations={"priority": 2}),
        ):
            with self.subTest(), self.assertRaises(ValueError):
                build()
        now = datetime.datetime(2026, 7, 28, tzinfo=datetime.timezone.utc)
        self.assertEqual(
            mcp_ref.annotations(last_modified=now),
            {"lastModified": "2026-07-28T00:00:00+00:00"},
        )

    async def test_a_whole_result_can_be_returned(self) -> None:
        for given, content, rest in (
            (mcp_ref.result(["a", mcp_ref.text("b")]), ["a", "b"], {}),
            (mcp_ref.result(structured=None), ["null"], {"structuredContent": None}),
            (mcp_ref.result(structured=[1]), ["[1]"], {"structuredContent": [1]}),
            (mcp_ref.result(structured=iter([1])), ["[1]"], {"structuredContent": [1]}),
            (
                mcp_ref.result(["one"], structured=[1]),
                ["one"],
                {"structuredContent": [1]},
            ),
            (mcp_ref.result(["no"], is_error=True), ["no"], {"isError": True}),
            (mcp_ref.result(), [], {}),
        ):
            with self.subTest(given):
                self.setUp()
                self.server.tool(returning(given), name="t")
                for _ in range(2):  # a result may be kept and returned again
                    result = (await self.tool("t")).result
                    found = [one["text"] for one in result.pop("content")]
                    self.assertEqual(found, content)
                    del result["resultType"], result["_meta"]
                    self.assertEqual(result, rest)
        self.server.tool(
            lambda: mcp_ref.result(["a"], meta={"com.example/k": 1}), name="meta"
        )
        self.assertEqual((await self.tool("meta")).result["_meta"]["com.example/k"], 1)

    @spec("tools-38")
    async def test_the_output_schema_comes_from_the_return_hint(self) -> None:
        """OUT-07."""

        @self.server.tool
        def number() -> int:
            return 5

        @self.server.tool
        def lies() -> int:
            return "5"  # type: ignore[return-value]

        @self.server.tool
        def maybe() -> int | None:
            return None

        @self.server.tool
        def points() -> list[ToolPoint]:
            return [ToolPoint(1)]

        @self.server.tool
        def fails() -> int:
            raise ValueError("x")

        @self.server.tool
        def refuses() -> int:
            raise mcp_ref.ToolError("try later")

        @self.server.tool
        def says() -> str:
            return "x"

        @self.server.tool
        def block() -> mcp_ref.Content:
            return mcp_ref.text("x")

        tools = await self.listed()
        self.assertEqual(tools["number"]["outputSchema"], {"type": "integer"})
        self.assertEqual(tools["points"]["outputSchema"]["type"], "array")
        self.assertNotIn("outputSchema", tools["says"])
        self.assertNotIn("outputSchema", tools["block"])
        for name, structured in (
            ("number", 5),
            ("maybe", None),
            ("points", [{"x": 1, "tags": []}]),
        ):
            with self.subTest(name):
                result = (await self.tool(name)).result
                self.assertEqual(result["structuredContent"], structured)
        for name in ("lies", "fails"):
            with self.subTest(name):
                self.assertFails(await self.tool(name))
        self.assertFails(await self.tool("refuses"), "try later")

    @spec("tools-38")
    async def test_an_output_schema_that_is_given_is_held(self) -> None:
        """OUT-07."""
        schema = {
            "type": "object",
            "required": ["n"],
            "properties": {"n": {"type": "integer"}},
        }
        for value, fits in (
            ({"n": 1}, True),
            ({"n": 1, "m": 2}, True),
            ({"n": "x"}, False),
            ({}, False),
            ("plain", False),
            (None, False),
            (mcp_ref.text("plain"), False),
            (mcp_ref.result(["text"]), False),
            (mcp_ref.result(["text"], structured={"n": 1}), True),
            (mcp_ref.result(["text"], structured={"n": None}), False),
        ):
            with self.subTest(value):
                self.setUp()
                self.server.tool(
                    returning(value),
                    name="t",
                    output_schema=schema,
                )
                reply = await self.tool("t")
                if fits:
                    self.assertIn("n", reply.result["structuredContent"])
                else:
                    self.assertFails(reply)
        self.setUp()
        self.server.tool(
            lambda: mcp_ref.result(["no"], is_error=True),
            name="t",
            output_schema=schema,
        )
        self.assertFails(await self.tool("t"), "no")
        self.server.tool(lambda: 5, name="any", output_schema={})
        self.assertEqual((await self.listed())["any"]["outputSchema"], {})

    async def test_what_is_not_json_becomes_an_error_and_never_bad_json(self) -> None:
        """OUT-01, OUT-02."""
        loop: list[Any] = []
        loop.append(loop)
        for value in (
            float("nan"),
            {"mean": float("inf")},
            {(1, 2): "tuple key"},
            loop,
            object(),
            {1: "a", "1": "b"},
            10**5000,
            mcp_ref.result(["a"], structured=float("-inf")),
            [mcp_ref.text("a"), object()],
        ):
            with self.subTest(type(value)):
                self.setUp()
                self.server.tool(returning(value), name="t")
                reply = await self.tool("t")
                if "error" in reply.response:
                    self.assertEqual(reply.error["code"], -32603)
                else:
                    self.assertFails(reply)

    async def test_a_number_that_json_cannot_write_is_named(self) -> None:
        """OUT-01."""
        rows = {"rows": [1, {"mean": float("inf")}]}
        self.server.tool(returning(rows), name="t")
        self.assertFails(await self.tool("t"), "result['rows'][1]['mean'] is inf")

    # --- errors ---------------------------------------------------------------------------

    RAISED = [
        RuntimeError("db password=hunter2 at /srv/app/x.py"),
        KeyError("hunter2"),
        OSError(13, "hunter2", "/srv"),
        MemoryError("hunter2"),
        StopIteration("hunter2"),
        StopAsyncIteration("hunter2"),
        SystemExit("hunter2"),
        SystemExit(3),
        asyncio.CancelledError("hunter2"),
        TimeoutError("hunter2"),
        ExceptionGroup("hunter2", [ValueError("hunter2")]),
        UnicodeDecodeError("utf-8", b"hunter2", 0, 1, "hunter2"),
    ]

    @spec("tools-42")
    async def test_whatever_a_tool_raises_fails_that_call_alone(self) -> None:
        """ERR-02, ERR-03."""
        for error in self.RAISED:
            for function in raising(error):
                for masked in (True, False):
                    with self.subTest(repr(error), of=function.__name__, masked=masked):
                        self.server = Server("t", mask_errors=masked)
                        self.server.tool(function, name="t")
                        self.server.tool(lambda: "alive", name="next")
                        with self.assertLogs("mcp_ref", "ERROR"):
                            reply = await self.tool("t")
                        self.assertFails(reply)
                        self.assertNotIn("Traceback", reply.text)
                        if masked:
                            self.assertNotIn("hunter2", reply.text)
                            self.assertNotIn("/srv", reply.text)
                        self.assertEqual((await self.tool("next")).text, "alive")

    async def test_programs_that_end_themselves_end_only_the_call(self) -> None:
        """ERR-03."""

        @self.server.tool
        def bye() -> None:
            sys.exit(3)

        @self.server.tool
        def parse() -> None:
            with contextlib.redirect_stderr(io.StringIO()):
                argparse.ArgumentParser().parse_args(["--nope"])

        @self.server.tool
        def deep() -> None:
            deep()

        @self.server.tool
        async def deep_later() -> None:
            await deep_later()

        @self.server.tool
        def loop() -> str:
            return asyncio.run(asyncio.sleep(0, "fine"))

        for name in ("bye", "parse", "deep", "deep_later"):
            with self.subTest(name):
                self.assertFails(await self.tool(name))
        self.assertEqual((await self.tool("loop")).text, "fine")

    async def test_a_tool_error_is_always_shown(self) -> None:
        for masked in (True, False):
            with self.subTest(masked=masked):
                self.server = Server("t", mask_errors=masked)

                @self.server.tool
                def t() -> int:
                    raise mcp_ref.ToolError("No flights on Sunday; try Monday")

                reply = await self.tool("t")
                self.assertFails(reply)
                self.assertEqual(reply.text, "No flights on Sunday; try Monday")

    async def test_without_masking_the_type_and_text_are_shown(self) -> None:
        self.server = Server("t", mask_errors=False)

        @self.server.tool
        def t() -> None:
            raise ValueError("no such city")

        self.assertFails(await self.tool("t"), "ValueError", "no such city")

    async def test_an_mcp_error_goes_to_the_host_as_it_is(self) -> None:
        @self.server.tool
        def t() -> None:
            raise mcp_ref.InvalidParams("not now", {"retry": 5})

        self.assertEqual(
            (await self.tool("t")).error,
            {"code": -32602, "message": "not now", "data": {"retry": 5}},
        )

    # --- who may see and call -------------------------------------------------------------

    @spec("tools-05", "tools-07", "tools-42", "caching-29")
    async def test_tools_are_seen_and_called_with_their_scopes_only(self) -> None:
        self.server.tool(lambda: "open", name="open")
        self.server.tool(lambda: "read", name="read", scopes=["read"])
        self.server.tool(lambda: "both", name="both", scopes=["read", "write"])
        for scopes, visible in (
            (None, ["open"]),
            ((), ["open"]),
            (("read",), ["open", "read"]),
            (("write",), ["open"]),
            (("read", "write", "x"), ["open", "read", "both"]),
        ):
            who = (
                None
                if scopes is None
                else mcp_ref.Principal("a", scopes=frozenset(scopes))
            )
            with self.subTest(scopes):
                self.assertEqual(list(await self.listed(principal=who)), visible)
                for name in ("open", "read", "both"):
                    reply = await self.tool(name, principal=who)
                    if name in visible:
                        self.assertEqual(reply.text, name)
                        continue
                    self.assertEqual(reply.error["code"], 403)
                    needed = ["read", "write"] if name == "both" else ["read"]
                    self.assertEqual(reply.error["data"], {"requiredScopes": needed})

    # --- the list and its changes ---------------------------------------------------------

    @spec("tools-06", "tools-08", "resources-04", "prompts-04")
    async def test_lists_depend_on_nothing_but_the_caller(self) -> None:
        """UNTESTED B31."""
        names = [f"n{n * 7 % 30}" for n in range(30)]
        for name in names:
            self.server.tool(lambda: 1, name=name)
            self.server.prompt(lambda: "x", name=name)
            self.server.resource(f"a:{name}")(lambda: "x")
            self.server.resource(f"a:{name}/{{b}}")(lambda b: "x")
        before = {method: (await self.call(method)).result for method in LIST_METHODS}
        await self.tool("n1", id="other", capabilities=ALL_CAPABILITIES)
        await self.call("resources/read", {"uri": "a:n1"})
        await self.call("prompts/get", {"name": "n1"}, peer="10.0.0.1")
        await self.tool("nothing")
        for method, member in LIST_METHODS.items():
            with self.subTest(method):
                again = await self.call(
                    method, id="z", peer="b", capabilities=ALL_CAPABILITIES
                )
                self.assertEqual(again.result, before[method])
                key = {"resources": "uri", "resourceTemplates": "uriTemplate"}
                found = [one[key.get(member, "name")] for one in again.result[member]]
                expected = {
                    "resources": [f"a:{name}" for name in names],
                    "resourceTemplates": [f"a:{name}/{{b}}" for name in names],
                }
                self.assertEqual(found, expected.get(member, names))

    async def test_tools_come_and_go_at_run_time(self) -> None:
        self.server.tool(lambda: "1", name="a")
        self.server.tool(lambda: "2", name="b")
        self.server.remove_tool("a")
        self.assertEqual(list(await self.listed()), ["b"])
        self.assertEqual((await self.tool("a")).error["code"], -32602)
        self.server.tool(lambda: "3", name="a")
        self.assertEqual(list(await self.listed()), ["b", "a"])
        self.assertEqual((await self.tool("a")).text, "3")
        for remove in (
            self.server.remove_tool,
            self.server.remove_prompt,
            self.server.remove_resource,
        ):
            with self.subTest(remove.__name__), self.assertRaises(KeyError):
                remove("ghost")
        self.server.remove_tool("a")
        self.server.remove_tool("b")
        self.assertEqual(await self.listed(), {})  # empty, and still there

    @spec("tools-11", "resources-08", "prompts-07")
    async def test_listeners_are_told_when_lists_change(self) -> None:
        server = self.server
        server.tool(lambda: 1, name="t")
        server.prompt(lambda: "", name="p")
        server.resource("a:r")(lambda: "")
        server.resource("a:{t}")(lambda t: "")
        every = {
            "toolsListChanged": True,
            "promptsListChanged": True,
            "resourcesListChanged": True,
        }
        for filter, actions in (
            (
                "toolsListChanged",
                (
                    lambda: server.tool(lambda: 1, name="new"),
                    lambda: server.remove_tool("t"),
                ),
            ),
            (
                "promptsListChanged",
                (
                    lambda: server.prompt(lambda: "", name="new"),
                    lambda: server.remove_prompt("p"),
                ),
            ),
            (
                "resourcesListChanged",
                (
                    lambda: server.resource("a:new")(lambda: ""),
                    lambda: server.resource("a:{new}/b")(lambda new: ""),
                    lambda: server.remove_resource("a:r"),
                    lambda: server.remove_resource("a:{t}"),
                ),
            ),
        ):
            kind = filter.removesuffix("ListChanged")
            for n, act in enumerate(actions):
                with self.subTest(filter, n=n):
                    method = f"notifications/{kind}/list_changed"
                    told = await heard(server, every, act)
                    self.assertEqual(told, [(method, None)])
        others = {**every, "toolsListChanged": False}
        told = await heard(server, others, lambda: server.remove_tool("new"))
        self.assertEqual(told, [])


# --- server/resources ---------------------------------------------------------------------


class Resources(Case):
    """URIs, templates, contents, and what is not there."""

    async def read(self, uri: Any, **options: Any) -> Reply:
        return await self.call("resources/read", {"uri": uri}, **options)

    async def uris(self) -> list[str]:
        listed = (await self.call("resources/list")).result["resources"]
        return [one["uri"] for one in listed]

    def assertNotFound(self, reply: Reply, uri: str) -> None:
        self.assertEqual(reply.error["code"], -32602)
        self.assertEqual(reply.error["data"], {"uri": uri})

    @spec("resources-03")
    async def test_definitions_go_out_in_full(self) -> None:
        icons = [{"src": "https://example.com/i.png"}]
        options = {
            "name": "main.rs",
            "title": "T",
            "mime_type": "text/x-rust",
            "annotations": {"audience": ["user"], "priority": 0.8},
            "icons": icons,
            "meta": {"com.example/k": 1},
        }
        wire = {
            "name": "main.rs",
            "title": "T",
            "description": "Entry point.",
            "mimeType": "text/x-rust",
            "annotations": {"audience": ["user"], "priority": 0.8},
            "icons": icons,
            "_meta": {"com.example/k": 1},
        }

        def main() -> str:
            "Entry point."
            return "fn"

        def file(path: str) -> str:
            "Entry point."
            return path

        self.server.resource("file:///main.rs", size=2, **options)(main)
        self.server.resource("file:///{path}", **options)(file)
        listed = (await self.call("resources/list")).result["resources"]
        self.assertEqual(listed, [{"uri": "file:///main.rs", "size": 2, **wire}])
        listed = (await self.call("resources/templates/list")).result
        self.assertEqual(
            listed["resourceTemplates"], [{"uriTemplate": "file:///{path}", **wire}]
        )
        self.server.resource("a:b")(main)
        listed = (await self.call("resources/list")).result["resources"]
        self.assertEqual(
            listed[1], {"uri": "a:b", "name": "main", "description": "Entry point."}
        )

    URIS = [
        "https://example.com",
        "custom:abc",
        "MEM://Host/Path",
        "http://h:80/x",
        "file:///a/../b",
        "file:///a//b/./c",
        "urn:isbn:1",
        "note://a?b=%7E",
        "note://%C3%BCn%C3%AF%20x",
        "note://a#frag",
        "note://[::1]/x",
        "a:",
    ]

    @spec("resources-12", "resources-17")
    async def test_uris_are_the_same_byte_for_byte_everywhere(self) -> None:
        """RES-06."""
        for uri in self.URIS:
            self.server.resource(uri)(returning(f"text of {uri}"))
        self.assertEqual(await self.uris(), self.URIS)
        for uri in self.URIS:
            with self.subTest(uri):
                (found,) = (await self.read(uri)).result["contents"]
                self.assertEqual(found, {"uri": uri, "text": f"text of {uri}"})
                told = await heard(
                    self.server,
                    {"resourceSubscriptions": self.URIS},
                    functools.partial(self.server.resource_updated, uri),
                )
                self.assertEqual(told, [("notifications/resources/updated", uri)])
        for uri in (
            "https://example.com/",
            "mem://host/Path",
            "mem://Host/Path",
            "http://h/x",
            "file:///b",
            "note://a?b=~",
            "note://%c3%bcn%c3%af%20x",
            "note://a",
        ):
            with self.subTest(uri):
                self.assertNotFound(await self.read(uri), uri)

    @spec("resources-12")
    def test_uris_that_are_none_are_refused_at_registration(self) -> None:
        """RES-04."""
        for uri in (
            *("", "nocolon", "note://ünï x", "note://a b", "note://a\n", "1a:b", ":a"),
            *("note://%zz", "note://%", "note://<a>", 'note://"', "a:b\\c", "ä:b"),
        ):
            with self.subTest(uri), self.assertRaisesRegex(ValueError, "URI"):
                self.server.resource(uri)(lambda: "")
        for uri in ("a:{", "a:}", "a:{}", "a:{b*}", "a:{b:3}", "a:{b}{b}", "a b:{c}"):
            with self.subTest(uri), self.assertRaises(ValueError):
                self.server.resource(uri)(lambda b="", c="": "")

    async def test_uris_and_templates_are_unique(self) -> None:
        self.server.resource("a:b")(lambda: "1")
        self.server.resource("a:{b}")(lambda b: "2")
        for uri, function in (("a:b", lambda: "3"), ("a:{b}", lambda b: "3")):
            with self.subTest(uri), self.assertRaises(ValueError):
                self.server.resource(uri)(function)

    def test_variables_and_parameters_must_agree(self) -> None:
        def context(ctx: Context, b: str) -> str:
            return b

        for uri, function in (
            ("a:{b}", lambda c: ""),
            ("a:{b}", lambda: ""),
            ("a:b", lambda b: ""),
            ("a:{b}{c}", lambda b, c, d=1: ""),
        ):
            with self.subTest(uri), self.assertRaisesRegex(ValueError, re.escape(uri)):
                self.server.resource(uri)(function)
        self.server.resource("a:{b}")(context)

    @spec("resources-13", "resources-16", "resources-17")
    async def test_what_is_not_there_is_an_error_that_names_it(self) -> None:
        """RES-07, UNTESTED B16."""

        @self.server.resource("note://{name}")
        def note(name: str) -> str | None:
            return None if name == "none" else name

        @self.server.resource("gone:file")
        def gone() -> str:
            return open("/nonexistent/file").read()

        for uri in ("note://none", "other://a", "note://a/b", "note://", "gone:file"):
            with self.subTest(uri):
                self.assertNotFound(await self.read(uri), uri)

    @spec("resources-17")
    async def test_malformed_uris_are_refused(self) -> None:
        """RES-08."""
        self.server.resource("note://{+name}")(lambda name: name)
        for uri in (
            *("%%%", "", "no-scheme", 123, None, True, ["note://a"], {"uri": "a:b"}),
            *("note://a\x00", "note://a b", "note://a\nb", "note://a\x7f", " note://a"),
            *("note://" + "a" * 1_000_000, "http://[::1", "note://%ff", "\ud800:a"),
        ):
            with self.subTest(str(uri)[:20]):
                self.assertEqual((await self.read(uri)).error["code"], -32602)
        reply = await self.call("resources/read")
        self.assertEqual(reply.error["code"], -32602)

    @spec("resources-06", "resources-16", "resources-19")
    async def test_values_become_contents(self) -> None:
        """RES-09, RES-10."""
        raw = b"\xfb\xff\xfe" * 40
        for value, mime, contents in (
            ("text", None, [{"text": "text"}]),
            ("", None, [{"text": ""}]),
            (raw, None, [{"blob": base64.b64encode(raw).decode()}]),
            (b"", None, [{"blob": ""}]),
            (b"plain", "a/b", [{"blob": "cGxhaW4=", "mimeType": "a/b"}]),
            (
                "<p>",
                "text/html;profile=mcp-app",
                [{"text": "<p>", "mimeType": "text/html;profile=mcp-app"}],
            ),
            (
                {"a": "ü"},
                None,
                [{"text": '{"a": "ü"}', "mimeType": "application/json"}],
            ),
            ([], None, [{"text": "[]", "mimeType": "application/json"}]),
            (
                ToolPoint(1),
                "application/vnd.x+json; charset=utf-8",
                [
                    {
                        "text": '{"x": 1, "tags": []}',
                        "mimeType": "application/vnd.x+json; charset=utf-8",
                    }
                ],
            ),
        ):
            with self.subTest(str(value)[:20]):
                self.setUp()
                self.server.resource("a:b", mime_type=mime)(returning(value))
                found = (await self.read("a:b")).result["contents"]
                self.assertEqual(found, [{"uri": "a:b", **one} for one in contents])
                for one in found:
                    if "blob" in one:
                        base64.b64decode(one["blob"], validate=True)

    @spec("resources-06")
    async def test_several_contents_come_from_one_read(self) -> None:
        @self.server.resource("dir:///")
        def directory() -> Any:
            return [
                mcp_ref.contents("dir:///a", "A", "text/plain"),
                mcp_ref.contents("dir:///b", b"B", meta={"com.example/k": 1}),
            ]

        @self.server.resource("one:///")
        def one() -> Any:
            return mcp_ref.contents("other:///", "A")

        self.assertEqual(
            (await self.read("dir:///")).result["contents"],
            [
                {"uri": "dir:///a", "mimeType": "text/plain", "text": "A"},
                {"uri": "dir:///b", "blob": "Qg==", "_meta": {"com.example/k": 1}},
            ],
        )
        self.assertEqual(
            (await self.read("one:///")).result["contents"],
            [{"uri": "other:///", "text": "A"}],
        )

    async def test_templates_match_and_convert(self) -> None:
        """RES-01 to RES-03, RES-05."""
        server = self.server
        server.resource("note://{name}")(lambda name: name)
        server.resource("files://{+path}")(lambda path: path)
        server.resource("data://v1.0/{x}")(lambda x: x)
        server.resource("calc://(a+b)/{y}")(lambda y: y)
        server.resource("p://{a}-{b}-{c}-{d}")(lambda a, b, c, d: f"{a}|{b}|{c}|{d}")

        @server.resource("search://q{?term,limit}")
        def search(term: str = "all", limit: int = 10) -> Any:
            return [term, limit]

        @server.resource("day://{day}")
        async def on(day: datetime.date) -> str:
            return repr(day)

        for uri, text in (
            ("note://my%20file", "my file"),
            ("note://a%2Fb", "a/b"),
            ("note://100%2525", "100%25"),
            ("note://a+b", "a+b"),
            ("note://caf%C3%A9", "café"),
            ("note://5", "5"),
            ("note://null", "null"),
            ("files://x/y/z.txt", "x/y/z.txt"),
            ("data://v1.0/1", "1"),
            ("calc://(a+b)/2", "2"),
            ("p://1-2-3-4", "1|2|3|4"),
            ("search://q", '["all", 10]'),
            ("search://q?term=a%26b&limit=2", '["a&b", 2]'),
            ("search://q?limit=2&term=x", '["x", 2]'),
            ("search://q?term=a%23b", '["a#b", 10]'),
            ("search://q?term=5", '["5", 10]'),
            ("day://2026-07-28", repr(datetime.date(2026, 7, 28))),
        ):
            with self.subTest(uri):
                (found,) = (await self.read(uri)).result["contents"]
                self.assertEqual(found["text"], text)
                self.assertEqual(found["uri"], uri)
        for uri in (
            "note://a/b",
            "note://%ff",
            "data://v1X0/1",
            "calc://ab/2",
            "search://q?limit=two",
            "search://q?limit=2.5",
            "search://q?other=1",
            "day://today",
        ):
            with self.subTest(uri[:20]):
                self.assertNotFound(await self.read(uri), uri)
        reply = await self.read("p://" + "-" * 5000)  # many ways, and still quick
        self.assertIn("contents", reply.result)

    async def test_the_exact_uri_wins_and_then_the_more_specific_template(self) -> None:
        self.server.resource("a://{+x}")(lambda x: "wide")
        self.server.resource("a://b/{x}")(lambda x: "narrow")
        self.server.resource("a://b/c")(lambda: "exact")
        for uri, text in (
            ("a://b/c", "exact"),
            ("a://b/d", "narrow"),
            ("a://b/d/e", "wide"),
        ):
            with self.subTest(uri):
                (found,) = (await self.read(uri)).result["contents"]
                self.assertEqual(found["text"], text)
        self.server.remove_resource("a://b/c")
        (found,) = (await self.read("a://b/c")).result["contents"]
        self.assertEqual(found["text"], "narrow")

    @spec("resources-17", "resources-21")
    async def test_paths_cannot_leave_their_root(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder, "root")
            (root / "sub").mkdir(parents=True)
            (root / "sub" / "a b.txt").write_text("inside")
            pathlib.Path(folder, "secret.txt").write_text("outside")
            (root / "link").symlink_to(pathlib.Path(folder, "secret.txt"))

            @self.server.resource("file:///{+path}")
            def file(path: str) -> str:
                return mcp_ref.safe_path(root, path).read_text()

            @self.server.resource("name:///{name}")
            def name(name: str) -> str:
                return mcp_ref.safe_path(root, name).read_text()

            (found,) = (await self.read("file:///sub/a%20b.txt")).result["contents"]
            self.assertEqual(found["text"], "inside")
            (found,) = (await self.read("name:///sub%2Fa%20b.txt")).result["contents"]
            self.assertEqual(found["text"], "inside")
            for uri in (
                "file:///../secret.txt",
                "file:///sub/../../secret.txt",
                "file:///%2E%2E/secret.txt",
                "file:///..%2Fsecret.txt",
                "file:///%2e%2e%2fsecret.txt",
                "file:///%252e%252e/secret.txt",
                f"file:///{folder}/secret.txt",
                f"file:////{folder}/secret.txt",
                "file:///..%5Csecret.txt",
                "file:///sub%00/../../secret.txt",
                "file:///link",
                "file:///C:%5Csecret.txt",
                "name:///..%2Fsecret.txt",
                "name:///%2Fetc%2Fpasswd",
                "file:///nothing.txt",
            ):
                with self.subTest(uri):
                    self.assertNotFound(await self.read(uri), uri)

    @spec("resources-14")
    async def test_what_fails_inside_is_an_internal_error_without_details(self) -> None:
        """ERR-02, ERR-04."""
        for error in (*Tools.RAISED, mcp_ref.ToolError("hunter2"), KeyError("hunter2")):
            for function in raising(error):
                with self.subTest(repr(error), of=function.__name__):
                    self.setUp()
                    self.server.resource("a:b")(lambda: "alive")
                    self.server.resource("a:c")(function)
                    self.server.prompt(function, name="p")
                    with self.assertLogs("mcp_ref", "ERROR"):
                        reply = await self.read("a:c")
                    self.assertEqual(reply.error["code"], -32603)
                    self.assertNotIn("hunter2", json.dumps(reply.error))
                    with self.assertLogs("mcp_ref", "ERROR"):
                        reply = await self.call("prompts/get", {"name": "p"})
                    self.assertEqual(reply.error["code"], -32603)
                    self.assertNotIn("hunter2", json.dumps(reply.error))
                    self.assertIn("result", (await self.read("a:b")).response)

    @spec("resources-05", "resources-18", "resources-20", "caching-29")
    async def test_resources_are_seen_and_read_with_their_scopes_only(self) -> None:
        self.server.resource("a:open")(lambda: "x")
        self.server.resource("a:shut", scopes=["s"])(lambda: "x")
        self.server.resource("t:{x}", scopes=["s"])(lambda x: x)
        ran: list[str] = []
        self.server.resource("r:{x}", scopes=["s"])(lambda x: ran.append(x))
        may = mcp_ref.Principal("a", scopes=frozenset("s"))
        for who in (None, mcp_ref.Principal("a"), may):
            with self.subTest(who):
                found = (await self.call("resources/list", principal=who)).result
                seen = [one["uri"] for one in found["resources"]]
                found = (
                    await self.call("resources/templates/list", principal=who)
                ).result
                seen += [one["uriTemplate"] for one in found["resourceTemplates"]]
                if who is may:
                    self.assertEqual(seen, ["a:open", "a:shut", "t:{x}", "r:{x}"])
                else:
                    self.assertEqual(seen, ["a:open"])
                for uri in ("a:shut", "t:y"):
                    reply = await self.read(uri, principal=who)
                    if who is may:
                        self.assertIn("contents", reply.result)
                    else:
                        self.assertEqual(reply.error["code"], 403)
        await self.read("r:y")
        self.assertEqual(ran, [])

    @spec("resources-07")
    async def test_a_resource_may_ask_before_it_is_read(self) -> None:
        @self.server.resource("a:b")
        async def asks(ctx: Context) -> str:
            return str((await ctx.elicit("Sure?", bool)).value)

        params = {"uri": "a:b"}
        first = await self.call("resources/read", params, capabilities=ALL_CAPABILITIES)
        self.assertEqual(first.result["resultType"], "input_required")
        yes = {"question-1": {"action": "accept", "content": {"value": True}}}
        done = await self.answer("resources/read", params, first, yes)
        self.assertEqual(done.result["contents"], [{"uri": "a:b", "text": "True"}])

    def test_annotations_and_sizes_that_cannot_be_are_refused(self) -> None:
        for options in (
            {"annotations": {"audience": ["model"]}},
            {"annotations": {"priority": 2}},
            {"annotations": {"lastModified": "soon"}},
            {"size": -1},
            {"size": "x"},
            {"meta": {"bad key": 1}},
        ):
            with self.subTest(options), self.assertRaises((ValueError, TypeError)):
                self.server.resource("a:b", **options)(lambda: "")


# --- server/prompts -----------------------------------------------------------------------


class Prompts(Case):
    """Prompts with arguments from the signature."""

    async def get(self, name: Any, arguments: JSON = None, **options: Any) -> Reply:
        params = {"name": name}
        if arguments is not None:
            params["arguments"] = arguments
        return await self.call("prompts/get", params, **options)

    @spec("prompts-03")
    async def test_a_function_becomes_a_definition(self) -> None:
        @self.server.prompt(title="Review", icons=[{"src": "https://example.com/i"}])
        def code_review(
            code: str, style: Annotated[str, "house style"] = "pep8"
        ) -> str:
            """Review code.

            Args:
                code: The code to review.
            """
            return f"{style}: {code}"

        @self.server.prompt
        def help() -> str:
            return "help"

        listed = (await self.call("prompts/list")).result["prompts"]
        self.assertEqual(
            listed,
            [
                {
                    "name": "code_review",
                    "title": "Review",
                    "description": "Review code.",
                    "icons": [{"src": "https://example.com/i"}],
                    "arguments": [
                        {
                            "name": "code",
                            "description": "The code to review.",
                            "required": True,
                        },
                        {"name": "style", "description": "house style"},
                    ],
                },
                {"name": "help"},
            ],
        )
        result = (await self.get("code_review", {"code": "x = 1"})).result
        self.assertEqual(result["description"], "Review code.")
        self.assertEqual(
            result["messages"],
            [{"role": "user", "content": {"type": "text", "text": "pep8: x = 1"}}],
        )

    async def test_strings_are_converted_as_the_hints_say(self) -> None:
        """TOL-12."""

        @self.server.prompt
        def report(
            day: datetime.date,
            n: int = 3,
            full: bool = False,
            note: Optional[str] = None,
            kind: Literal["a", "b"] = "a",
        ) -> str:
            return repr((str(day), n, full, note, kind))

        for arguments, value in (
            ({}, ("2026-07-28", 3, False, None, "a")),
            ({"n": "5", "full": "false"}, ("2026-07-28", 5, False, None, "a")),
            ({"full": "true", "kind": "b"}, ("2026-07-28", 3, True, None, "b")),
            ({"note": "null"}, ("2026-07-28", 3, False, "null", "a")),
            ({"note": "5"}, ("2026-07-28", 3, False, "5", "a")),
        ):
            with self.subTest(arguments):
                reply = await self.get("report", {"day": "2026-07-28", **arguments})
                (message,) = reply.result["messages"]
                self.assertEqual(message["content"]["text"], repr(value))

    @spec("prompts-12", "prompts-13", "prompts-16")
    async def test_bad_names_and_arguments_are_refused_by_name(self) -> None:
        """ERR-04, TOL-03, TOL-12, UNTESTED B18."""

        @self.server.prompt
        def greet(name: str, n: int = 1, day: datetime.date | None = None) -> str:
            return name

        for name in ("ghost", "", None, 5, ["greet"], "Greet"):
            with self.subTest(name):
                self.assertEqual((await self.get(name)).error["code"], -32602)
        for arguments, word in (
            (None, "name"),
            ({}, "name"),
            ({"name": 5}, "string"),
            ({"name": None}, "string"),
            ({"name": "a", "n": 5}, "string"),
            ({"name": "a", "n": "five"}, "n"),
            ({"name": "a", "n": "5.5"}, "n"),
            ({"name": "a", "n": "NaN"}, "n"),
            ({"name": "a", "n": "9" * 5000}, "n"),
            ({"name": "a", "day": "tomorrow"}, "day"),
            ({"name": "a", "nmae": "b"}, "nmae"),
            ([], "object"),
            ("x", "object"),
        ):
            with self.subTest(str(arguments)[:50]):
                error = (await self.get("greet", arguments)).error
                self.assertEqual(error["code"], -32602)
                self.assertIn(word, error["message"])
                self.assertLess(len(error["message"]), 500)

    @spec("prompts-08", "prompts-09", "prompts-10", "prompts-11")
    async def test_values_become_messages(self) -> None:
        text, image = {"type": "text", "text": "a"}, mcp_ref.image(b"x", "image/png")
        link, sound = (
            mcp_ref.resource_link("a:b", "n"),
            mcp_ref.audio(b"x", "audio/wav"),
        )
        inside = mcp_ref.embedded("a:b", "t", "text/plain")
        for value, messages in (
            ("a", [("user", text)]),
            ("", [("user", {"type": "text", "text": ""})]),
            (mcp_ref.text("a"), [("user", text)]),
            (mcp_ref.user("a"), [("user", text)]),
            (mcp_ref.assistant("a"), [("assistant", text)]),
            (["a", mcp_ref.assistant(image)], [("user", text), ("assistant", image)]),
            (
                (sound, link, inside),
                [("user", sound), ("user", link), ("user", inside)],
            ),
            ([], []),
        ):
            with self.subTest(value):
                self.setUp()
                self.server.prompt(returning(value), name="p")
                found = (await self.get("p")).result["messages"]
                self.assertEqual(
                    found,
                    [{"role": role, "content": block} for role, block in messages],
                )

    @spec("prompts-16")
    async def test_values_that_are_no_messages_are_internal_errors(self) -> None:
        for value in (5, object(), {"role": "user"}, [None, 5], mcp_ref.result(["a"])):
            with self.subTest(repr(value)[:30]):
                self.setUp()
                self.server.prompt(lambda: value, name="p")  # noqa: B023
                self.assertEqual((await self.get("p")).error["code"], -32603)
        for block in ({"type": "hologram"}, {}, {"text": "a"}):
            with self.subTest(block), self.assertRaises(ValueError):
                mcp_ref.user(block)  # type: ignore[arg-type]

    @spec("prompts-05", "prompts-16", "caching-29")
    async def test_prompts_are_seen_and_read_with_their_scopes_only(self) -> None:
        self.server.prompt(lambda: "x", name="open")
        self.server.prompt(lambda: "x", name="shut", scopes=["s"])
        may = mcp_ref.Principal("a", scopes=frozenset("s"))
        for who, names in ((None, ["open"]), (may, ["open", "shut"])):
            listed = (await self.call("prompts/list", principal=who)).result["prompts"]
            self.assertEqual([one["name"] for one in listed], names)
        self.assertEqual((await self.get("shut")).error["code"], 403)
        self.assertIn("messages", (await self.get("shut", principal=may)).result)

    async def test_names_are_unique(self) -> None:
        self.server.prompt(lambda: "1", name="p")
        with self.assertRaisesRegex(ValueError, "p"):
            self.server.prompt(lambda: "2", name="p")
        self.server.remove_prompt("p")
        self.assertEqual((await self.get("p")).error["code"], -32602)

    @spec("prompts-06")
    async def test_a_prompt_may_ask(self) -> None:
        @self.server.prompt
        async def asks(topic: str, ctx: Context) -> str:
            return f"{topic} {(await ctx.elicit('How?', str)).value}"

        params = {"name": "asks", "arguments": {"topic": "t"}}
        first = await self.call("prompts/get", params, capabilities=ALL_CAPABILITIES)
        self.assertEqual(first.result["resultType"], "input_required")
        said = {"question-1": {"action": "accept", "content": {"value": "well"}}}
        done = await self.answer("prompts/get", params, first, said)
        self.assertEqual(done.result["messages"][0]["content"]["text"], "t well")


# --- server/utilities/completion ----------------------------------------------------------


class Completion(Case):
    """Suggestions for the arguments of prompts and templates."""

    def setUp(self) -> None:
        super().setUp()
        server = self.server

        @server.prompt
        def review(language: str, framework: str = "", other: str = "") -> str:
            return language

        @server.resource("note://{owner}/{name}")
        def note(owner: str, name: str) -> str:
            return name

        @server.resource("note://plain")
        def plain() -> str:
            return ""

        server.complete("review", "language", ["python", "pytorch", "pyside", "Cython"])

        @server.complete("review", "framework")
        def framework(value: str, arguments: dict[str, str]) -> list[str]:
            return [f"{arguments.get('language')}-{value}"]

        @server.complete("note://{owner}/{name}", "name")
        async def names(value: str, arguments: dict[str, str], ctx: Context) -> Any:
            return (f"{arguments['owner']}{n}" for n in range(250))

    async def complete(
        self, ref: JSON, argument: JSON, context: JSON = None, **options: Any
    ) -> Reply:
        params = {"ref": ref, "argument": argument}
        if context is not None:
            params["context"] = context
        return await self.call("completion/complete", params, **options)

    REVIEW = {"type": "ref/prompt", "name": "review"}
    NOTE = {"type": "ref/resource", "uri": "note://{owner}/{name}"}

    @spec("completion-04")
    async def test_given_values_are_filtered_best_first(self) -> None:
        for typed, values in (
            ("", ["python", "pytorch", "pyside", "Cython"]),
            ("py", ["python", "pytorch", "pyside"]),
            ("PYT", ["python", "pytorch"]),
            ("th", ["python", "Cython"]),
            ("cy", ["Cython"]),
            ("rust", []),
        ):
            with self.subTest(typed):
                reply = await self.complete(
                    self.REVIEW, {"name": "language", "value": typed}
                )
                self.assertEqual(
                    reply.result["completion"],
                    {"values": values, "total": len(values), "hasMore": False},
                )

    async def test_a_function_sees_what_is_resolved_already(self) -> None:
        """CMP-02."""
        argument = {"name": "framework", "value": "fla"}
        for context, value in (
            (None, "None-fla"),
            ({}, "None-fla"),
            ({"arguments": {"language": "python"}}, "python-fla"),
        ):
            with self.subTest(context):
                reply = await self.complete(self.REVIEW, argument, context)
                self.assertEqual(reply.result["completion"]["values"], [value])

    async def test_at_most_100_values_are_sent_and_all_are_counted(self) -> None:
        """CMP-01."""
        reply = await self.complete(
            self.NOTE, {"name": "name", "value": ""}, {"arguments": {"owner": "x"}}
        )
        self.assertEqual(
            reply.result["completion"],
            {"values": [f"x{n}" for n in range(100)], "total": 250, "hasMore": True},
        )
        for count in (0, 1, 99, 100, 101):
            with self.subTest(count):
                values = [str(n) for n in range(count)]
                self.server.complete("review", "other", values)
                found = (
                    await self.complete(self.REVIEW, {"name": "other", "value": ""})
                ).result["completion"]
                self.assertEqual(found["values"], values[:100])
                self.assertEqual(found["total"], count)
                self.assertEqual(found["hasMore"], count > 100)

    async def test_an_argument_without_suggestions_has_none(self) -> None:
        """CMP-01."""
        for ref, name in ((self.REVIEW, "other"), (self.NOTE, "owner")):
            with self.subTest(name):
                reply = await self.complete(ref, {"name": name, "value": "a"})
                self.assertEqual(reply.result["completion"]["values"], [])

    @spec("completion-03", "completion-04", "completion-06")
    async def test_bad_references_and_arguments_are_refused(self) -> None:
        """CMP-02."""
        good = {"name": "language", "value": "a"}
        for ref in (
            {"type": "ref/prompt", "name": "ghost"},
            {"type": "ref/prompt", "name": 5},
            {"type": "ref/prompt", "uri": "review"},
            {"type": "ref/resource", "uri": "note://{ghost}"},
            {"type": "ref/resource", "name": "review"},
            {"type": "ref/zzz", "name": "review"},
            {"name": "review"},
            {},
            "review",
            None,
        ):
            with self.subTest(ref):
                self.assertEqual((await self.complete(ref, good)).error["code"], -32602)
        for argument in (
            {"name": "ghost", "value": "a"},
            {"name": "language"},
            {"name": "language", "value": 5},
            {"name": "language", "value": None},
            {"name": 5, "value": "a"},
            {"value": "a"},
            {},
            None,
            "language",
        ):
            with self.subTest(argument):
                reply = await self.complete(self.REVIEW, argument)
                self.assertEqual(reply.error["code"], -32602)
        for context in ("x", [1], {"arguments": "x"}, {"arguments": [1]}):
            with self.subTest(context):
                reply = await self.complete(self.REVIEW, good, context)
                self.assertEqual(reply.error["code"], -32602)
        for missing in ("ref", "argument"):
            params = {"ref": self.REVIEW, "argument": good}
            del params[missing]
            reply = await self.call("completion/complete", params)
            self.assertEqual(reply.error["code"], -32602)

    @spec("completion-03")
    async def test_what_fails_inside_is_an_internal_error_without_details(self) -> None:
        @self.server.complete("review", "other")
        def other(value: str) -> list[str]:
            raise RuntimeError("hunter2")

        reply = await self.complete(self.REVIEW, {"name": "other", "value": ""})
        self.assertEqual(reply.error["code"], -32603)
        self.assertNotIn("hunter2", json.dumps(reply.error))

    @spec("completion-06")
    async def test_suggestions_are_as_restricted_as_what_they_belong_to(self) -> None:
        self.server.prompt(lambda secret: "", name="shut", scopes=["s"])
        self.server.complete("shut", "secret", ["hunter2"])
        ref, argument = (
            {"type": "ref/prompt", "name": "shut"},
            {
                "name": "secret",
                "value": "",
            },
        )
        reply = await self.complete(ref, argument)
        self.assertEqual(reply.error["code"], 403)
        may = mcp_ref.Principal("a", scopes=frozenset("s"))
        reply = await self.complete(ref, argument, principal=may)
        self.assertEqual(reply.result["completion"]["values"], ["hunter2"])


# --- server/utilities/logging -------------------------------------------------------------


class Logging(Case):
    """Log messages: asked for, at or above the level, on the request's own stream."""

    LEVEL = "io.modelcontextprotocol/logLevel"

    def setUp(self) -> None:
        super().setUp()

        @self.server.tool
        async def later(ctx: Context) -> str:
            for level in mcp_ref.LOG_LEVELS:
                await ctx.log(level, {"level": level}, "test")
            return "done"

        @self.server.tool
        def plain(ctx: Context) -> str:
            for level in mcp_ref.LOG_LEVELS:
                ctx.log(level, {"level": level}, "test")
            return "done"

        @self.server.resource("log:read")
        async def read(ctx: Context) -> str:
            await ctx.log("emergency", "read")
            return ""

        @self.server.prompt
        def prompt(ctx: Context) -> str:
            ctx.log("emergency", "prompt")
            return ""

    @spec("logging-02")
    async def test_the_capability_is_declared(self) -> None:
        result = (await self.call("server/discover")).result
        self.assertEqual(result["capabilities"]["logging"], {})

    @spec("logging-03", "logging-05")
    async def test_nothing_is_sent_that_was_not_asked_for(self) -> None:
        """ERR-05."""
        for method, params in (
            ("tools/call", {"name": "later"}),
            ("tools/call", {"name": "plain"}),
            ("resources/read", {"uri": "log:read"}),
            ("prompts/get", {"name": "prompt"}),
        ):
            with self.subTest(method, params=params):
                for meta in ({}, {"progressToken": 1}):
                    self.assertEqual(
                        list(await self.call(method, params, meta=meta)), []
                    )
                asked = await self.call(method, params, meta={self.LEVEL: "emergency"})
                self.assertEqual(len(asked), 1)

    @spec("logging-03", "logging-04")
    async def test_the_level_is_a_threshold(self) -> None:
        """ERR-05, UNTESTED B23."""
        levels = [
            *("debug", "info", "notice", "warning"),
            *("error", "critical", "alert", "emergency"),
        ]
        for n, level in enumerate(levels):
            for name in ("later", "plain"):
                with self.subTest(level, of=name):
                    reply = await self.tool(name, meta={self.LEVEL: level})
                    found = [one["params"]["level"] for one in reply]
                    self.assertEqual(found, levels[n:])
        self.assertEqual(
            reply[0],
            {
                "jsonrpc": "2.0",
                "method": "notifications/message",
                "params": {
                    "level": "emergency",
                    "logger": "test",
                    "data": {"level": "emergency"},
                },
            },
        )

    @spec("logging-06")
    async def test_unknown_levels_are_refused_on_every_method(self) -> None:
        for level in ("loud", "", "ERROR", "Error", 5, None, True, ["error"], {}):
            for method, params in (
                ("tools/call", {"name": "plain"}),
                ("tools/list", {}),
                ("server/discover", {}),
                ("subscriptions/listen", {"notifications": {}}),
            ):
                with self.subTest(level=level, method=method):
                    reply = await self.call(method, params, meta={self.LEVEL: level})
                    self.assertEqual(reply.error["code"], -32602)
                    self.assertEqual(list(reply), [])

    @spec("logging-05")
    async def test_messages_stay_on_the_stream_of_their_request(self) -> None:
        """ERR-05, UNTESTED B23: two calls and a listen stream at the same time."""

        meta = {self.LEVEL: "debug"}
        heard: list[JSON] = []
        acknowledged = asyncio.Event()

        async def send(message: JSON) -> None:
            heard.append(message["method"])
            acknowledged.set()

        listen = request("subscriptions/listen", {"notifications": {}}, meta=meta)
        stream = asyncio.create_task(lint(self.server.handle)(listen, send))
        await acknowledged.wait()
        replies = await asyncio.gather(
            self.tool("later", id=1, meta={self.LEVEL: "alert"}),
            self.tool("plain", id=2, meta={self.LEVEL: "error"}),
            self.tool("plain", id=3),
        )
        self.assertEqual([len(reply) for reply in replies], [2, 4, 0])
        self.server.subscriptions.end()
        await stream
        self.assertEqual(heard, ["notifications/subscriptions/acknowledged"])

    async def test_any_json_can_be_logged_and_nothing_else(self) -> None:
        values = ["text", None, 5, [1, {"a": None}], "\ud800", ToolPoint(1)]

        @self.server.tool
        async def each(ctx: Context) -> str:
            for value in values:
                await ctx.log("info", value)
            for level, value in (
                ("info", float("nan")),
                ("info", object()),
                ("loud", "x"),
                ("WARNING", "x"),
            ):
                try:
                    await ctx.log(level, value)
                except (ValueError, TypeError):
                    continue
                return f"{level} {value}"
            return "done"

        reply = await self.tool("each", meta={self.LEVEL: "info"})
        self.assertEqual(reply.text, "done")
        found = [one["params"]["data"] for one in reply]
        self.assertEqual(found, [*values[:-1], {"x": 1, "tags": []}])
        self.assertNotIn("logger", reply[0]["params"])

    @spec("logging-04")
    async def test_messages_come_before_the_answer_also_when_the_tool_fails(
        self,
    ) -> None:
        @self.server.tool
        def fails(ctx: Context) -> None:
            ctx.log("error", "about to fail")
            raise ValueError

        reply = await self.tool("fails", meta={self.LEVEL: "debug"})
        self.assertEqual(len(reply), 1)
        self.assertTrue(reply.result["isError"])

    @spec("logging-07", "logging-10")
    async def test_a_flood_of_messages_is_bounded(self) -> None:
        @self.server.tool
        def flood(ctx: Context) -> str:
            for n in range(5000):
                ctx.log("info", n)
            return "done"

        @self.server.tool
        async def patient(ctx: Context) -> str:
            for n in range(5000):  # each is written before the next one comes
                await ctx.log("info", n)
            return "done"

        for name in ("flood", "patient"):
            with self.subTest(name):
                reply = await self.tool(name, meta={self.LEVEL: "debug"})
                self.assertEqual(reply.text, "done")
                self.assertGreater(len(reply), 0)
                self.assertLess(len(reply), 5000)
                values = [one["params"]["data"] for one in reply]
                self.assertEqual(values, sorted(values))


# --- server/utilities/pagination ----------------------------------------------------------


class Pagination(Case):
    """Cursors that survive what happens between two pages."""

    KEYS = {"tools": "name", "prompts": "name", "resources": "uri"}

    def fill(self, server: Server, names: Any, **options: Any) -> None:
        """Register one tool, prompt, resource and template for each name."""
        for name in names:
            server.tool(lambda: 1, name=f"a:{name}", **options)
            server.prompt(lambda: "x", name=f"a:{name}", **options)
            server.resource(f"a:{name}", **options)(lambda: "x")
            server.resource(f"a:{name}{{?v}}", **options)(lambda v="": "x")

    async def page(self, method: str, cursor: Any = None, **options: Any) -> JSON:
        params = {} if cursor is None else {"cursor": cursor}
        return (await self.call(method, params, **options)).result

    def names(self, method: str, page: JSON) -> list[str]:
        member = LIST_METHODS[method]
        key = self.KEYS.get(member, "uriTemplate")
        return [one[key].removesuffix("{?v}")[2:] for one in page[member]]

    async def walk(self, method: str, **options: Any) -> list[list[str]]:
        pages, cursor = [], None
        for _ in range(100):
            page = await self.page(method, cursor, **options)
            pages.append(self.names(method, page))
            if "nextCursor" not in page:
                return pages
            cursor = page["nextCursor"]
            self.assertIsInstance(cursor, str)
        raise AssertionError("endless pages")

    async def test_pages_of_every_size_hold_every_entry_once_in_order(self) -> None:
        """TOL-13."""
        names = [f"n{n * 5 % 12}" for n in range(12)]
        for size in (1, 2, 3, 5, 11, 12, 13, None):
            self.server = Server("t", page_size=size)
            self.fill(self.server, names)
            for method in LIST_METHODS:
                with self.subTest(method, size=size):
                    pages = await self.walk(method)
                    self.assertEqual(list(itertools.chain(*pages)), names)
                    step = size or 12
                    lengths = [len(page) for page in pages]
                    self.assertEqual(lengths[:-1], [step] * (len(pages) - 1))
                    self.assertGreater(lengths[-1], 0)

    def test_a_page_holds_at_least_one_entry(self) -> None:
        for size in (0, -1):
            with self.subTest(size), self.assertRaises(ValueError):
                Server("t", page_size=size)

    @spec("pagination-03")
    async def test_cursors_are_stable_while_the_list_changes(self) -> None:
        for method in LIST_METHODS:
            with self.subTest(method):
                self.server = Server("t", page_size=2)
                self.fill(self.server, "abcdef")
                first = await self.page(method)
                self.assertEqual(self.names(method, first), ["a", "b"])
                for gone in "bac":
                    self.server.remove_tool(f"a:{gone}")
                    self.server.remove_prompt(f"a:{gone}")
                    self.server.remove_resource(f"a:{gone}")
                    self.server.remove_resource(f"a:{gone}{{?v}}")
                self.fill(self.server, "xa")
                second = await self.page(method, first["nextCursor"])
                self.assertEqual(self.names(method, second), ["d", "e"])
                again = await self.page(method, first["nextCursor"])
                self.assertEqual(again, second)
                third = await self.page(method, second["nextCursor"])
                self.assertEqual(self.names(method, third), ["f", "x"])
                last = await self.page(method, third["nextCursor"])
                self.assertEqual(self.names(method, last), ["a"])
                self.assertNotIn("nextCursor", last)

    @spec("pagination-03", "pagination-07")
    async def test_bad_cursors_are_refused(self) -> None:
        """PAG-01."""
        self.server = Server("t", page_size=2)
        self.fill(self.server, "abcdef")
        stranger = Server("t", page_size=2)
        self.fill(stranger, "abcdef")
        cursors = {m: (await self.page(m))["nextCursor"] for m in LIST_METHODS}
        for method, own in cursors.items():
            foreign = (await exchange(stranger, request(method))).result["nextCursor"]
            others = [cursor for other, cursor in cursors.items() if other != method]
            flipped = [
                own[:n] + ("A" if own[n] != "A" else "B") + own[n + 1 :]
                for n in range(len(own))
                if own[n] not in "=."
            ]
            state = mcp_ref.seal_state({"a": 1}, [], 2**40, self.server.keys)
            sealed = [
                mcp_ref.seal(value, self.server.keys)
                for value in (5, "x", None, [], [1], ["tools"], [None, 1], {"a": 1})
                if not (isinstance(value, list) and len(value) == 2)
            ]
            for cursor in (
                *("garbage", "", " ", ".", "a.b", "0", "ü", "\ud800", "x" * 100_000),
                *(5, 0, True, [own], {"cursor": own}, 1.5),
                *(own + "A", own[1:], own + "=", own.replace(".", ""), own * 2),
                *(foreign, state, *others, *flipped, *sealed),
            ):
                with self.subTest(method, cursor=str(cursor)[:30]):
                    reply = await self.call(method, {"cursor": cursor})
                    self.assertEqual(reply.error["code"], -32602)

    async def test_a_cursor_is_good_on_every_process_with_the_key(self) -> None:
        """DEP-01."""
        servers = [Server("t", page_size=2, keys=[b"k" * 32]) for _ in range(2)]
        rotated = Server("t", page_size=2, keys=[b"n" * 32, b"k" * 32])
        for server in (*servers, rotated):
            self.fill(server, "abc")
        self.server = servers[0]
        cursor = (await self.page("tools/list"))["nextCursor"]
        for self.server in (*servers, rotated):
            page = await self.page("tools/list", cursor)
            self.assertEqual(self.names("tools/list", page), ["c"])

    async def test_pages_hold_only_what_the_caller_may_see(self) -> None:
        self.server = Server("t", page_size=2)
        for n in range(8):
            self.fill(self.server, [str(n)], scopes=["s"] if n % 2 else [])
        may = mcp_ref.Principal("a", scopes=frozenset("s"))
        for method in LIST_METHODS:
            with self.subTest(method):
                self.assertEqual(await self.walk(method), [["0", "2"], ["4", "6"]])
                self.assertEqual(
                    await self.walk(method, principal=may),
                    [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]],
                )


# --- server/utilities/caching -------------------------------------------------------------


class Caching(Case):
    """Hints on every complete result that may be cached, and on no other."""

    def fill(self, server: Server, scopes: Any = ()) -> None:
        for name in "abc":
            server.tool(lambda: 1, name=name, scopes=scopes)
            server.prompt(lambda: "x", name=name, scopes=scopes)
            server.resource(f"a:{name}", scopes=scopes)(lambda: "x")
            server.resource(f"{name}:{{v}}", scopes=scopes)(lambda v: "x")

    async def hints(self, method: str, params: JSON = None, **options: Any) -> Any:
        result = (await self.call(method, params, **options)).result
        return result["ttlMs"], result["cacheScope"]

    @spec("caching-01", "caching-11")
    async def test_every_cacheable_result_has_its_hints(self) -> None:
        """CCH-01, UNTESTED B30, B32."""
        for ttl, size in ((0, None), (300_000, 2)):
            self.server = Server("t", ttl_ms=ttl, page_size=size)
            self.fill(self.server)
            for method in ("server/discover", *LIST_METHODS):
                with self.subTest(method, ttl=ttl):
                    found = await self.hints(method)
                    self.assertEqual(found, (ttl, "public"))
            found = await self.hints("resources/read", {"uri": "a:a"})
            self.assertEqual(found, (0, "private"))

    @spec("caching-26", "caching-27", "caching-28")
    async def test_all_pages_of_a_list_have_the_same_scope(self) -> None:
        """CCH-04, UNTESTED B32."""
        who = mcp_ref.Principal("a", scopes=frozenset("s"))
        for principal, mixed, scope in (
            (None, False, "public"),
            (None, True, "private"),
            (who, False, "private"),
            (who, True, "private"),
        ):
            self.server = Server("t", ttl_ms=5, page_size=2)
            self.fill(self.server)
            if mixed:  # the last page alone depends on the caller
                self.server.tool(lambda: 1, name="z", scopes=["s"])
                self.server.prompt(lambda: "x", name="z", scopes=["s"])
                self.server.resource("a:z", scopes=["s"])(lambda: "x")
                self.server.resource("z:{v}", scopes=["s"])(lambda v: "x")
            for method in LIST_METHODS:
                with self.subTest(method, who=principal, mixed=mixed):
                    params: JSON = {}
                    pages = []
                    while True:
                        page = (
                            await self.call(method, params, principal=principal)
                        ).result
                        pages.append((page["ttlMs"], page["cacheScope"]))
                        if "nextCursor" not in page:
                            break
                        params = {"cursor": page["nextCursor"]}
                    self.assertEqual(pages, [(5, scope)] * 2)

    @spec("caching-28", "caching-18")
    async def test_what_depends_on_the_caller_is_private(self) -> None:
        self.fill(self.server)
        who = mcp_ref.Principal("a")
        for method in ("server/discover", *LIST_METHODS):
            with self.subTest(method):
                self.assertEqual((await self.hints(method))[1], "public")
                self.assertEqual(
                    (await self.hints(method, principal=who))[1], "private"
                )
        read = {"uri": "a:a"}
        self.assertEqual((await self.hints("resources/read", read))[1], "private")

    async def test_an_entry_can_say_more(self) -> None:
        server = self.server
        server.resource("a:1", ttl_ms=60_000)(lambda: "x")
        server.resource("a:2", cache_scope="public")(lambda: "x")
        server.resource("a:3/{v}", ttl_ms=7, cache_scope="public")(lambda v: v)
        server.resource("a:4", ttl_ms=0, cache_scope="private")(lambda: "x")
        for uri, hints in (
            ("a:1", (60_000, "private")),
            ("a:2", (0, "public")),
            ("a:3/x", (7, "public")),
            ("a:4", (0, "private")),
        ):
            with self.subTest(uri):
                self.assertEqual(
                    await self.hints("resources/read", {"uri": uri}), hints
                )

    @spec("caching-11")
    def test_hints_that_cannot_be_are_refused(self) -> None:
        for ttl in (-1, 1.5, "1000", True, float("inf"), -(10**9)):
            with self.subTest(ttl):
                with self.assertRaises(ValueError):
                    Server("t", ttl_ms=ttl)  # type: ignore[arg-type]
                with self.assertRaises(ValueError):
                    self.server.resource("a:b", ttl_ms=ttl)(lambda: "")  # type: ignore
        for scope in ("", "Public", "shared", True):
            with self.subTest(scope), self.assertRaises(ValueError):
                self.server.resource("a:b", cache_scope=scope)(lambda: "")  # type: ignore

    @spec("caching-01")
    async def test_questions_errors_and_calls_carry_no_hints(self) -> None:
        """CCH-01."""

        @self.server.resource("a:b", ttl_ms=5, cache_scope="public")
        async def asks(ctx: Context) -> str:
            return str(await ctx.elicit("m", bool))

        self.server.tool(lambda: 1, name="t")
        self.server.prompt(lambda: "x", name="p")
        first = await self.call(
            "resources/read", {"uri": "a:b"}, capabilities=ALL_CAPABILITIES
        )
        self.assertEqual(first.result["resultType"], "input_required")
        for result in (
            first.result,
            (await self.tool("t")).result,
            (await self.call("prompts/get", {"name": "p"})).result,
        ):
            self.assertFalse({"ttlMs", "cacheScope"} & result.keys())
        reply = await self.call("resources/read", {"uri": "a:none"})
        self.assertFalse({"ttlMs", "cacheScope"} & reply.response.keys())

    @spec("caching-03", "caching-28")
    async def test_an_answer_that_took_a_question_is_not_for_sharing(self) -> None:
        """The client must not cache it; what it says should not tempt others to."""

        @self.server.resource("a:b")
        async def asks(ctx: Context) -> str:
            return str((await ctx.elicit("m", bool)).value)

        params = {"uri": "a:b"}
        first = await self.call("resources/read", params, capabilities=ALL_CAPABILITIES)
        yes = {"question-1": {"action": "accept", "content": {"value": True}}}
        done = await self.answer("resources/read", params, first, yes)
        self.assertEqual(done.result["ttlMs"], 0)
        self.assertEqual(done.result["cacheScope"], "private")


# --- URI templates: RFC 6570, and paths taken from them -----------------------------------


TEMPLATE_VALUES = {  # RFC 6570, section 3.2, the variables that are strings
    "dub": "me/too",
    "hello": "Hello World!",
    "half": "50%",
    "var": "value",
    "who": "fred",
    "base": "http://example.com/home/",
    "path": "/foo/bar",
    "v": "6",
    "x": "1024",
    "y": "768",
    "empty": "",
}
TEMPLATE_EXAMPLES = [  # 3.2.2 to 3.2.9, and level 1 to 3 examples of 1.2
    ("{var}", "value"),
    ("{hello}", "Hello%20World%21"),
    ("{half}", "50%25"),
    ("O{empty}X", "OX"),
    ("O{undef}X", "OX"),
    ("{x,y}", "1024,768"),
    ("{x,hello,y}", "1024,Hello%20World%21,768"),
    ("?{x,empty}", "?1024,"),
    ("?{x,undef}", "?1024"),
    ("?{undef,y}", "?768"),
    ("map?{x,y}", "map?1024,768"),
    ("{+var}", "value"),
    ("{+hello}", "Hello%20World!"),
    ("{+half}", "50%25"),
    ("{base}index", "http%3A%2F%2Fexample.com%2Fhome%2Findex"),
    ("{+base}index", "http://example.com/home/index"),
    ("O{+empty}X", "OX"),
    ("O{+undef}X", "OX"),
    ("{+path}/here", "/foo/bar/here"),
    ("here?ref={+path}", "here?ref=/foo/bar"),
    ("up{+path}{var}/here", "up/foo/barvalue/here"),
    ("{+x,hello,y}", "1024,Hello%20World!,768"),
    ("{+path,x}/here", "/foo/bar,1024/here"),
    ("{#var}", "#value"),
    ("{#hello}", "#Hello%20World!"),
    ("{#half}", "#50%25"),
    ("foo{#empty}", "foo#"),
    ("foo{#undef}", "foo"),
    ("{#x,hello,y}", "#1024,Hello%20World!,768"),
    ("{#path,x}/here", "#/foo/bar,1024/here"),
    ("{.who}", ".fred"),
    ("{.half,who}", ".50%25.fred"),
    ("X{.var}", "X.value"),
    ("X{.empty}", "X."),
    ("X{.undef}", "X"),
    ("X{.x,y}", "X.1024.768"),
    ("{/who}", "/fred"),
    ("{/half,who}", "/50%25/fred"),
    ("{/who,dub}", "/fred/me%2Ftoo"),
    ("{/var}", "/value"),
    ("{/var,empty}", "/value/"),
    ("{/var,undef}", "/value"),
    ("{/var,x}/here", "/value/1024/here"),
    ("{;who}", ";who=fred"),
    ("{;half}", ";half=50%25"),
    ("{;empty}", ";empty"),
    ("{;v,empty,who}", ";v=6;empty;who=fred"),
    ("{;v,undef,who}", ";v=6;who=fred"),
    ("{;x,y}", ";x=1024;y=768"),
    ("{;x,y,empty}", ";x=1024;y=768;empty"),
    ("{;x,y,undef}", ";x=1024;y=768"),
    ("{?who}", "?who=fred"),
    ("{?half}", "?half=50%25"),
    ("{?x,y}", "?x=1024&y=768"),
    ("{?x,y,empty}", "?x=1024&y=768&empty="),
    ("{?x,y,undef}", "?x=1024&y=768"),
    ("{&who}", "&who=fred"),
    ("{&half}", "&half=50%25"),
    ("?fixed=yes{&x}", "?fixed=yes&x=1024"),
    ("{&x,y,empty}", "&x=1024&y=768&empty="),
    ("{&x,y,undef}", "&x=1024&y=768"),
]


def match_template(template: str, uri: str) -> dict[str, str] | None:
    return mcp_ref.UriTemplate(template).match(uri)


class TemplateExpansion(unittest.TestCase):
    def test_examples_of_the_rfc(self) -> None:
        for template, uri in TEMPLATE_EXAMPLES:
            with self.subTest(template):
                self.assertEqual(
                    mcp_ref.UriTemplate(template).expand(TEMPLATE_VALUES), uri
                )

    def test_examples_match_back(self) -> None:
        pairs = {";", "?", "&"}
        for text, uri in TEMPLATE_EXAMPLES:
            template = mcp_ref.UriTemplate(text)
            named = any(f"{{{op}" in text for op in pairs)
            bare = {"empty", "undef"} & set(template.names) and not named
            if bare or text in ("up{+path}{var}/here",):  # ambiguous by nature
                continue
            with self.subTest(text):
                given = {
                    n: TEMPLATE_VALUES[n]
                    for n in template.names
                    if n in TEMPLATE_VALUES
                }
                self.assertEqual(template.match(uri), given)

    def test_random_values_come_back(self) -> None:
        rng = random.Random(1)
        alphabet = "aZ09-._~ %/?#[]@!$&'()*+,;=:\"<>\\^`{|}\0\x7f\né€𝄞2F"
        for text in (
            "n://{a}",
            "n://{a,b}",
            "n://{a}/{b}",
            "n://x{/a,b}{?c,d}",
            "n://x{;a,b}",
            "n://x{?a,b}{&c,d}",
            "n://{a}{;b}{?c}",
            "n://ü/{a}?q=1{&b,c}",
        ):
            template = mcp_ref.UriTemplate(text)
            for _ in range(300):
                given = {
                    name: "".join(rng.choices(alphabet, k=rng.randint(1, 9)))
                    for name in template.names
                }
                uri = template.expand(given)
                self.assertTrue(uri.isascii())
                self.assertEqual(template.match(uri), given, uri)

    def test_reserved_expansion_keeps_triplets(self) -> None:
        template = mcp_ref.UriTemplate("{+a}")
        self.assertEqual(
            template.expand({"a": "100%25 %zz é"}), "100%25%20%25zz%20%C3%A9"
        )

    def test_unknown_values_are_ignored_and_surrogates_refused(self) -> None:
        self.assertEqual(
            mcp_ref.UriTemplate("n://{a}").expand({"a": "1", "z": "2"}), "n://1"
        )
        with self.assertRaises(ValueError):
            mcp_ref.UriTemplate("n://{a}").expand({"a": "\ud800"})


class TemplateMatching(unittest.TestCase):
    def test_res_01_slashes(self) -> None:
        self.assertIsNone(match_template("note://{name}", "note://a/b"))
        self.assertEqual(
            match_template("files://{+path}", "files://x/y/z.txt"),
            {"path": "x/y/z.txt"},
        )
        self.assertIsNone(match_template("note://{name}", "note://"))
        self.assertIsNone(match_template("files://{+path}", "files://"))

    def test_res_02_decoding(self) -> None:
        for raw, name in {
            "my%20file": "my file",
            "a%2Fb": "a/b",
            "a%2fb": "a/b",
            "100%2525": "100%25",
            "a+b": "a+b",
            "caf%C3%A9": "café",
            "café%20€": "café €",
            "%00": "\0",
            "%2e%2e": "..",
            "a,b;c:d@e=f&g!": "a,b;c:d@e=f&g!",
        }.items():
            with self.subTest(raw):
                self.assertEqual(
                    match_template("note://{name}", f"note://{raw}"), {"name": name}
                )
        for raw in "%ff", "%", "%2", "%zz", "%C3", "%ED%A0%80", "%C0%AF", "%%%", "a%":
            with self.subTest(raw):
                self.assertIsNone(match_template("note://{name}", f"note://{raw}"))
                self.assertIsNone(match_template("note://{+name}", f"note://{raw}"))
                self.assertIsNone(
                    match_template("note://{?name}", f"note://?name={raw}")
                )

    def test_illegal_characters_do_not_match(self) -> None:
        for bad in ' \0\n\t\x7f\x85"<>\\^`{|}\ud800':
            for template in "note://{a}", "note://{+a}", "note://x{?a}":
                lead = "x?a=" if "?" in template else ""
                self.assertIsNone(
                    match_template(template, f"note://{lead}x{bad}y"), repr(bad)
                )

    def test_res_03_no_injection(self) -> None:
        self.assertIsNone(match_template("data://v1.0/{x}", "data://v1X0/1"))
        self.assertEqual(
            match_template("calc://(a+b)/{y}", "calc://(a+b)/2"), {"y": "2"}
        )
        self.assertEqual(
            match_template("c://[a]*$(?:x)/{y}", "c://[a]*$(?:x)/2"), {"y": "2"}
        )
        self.assertEqual(match_template("c://x{?a.b}", "c://x?a.b=2"), {"a.b": "2"})
        self.assertIsNone(match_template("c://x{?a.b}", "c://x?aXb=2"))

    def test_res_03_hostile_uris_are_quick(self) -> None:
        cases = [
            ("p://{a}-{b}-{c}-{d}", "p://" + "-" * 50_000),
            ("p://{a}-{b}-{c}-{d}", "p://" + "-" * 8000),
            ("p://{a}-{b}-{c}-{d}", "p://" + "-" * 8000 + "/"),
            ("p://{a}{b}{c}{d}{e}{f}{g}{h}/", "p://" + "a" * 8000),
            ("p://{+a}{+b}{+c}{+d}x", "p://" + "/" * 8000),
            ("p://{+a}-{+b}-{+c}-{+d}!", "p://" + "-" * 8000),
            ("p://{a,b,c,d,e,f}", "p://" + "," * 8000 + "/"),
            ("p://{a}", "p://" + "%41" * 2700 + "%"),
            ("p://{a}%41{b}%41{c}/", "p://" + "%41" * 2700),
            ("{+z}{?a,aa,b}", "?" + "a=?&" * 2000),
            ("p://x{?a}{&b}{;c}", "p://x?" + "a=?" * 2600),
            ("{+z}{?a}!", "?a=" * 2700),
            ("{+z}{?a}!", "?a=" + "?a=%41" * 1300),
            ("{+z}{&a}!", "&a=" * 2700),
            ("{+z}{;a}!", ";a" * 4000),
            ("{.a,b,c,d,e}/", "." * 8000),
            ("{/a,b,c,d,e}#", "/a" * 4000),
        ]
        for text, uri in cases:
            with self.subTest(text, uri=uri[:20]):
                template = mcp_ref.UriTemplate(text)
                began = time.process_time()
                template.match(uri)  # 0.05 s; a search through all ways takes years
                self.assertLess(time.process_time() - began, 10)

    def test_res_04_non_ascii_literals(self) -> None:
        template = mcp_ref.UriTemplate("doc://büro/{id}")
        self.assertEqual(template.match("doc://büro/1"), {"id": "1"})
        self.assertEqual(template.match("doc://b%C3%BCro/1"), {"id": "1"})
        self.assertEqual(template.expand({"id": "1"}), "doc://b%C3%BCro/1")
        self.assertIsNone(template.match("doc://b%c3%bcro/1"))  # never normalised

    def test_res_05_queries(self) -> None:
        for uri, values in {
            "search://q": {},
            "search://q?term=a%26b&limit=2": {"term": "a&b", "limit": "2"},
            "search://q?limit=2&term=x": {"term": "x", "limit": "2"},
            "search://q?term=a%23b": {"term": "a#b"},
            "search://q?term=": {"term": ""},
            "search://q?term": {"term": ""},
            "search://q?term=a+b=c/d?e": {"term": "a+b=c/d?e"},
            "search://q?other=1": None,
            "search://q?term=1&other=1": None,
            "search://q?term=1&term=2": None,
            "search://q?termx=1": None,
            "search://q?": None,
            "search://q?&": None,
            "search://q?term=1&": None,
            "search://q&term=1": None,
            "search://q?term=1#x": None,
            "search://q?TERM=1": None,
        }.items():
            with self.subTest(uri):
                self.assertEqual(match_template("search://q{?term,limit}", uri), values)

    def test_pairs_elsewhere(self) -> None:
        for template, uri, values in [
            ("f://{+p}{?n}", "f://a/b?n=1", {"p": "a/b", "n": "1"}),
            ("f://{+p}{?n}", "f://a/b", {"p": "a/b"}),
            ("f://{+p}{?n}", "f://a/b?m=1", None),
            ("f://{+p}", "f://a/b?m=1", {"p": "a/b?m=1"}),
            ("f://{p}{;v}", "f://a;v=1", {"p": "a", "v": "1"}),
            ("f://{p}{;v}/x", "f://a;v/x", {"p": "a", "v": ""}),
            ("f://{p}{;v}/x", "f://a/x", {"p": "a"}),
            ("f://x?k=1{&a,ab}", "f://x?k=1&ab=2&a=1", {"a": "1", "ab": "2"}),
            ("f://x?k=1{&a,ab}", "f://x?k=1", {}),
            ("f://x{?a}{&ab}", "f://x?a=1&ab=2", {"a": "1", "ab": "2"}),
            ("f://x{?a}{&ab}", "f://x?a=1", {"a": "1"}),
            ("f://x{?a}{#s}", "f://x?a=1#s/?", {"a": "1", "s": "s/?"}),
        ]:
            with self.subTest(template, uri=uri):
                self.assertEqual(match_template(template, uri), values)

    def test_greedy_from_the_left(self) -> None:
        for template, uri, values in [
            ("{a}-{b}", "1-2-3", {"a": "1-2", "b": "3"}),
            ("{a}{b}", "123", {"a": "12", "b": "3"}),
            ("{a}{b}", "%31%32", {"a": "1", "b": "2"}),
            ("{a}{b}", "1", None),
            ("{a,b}", "1,2,3", {"a": "1,2", "b": "3"}),
            ("{name}{.ext}", "a.tar.gz", {"name": "a.tar", "ext": "gz"}),
            ("{+dir}/{file}", "a/b/c", {"dir": "a/b", "file": "c"}),
            ("{a}/{+b}/{c}", "1/2/3/4", {"a": "1", "b": "2/3", "c": "4"}),
            ("{a}4", "%44", None),  # no half triplets
        ]:
            with self.subTest(template, uri=uri):
                self.assertEqual(match_template(template, uri), values)

    def test_res_06_nothing_is_normalised(self) -> None:
        self.assertIsNone(match_template("MEM://Host/{a}", "mem://host/x"))
        self.assertEqual(
            match_template("file:///a/../{b}", "file:///a/../c"), {"b": "c"}
        )
        self.assertIsNone(match_template("https://h{?a}", "https://h/"))
        self.assertEqual(match_template("urn:isbn:{n}", "urn:isbn:1"), {"n": "1"})
        self.assertIsNone(match_template("n://%7E/{a}", "n://~/x"))
        self.assertIsNone(match_template("n://{a}", "n://x\n"))

    def test_res_08_malformed_uris(self) -> None:
        for uri in "%%%", "", "http://[::1", "note://" + "a" * 1_000_000, "no-scheme":
            self.assertIsNone(match_template("note://{name}", uri))
        self.assertEqual(match_template("{a}", "x" * 8192), {"a": "x" * 8192})
        self.assertIsNone(match_template("{a}", "x" * 8193))

    def test_without_variables(self) -> None:
        self.assertEqual(match_template("note://a", "note://a"), {})
        self.assertIsNone(match_template("note://a", "note://ab"))
        self.assertEqual(match_template("", ""), {})
        self.assertIsNone(match_template("", "a"))


class TemplateGrammar(unittest.TestCase):
    def test_names(self) -> None:
        template = mcp_ref.UriTemplate("a://{x,y}/{+z}{?q.r,%41_1}")
        self.assertEqual(template.names, ("x", "y", "z", "q.r", "%41_1"))
        self.assertEqual(template.template, "a://{x,y}/{+z}{?q.r,%41_1}")

    def test_flaws_are_named(self) -> None:
        for template, text in {
            "a{b": "brace without its partner '{' at 1",
            "a}b": "brace without its partner '}' at 1",
            "a{b{c}": "brace without its partner '{' at 1",
            "a{{b}}": "brace without its partner '{' at 1",
            "a{}": "'' at 1 is not a variable name",
            "a{b,}": "'' at 1 is not a variable name",
            "a{b c}": "'b c' at 1 is not a variable name",
            "a{b-c}": "'b-c' at 1 is not",
            "a{.b..c}": "'b..c' at 1 is not",
            "a{é}": "'é' at 1 is not",
            "a{=b}": "'=b' at 1 is not a variable name, nor an operator",
            "a{|b}": "'|b' at 1 is not",
            "a{?b:3}": "'b:3' at 1 has a modifier of level 4",
            "a{b*}": "'b*' at 1 has a modifier of level 4",
            "a{b}c{b}": "'b' at 5 comes twice",
            "a{b,b}": "'b' at 1 comes twice",
            "a b{c}": "illegal character ' ' at 1",
            "a%b{c}": "illegal character '%' at 1",
            "a%2{c}": "illegal character '%' at 1",
            "ab\n": "illegal character '\\n' at 2",
            "a\ud800": "illegal character",
            "a^": "illegal character '^' at 1",
        }.items():
            with self.subTest(template):
                with self.assertRaises(ValueError) as caught:
                    mcp_ref.UriTemplate(template)
                self.assertIn(text, str(caught.exception))

    def test_is_template(self) -> None:
        self.assertTrue(mcp_ref.is_template("note://{a}"))
        self.assertTrue(mcp_ref.is_template("note://a}"))
        self.assertFalse(mcp_ref.is_template("note://a"))

    def test_most_specific_first(self) -> None:
        texts = [
            "n://archive/{id}.txt",
            "n://archive/{id}",
            "n://{a}/{b}",
            "n://{a}",
            "n://{+a}",
        ]
        templates = [mcp_ref.UriTemplate(text) for text in reversed(texts)]
        templates.sort(key=lambda template: template.sort_key)
        self.assertEqual([t.template for t in templates], texts)


class SafePaths(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.base = pathlib.Path(folder.name).resolve()
        self.root = self.base / "root"
        (self.root / "sub").mkdir(parents=True)
        (self.base / "root-twin").mkdir()
        (self.root / "sub" / "a.txt").write_text("a")
        (self.base / "secret").write_text("s")

    def test_inside(self) -> None:
        for relative, path in {
            "sub/a.txt": "sub/a.txt",
            "sub/../sub/a.txt": "sub/a.txt",
            "./sub//a.txt": "sub/a.txt",
            "new/deep.txt": "new/deep.txt",
            "..hidden": "..hidden",
            "...": "...",
            "%2e%2e/secret": "%2e%2e/secret",
            "%2e%2e%2fsecret": "%2e%2e%2fsecret",
            "café €": "café €",
            "": "",
            ".": "",
        }.items():
            with self.subTest(relative):
                self.assertEqual(
                    mcp_ref.safe_path(self.root, relative), self.root / path
                )
                self.assertEqual(
                    mcp_ref.safe_path(str(self.root), relative), self.root / path
                )

    @spec("resources-21")
    def test_outside(self) -> None:
        for relative in (
            "..",
            "../secret",
            "sub/../../secret",
            "../root/sub/a.txt",
            "../root-twin/x",
            "/etc/passwd",
            "//etc/passwd",
            "\\etc\\passwd",
            "..\\secret",
            "sub\\..\\..\\secret",
            "C:/Windows",
            "c:secret",
            "C:",
            "//server/share",
            "a\0b",
            "\0",
            str(self.root / "sub"),
            "a\ud800" if os.name != "nt" else "..",
        ):
            with self.subTest(relative), self.assertRaises(ValueError):
                mcp_ref.safe_path(self.root, relative)

    @unittest.skipIf(os.name == "nt", "links need a privilege on Windows")
    def test_links(self) -> None:
        (self.root / "out").symlink_to(self.base)
        (self.root / "file").symlink_to(self.base / "secret")
        (self.root / "dangling").symlink_to(self.base / "not-there")
        (self.root / "in").symlink_to(self.root / "sub")
        for relative in (
            "out/secret",
            "file",
            "out",
            "dangling",
            "out/x/y",
            "in/../../secret",
        ):
            with self.subTest(relative), self.assertRaises(ValueError):
                mcp_ref.safe_path(self.root, relative)
        expected = self.root / "sub" / "a.txt"
        self.assertEqual(mcp_ref.safe_path(self.root, "in/a.txt"), expected)
        (self.base / "alias").symlink_to(self.root)
        self.assertEqual(mcp_ref.safe_path(self.base / "alias", "sub/a.txt"), expected)

    @unittest.skipIf(os.name == "nt", "links need a privilege on Windows")
    def test_a_loop_of_links_raises_or_stays_inside(self) -> None:
        (self.root / "loop").symlink_to(self.root / "loop")
        try:
            path = mcp_ref.safe_path(self.root, "loop/x")
        except ValueError:
            return
        self.assertTrue(path.is_relative_to(self.root))

    def test_long_names(self) -> None:
        for relative in "a" * 8000, "a/" * 4000:
            try:
                path = mcp_ref.safe_path(self.root, relative)
            except ValueError:
                continue
            self.assertTrue(path.is_relative_to(self.root))

    def test_with_a_template(self) -> None:
        values = match_template("file:///{path}", "file:///..%2F..%2Fetc%2Fpasswd")
        assert values is not None
        with self.assertRaises(ValueError):
            mcp_ref.safe_path(self.root, values["path"])


# --- Appendix A: JSON mcp_ref.Schema 2020-12 -------------------------------------------------------

SUITE = SHARED / "json-schema-suite"


def schema_texts(schema: Any, value: Any, **options: Any) -> list[str]:
    return [
        str(violation)
        for violation in mcp_ref.Schema(schema, **options).violations(value)
    ]


def suite_resources(root: pathlib.Path) -> dict[str, Any]:
    remotes = root / "remotes"
    paths = [*remotes.glob("*.json"), *(remotes / "draft2020-12").rglob("*.json")]
    return {
        f"http://localhost:1234/{path.relative_to(remotes).as_posix()}": json.loads(
            path.read_text("utf-8")
        )
        for path in paths
    }


class SchemaSuite(unittest.TestCase):
    def run_files(self, names: list[str], formats: bool = False) -> None:
        resources = suite_resources(SUITE)
        for path in (SUITE / "draft2020-12" / name for name in names):
            for group in json.loads(path.read_text("utf-8")):
                compiled = None
                for test in group["tests"]:
                    about = path.name, group["description"], test["description"]
                    with self.subTest(about):
                        compiled = compiled or mcp_ref.Schema(
                            group["schema"], resources=resources, formats=formats
                        )
                        valid = compiled.is_valid(test["data"])
                        found = compiled.violations(test["data"])
                        self.assertEqual(valid, test["valid"])
                        self.assertEqual(not found, test["valid"])
                        self.assertTrue(all(str(one) for one in found))

    @unittest.skipIf(not SUITE.is_dir(), "../shared/json-schema-suite is not here")
    @spec("base-35", "base-36")
    def test_required_tests_all_pass(self) -> None:
        self.run_files([path.name for path in (SUITE / "draft2020-12").glob("*.json")])

    @unittest.skipIf(not SUITE.is_dir(), "../shared/json-schema-suite is not here")
    def test_optional_tests_that_concern_us_pass(self) -> None:
        names = "anchor bignum dynamicRef ecmascript-regex float-overflow id no-schema"
        names += " non-bmp-regex refOfUnknownKeyword unknownKeyword"
        self.run_files([f"optional/{name}.json" for name in names.split()])

    @unittest.skipIf(not SUITE.is_dir(), "../shared/json-schema-suite is not here")
    def test_formats_with_full_grammars_pass(self) -> None:
        names = "date uuid ipv4 ipv6".split()
        self.run_files([f"optional/format/{name}.json" for name in names], True)


class SchemaConstruction(unittest.TestCase):
    def refuse(self, schema: Any, *parts: str, **options: Any) -> None:
        with self.assertRaises(mcp_ref.SchemaError) as caught:
            mcp_ref.Schema(schema, **options)
        for part in parts:
            self.assertIn(part, str(caught.exception))

    def test_only_objects_and_booleans_are_schemas(self) -> None:
        wrong: list[Any] = [None, 1, "x", [], [{}]]
        for schema in wrong:
            self.refuse(schema, "expected object or boolean")
        self.assertTrue(mcp_ref.Schema(True).is_valid(None))
        self.assertFalse(mcp_ref.Schema(False).is_valid(None))
        self.assertEqual(schema_texts(False, 5), ["expected no value at all, got 5"])

    @spec("base-37", "base-38")
    def test_another_dialect_is_refused_by_name(self) -> None:
        draft7 = "http://json-schema.org/draft-07/schema#"
        self.refuse({"$schema": draft7}, draft7, mcp_ref.SCHEMA_DIALECT)
        self.refuse({"$schema": 7}, "7", mcp_ref.SCHEMA_DIALECT)
        inner = {"$defs": {"a": {"$id": "http://x/a", "$schema": draft7}}}
        self.refuse(inner, draft7, mcp_ref.SCHEMA_DIALECT)

    def test_a_trailing_hash_in_the_dialect_is_tolerated(self) -> None:
        schema = {"$schema": mcp_ref.SCHEMA_DIALECT + "#", "type": "null"}
        self.assertFalse(mcp_ref.Schema(schema).is_valid(1))

    def test_wrong_keyword_values_are_located(self) -> None:
        for schema, *parts in (
            ({"type": "strin"}, "#/type: ", "'string'", "'strin'"),
            ({"properties": []}, "#/properties: expected object, got [] (array)"),
            ({"properties": {"a": {"type": "strin"}}}, "#/properties/a/type: "),
            ({"properties": {"a/b~": {"minimum": "1"}}}, "#/properties/a~1b~0/minimum"),
            ({"items": [{}]}, "#/items: ", "object or boolean"),
            ({"required": "a"}, "#/required: expected array"),
            ({"required": ["a", "a"]}, "#/required: "),
            ({"minLength": -1}, "#/minLength: expected a number >= 0, got -1"),
            ({"multipleOf": 0}, "#/multipleOf: expected a number > 0, got 0"),
            ({"anyOf": []}, "#/anyOf: "),
            ({"$defs": {"unused": {"enum": 1}}}, "#/$defs/unused/enum: "),
            ({"$anchor": "#a"}, "#/$anchor: "),
            ({"$id": "http://x/#a"}, "#/$id: "),
            ({"$ref": 1}, "#/$ref: "),
        ):
            with self.subTest(schema):
                self.refuse(schema, *parts)

    def test_wrong_patterns_are_located(self) -> None:
        self.refuse({"items": {"pattern": "(a"}}, "#/items/pattern: '(a'")
        self.refuse({"$defs": {"u": {"pattern": "["}}}, "#/$defs/u/pattern")
        self.refuse({"patternProperties": {"*": True}}, "#/patternProperties: '*'")
        self.refuse({"pattern": r"\p{Script=Greek}"}, "Greek")
        self.refuse({"pattern": r"\Aa"}, r"\A")
        self.refuse({"pattern": r"\u{110000}"}, "pattern")

    @spec("base-41", "base-43")
    def test_unresolvable_references_are_named(self) -> None:
        for ref in (
            *("#/$defs/nope", "#nope", "other.json", "http://x/x#/a", "#/a/0"),
            *("http://[", "#/enum/x", "#/enum/7", "#/enum/0", "urn:a:b"),
        ):
            with self.subTest(ref):
                self.refuse({"$ref": ref, "enum": [1]}, "#/$ref: ", repr(ref))
        self.refuse({"$defs": {"unused": {"$ref": "#no"}}}, "#/$defs/unused/$ref")
        self.refuse({"items": {"$dynamicRef": "#no"}}, "#/items/$dynamicRef")

    def test_a_target_below_an_unknown_keyword_is_checked_too(self) -> None:
        schema = {"$ref": "#/definitions/a", "definitions": {"a": {"type": "string"}}}
        self.assertFalse(mcp_ref.Schema(schema).is_valid(1))
        schema["definitions"] = {"a": {"type": "strin"}}
        self.refuse(schema, "#/definitions/a/type")

    def test_resources_are_checked_when_they_are_referred_to(self) -> None:
        resources = {"http://x/bad": {"type": 1}, "http://x/good": {"type": "null"}}
        good = mcp_ref.Schema({"$ref": "http://x/good"}, resources=resources)
        self.assertTrue(good.is_valid(None))
        self.refuse({"$ref": "http://x/bad"}, "http://x/bad#/type", resources=resources)

    def test_custom_meta_schemas(self) -> None:
        base = "https://json-schema.org/draft/2020-12/"
        meta = {
            "$id": "http://x/meta",
            "$schema": "http://x/meta",
            "$vocabulary": {base + "vocab/core": True, base + "vocab/validation": True},
            "$dynamicAnchor": "meta",
            "allOf": [{"$ref": base + "meta/core"}, {"$ref": base + "meta/validation"}],
            "required": ["title"],
        }
        resources = {"http://x/meta": meta}
        schema = {"$schema": "http://x/meta", "title": "t", "maximum": 1, "not": True}
        compiled = mcp_ref.Schema(schema, resources=resources)
        self.assertTrue(compiled.is_valid(1))  # `not` is in no vocabulary of this one
        self.assertFalse(compiled.is_valid(2))
        self.refuse({"$schema": "http://x/meta"}, "'title'", resources=resources)
        meta["$vocabulary"] = {"http://x/vocab": True}
        self.refuse(schema, "http://x/vocab", resources=resources)
        meta["$vocabulary"] = ["http://x/vocab"]
        self.refuse(schema, "$vocabulary", resources=resources)

    def test_one_object_may_stand_in_several_places(self) -> None:
        closed = {"properties": {"a": True}, "unevaluatedProperties": False}
        schema = {
            "$defs": {"closed": closed},
            "properties": {"b": {"allOf": [closed]}, "c": closed},
        }
        compiled = mcp_ref.Schema(schema)
        self.assertTrue(compiled.is_valid({"b": {"a": 1}, "c": {"a": 1}}))
        self.assertFalse(compiled.is_valid({"b": {"x": 1}}))
        self.assertFalse(compiled.is_valid({"c": {"x": 1}}))

    def test_false_names_the_property_that_it_forbids(self) -> None:
        schema = {"properties": {"a": False}, "patternProperties": {"^x": False}}
        found = mcp_ref.Schema(schema).violations({"a": 1, "x1": 2})
        self.assertEqual(
            [(one.keyword, str(one)) for one in found],
            [
                ("properties", "unexpected property 'a'"),
                ("patternProperties", "unexpected property 'x1'"),
            ],
        )

    def test_the_meta_schema_is_not_compiled_at_import(self) -> None:
        mcp_ref._meta_schema.cache_clear()
        mcp_ref.Schema(True)
        self.assertTrue(
            mcp_ref.Schema({"$ref": mcp_ref.SCHEMA_DIALECT}).is_valid({"type": "null"})
        )
        self.assertFalse(
            mcp_ref.Schema({"$ref": mcp_ref.SCHEMA_DIALECT}).is_valid({"type": "nul"})
        )


class SchemaBudget(unittest.TestCase):
    def exhaust(self, schema: Any, value: Any, **options: Any) -> str:
        options.setdefault("steps", 20_000)  # the default takes its time on purpose
        compiled = mcp_ref.Schema(schema, **options)
        with self.assertRaises(mcp_ref.SchemaError) as caught:
            compiled.violations(value)
        with self.assertRaises(mcp_ref.SchemaError):
            compiled.is_valid(value)
        return str(caught.exception)

    def test_steps_are_counted_exactly(self) -> None:
        schema = {"items": {"type": "integer"}}
        self.assertTrue(mcp_ref.Schema(schema, steps=11).is_valid([1] * 10))
        self.assertIn("evaluations", self.exhaust(schema, [1] * 10, steps=10))

    @spec("base-44")
    def test_exponential_references_stop(self) -> None:
        for word in ("allOf", "anyOf", "oneOf"):
            defs: dict[str, Any] = {"d0": {"type": "string"}}
            for n in range(1, 40):
                branch = {"$ref": f"#/$defs/d{n - 1}"}
                defs[f"d{n}"] = {word: [branch, branch]}
            value = "" if word == "allOf" else 5
            self.exhaust({"$ref": "#/$defs/d39", "$defs": defs}, value)

    def test_exponential_objects_stop(self) -> None:
        schema: Any = {"type": "string"}
        for _ in range(40):
            schema = {"anyOf": [schema, schema]}
        with self.assertRaises(mcp_ref.SchemaError):
            mcp_ref.Schema(schema).is_valid(5)

    def test_cycles_that_consume_nothing_stop(self) -> None:
        self.exhaust({"$ref": "#"}, 1)
        self.exhaust({"$dynamicRef": "#a", "$dynamicAnchor": "a"}, 1)
        mutual = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
        self.exhaust({"$ref": "#/$defs/a", "$defs": mutual}, 1)
        self.exhaust({"allOf": [{"$ref": "#"}], "unevaluatedProperties": False}, {})
        self.exhaust({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1)
        self.exhaust({"not": {"$ref": "#"}}, 1)

    def test_cycles_that_consume_work(self) -> None:
        tree = {"type": "object", "additionalProperties": {"$ref": "#"}}
        self.assertTrue(mcp_ref.Schema(tree).is_valid({"a": {"b": {}}}))
        self.assertEqual(
            schema_texts(tree, {"a": {"b": 1}}),
            ["a.b: expected object, got 1 (integer)"],
        )

    @spec("base-44")
    def test_deep_values_are_an_error_and_no_crash(self) -> None:
        deep: Any = []
        for _ in range(900):
            deep = [deep]
        message = self.exhaust({"items": {"$ref": "#"}}, deep)
        self.assertIn(str(mcp_ref.SCHEMA_DEPTH), message)
        for _ in range(100_000):
            deep = [deep]
        self.exhaust({"items": {"$ref": "#"}}, deep)
        self.exhaust({"const": 1}, deep)
        self.exhaust({"uniqueItems": True}, [deep])
        self.assertTrue(mcp_ref.Schema({"type": "array"}).is_valid(deep))
        self.assertIn("[[[", schema_texts({"type": "null"}, deep)[0])
        while deep:  # freeing it recursively would be a crash of its own
            deep = deep.pop()

    def test_the_depth_stays_clear_of_the_recursion_limit(self) -> None:
        # The most frames for one level: a reference into another, tracked resource.
        schema = {
            "$id": "http://x/a",
            "$dynamicAnchor": "n",
            "$ref": "b",
            "unevaluatedItems": False,
            "$defs": {
                "b": {
                    "$id": "b",
                    "$dynamicAnchor": "n",
                    "items": {"$ref": "a"},
                }
            },
        }
        message = self.exhaust(schema, json.loads("[" * 200 + "]" * 200))
        self.assertIn("deeper than", message)

    def test_a_caller_deep_in_the_stack_gets_a_schema_error(self) -> None:
        compiled = mcp_ref.Schema({"items": {"$ref": "#"}})
        value = json.loads("[" * 40 + "]" * 40)
        self.assertTrue(compiled.is_valid(value))

        def descend(frames: int) -> None:
            if frames:
                return descend(frames - 1)
            with self.assertRaises(mcp_ref.SchemaError):
                compiled.is_valid(value)
            with self.assertRaises(mcp_ref.SchemaError):
                mcp_ref.Schema(json.loads('{"not":' * 15 + "{}" + "}" * 15))

        descend(sys.getrecursionlimit() - len(inspect.stack(0)) - 30)

    @spec("base-44")
    def test_deep_schemas_are_refused(self) -> None:
        for depth in (300, 50_000):
            schema: Any = {}
            for _ in range(depth):
                schema = {"not": schema}
            with self.assertRaises(mcp_ref.SchemaError):
                mcp_ref.Schema(schema)
            while schema:
                schema = schema.pop("not")

    def test_long_strings_are_kept_from_patterns(self) -> None:
        self.assertIn("too long", self.exhaust({"pattern": "a"}, "a" * 10_001))
        named = {"patternProperties": {"^x": True}, "additionalProperties": False}
        self.assertIn("too long", self.exhaust(named, {"x" * 10_001: 1}))
        self.assertTrue(mcp_ref.Schema({"pattern": "a"}).is_valid("a" * 10_000))

    def test_unique_items_is_not_quadratic(self) -> None:
        compiled = mcp_ref.Schema({"uniqueItems": True})
        prime = sys.hash_info.modulus
        for items in (range(50_000), [n * prime for n in range(50_000)]):
            self.assertTrue(compiled.is_valid(list(items)))
        objects: list[Any] = [{"n": [n]} for n in range(20_000)]
        self.assertTrue(compiled.is_valid(objects))
        self.assertFalse(compiled.is_valid([*objects, {"n": [7]}]))

    def test_summaries_stay_short(self) -> None:
        schema: Any = {"required": ["a"]}
        for n in range(12):
            schema = {"anyOf": [schema, {"required": [f"b{n}"]}, {"required": ["c"]}]}
        self.assertLess(len(schema_texts(schema, {})[0]), 500)


class SchemaValues(unittest.TestCase):
    def check(self, schema: Any, good: list[Any], bad: list[Any]) -> None:
        compiled = mcp_ref.Schema(schema)
        for value, valid in [(v, True) for v in good] + [(v, False) for v in bad]:
            with self.subTest(schema=schema, value=value):
                self.assertEqual(compiled.is_valid(value), valid)
                self.assertEqual(not compiled.violations(value), valid)

    def test_types(self) -> None:
        self.check({"type": "integer"}, [1, 1.0, -0.0, 10**400], [1.5, True, "1"])
        self.check({"type": "integer"}, [], [float("inf"), float("nan"), None])
        self.check({"type": "number"}, [1, 1.5, 1e308], [True, None, "1"])
        self.check({"type": "boolean"}, [True, False], [0, 1])

    def test_equality(self) -> None:
        self.check({"const": 1}, [1, 1.0], [True, "1", [1]])
        self.check({"const": {"a": [1, False]}}, [{"a": [1.0, False]}], [{"a": [1, 0]}])
        self.check({"enum": [0, "a", None]}, [0, -0.0, "a", None], [False, "", []])
        self.check({"enum": [2**60]}, [2**60, float(2**60)], [2**60 + 1, str(2**60)])
        self.check({"uniqueItems": True}, [[1, True], [0, False], [[1], [True]]], [])
        self.check({"uniqueItems": True}, [[{"a": 1}, ["a", 1]]], [[1, 1.0], [{}, {}]])

    def test_multiples(self) -> None:
        self.check({"multipleOf": 0.01}, [0.07, 19.99, 4, 1e308], [0.075, 1e-5])
        self.check({"multipleOf": 3}, [9.0, 3 * 10**400], [10**400, 1.5])
        self.check({"multipleOf": 0.123456789}, [], [1e308, float("inf")])
        self.check({"multipleOf": 5e-324}, [1.5, 10**400], [])

    def test_big_integers_are_exact(self) -> None:
        self.check({"maximum": 2**53}, [2**53, 2.0**53], [2**53 + 1])
        self.check({"exclusiveMinimum": 10**30}, [10**30 + 1], [10**30])

    def test_patterns_follow_ecma_262(self) -> None:
        self.check({"pattern": "^a$"}, ["a"], ["a\n", "b\na"])
        self.check({"pattern": r"^\d$"}, ["1"], ["१"])
        self.check({"pattern": r"^[\d\-x]+$"}, ["1-x"], ["१"])
        self.check({"pattern": r"^[^\s]$"}, ["a"], ["\u00a0", "\ufeff"])
        self.check({"pattern": r"^[\S]$"}, ["a"], ["\u2003"])
        self.check({"pattern": r"^\p{Lu}\P{Lu}$"}, ["Éa"], ["aa", "AA"])
        self.check({"pattern": r"^[\p{L}_]+$"}, ["aπ_"], ["1"])
        self.check({"pattern": "^.$"}, ["a", "\u0085"], ["\n", "\r", "\u2028"])
        self.check({"pattern": r"^(?<q>['\"])x\k<q>$"}, ["'x'"], ["'x\""])
        self.check({"pattern": r"^[[&~|]]$"}, ["[]", "&]"], ["a]"])
        self.check({"pattern": "^[^]$"}, ["\n", "a"], ["", "ab"])
        self.check({"pattern": "[]"}, [], ["", "a"])
        self.check({"pattern": r"^\u{1F600}\u0061\x62\cA\/$"}, ["😀ab\x01/"], ["a"])
        self.check({"pattern": r"^[$.]$"}, ["$", "."], ["a"])
        self.check({"pattern": r"\bé"}, ["aé"], ["é"])
        self.check({"pattern": r"^a{2,}(?=b)(?!bb)"}, ["aab"], ["ab", "aabb"])
        self.check({"pattern": r"^\\k<a>$"}, ["\\k<a>"], ["a"])

    def test_formats_assert_only_on_request(self) -> None:
        table = {
            "date": (["2024-02-29"], ["2023-02-29", "20240229", "2024-W01-1"]),
            "time": (["23:59:60Z", "00:00:00.5-01:30"], ["24:00:00Z", "1:00:00Z"]),
            "date-time": (["2024-02-29T00:00:00z"], ["2024-02-29 00:00:00Z", "x"]),
            "email": (["a.b+c@x-y.example"], ["a", "a@", "@b", "a b@c", ".a@b"]),
            "uri": (["urn:a", "http://x/?q=%20#f"], ["/a", "http://x/ y", "a:%zz"]),
            "uuid": (["2EB8AA08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08"]),
            "ipv4": (["127.0.0.1"], ["127.0.0.256", "1.2.3", "01.2.3.4"]),
            "ipv6": (["::1", "::ffff:1.2.3.4"], ["fe80::1%eth0", "1::2::3"]),
            "unheard-of": (["anything"], []),
        }
        for name, (good, bad) in table.items():
            strict = mcp_ref.Schema({"format": name}, formats=True)
            for value in [*good, *bad, 5]:
                with self.subTest(name, value=value):
                    self.assertTrue(mcp_ref.Schema({"format": name}).is_valid(value))
                    self.assertEqual(strict.is_valid(value), value not in bad)


class SchemaMessages(unittest.TestCase):
    def says(self, schema: Any, value: Any, *expected: str) -> None:
        with self.subTest(schema=schema, value=value):
            self.assertEqual(schema_texts(schema, value), list(expected))

    def test_paths(self) -> None:
        one = mcp_ref.Violation(("address", "lines", 2), "type", "m")
        self.assertEqual(str(one), "address.lines[2]: m")
        self.assertEqual(str(mcp_ref.Violation((0, "a"), "type", "m")), "[0].a: m")
        self.assertEqual(str(mcp_ref.Violation((), "type", "m")), "m")
        schema = {"properties": {"a": {"items": {"type": "string"}}}}
        found = mcp_ref.Schema(schema).violations({"a": ["x", 5]})
        message = "expected string, got 5 (integer)"
        self.assertEqual(found, [mcp_ref.Violation(("a", 1), "type", message)])

    def test_values(self) -> None:
        self.says({"type": "string"}, None, "expected string, got null")
        self.says({"type": "string"}, True, "expected string, got true (boolean)")
        self.says({"type": "array"}, (1,), "expected array, got [1] (tuple)")
        self.says(
            {"type": "null"}, {1, 2}, "expected null, got a value of type set (set)"
        )
        self.says({"minimum": 0}, -1, "expected a number >= 0, got -1")
        self.says({"exclusiveMaximum": 1.5}, 2, "expected a number < 1.5, got 2")
        self.says(
            {"enum": ["metric", "imperial"]},
            "foo",
            "expected one of 'metric', 'imperial', got 'foo'",
        )
        self.says({"const": "a"}, 5, "expected 'a', got 5")
        long = (
            mcp_ref.Schema({"type": "null"}).violations(["x" * 40] * 10_000)[0].message
        )
        self.assertLess(len(long), 110)
        self.assertTrue(long.endswith("... (array)"))
        huge = mcp_ref.Schema({"type": "null"}).violations(10**5000)[0].message
        self.assertIn("integer", huge)

    def test_only_the_type_is_reported_if_it_is_wrong(self) -> None:
        schema = {"enum": ["a"], "type": "string"}
        self.says(schema, 5, "expected string, got 5 (integer)")

    def test_objects(self) -> None:
        schema = {
            "type": "object",
            "properties": {"alpha": {"type": "integer"}, "beta": {"type": "integer"}},
            "required": ["alpha", "beta"],
            "additionalProperties": False,
        }
        found = mcp_ref.Schema(schema).violations({"inner": 1, "alpha": 1, "bet": 4})
        self.assertEqual({one.path for one in found}, {()})
        self.assertEqual(
            [one.message for one in found],
            [
                "missing required property 'beta'",
                "unexpected property 'inner'; allowed: alpha, beta",
                "unexpected property 'bet'; allowed: alpha, beta; did you mean 'beta'?",
            ],
        )
        self.assertEqual(found[0].keyword, "required")
        self.assertEqual(found[1].keyword, "additionalProperties")
        self.says(
            {"additionalProperties": False},
            {"a": 1},
            "unexpected property 'a'; allowed: none",
        )
        self.says(
            {"dependentRequired": {"a": ["b"]}},
            {"a": 1},
            "missing property 'b', which 'a' requires",
        )
        self.says(
            {"propertyNames": {"maxLength": 1}},
            {"ab": 1},
            "property name 'ab': expected a string of at most 1 characters, got 'ab'",
        )
        self.says(
            {"properties": {"a": True}, "unevaluatedProperties": False},
            {"a": 1, "b": 2},
            "unexpected property 'b'",
        )

    def test_arrays(self) -> None:
        self.says(
            {"prefixItems": [{}], "items": False},
            [1, 2],
            "unexpected item at index 1",
        )
        self.says(
            {"contains": {"type": "null"}, "maxContains": 2},
            [1],
            "expected at least 1 and at most 2 items that match `contains`, got 0",
        )
        self.says(
            {"uniqueItems": True},
            [1, 1],
            "expected an array without equal items, got [1, 1]",
        )

    def test_unions(self) -> None:
        nullable = {"anyOf": [{"type": "string"}, {"type": "null"}]}
        self.says(nullable, 5, "expected string or null, got 5")
        self.assertEqual(mcp_ref.Schema(nullable).violations(5)[0].keyword, "anyOf")
        self.says(
            {"oneOf": [nullable, {"type": "integer"}]},
            [],
            "expected string or null or integer, got []",
        )
        titled = {"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}
        self.says(titled, "c", "expected 'a' or 'b', got 'c'")
        self.says(
            {"oneOf": [{}, {"type": "null"}, True]},
            None,
            "expected exactly one form of oneOf to fit, but forms [0, 1, 2] fit",
        )
        self.says(
            {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {},
            "fits none of 2 forms: missing required property 'a'; "
            "or missing required property 'b'",
        )

    def test_a_union_reports_the_nearest_form(self) -> None:
        point = {"type": "object", "properties": {"x": {"type": "number"}}}
        optional = {"anyOf": [point, {"type": "null"}]}
        self.says(optional, {"x": "1"}, "x: expected number, got '1' (string)")
        circle, square = (
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "size": {"type": "number"}},
                "required": ["kind", "size"],
            }
            for kind in ("circle", "square")
        )
        shape = {"oneOf": [circle, square]}
        self.says(shape, {"kind": "square"}, "missing required property 'size'")
        self.says(
            shape,
            {"kind": "disc", "size": 1},
            "fits none of 2 forms: kind: expected 'circle', got 'disc'; "
            "or kind: expected 'square', got 'disc'",
        )

    def test_limit(self) -> None:
        schema = mcp_ref.Schema({"items": {"type": "null"}})
        self.assertEqual(len(schema.violations([1] * 50)), 10)
        self.assertEqual(len(schema.violations([1] * 50, limit=3)), 3)
        self.assertEqual(len(schema.violations([1] * 50, limit=100)), 50)


class SchemaThreads(unittest.TestCase):
    def test_one_schema_serves_many_threads(self) -> None:
        schema = mcp_ref.Schema(
            {
                "allOf": [{"properties": {"a": True}}],
                "additionalProperties": {"$ref": "#"},
                "unevaluatedProperties": False,
            }
        )
        results: list[bool] = []

        def work() -> None:
            for _ in range(200):
                results.append(schema.is_valid({"a": 1, "b": {"a": {}}}))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [True] * 800)


# --- Appendix B: type hints and JSON Schema ------------------------------------------------

UTC = datetime.timezone.utc
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
NULL, NUMBER = {"type": "null"}, {"type": "number"}
DATE = {"type": "string", "format": "date"}
UUID1 = uuid.UUID(int=1)


class Foo:
    pass


class Color(enum.Enum):
    RED = "r"
    ON = True
    TWO = 2


class Size(enum.IntEnum):
    S = 1
    L = 2


class Word(enum.StrEnum):
    A = "a"
    B = "b"


class Perm(enum.Flag):
    R = 1
    W = 2


@dataclass
class P:
    x: int
    tags: list[str] = field(default_factory=list)


@dataclass
class Meeting:
    day: datetime.date
    where: Annotated[str, "which room"] = "lobby"
    guests: list[P] = field(default_factory=list)


@dataclass
class Square:
    side: int
    area: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.side < 0:
            raise ValueError("side must not be negative")
        assert self.side < 100, "too large"
        self.area = self.side**2


@dataclass
class Node:
    value: datetime.date
    next: "Node | None" = None


@dataclass
class Bad:
    foo: Foo


@dataclass
class Ping:
    pong: "Pong | None" = None


@dataclass
class Pong:
    ping: Ping
    again: Node | None = None


class T(TypedDict, total=False):
    a: typing.Required[int]
    b: str


class Whole(TypedDict):
    day: datetime.date
    note: typing.NotRequired[Annotated[str, "free text"]]


class Tree(TypedDict):
    day: datetime.date
    kids: "list[Tree]"


class Point(NamedTuple):
    x: int
    y: float = 0.0


Old = collections.namedtuple("Old", "a b", defaults=[3])
Item = typing.TypeVar("Item")
Texty = typing.TypeVar("Texty", bound=str)
IntOrStr = typing.TypeVar("IntOrStr", int, str)
UserId = typing.NewType("UserId", int)


@dataclass
class Page(typing.Generic[Item]):
    items: list[Item]
    more: "Page[Item] | None" = None


def closed(required, **properties):
    schema = {"type": "object", "properties": properties, "required": required}
    if not required:
        del schema["required"]
    return {**schema, "additionalProperties": False}


def either(*schemas):
    return {"anyOf": list(schemas)}


def array(items=None, **more):
    return {"type": "array", **({"items": items} if items else {}), **more}


def mapping(values=True, **more):
    return {"type": "object", **more, "additionalProperties": values}


TAGS = array(STRING)
P_SCHEMA = closed(["x"], x=INTEGER, tags=TAGS)
POINT = closed(["x"], x=INTEGER, y={**NUMBER, "default": 0.0})
DATETIME = {"type": "string", "format": "date-time"}
NODE = closed(
    ["value"],
    value=DATE,
    next={"anyOf": [{"$ref": "#/$defs/Node"}, NULL], "default": None},
)
D = datetime.date(2026, 7, 28)
WHEN = datetime.datetime(2026, 7, 28, 9, 30, tzinfo=UTC)

# hint, schema, [(JSON, Python value)] in both directions
TABLE = [
    (str, STRING, [("5", "5"), ('{"a": 1}', '{"a": 1}'), ("null", "null")]),
    (int, INTEGER, [(5, 5), (10**30, 10**30)]),
    (float, NUMBER, [(1.5, 1.5)]),
    (bool, {"type": "boolean"}, [(True, True), (False, False)]),
    (None, NULL, [(None, None)]),
    (Any, {}, [([1, {"a": None}], [1, {"a": None}])]),
    (object, {}, [("x", "x")]),
    (list, array(), [([1, "a"], [1, "a"])]),
    (list[int], array(INTEGER), [([1, 2], [1, 2]), ([], [])]),
    (typing.List, array(), [([1], [1])]),
    (typing.List[datetime.date], array(DATE), [(["2026-07-28"], [D])]),
    (abc.Sequence, array(), [([1], [1])]),
    (abc.Sequence[str], TAGS, [(["a"], ["a"])]),
    (typing.Iterable[str], TAGS, [(["a"], ["a"])]),
    (abc.Collection[datetime.date], array(DATE), [(["2026-07-28"], [D])]),
    (collections.deque[int], array(INTEGER), [([1], collections.deque([1]))]),
    (tuple, array(), [([1, "a"], (1, "a"))]),
    (typing.Tuple, array(), [([1, "a"], (1, "a"))]),
    (tuple[int, ...], array(INTEGER), [([1, 2], (1, 2))]),
    (
        tuple[int, datetime.date],
        {
            "type": "array",
            "prefixItems": [INTEGER, DATE],
            "items": False,
            "minItems": 2,
            "maxItems": 2,
        },
        [([1, "2026-07-28"], (1, D))],
    ),
    (
        tuple[()],
        {"type": "array", "items": False, "minItems": 0, "maxItems": 0},
        [([], ())],
    ),
    (
        tuple[int],
        {
            "type": "array",
            "prefixItems": [INTEGER],
            "items": False,
            "minItems": 1,
            "maxItems": 1,
        },
        [([1], (1,))],
    ),
    (set, array(uniqueItems=True), [([1, 2], {1, 2})]),
    (set[int], array(INTEGER, uniqueItems=True), [([1, 2], {1, 2})]),
    (frozenset[str], array(STRING, uniqueItems=True), [(["a"], frozenset("a"))]),
    (typing.AbstractSet[str], array(STRING, uniqueItems=True), [(["a"], {"a"})]),
    (dict, mapping(), [({"a": [1]}, {"a": [1]})]),
    (dict[str, Any], mapping(), [({"a": [1]}, {"a": [1]})]),
    (abc.Mapping, mapping(), [({"a": 1}, {"a": 1})]),
    (typing.Mapping[str, int], mapping(INTEGER), [({"a": 1}, {"a": 1})]),
    (dict[str, datetime.date], mapping(DATE), [({"a": "2026-07-28"}, {"a": D})]),
    (
        dict[int, str],
        mapping(
            STRING,
            propertyNames={"type": "string", "pattern": "^(0|-?[1-9][0-9]*)$"},
        ),
        [({"5": "a", "-1": "b"}, {5: "a", -1: "b"})],
    ),
    (
        dict[Size, int],
        mapping(INTEGER, propertyNames={"type": "string", "enum": ["1", "2"]}),
        [({"1": 5}, {Size.S: 5})],
    ),
    (
        dict[Word, int],
        mapping(INTEGER, propertyNames={"type": "string", "enum": ["a", "b"]}),
        [({"a": 5}, {Word.A: 5})],
    ),
    (Optional[int], either(INTEGER, NULL), [(5, 5), (None, None)]),
    (str | None, either(STRING, NULL), [("a", "a"), (None, None)]),
    (Union[int, str], either(INTEGER, STRING), [("5", "5"), (5, 5)]),
    (int | float, either(INTEGER, NUMBER), [(5, 5), (1.5, 1.5), (2.0, 2.0)]),
    (list[int] | list[str], either(array(INTEGER), TAGS), [([1], [1]), (["a"], ["a"])]),
    (
        Optional[Literal["x", "y"]],
        either({"type": "string", "enum": ["x", "y"]}, NULL),
        [("x", "x"), (None, None)],
    ),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, [("b", "b")]),
    (
        Literal[True, 1, "a", None],
        {"enum": [True, 1, "a", None]},
        [(True, True), (1, 1), ("a", "a"), (None, None)],
    ),
    (Literal[Color.RED], {"type": "string", "enum": ["r"]}, [("r", Color.RED)]),
    (
        Color,
        {"enum": ["r", True, 2]},
        [("r", Color.RED), (True, Color.ON), (2, Color.TWO)],
    ),
    (Size, {"type": "integer", "enum": [1, 2]}, [(2, Size.L)]),
    (Word, {"type": "string", "enum": ["a", "b"]}, [("b", Word.B)]),
    (P, P_SCHEMA, [({"x": 1, "tags": ["a"]}, P(1, ["a"]))]),
    (
        Meeting,
        closed(
            ["day"],
            day=DATE,
            where={"type": "string", "description": "which room", "default": "lobby"},
            guests=array(P_SCHEMA),
        ),
        [
            (
                {
                    "day": "2026-07-28",
                    "where": "a",
                    "guests": [{"x": 1, "tags": []}],
                },
                Meeting(D, "a", [P(1)]),
            )
        ],
    ),
    (
        Square,
        closed(
            ["side"], side=INTEGER, area={**INTEGER, "default": 0, "readOnly": True}
        ),
        [({"side": 3, "area": 9}, Square(3))],
    ),
    (T, closed(["a"], a=INTEGER, b=STRING), [({"a": 1}, {"a": 1})]),
    (
        Whole,
        closed(["day"], day=DATE, note={"type": "string", "description": "free text"}),
        [({"day": "2026-07-28", "note": "x"}, {"day": D, "note": "x"})],
    ),
    (Point, POINT, [({"x": 1, "y": 2.5}, Point(1, 2.5))]),
    (Old, closed(["a"], a={}, b={"default": 3}), [({"a": 1, "b": "x"}, Old(1, "x"))]),
    (datetime.datetime, DATETIME, [("2026-07-28T09:30:00+00:00", WHEN)]),
    (datetime.date, DATE, [("2026-07-28", D)]),
    (
        datetime.time,
        {"type": "string", "pattern": f"^{mcp_ref._CLOCK}$"},
        [
            ("09:30:00", datetime.time(9, 30)),
            ("09:30:01.500000", datetime.time(9, 30, 1, 500000)),
        ],
    ),
    (uuid.UUID, {"type": "string", "format": "uuid"}, [(str(UUID1), UUID1)]),
    (
        decimal.Decimal,
        either(NUMBER, {"type": "string", "pattern": f"^{mcp_ref._DECIMAL}$"}),
        [
            ("1.10", decimal.Decimal("1.10")),
            ("1E+3", decimal.Decimal(1000).normalize()),
        ],
    ),
    (bytes, {"type": "string", "contentEncoding": "base64"}, [("/w==", b"\xff")]),
    (pathlib.Path, STRING, [("a/b", pathlib.Path("a/b"))]),
    (Annotated[int, "how many"], {**INTEGER, "description": "how many"}, [(5, 5)]),
    (Annotated[int, {"minimum": 1}], {**INTEGER, "minimum": 1}, [(5, 5)]),
    (
        Annotated[Annotated[str, "inner", {"minLength": 1}], "outer"],
        {**STRING, "description": "outer", "minLength": 1},
        [("a", "a")],
    ),
    (Annotated[Any, {"type": "object"}], {"type": "object"}, [({"a": 1}, {"a": 1})]),
    (UserId, INTEGER, [(5, 5)]),
    (Item, {}, [(5, 5)]),
    (Texty, STRING, [("a", "a")]),
    (IntOrStr, either(INTEGER, STRING), [("a", "a"), (1, 1)]),
    (
        Node,
        {**NODE, "$defs": {"Node": NODE}},
        [
            (
                {"value": "2026-07-28", "next": {"value": "2026-07-29", "next": None}},
                Node(D, Node(datetime.date(2026, 7, 29))),
            )
        ],
    ),
    (
        list[Tree],
        {
            **array({"$ref": "#/$defs/Tree"}),
            "$defs": {
                "Tree": closed(
                    ["day", "kids"], day=DATE, kids=array({"$ref": "#/$defs/Tree"})
                )
            },
        },
        [
            (
                [{"day": "2026-07-28", "kids": [{"day": "2026-07-28", "kids": []}]}],
                [{"day": D, "kids": [{"day": D, "kids": []}]}],
            )
        ],
    ),
]


def convert(hint, value):
    converter = mcp_ref.converter_of(hint)
    return converter(value) if converter else value


def exact(value):
    """Show a value with its types, so that 5, 5.0 and True differ."""
    return (type(value).__name__, repr(value))


class HintsInBothDirections(unittest.TestCase):
    def test_each_hint_has_its_schema(self):
        for hint, schema, _ in TABLE:
            with self.subTest(hint=hint):
                self.assertEqual(mcp_ref.schema_of(hint), schema)
                json.dumps(mcp_ref.schema_of(hint), allow_nan=False)

    def test_json_becomes_the_python_value_and_returns(self):
        for hint, _, pairs in TABLE:
            for form, value in pairs:
                with self.subTest(hint=hint, form=form):
                    found = convert(hint, json.loads(json.dumps(form)))
                    self.assertEqual(found, value)
                    if not isinstance(value, (abc.Set, abc.Mapping)):
                        self.assertEqual(exact(found), exact(value))
                    self.assertEqual(mcp_ref.to_json(value), form)
                    self.assertEqual(exact(mcp_ref.to_json(value)), exact(form))

    def test_a_schema_is_the_callers_own(self):
        mcp_ref.schema_of(list[int])["items"]["type"] = "broken"
        mcp_ref.schema_of(str)["type"] = "broken"
        self.assertEqual(mcp_ref.schema_of(list[int]), array(INTEGER))
        self.assertEqual(mcp_ref.schema_of(str), STRING)

    def test_one_way_conversions(self):
        for hint, form, value in [
            (int, 5.0, 5),
            (float, 3, 3.0),
            (list[float], [1, 2.5], [1.0, 2.5]),
            (decimal.Decimal, 0.1, decimal.Decimal("0.1")),
            (decimal.Decimal, 7, decimal.Decimal(7)),
            (datetime.datetime, "2026-07-28T09:30:00Z", WHEN),
            (
                datetime.datetime,
                "2026-07-28 09:30",
                datetime.datetime(2026, 7, 28, 9, 30),
            ),
            (Literal[2], 2.0, 2),
            (Color, 2.0, Color.TWO),
            (Square, {"side": 2, "area": 77}, Square(2)),
            (P, {"x": 1}, P(1, [])),
        ]:
            with self.subTest(hint=hint, form=form):
                self.assertEqual(exact(convert(hint, form)), exact(value))

    def test_plain_hints_cost_nothing(self):
        words = TypedDict("words", {"a": str})
        for hint in [
            str,
            bool,
            None,
            Any,
            list[str],
            dict[str, Any],
            str | None,
            words,
        ]:
            with self.subTest(hint=hint):
                self.assertIsNone(mcp_ref.converter_of(hint))

    def test_unions_choose_the_member_by_shape(self):
        for hint, form, value in [
            (datetime.date | str, "2026-07-28", D),
            (str | datetime.date, "2026-07-28", D),
            (datetime.date | str, "tomorrow", "tomorrow"),
            (datetime.date | datetime.datetime, "2026-07-28", D),
            (datetime.datetime | datetime.date, "2026-07-28T09:30:00Z", WHEN),
            (pathlib.Path | str, "x", "x"),
            (bytes | str, "abcd", "abcd"),
            (pathlib.Path | None, "x", pathlib.Path("x")),
            (decimal.Decimal | int, 5, 5),
            (decimal.Decimal | str, "5", "5"),
            (float | int, 5, 5),
            (bool | int, True, True),
            (int | None, 5.0, 5),
            (int | str, 5.0, 5),
            (float | None, 5, 5.0),
            (dict[str, Any] | P, {"x": 1}, P(1)),
            (dict[str, Any] | P, {"x": "no"}, {"x": "no"}),
            (P | Point, {"x": 1, "y": 2}, Point(1, 2.0)),
            (P | Point, {"x": 1, "tags": []}, P(1)),
            (list[datetime.date] | list[str], ["tomorrow"], ["tomorrow"]),
            (list[datetime.date] | list[str], ["2026-07-28"], [D]),
            (Any | datetime.date, "2026-07-28", D),
            (Color | str, "r", Color.RED),
            (Color | str, "x", "x"),
            (Word | bool, True, True),
            (Square | dict[str, int], {"side": -1}, {"side": -1}),
            (set[int] | int, [1], {1}),
            (list[P | datetime.date | None], [None, {"x": 1}, str(D)], [None, P(1), D]),
        ]:
            with self.subTest(hint=hint, form=form):
                self.assertEqual(exact(convert(hint, form)), exact(value))

    def test_what_does_not_convert_says_what_would(self):
        for hint, form, text in [
            (
                datetime.date,
                "tomorrow",
                "expected an ISO 8601 date such as 2026-07-28, got 'tomorrow'",
            ),
            (datetime.date, "20260728", "expected an ISO 8601 date"),
            (datetime.date, "2026-02-30", "expected an ISO 8601 date"),
            (datetime.date, "٢٠٢٦-07-28", "expected an ISO 8601 date"),
            (datetime.datetime, "2026-07-28", "expected an ISO 8601 date and time"),
            (datetime.time, "9:30", "expected an ISO 8601 time"),
            (uuid.UUID, "1", "expected a UUID such as"),
            (bytes, "abc", "expected base64 text"),
            (bytes, "a b=", "expected base64 text"),
            (decimal.Decimal, "NaN", "expected a decimal number such as 12.50"),
            (decimal.Decimal, "1e99999999999999999999", "expected a decimal number"),
            (set, [[1]], "expected items for a set: unhashable type: 'list'"),
            (float, 10**400, "expected a number in the range of a double"),
            (Color, "x", 'expected one of ["r", true, 2]'),
            (Literal[1, 2], 3, "expected one of [1, 2]"),
            (datetime.date | None, "x", "expected an ISO 8601 date"),
            (list[datetime.date], ["2026-07-28", "x"], "[1]: expected an ISO"),
            (dict[str, list[datetime.date]], {"a": ["x"]}, "a[0]: expected an ISO"),
            (tuple[int, datetime.date], [1, "x"], "[1]: expected an ISO"),
            (Node, {"value": str(D), "next": {"value": "x"}}, "next.value: expected"),
            (Square, {"side": -1}, "side must not be negative"),
            (list[Square], [{"side": -1}], "[0]: side must not be negative"),
            (list[Square], [{"side": 100}], "[0]: Square: too large"),
            (bytes, "x" * 1001, "expected base64 text, got 'xxxx"),
        ]:
            with self.subTest(hint=hint, form=form):
                with self.assertRaises(ValueError) as caught:
                    convert(hint, form)
                self.assertTrue(
                    str(caught.exception).startswith(text), caught.exception
                )
                self.assertLess(len(str(caught.exception)), 200)

    def test_iterators_convert_and_are_written(self):
        self.assertEqual(mcp_ref.schema_of(abc.Iterator[int]), array(INTEGER))
        self.assertEqual(next(convert(abc.Iterator[str], ["a"])), "a")

    def test_mutual_recursion_has_one_definition_for_each_cycle(self):
        schema = mcp_ref.schema_of(Ping)
        self.assertEqual(set(schema["$defs"]), {"Ping", "Node"})
        value = Ping(Pong(Ping(), Node(D)))
        self.assertEqual(convert(Ping, mcp_ref.to_json(value)), value)

    def test_a_repeated_type_that_is_not_recursive_is_written_in_place(self):
        schema = mcp_ref.schema_of(tuple[P, P])
        self.assertEqual(schema["prefixItems"], [P_SCHEMA, P_SCHEMA])

    def test_two_recursive_types_of_one_name_stay_apart(self):
        other = types.new_class("Other")
        other.__annotations__ = {"next": Optional["Node"], "node": Node}
        other.__name__ = other.__qualname__ = "Node"
        other = dataclass(other)
        defs = mcp_ref.schema_of(tuple[Node, other])["$defs"]
        self.assertEqual(set(defs), {"Node", "Node_"})

    def test_hints_without_a_meaning_are_refused(self):
        for hint, text in [
            (Foo, "no JSON Schema for Foo; use a dataclass, TypedDict or Annotated"),
            (complex, "no JSON Schema for complex"),
            (abc.Callable[[int], str], "no JSON Schema for collections.abc.Callable"),
            (list[Foo], "no JSON Schema for Foo"),
            (set[P], "no set of P: mutable; use a list"),
            (frozenset[list[int]], "no set of list[int]: mutable; use a list"),
            (Perm, "no JSON Schema for Perm"),
            (dict[Perm, int], "no JSON object has keys of type Perm; use str"),
            (dict[datetime.date, int], "no JSON object has keys of type date"),
            (Page[int], "no JSON Schema for "),
            (datetime.timedelta, "no JSON Schema for timedelta"),
            (dict[tuple[int, int], str], "no JSON object has keys of type tuple[int"),
            (dict[float, str], "no JSON object has keys of type float"),
            (list["Unknown"], "no JSON Schema for Unknown"),
            ({"type": "string"}, "no JSON Schema for {'type': 'string'}"),
            ([int], "no JSON Schema for [<class 'int'>]"),
            (typing.Annotated, "no JSON Schema for Annotated"),
            (typing.Union, "no JSON Schema for "),
            (typing.Never, "no JSON Schema for Never"),
            (Annotated[int, {"minimum": math.nan}], "{'minimum': nan} can't stand"),
            (Annotated[int, {"x": Foo}], "{'x': <class "),
        ]:
            with self.subTest(hint=hint):
                with self.assertRaises(mcp_ref.HintError) as caught:
                    mcp_ref.schema_of(hint)
                self.assertTrue(
                    str(caught.exception).startswith(text), caught.exception
                )


class PythonValuesBecomeJson(unittest.TestCase):
    def test_scalars_come_back_untouched(self):
        for value in ["x" * 99, 10**20, 1.5, True, None, math.inf]:
            self.assertIs(mcp_ref.to_json(value), value)

    def test_values_of_many_types(self):
        class Text(str):
            pass

        for value, form in [
            ((1, "a"), [1, "a"]),
            ({3, 1, 2}, [1, 2, 3]),
            ({"b", "a", 1}, [1, "a", "b"]),
            ({Word.B, Word.A}, ["a", "b"]),
            (collections.deque([1]), [1]),
            ((i for i in range(2)), [0, 1]),
            (map(str, [1]), ["1"]),
            (range(2), [0, 1]),
            ({"a": 1}.keys(), ["a"]),
            ({"a": D}.values(), ["2026-07-28"]),
            (collections.OrderedDict(a=D), {"a": "2026-07-28"}),
            (collections.Counter("aa"), {"a": 2}),
            (types.MappingProxyType({"a": 1}), {"a": 1}),
            (Color.TWO, 2),
            (Size.L, 2),
            ([Word.A, Text("x")], ["a", "x"]),
            (bytearray(b"\xff"), "/w=="),
            (memoryview(b"\xff"), "/w=="),
            (decimal.Decimal("1.10"), "1.10"),
            (pathlib.PurePosixPath("a"), "a"),
            (
                {5: 1, Size.L: 2, Word.A: 3, D: 4, UUID1: 5, Text("t"): 6},
                {"5": 1, "2": 2, "a": 3, "2026-07-28": 4, str(UUID1): 5, "t": 6},
            ),
            (
                [{"p": P(1)}, Point(1)],
                [{"p": {"x": 1, "tags": []}}, {"x": 1, "y": 0.0}],
            ),
        ]:
            with self.subTest(value=value):
                self.assertEqual(mcp_ref.to_json(value), form)
                json.dumps(mcp_ref.to_json(form))

    def test_what_has_no_form_is_named_with_its_path(self):
        for value, text in [
            (Foo(), "a value of type Foo has no JSON form"),
            (Foo, "a value of type type has no JSON form"),
            (P, "a value of type type has no JSON form"),
            ({"a": [1, {"b": Foo()}]}, "a[1].b: a value of type Foo has"),
            ([P(1), P(Foo())], "[1].x: a value of type Foo"),
            ([{(1, 2): "x"}], "[0]: a key of type tuple has no JSON form"),
            ({None: 1}, "a key of type NoneType"),
            ({True: 1}, "a key of type bool"),
            ({1.5: 1}, "a key of type float"),
            ({1: "a", "1": "b"}, "two keys have the JSON form '1'"),
            ([1j], "[0]: a value of type complex"),
        ]:
            with self.subTest(value=value):
                with self.assertRaises(TypeError) as caught:
                    mcp_ref.to_json(value)
                self.assertTrue(
                    str(caught.exception).startswith(text), caught.exception
                )

    def test_cycles_and_deep_nesting_end_in_type_error(self):
        cycle = []
        cycle.append(cycle)
        deep = []
        for _ in range(100_000):
            deep = [deep]
        for value in [cycle, deep, {"a": cycle}]:
            with self.assertRaisesRegex(TypeError, "contains itself or is nested"):
                mcp_ref.to_json(value)
        while deep:  # freed step by step
            deep = deep[0]


class Signatures(unittest.TestCase):
    def test_a_full_signature(self):
        def f(
            p: P,
            ctx: Context,
            t: T,
            q: Annotated[int, "how many"] = 3,
            seen: list[int] = [],  # noqa: B006
            day: datetime.date = D,
            other=None,
        ) -> P:
            """Do it.

            Args:
                p: the point
                q: not this text
                day: which day
            """

        found = mcp_ref.parameters_of(f, Context)
        self.assertEqual(found.context, "ctx")
        self.assertEqual(
            found.schema,
            closed(
                ["p", "t"],
                p={**P_SCHEMA, "description": "the point"},
                t=closed(["a"], a=INTEGER, b=STRING),
                q={**INTEGER, "description": "how many", "default": 3},
                seen={**array(INTEGER), "default": []},
                day={**DATE, "description": "which day", "default": "2026-07-28"},
                other={"default": None},
            ),
        )
        first = found.convert({"p": {"x": 1}, "t": {"a": 1.0}})
        self.assertEqual(first, {"p": P(1), "t": {"a": 1}, "seen": []})
        first["seen"].append(1)
        self.assertEqual(found.convert({"p": {"x": 1}, "t": {"a": 1}})["seen"], [])
        with self.assertRaisesRegex(ValueError, r"^day: expected an ISO 8601 date"):
            found.convert({"day": "x"})

    def test_identity_returns_the_arguments_themselves(self):
        def f(a: str, b: list[str] | None = None, c: dict[str, Any] | None = None): ...

        arguments = {"a": "x"}
        self.assertIs(mcp_ref.parameters_of(f, Context).convert(arguments), arguments)

    def test_the_callers_arguments_are_not_changed(self):
        def f(day: datetime.date): ...

        arguments = {"day": "2026-07-28"}
        self.assertEqual(
            mcp_ref.parameters_of(f, Context).convert(arguments), {"day": D}
        )
        self.assertEqual(arguments, {"day": "2026-07-28"})

    def test_optional_parameters_publish_their_default(self):
        def f(
            a: int | None = None,
            b: Optional[Literal["x", "y"]] = None,
            c: int | str = 1,
            d: list[int] | None = None,
            e: Optional[str] = "z",
        ) -> str: ...

        properties = mcp_ref.parameters_of(f, Context).schema["properties"]
        self.assertNotIn("required", mcp_ref.parameters_of(f, Context).schema)
        self.assertEqual(
            {name: schema["default"] for name, schema in properties.items()},
            {"a": None, "b": None, "c": 1, "d": None, "e": "z"},
        )

    def test_defaults_that_are_no_json_or_not_of_the_type_stay_unpublished(self):
        def f(
            a: Any = object(), b: int = None, c: float = math.inf, d: Any = field()
        ): ...

        for schema in mcp_ref.parameters_of(f, Context).schema["properties"].values():
            self.assertNotIn("default", schema)

    def test_context_in_every_spelling(self):
        def a(ctx: Context): ...
        def b(x: int, c: "Context"): ...
        def c(*, c: Optional[Context] = None): ...
        def d(_c: "Context | None", x: str = ""): ...
        def e(ctx): ...
        def f(c: Annotated[Context, "x"]): ...

        for function, name in [(a, "ctx"), (b, "c"), (c, "c"), (d, "_c"), (f, "c")]:
            with self.subTest(function=function):
                found = mcp_ref.parameters_of(function, Context)
                self.assertEqual(found.context, name)
                self.assertNotIn(name, found.schema["properties"])
        self.assertIsNone(mcp_ref.parameters_of(e, Context).context)
        self.assertEqual(
            mcp_ref.parameters_of(e, Context).schema, closed(["ctx"], ctx={})
        )

    def test_further_arguments(self):
        def f(a: int, **rest: datetime.date): ...
        def g(**rest): ...

        found = mcp_ref.parameters_of(f, Context)
        self.assertEqual(found.schema["additionalProperties"], DATE)
        self.assertEqual(found.convert({"a": 1, "b": "2026-07-28"}), {"a": 1, "b": D})
        with self.assertRaisesRegex(ValueError, "^b: expected"):
            found.convert({"a": 1, "b": "x"})
        self.assertIs(
            mcp_ref.parameters_of(g, Context).schema["additionalProperties"], True
        )

    def test_signatures_that_are_refused(self):
        def b(*args: str): ...
        def d(x: Foo = None): ...
        def e(x: dict[str, list[Foo]]): ...
        def f(a: Context, b: Context): ...
        def g(x: "Unknown"): ...
        def h(x: "list["): ...

        def i(x: Bad): ...

        advice = "; use a dataclass, TypedDict or Annotated[Any, {...}]"
        for function, text in [
            (b, "b(*args): arguments have names; use one list parameter"),
            (d, "d(x): no JSON Schema for Foo" + advice),
            (e, "e(x): no JSON Schema for Foo" + advice),
            (f, "f: ['a', 'b'] are all the context; keep one"),
            (g, "g: can't resolve its hints: name 'Unknown' is not defined"),
            (h, "h: can't resolve its hints: "),
            (i, "i(x): Bad.foo: no JSON Schema for Foo" + advice),
        ]:
            with self.subTest(function=function):
                with self.assertRaises(mcp_ref.HintError) as caught:
                    mcp_ref.parameters_of(function, Context)
                self.assertTrue(
                    str(caught.exception).startswith(text), caught.exception
                )

    def test_all_kinds_of_callables(self):
        class Tool:
            def method(self, day: datetime.date) -> int: ...

            @classmethod
            def kind(cls, day: datetime.date) -> int: ...

            @staticmethod
            def free(day: datetime.date) -> int: ...

            def __call__(self, day: datetime.date) -> int: ...

        class Made:
            def __init__(self, day: datetime.date) -> None: ...

        def plain(day: datetime.date) -> int: ...

        async def later(day: datetime.date) -> int: ...

        @functools.wraps(plain)
        def wrapped(*args, **kwargs): ...

        def more(extra: str, day: datetime.date) -> int: ...

        for function in [
            Tool().method,
            Tool.kind,
            Tool.free,
            Tool(),
            plain,
            later,
            wrapped,
            functools.lru_cache(plain),
            functools.partial(more, "x"),
            functools.partial(wrapped),
        ]:
            with self.subTest(function=function):
                found = mcp_ref.parameters_of(function, Context)
                self.assertEqual(found.schema, closed(["day"], day=DATE))
                self.assertEqual(mcp_ref.returns_of(function), INTEGER)
        self.assertEqual(
            mcp_ref.parameters_of(Made, Context).schema, closed(["day"], day=DATE)
        )
        bound = mcp_ref.parameters_of(
            functools.partial(more, extra="x"), Context
        ).schema
        self.assertEqual(bound["properties"]["extra"], {**STRING, "default": "x"})

    def test_recursive_parameters_share_their_definitions(self):
        def f(a: Node, b: list[Node]): ...

        found = mcp_ref.parameters_of(f, Context)
        reference = {"$ref": "#/$defs/Node"}
        self.assertEqual(found.schema["properties"]["a"], reference)
        self.assertEqual(found.schema["properties"]["b"], array(reference))
        self.assertEqual(found.schema["$defs"], {"Node": NODE})
        self.assertEqual(found.convert({"a": {"value": str(D)}}), {"a": Node(D)})

    def test_names_that_collide_elsewhere_are_plain_here(self):
        def f(name: str, arguments: dict, method: str, self: int = 0): ...

        schema = mcp_ref.parameters_of(f, Context).schema
        self.assertEqual(
            list(schema["properties"]), ["name", "arguments", "method", "self"]
        )

    def test_no_parameters(self):
        def f(): ...

        self.assertEqual(mcp_ref.parameters_of(f, Context).schema, closed([]))

    def test_arguments_nested_too_deeply_are_a_value_error(self):
        def f(node: Node): ...

        value = None
        for _ in range(2000):
            value = {"value": str(D), "next": value}
        with self.assertRaisesRegex(ValueError, "nested too deeply"):
            mcp_ref.parameters_of(f, Context).convert({"node": value})

    def test_a_class_is_described_by_its_fields_and_not_by_its_constructor(self):
        @dataclass(init=False)
        class Total:
            total: int

            def __init__(self, items: list[int]) -> None:
                self.total = sum(items)

        self.assertEqual(mcp_ref.schema_of(Total), closed(["total"], total=INTEGER))
        self.assertEqual(mcp_ref.to_json(Total([1, 2])), {"total": 3})

    def test_header_annotations_stay_reachable(self):
        def f(region: Annotated[str, {"x-mcp-header": "Region"}], p: P): ...

        schema = mcp_ref.parameters_of(f, Context).schema
        self.assertEqual(schema["properties"]["region"]["x-mcp-header"], "Region")

    def test_future_annotations(self):
        source = f"""
            from __future__ import annotations
            import datetime, typing
            from dataclasses import dataclass
            from {__name__} import Context, P

            class Part(typing.TypedDict, total=False):
                a: typing.Required[int]
                b: str

            class Rest(typing.TypedDict):
                a: typing.Annotated[typing.NotRequired[int], "x"]
                b: str

            @dataclass
            class Outer:
                @dataclass
                class Inner:
                    x: int
                inner: Inner
                date: datetime.date | None = None

            def f(a: int, b: list[P], ctx: Context, c: "int | None" = None,
                  d: Part | None = None) -> dict[str, int]: ...

            def local():
                @dataclass
                class Local:
                    x: int
                    next: Local | None = None

                def g(b: list[Local]): ...

                return g, Local
        """
        sys.modules["future_case"] = module = types.ModuleType("future_case")
        self.addCleanup(sys.modules.pop, "future_case")
        space = module.__dict__
        exec(textwrap.dedent(source), space)
        found = mcp_ref.parameters_of(space["f"], Context)
        properties = found.schema["properties"]
        self.assertEqual(found.context, "ctx")
        self.assertEqual(properties["a"], INTEGER)
        self.assertEqual(properties["b"], array(P_SCHEMA))
        self.assertEqual(mcp_ref.returns_of(space["f"]), mapping(INTEGER))
        self.assertEqual(mcp_ref.schema_of(space["Part"])["required"], ["a"])
        self.assertEqual(mcp_ref.schema_of(space["Rest"])["required"], ["b"])
        self.assertEqual(mcp_ref.schema_of(space["Outer"])["required"], ["inner"])
        g, local = space["local"]()
        self.assertEqual(set(mcp_ref.schema_of(local)["$defs"]), {"Local"})
        with self.assertRaisesRegex(
            mcp_ref.HintError,
            r"^g: can't resolve its hints: name 'Local' is not defined; def",
        ):
            mcp_ref.parameters_of(g, Context)

    @unittest.skipIf(sys.version_info < (3, 12), "type statements came with 3.12")
    def test_type_statements(self):
        source = """
            import datetime
            from dataclasses import dataclass
            type Day = datetime.date
            type Json = dict[str, Json] | list[Json] | str | int | float | bool | None
            def f(a: Day, j: Json = None): ...
        """
        code = textwrap.dedent(source)
        for start in ("", "from __future__ import annotations"):
            with self.subTest(start):
                sys.modules["type_case"] = module = types.ModuleType("type_case")
                self.addCleanup(sys.modules.pop, "type_case", None)
                compiled = compile(start + code, "case", "exec", dont_inherit=True)
                exec(compiled, module.__dict__)
                self.check_type_statements(module)

    def check_type_statements(self, module):
        found = mcp_ref.parameters_of(module.f, Context)
        self.assertEqual(found.schema["properties"]["a"], DATE)
        self.assertEqual(
            found.schema["properties"]["j"], {"$ref": "#/$defs/Json", "default": None}
        )
        value = {"a": [1, {"b": None}], "c": 1.5}
        self.assertEqual(found.convert({"a": str(D), "j": value}), {"a": D, "j": value})

    @unittest.skipIf(sys.version_info < (3, 13), "ReadOnly came with 3.13")
    def test_read_only_members(self):
        class R(TypedDict):
            a: typing.ReadOnly[int]
            b: typing.NotRequired[typing.ReadOnly[str]]

        self.assertEqual(mcp_ref.schema_of(R), closed(["a"], a=INTEGER, b=STRING))

    def test_returns(self):
        def none() -> None: ...
        def never() -> typing.NoReturn: ...
        def nothing(): ...
        def anything() -> Any: ...
        def one() -> Foo: ...
        def many() -> list[Foo | str]: ...
        def maybe() -> Optional[Foo]: ...
        def count() -> Annotated[int, {"minimum": 0}]: ...
        def table() -> dict[str, str]: ...
        def stream() -> abc.Iterator[P]: ...
        def node() -> Node: ...

        for function in [none, never, nothing, anything, one, many, maybe]:
            with self.subTest(function=function):
                self.assertIsNone(mcp_ref.returns_of(function, (Foo,)))
        exclude = (str, type(None), Foo)
        for hint, schema in [
            (str, None),
            (str | None, None),
            (Foo | None, None),
            (Foo | P, None),
            (list[Foo], None),
            (int | None, either(INTEGER, NULL)),
            (list[str], TAGS),
            (Word, {"type": "string", "enum": ["a", "b"]}),
        ]:
            none.__annotations__["return"] = hint
            with self.subTest(hint=hint):
                self.assertEqual(mcp_ref.returns_of(none, exclude), schema)
        self.assertEqual(mcp_ref.returns_of(count), {**INTEGER, "minimum": 0})
        self.assertEqual(mcp_ref.returns_of(table, (str,)), mapping(STRING))
        self.assertEqual(mcp_ref.returns_of(stream), array(P_SCHEMA))
        self.assertEqual(mcp_ref.returns_of(node)["type"], "object")
        with self.assertRaises(mcp_ref.HintError) as caught:
            mcp_ref.returns_of(one)
        text = "one() -> Foo: no JSON Schema for Foo; use a dataclass, TypedDict or "
        self.assertIn(text, str(caught.exception))


class Docstrings(unittest.TestCase):
    def test_three_forms(self):
        google = """Find things.

        In two
        paragraphs.

        Args:
            query (str, optional): what to find: words
                or more words

            limit: how many
            *rest: others
            empty:

        Returns:
            limit: not a parameter
        """
        numpy = """Find things.

        In two
        paragraphs.

        Parameters
        ----------
        query : str, optional
            what to find: words
            or more words

        limit
            how many
        *rest
            others

        Returns
        -------
        limit : int
            not a parameter
        """
        sphinx = """Find things.

        In two
        paragraphs.

        :param str query: what to find: words
            or more words
        :type limit: int
        :param limit: how many
        :param rest: others
        :returns: not a parameter
        """
        for text in [google, numpy, sphinx]:
            with self.subTest(text=text):
                prose, found = mcp_ref.parse_docstring(text)
                self.assertEqual(prose, "Find things.\n\nIn two\nparagraphs.")
                self.assertEqual(
                    found,
                    {
                        "query": "what to find: words or more words",
                        "limit": "how many",
                        "rest": "others",
                    },
                )

    def test_shared_numpy_description(self):
        text = "A.\n\nParameters\n----------\nx, y : int\n    both"
        self.assertEqual(
            mcp_ref.parse_docstring(text), ("A.", {"x": "both", "y": "both"})
        )

    def test_text_without_parameters(self):
        self.assertEqual(mcp_ref.parse_docstring(None), ("", {}))
        self.assertEqual(
            mcp_ref.parse_docstring("One.\n\n    Two.\nx"), ("One.\n\n    Two.\nx", {})
        )
        text = "Say so.\n\nReturns:\n    a number: the count"
        self.assertEqual(mcp_ref.parse_docstring(text), (text, {}))

    def test_only_parameters(self):
        self.assertEqual(
            mcp_ref.parse_docstring("\nArgs:\n    x: one"), ("", {"x": "one"})
        )


MODULE = str(pathlib.Path(mcp_ref.__file__).resolve())
SOON = 5.0  # seconds after which a test gives up waiting


# --- peers ----------------------------------------------------------------------------


def complete(**members: JSON) -> JSON:
    """A complete result."""
    return {"resultType": "complete", **members}


def discovered(**members: JSON) -> JSON:
    """A DiscoverResult."""
    return complete(
        **{
            "supportedVersions": ["2026-07-28"],
            "capabilities": {},
            "ttlMs": 0,
            "cacheScope": "private",
            **members,
        }
    )


def asking(requests: JSON = None, state: str | None = None) -> JSON:
    """An InputRequiredResult."""
    found: dict[str, JSON] = {"resultType": "input_required"}
    if requests is not None:
        found["inputRequests"] = requests
    if state is not None:
        found["requestState"] = state
    return found


def form_params(message: str = "m", **properties: JSON) -> JSON:
    """A question with a form."""
    schema = {"type": "object", "properties": properties}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    }


class Peer:
    """An Exchange that plays a server: `script(request, send)` returns a result.

    It may be async, raise McpError, or return a whole response.
    """

    def __init__(self, script: Callable[..., Any]) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.cancelled: list[Any] = []

    async def __call__(self, request: Request, send: Any) -> JSON:
        self.requests.append(request)
        try:
            found = self.script(request, send)
            if asyncio.iscoroutine(found):
                found = await found
        except mcp_ref.McpError as error:
            body = {"code": error.code, "message": error.message, "data": error.data}
            return {"jsonrpc": "2.0", "id": request.id, "error": body}
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise
        if "jsonrpc" in found:
            return found
        return mcp_ref.result_response(request.id, found)

    @property
    def methods(self) -> list[str]:
        return [request.method for request in self.requests]


def replies(*results: JSON) -> Peer:
    """A Peer that gives one result after the other, the last one for ever."""
    left = list(results)

    def script(request: Request, send: Any) -> JSON:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    return Peer(script)


def notice(method: str, **params: JSON) -> JSON:
    """A notification."""
    return mcp_ref.notification(f"notifications/{method}", params)


PRELUDE = r"""
import json, os, sys, time
def hear():
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)
def put(data):
    while data:
        data = data[os.write(1, data):]
def say(**message):
    put(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
def done(id, **result):
    say(id=id, result={"resultType": "complete", **result})
"""


def child(code: str) -> list[str]:
    """The command of a server process that runs `code`."""
    return [sys.executable, "-I", "-S", "-c", PRELUDE + textwrap.dedent(code)]


ECHO = """
while True:
    m = hear()
    if "id" in m:
        done(m["id"], content=[], heard=m)
"""


class Asked:
    """One request that HttpStub received."""

    def __init__(self, head: bytes, body: bytes, writer: Any) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.line = lines[0]
        self.fields = [tuple(line.split(": ", 1)) for line in lines[1:] if line]
        self.headers = {name.lower(): value for name, value in self.fields}
        self.body: JSON = json.loads(body) if body else None
        self.writer = writer

    @property
    def id(self) -> Any:
        return self.body["id"]


class HttpStub:
    """A server on a real socket: `answer(asked)` returns bytes, or None to hang."""

    def __init__(self, answer: Callable[[Asked], Any], tls: Any = None) -> None:
        self.answer = answer
        self.tls = tls
        self.asked: list[Asked] = []
        self.connections = 0
        self.closed = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> HttpStub:
        self.server = await asyncio.start_server(
            self.serve, "127.0.0.1", 0, ssl=self.tls, limit=1 << 24
        )
        self.port = self.server.sockets[0].getsockname()[1]
        scheme = "http" if self.tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.port}/mcp"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def serve(self, reader: Any, writer: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(dict_of(head).get("content-length", 0))
                asked = Asked(head, await reader.readexactly(length), writer)
                self.asked.append(asked)
                found = self.answer(asked)
                if asyncio.iscoroutine(found):
                    found = await found
                if found is not None:
                    writer.write(found)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.closed.set()
            writer.close()

    @property
    def methods(self) -> list[str]:
        return [asked.body["method"] for asked in self.asked]


def dict_of(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")
    pairs = [line.split(":", 1) for line in lines[1:] if line]
    return {name.lower(): value.strip() for name, value in pairs}


def http_answer(
    body: bytes, status: str = "200 OK", *fields: str, kind: str = ""
) -> bytes:
    """An HTTP answer with a length."""
    kind = kind or "application/json"
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *fields]
    lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def response(asked: Asked, **result: JSON) -> bytes:
    """The body of a complete result."""
    return encode(jsonrpc="2.0", id=asked.id, result=complete(**result))


def encode(**message: JSON) -> bytes:
    return json.dumps(message).encode()


def result_of(**result: JSON) -> Callable[[Asked], bytes]:
    """Answer everything with the same result."""
    return lambda asked: http_answer(response(asked, **result))


def stream(*chunks: bytes) -> bytes:
    """An SSE answer that ends with the connection."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    return head + b"".join(chunks)


def event(**message: JSON) -> bytes:
    return b"data: " + encode(**message) + b"\n\n"


def chunked_answer(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """A chunked SSE answer."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in pieces)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + body + end


class ClientCase(AsyncCase):
    """What the classes share: nothing waits for ever, everything is closed."""

    maxDiff = None

    async def asyncSetUp(self) -> None:
        self.enter = contextlib.AsyncExitStack()
        self.addAsyncCleanup(self.enter.aclose)
        self.ids = itertools.count(1)

    async def soon(self, waiting: Awaitable[Any], seconds: float = SOON) -> Any:
        return await asyncio.wait_for(waiting, seconds)

    async def client(self, target: Any, **options: Any) -> Client:
        """An entered Client that does not discover."""
        options.setdefault("discover", False)
        options.setdefault("retry_delay", 0.001)
        return await self.enter.enter_async_context(Client(target, **options))

    async def stdio(self, code: str, **options: Any) -> StdioClient:
        options.setdefault("step", 0.5)
        transport = StdioClient(child(code), **options)
        self.enter.push_async_callback(transport.aclose)
        return transport

    async def stub(self, answer: Callable[[Asked], Any], tls: Any = None) -> HttpStub:
        return await self.enter.enter_async_context(HttpStub(answer, tls))

    async def ask(
        self,
        transport: Any,
        method: str = "tools/call",
        notes: list[JSON] | None = None,
        id: Any = None,
        meta: JSON = None,
        **params: JSON,
    ) -> JSON:
        """One exchange with a transport."""
        id = next(self.ids) if id is None else id
        whole = {
            META_PROTOCOL_VERSION: "2026-07-28",
            META_CLIENT_CAPABILITIES: {},
            **(meta or {}),
        }
        request = Request(id, method, {**params, "_meta": whole})

        async def send(message: JSON) -> None:
            (notes if notes is not None else []).append(message)

        return await self.soon(transport(request, send))


# --- stdio ----------------------------------------------------------------------------


class ClientOnStdio(ClientCase):
    """basic/transports/stdio"""

    @spec("stdio-01", "stdio-05", "stdio-07", "transports-01")
    async def test_writes_one_message_per_line_and_nothing_else(self) -> None:
        transport = await self.stdio(
            r"""
            lines = [sys.stdin.buffer.readline() for _ in range(2)]
            say(id="x", method="roots/list")
            lines.append(sys.stdin.buffer.readline())
            id = json.loads(lines[-1])["id"]
            done(id, lines=[line.decode() for line in lines])
            """
        )
        first = asyncio.create_task(self.ask(transport, text="line1\nline2\r\u2028é"))
        second = asyncio.create_task(self.ask(transport, text="b"))
        await asyncio.sleep(0.02)
        answer = await self.ask(transport)
        lines = answer["result"]["lines"]
        self.assertEqual(len(lines), 3)
        for line in lines:
            self.assertTrue(line.endswith("\n") and line.count("\n") == 1, line)
            self.assertIn("method", json.loads(line))
        first.cancel()
        second.cancel()

    async def test_std_01_byte_order_mark(self) -> None:
        transport = await self.stdio(r"put(b'\xef\xbb\xbf'); done(hear()['id'], a=1)")
        self.assertEqual((await self.ask(transport))["result"]["a"], 1)

    async def test_std_04_only_the_newline_ends_a_line(self) -> None:
        text = "a\u2028b\u2029c\x85d\x0be\x0cf"
        transport = await self.stdio(
            """
            id = hear()["id"]
            m = {"jsonrpc": "2.0", "id": id, "result": {"text": %r}}
            put(json.dumps(m, ensure_ascii=False).encode() + b"\\n")
            """
            % text
        )
        self.assertEqual((await self.ask(transport))["result"]["text"], text)

    async def test_std_06_bad_lines_are_reported_and_skipped(self) -> None:
        transport = await self.stdio(
            r"""
            id = hear()["id"]
            put(b'\xff\xfe boot\n' b'Listening...\n' b'{"status":200}\n' b'42\n\n \r\n')
            put(b'[' * 100_000 + b'\n' b'{"x": NaN}\n' b'{"method": ["x"]}\n')
            done(id, a=1)
            """
        )
        with self.assertLogs("mcp_ref", "INFO") as logs:
            answer = await self.ask(transport)
        self.assertEqual(answer["result"]["a"], 1)
        self.assertEqual(len(logs.output), 7, logs.output)

    async def test_std_10_long_lines(self) -> None:
        transport = await self.stdio(ECHO)
        for text in ("é" * 70_000, "x" * 5_000_000):
            answer = await self.ask(transport, text=text)
            self.assertEqual(answer["result"]["heard"]["params"]["text"], text)

    async def test_std_11_std_12_a_line_over_the_limit_fails_who_waits(self) -> None:
        transport = await self.stdio(
            r"""
            one, two = hear(), hear()
            good = json.dumps({"jsonrpc": "2.0", "id": one["id"], "result": {"a": 1}})
            put(good.encode() + b"\n" + b"y" * 50_001)
            m = hear()
            put(b"y\n")
            done(m["id"], a=3)
            """,
            limit=50_000,
        )
        one = asyncio.create_task(self.ask(transport))
        two = asyncio.create_task(self.ask(transport))
        self.assertEqual((await one)["result"]["a"], 1)
        with self.assertRaisesRegex(TransportError, "over 50000 bytes"):
            await two
        self.assertEqual((await self.ask(transport))["result"]["a"], 3)

    async def test_std_13_messages_may_come_in_any_pieces(self) -> None:
        transport = await self.stdio(
            r"""
            a, b, c, d = [hear()["id"] for _ in range(4)]
            def line(id):
                m = {"jsonrpc": "2.0", "id": id, "result": {"t": "€𝄞"}}
                return json.dumps(m, ensure_ascii=False).encode() + b"\n"
            for byte in line(a):
                put(bytes([byte]))
            put(line(b) + line(c) + line(d))
            """
        )
        answers = await asyncio.gather(*(self.ask(transport) for _ in range(4)))
        self.assertEqual([one["result"]["t"] for one in answers], ["€𝄞"] * 4)

    async def test_std_14_a_last_line_without_newline_counts(self) -> None:
        transport = await self.stdio(
            'm = hear(); put(b\'{"jsonrpc":"2.0","id":1,"result":{"a":1}}\')'
        )
        self.assertEqual((await self.ask(transport, id=1))["result"]["a"], 1)

    @spec("stdio-03")
    async def test_std_20_stderr_is_drained_and_no_sign_of_error(self) -> None:
        heard = bytearray()
        transport = await self.stdio(
            r"""
            id = hear()["id"]
            sys.stderr.write("x" * 1_000_000)
            sys.stderr.write("spin\r" * 400_000 + "the end")
            sys.stderr.flush()
            done(id, a=1)
            """,
            on_stderr=heard.extend,
        )
        self.assertEqual((await self.ask(transport))["result"]["a"], 1)
        await transport.aclose()
        self.assertEqual(len(heard), 3_000_007)

    async def test_std_20_only_a_bounded_tail_of_stderr_is_kept(self) -> None:
        transport = await self.stdio(
            r'hear(); sys.stderr.write("x" * 1_000_000 + "the end"); sys.exit(3)'
        )
        with self.assertRaisesRegex(TransportError, "status 3.*\n.*the end") as caught:
            await self.ask(transport)
        self.assertLess(len(str(caught.exception)), 10_000)

    async def test_std_21_content_length_framing_is_named(self) -> None:
        transport = await self.stdio(
            r"""
            id = hear()["id"]
            body = json.dumps({"jsonrpc": "2.0", "id": id, "result": {}}).encode()
            put(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            hear()
            """
        )
        with self.assertRaisesRegex(TransportError, "Content-Length"):
            await self.ask(transport)

    async def test_std_23_a_missing_command_is_named_at_once(self) -> None:
        for command in (["missing-binary-xyz"], ["/nowhere/x"], []):
            with self.assertRaisesRegex(TransportError, "Command not found"):
                await self.ask(StdioClient(command))

    async def test_std_24_the_environment_is_added_to_ours(self) -> None:
        code = 'm = hear(); done(m["id"], env=dict(os.environ))'
        for given in ({"TOKEN": "x"}, {}):
            transport = await self.stdio(code, env=given)
            found = (await self.ask(transport))["result"]["env"]
            self.assertEqual(found.get("TOKEN"), given.get("TOKEN"))
            self.assertEqual(found.get("PATH"), os.environ.get("PATH"))

    @spec("stdio-10", "cancellation-01", "cancellation-05", "cancellation-15")
    async def test_can_01_giving_up_tells_the_server_once(self) -> None:
        transport = await self.stdio(
            r"""
            done(hear()["id"])
            m = hear()
            c = hear()
            done(m["id"], late=True)
            say(method="notifications/progress",
                params={"progressToken": m["id"], "progress": 1})
            m = hear()
            done(m["id"], content=[], cancel=c)
            hear()
            """
        )
        await self.ask(transport)
        client = await self.client(transport, ids=iter([0, 1, 2, 3]))
        notes: list[JSON] = []
        with self.assertRaisesRegex(
            TimeoutError, "tools/call was not answered in time"
        ):
            await client.call_tool("sleep", timeout=0.03, on_progress=notes.append)
        reply = await self.soon(client.call_tool("echo", on_progress=notes.append))
        self.assertEqual(reply["cancel"]["method"], "notifications/cancelled")
        self.assertIs(type(reply["cancel"]["params"]["requestId"]), int)
        self.assertEqual(reply["cancel"]["params"]["requestId"], 0)
        self.assertNotIn("id", reply["cancel"])
        self.assertNotIn("late", reply)
        self.assertEqual(notes, [])

    @spec("cancellation-11")
    async def test_an_answered_request_is_not_cancelled(self) -> None:
        transport = await self.stdio("done(hear()['id']); sys.stdin.read()")
        seen: list[JSON] = []
        write = mcp_ref._ServerProcess.write
        self.addCleanup(setattr, mcp_ref._ServerProcess, "write", write)

        def spy(process: Any, message: JSON) -> None:
            seen.append(message["method"])
            write(process, message)

        mcp_ref._ServerProcess.write = spy  # type: ignore[method-assign]
        await self.ask(transport)
        process = transport._process
        assert process is not None
        for answered in (True, False):

            async def send(message: JSON) -> None:
                await asyncio.Event().wait()

            call = asyncio.create_task(transport(Request("x", "m", {}), send))
            while "x" not in process.calls:
                await asyncio.sleep(0)
            process._notified(notice("cancelled"))  # of nothing that is known
            process.calls["x"].put(notice("progress"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if answered:
                process._answered({"jsonrpc": "2.0", "id": "x", "result": {}})
            call.cancel()
            await asyncio.wait([call])
            self.assertEqual("notifications/cancelled" in seen, not answered)

    @spec("cancellation-11")
    async def test_a_request_that_was_never_sent_is_not_cancelled(self) -> None:
        transport = await self.stdio(ECHO.replace('if "id" in m', "if True"))
        with self.assertRaises(ValueError):
            await self.ask(transport, x=float("nan"))
        heard = (await self.ask(transport))["result"]["heard"]
        self.assertEqual(heard["method"], "tools/call")
        self.assertEqual(heard["id"], 2)

    @spec("cancellation-05")
    async def test_giving_up_while_a_notification_is_passed_on_is_told(self) -> None:
        transport = await self.stdio(
            r"""
            m = hear()
            say(method="notifications/progress",
                params={"progressToken": "t", "progress": 1})
            cancel = hear()
            done(hear()["id"], cancel=cancel)
            """
        )

        async def send(message: JSON) -> None:
            raise TransportError("nobody to pass it on to")

        request = Request("a", "tools/call", {"_meta": {"progressToken": "t"}})
        with self.assertRaisesRegex(TransportError, "nobody"):
            await self.soon(transport(request, send))
        cancel = (await self.ask(transport))["result"]["cancel"]
        self.assertEqual(cancel["params"]["requestId"], "a")

    async def test_can_08_a_dead_server_fails_all_calls_with_its_last_words(
        self,
    ) -> None:
        transport = await self.stdio(
            r"""
            hear(); hear()
            print("Traceback: it broke", file=sys.stderr)
            sys.exit(3)
            """
        )
        calls = [asyncio.create_task(self.ask(transport)) for _ in range(2)]
        start = time.monotonic()
        for call in calls:
            with self.assertRaisesRegex(TransportError, "status 3.*\n.*it broke"):
                await call
        self.assertLess(time.monotonic() - start, 2.0)

    async def test_can_08_a_grandchild_that_holds_the_pipes_delays_nothing(
        self,
    ) -> None:
        transport = await self.stdio(
            r"""
            hear()
            if os.fork():
                os.kill(os.getpid(), 9)
            time.sleep(60)
            """
        )
        with self.assertRaisesRegex(TransportError, "signal 9"):
            await self.ask(transport)

    @spec("stdio-14")
    async def test_an_answer_before_the_exit_still_counts(self) -> None:
        transport = await self.stdio('m = hear(); done(m["id"], a=1); os._exit(0)')
        for _ in range(5):
            self.assertEqual((await self.ask(transport))["result"]["a"], 1)
            process = transport._process
            assert process is not None
            await self.soon(asyncio.wait([process.exited]))

    @spec("stdio-15")
    async def test_the_next_request_restarts_a_dead_server(self) -> None:
        code = 'm = hear(); done(m["id"], pid=os.getpid()); hear(); os._exit(1)'
        transport = await self.stdio(code)
        first = (await self.ask(transport))["result"]["pid"]
        with self.assertRaises(TransportError):
            await self.ask(transport)  # in flight when it died: lost, not repeated
        second = (await self.ask(transport))["result"]["pid"]
        self.assertNotEqual(first, second)

    async def test_a_server_that_closed_its_input_is_not_asked_again(self) -> None:
        code = 'm = hear(); done(m["id"], pid=os.getpid()); os.close(0); time.sleep(9)'
        transport = await self.stdio(code, step=0.05)
        first = (await self.ask(transport))["result"]["pid"]
        process = transport._process
        assert process is not None
        while process.usable:
            await asyncio.sleep(0.001)
        self.assertFalse(process.over.done())
        self.assertNotEqual((await self.ask(transport))["result"]["pid"], first)

    async def test_restarting_is_optional_and_ends(self) -> None:
        transport = await self.stdio("hear(); os._exit(1)", restart=False)
        for _ in range(2):
            with self.assertRaisesRegex(TransportError, "status 1"):
                await self.ask(transport)
        marks = tempfile.mkdtemp()
        transport = await self.stdio(
            f'open(os.path.join({marks!r}, str(os.getpid())), "w"); sys.exit(4)'
        )
        for _ in range(6):
            with self.assertRaisesRegex(TransportError, "status 4"):
                await self.ask(transport)
        self.assertEqual(len(os.listdir(marks)), mcp_ref.RESTARTS)

    @spec("stdio-12")
    async def test_the_shutdown_ladder(self) -> None:
        ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        linger = "while True: time.sleep(60)\n"
        rungs = {
            "closing the input": ("hear()", 0, 0.3),
            "SIGTERM": (linger, -signal.SIGTERM, 2.0),
            "SIGKILL": (ignore + linger, -signal.SIGKILL, 2.0),
        }
        for name, (code, status, limit) in rungs.items():
            with self.subTest(name):
                prefix = (
                    f"{ignore if 'KILL' in name else ''}m = hear(); done(m['id'])\n"
                )
                transport = await self.stdio(prefix + code, step=0.04)
                if name == "closing the input":
                    transport = await self.stdio(prefix + code, step=5)
                await self.ask(transport)
                process = transport._process
                assert process is not None
                start = time.monotonic()
                await transport.aclose()
                self.assertEqual(process.process.get_returncode(), status)
                self.assertLess(time.monotonic() - start, limit)

    async def test_shutdown_ends_the_childs_children(self) -> None:
        transport = await self.stdio(
            r"""
            m = hear()
            pid = os.fork()
            if not pid:
                time.sleep(60)
            done(m["id"], pid=pid)
            hear()
            """
        )
        pid = (await self.ask(transport))["result"]["pid"]
        await transport.aclose()

        def alive() -> bool:
            try:
                with open(f"/proc/{pid}/stat") as file:
                    return file.read().rsplit(")", 1)[1].split()[0] != "Z"
            except OSError:
                return False

        if not os.path.exists("/proc/self/stat"):
            self.skipTest("needs /proc")
        for _ in range(100):
            if not alive():
                return
            await asyncio.sleep(0.02)
        self.fail("the grandchild lives on")

    async def test_closing_fails_calls_in_flight_at_once(self) -> None:
        transport = await self.stdio("hear(); hear()")
        call = asyncio.create_task(self.ask(transport))
        while transport._process is None or not transport._process.calls:
            await asyncio.sleep(0.001)
        await transport.aclose()
        with self.assertRaisesRegex(TransportError, "closed"):
            await call

    async def test_closing_stops_a_server_that_is_just_starting(self) -> None:
        transport = await self.stdio("hear(); hear()")
        call = asyncio.create_task(self.ask(transport))
        while not transport._starting.locked():
            await asyncio.sleep(0)
        await transport.aclose()
        with self.assertRaisesRegex(TransportError, "closed"):
            await call
        self.assertIsNone(transport._process)

    @spec("base-06")
    async def test_an_id_in_flight_is_not_used_twice(self) -> None:
        transport = await self.stdio("hear(); hear()")
        call = asyncio.create_task(self.ask(transport, id="a"))
        while transport._process is None or not transport._process.calls:
            await asyncio.sleep(0.001)
        with self.assertRaisesRegex(ValueError, "in flight"):
            await self.ask(transport, id="a")
        call.cancel()

    async def test_jsn_08_foreign_and_double_responses_are_ignored(self) -> None:
        transport = await self.stdio(
            r"""
            a, b = hear(), hear()
            for id in (True, "1", 1.0, None, [1], {"a": 1}, 99):
                say(id=id, result={"wrong": True})
            say(result={"wrong": True})
            done(1, a=1)
            done(1, again=True)
            done("b", a=2)
            m = hear()
            done(m["id"], a=3)
            """
        )
        calls = [self.ask(transport, id=1), self.ask(transport, id="b")]
        answers = await asyncio.gather(*calls)
        self.assertEqual([one["result"].get("a") for one in answers], [1, 2])
        self.assertEqual((await self.ask(transport, id=1))["result"]["a"], 3)

    @spec("base-15")
    async def test_an_error_without_id_belongs_to_the_only_request(self) -> None:
        transport = await self.stdio(
            'hear(); say(error={"code": -32700, "message": "what?"})\n' + ECHO
        )
        answer = await self.ask(transport)
        self.assertEqual(answer["error"]["code"], -32700)

    @spec("stdio-09", "patterns-01")
    async def test_requests_of_the_server_are_not_answered(self) -> None:
        transport = await self.stdio(
            r"""
            m = hear()
            say(id=m["id"], method="ping")
            say(id="s1", method="roots/list")
            done(m["id"], a=1)
            n = hear()
            done(n["id"], heard=n)
            """
        )
        with self.assertLogs("mcp_ref", "WARNING") as logs:
            self.assertEqual((await self.ask(transport))["result"]["a"], 1)
        self.assertEqual(len(logs.output), 2)
        heard = (await self.ask(transport))["result"]["heard"]
        self.assertEqual(heard["method"], "tools/call")

    @spec("progress-10")
    async def test_prg_01_progress_finds_its_request_also_for_token_0(self) -> None:
        transport = await self.stdio(
            r"""
            hear(); hear(); hear()
            for token in (0, "", "0", None, False, 7):
                say(method="notifications/progress",
                    params={"progressToken": token, "progress": 1})
            for id in (1, 2, 3):
                done(id)
            """
        )
        notes: list[list[JSON]] = [[], [], []]
        metas = [{"progressToken": 0}, {"progressToken": ""}, {}]
        calls = [
            self.ask(transport, notes=found, meta=meta)
            for found, meta in zip(notes, metas, strict=True)
        ]
        await asyncio.gather(*calls)
        tokens = [[one["params"]["progressToken"] for one in found] for found in notes]
        self.assertEqual(tokens, [[0], [""], []])

    async def test_log_messages_go_to_those_who_asked(self) -> None:
        transport = await self.stdio(
            r"""
            hear(); hear()
            say(method="notifications/message", params={"level": "info", "data": 1})
            done(2); done(1)
            """
        )
        notes: list[list[JSON]] = [[], []]
        metas = [{META_LOG_LEVEL: "info"}, {}]
        calls = [
            self.ask(transport, notes=found, meta=meta)
            for found, meta in zip(notes, metas, strict=True)
        ]
        await asyncio.gather(*calls)
        self.assertEqual([len(found) for found in notes], [1, 0])

    @spec("stdio-08", "subscriptions-05", "subscriptions-06")
    async def test_sub_05_subscriptions_are_told_apart_by_id_and_type(self) -> None:
        transport = await self.stdio(
            r"""
            hear(); hear()
            def tell(id, method, **params):
                params["_meta"] = {"io.modelcontextprotocol/subscriptionId": id}
                say(method="notifications/" + method, params=params)
            tell("7", "resources/updated", uri="note://a")
            tell(7, "tools/list_changed")
            tell(8, "prompts/list_changed")
            say(method="notifications/prompts/list_changed")
            done(7); done("7")
            """
        )
        notes: list[list[JSON]] = [[], []]
        await asyncio.gather(
            self.ask(transport, "subscriptions/listen", notes[0], id="7"),
            self.ask(transport, "subscriptions/listen", notes[1], id=7),
        )
        methods = [[one["method"][14:] for one in found] for found in notes]
        self.assertEqual(methods, [["resources/updated"], ["tools/list_changed"]])

    @spec("cancellation-02", "cancellation-12")
    async def test_sub_07_cancelled_by_the_server_is_a_graceful_end(self) -> None:
        transport = await self.stdio(
            r"""
            call, listen = hear(), hear()
            for id in (call["id"], str(listen["id"]), listen["id"]):
                say(method="notifications/cancelled", params={"requestId": id})
            done(call["id"], a=1)
            """
        )
        call, end = await asyncio.gather(
            self.ask(transport), self.ask(transport, "subscriptions/listen")
        )
        self.assertEqual(call["result"]["a"], 1)
        self.assertEqual(end["result"]["_meta"], {META_SUBSCRIPTION_ID: end["id"]})

    async def test_neither_pipe_blocks(self) -> None:
        transport = await self.stdio(
            r"""
            put(b" " * 3_000_000 + b"\n")
            ids = [hear()["id"] for _ in range(20)]
            for id in ids:
                done(id, text="x" * 300_000)
            """
        )
        calls = [self.ask(transport, text="y" * 300_000) for _ in range(20)]
        answers = await asyncio.gather(*calls)
        self.assertEqual({len(one["result"]["text"]) for one in answers}, {300_000})

    async def test_notifications_come_in_order_and_before_the_answer(self) -> None:
        transport = await self.stdio(
            r"""
            m = hear()
            for n in range(500):
                say(method="notifications/progress",
                    params={"progressToken": "t", "progress": n})
            done(m["id"])
            """
        )
        notes: list[JSON] = []
        await self.ask(transport, notes=notes, meta={"progressToken": "t"})
        self.assertEqual([one["params"]["progress"] for one in notes], [*range(500)])


# --- server-sent events ---------------------------------------------------------------


class EventStreams(unittest.TestCase):
    """WHATWG HTML 9.2.6"""

    CASES = {
        # SSE-01
        b": keepalive\n\n": [],
        b":\r\n\r\n": [],
        b":data: x\n\n": [],
        b"data:\n\n": [],
        b"event: ping\ndata: {}\n\n": [("ping", b"{}")],
        b"id: 1\nretry: 3000\n\n": [],
        # SSE-02
        b"data: a\ndata:b\ndata:  c\n\n": [("message", b"a\nb\n c")],
        b"data\n\n": [],
        b"data\ndata: x\n\n": [("message", b"\nx")],
        b"data:x:y\n\n": [("message", b"x:y")],
        # SSE-03
        b"\xef\xbb\xbfevent: message\rdata: 1\r\r": [("message", b"1")],
        b"\xef\xbb\xbfdata: 1\r\r": [("message", b"1")],
        b"data: 1\r\ndata: 2\r\n\r\n": [("message", b"1\n2")],
        b"data: 1\r\n\r\ndata: 2\n\n": [("message", b"1"), ("message", b"2")],
        b"data: 1\r\n\ndata: 2\r\n\n": [("message", b"1"), ("message", b"2")],
        b"data: 1\r\n\rdata: 2\r\r": [("message", b"1"), ("message", b"2")],
        b"data: {}\n": [],
        b"data: \xef\xbb\xbfx\n\n": [("message", b"\xef\xbb\xbfx")],
        # SSE-06
        b"Data: 1\n\nfoo: bar\n\ndata: 2\n\n": [("message", b"2")],
        b"event: a\n\ndata: 1\n\n": [("message", b"1")],
        b"event: a\nevent: b\ndata: 1\n\n": [("b", b"1")],
        "data: é\u2028\x85\x0b\n\n".encode(): [("message", "é\u2028\x85\x0b".encode())],
    }

    def test_whole_and_in_all_pieces(self) -> None:
        for text, events in self.CASES.items():
            with self.subTest(text):
                self.assertEqual(SseDecoder().feed(text), events)
                for size in range(1, len(text)):
                    decoder, found = SseDecoder(), []
                    for start in range(0, len(text), size):
                        found += decoder.feed(text[start : start + size])
                        found += decoder.feed(b"")
                    self.assertEqual(found, events, size)

    def test_id_and_retry_are_remembered(self) -> None:
        decoder = SseDecoder()
        decoder.feed(b"id: 7\nretry: 500\ndata\n\nid: a\0b\nretry: x\n\n")
        self.assertEqual((decoder.last_id, decoder.retry), ("7", 500))

    def test_an_event_is_bounded_however_it_is_cut(self) -> None:
        for piece in (b"data: " + b"x" * 200, b"data: xxxx\n", b"xxxxxxxx"):
            decoder = SseDecoder(limit=100)
            with self.assertRaisesRegex(ValueError, "over 100 bytes"):
                for _ in range(100):
                    decoder.feed(piece)

    def test_the_limit_is_per_event(self) -> None:
        decoder = SseDecoder(limit=100)
        for _ in range(100):
            self.assertEqual(len(decoder.feed(b"data: " + b"x" * 50 + b"\n\n")), 1)


# --- HTTP -----------------------------------------------------------------------------


class ClientOverHttp(ClientCase):
    """basic/transports/streamable-http"""

    @spec(
        *("http-07", "http-08", "http-09", "http-10", "http-11", "http-12"),
        *("http-25", "http-26", "http-32"),
    )
    async def test_each_message_is_a_post_with_the_required_headers(self) -> None:
        stub = await self.stub(result_of(content=[], contents=[], messages=[]))
        client = await self.client(stub.url)
        await client.call_tool("my-tool")
        await client.read_resource("file:///path/to/file%20name.txt?x=1")
        await client.get_prompt("p")
        await client.complete("p", "a", "v")
        names = ["my-tool", "file:///path/to/file%20name.txt?x=1", "p", None]
        for asked, name in zip(stub.asked, names, strict=True):
            headers = asked.headers
            self.assertEqual(asked.line, "POST /mcp HTTP/1.1")
            # C12
            accept = "application/json, text/event-stream"
            self.assertEqual(headers["accept"], accept)
            self.assertEqual(headers["content-type"], "application/json")
            self.assertEqual(headers["accept-encoding"], "identity")
            self.assertEqual(headers["host"], f"127.0.0.1:{stub.port}")
            self.assertEqual(headers["mcp-method"], asked.body["method"])
            self.assertEqual(headers.get("mcp-name"), name)
            self.assertEqual(headers["mcp-protocol-version"], "2026-07-28")
            meta = asked.body["params"]["_meta"]
            self.assertEqual(meta[META_PROTOCOL_VERSION], "2026-07-28")
            self.assertEqual(len(asked.fields), len(headers), "a repeated header")

    @spec("http-33", "http-49", "http-50", "http-55", "http-51")
    async def test_htp_29_names_that_are_not_safe_travel_as_base64(self) -> None:
        # C5, C6 of UNTESTED.md
        cases = {
            "名前": "=?base64?5ZCN5YmN?=",
            "note://ünï": "=?base64?bm90ZTovL8O8bsOv?=",
            "a\r\nX-Evil: 1": "=?base64?YQ0KWC1FdmlsOiAx?=",
            " padded ": "=?base64?IHBhZGRlZCA=?=",
            "=?base64?literal?=": "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
            "=?base64?open": "=?base64?open",
            "inner space": "inner space",
            "\x7f": "=?base64?fw==?=",
        }
        stub = await self.stub(result_of(content=[]))
        client = await self.client(stub.url)
        for name, header in cases.items():
            with self.subTest(name):
                await client.call_tool(name)
                asked = stub.asked[-1]
                self.assertEqual(asked.headers["mcp-name"], header)
                self.assertEqual(asked.body["params"]["name"], name)
                self.assertNotIn("x-evil", asked.headers)

    async def test_htp_33_no_session_no_get_no_initialize(self) -> None:
        # C13
        def answer(asked: Asked) -> bytes:
            body = response(asked, content=[])
            return http_answer(
                body, "200 OK", "Mcp-Session-Id: bad", "Last-Event-ID: 7"
            )

        stub = await self.stub(answer)
        client = await self.client(stub.url, headers={"Mcp-Session-Id": "mine"})
        for _ in range(3):
            await client.call_tool("t")
        for asked in stub.asked:
            self.assertTrue(asked.line.startswith("POST "))
            self.assertNotIn("mcp-session-id", asked.headers)
            self.assertNotIn("last-event-id", asked.headers)
            self.assertNotEqual(asked.body["method"], "initialize")

    async def test_htp_04_hosts(self) -> None:
        cases = {
            "http://[::1]:8000/mcp": "[::1]:8000",
            "https://example.com/mcp": "example.com",
            "http://example.com:80/": "example.com:80",
            "http://EXAMPLE.com:8080": "example.com:8080",
            "http://bücher.example/": "xn--bcher-kva.example",
        }
        for url, host in cases.items():
            head = HttpClient(url)._head("/", Request(1, "m", {}), 0).decode()
            self.assertIn(f"\r\nHost: {host}\r\n", head)
        for url in ("ftp://x/", "http:///mcp", "mcp", "http://u:p@host/mcp"):
            with self.assertRaises(ValueError):
                HttpClient(url)

    async def test_the_url_is_used_as_given(self) -> None:
        stub = await self.stub(result_of(content=[]))
        base = f"http://127.0.0.1:{stub.port}"
        paths = {"": "/", "/": "/", "/a?x=1&y=%20": "/a?x=1&y=%20", "/é": "/%C3%A9"}
        for given, sent in paths.items():
            client = await self.client(base + given)
            await client.call_tool("t")
            self.assertEqual(stub.asked[-1].line, f"POST {sent} HTTP/1.1")

    @spec("http-17")
    async def test_htp_06_both_content_types_with_parameters_in_any_case(self) -> None:
        def answer(asked: Asked) -> bytes:
            body = response(asked, content=[])
            kind = asked.body["params"]["name"]
            if "stream" in kind.lower():
                return http_answer(b"data: " + body + b"\n\n", kind=kind)
            return http_answer(body, kind=kind)

        stub = await self.stub(answer)
        client = await self.client(stub.url)
        for kind in (
            "application/json; charset=utf-8",
            "Application/JSON",
            "text/event-stream;charset=utf-8",
            "Text/Event-Stream",
        ):
            await client.call_tool(kind)

    @spec("http-66")
    async def test_header_names_come_in_any_case(self) -> None:
        def answer(asked: Asked) -> bytes:
            body = response(asked, content=[])
            fields = b"cONTENT-tYPE:application/json\r\nCONTENT-LENGTH: %d" % len(body)
            return b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\n" + body

        stub = await self.stub(answer)
        client = await self.client(stub.url)
        for _ in range(2):
            await self.soon(client.call_tool("t"))
        self.assertEqual(stub.connections, 1)

    async def test_htp_18_compressed_answers_are_named(self) -> None:
        for kind in ("application/json", "text/event-stream"):
            body = http_answer(
                b"\x1f\x8b", "200 OK", "Content-Encoding: gzip", kind=kind
            )
            stub = await self.stub(lambda asked, body=body: body)
            client = await self.client(stub.url)
            with self.assertRaisesRegex(TransportError, "compressed .gzip"):
                await client.call_tool("t")

    async def test_htp_21_answers_that_are_none(self) -> None:
        error = {"code": -32602, "message": "x"}
        wrong = {"jsonrpc": "2.0", "id": 999, "result": complete(content=[])}
        cases: dict[str, tuple[bytes, type[Exception], str]] = {
            "202": (http_answer(b"", "202 Accepted"), TransportError, "202"),
            "204": (b"HTTP/1.1 204 No\r\n\r\n", TransportError, "204"),
            "empty": (http_answer(b""), TransportError, "200"),
            "html": (http_answer(b"<p>", kind="text/html"), TransportError, "html"),
            "502": (
                http_answer(b"<p>", "502 Bad", kind="text/html"),
                TransportError,
                "502",
            ),
            "array": (http_answer(b"[]"), TransportError, "200"),
            "other id": (http_answer(encode(**wrong)), TransportError, "200"),
            "nan": (http_answer(b'{"id":1,"result":NaN}'), TransportError, "200"),
            "not http": (b"SSH-2.0-x\r\n\r\n\r\n", TransportError, "not HTTP"),
            "bad length": (
                b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
                TransportError,
                "length",
            ),
            "error without id": (
                http_answer(encode(jsonrpc="2.0", error=error), "400 Bad"),
                RemoteError,
                "x",
            ),
        }
        for name, (answer, kind, words) in cases.items():
            with self.subTest(name):
                stub = await self.stub(lambda asked, answer=answer: answer)
                client = await self.client(stub.url)
                with self.assertRaisesRegex(kind, words):
                    await self.soon(client.call_tool("t"))
                stub.answer = result_of(content=[])
                await self.soon(client.call_tool("t"))

    async def test_an_error_keeps_code_data_and_status(self) -> None:
        error = {"code": -32601, "message": "no", "data": [1]}
        stub = await self.stub(
            lambda asked: http_answer(
                encode(jsonrpc="2.0", id=str(asked.id), error=error), "404 Not Found"
            )
        )
        client = await self.client(stub.url)
        with self.assertRaises(RemoteError) as caught:
            await client.request("x/y")
        found = caught.exception
        self.assertEqual(
            (found.code, found.message, found.data, found.status),
            (-32601, "no", [1], 404),
        )

    async def test_htp_22_redirects_stay_within_the_origin(self) -> None:
        def answer(asked: Asked) -> bytes:
            path = asked.line.split()[1]
            if path == "/end?x=1":
                return http_answer(response(asked, content=[]))
            status, location = moves[path]
            return http_answer(b"moved", f"{status} Moved", f"Location: {location}")

        stub = await self.stub(answer)
        other = await self.stub(result_of(content=[]))
        moves = {
            "/307": ("307", "/end?x=1"),
            "/308": ("308", "end?x=1"),
            "/same": ("308", f"http://127.0.0.1:{stub.port}/end?x=1"),
            "/loop": ("307", "/loop"),
            "/301": ("301", "/end?x=1"),
            "/302": ("302", "/end?x=1"),
            "/303": ("303", "/end?x=1"),
            "/other": ("307", other.url),
            "/scheme": ("307", f"https://127.0.0.1:{stub.port}/end?x=1"),
            "/name": ("307", f"http://localhost:{stub.port}/end?x=1"),
            "/none": ("307", ""),
        }
        base = f"http://127.0.0.1:{stub.port}"
        headers = {"Authorization": "Bearer secret"}
        for path in ("/307", "/308", "/same"):
            client = await self.client(base + path, headers=headers)
            await client.call_tool("t", {"a": 1})
            last = stub.asked[-1]
            self.assertEqual(last.line, "POST /end?x=1 HTTP/1.1")
            self.assertEqual(last.body["params"]["arguments"], {"a": 1})
            self.assertEqual(last.headers["authorization"], "Bearer secret")
        for path in ("/loop", "/301", "/302", "/303", "/other", "/scheme", "/name"):
            with self.subTest(path):
                client = await self.client(base + path, headers=headers)
                with self.assertRaises(TransportError) as caught:
                    await client.call_tool("t")
                self.assertEqual(caught.exception.status, int(moves[path][0]))
        self.assertEqual(other.asked, [])
        loops = [asked for asked in stub.asked if "/loop" in asked.line]
        self.assertEqual(len(loops), mcp_ref.REDIRECTS + 1)

    async def test_connections_are_kept_and_reused(self) -> None:
        stub = await self.stub(result_of(content=[]))
        client = await self.client(stub.url)
        for _ in range(5):
            await client.call_tool("t")
        self.assertEqual(stub.connections, 1)
        await asyncio.gather(*(client.call_tool("t") for _ in range(5)))
        self.assertGreater(stub.connections, 1)
        before = stub.connections
        await asyncio.gather(*(client.call_tool("t") for _ in range(before)))
        self.assertEqual(stub.connections, before)

    async def test_connections_are_not_kept_when_the_server_says_so(self) -> None:
        stub = await self.stub(
            lambda asked: http_answer(response(asked), "200 OK", "Connection: close")
        )
        client = await self.client(stub.url)
        for _ in range(3):
            await client.request("x/y")
        self.assertEqual(stub.connections, 3)

    async def test_idle_connections_are_given_up_before_the_server_does(self) -> None:
        now = [0.0]
        stub = await self.stub(result_of())
        transport = HttpClient(stub.url, clock=lambda: now[0])
        self.enter.push_async_callback(transport.aclose)
        await self.ask(transport)
        now[0] += mcp_ref.IDLE_SECONDS + 1
        await self.ask(transport)
        self.assertEqual(stub.connections, 2)

    async def test_only_what_reads_is_repeated_on_a_closed_connection(self) -> None:
        def answer(asked: Asked) -> bytes | None:
            if asked.body["params"].get("cut") and asked.writer in seen:
                asked.writer.transport.abort()
                return None
            seen.add(asked.writer)
            return http_answer(response(asked))

        seen: set[Any] = set()
        stub = await self.stub(answer)
        transport = HttpClient(stub.url)
        self.enter.push_async_callback(transport.aclose)
        await self.ask(transport, "tools/list")
        await self.ask(transport, "tools/list", cut=True)
        self.assertEqual(stub.methods, ["tools/list"] * 3)
        with self.assertRaises(TransportError):
            await self.ask(transport, "tools/call", cut=True)
        self.assertEqual(stub.methods.count("tools/call"), 1)

    async def test_can_01_giving_up_closes_the_connection(self) -> None:
        for start in (b"", stream(b": x\n\n"), b"HTTP/1.1 200 OK\r\n"):
            stub = await self.stub(lambda asked, start=start: start)
            client = await self.client(stub.url)
            call = asyncio.create_task(client.call_tool("sleep", timeout=None))
            while not stub.asked:
                await asyncio.sleep(0.001)
            call.cancel()
            await asyncio.wait([call])
            self.assertTrue(call.cancelled())
            await self.soon(stub.closed.wait())
            stub.answer = result_of(content=[])
            await client.call_tool("t")
            # http-23: no notification is sent, closing says it
            self.assertEqual(stub.methods, ["tools/call"] * 2)
            stub.answer = lambda asked, start=start: start
            stub.closed.clear()
            with self.assertRaises(TimeoutError):
                await client.call_tool("sleep", timeout=0.03)
            await self.soon(stub.closed.wait())

    @spec("http-20")
    async def test_sse_01_sse_06_noise_on_a_stream_is_ignored(self) -> None:
        notes: list[JSON] = []

        def answer(asked: Asked) -> bytes:
            progress = notice("progress", progressToken=asked.id, progress=1)
            request = encode(jsonrpc="2.0", id=asked.id, method="roots/list")
            other = encode(jsonrpc="2.0", id=999, result={"wrong": 1})
            return stream(
                b": keepalive\n\n:\r\n\r\ndata:\n\nevent: ping\ndata: {}\n\n",
                b"data: ping\n\nid: 1\nretry: 3000\n\nevent: endpoint\ndata: /m\n\n",
                b"data: \xff\n\ndata: [1]\n\nData: {}\n\nfoo: bar\n\n",
                b'data: {"method": ["x"]}\n\ndata: {"method": 5, "id": 1}\n\n',
                b"event: odd\ndata: " + response(asked, wrong=1) + b"\n\n",
                b"data: " + request + b"\n\ndata: " + other + b"\n\n",
                b"data: " + encode(**progress) + b"\r\n\r\n",
                b"event: message\ndata: " + response(asked, content=[]) + b"\n\n",
            )

        stub = await self.stub(answer)
        client = await self.client(stub.url)
        with self.assertLogs("mcp_ref", "INFO"):
            reply = await client.call_tool("t", on_progress=notes.append)
        self.assertNotIn("wrong", reply)
        self.assertEqual(len(notes), 1)
        self.assertEqual(len(stub.asked), 1)

    async def test_sse_04_a_stream_that_ends_early_fails_the_call(self) -> None:
        progress = event(**notice("progress", progressToken=1, progress=1))
        cases = {
            "FIN": (stream(progress), False),
            "RST": (stream(progress), True),
            "no last chunk": (chunked_answer(progress, end=b""), False),
            "cut chunk": (chunked_answer(progress, end=b"ff\r\nabc"), False),
            "cut event": (stream(b'data: {"jsonrpc"'), False),
            "last chunk": (chunked_answer(progress), False),
            "unfinished event": (
                stream(b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n'),
                False,
            ),
        }
        for name, (data, reset) in cases.items():

            async def answer(asked: Asked, data: bytes = data, r: bool = reset) -> None:
                asked.writer.write(data)
                await asked.writer.drain()
                if r:
                    await asyncio.sleep(0.02)
                    asked.writer.transport.abort()
                asked.writer.close()

            with self.subTest(name):
                stub = await self.stub(answer)
                client = await self.client(stub.url)
                with self.assertRaises(TransportError):
                    await self.soon(client.call_tool("t"))
                self.assertEqual(len(stub.asked), 1, "silently run again")

    async def test_sse_05_a_stream_that_stays_open_does_not_hold_the_call(self) -> None:
        late = event(**notice("progress", progressToken=1, progress=2))

        async def answer(asked: Asked) -> None:
            asked.writer.write(stream(b"data: " + response(asked) + b"\n\n" + late))

        notes: list[JSON] = []
        stub = await self.stub(answer)
        client = await self.client(stub.url)
        await self.soon(client.request("x/y", on_progress=notes.append), 1.0)
        self.assertEqual(notes, [])

    async def test_a_stream_that_ends_gives_its_connection_back(self) -> None:
        stub = await self.stub(
            lambda asked: chunked_answer(b"data: " + response(asked) + b"\n\n")
        )
        client = await self.client(stub.url)
        for _ in range(3):
            await client.request("x/y")
            while client._transport._draining:
                await asyncio.sleep(0.001)
        self.assertEqual(stub.connections, 1)

    async def test_closing_also_closes_a_stream_that_is_still_open(self) -> None:
        async def answer(asked: Asked) -> None:
            asked.writer.write(stream(b"data: " + response(asked) + b"\n\n"))

        for turns in (0, 1):
            stub = await self.stub(answer)
            transport = HttpClient(stub.url)
            await self.ask(transport)
            for _ in range(turns):
                await asyncio.sleep(0)
            (connection,) = transport._draining
            await transport.aclose()
            self.assertTrue(connection.writer.transport.is_closing())
            self.assertFalse(transport._draining or transport._idle)
            await self.soon(stub.closed.wait())

    async def test_chunks_trailers_interim_answers_and_endless_bodies(self) -> None:
        json_head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

        def cut(body: bytes) -> bytes:
            return b"".join(b"1;x=y\r\n" + bytes([one]) + b"\r\n" for one in body)

        shapes: dict[str, Callable[[bytes], bytes]] = {
            "chunks": lambda body: (
                json_head
                + b"Transfer-Encoding: chunked\r\n\r\n"
                + cut(body)
                + b"0\r\nX-Trailer: 1\r\n\r\n"
            ),
            "interim": lambda body: (
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
                + http_answer(body)
            ),
        }
        for name, shape in shapes.items():
            with self.subTest(name):
                stub = await self.stub(
                    lambda asked, shape=shape: shape(response(asked, content=[]))
                )
                client = await self.client(stub.url)
                for _ in range(2):
                    await self.soon(client.call_tool("t"))
                self.assertEqual(stub.connections, 1)

        def ends(asked: Asked) -> None:
            asked.writer.write(json_head + b"\r\n" + response(asked, content=[]))
            asked.writer.close()

        stub = await self.stub(ends)
        client = await self.client(stub.url)
        await self.soon(client.call_tool("t"))

    async def test_answers_are_bounded(self) -> None:
        big = b"x" * 2000
        lengthy = http_answer(big)
        endless = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + big
        pieces = chunked_answer(big).replace(b"text/event-stream", b"application/json")
        event_ = stream(b"data: " + big)
        header = b"HTTP/1.1 200 OK\r\nX: " + b"y" * (mcp_ref.HEADER_LIMIT + 1)
        for answer in (lengthy, endless, pieces, event_, header):
            stub = await self.stub(lambda asked, answer=answer: answer)
            transport = HttpClient(stub.url, limit=1000)
            self.enter.push_async_callback(transport.aclose)
            with self.assertRaises(TransportError):
                await self.ask(transport)

    async def test_a_refusal_before_the_body_was_read_is_seen(self) -> None:
        ended = asyncio.Event()

        async def refuse(reader: Any, writer: Any) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(http_answer(b"too large", "413 Too Large", kind="text/plain"))
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
            writer.close()
            ended.set()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        self.addCleanup(server.close)
        port = server.sockets[0].getsockname()[1]
        client = await self.client(f"http://127.0.0.1:{port}/")
        with self.assertRaisesRegex(TransportError, "413"):
            await self.soon(client.call_tool("t", {"a": "x" * 30_000_000}))
        await self.soon(ended.wait())

    async def test_can_09_failures_are_one_flat_exception(self) -> None:
        with self.assertRaisesRegex(ConnectionError, "127.0.0.1:1: ") as caught:
            await Client("http://127.0.0.1:1/mcp").discover()
        self.assertIs(type(caught.exception), TransportError)

    async def test_headers_that_cannot_be_sent_are_refused(self) -> None:
        stub = await self.stub(result_of(content=[]))
        for bad in (
            {"X": "a\r\nY: b"},
            {"X": "é"},
            {"a b": "x"},
            {"": "x"},
            {"X": "\0"},
        ):
            client = await self.client(stub.url, headers=bad)
            with self.assertRaisesRegex(ValueError, "cannot be sent"):
                await client.call_tool("t")
        self.assertEqual(stub.asked, [])

    async def test_headers_per_client_and_per_call(self) -> None:
        stub = await self.stub(result_of(content=[]))
        client = await self.client(
            HttpClient(stub.url, headers={"X-One": "1"}), headers={"X-Two": "2"}
        )
        await client.call_tool("t")
        await client.call_tool("t", headers={"X-Three": "3", "Content-Length": "9"})
        found = [
            {k: v for k, v in asked.headers.items() if k.startswith("x-")}
            for asked in stub.asked
        ]
        self.assertEqual(
            found, [{"x-one": "1", "x-two": "2"}, {"x-one": "1", "x-three": "3"}]
        )

    async def test_a_header_in_two_spellings_is_sent_once(self) -> None:
        stub = await self.stub(result_of(content=[]))
        client = await self.client(HttpClient(stub.url, headers={"x-oNE": "1"}))
        await client.call_tool("t", headers={"X-One": "2"})
        (asked,) = stub.asked
        self.assertEqual(asked.headers["x-one"], "2")
        self.assertEqual(len(asked.fields), len(asked.headers))

    # --- x-mcp-header -----------------------------------------------------------------

    TOOL = {
        "name": "q",
        "inputSchema": {
            "type": "object",
            "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "on": {"type": "boolean", "x-mcp-header": "On"},
                "n": {"type": "integer", "x-mcp-header": "N"},
                "plain": {"type": "string"},
                "deep": {
                    "type": "object",
                    "properties": {"x": {"type": "string", "x-mcp-header": "Deep"}},
                },
            },
        },
    }

    def tools(self, *tools: JSON) -> Callable[[Asked], bytes]:
        def answer(asked: Asked) -> bytes:
            if asked.body["method"] == "tools/list":
                return http_answer(response(asked, tools=list(tools), ttlMs=60_000))
            return http_answer(response(asked, content=[]))

        return answer

    @spec("http-35", "http-36", "http-56", "http-62", "http-63", "http-64")
    async def test_xmh_02_annotated_arguments_are_mirrored(self) -> None:
        cases: list[tuple[JSON, JSON]] = [
            ({"region": None, "plain": "p"}, {}),
            ({}, {}),
            ({"on": True, "n": -7}, {"on": "true", "n": "-7"}),
            (
                {"on": False, "n": 0, "region": ""},
                {"on": "false", "n": "0", "region": ""},
            ),
            ({"region": "us west"}, {"region": "us west"}),
            ({"region": "Hello, 世界"}, {"region": "=?base64?SGVsbG8sIOS4lueVjA==?="}),
            ({"region": "a\nb"}, {"region": "=?base64?YQpi?="}),
            ({"region": "\tx"}, {"region": "=?base64?CXg=?="}),
            ({"deep": {"x": "y"}}, {"deep": "y"}),
            ({"deep": {}}, {}),
            ({"deep": None}, {}),
            ({"deep": 5}, {}),
            ({"n": 42.0}, {"n": "42"}),
            ({"n": 2**53 - 1}, {"n": "9007199254740991"}),
        ]
        stub = await self.stub(self.tools(self.TOOL))
        client = await self.client(stub.url)
        await client.list_tools()
        for arguments, headers in cases:
            with self.subTest(arguments):
                await client.call_tool("q", arguments)
                asked = stub.asked[-1]
                found = {
                    key.removeprefix("mcp-param-"): value
                    for key, value in asked.headers.items()
                    if key.startswith("mcp-param-")
                }
                self.assertEqual(found, headers)
                self.assertEqual(asked.body["params"]["arguments"], arguments)

    @spec("http-42")
    async def test_integers_beyond_the_safe_range_are_refused(self) -> None:
        # C7
        stub = await self.stub(self.tools(self.TOOL))
        client = await self.client(stub.url)
        await client.list_tools()
        for number in (2**53, -(2**53)):
            with self.assertRaisesRegex(ValueError, "2..53"):
                await client.call_tool("q", {"n": number})
        self.assertEqual(stub.methods, ["tools/list"])

    @spec("http-45", "http-46", "http-47", "tools-29", "tools-30", "tools-31")
    async def test_xmh_01_tools_with_illegal_annotations_are_left_out(self) -> None:
        # C7
        def tool(name: str, **schema: JSON) -> JSON:
            return {"name": name, "inputSchema": {"type": "object", **schema}}

        one = {"type": "string", "x-mcp-header": "A"}
        bad: list[JSON] = [
            tool(f"bad{n}", properties={"p": {"type": "string", "x-mcp-header": value}})
            for n, value in enumerate(
                ["", "a b", "a:b", "x\r\nE: 1", "ä", 5, None, "\t"]
            )
        ]
        bad += [
            tool(f"type{n}", properties={"p": {"type": kind, "x-mcp-header": "A"}})
            for n, kind in enumerate(["number", "object", "array", "null", None])
        ]
        upper = {"type": "string", "x-mcp-header": "a"}
        bad += [
            tool("twice", properties={"p": one, "q": upper}),
            tool("items", properties={"p": {"type": "array", "items": one}}),
            tool("anyOf", anyOf=[{"properties": {"p": one}}]),
            tool("if", **{"if": {"properties": {"p": one}}}),
            tool("defs", **{"$defs": {"x": {"properties": {"p": one}}}}),
            tool("pattern", patternProperties={"p": one}),
            {"inputSchema": {}},
            "not even a tool",
        ]
        good = tool("good", properties={"p": one}, default={"x-mcp-header": 1})
        stub = await self.stub(self.tools(*bad, good, *bad))
        client = await self.client(stub.url)
        with self.assertLogs("mcp_ref", "WARNING") as logs:
            found = await client.list_tools()
        self.assertEqual([one["name"] for one in found], ["good"])
        self.assertEqual(len(logs.output), 2 * len(bad))
        self.assertIn("'twice'", "".join(logs.output))

    @spec("http-57")
    async def test_xmh_05_a_header_mismatch_lists_again_and_retries_once(self) -> None:
        error = {"code": -32020, "message": "Header mismatch"}

        def answer(asked: Asked) -> bytes:
            if asked.body["method"] == "tools/list":
                return http_answer(response(asked, tools=[self.TOOL], ttlMs=60_000))
            if "mcp-param-region" in asked.headers and not stubborn:
                return http_answer(response(asked, content=[]))
            return http_answer(
                encode(jsonrpc="2.0", id=asked.id, error=error), "400 Bad"
            )

        stubborn = False
        for prepare in (False, True):
            stub = await self.stub(answer)
            client = await self.client(stub.url)
            if prepare:  # cached definitions are no excuse
                await client.list_tools()
                client._tools.clear()
            await client.call_tool("q", {"region": "us"})
            calls = ["tools/call", "tools/list", "tools/call"]
            self.assertEqual(stub.methods, ["tools/list"] * prepare + calls)
            ids = [asked.id for asked in stub.asked]
            self.assertEqual(len(set(ids)), len(ids))
        stubborn = True
        stub = await self.stub(answer)
        client = await self.client(stub.url)
        with self.assertRaisesRegex(RemoteError, "Header mismatch"):
            await client.call_tool("q", {"region": "us"})
        self.assertEqual(stub.methods, calls)

    # --- authorization ----------------------------------------------------------------

    @spec("auth-discovery-06", "auth-37", "auth-38", "auth-39")
    async def test_the_auth_hook_sees_challenges_and_supplies_headers(self) -> None:
        # C16: in every request, never in the query
        def answer(asked: Asked) -> bytes:
            token = asked.headers.get("authorization")
            if token is None:
                return http_answer(
                    b"", "401 No", 'WWW-Authenticate: Bearer scope="a b"'
                )
            if token == "Bearer 1":
                field = 'WWW-Authenticate: Bearer error="insufficient_scope"'
                return http_answer(b"", "403 No", field)
            return http_answer(response(asked, content=[]))

        seen: list[Any] = []

        async def auth(challenges: Any, status: int) -> Any:
            seen.append((status, challenges[0].scheme, challenges[0].params))
            return {"Authorization": f"Bearer {len(seen)}"}

        stub = await self.stub(answer)
        client = await self.client(HttpClient(stub.url, auth=auth))
        await client.call_tool("t")
        await client.call_tool("t")
        await client.read_resource("note://a")
        self.assertEqual(
            seen,
            [
                (401, "bearer", {"scope": "a b"}),
                (403, "bearer", {"error": "insufficient_scope"}),
            ],
        )
        tokens = [asked.headers.get("authorization") for asked in stub.asked]
        self.assertEqual(tokens, [None, "Bearer 1", *["Bearer 2"] * 3])
        for asked in stub.asked:
            self.assertNotIn("?", asked.line)
            self.assertNotIn("Bearer", json.dumps(asked.body))

    async def test_the_auth_hook_may_give_up_and_is_bounded(self) -> None:
        async def give_up(challenges: Any, status: int) -> None:
            calls.append(challenges)

        async def insist(challenges: Any, status: int) -> Any:
            calls.append(challenges)
            return {"Authorization": "Bearer x"}

        calls: list[Any] = []
        for auth, times in ((None, 0), (give_up, 1), (insist, mcp_ref.AUTH_ROUNDS)):
            calls.clear()
            stub = await self.stub(lambda asked: http_answer(b"", "401 No"))
            client = await self.client(HttpClient(stub.url, auth=auth))
            with self.assertRaises(TransportError) as caught:
                await client.call_tool("t")
            self.assertEqual(caught.exception.status, 401)
            self.assertEqual(calls, [[]] * times)

    @spec("auth-discovery-06")
    def test_aut_03_challenges(self) -> None:
        # C19
        cases: dict[str, list[Any]] = {
            'Basic realm="a, b", bearer error="invalid_token",'
            'resource_metadata=https://h/.well-known/x , scope="a b"': [
                ("basic", {"realm": "a, b"}),
                (
                    "bearer",
                    {
                        "error": "invalid_token",
                        "resource_metadata": "https://h/.well-known/x",
                        "scope": "a b",
                    },
                ),
            ],
            'Bearer realm="say \\"hi\\"", Scope="x", resource_metadata="https://h/?s=e"': [
                (
                    "bearer",
                    {
                        "realm": 'say "hi"',
                        "scope": "x",
                        "resource_metadata": "https://h/?s=e",
                    },
                )
            ],
            "Bearer": [("bearer", {})],
            "Negotiate abc==, Bearer a=b": [("negotiate", {}), ("bearer", {"a": "b"})],
            "DPoP algs=ES256, Bearer": [("dpop", {"algs": "ES256"}), ("bearer", {})],
            'Bearer scope = "x" , error= y': [("bearer", {"scope": "x", "error": "y"})],
            'Bearer scope="1", scope="2"': [("bearer", {"scope": "1"})],
            ", ,Bearer ,": [("bearer", {})],
            'Bearer x="unclosed, Basic': [("bearer", {"x": "unclosed, Basic"})],
            "": [],
            '="': [],
        }
        for text, found in cases.items():
            self.assertEqual(
                [tuple(one) for one in parse_challenges([text])], found, text
            )
        two = parse_challenges(['Basic realm="x"', "Bearer"])
        self.assertEqual([one.scheme for one in two], ["basic", "bearer"])

    # --- TLS and proxies --------------------------------------------------------------

    CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgdmftZwgaCAXrF4PY
Z7Gq/oF6FdEME6hsTziHppJsV6ahRANCAAR8WCXOre0gOhjytbZVsCxPI6AaDxaD
+NXL9rBvLxMNWQL18ghjl3NY3hD4lSCxhFaXyasGz8SO4OZgefBWRNua
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBZzCCAQ2gAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAlsb2NhbGhv
c3QwIBcNMjAwMTAxMDAwMDAwWhgPMjA5OTEyMzEwMDAwMDBaMBQxEjAQBgNVBAMM
CWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABHxYJc6t7SA6GPK1
tlWwLE8joBoPFoP41cv2sG8vEw1ZAvXyCGOXc1jeEPiVILGEVpfJqwbPxI7g5mB5
8FZE25qjTjBMMBoGA1UdEQQTMBGCCWxvY2FsaG9zdIcEfwAAATAPBgNVHRMBAf8E
BTADAQH/MB0GA1UdDgQWBBT1oTceMHXlLjRa4Z0aEATlqw4LvDAKBggqhkjOPQQD
AgNIADBFAiEArxILesP6F7JZBx0auunWi/Fpb7Xl7KFj6cvssLOauhgCIG6mQGv6
t0sxqzAdAYzcWLuEXduqmje/eOGSxhfn0WMy
-----END CERTIFICATE-----
"""  # of localhost and 127.0.0.1, signed by itself, for these tests only

    def tls(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Contexts for a server with the certificate and for one that trusts it."""
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(self.CERTIFICATE)
            file.flush()
            server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.load_cert_chain(file.name)
            return server, ssl.create_default_context(cafile=file.name)

    async def test_tls_is_verified(self) -> None:
        server, trusting = self.tls()
        stub = await self.stub(result_of(content=[]), server)
        client = await self.client(HttpClient(stub.url, tls=trusting))
        await client.call_tool("t")
        client = await self.client(stub.url)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        with self.assertRaisesRegex(TransportError, "certificate"):
            await client.call_tool("t")
        self.assertEqual(len(stub.asked), 1)

    async def test_htp_32_proxies_come_from_the_environment(self) -> None:
        set_ = {
            "HTTP_PROXY": "http://127.0.0.1:9",
            "HTTPS_PROXY": "http://u:p@127.0.0.1:9",
        }
        cases = [
            ("http://127.0.0.1:8/", set_, None),
            ("http://localhost/", set_, None),
            ("http://[::1]/", set_, None),
            ("http://h.example/", {}, None),
            ("http://h.example/", set_, 9),
            ("https://h.example/", set_, 9),
            ("https://h.example/", {"HTTP_PROXY": "http://127.0.0.1:9"}, None),
            ("https://h.example/", set_ | {"NO_PROXY": "h.example"}, None),
            ("https://h.example/", set_ | {"NO_PROXY": ".example,x"}, None),
            ("https://h.example:1/", set_ | {"no_proxy": "*"}, None),
        ]
        for url, environment, port in cases:
            with (
                self.subTest(url, **environment),
                unittest.mock.patch.dict(os.environ, environment, clear=True),
            ):
                proxy = HttpClient(url)._proxy
                self.assertEqual(None if proxy is None else proxy.port, port)
        socks = {"HTTPS_PROXY": "socks5://127.0.0.1:9"}
        with unittest.mock.patch.dict(os.environ, socks, clear=True):
            with self.assertRaisesRegex(TransportError, "socks5"):
                HttpClient("https://h.example/")

    async def test_http_goes_through_a_proxy_with_the_whole_url(self) -> None:
        proxy = await self.stub(result_of(content=[]))
        environment = {"HTTP_PROXY": f"http://u:p%40@127.0.0.1:{proxy.port}"}
        with unittest.mock.patch.dict(os.environ, environment, clear=True):
            client = await self.client("http://h.example:81/mcp")
            await client.call_tool("t")
        asked = proxy.asked[0]
        self.assertEqual(asked.line, "POST http://h.example:81/mcp HTTP/1.1")
        self.assertEqual(asked.headers["host"], "h.example:81")
        self.assertEqual(asked.headers["proxy-authorization"], "Basic dTpwQA==")

    async def test_https_goes_through_a_tunnel(self) -> None:
        server, trusting = self.tls()
        stub = await self.stub(result_of(content=[]), server)
        heads: list[bytes] = []
        ended = asyncio.Event()

        async def tunnel(reader: Any, writer: Any) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            if refuse:
                writer.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
                writer.close()
                return
            onward = await asyncio.open_connection("127.0.0.1", stub.port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

            async def pump(source: Any, sink: Any) -> None:
                with contextlib.suppress(ConnectionError):
                    while data := await source.read(65536):
                        sink.write(data)
                sink.close()

            await asyncio.gather(pump(reader, onward[1]), pump(onward[0], writer))
            ended.set()

        proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
        self.addCleanup(proxy.close)
        port = proxy.sockets[0].getsockname()[1]
        transport = HttpClient(f"https://localhost:{stub.port}/mcp", tls=trusting)
        transport._proxy = mcp_ref.urllib.parse.urlsplit(f"http://u:p@127.0.0.1:{port}")
        refuse = True
        with self.assertRaisesRegex(TransportError, "407"):
            await self.ask(transport)
        refuse = False
        client = await self.client(transport, headers={"Authorization": "Bearer s"})
        await client.call_tool("t")
        self.assertEqual(stub.asked[0].line, "POST /mcp HTTP/1.1")
        self.assertTrue(heads[1].startswith(f"CONNECT localhost:{stub.port} ".encode()))
        self.assertNotIn(b"Bearer", heads[1])
        self.assertIn(b"Proxy-Authorization: Basic dTpw\r\n", heads[1])
        self.assertNotIn("proxy-authorization", stub.asked[0].headers)
        await client.aclose()
        await self.soon(ended.wait())


# --- Client: versions -----------------------------------------------------------------


class ClientVersions(ClientCase):
    """basic/versioning, server/discover"""

    @spec("versioning-04", "discover-02", "stdio-16")
    async def test_discover_comes_first_unless_switched_off(self) -> None:
        peer = replies(discovered(instructions="hi"))
        client = await self.client(peer, discover=True)
        self.assertEqual(peer.methods, ["server/discover"])
        self.assertEqual(client.server["instructions"], "hi")
        peer = replies(complete())
        await self.client(peer)
        self.assertEqual(peer.methods, [])

    @spec(
        *("base-51", "base-54", "elicitation-04", "elicitation-05"),
        *("roots-02", "sampling-06"),
    )
    async def test_each_request_carries_version_capabilities_and_identity(self) -> None:
        # C8, C9
        peer = replies(complete())
        client = await self.client(
            peer,
            on_elicit=lambda client, params: "decline",
            on_url=lambda client, params: False,
            on_sample=lambda client, params: None,
            roots=[],
            capabilities={"sampling": {"tools": {}}, "experimental": {"x": {}}},
        )
        for _ in range(2):
            await client.request("x/y")
        for request in peer.requests:
            meta = request.params["_meta"]
            self.assertEqual(meta[META_PROTOCOL_VERSION], "2026-07-28")
            self.assertEqual(meta[META_CLIENT_INFO]["name"], "mcp_ref")
            self.assertEqual(
                meta[META_CLIENT_CAPABILITIES],
                {
                    "elicitation": {"form": {}, "url": {}},
                    "sampling": {"tools": {}},
                    "roots": {},
                    "experimental": {"x": {}},
                },
            )
        anonymous = await self.client(peer, info=None)
        await anonymous.request("x/y")
        meta = peer.requests[-1].params["_meta"]
        self.assertNotIn(META_CLIENT_INFO, meta)
        self.assertEqual(meta[META_CLIENT_CAPABILITIES], {})

    LEGACY_ERRORS = (
        {"code": -32601, "message": "Method not found"},
        {"code": -32602, "message": "Invalid params"},
        {"code": -32600, "message": "Invalid Request"},
        {"code": -32000, "message": "not initialized"},
        {"code": -32002, "message": "not initialized"},
        {"code": 0, "message": "?"},
        {"code": -32603, "message": "internal"},
    )

    @spec("stdio-17", "versioning-11")
    async def test_era_01_any_unknown_error_is_an_earlier_revision(self) -> None:
        for error in self.LEGACY_ERRORS:
            with self.subTest(error["message"], code=error["code"]):
                peer = Peer(
                    lambda request, send, error=error: (
                        {"jsonrpc": "2.0", "id": request.id, "error": error}
                        if request.method == "server/discover"
                        else {"protocolVersion": "2025-06-18", "capabilities": {}}
                    )
                )
                with self.assertRaisesRegex(LegacyServer, "2025-06-18") as caught:
                    await self.client(peer, discover=True)
                self.assertEqual(caught.exception.versions, ("2025-06-18",))
                self.assertEqual(peer.methods, ["server/discover", "initialize"])

    async def test_era_01_modern_errors_are_not(self) -> None:
        for error in (
            mcp_ref.MissingRequiredClientCapability({"sampling": {}}),
            mcp_ref.HeaderMismatch("x"),
        ):
            peer = replies(error)
            with self.assertRaises(RemoteError) as caught:
                await self.client(peer, discover=True)
            self.assertEqual(caught.exception.code, error.code)
            self.assertNotIn("initialize", peer.methods)

    async def test_era_01_over_real_stdio_silence_included(self) -> None:
        initialize = """
            m = hear()
            while m["method"] != "initialize":
                m = hear()
            say(id=m["id"], result={"protocolVersion": "2024-11-05"})
            hear()
        """
        unknown = 'hear(); say(error={"code": -32600, "message": "what?"})\n'
        for answer in ("", unknown):
            code = textwrap.dedent(initialize)
            transport = await self.stdio(answer + code)
            with self.assertRaisesRegex(LegacyServer, "2024-11-05"):
                await self.client(transport, discover=True, probe_timeout=0.5)

    @spec("http-74", "http-75")
    async def test_era_02_over_http(self) -> None:
        def error(code: int) -> bytes:
            return encode(jsonrpc="2.0", id=1, error={"code": code, "message": "m"})

        versions = encode(
            jsonrpc="2.0",
            id=1,
            error={
                "code": -32022,
                "message": "m",
                "data": {"supported": ["2099-01-01"]},
            },
        )
        field = "WWW-Authenticate: Bearer"
        cases: dict[str, tuple[bytes, type[Exception], bool]] = {
            "401": (http_answer(b"", "401 No", field), TransportError, False),
            "403": (http_answer(error(403), "403 No"), RemoteError, False),
            "429": (http_answer(error(429), "429 No"), RemoteError, False),
            "503": (http_answer(error(503), "503 No"), RemoteError, False),
            "500": (http_answer(error(-32603), "500 No"), RemoteError, False),
            "502": (
                http_answer(b"<p>", "502 No", kind="text/html"),
                TransportError,
                False,
            ),
            "400 modern": (http_answer(error(-32020), "400 No"), RemoteError, False),
            "400 versions": (http_answer(versions, "400 No"), LegacyServer, False),
            "400 empty": (http_answer(b"", "400 No"), LegacyServer, True),
            "400 other": (http_answer(error(-32600), "400 No"), LegacyServer, True),
            "404 page": (
                http_answer(b"<p>", "404 No", kind="text/html"),
                LegacyServer,
                True,
            ),
            "404 unknown": (http_answer(error(-32601), "404 No"), LegacyServer, True),
            "405": (http_answer(b"", "405 No"), LegacyServer, True),
            "200 unknown": (http_answer(error(-32601)), LegacyServer, True),
        }
        for name, (answer, kind, initialize) in cases.items():
            with self.subTest(name):

                def reply(asked: Asked, answer: bytes = answer) -> bytes:
                    if asked.body["method"] == "initialize":
                        return http_answer(
                            response(asked, protocolVersion="2025-11-25")
                        )
                    return answer

                stub = await self.stub(reply)
                with self.assertRaises(kind) as caught:
                    await self.client(stub.url, discover=True)
                self.assertIs(type(caught.exception), kind)
                self.assertEqual("initialize" in stub.methods, initialize)
                if initialize:
                    self.assertIn("2025-11-25", str(caught.exception))
        self.assertEqual(
            mcp_ref.Client("http://127.0.0.1:1/")._looks_legacy(TimeoutError()), False
        )

    @spec("versioning-09")
    async def test_the_era_is_remembered_until_asked_again(self) -> None:
        peer = replies(mcp_ref.MethodNotFound("?"))
        client = await self.client(peer)
        for _ in range(3):
            with self.assertRaises(LegacyServer):
                await client.discover()
        self.assertEqual(peer.methods, ["server/discover", "initialize"])
        peer.script = lambda request, send: discovered()
        await client.discover(refresh=True)
        await client.discover()

    async def test_a_bridge_slots_in_as_an_exchange(self) -> None:
        def bridge(exchange: Any) -> Any:
            async def bridged(request: Request, send: Any) -> JSON:
                if request.method == "server/discover":
                    return mcp_ref.result_response(request.id, discovered())
                return await exchange(request._replace(params={}), send)

            return bridged

        peer = Peer(
            lambda request, send: (
                {"content": [{"type": "text", "text": "old"}]}
                if request.method == "tools/call"
                else {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "?"}}
            )
        )
        client = await self.client(peer, discover=True, bridge=bridge)
        self.assertEqual((await client.call_tool("t")).text, "old")

    @spec("versioning-02")
    async def test_an_unsupported_version_is_retried_once_with_a_common_one(
        self,
    ) -> None:
        # C10
        error = mcp_ref.UnsupportedProtocolVersion(["2025-11-25", "2026-07-28"], "?")
        for method in ("server/discover", "tools/call"):
            peer = replies(error, discovered(content=[]))
            client = await self.client(peer)
            await client.request(method)
            self.assertEqual(peer.methods, [method] * 2)
            self.assertNotEqual(peer.requests[0].id, peer.requests[1].id)
        peer = replies(error)
        with self.assertRaises(RemoteError):
            await (await self.client(peer)).request("tools/call")
        self.assertEqual(len(peer.requests), 2)

    async def test_no_common_version_names_those_of_the_server(self) -> None:
        error = mcp_ref.UnsupportedProtocolVersion(["2025-11-25", "2025-06-18"], "?")
        for answer in (
            error,
            discovered(supportedVersions=["2025-11-25", "2025-06-18"]),
        ):
            client = await self.client(replies(answer))
            with self.assertRaisesRegex(
                LegacyServer, "2025-11-25, 2025-06-18"
            ) as caught:
                await client.discover()
            self.assertEqual(caught.exception.versions, ("2025-11-25", "2025-06-18"))
        client = await self.client(replies(complete()))
        with self.assertRaises(InvalidResponse):
            await client.discover()

    @spec("base-13", "base-14")
    async def test_era_06_result_types(self) -> None:
        # C1, C2
        for given in ({"content": []}, {"resultType": "complete", "content": []}):
            client = await self.client(replies(given))
            self.assertEqual(await client.call_tool("t"), given)
        for kind in ("task", 5, None, "", ["complete"]):
            client = await self.client(replies({"resultType": kind, "content": []}))
            with self.assertRaisesRegex(InvalidResponse, "resultType"):
                await client.call_tool("t")

    @spec("base-12", "versioning-05")
    async def test_extensions_add_result_types_and_capabilities(self) -> None:
        extension = mcp_ref.Extension(
            "com.example/tasks",
            settings={"x": 1},
            result_types=frozenset({"task"}),
            names={"tasks/get": "taskId"},
        )
        peer = replies({"resultType": "task", "taskId": "1"})
        client = await self.client(peer, extensions=[extension])
        self.assertEqual((await client.request("tools/call"))["taskId"], "1")
        capabilities = peer.requests[0].params["_meta"][META_CLIENT_CAPABILITIES]
        self.assertEqual(capabilities, {"extensions": {"com.example/tasks": {"x": 1}}})
        stub = await self.stub(result_of())
        client = await self.client(stub.url, extensions=[extension])
        await client.request("tasks/get", {"taskId": "é"})
        self.assertEqual(stub.asked[0].headers["mcp-name"], "=?base64?w6k=?=")

    @spec("discover-04")
    async def test_era_07_server_info_is_optional(self) -> None:
        for meta in ({}, {"_meta": {}}, {"_meta": None}, {"serverInfo": {"name": "x"}}):
            client = await self.client(replies(discovered(**meta)), discover=True)
            self.assertEqual(client.server.server_info, {})


# --- Client: calls --------------------------------------------------------------------


class ClientCalls(ClientCase):
    """basic/patterns, server/tools"""

    async def test_invalid_responses(self) -> None:
        for answer in (
            {"jsonrpc": "1.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "id": 1},
            {"jsonrpc": "2.0", "id": 1, "result": []},
            {"jsonrpc": "2.0", "id": 1, "error": "no"},
        ):
            client = await self.client(replies(answer))
            with self.assertRaises(InvalidResponse):
                await client.call_tool("t")

    async def test_errors_carry_code_message_and_data(self) -> None:
        client = await self.client(replies(mcp_ref.McpError("m", {"d": 1}, 7)))
        with self.assertRaises(RemoteError) as caught:
            await client.call_tool("t")
        error = caught.exception
        self.assertEqual((error.code, error.message, error.data), (7, "m", {"d": 1}))

    @spec("resources-15", "base-23")
    async def test_res_07_both_codes_mean_not_found(self) -> None:
        for code, data, kind in (
            (-32002, None, mcp_ref.NoSuchResource),
            (-32602, {"uri": "note://a"}, mcp_ref.NoSuchResource),
            (-32602, None, RemoteError),
            (-32603, {"uri": "note://a"}, RemoteError),
        ):
            client = await self.client(replies(mcp_ref.McpError("m", data, code)))
            with self.assertRaises(RemoteError) as caught:
                await client.read_resource("note://a")
            self.assertIs(type(caught.exception), kind)

    async def test_replies_have_conveniences(self) -> None:
        cases = [
            ({"content": [{"type": "text", "text": "a"}, {"type": "image"}]}, "a"),
            (
                {
                    "contents": [
                        {"uri": "x", "text": "a"},
                        {"uri": "x", "blob": ""},
                        {"uri": "y", "text": "b"},
                    ]
                },
                "a\nb",
            ),
            ({"messages": [{"role": "user", "content": {"text": "a"}}]}, "a"),
            (
                {
                    "messages": [
                        {"role": "user", "content": [{"text": "a"}, {"text": "b"}]}
                    ]
                },
                "a\nb",
            ),
            ({"content": [{"type": "resource", "resource": {"text": "r"}}]}, "r"),
            # OUT-08
            ({"content": [{"type": "hologram", "data": "x"}, "odd", None]}, ""),
            ({}, ""),
            ({"content": None, "contents": 5, "messages": ["x", {}]}, ""),
            ({"content": [{"resource": "x", "text": 5}], "_meta": []}, ""),
        ]
        for result, text in cases:
            client = await self.client(replies(result))
            reply = await client.call_tool("t")
            self.assertEqual(reply.server_info, {})
            self.assertEqual(reply.text, text)
            self.assertEqual(reply, result)
            self.assertFalse(reply.is_error)

    async def test_out_04_falsy_structured_content_is_kept(self) -> None:
        for value in (0, False, "", [], {}, None):
            client = await self.client(replies(complete(structuredContent=value)))
            reply = await client.call_tool("t")
            self.assertEqual(reply.structured, value)
            self.assertIs(type(reply.structured), type(value))
            self.assertIn("structuredContent", reply)
        client = await self.client(replies(complete()))
        self.assertNotIn("structuredContent", await client.call_tool("t"))

    def tool(self, output: JSON) -> JSON:
        schema = {"type": "object"}
        return {"name": "t", "inputSchema": schema, "outputSchema": output}

    @spec("tools-39", "tools-41", "tools-43")
    async def test_out_07_structured_results_are_checked(self) -> None:
        output = {
            "type": "object",
            "required": ["n"],
            "properties": {"n": {"type": "integer"}},
        }
        for result, good in (
            (complete(structuredContent={"n": 1}), True),
            (complete(structuredContent={"n": "x"}), False),
            (complete(content=[]), False),
            (complete(isError=True, content=[{"type": "text", "text": "no"}]), True),
        ):
            peer = replies(complete(tools=[self.tool(output)]), result)
            client = await self.client(peer)
            await client.list_tools()
            if good:
                self.assertEqual(await client.call_tool("t"), result)
                continue
            with self.assertRaisesRegex(InvalidResponse, "outputSchema") as caught:
                await client.call_tool("t")
            self.assertEqual(caught.exception.result, result)
            lenient = await self.client(
                replies(complete(tools=[self.tool(output)]), result), validate=False
            )
            await lenient.list_tools()
            await lenient.call_tool("t")

    @spec("base-38", "base-41")
    async def test_tol_14_tol_15_schemas_that_cannot_be_used(self) -> None:
        stub = await self.stub(lambda asked: b"")
        deep: JSON = {"type": "string"}
        for _ in range(400):
            deep = {"properties": {"a": deep}}
        for output in (
            {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 0},
            {"$schema": "https://example.com/unknown"},
            {"$ref": stub.url},
            {"$ref": "file:///etc/passwd"},
            {"$ref": "#/$defs/missing"},
            {"type": 5},
            deep,
        ):
            peer = replies(
                complete(tools=[self.tool(output)]), complete(structuredContent={})
            )
            client = await self.client(peer)
            await client.list_tools()
            with contextlib.suppress(InvalidResponse):
                await client.call_tool("t")
        self.assertEqual(stub.connections, 0)

    async def test_tol_16_hostile_input_schemas_only_cost_the_tool(self) -> None:
        deep: JSON = {}
        for _ in range(5000):
            deep = {"properties": {"a": deep}}
        tools = [{"name": "deep", "inputSchema": deep}, self.tool(None)]
        client = await self.client(replies(complete(tools=tools)))
        with self.assertLogs("mcp_ref", "WARNING"):
            found = await client.list_tools()
        self.assertEqual([tool["name"] for tool in found], ["t"])

    @spec("cancellation-06", "cancellation-07", "cancellation-08")
    async def test_timeouts_per_call_and_per_client(self) -> None:
        async def hang(request: Request, send: Any) -> JSON:
            await asyncio.Event().wait()

        peer = Peer(hang)
        client = await self.client(peer, timeout=0.01)
        with self.assertRaisesRegex(TimeoutError, "tools/call"):
            async with asyncio.timeout(5):
                await client.call_tool("t")
        slow = await self.client(peer)
        with self.assertRaisesRegex(TimeoutError, "resources/read"):
            async with asyncio.timeout(5):
                await slow.read_resource("x", timeout=0.01)
        self.assertEqual(len(peer.cancelled), 2)
        call = asyncio.create_task(slow.call_tool("t", timeout=None))
        await asyncio.sleep(0.03)
        call.cancel()
        await asyncio.wait([call])
        self.assertTrue(call.cancelled())
        self.assertEqual(len(peer.cancelled), 3)

    @spec("cancellation-09", "cancellation-10")
    async def test_can_07_progress_extends_the_timeout_up_to_a_maximum(self) -> None:
        async def steps(request: Request, send: Any) -> JSON:
            token = request.params["_meta"].get("progressToken")
            for step in itertools.count():
                await asyncio.sleep(0.01)
                if token is not None:
                    await send(notice("progress", progressToken=token, progress=step))

        peer = Peer(steps)
        client = await self.client(peer)

        async def lasts(**options: Any) -> float:
            start = time.monotonic()
            with self.assertRaises(TimeoutError):
                await client.call_tool("t", timeout=0.04, **options)
            return time.monotonic() - start

        self.assertGreaterEqual(await lasts(max_timeout=0.2), 0.19)
        async with asyncio.timeout(100) as deadline:
            now = asyncio.get_running_loop().time()
            mcp_ref._extend(deadline, 300, now + 200)
            self.assertAlmostEqual(deadline.when() or 0, now + 200)
            mcp_ref._extend(deadline, 300, now + 100)
            self.assertAlmostEqual(deadline.when() or 0, now + 200)
        self.assertLess(await lasts(on_progress=lambda params: None), 0.15)
        self.assertLess(await lasts(max_timeout=0.01), 0.15)

    @spec("progress-03")
    async def test_progress_and_log_messages_reach_their_callbacks(self) -> None:
        async def script(request: Request, send: Any) -> JSON:
            meta = request.params["_meta"]
            token = meta["progressToken"]
            await send(notice("progress", progressToken=token, progress=1))
            await send(notice("message", level=meta[META_LOG_LEVEL], data="x"))
            await send(notice("unheard/of"))
            await send({"jsonrpc": "2.0", "method": ["x"], "params": "y"})
            await send(notice("resources/updated") | {"params": [1]})
            return complete()

        seen: list[JSON] = []

        async def later(params: JSON) -> None:
            await asyncio.sleep(0)
            seen.append(params)

        peer = Peer(script)
        client = await self.client(peer, on_log=seen.append, log_level="debug")
        await asyncio.gather(
            *(client.call_tool("t", on_progress=later) for _ in range(3))
        )
        tokens = {one["progressToken"] for one in seen if "progressToken" in one}
        self.assertEqual(len(tokens), 3)
        self.assertEqual([one["data"] for one in seen if "data" in one], ["x"] * 3)
        await client.call_tool("t", log_level="error", on_progress=later)
        self.assertEqual(seen[-1]["level"], "error")

    async def test_nothing_is_asked_for_that_nobody_hears(self) -> None:
        peer = replies(complete())
        client = await self.client(peer)
        await client.call_tool("t", {"a": 1}, meta={"traceparent": "00-1-2-01"})
        meta = peer.requests[0].params["_meta"]
        self.assertEqual(meta["traceparent"], "00-1-2-01")
        self.assertNotIn("progressToken", meta)
        self.assertNotIn(META_LOG_LEVEL, meta)
        with contextlib.suppress(KeyError):
            await client.call_tool("t", meta={META_PROTOCOL_VERSION: "1"})
        meta = peer.requests[1].params["_meta"]
        self.assertEqual(meta[META_PROTOCOL_VERSION], "2026-07-28")

    async def test_the_parameters_of_each_method(self) -> None:
        peer = replies(complete())
        client = await self.client(peer)
        await client.call_tool("t")
        await client.get_prompt("p", {"a": "b"})
        await client.complete("p", "a", "v")
        await client.complete("note://{x}", "x", "v", {"y": "z"})
        await client.complete({"type": "ref/prompt", "name": "q"}, "a", "")
        await client.request("com.example/thing", {"x": None})
        found = [
            {key: value for key, value in request.params.items() if key != "_meta"}
            for request in peer.requests
        ]
        argument = {"name": "a", "value": "v"}
        self.assertEqual(
            found,
            [
                {"name": "t", "arguments": {}},
                {"name": "p", "arguments": {"a": "b"}},
                {"ref": {"type": "ref/prompt", "name": "p"}, "argument": argument},
                {
                    "ref": {"type": "ref/resource", "uri": "note://{x}"},
                    "argument": {"name": "x", "value": "v"},
                    "context": {"arguments": {"y": "z"}},
                },
                {
                    "ref": {"type": "ref/prompt", "name": "q"},
                    "argument": {"name": "a", "value": ""},
                },
                {"x": None},
            ],
        )

    @spec("transports-04")
    async def test_a_server_object_is_reached_through_the_encoder(self) -> None:
        server = mcp_ref.Server("s")
        got: list[Any] = []

        @server.tool
        async def echo(ctx: mcp_ref.Context, value: Any) -> Any:
            got.append(value)
            await ctx.progress(1)
            return {"v": value}

        client = await self.client(server, discover=True)
        value = {"a": [1, "é", None]}
        notes: list[JSON] = []
        reply = await client.call_tool(
            "echo", {"value": value}, on_progress=notes.append
        )
        self.assertEqual(got, [value])
        self.assertIsNot(got[0], value)
        self.assertEqual(reply.structured, {"v": value})
        self.assertEqual(len(notes), 1)
        with self.assertRaises(ValueError):
            await client.call_tool("echo", {"value": float("nan")})

    async def test_targets_that_are_none(self) -> None:
        with self.assertRaises(TypeError):
            Client(5)
        with self.assertRaises(ValueError):
            Client("python server.py")

    async def test_a_closed_client_says_so(self) -> None:
        client = await self.client(replies(complete()))
        await client.aclose()
        with self.assertRaisesRegex(TransportError, "closed"):
            await client.call_tool("t")
        async with client:
            await client.call_tool("t")

    @spec("progress-12", "cancellation-15")
    async def test_ids_never_repeat(self) -> None:
        peer = replies(complete())
        client = await self.client(peer)
        await asyncio.gather(*(client.call_tool("t") for _ in range(50)))
        ids = [request.id for request in peer.requests]
        self.assertEqual(len(set(ids)), 50)

    async def test_an_exchange_can_be_put_around_the_transport(self) -> None:
        seen: list[str] = []

        def logged(exchange: Any) -> Any:
            async def inner(request: Request, send: Any) -> JSON:
                seen.append(request.method)
                return await exchange(request, send)

            return inner

        client = await self.client(replies(complete()))
        client.wrap(logged)
        await client.call_tool("t")
        self.assertEqual(seen, ["tools/call"])


# --- Client: pages --------------------------------------------------------------------


class ClientPages(ClientCase):
    """server/utilities/pagination"""

    LISTS = {
        "tools/list": ("tools", "list_tools"),
        "prompts/list": ("prompts", "list_prompts"),
        "resources/list": ("resources", "list_resources"),
        "resources/templates/list": ("resourceTemplates", "list_resource_templates"),
    }

    def entry(self, name: str) -> JSON:
        return {"name": name, "inputSchema": {"type": "object"}}

    @spec(
        "pagination-02", "pagination-04", "pagination-05", "prompts-14", "pagination-06"
    )
    async def test_pag_02_all_pages_in_order_empty_ones_and_cursors_too(self) -> None:
        one, two = self.entry("one"), self.entry("two")
        for method, (member, name) in self.LISTS.items():
            pages = {
                None: {member: [one], "nextCursor": "a"},
                "a": {member: [], "nextCursor": ""},
                "": {member: [], "nextCursor": " a=\u2028"},
                " a=\u2028": {member: [two], "nextCursor": None},
            }
            peer = Peer(
                lambda request, send, pages=pages: complete(
                    **pages[request.params.get("cursor")]
                )
            )
            client = await self.client(peer)
            self.assertEqual(await getattr(client, name)(), [one, two])
            self.assertEqual(peer.methods, [method] * 4)
            self.assertNotIn("cursor", peer.requests[0].params)
            page = await client.request(method, {"cursor": "a"})
            self.assertEqual(page["nextCursor"], "")

    async def test_endless_and_cyclic_cursors_end(self) -> None:
        for cursor in (lambda count: "same", lambda count: str(count)):
            counter = itertools.count()
            peer = Peer(
                lambda request, send, cursor=cursor, counter=counter: complete(
                    tools=[], nextCursor=cursor(next(counter))
                )
            )
            client = await self.client(peer)
            with self.assertRaisesRegex(InvalidResponse, "1000 pages"):
                await client.list_tools()
            self.assertEqual(len(peer.requests), 1000)

    async def test_a_list_that_is_none(self) -> None:
        for page in (complete(), complete(tools=None), complete(tools={"a": 1})):
            client = await self.client(replies(page))
            with self.assertRaisesRegex(InvalidResponse, "tools"):
                await client.list_tools()

    @spec("caching-25")
    async def test_a_cursor_that_became_invalid_starts_the_list_again(self) -> None:
        fresh = [False]

        def script(request: Request, send: Any) -> JSON:
            cursor = request.params.get("cursor")
            name, good = ("new", "b") if fresh[0] else ("old", "a")
            if cursor is None:
                page = {"prompts": [self.entry(name)], "nextCursor": good}
                return complete(**page, ttlMs=60_000, cacheScope="public")
            if cursor != good:
                raise mcp_ref.InvalidParams("bad cursor")
            return complete(prompts=[], ttlMs=0)

        peer = Peer(script)
        client = await self.client(peer)
        self.assertEqual((await client.list_prompts())[0]["name"], "old")
        fresh[0] = True
        self.assertEqual((await client.list_prompts())[0]["name"], "new")
        peer = replies(mcp_ref.InvalidParams("no"))
        with self.assertRaises(RemoteError):
            await (await self.client(peer)).list_prompts()
        self.assertEqual(len(peer.requests), 1)


# --- Client: cache --------------------------------------------------------------------


class ClientCache(ClientCase):
    """server/utilities/caching"""

    def setUp(self) -> None:
        self.now = 1000.0

    async def caching(self, peer: Any, **options: Any) -> Client:
        return await self.client(peer, clock=lambda: self.now, **options)

    def read(self, **members: JSON) -> JSON:
        members = {"ttlMs": 1000, "cacheScope": "private", **members}
        return complete(contents=[{"uri": "u", "text": "t"}], **members)

    @spec(
        "caching-02",
        "caching-04",
        "caching-08",
        "caching-13",
        "caching-14",
        "caching-05",
        "caching-07",
    )
    async def test_fresh_results_are_served_for_the_same_request_only(self) -> None:
        peer = replies(self.read())
        client = await self.caching(peer)
        first = await client.read_resource("a")
        self.now += 0.999
        self.assertEqual(await client.read_resource("a", log_level="debug"), first)
        self.assertEqual(len(peer.requests), 1)
        await client.read_resource("b")
        await client.request("resources/read", {"uri": "a", "x": 1})
        self.assertEqual(len(peer.requests), 3)
        self.now += 0.001
        await client.read_resource("a")
        self.assertEqual(len(peer.requests), 4)
        await client.read_resource("a", refresh=True)
        self.assertEqual(len(peer.requests), 5)
        self.now += 3600
        await asyncio.sleep(0.02)
        self.assertEqual(len(peer.requests), 5)

    @spec("caching-06", "caching-09", "caching-10")
    async def test_cch_01_cch_02_odd_lifetimes(self) -> None:
        stale = (-5, 0, "1000", 1.5, True, None, [], -0.5, float("inf"))
        for ttl in stale[:-1]:
            peer = replies(self.read(ttlMs=ttl))
            client = await self.caching(peer)
            await client.read_resource("a")
            await client.read_resource("a")
            self.assertEqual(len(peer.requests), 2, ttl)
        absent = self.read()
        del absent["ttlMs"], absent["cacheScope"]
        peer = replies(absent)
        client = await self.caching(peer)
        await client.read_resource("a")
        await client.read_resource("a")
        self.assertEqual(len(peer.requests), 2)
        for ttl in (1e18, 10**30, 2.0):
            peer = replies(self.read(ttlMs=ttl))
            client = await self.caching(peer)
            await client.read_resource("a")
            await client.read_resource("a")
            self.assertEqual(len(peer.requests), 1, ttl)
            self.now += mcp_ref.MAX_TTL_MS / 1000
            await client.read_resource("a")
            self.assertEqual(len(peer.requests), 2, ttl)

    async def test_only_cacheable_methods_are_cached(self) -> None:
        peer = replies(complete(ttlMs=60_000, cacheScope="public"))
        client = await self.caching(peer)
        for _ in range(2):
            await client.call_tool("t")
            await client.get_prompt("p")
            await client.request("x/y")
        self.assertEqual(len(peer.requests), 6)

    @spec("caching-03")
    async def test_results_of_retries_are_not_cached(self) -> None:
        peer = replies(asking(state="s"), self.read())
        client = await self.caching(peer)
        await client.read_resource("a")
        await client.read_resource("a")
        self.assertEqual(len(peer.requests), 3)
        for extra in ({"inputResponses": {}}, {"requestState": "x"}):
            peer = replies(self.read())
            client = await self.caching(peer)
            for _ in range(2):
                await client.request("resources/read", {"uri": "a", **extra})
            self.assertEqual(len(peer.requests), 2)

    @spec("caching-18", "caching-19")
    async def test_private_results_stay_with_their_authorization(self) -> None:
        for scope, count in (("private", 2), ("public", 1), ("odd", 2)):
            peer = replies(self.read(cacheScope=scope))
            client = await self.caching(peer)
            for token in "ABAB":
                await client.read_resource("a", headers={"Authorization": token})
            self.assertEqual(len(peer.requests), count, scope)

    async def test_private_results_stay_with_the_credentials_of_the_transport(
        self,
    ) -> None:
        stub = await self.stub(
            lambda asked: http_answer(
                response(asked, contents=[], ttlMs=60_000, cacheScope="private")
            )
        )
        client = await self.caching(stub.url)
        for token in "ABAB":
            client._transport._credentials = {"Authorization": token}
            await client.read_resource("a")
        self.assertEqual(len(stub.asked), 2)

    async def test_callers_cannot_spoil_the_cache(self) -> None:
        peer = replies(self.read())
        client = await self.caching(peer)
        for _ in range(3):
            reply = await client.read_resource("a")
            self.assertEqual(reply.text, "t")
            reply["contents"].clear()

    async def test_cch_03_change_notifications_drop_what_they_are_about(self) -> None:
        peer = Peer(
            lambda request, send: self.read(
                tools=[], prompts=[], resources=[], resourceTemplates=[]
            )
        )
        client = await self.caching(peer)

        async def asked() -> set[str]:
            peer.requests.clear()
            await client.list_tools()
            await client.list_prompts()
            await client.list_resources()
            await client.list_resource_templates()
            await client.read_resource("a")
            await client.read_resource("b")
            return {
                f"{one.method} {one.params.get('uri', '')}".strip()
                for one in peer.requests
            }

        await asked()
        self.assertEqual(await asked(), set())
        cases: dict[str, tuple[JSON, set[str]]] = {
            "tools/list_changed": ({}, {"tools/list"}),
            "prompts/list_changed": ({}, {"prompts/list"}),
            "resources/list_changed": (
                {},
                {"resources/list", "resources/templates/list"},
            ),
            "resources/updated": ({"uri": "a"}, {"resources/read a"}),
        }
        for method, (params, dropped) in cases.items():
            client._outdate(f"notifications/{method}", params)
            self.assertEqual(await asked(), dropped, method)

    async def test_cch_03_a_result_overtaken_by_a_change_is_not_kept(self) -> None:
        async def script(request: Request, send: Any) -> JSON:
            if request.method == "subscriptions/listen":
                await send(acknowledged(request, toolsListChanged=True))
                await change.wait()
                await send(tagged(request, "tools/list_changed"))
                told.set()
                await asyncio.Event().wait()
            if not told.is_set():
                change.set()
                await told.wait()
            return self.read(tools=[])

        change, told = asyncio.Event(), asyncio.Event()
        peer = Peer(script)
        client = await self.caching(peer)
        async with client.listen(tools=True):
            for _ in range(3):
                await client.list_tools()
        self.assertEqual(peer.methods.count("tools/list"), 2)

    @spec("caching-22", "caching-23")
    async def test_cch_04_each_page_has_its_own_lifetime(self) -> None:
        pages = {
            None: {"nextCursor": "b", "ttlMs": 60_000, "cacheScope": "public"},
            "b": {"ttlMs": 1000, "cacheScope": "private"},
        }
        peer = Peer(
            lambda request, send: complete(
                prompts=[], **pages[request.params.get("cursor")]
            )
        )
        client = await self.caching(peer)
        await client.list_prompts()
        self.now += 2
        peer.requests.clear()
        await client.list_prompts()
        self.assertEqual([one.params.get("cursor") for one in peer.requests], ["b"])

    @spec("caching-17")
    async def test_stale_results_on_errors_when_allowed(self) -> None:
        def fail(request: Request, send: Any) -> JSON:
            raise TransportError("down")

        for allowed in (False, True):
            peer = replies(self.read())
            client = await self.caching(peer, stale_on_error=allowed)
            await client.read_resource("a")
            self.now += 10
            peer.script = fail
            if allowed:
                reply = await client.read_resource("a")
                self.assertTrue(reply.stale)
                self.assertEqual(reply.text, "t")
                client._outdate("notifications/resources/updated", {"uri": "a"})
            with self.assertRaises(TransportError):
                await client.read_resource("a")
            peer.script = lambda request, send: {"jsonrpc": "2.0", "id": 1}

    async def test_the_cache_is_bounded_and_keeps_what_is_used(self) -> None:
        peer = Peer(
            lambda request, send: self.read(x="y" * 1000, uri=request.params["uri"])
        )
        client = await self.caching(peer, cache_size=6000)
        for uri in "abcdeafga":
            reply = await client.read_resource(uri)
            self.assertEqual(reply["uri"], uri)
        self.assertLessEqual(client._cache._used, 6000)
        self.assertEqual([one.params["uri"] for one in peer.requests], [*"abcdefg"])
        await client.read_resource("b")
        self.assertEqual(peer.requests[-1].params["uri"], "b")
        small = await self.caching(peer, cache_size=100)
        await small.read_resource("a")
        self.assertEqual(small._cache._used, 0)


# --- Client: questions ----------------------------------------------------------------


class ClientQuestions(ClientCase):
    """basic/patterns/mrtr, client/*"""

    async def answering(self, peer: Any, **options: Any) -> Client:
        async def accept(client: Client, params: JSON) -> JSON:
            return {"action": "accept", "content": {}}

        options.setdefault("on_elicit", accept)
        return await self.client(peer, **options)

    @spec("mrtr-22", "mrtr-24", "mrtr-25", "mrtr-26", "mrtr-27", "mrtr-03", "tools-10")
    async def test_mrt_01_state_is_echoed_exactly_and_only_if_given(self) -> None:
        for state in ("", "a b\u2028", "x" * 1_000_000, '{"json": 1}', None):
            peer = replies(
                asking({"q": form_params()}, state),
                asking({"r": form_params()}, "two"),
                asking({"s": form_params()}),
                complete(),
            )
            client = await self.answering(peer)
            await client.call_tool("t", {"a": 1})
            first, second, third, fourth = peer.requests
            self.assertNotIn("requestState", first.params)
            self.assertNotIn("inputResponses", first.params)
            self.assertEqual(second.params.get("requestState"), state)
            self.assertEqual("requestState" in second.params, state is not None)
            self.assertEqual(list(second.params["inputResponses"]), ["q"])
            self.assertEqual(third.params["requestState"], "two")
            self.assertEqual(list(third.params["inputResponses"]), ["r"])
            self.assertNotIn("requestState", fourth.params)
            self.assertEqual(list(fourth.params["inputResponses"]), ["s"])
            self.assertEqual(len({one.id for one in peer.requests}), 4)
            for one in peer.requests:
                self.assertEqual(one.params["arguments"], {"a": 1})

    @spec("mrtr-28")
    async def test_answers_do_not_leak_into_parallel_requests(self) -> None:
        # C14
        answered = asyncio.Event()

        async def script(request: Request, send: Any) -> JSON:
            if "inputResponses" in request.params:
                answered.set()
            await asyncio.sleep(0)
            if (
                request.params["name"] == "asks"
                and "inputResponses" not in request.params
            ):
                return asking(
                    {"q": form_params()}, f"state of {request.params['arguments']}"
                )
            return complete(content=[])

        peer = Peer(script)
        client = await self.answering(peer)

        async def later(n: int) -> None:  # while answers are on their way
            await answered.wait()
            await client.call_tool("plain", {"n": n})

        await asyncio.gather(
            *(client.call_tool("asks", {"n": n}) for n in range(10)),
            *(client.call_tool("plain", {"n": n}) for n in range(10)),
            *(later(n) for n in range(10)),
        )
        for request in peer.requests:
            state = request.params.get("requestState")
            if request.params["name"] == "plain":
                self.assertIsNone(state)
                self.assertNotIn("inputResponses", request.params)
            elif state is not None:
                self.assertEqual(state, f"state of {request.params['arguments']}")

    @spec("sampling-27")
    async def test_mrt_02_the_last_allowed_round_counts(self) -> None:
        # C15
        question = asking({"q": form_params("again?")}, "s")
        peer = replies(question, question, question, complete(content=[]))
        client = await self.answering(peer, max_rounds=3)
        await client.call_tool("t")
        peer = replies(question)
        client = await self.answering(peer, max_rounds=3)
        with self.assertRaisesRegex(UnansweredInput, "3 rounds") as caught:
            await client.call_tool("t")
        self.assertEqual(caught.exception.requests, {"q": form_params("again?")})
        self.assertEqual(len(peer.requests), 4)

    @spec("mrtr-05", "mrtr-17")
    async def test_mrt_03_questions_where_none_are_allowed(self) -> None:
        question = asking({"q": form_params()})
        for method in ("tools/list", "server/discover", "completion/complete", "x/y"):
            client = await self.answering(replies(question))
            with self.assertRaisesRegex(InvalidResponse, "input_required"):
                await client.request(method)
        for broken in (asking(), asking(requests=[]), asking(requests="q")):
            client = await self.answering(replies(broken, complete()))
            with self.assertRaises(InvalidResponse):
                await client.call_tool("t")
        for method in ("tools/call", "prompts/get", "resources/read"):
            client = await self.answering(replies(question, complete()))
            await client.request(method)

    @spec("mrtr-18", "mrtr-19", "sampling-04", "elicitation-06")
    async def test_mrt_07_undeclared_and_unknown_questions_are_refused(self) -> None:
        # C15
        url = {"mode": "url", "url": "https://h.example/", "message": "m"}
        sample = {"messages": [], "maxTokens": 1}
        questions: list[JSON] = [
            form_params(),
            {"method": "elicitation/create", "params": url},
            {"method": "elicitation/create", "params": {"mode": "odd"}},
            {"method": "sampling/createMessage", "params": sample},
            {"method": "roots/list"},
            {"method": "ping"},
            {},
            "q",
            {"method": ["x"], "params": "y"},
            {"method": "elicitation/create", "params": []},
        ]

        def nobody(client: Client, params: JSON) -> JSON:
            self.fail("asked")

        for question in questions:
            peer = replies(asking({"q": question}, "s"), complete())
            client = await self.client(peer)
            with self.assertRaises(UnansweredInput) as caught:
                await client.call_tool("t")
            self.assertEqual(caught.exception.requests, {"q": question})
            self.assertEqual(len(peer.requests), 1)
        for options, question in (
            ({"on_elicit": nobody}, questions[1]),
            ({"on_url": nobody}, questions[0]),
            ({"on_elicit": nobody}, {"method": "ping"}),
            (
                {"on_sample": nobody},
                {"method": "sampling/createMessage", "params": {**sample, "tools": []}},
            ),
            ({"capabilities": {"elicitation": {"form": {}}}}, form_params()),
        ):
            client = await self.client(replies(asking({"q": question})), **options)
            with self.assertRaises(UnansweredInput):
                await client.call_tool("t")

    @spec("mrtr-23", "caching-15")
    async def test_nothing_to_answer_backs_off(self) -> None:
        chances = iter([0.0, 1.0, 0.5])
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        peer = replies(
            asking(state="a"), asking({}, "b"), asking(state="c"), complete()
        )
        client = await self.client(peer, retry_delay=1.0, chance=lambda: next(chances))
        with unittest.mock.patch.object(mcp_ref.asyncio, "sleep", sleep):
            await client.call_tool("t")
        self.assertEqual(slept, [0.5, 2.0, 3.0])
        self.assertNotIn("inputResponses", peer.requests[1].params)
        self.assertEqual(peer.requests[2].params["inputResponses"], {})
        self.assertEqual(mcp_ref.backoff(99, 1.0, lambda: 1.0), mcp_ref.RETRY_LIMIT)

    SCHEMA = {
        "name": {"type": "string", "default": "John"},
        "age": {"type": "integer", "default": 30, "minimum": 0},
        "score": {"type": "number", "default": 95.5},
        "ok": {"type": "boolean", "default": False},
        "free": {"type": "string"},
        "tags": {
            "type": "array",
            "items": {"type": "string", "enum": ["a", "b"]},
            "default": ["a"],
        },
    }

    async def elicit(self, answer: Any, question: JSON = None) -> JSON:
        """What is sent when the handler returns `answer`."""
        seen: list[Any] = []

        def handler(client: Client, params: JSON) -> Any:
            seen.append((client.label, params))
            return answer

        question = form_params(**self.SCHEMA) if question is None else question
        peer = replies(asking({"q": question}), complete())
        client = await self.client(peer, on_elicit=handler, on_url=handler)
        await client.call_tool("t")
        self.assertEqual(seen, [(client.label, question["params"])])
        return peer.requests[1].params["inputResponses"]["q"]

    @spec("elicitation-12", "elicitation-45", "elicitation-10")
    async def test_forms_are_filled_with_defaults_and_checked(self) -> None:
        defaults = {
            "name": "John",
            "age": 30,
            "score": 95.5,
            "ok": False,
            "tags": ["a"],
        }
        for content, more in (
            (None, {}),
            ({}, {}),
            ({"age": 7, "free": "x"}, {"age": 7, "free": "x"}),
            ({"name": ""}, {"name": ""}),
        ):
            answer = {"action": "accept", "content": content}
            found = await self.elicit(answer)
            self.assertEqual(
                found, {"action": "accept", "content": {**defaults, **more}}
            )
        for content in ({"age": "x"}, {"age": -1}, {"tags": ["c"]}):
            with self.assertRaisesRegex(ValueError, "does not fit"):
                await self.elicit({"action": "accept", "content": content})
        plain = form_params()
        del plain["params"]["mode"]
        self.assertEqual((await self.elicit("accept", plain))["action"], "accept")

    @spec("elicitation-28")
    async def test_mrt_05_declining_and_cancelling_carry_no_content(self) -> None:
        for answer in (
            "decline",
            "cancel",
            {"action": "decline", "content": {"age": "x"}},
            {"action": "cancel"},
        ):
            action = answer if isinstance(answer, str) else answer["action"]
            self.assertEqual(await self.elicit(answer), {"action": action})
        self.assertEqual(await self.elicit(None), {"action": "decline"})
        for schema in (None, {"type": 5}, {"properties": {"a": 1}}, []):
            broken = form_params()
            broken["params"]["requestedSchema"] = schema
            with self.assertRaisesRegex(InvalidResponse, "schema"):
                await self.elicit("accept", broken)
        for bad in ("reject", {"action": "yes"}, {}):
            with self.assertRaisesRegex(ValueError, "action"):
                await self.elicit(bad)

    @spec("elicitation-14", "elicitation-34", "elicitation-35", "elicitation-36")
    async def test_urls_need_consent_and_are_never_fetched(self) -> None:
        # C23
        stub = await self.stub(lambda asked: b"")
        question = {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "m", "url": stub.url},
        }
        for answer, action in (
            (True, "accept"),
            (False, "decline"),
            ("cancel", "cancel"),
        ):
            self.assertEqual(await self.elicit(answer, question), {"action": action})
        self.assertEqual(stub.connections, 0)
        bad = ("javascript:alert(1)", "file:///x", "https://", "", None, 5, "http://[")
        for url in bad:
            question["params"]["url"] = url
            with self.assertRaisesRegex(UnansweredInput, "to open"):
                await self.elicit(True, question)

    @spec("elicitation-39", "elicitation-40")
    async def test_suspicious_addresses_are_pointed_out(self) -> None:
        cases = {
            "https://example.com/a": 0,
            "http://127.0.0.1:8000/": 0,
            "http://example.com/": 1,
            "https://xn--pple-43d.com/": 1,
            "https://аpple.com/": 1,
            "https://bank.example@evil.example/": 1,
        }
        for url, count in cases.items():
            self.assertEqual(len(mcp_ref.url_warnings(url)), count, url)

    @spec("roots-03", "roots-04")
    async def test_roots_are_files_and_go_nowhere_else(self) -> None:
        peer = replies(asking({"q": {"method": "roots/list"}}), complete())
        roots = ["file:///home/u", "/tmp", {"uri": "file:///x", "name": "X"}]
        client = await self.client(peer, roots=roots)
        await client.call_tool("t")
        found = peer.requests[1].params["inputResponses"]["q"]["roots"]
        self.assertEqual(found[0], {"uri": "file:///home/u"})
        self.assertEqual(found[1], {"uri": pathlib.Path("/tmp").resolve().as_uri()})
        self.assertEqual(found[2], {"uri": "file:///x", "name": "X"})
        for bad in (
            {"uri": "https://x/"},
            "file:///a/../etc",
            {"uri": "file:///a/%2e%2e/etc"},
        ):
            with self.assertRaisesRegex(ValueError, "file://"):
                Client(peer, roots=[bad])

    async def test_sampling(self) -> None:
        params = {"messages": [], "maxTokens": 5}
        question = {"method": "sampling/createMessage", "params": params}
        good = {"role": "assistant", "content": {"type": "text"}, "model": "m"}
        for answer in (good, {"role": "assistant"}, None):
            peer = replies(asking({"q": question}), complete())
            client = await self.client(peer, on_sample=lambda c, p, a=answer: a)
            if answer is good:
                await client.call_tool("t")
                sent = peer.requests[1].params["inputResponses"]["q"]
                self.assertEqual(sent, good)
            else:
                with self.assertRaisesRegex(ValueError, "on_sample"):
                    await client.call_tool("t")

    async def test_several_questions_in_one_round(self) -> None:
        asked: list[str] = []

        async def handler(client: Client, params: JSON) -> str:
            asked.append(params["message"])
            return "decline"

        questions = {
            "b": form_params("1"),
            "a": form_params("2"),
            "c": {"method": "roots/list"},
        }
        peer = replies(asking(questions), complete())
        client = await self.client(peer, on_elicit=handler, roots=[])
        await client.call_tool("t")
        sent = peer.requests[1].params["inputResponses"]
        self.assertEqual(asked, ["1", "2"])
        self.assertEqual(list(sent), ["b", "a", "c"])

    async def test_the_users_time_does_not_count(self) -> None:
        async def slow(client: Client, params: JSON) -> str:
            await asyncio.sleep(0.04)
            return "decline"

        peer = replies(asking({"q": form_params()}), complete())
        client = await self.client(peer, on_elicit=slow, timeout=0.02)
        await client.call_tool("t")


# --- Client: listening ----------------------------------------------------------------


def acknowledged(request: Request, **honoured: JSON) -> JSON:
    return tagged(request, "subscriptions/acknowledged", notifications=honoured)


def tagged(request: Request, method: str, **params: JSON) -> JSON:
    """A notification of a subscription."""
    return notice(method, _meta={META_SUBSCRIPTION_ID: request.id}, **params)


class ClientListening(ClientCase):
    """basic/patterns/subscriptions"""

    @spec("subscriptions-04")
    async def test_sub_01_listening_begins_with_the_acknowledgement(self) -> None:
        go, change = asyncio.Event(), asyncio.Event()

        async def script(request: Request, send: Any) -> JSON:
            await go.wait()
            await send(acknowledged(request, toolsListChanged=True))
            await change.wait()
            await send(tagged(request, "tools/list_changed"))
            await asyncio.Event().wait()

        peer = Peer(script)
        client = await self.client(peer)
        listening = client.listen(tools=True, prompts=True, resources=["note://a"])
        entering = asyncio.create_task(listening.__aenter__())
        await asyncio.sleep(0.02)
        self.assertFalse(entering.done())
        go.set()
        with self.assertLogs("mcp_ref", "WARNING") as logs:
            changes = await entering
        self.assertIn("note://a", logs.output[0])
        self.assertEqual(changes.honoured, {"toolsListChanged": True})
        self.assertEqual(
            changes.refused,
            {"promptsListChanged": True, "resourceSubscriptions": ["note://a"]},
        )
        self.assertEqual(
            peer.requests[0].params["notifications"],
            {
                "toolsListChanged": True,
                "promptsListChanged": True,
                "resourceSubscriptions": ["note://a"],
            },
        )
        change.set()
        found = await self.soon(anext(changes))
        self.assertEqual(found.method, "notifications/tools/list_changed")
        await changes.aclose()
        self.assertEqual(peer.cancelled, [peer.requests[0].id])

    async def test_sub_01_an_acknowledgement_that_never_comes(self) -> None:
        async def hang(request: Request, send: Any) -> JSON:
            await asyncio.Event().wait()

        client = await self.client(Peer(hang))
        for relisten in (False, True):
            with self.assertRaises(TimeoutError):
                async with client.listen(tools=True, timeout=0.02, relisten=relisten):
                    self.fail("entered")

    async def test_no_timeout_after_the_acknowledgement(self) -> None:
        async def script(request: Request, send: Any) -> JSON:
            await send(acknowledged(request, toolsListChanged=True))
            await asyncio.sleep(0.05)
            await send(tagged(request, "tools/list_changed"))
            await asyncio.Event().wait()

        client = await self.client(Peer(script))
        async with client.listen(tools=True, timeout=0.02) as changes:
            await self.soon(anext(changes))

    @spec("subscriptions-08", "subscriptions-09")
    async def test_a_graceful_end_and_a_broken_stream_differ(self) -> None:
        for broken in (False, True):

            async def script(
                request: Request, send: Any, broken: bool = broken
            ) -> JSON:
                await send(acknowledged(request, toolsListChanged=True))
                await send(tagged(request, "tools/list_changed"))
                if broken:
                    raise TransportError("cut")
                return complete(_meta={META_SUBSCRIPTION_ID: request.id})

            client = await self.client(Peer(script))
            seen = []
            async with client.listen(tools=True) as changes:
                if broken:
                    with self.assertRaisesRegex(TransportError, "cut"):
                        async for change in changes:
                            seen.append(change)
                    self.assertFalse(changes.ended)
                else:
                    async for change in changes:
                        seen.append(change)
                    self.assertTrue(changes.ended)
            self.assertEqual(len(seen), 1)

    async def test_refusals_are_raised_on_entry(self) -> None:
        for error, kind in (
            (mcp_ref.MethodNotFound("no"), RemoteError),
            (TransportError("down"), TransportError),
        ):

            def script(request: Request, send: Any, error: Exception = error) -> JSON:
                raise error

            client = await self.client(Peer(script))
            for relisten in (False, True):
                with self.assertRaises(kind):
                    async with client.listen(tools=True, relisten=relisten):
                        self.fail("entered")

    @spec("subscriptions-10", "caching-16")
    async def test_sub_04_a_broken_stream_is_opened_again(self) -> None:
        rounds = itertools.count()

        async def script(request: Request, send: Any) -> JSON:
            if request.method == "prompts/list":
                return complete(prompts=[], ttlMs=60_000, cacheScope="public")
            number = next(rounds)
            if number == 1:
                raise TransportError("still down")
            await send(acknowledged(request, toolsListChanged=True))
            if number == 0:
                await cut.wait()
                raise TransportError("cut")
            await send(tagged(request, "tools/list_changed"))
            return complete()

        cut = asyncio.Event()
        peer = Peer(script)
        client = await self.client(peer)
        async with client.listen(tools=True, relisten=True) as changes:
            await client.list_prompts()
            await client.list_prompts()
            cut.set()
            seen = [change async for change in changes]
            await client.list_prompts()
        self.assertEqual(
            [change.method for change in seen],
            [mcp_ref.MAY_HAVE_MISSED.method, "notifications/tools/list_changed"],
        )
        listens = [one.id for one in peer.requests if "listen" in one.method]
        self.assertEqual(len(set(listens)), 3)
        self.assertEqual(peer.methods.count("prompts/list"), 2)

    async def test_sub_04_over_a_server_process_that_is_killed(self) -> None:
        marks = tempfile.mkdtemp()
        transport = await self.stdio(
            f"""
            number = len(os.listdir({marks!r}))
            open(os.path.join({marks!r}, str(number)), "w")
            if number == 1:
                sys.exit(1)
            m = hear()
            def tell(method, **params):
                params["_meta"] = {{"io.modelcontextprotocol/subscriptionId": m["id"]}}
                say(method="notifications/" + method, params=params)
            tell("subscriptions/acknowledged", notifications={{}})
            if number == 0:
                os.kill(os.getpid(), 9)
            tell("tools/list_changed")
            hear()
            """
        )
        client = await self.client(transport)
        async with client.listen(tools=True, relisten=True) as changes:
            first = await self.soon(anext(changes))
            second = await self.soon(anext(changes))
        self.assertEqual(first, mcp_ref.MAY_HAVE_MISSED)
        self.assertEqual(second.method, "notifications/tools/list_changed")

    async def test_closing_the_client_ends_relistening(self) -> None:
        transport = await self.stdio(
            """
            m = hear()
            meta = {"io.modelcontextprotocol/subscriptionId": m["id"]}
            say(method="notifications/subscriptions/acknowledged",
                params={"_meta": meta, "notifications": {"toolsListChanged": True}})
            hear()
            """
        )
        client = await self.client(transport)
        async with client.listen(tools=True, relisten=True) as changes:
            await client.aclose()
            with self.assertRaises(TransportError):
                await self.soon(anext(changes))
        self.assertIsNone(transport._process)

    @spec("subscriptions-06")
    async def test_several_at_once_and_strangers_are_ignored(self) -> None:
        async def script(request: Request, send: Any) -> JSON:
            (kind,) = request.params["notifications"]
            await send(acknowledged(request, **{kind: True}))
            await send(notice(f"{kind}/x", _meta={META_SUBSCRIPTION_ID: 999}))
            await send(
                notice(f"{kind}/x", _meta={META_SUBSCRIPTION_ID: str(request.id)})
            )
            await send(tagged(request, f"{kind}/good"))
            await send(notice(f"{kind}/untagged"))
            return complete()

        client = await self.client(Peer(script))
        with self.assertLogs("mcp_ref", "WARNING"):
            async with (
                client.listen(tools=True) as tools,
                client.listen(filters={"com.example/x": True}) as others,
            ):
                seen = [[one.method async for one in each] for each in (tools, others)]
        for kind, methods in zip(
            ("toolsListChanged", "com.example/x"), seen, strict=True
        ):
            self.assertEqual(
                methods,
                [f"notifications/{kind}/good", f"notifications/{kind}/untagged"],
            )

    async def test_a_slow_reader_costs_bounded_memory(self) -> None:
        async def script(request: Request, send: Any) -> JSON:
            await send(acknowledged(request, resourceSubscriptions=["a"]))
            for number in range(5000):
                await send(tagged(request, "resources/updated", uri="a"))
                await send(tagged(request, "resources/updated", uri=f"a/{number}"))
            return complete()

        client = await self.client(Peer(script))
        async with client.listen(resources=["a"]) as changes:
            seen = [change async for change in changes]
        self.assertLessEqual(len(seen), mcp_ref.CHANGES_QUEUED + 1)
        self.assertIn(mcp_ref.MAY_HAVE_MISSED, seen)
        self.assertEqual(seen[-1].params["uri"], "a/4999")

    async def test_over_http(self) -> None:
        async def answer(asked: Asked) -> None:
            request = Request(asked.id, "", {})
            asked.writer.write(
                stream(
                    event(**acknowledged(request, toolsListChanged=True)),
                    b":\n\n",
                    event(**tagged(request, "tools/list_changed")),
                )
            )
            if end == "cancelled":
                ended = notice("cancelled", requestId=asked.id)
                asked.writer.write(event(**ended))
            elif end == "result":
                asked.writer.write(b"data: " + response(asked) + b"\n\n")
            elif end == "cut":
                asked.writer.close()

        for end in ("cancelled", "result", "cut", "leave"):
            stub = await self.stub(answer)
            client = await self.client(stub.url)
            async with client.listen(tools=True) as changes:
                await self.soon(anext(changes))
                if end == "cut":
                    with self.assertRaises(TransportError):
                        await self.soon(anext(changes))
                elif end != "leave":
                    with self.assertRaises(StopAsyncIteration):
                        await self.soon(anext(changes))
            await self.soon(stub.closed.wait())


# --- several servers ------------------------------------------------------------------


class ClientGroups(ClientCase):
    """ClientGroup, load_clients"""

    def serving(self, *names: str) -> Peer:
        def script(request: Request, send: Any) -> JSON:
            if request.method == "tools/list":
                tools = [
                    {
                        "name": name,
                        "description": "d",
                        "inputSchema": {"type": "object"},
                    }
                    for name in names
                ]
                return complete(tools=tools)
            if request.method == "server/discover":
                return discovered()
            return complete(content=[{"type": "text", "text": request.params["name"]}])

        return Peer(script)

    @spec("tools-20")
    async def test_names_are_unambiguous_and_calls_are_routed(self) -> None:
        peers = {"a": self.serving("search", "x/y"), "b": self.serving("search")}
        group = await self.enter.enter_async_context(
            ClientGroup({name: Client(peer) for name, peer in peers.items()})
        )
        names = [tool["name"] for tool in await group.list_tools()]
        self.assertEqual(names, ["a__search", "a__x_y", "b__search"])
        self.assertEqual((await group.call_tool("a__x_y")).text, "x/y")
        self.assertEqual(peers["b"].methods.count("tools/call"), 0)
        with self.assertRaises(LookupError):
            await group.call_tool("nobody")

    async def test_names_suit_model_apis_and_stay_the_same(self) -> None:
        long = ["t" * 100 + end for end in "ab"]
        peer = self.serving("p.q", "p/q", *long)
        group = await self.enter.enter_async_context(ClientGroup({"s": Client(peer)}))
        first = [tool["name"] for tool in await group.list_tools()]
        self.assertEqual(len(set(first)), 4)
        for name in first:
            self.assertRegex(name, r"\A[A-Za-z0-9_-]{1,64}\Z")
        self.assertEqual([tool["name"] for tool in await group.list_tools()], first)
        for name, tool in zip(first, ["p.q", "p/q", *long], strict=True):
            self.assertEqual((await group.call_tool(name)).text, tool)
        anthropic = (await group.model_tools())[0]
        self.assertEqual(set(anthropic), {"name", "description", "input_schema"})
        openai = (await group.model_tools("openai"))[0]
        self.assertEqual(openai["type"], "function")
        self.assertEqual(openai["function"]["parameters"], {"type": "object"})

    async def test_a_dead_server_does_not_take_the_others_down(self) -> None:
        def down(request: Request, send: Any) -> JSON:
            raise TransportError("down")

        dead = Peer(down)
        clients = {"good": Client(self.serving("t")), "dead": Client(dead)}
        with self.assertLogs("mcp_ref", "WARNING"):
            group = await self.enter.enter_async_context(ClientGroup(clients))
            names = [tool["name"] for tool in await group.list_tools()]
        self.assertEqual(names, ["good__t"])
        self.assertEqual(list(group.failed), ["dead"])
        await group.call_tool("good__t")
        dead.script = self.serving("u").script
        names = [tool["name"] for tool in await group.list_tools()]
        self.assertEqual(names, ["good__t", "dead__u"])
        self.assertEqual(group.failed, {})

    async def test_mcp_servers_files(self) -> None:
        config = {
            "mcpServers": {
                "files": {"command": "npx", "args": ["-y", "x"], "env": {"A": "1"}},
                "web": {"type": "http", "url": "https://h/mcp", "headers": {"X": "1"}},
            }
        }
        clients = mcp_ref.load_clients(config, timeout=5)
        self.assertEqual(clients["files"]._transport.command, ["npx", "-y", "x"])
        self.assertEqual(clients["files"]._transport._env["A"], "1")
        self.assertEqual(clients["web"].label, "https://h/mcp")
        self.assertEqual(clients["web"]._transport._headers, {"X": "1"})
        self.assertEqual(
            list(mcp_ref.load_clients(config["mcpServers"])), list(clients)
        )
        with self.assertRaisesRegex(ValueError, "'bad'"):
            mcp_ref.load_clients({"bad": {}})


# --- without await --------------------------------------------------------------------


class BlockingClient(unittest.TestCase):
    """SyncClient"""

    def test_the_same_methods_without_await(self) -> None:
        server = mcp_ref.demo_server()
        with SyncClient(server, on_elicit=self.blocking) as client:
            names = {tool["name"] for tool in client.list_tools()}
            self.assertIn("table_book", names)
            reply = client.call_tool("table_book", {"guests": 3})
            self.assertIn("2026-10-10", reply.text)
            self.assertIn("T", client.read_resource("clock://now").text)
            with self.assertRaises(RemoteError):
                client.request("no/such")
            with client.listen(resources=["clock://now"]) as changes:
                client.call_tool("clock_tick")
                self.assertIn("updated", next(changes).method)
        with self.assertRaisesRegex(TransportError, "closed"):
            client.list_tools()
        client.close()

    def blocking(self, client: Client, params: JSON) -> JSON:
        time.sleep(0.01)
        self.assertNotEqual(threading.current_thread().name, "mcp_ref client")
        return {"action": "accept", "content": {"day": "2026-10-10"}}

    def test_from_any_thread_and_close_wakes_who_waits(self) -> None:
        async def hang(request: Request, send: Any) -> JSON:
            await asyncio.Event().wait()

        peer = Peer(hang)
        client = SyncClient(peer, discover=False)
        failures: list[Exception] = []

        def call() -> None:
            try:
                client.call_tool("t", timeout=None)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        while len(peer.requests) < 2:
            time.sleep(0.001)
        client.close()
        for thread in threads:
            thread.join(SOON)
        self.assertEqual([type(one) for one in failures], [TransportError] * 2)

    def test_a_failed_entry_leaves_no_thread(self) -> None:
        with self.assertRaises(TransportError):
            SyncClient(["missing-binary-xyz"]).__enter__()
        names = [thread.name for thread in threading.enumerate()]
        self.assertNotIn("mcp_ref client", names)

    def test_a_listen_stream_that_ends_ends_the_loop(self) -> None:
        async def script(request: Request, send: Any) -> JSON:
            await send(acknowledged(request, toolsListChanged=True))
            await send(tagged(request, "tools/list_changed"))
            return complete()

        with (
            SyncClient(Peer(script), discover=False) as client,
            client.listen(tools=True) as changes,
        ):
            self.assertEqual(len(list(changes)), 1)


# --- commands -------------------------------------------------------------------------


class ClientCommands(unittest.TestCase):
    """python mcp_ref.py inspect, call, read, prompt, complete, listen, tour"""

    DEMO = "demo"  # reached in memory, which saves a process per command

    def run_command(self, *arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        target = mcp_ref._target

        def demo(text: str) -> Any:
            return mcp_ref.demo_server() if text == self.DEMO else target(text)

        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            unittest.mock.patch.object(mcp_ref, "_target", demo),
        ):
            try:
                status = mcp_ref.main(arguments)
            except SystemExit as error:
                status = int(error.code or 0)
        return status, out.getvalue(), err.getvalue()

    def test_call(self) -> None:
        cases: list[tuple[list[str], int, str]] = [
            (["weather_current", "location=Paris"], 0, "sunny"),
            (["weather_current", "--args", '{"location": "Tokyo"}'], 0, "clear"),
            (
                ["countdown", "steps:=2", "--timeout", "5", "seconds:=0.0"],
                0,
                "lift-off",
            ),
            (["weather_current", "location=Atlantis"], 1, "No data"),
            (["table_book", "--answer", "day=2026-10-10", "guests:=4"], 0, "for 4 on"),
            (["table_book"], 0, "Nothing was booked"),
            (["no_such_tool"], 3, ""),
            (["countdown", "steps:=zwei"], 2, ""),
            (["countdown", "steps"], 2, ""),
            (["countdown", "--args", "[]"], 2, ""),
        ]
        for arguments, status, text in cases:
            with self.subTest(arguments):
                found, out, err = self.run_command("call", self.DEMO, *arguments)
                self.assertEqual((found, text in out), (status, True), out + err)

    def test_targets(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a server.py")
            with open(path, "w") as file:
                file.write(
                    f"import sys\nsys.path.insert(0, {os.path.dirname(MODULE)!r})\n"
                    "from mcp_ref import demo_server\ndemo_server().run()\n"
                )
            for target in (path, f"{sys.executable} '{path}'"):
                arguments = ("call", target, "weather_current", "location=Paris")
                status, out, err = self.run_command(*arguments)
                self.assertEqual((status, "sunny" in out), (0, True), err)
        self.assertEqual(mcp_ref._target("https://h/mcp"), "https://h/mcp")

    def test_json_and_trace(self) -> None:
        status, out, err = self.run_command(
            "call", self.DEMO, "weather_current", "location=Paris", "--json", "--trace"
        )
        self.assertEqual(status, 0)
        self.assertEqual(json.loads(out)["structuredContent"]["conditions"], "sunny")
        lines = err.splitlines()
        self.assertEqual([line.split()[1] for line in lines], ["-->", "<--"] * 2)
        for line in lines:
            self.assertIn("id", json.loads(line[line.index("{") :]))

    def test_the_other_commands(self) -> None:
        cases = {
            ("inspect",): ["Demo of mcp_ref", "weather_current(location, [units])"],
            ("inspect", "--json"): ['"server"', '"tools"'],
            ("read", "clock://now"): ["T", ":"],
            ("prompt", "plan_day", "city=Paris"): [
                "user: Plan a relaxed day in Paris."
            ],
            ("complete", "plan_day", "city", "p"): ["paris"],
            ("complete", "city://{name}", "name", "t", "--json"): ["tokyo"],
        }
        for (command, *rest), texts in cases.items():
            with self.subTest(command):
                status, out, err = self.run_command(command, self.DEMO, *rest)
                self.assertEqual(status, 0, err)
                for text in texts:
                    self.assertIn(text, out)

    def test_failures_have_a_line_and_a_status(self) -> None:
        cases = [
            (["call", "http://127.0.0.1:1/mcp", "t"], 3, "Cannot connect"),
            (["call", "missing-binary-xyz", "t"], 3, "Command not found"),
            (["read", self.DEMO, "clock://never"], 3, "-32602"),
            (["call", self.DEMO, "t", "--header", "bad"], 2, "NAME:VALUE"),
            (["call"], 2, "usage"),
        ]
        for arguments, status, text in cases:
            found, out, err = self.run_command(*arguments)
            self.assertEqual(found, status, err)
            self.assertIn(text, err)
            self.assertNotIn("Traceback", err)

    def test_binary_content_goes_to_a_file_only(self) -> None:
        code = """
            while True:
                m = hear()
                block = {"type": "image", "data": "AAEC/w==", "mimeType": "image/png"}
                done(m["id"], supportedVersions=["2026-07-28"], capabilities={},
                     content=[block])
        """
        target = mcp_ref.shlex.join(child(code))
        status, out, err = self.run_command("call", target, "t")
        self.assertEqual((status, out), (0, ""))
        self.assertIn("image/png", err)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.png")
            status, out, err = self.run_command("call", target, "t", "--out", path)
            with open(path, "rb") as file:
                self.assertEqual(file.read(), b"\0\1\2\xff")

    def test_the_type_of_binary_content_cannot_drive_the_terminal(self) -> None:
        peer = Peer(lambda request, send: discovered(content=[block]))
        block = {"type": "image", "data": "AAEC", "mimeType": "image/\x1b[2J"}
        with unittest.mock.patch.object(mcp_ref, "demo_server", lambda: peer):
            status, out, err = self.run_command("call", self.DEMO, "t")
        self.assertEqual((status, out), (0, ""))
        self.assertIn("[image/\\x1b[2J, 3 bytes", err)

    def test_malformed_answers_are_no_traceback(self) -> None:
        capabilities = {"tools": {}, "prompts": {}, "resources": {}}

        def script(request: Request, send: Any) -> JSON:
            odd = ["x", {"name": 5}, {}]
            lists = dict.fromkeys(("prompts", "resources", "resourceTemplates"), odd)
            return discovered(capabilities=capabilities, tools=odd, **lists)

        peer = Peer(script)
        with unittest.mock.patch.object(mcp_ref, "demo_server", lambda: peer):
            status, out, err = self.run_command("inspect", self.DEMO)
        self.assertEqual(status, 3)
        self.assertIn("unusable answer", err)

    def test_text_of_a_server_cannot_drive_the_terminal(self) -> None:
        self.assertEqual(mcp_ref._safe("a\x1b[2Jb\tc\nd\x9b"), "a\\x1b[2Jb\tc\nd\\x9b")

    def test_listen(self) -> None:
        code = """
            m = hear()
            done(m["id"], supportedVersions=["2026-07-28"], capabilities={})
            m = hear()
            def tell(method, **params):
                params["_meta"] = {"io.modelcontextprotocol/subscriptionId": m["id"]}
                say(method="notifications/" + method, params=params)
            tell("subscriptions/acknowledged", notifications={"toolsListChanged": True})
            tell("tools/list_changed")
            tell("resources/updated", uri="note://a")
            hear()
        """
        target = mcp_ref.shlex.join(child(code))
        arguments = ["listen", target, "--tools", "note://a", "--count", "2"]
        status, out, err = self.run_command(*arguments)
        self.assertEqual(status, 0)
        lines = [
            "notifications/tools/list_changed",
            "notifications/resources/updated note://a",
        ]
        self.assertEqual(out.splitlines(), lines)
        status, out, err = self.run_command(*arguments, "--json")
        self.assertEqual(json.loads(out.splitlines()[1])["params"]["uri"], "note://a")

    def test_tour(self) -> None:
        with unittest.mock.patch.dict(os.environ):
            status, out, err = self.run_command("tour", "--plain")
        self.assertEqual(status, 0, err)
        for text in (
            "10. ",
            "server/discover",
            "notifications/progress",
            "input_required",
            "requestState",
            "subscriptions/acknowledged",
            "resources/updated",
            "Mcp-Name: weather_current",
            "HTTP status 404",
        ):
            self.assertIn(text, out)
        self.assertNotIn("\x1b", out)

    @spec("elicitation-26", "elicitation-29", "elicitation-36", "elicitation-37")
    def test_the_terminal_shows_who_asks_and_the_whole_address(self) -> None:
        client = Client(["some-server", "--x"])
        url = "https://user@xn--evil.example/" + "p" * 300 + "?q=\x1b[0m"
        params = {"mode": "url", "message": "please", "url": url}
        for typed, opened in (("y", 1), ("yes", 1), ("", 0), ("n", 0), (None, 0)):
            err = io.StringIO()
            with (
                contextlib.redirect_stderr(err),
                unittest.mock.patch.object(mcp_ref, "_ask", lambda prompt, t=typed: t),
                unittest.mock.patch("webbrowser.open") as browser,
            ):
                agreed = asyncio.run(mcp_ref._consent(client, params))
            self.assertEqual((agreed, browser.call_count), (bool(opened), opened))
            shown = err.getvalue()
            self.assertIn("some-server --x", shown)
            self.assertIn("p" * 300, shown)
            self.assertIn("Beware", shown)
            self.assertNotIn("\x1b", shown)

    def test_forms_in_the_terminal(self) -> None:
        schema: JSON = {
            "type": "object",
            "required": ["n"],
            "properties": {
                "n": {"type": "integer", "title": "How many"},
                "b": {"type": "boolean", "default": True},
                "s": {"type": "string", "enum": ["x", "y"]},
                "a": {
                    "type": "array",
                    "items": {"anyOf": [{"const": "p", "title": "P"}]},
                },
                "skipped": {"type": "string", "default": "d"},
            },
        }
        params = {"message": "m", "requestedSchema": schema}
        client = Client(["server"])
        prompts: list[str] = []

        def fill(*typed: Any) -> JSON:
            left = iter(typed)

            def ask(prompt: str) -> Any:
                prompts.append(prompt)
                return next(left)

            with (
                contextlib.redirect_stderr(io.StringIO()),
                unittest.mock.patch.object(mcp_ref, "_ask", ask),
            ):
                return asyncio.run(mcp_ref._fill_in({"s": "y"}, client, params))

        content = {"n": 3, "b": False, "s": "y", "a": ["p", "q"]}
        found = fill("3", "no", "p, q", "")
        self.assertEqual(found, {"action": "accept", "content": content})
        self.assertIn("How many", prompts[0])
        self.assertIn("p (P)", prompts[2])
        self.assertEqual(fill("!"), "decline")
        self.assertEqual(fill(None), "decline")
        del schema["required"]
        found = fill(None, None, None, None)
        self.assertEqual(found, {"action": "accept", "content": {"s": "y"}})


# --- form: what holds for the files themselves --------------------------------------------


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    """Parse a file once for all tests of form."""
    return ast.parse(path.read_text(encoding="utf-8"))


class Form(unittest.TestCase):
    """Imports, layers, names, lengths, clause ids, and the corpora beside us."""

    SOURCE = pathlib.Path(mcp_ref.__file__)
    EXAMPLES = sorted((HERE / "examples").glob("*.py"))
    NOTES = HERE / "SPEC_NOTES.md"
    README = HERE / "README.md"
    MESSAGES = SHARED / "spec" / "schema" / "examples"
    FAMILIES = (
        "auth-discovery auth-registration auth-security auth base caching cancellation "
        "completion discover elicitation http logging mrtr pagination patterns progress "
        "prompts resources roots sampling stdio subscriptions tools transports versioning"
    )
    CLAUSE = re.compile(
        rf"(?<![\w-])((?:{'|'.join(FAMILIES.split())})-)(\d\d)\b(?: to \1(\d\d)\b)?"
    )
    DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    # The banners of sections whose code is pure: no sockets, processes, threads, clock.
    # In "4  Transports", the part before the second banner: the rules of headers.
    PURE = re.compile(r"# (?:([12367])  |Appendix ([AB])\b|--- (header mirroring) )")
    BANNER = re.compile(r"# (?:\d  |Appendix [A-Z]\b)")
    # A lock is allowed: it starts no thread, and "from any thread" takes one.
    BANNED = re.compile(
        r"(?:socket|ssl|select|selectors|signal|subprocess|multiprocessing|_thread)\.\w+|"
        r"threading\.(?!R?Lock\b)\w+|open\(|input\(|print\(|"
        r"time\.\w+|(?:\w+\.)*datetime\.(?:now|utcnow|today)|(?:\w+\.)*date\.today|"
        r"asyncio\.(?:create_subprocess_\w+|start_server|start_unix_server|"
        r"open_connection|open_unix_connection|to_thread|run|sleep)|"
        r"os\.(?:read|write|pipe|dup2?|fork|system|popen|exec\w+|spawn\w+)|"
        r"sys\.(?:stdin|stdout|stderr|exit)|random\.\w+"
    )

    @classmethod
    def setUpClass(cls) -> None:
        cls.text = cls.SOURCE.read_text(encoding="utf-8")
        cls.lines = cls.text.splitlines()
        cls.tree = ast.parse(cls.text)

    def clauses_in(self, text: str) -> set[str]:
        """Return the clause ids that a text cites; "a-01 to a-03" are three."""
        return {
            f"{family}{number:02}"
            for family, first, last in self.CLAUSE.findall(text)
            for number in range(int(first), int(last or first) + 1)
        }

    def clauses_on_tests(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for case in list(globals().values()):
            if isinstance(case, type) and issubclass(case, unittest.TestCase):
                for name in dir(case):
                    for clause in getattr(getattr(case, name), "clauses", ()):
                        found[clause] = f"{case.__name__}.{name}"
        return found

    # --- imports and layers -----------------------------------------------------------

    def test_everything_imported_is_in_the_standard_library(self) -> None:
        for path in (self.SOURCE, *self.EXAMPLES):
            known = set(sys.stdlib_module_names)
            if path != self.SOURCE:
                known |= {"mcp_ref", *(one.stem for one in self.EXAMPLES)}
            for node in ast.walk(parsed(path)):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    self.assertEqual(node.level, 0, f"{path.name}:{node.lineno}")
                    names = [node.module or ""]
                elif isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    if called in ("importlib.import_module", "__import__"):
                        first = node.args[0]
                        if isinstance(first, ast.Constant):
                            names = [str(first.value)]
                for name in names:
                    with self.subTest(path.name, name=name):
                        self.assertIn(name.partition(".")[0], known)

    def test_importing_is_quiet_and_takes_no_http_server(self) -> None:
        """DEP-02: no other package, no warning, nothing heavy."""
        check = (
            f"import sys; sys.path.insert(0, {str(self.SOURCE.parent)!r});"
            "import mcp_ref;"
            "late = {'http.server', 'argparse', 'email.parser', 'unittest'};"
            "print(sorted(late & sys.modules.keys()))"
        )
        flags = ["-I", "-S", "-W", "error", "-X", "dev"]
        for more in ([], ["-OO"]):
            with self.subTest(more):
                done = subprocess.run(
                    [sys.executable, *flags, *more, "-c", check],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                self.assertEqual((done.stdout, done.stderr), ("[]\n", ""))

    def test_nothing_relies_on_assert(self) -> None:
        """DEP-03: python -O takes asserts away."""
        found = [
            node.lineno for node in ast.walk(self.tree) if type(node) is ast.Assert
        ]
        self.assertEqual(found, [])

    def pure_lines(self) -> set[int]:
        """Return the numbers of the lines that belong to a pure section."""
        pure, found = False, set()
        for number, line in enumerate(self.lines, 1):
            if match := self.PURE.match(line):
                pure = True
                header_rules = bool(match[3])
            elif self.BANNER.match(line):
                pure = False
            elif pure and header_rules and line.startswith("# --- "):
                pure = False
            if pure:
                found.add(number)
        return found

    def test_pure_sections_name_no_sockets_processes_threads_or_clock(self) -> None:
        """Default parameters may: there the real clock is handed in."""
        pure = self.pure_lines()
        self.assertGreater(len(pure), 2000, "the banners are not found any more")
        defaults = {
            id(inner)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.arguments)
            for default in (*node.defaults, *node.kw_defaults)
            if default is not None
            for inner in ast.walk(default)
        }
        for node in ast.walk(self.tree):
            if getattr(node, "lineno", 0) not in pure or id(node) in defaults:
                continue
            dotted = ""
            if isinstance(node, ast.Attribute):
                dotted = ast.unparse(node)
            elif isinstance(node, ast.Call):
                dotted = ast.unparse(node.func) + "("
            if self.BANNED.fullmatch(dotted):
                with self.subTest(line=node.lineno):
                    self.fail(dotted)

    # --- names and lengths --------------------------------------------------------------

    def test_public_names_are_listed_in_the_order_of_sections_and_documented(
        self,
    ) -> None:
        listed = getattr(mcp_ref, "__all__", None)
        self.assertIsNotNone(listed, "__all__ is missing")
        self.assertEqual(len(listed), len(set(listed)))
        banners = [n for n, line in enumerate(self.lines, 1) if self.BANNER.match(line)]
        defined: dict[str, int] = {}
        for node in self.tree.body:
            if isinstance(node, self.DEFINITIONS):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [ast.unparse(target) for target in node.targets]
            elif isinstance(node, ast.AnnAssign):
                names = [ast.unparse(node.target)]
            else:
                continue
            for name in names:
                defined.setdefault(name, sum(n < node.lineno for n in banners))
        for name in listed:
            with self.subTest(name):
                self.assertFalse(name.startswith("_"))
                self.assertIn(name, defined)
                value = getattr(mcp_ref, name)
                if isinstance(value, (type, types.FunctionType)):
                    self.assertTrue(value.__doc__)
        sections = [defined.get(name, 0) for name in listed]
        self.assertEqual(sections, sorted(sections))

    def test_public_functions_classes_and_methods_have_docstrings(self) -> None:
        for node in self.tree.body:
            if not isinstance(node, self.DEFINITIONS) or node.name.startswith("_"):
                continue
            for one in [node, *(node.body if isinstance(node, ast.ClassDef) else [])]:
                if isinstance(one, self.DEFINITIONS) and not one.name.startswith("_"):
                    marks = [ast.unparse(mark) for mark in one.decorator_list]
                    if "typing.overload" in marks:
                        continue
                    with self.subTest(f"{node.name}.{one.name}", line=one.lineno):
                        self.assertTrue(ast.get_docstring(one))

    def test_no_function_is_longer_than_60_lines(self) -> None:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        for path in (self.SOURCE, *self.EXAMPLES):
            for node in ast.walk(parsed(path)):
                if not isinstance(node, functions):
                    continue
                length = (node.end_lineno or 0) - node.lineno + 1
                if path != self.SOURCE:  # a server's tools are functions of their own
                    inner = [one for one in node.body if isinstance(one, functions)]
                    length -= sum((o.end_lineno or 0) - o.lineno + 1 for o in inner)
                with self.subTest(path.name, function=node.name):
                    self.assertLessEqual(length, 60)

    def test_names_are_defined_once(self) -> None:
        """A file put together from sections must not lose one to another."""
        for path in (self.SOURCE, pathlib.Path(__file__)):
            seen: dict[str, int] = {}
            for node in parsed(path).body:
                names: list[str] = []
                if isinstance(node, self.DEFINITIONS):
                    names = [node.name]
                elif isinstance(node, ast.Assign):
                    names = [
                        one.id
                        for target in node.targets
                        for one in ast.walk(target)
                        if isinstance(one, ast.Name)
                    ]
                for name in names:
                    with self.subTest(path.name, name=name, line=node.lineno):
                        self.assertNotIn(name, seen)
                    seen[name] = node.lineno

    def test_lines_are_at_most_88_columns(self) -> None:
        long = [n for n, line in enumerate(self.lines, 1) if len(line) > 88]
        self.assertEqual(long, [])

    # --- clauses ------------------------------------------------------------------------

    def cited(self) -> set[str]:
        found: set[str] = set()
        with open(self.SOURCE, "rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type in (tokenize.COMMENT, tokenize.STRING):
                    found |= self.clauses_in(token.string)
        return found

    def test_every_clause_on_a_test_or_in_the_module_is_in_the_notes(self) -> None:
        if not self.NOTES.exists():
            self.skipTest("SPEC_NOTES.md is not here")
        noted = self.clauses_in(self.NOTES.read_text(encoding="utf-8"))
        for clause, test in sorted(self.clauses_on_tests().items()):
            with self.subTest(clause, test=test):
                self.assertIn(clause, noted)
        for clause in sorted(self.cited()):
            with self.subTest(clause):
                self.assertIn(clause, noted)

    def test_every_clause_exists_in_the_specification(self) -> None:
        path = SHARED / "spec" / "requirements.tsv"
        if not path.exists():
            self.skipTest("../shared/spec/requirements.tsv is not here")
        rows = path.read_text(encoding="utf-8").splitlines()[1:]
        known = {row.partition("\t")[0] for row in rows}
        families = {clause.rpartition("-")[0] for clause in known}
        self.assertEqual(families, set(self.FAMILIES.split()))
        for clause, test in sorted(self.clauses_on_tests().items()):
            with self.subTest(clause, test=test):
                self.assertIn(clause, known)
        for clause in sorted(self.cited()):
            with self.subTest(clause):
                self.assertIn(clause, known)

    # --- documents and corpora ----------------------------------------------------------

    def test_the_python_blocks_of_the_readme_run(self) -> None:
        """Each as a module of its own that finds mcp_ref.py; `__main__` does not run."""
        if not self.README.exists():
            self.skipTest("README.md is not here")
        text = self.README.read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        self.assertTrue(blocks)
        with tempfile.TemporaryDirectory() as folder:
            for n, block in enumerate(blocks):
                name = f"readme_{n}"
                pathlib.Path(folder, f"{name}.py").write_text(block, encoding="utf-8")
                with self.subTest(block[:60]):
                    done = subprocess.run(
                        [sys.executable, "-W", "error", "-c", f"import {name}"],
                        cwd=self.SOURCE.parent,
                        env={**os.environ, "PYTHONPATH": folder},
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        text=True,
                        timeout=20,
                        check=False,
                    )
                    self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_program_in_the_docstring_runs(self) -> None:
        program = re.search(r"A server:\n\n(.*?)\n\nTry it", mcp_ref.__doc__, re.DOTALL)
        self.assertIsNotNone(program)
        space: dict[str, Any] = {"__name__": "copied"}
        exec(textwrap.dedent(program[1]), space)
        self.assertEqual(space["add"](1, 2), 3)

    def test_the_examples_of_the_schema_are_messages_to_us(self) -> None:
        """Each can be sent and received, and fits its type by our own engine."""
        if not self.MESSAGES.is_dir():
            self.skipTest("../shared/spec/schema/examples is not here")
        checked = 0
        for path in sorted(self.MESSAGES.glob("*/*.json")):
            with self.subTest(f"{path.parent.name}/{path.name}"):
                value = json.loads(path.read_text(encoding="utf-8"))
                Wire.check(path.parent.name, value)
                self.assertEqual(self.carried(value), value)
                checked += 1
        self.assertGreater(checked, 80)

    def carried(self, value: JSON) -> JSON:
        """Send a value, inside a message if it is none, and return what arrives."""
        if isinstance(value, dict) and "jsonrpc" in value:
            message = mcp_ref.decode(mcp_ref.encode(value))
            if "method" in value:
                found = mcp_ref.read_message(message)
                self.assertEqual(found.method, value["method"])
                self.assertEqual(found.params, value.get("params", {}))
                self.assertEqual(getattr(found, "id", None), value.get("id"))
            return message
        data = mcp_ref.encode(mcp_ref.result_response(1, value))
        return mcp_ref.decode(data)["result"]


# --- every message that the pages of the specification show -------------------------------


class SpecPages(Case):
    """The examples in the pages: accepted, or refused for a reason that is stated."""

    PAGES = SHARED / "spec" / "2026-07-28"
    # Why an example is not a message that we would exchange as it stands.
    EXPLAINED = {
        "basic/patterns/mrtr: // Elicitation request.": "comments are not JSON",
        'server/utilities/pagination: "resources": [...],': "an ellipsis is not JSON",
        "basic/versioning: draft-07": "another dialect, refused by name",
    }

    def blocks(self) -> Iterator[tuple[str, str, JSON]]:
        """Yield page, text and value of each JSON example; None for what is not JSON."""
        for path in sorted(self.PAGES.rglob("*.mdx")):
            page = path.relative_to(self.PAGES).with_suffix("").as_posix()
            text = path.read_text(encoding="utf-8")
            for block in re.findall(r"^```jsonc?\n(.*?)^```", text, re.S | re.M):
                value = None
                with contextlib.suppress(ValueError):
                    value = json.loads(block)
                yield page, block, value

    def setUp(self) -> None:
        super().setUp()
        if not self.PAGES.is_dir():
            self.skipTest("../shared/spec is not here")

    def test_examples_that_are_not_json_are_known(self) -> None:
        for page, block, value in self.blocks():
            if value is None and '"jsonrpc"' in block:
                reasons = [
                    reason
                    for key, reason in self.EXPLAINED.items()
                    if page == key.split(": ", 1)[0] and key.split(": ", 1)[1] in block
                ]
                with self.subTest(page, block=block[:80]):
                    self.assertTrue(reasons, "an example that we cannot read")

    def test_messages_pass_the_decoder_and_the_official_schema(self) -> None:
        seen: dict[str, int] = {}
        for page, _, value in self.blocks():
            if not isinstance(value, dict) or "jsonrpc" not in value:
                continue
            message = mcp_ref.decode(mcp_ref.encode(value))
            with self.subTest(page, message=message):
                self.assertEqual(message, value)
                kind = self.check(message)
                seen[kind] = seen.get(kind, 0) + 1
        self.assertEqual(
            {kind: seen[kind] > 0 for kind in seen},
            dict.fromkeys(("request", "notification", "result", "error"), True),
        )

    def check(self, message: JSON) -> str:
        """Hold one message against the official schema; return what it is."""
        if "method" in message:
            found = mcp_ref.read_message(message)
            if isinstance(found, mcp_ref.Request):
                Wire.check("JSONRPCRequest", message)
                if "protocolVersion" in str(found.params.get("_meta")):
                    mcp_ref.Meta.of(found.params)
                return "request"
            Wire.check("JSONRPCNotification", message)
            return "notification"
        if "result" in message:
            Wire.check("JSONRPCResultResponse", message)
            self.assertIn("resultType", message["result"])
            return "result"
        Wire.check("JSONRPCErrorResponse", message)
        self.assertIn(message["error"]["code"], DEFINED_CODES)
        return "error"

    def test_input_requests_are_of_a_known_kind(self) -> None:
        kinds = {
            "elicitation/create": "ElicitRequest",
            "sampling/createMessage": "CreateMessageRequest",
            "roots/list": "ListRootsRequest",
        }
        count = 0
        for page, _, value in self.blocks():
            if isinstance(value, dict) and value.get("method") in kinds:
                if "jsonrpc" not in value:
                    count += 1
                    with self.subTest(page, value=value):
                        Wire.check(kinds[value["method"]], value)
        self.assertGreater(count, 0)

    def test_tool_definitions_of_the_pages_are_good_or_of_another_dialect(self) -> None:
        count = 0
        for page, _, value in self.blocks():
            if not isinstance(value, dict) or "inputSchema" not in value:
                continue
            count += 1
            with self.subTest(page, name=value.get("name")):
                Wire.check("Tool", value)
                self.assertIsInstance(
                    mcp_ref.mirrored_parameters(value["inputSchema"]), tuple
                )
                if "draft-07" in str(value["inputSchema"].get("$schema")):
                    with self.assertRaisesRegex(mcp_ref.SchemaError, "draft-07"):
                        mcp_ref.Schema(value["inputSchema"])
                else:
                    mcp_ref.Schema(value["inputSchema"])
        self.assertGreater(count, 5)


# --- what the pages allow, and the few rules that no class above has --------------------


class Remaining(Case):
    """Clauses that stand between the pages."""

    @spec("base-20")
    async def test_codes_of_the_legacy_range_mean_nothing_to_the_client(self) -> None:
        for code in (*range(-32019, -32002), -32001, -32000):

            async def failing(
                request: mcp_ref.Request, send: mcp_ref.Send, code: int = code
            ) -> JSON:
                error = {"code": code, "message": "m", "data": {"uri": "a:b"}}
                return {"jsonrpc": "2.0", "id": request.id, "error": error}

            async with mcp_ref.Client(failing, discover=False) as client:
                for method in ("tools/call", "resources/read", "tools/list"):
                    with self.subTest(code, method=method):
                        with self.assertRaises(mcp_ref.RemoteError) as caught:
                            await client.request(method, {"uri": "a:b"})
                        self.assertIs(type(caught.exception), mcp_ref.RemoteError)
                        self.assertEqual(caught.exception.code, code)
                with self.assertRaises(mcp_ref.RemoteError) as caught:
                    await client.read_resource("a:b")
                self.assertIs(type(caught.exception), mcp_ref.RemoteError)

    @spec("cancellation-17")
    async def test_why_a_request_was_cancelled_is_in_the_log(self) -> None:
        async def hang(request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
            await asyncio.Event().wait()

        null = os.open(os.devnull, os.O_WRONLY)
        self.addCleanup(os.close, null)
        stdio = mcp_ref._StdioServer(hang, null, 10_000)
        params = {"requestId": 7, "reason": "the user pressed Esc"}
        for message in (
            mcp_ref.request_message(7, "tools/call", {}),
            mcp_ref.notification("notifications/cancelled", params),
        ):
            with self.assertLogs("mcp_ref", "INFO") as logs:
                mcp_ref._log.info("-")
                stdio._received(mcp_ref.encode(message) + b"\n")
        self.assertIn("the user pressed Esc", "".join(logs.output))
        self.assertEqual(len(stdio.tasks), 0)

    @spec("http-48", "tools-32")
    async def test_invalid_annotations_cost_the_tool_on_every_transport(self) -> None:
        async def listing(request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
            good = {"name": "good", "inputSchema": {"type": "object"}}
            wrong = {"type": "number", "x-mcp-header": "N"}
            schema = {"type": "object", "properties": {"n": wrong}}
            result = {"tools": [good, {"name": "bad", "inputSchema": schema}]}
            return mcp_ref.result_response(request.id, result)

        async with mcp_ref.Client(listing, discover=False) as client:
            tools = await client.list_tools()
        self.assertEqual([tool["name"] for tool in tools], ["good"])

    @spec("caching-12", "caching-20", "caching-21")
    async def test_lifetimes_and_change_notifications_are_independent(self) -> None:
        for listens in (True, False):
            self.server = Server("t", ttl_ms=60_000, subscriptions=listens)
            self.server.tool(lambda: 1, name="one")
            first = (await self.call("tools/list")).result
            self.server.tool(lambda: 2, name="two")
            second = (await self.call("tools/list")).result
            self.assertEqual([first["ttlMs"], second["ttlMs"]], [60_000, 60_000])
            self.assertEqual([len(first["tools"]), len(second["tools"])], [1, 2])
            declared = (await self.call("server/discover")).result["capabilities"]
            self.assertEqual(declared["tools"].get("listChanged", False), listens)

    @spec("caching-24")
    async def test_a_refresh_fetches_all_pages_again_from_the_first(self) -> None:
        server = Server("t", ttl_ms=60_000, page_size=1)
        inner = mcp_ref.in_memory(server)
        seen: list[JSON] = []

        async def watched(request: mcp_ref.Request, send: mcp_ref.Send) -> JSON:
            seen.append("cursor" in request.params)
            return await inner(request, send)

        for name in ("a", "b", "c"):
            server.tool(lambda: 1, name=name)
        async with mcp_ref.Client(watched, discover=False) as client:
            await client.list_tools()
            await client.list_tools()
            self.assertEqual(seen, [False, True, True])
            server.tool(lambda: 1, name="d")
            tools = await client.list_tools(refresh=True)
        self.assertEqual([tool["name"] for tool in tools], ["a", "b", "c", "d"])
        self.assertEqual(seen[3:], [False, True, True, True])

    @spec("resources-11")
    async def test_a_directory_can_say_that_it_is_one(self) -> None:
        kind = "inode/directory"
        self.server.resource("file:///src", mime_type=kind)(lambda: "a.py\nb.py")
        listed = (await self.call("resources/list")).result["resources"]
        self.assertEqual(listed[0]["mimeType"], kind)
        read = (await self.call("resources/read", {"uri": "file:///src"})).result
        self.assertEqual(read["contents"][0]["mimeType"], kind)

    @spec("sampling-20")
    async def test_any_reason_to_stop_is_handed_to_the_handler(self) -> None:
        @self.server.tool
        async def asks(ctx: Context) -> Any:
            return (await ctx.sample("Hello?")).get("stopReason")

        for reason in ("endTurn", "com.example/bored", None):
            answer = {"role": "assistant", "content": mcp_ref.text("hi"), "model": "m"}
            if reason is not None:
                answer["stopReason"] = reason

            def model(
                client: mcp_ref.Client, params: JSON, said: JSON = answer
            ) -> JSON:
                return said

            async with mcp_ref.Client(self.server, on_sample=model) as client:
                reply = await client.call_tool("asks")
            self.assertEqual(reply.text, reason or "")


# --- SPEC_NOTES.md, the module and the tests, in step ---------------------------------
#
#   SPEC_NOTES.md      | http-12 | client | tested | what we do, where |
#   mcp_ref.py         # http-12: MUST NOT be a response
#   test_mcp_ref.py    @spec("http-12")

NOTES = HERE / "SPEC_NOTES.md"
REQUIREMENTS = SHARED / "spec" / "requirements.tsv"
STATES = (
    "tested",
    "by construction",
    "host's duty",
    "authorization server's duty",
    "declined",
    "later",
)
BINDING = ("MUST", "MUST NOT", "REQUIRED", "SHOULD", "SHOULD NOT")
CLAUSE_ID = re.compile(
    r"(?<![\w-])((?:auth(?:-discovery|-registration|-security)?|base|caching"
    r"|cancellation|completion|discover|elicitation|http|logging|mrtr|pagination"
    r"|patterns|progress|prompts|resources|roots|sampling|stdio|subscriptions|tools"
    r"|transports|versioning)-)([0-9]{2})\b(?: to \1([0-9]{2})\b)?"
)


class Row(typing.NamedTuple):
    """One row of SPEC_NOTES.md."""

    page: str
    ids: tuple[str, ...]
    binds: str
    """Who is bound; it ends in MAY where nobody is."""
    state: str
    text: str


class Clause(typing.NamedTuple):
    """One line of requirements.tsv."""

    level: str
    page: str
    section: str
    sentence: str


def clauses_in(text: str) -> list[str]:
    """Find the clause ids in a text; `http-45 to http-47` are three."""
    found = []
    for prefix, first, last in CLAUSE_ID.findall(text):
        for number in range(int(first), int(last or first) + 1):
            found.append(f"{prefix}{number:02}")
    return found


class Notes:
    """What the notes, the module, the tests and the requirements say of a clause."""

    def __init__(self) -> None:
        self.rows = self._read_rows(NOTES.read_text(encoding="utf-8"))
        self.row = {id: row for row in self.rows for id in row.ids}
        self.source = pathlib.Path(mcp_ref.__file__).read_text(encoding="utf-8")
        self.lines: dict[str, list[tuple[int, str]]] = {}
        for number, line in enumerate(self.source.splitlines(), 1):
            for id in clauses_in(line):
                self.lines.setdefault(id, []).append((number, line.strip()))
        self.tests: dict[str, list[str]] = {}
        for name, clauses in self._read_tests():
            for id in clauses:
                self.tests.setdefault(id, []).append(name)
        self.clauses = self._read_requirements()

    @staticmethod
    def _read_rows(text: str) -> list[Row]:
        rows, page = [], ""
        for line in text.splitlines():
            if heading := re.match(r"## (\S+/\S+)$", line):
                page = heading[1]
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if line.startswith("| ") and page and cells[0] != "id":
                ids, binds, state, words = cells
                rows.append(Row(page, tuple(ids.split(", ")), binds, state, words))
        return rows

    @staticmethod
    def _read_tests() -> Iterator[tuple[str, tuple[str, ...]]]:
        for cls in list(globals().values()):
            if isinstance(cls, type) and issubclass(cls, unittest.TestCase):
                for name in sorted(
                    filter(lambda one: one.startswith("test"), dir(cls))
                ):
                    clauses = getattr(getattr(cls, name), "clauses", ())
                    yield f"{cls.__name__}.{name}", clauses

    @staticmethod
    def _read_requirements() -> dict[str, Clause]:
        """Return the clauses by id; nothing where the requirements are not at hand."""
        if not REQUIREMENTS.exists():
            return {}
        lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()[1:]
        table = [line.split("\t", 4) for line in lines]
        return {id: Clause(*rest) for id, *rest in table}

    def binding(self) -> dict[str, str]:
        """Return id -> page of the clauses that have to be accounted for."""
        if self.clauses:
            levels = self.clauses.items()
            return {id: one.page for id, one in levels if one.level in BINDING}
        bound = [row for row in self.rows if not row.binds.endswith("MAY")]
        return {id: row.page for row in bound for id in row.ids}

    def fault(self, id: str) -> str:
        """Say why a clause is not accounted for; "" if it is."""
        row = self.row.get(id)
        if row is None:
            return "it has no row in SPEC_NOTES.md"
        if row.state not in STATES:
            return f"{row.state!r} is not a verdict"
        if row.state == "tested" and id not in self.tests:
            return "no test carries it"
        return ""


def defined_names(source: str) -> set[str]:
    """Return what a module defines: name, Class.name, Class.attribute."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.Assign):
                names = [one for target in node.targets for one in ast.walk(target)]
                found.update(prefix + n.id for n in names if isinstance(n, ast.Name))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)

    walk(ast.parse(source).body, "")
    return found


class Ledger(unittest.TestCase):
    """Every clause has a row, every row keeps its word, every citation has a sense."""

    notes: Notes

    @classmethod
    def setUpClass(cls) -> None:
        cls.notes = Notes()

    def test_every_clause_is_accounted_for(self) -> None:
        counts, faults = tally(self.notes)
        lines = [f"{id}: {fault}" for id, fault in faults.items()]
        self.assertFalse(lines, "\n" + "\n".join(lines))
        total = sum(sum(states.values()) for states in counts.values())
        self.assertEqual(total, len(self.notes.binding()))

    def test_every_row_has_its_verdict_and_its_page(self) -> None:
        self.assertTrue(self.notes.rows)
        seen: set[str] = set()
        for row in self.notes.rows:
            with self.subTest(row.ids):
                self.assertIn(row.state, STATES)
                self.assertTrue(row.binds and row.text)
                self.assertTrue(seen.isdisjoint(row.ids), "it has two rows")
                seen.update(row.ids)
                for id in row.ids:
                    self.assertEqual(clauses_in(id), [id])
                    if self.notes.clauses:
                        may = self.notes.clauses[id].level == "MAY"
                        self.assertEqual(row.page, self.notes.clauses[id].page)
                        self.assertEqual(row.binds.endswith("MAY"), may)

    def test_rows_are_in_the_order_of_the_specification(self) -> None:
        order = list(self.notes.clauses)
        if not order:
            self.skipTest("the requirements are not at hand")
        rows = self.notes.rows
        pages = list(dict.fromkeys(row.page for row in rows))
        wanted = list(dict.fromkeys(one.page for one in self.notes.clauses.values()))
        self.assertEqual(pages, wanted)
        for row in rows:
            self.assertEqual(list(row.ids), sorted(row.ids, key=order.index))
        for page in pages:
            firsts = [order.index(row.ids[0]) for row in rows if row.page == page]
            self.assertEqual(firsts, sorted(firsts), page)

    def test_later_is_for_the_oauth_client_and_the_bridges_only(self) -> None:
        for row in self.notes.rows:
            if row.state == "later":
                self.assertRegex(row.text, "OAuth client|bridge", row.ids)

    def test_every_cited_clause_is_in_the_notes(self) -> None:
        for where in (self.notes.lines, self.notes.tests):
            self.assertEqual(sorted(where.keys() - self.notes.row.keys()), [])

    def test_no_clause_is_unknown(self) -> None:
        if not self.notes.clauses:
            self.skipTest("the requirements are not at hand")
        cited = (
            self.notes.row.keys() | self.notes.lines.keys() | self.notes.tests.keys()
        )
        self.assertEqual(sorted(cited - self.notes.clauses.keys()), [])

    def test_every_name_in_the_notes_exists_in_the_module(self) -> None:
        defined = defined_names(self.notes.source)
        missing = [
            f"{', '.join(row.ids)}: {name}"
            for row in self.notes.rows
            for name in re.findall(r"`([^`]+)`", row.text)
            if name not in defined
        ]
        self.assertEqual(missing, [])

    def test_every_citation_stands_directly_above_code(self) -> None:
        lines = self.notes.source.splitlines()
        for number, line in enumerate(lines):
            if not (line.lstrip().startswith("#") and clauses_in(line)):
                continue
            with self.subTest(line=number + 1):
                rest = (one.strip() for one in lines[number + 1 :])
                below = next((one for one in rest if not one.startswith("#")), "")
                self.assertTrue(below, f"nothing stands below {line.strip()!r}")

    def test_a_clause_is_shown_with_its_row_its_lines_and_its_tests(self) -> None:
        shown = "\n".join(describe(self.notes, "base-04"))
        for part in ("tested", "read_message", "# base-04", "test_"):
            self.assertIn(part, shown)


# --- python test_mcp_ref.py --ledger, --clause ID -------------------------------------


def tally(notes: Notes) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Count the clauses per page and state; return also those with a fault."""
    counts: dict[str, dict[str, int]] = {}
    faults: dict[str, str] = {}
    for id, page in notes.binding().items():
        fault = notes.fault(id)
        if fault:
            faults[id] = fault
        state = "unaccounted" if fault else notes.row[id].state
        states = counts.setdefault(page, dict.fromkeys((*STATES, "unaccounted"), 0))
        states[state] += 1
    return counts, faults


def print_ledger(as_json: bool) -> int:
    """Print the clauses per page and state; return 1 if one is unaccounted for."""
    counts, faults = tally(Notes())
    states = (*STATES, "unaccounted")
    totals = {s: sum(page[s] for page in counts.values()) for s in states}
    if as_json:
        ledger = {"pages": counts, "totals": totals, "unaccounted": faults}
        print(json.dumps(ledger, indent=2))
        return 1 if faults else 0
    heads = ("tested", "constr.", "host", "auth.srv", "declined", "later", "missing")
    print(f"{'page':<52}" + "".join(f"{head:>10}" for head in (*heads, "all")))
    for page, found in [*counts.items(), ("all pages", totals)]:
        numbers = [found[state] for state in states]
        cells = [str(number or "") for number in (*numbers, sum(numbers))]
        print(f"{page:<52}" + "".join(f"{cell:>10}" for cell in cells))
    for id, fault in faults.items():
        print(f"{id}: {fault}")
    return 1 if faults else 0


def describe(notes: Notes, id: str) -> Iterator[str]:
    """Yield the lines that show one clause: its row, its code and its tests."""
    row, clause = notes.row.get(id), notes.clauses.get(id)
    if clause is not None:
        yield f"{id}  {clause.level}  {clause.page}  {clause.section}".rstrip()
        yield f"  {clause.sentence}"
    elif row is not None:
        yield f"{id}  {row.page}"
    if row is None:
        yield "no row in SPEC_NOTES.md"
    else:
        yield f"{row.state}, binds {row.binds}"
        yield f"  {row.text}"
    lines, tests = notes.lines.get(id, ()), notes.tests.get(id, ())
    yield "mcp_ref.py" if lines else "mcp_ref.py: not cited"
    for number, line in lines:
        yield f"  {number:>5}  {line}"
    yield "tests" if tests else "tests: none"
    for name in tests:
        yield f"  {name}"


def print_clause(id: str) -> int:
    """Print one clause; return 2 if there is no such clause."""
    notes = Notes()
    if id not in notes.row and id not in notes.clauses:
        print(f"no clause {id!r}: ids look like http-12 or base-04", file=sys.stderr)
        return 2
    print("\n".join(describe(notes, id)))
    return 0


def main() -> int:
    """Run the tests, or show what the notes say of the specification."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ledger", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clause", metavar="ID")
    options, rest = parser.parse_known_args()
    if options.clause is None and not options.ledger:
        unittest.main()  # reads sys.argv itself, and exits
    if rest or (options.json and not options.ledger):
        parser.error("usage: --ledger [--json], or --clause ID, and nothing else")
    if options.clause is not None:
        return print_clause(options.clause)
    return print_ledger(options.json)


if __name__ == "__main__":
    sys.exit(main())
