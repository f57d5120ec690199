#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# Copyright (c) 2026 the mcp_ref authors
"""The Model Context Protocol, revision 2026-07-28: server and client in one file.

What it is: the whole protocol, over stdio and Streamable HTTP, with nothing but the
Python standard library (3.11 or newer). Copy the file into your project, run it as it
stands, or read it beside the specification. What it is not: a web framework, an OAuth
server, a model API.

    client                                      server
      | -- request: tools/call, _meta ---------> |    each request stands alone:
      | <-- notifications/progress ... --------- |    version and capabilities in
      | <-- response: complete | input_required  |    its _meta; no handshake,
      |                                          |    no session

A server:

    from mcp_ref import Server

    server = Server("adder", "1.0")

    @server.tool
    def add(a: int, b: int) -> int:
        "Add two numbers."
        return a + b

    if __name__ == "__main__":
        server.run()                # on stdio; server.run(http=8000) for HTTP

Try it:  python mcp_ref.py serve --http 8000

Reading map: sections follow the specification's order, banners name its pages.

     1  basic/index                       messages, error codes, _meta
     2  basic/versioning                  revisions, extensions
     3  basic/patterns/index, progress,   Exchange, Context, questions by replay,
        mrtr, subscriptions, cancellation   sealed state, listen streams
     4  basic/transports/index,           header mirroring, worker threads, stdio,
        stdio, streamable-http              HTTP server, ASGI, both client transports
     5  basic/authorization/index,        bearer tokens, challenges, metadata, rate
        authorization-server-discovery,     limits; client-registration belongs to the
        security-considerations             OAuth client, which is not in this file
     6  client/elicitation, sampling,     what a server can ask, and how answers are
        roots                               read
     7  server/discover, tools,           content, registries, Server, one function
        resources, prompts,                 for each method, URI templates
        utilities/completion, logging,
        pagination, caching
     8  the client's side of all pages    Client, cache, Listening, ClientGroup
     A  basic/index, JSON Schema Usage    JSON Schema 2020-12
     B                                    type hints <-> JSON Schema
     C                                    place of the bridges to earlier revisions
     D                                    demo server, command line
"""

from __future__ import annotations

import ast
import asyncio
import base64
import binascii
import codecs
import collections
import concurrent.futures
import contextlib
import contextvars
import copy
import dataclasses
import datetime
import enum
import functools
import hashlib
import hmac
import importlib
import inspect
import itertools
import json
import logging
import math
import operator
import os
import queue
import re
import reprlib
import select
import shlex
import signal
import sys
import textwrap
import threading
import time
import types
import typing
import unicodedata
import urllib.parse
from collections import abc, deque
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Coroutine,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urldefrag, urljoin

if TYPE_CHECKING:
    import pathlib

__version__ = "0.1"
__all__ = [
    # 1 base protocol
    "PROTOCOL_VERSION",
    "SUPPORTED_VERSIONS",
    "McpError",
    "InvalidParams",
    "ResourceNotFound",
    "RemoteError",
    "Request",
    "Meta",
    # 2 versioning
    "Extension",
    # 3 message patterns
    "Exchange",
    "Send",
    "Context",
    "Question",
    "InputRequired",
    # 4 transports
    "Workers",
    "serve_stdio",
    "HttpLimits",
    "serve_http",
    "asgi_app",
    "TransportError",
    "StdioClient",
    "HttpClient",
    "Challenge",
    # 5 authorization
    "Principal",
    "Authorization",
    "static_tokens",
    "rate_limit",
    # 6 client features
    "Answer",
    "elicitation",
    "elicitation_url",
    "sampling",
    "list_roots",
    # 7 server features
    "safe_path",
    "ToolError",
    "Content",
    "Message",
    "Result",
    "Contents",
    "annotations",
    "text",
    "image",
    "audio",
    "contents",
    "embedded",
    "resource_link",
    "user",
    "assistant",
    "result",
    "Server",
    # 8 client
    "Client",
    "ClientGroup",
    "SyncClient",
    "Reply",
    # A, B
    "Schema",
    "SchemaError",
    "schema_of",
    "to_json",
]

JSON = Any
"""A JSON value: None, bool, int, float, str, list, or dict with str keys."""
Object = dict[str, JSON]
"""A JSON object."""
Id = str | int
"""A request id or progress token. 1 and "1" differ."""

# --- constants: the specification's ---------------------------------------------------

PROTOCOL_VERSION = "2026-07-28"
SUPPORTED_VERSIONS = (PROTOCOL_VERSION,)
META_PREFIX = "io.modelcontextprotocol/"
META_PROTOCOL_VERSION = META_PREFIX + "protocolVersion"
META_CLIENT_INFO = META_PREFIX + "clientInfo"
META_CLIENT_CAPABILITIES = META_PREFIX + "clientCapabilities"
META_LOG_LEVEL = META_PREFIX + "logLevel"
META_SERVER_INFO = META_PREFIX + "serverInfo"
META_SUBSCRIPTION_ID = META_PREFIX + "subscriptionId"
COMPLETE = "complete"
ASKING = "input_required"
LOG_LEVELS = (  # least severe first
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
_LEVEL_INDEX = {level: index for index, level in enumerate(LOG_LEVELS)}
MAX_COMPLETIONS = 100

# --- constants: our limits ------------------------------------------------------------

MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # one stdio line
MAX_URI = 8192  # characters of a resource URI
MAX_SUBSCRIBED = 1000  # resource URIs per listen request
LISTEN_STREAMS = 20_000  # open listen requests per server
FAN_OUT = 200  # listen streams that are woken in one go
REQUESTS_IN_FLIGHT = 1024  # per stdio connection
WORKER_THREADS = 128  # plain handlers at the same time
OUTBOX_SIZE = 1000  # notifications of one request that wait
PROGRESS_BURST = 50  # progress notifications of one request before the rate counts
PROGRESS_PER_SECOND = 20
LOG_BURST = 1000  # log messages of one request before the rate counts
LOGS_PER_SECOND = 100
STDIO_GRACE = 2.0  # seconds for requests in flight after end of file
STDIO_BACKLOG = 4 * 1024 * 1024  # bytes written but not yet read, before we wait
STDIO_CHUNKS = 1024  # of 64 KiB each, read but not yet looked at
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})

_log = logging.getLogger("mcp_ref")


# ======================================================================================
# 1  Base protocol                                      spec: basic/index
# ======================================================================================
#
#   request       {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {...}}
#   notification  {"jsonrpc": "2.0", "method": "notifications/...", "params": {...}}
#   response      {"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete", ...}}
#   error         {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": ""}}
#
# Bytes become a dict in decode(), a dict becomes a Request or a Notification in
# read_message(), and encode() turns an answer back into bytes. Nothing else in this
# file parses or writes JSON-RPC.


class McpError(Exception):
    """A JSON-RPC error: raise it in a handler to answer a request with it.

    `code` and `message` travel as they are, `data` is any JSON value or None. Each
    subclass is one reason. Its code decides the HTTP status (see HTTP_STATUS).
    """

    code = -32603

    def __init__(
        self, message: str, data: JSON = None, code: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.data = data
        if code is not None:
            self.code = code


class ParseError(McpError):
    """The bytes are not JSON: whoever sent them is at fault."""

    code = -32700


class InvalidRequest(McpError):
    """The JSON is not a JSON-RPC request; `id` is its id where one could be read."""

    code = -32600

    def __init__(self, message: str, id: Id | None = None) -> None:
        super().__init__(message)
        self.id = id


class MethodNotFound(McpError):
    """The server does not implement the method."""

    code = -32601


class InvalidParams(McpError):
    """The parameters are malformed, or name something that does not exist."""

    code = -32602


class ResourceNotFound(InvalidParams):
    """No resource has this URI."""

    def __init__(self, uri: str) -> None:
        super().__init__(f"Resource not found: {uri[:200]}", {"uri": uri})


class InternalError(McpError):
    """The server failed; the details are in its log, never on the wire."""


class HeaderMismatch(McpError):
    """HTTP headers and body differ, or a required header is missing or malformed."""

    code = -32020


class MissingRequiredClientCapability(McpError):
    """The client did not declare a capability that answering takes.

    `required` has the shape of ClientCapabilities, e.g. {"elicitation": {"url": {}}}.
    """

    code = -32021

    def __init__(self, required: JSON) -> None:
        message = f"The request needs client capabilities {json.dumps(required)}"
        super().__init__(message, {"requiredCapabilities": required})


class UnsupportedProtocolVersion(McpError):
    """The server does not speak the requested revision."""

    code = -32022

    def __init__(self, supported: Sequence[str], requested: str) -> None:
        message = f"Unsupported protocol version {requested[:40]!r}"
        super().__init__(
            message, {"supported": list(supported), "requested": requested}
        )


class InsufficientScope(McpError):
    """The caller is known but may not do this; `scopes` are all that it takes."""

    # base-24: SHOULD allocate codes of one's own outside the reserved range; these
    # three are the HTTP status that they travel with.
    code = 403

    def __init__(self, scopes: Iterable[str]) -> None:
        self.scopes = sorted(scopes)
        message = f"This needs the scopes {' '.join(self.scopes)}"
        super().__init__(message, {"requiredScopes": self.scopes})


class TooManyRequests(McpError):
    """The caller exceeded its rate; it may come back after `seconds`."""

    code = 429

    def __init__(self, message: str, seconds: float = 1.0) -> None:
        super().__init__(message, {"retryAfter": max(1, math.ceil(seconds))})


class Overloaded(TooManyRequests):
    """The server is at a stated limit; the caller may try again in a second."""

    code = 503


class RemoteError(McpError):
    """An error that the peer answered; `code`, `message` and `data` are the peer's."""

    status: int | None = None
    """The HTTP status that it came with, if any."""


# The status that the specification demands for a code; codes of our own are statuses,
# and everything else, a failing handler included, is a well carried exchange: 200.
HTTP_STATUS = {
    -32700: 400,
    -32600: 400,
    # http-29: an unknown method MUST be answered with 404
    -32601: 404,
    # base-53, base-57, http-28, http-61: MUST be 400
    -32602: 400,
    -32020: 400,
    -32021: 400,
    -32022: 400,
    403: 403,
    429: 429,
    503: 503,
}


# --- bytes <-> dict -------------------------------------------------------------------


def _refuse_constant(token: str) -> JSON:
    raise ValueError(f"{token} is not JSON")


def _writer(item: str, key: str, text: Callable[[str], str]) -> Callable[[JSON], str]:
    """Build a JSON writer once; JSONEncoder.encode() builds its C part on every call.

    A value that contains itself ends in RecursionError.
    """
    plain = json.JSONEncoder(
        separators=(item, key), allow_nan=False, ensure_ascii=text is _ascii
    )
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # no accelerator in this Python
        return plain.encode
    write = make(None, plain.default, text, None, key, item, False, False, False)
    return lambda value: "".join(write(value, 0))


# All text goes out as ASCII, so that lone surrogates cannot fail the encoding, and no
# peer that splits lines at U+2028 can cut a message in two.
_ascii = json.encoder.encode_basestring_ascii
_decode_json = json.JSONDecoder(parse_constant=_refuse_constant).decode
_encode_json = _writer(",", ":", _ascii)
_encode_text = _writer(", ", ": ", json.encoder.encode_basestring)
_encode_sorted = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


class Framed(Object):
    """A message that was encoded already: `line` holds its bytes."""

    line = b""


def decode(data: bytes) -> JSON:
    """Parse one message: UTF-8, one JSON object; raises ParseError, InvalidRequest.

    Of repeated names in an object the last counts, as everywhere in Python; header
    checks and dispatch both read the result, so they cannot disagree.
    """
    try:
        # transports-01: MUST be UTF-8, so json's guessing at UTF-16 is not wanted
        message = _decode_json(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ParseError(f"Not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ParseError("JSON nested too deeply") from None
    except ValueError as error:
        # A number of over 4,300 digits ends here too: int() refuses it.
        raise ParseError(f"Not JSON: {str(error)[:120]}") from None
    # http-11: the body MUST be a single request or notification, so no batch
    if not isinstance(message, dict):
        raise InvalidRequest("A message is one JSON object")
    return message


def encode(message: JSON) -> bytes:
    """Write one message as one line of ASCII JSON; raises ValueError, TypeError.

    ValueError: a number that is not finite, or a value that contains itself.
    """
    if type(message) is Framed:
        return message.line
    try:
        # stdio-01: MUST NOT contain a newline; JSON escapes them in strings
        return _encode_json(message).encode("ascii")
    except RecursionError:
        raise ValueError("value nested too deeply") from None


def encode_response(message: JSON) -> tuple[bytes, JSON]:
    """Encode a response; one that is not JSON becomes an error with the same id.

    Returns the bytes and the response that they hold.
    """
    try:
        return encode(message), message
    except (ValueError, TypeError) as error:
        _log.error("the answer to %r is not JSON: %s", message.get("id"), error)
        failed = InternalError("The answer could not be written as JSON")
        message = error_response(message.get("id"), failed)
        return encode(message), message


# --- dict <-> Request -----------------------------------------------------------------


class Request(NamedTuple):
    """One client request and what the transport knows about the caller.

    A tuple, not a dataclass: it is built for every message, and `_replace` is what an
    Exchange that rewrites requests needs.
    """

    id: Id
    method: str
    params: Object
    headers: Mapping[str, str] | None = None
    """HTTP fields under lower-case names; None on transports without headers."""
    principal: Principal | None = None
    """Who calls, as verified by the authorization hook."""
    peer: str | None = None
    """The caller's address, or None."""


class Notification(NamedTuple):
    """One client notification."""

    method: str
    params: Object


def read_message(message: JSON, **facts: Any) -> Request | Notification:
    """Check the JSON-RPC envelope; `facts` are the transport's fields of Request.

    Raises InvalidRequest for everything that is not a request or a notification, also
    for responses: http-12, stdio-07: a client MUST NOT send them.
    """
    id = message.get("id")
    # base-04: MUST be a string or an integer; bool is an int only to Python
    readable = id if type(id) in (str, int) else None
    if message.get("jsonrpc") != "2.0":
        raise InvalidRequest('jsonrpc must be "2.0"', readable)
    method = message.get("method")
    if not isinstance(method, str):
        raise InvalidRequest("method must be a string", readable)
    params = message.get("params", {})
    # base-05: MUST NOT be null, so null is not the same as absent
    if "id" in message and readable is None:
        raise InvalidRequest("id must be a string or an integer")
    if not isinstance(params, dict):
        raise InvalidRequest("params must be an object", readable)
    if readable is None:
        return Notification(method, params)
    return Request(readable, method, params, **facts)


def request_message(id: Id, method: str, params: JSON) -> JSON:
    """Build the JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def notification(method: str, params: JSON) -> JSON:
    """Build a JSON-RPC notification. base-26: MUST NOT include an id."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def result_response(id: Id, result: JSON) -> JSON:
    """Build the response to a request that succeeded."""
    # base-07: MUST carry the request's id, the same in type and value
    return {"jsonrpc": "2.0", "id": id, "result": result}


def error_response(id: Id | None, error: McpError) -> JSON:
    """Build the response to a request that failed."""
    code = error.code
    # base-21, base-22: MUST NOT emit codes of the reserved range that are not defined
    if -32099 <= code <= -32000 and code not in HTTP_STATUS:
        code = InternalError.code
    body = _without_none({"code": code, "message": error.message, "data": error.data})
    # base-15: the id is left out only where it could not be read
    return _without_none({"jsonrpc": "2.0", "id": id, "error": body})


def _without_none(members: Object) -> Object:
    """Leave out what is None: an optional member is absent, never null."""
    return {key: value for key, value in members.items() if value is not None}


# --- _meta ----------------------------------------------------------------------------

_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
# base-46, base-47: prefix = labels joined by dots; base-49: the name's ends
_META_KEY = (
    rf"(?P<prefix>{_LABEL}(?:\.{_LABEL})*/)?(?:[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)?"
)


def check_meta_key(key: str, *, prefixed: bool = False) -> str:
    """Return a key that we are about to write; raise ValueError for a malformed one.

    `prefixed` demands a prefix: versioning-05: extension identifiers MUST have one.
    """
    found = re.fullmatch(_META_KEY, key, re.ASCII)
    if not found or (prefixed and not found["prefix"]):
        form = "com.example/name" if prefixed else "[com.example/]name"
        raise ValueError(f"{key!r} is not a _meta key of the form {form}")
    return key


class Meta(NamedTuple):
    """The `_meta` of a request, checked."""

    protocol_version: str
    client_capabilities: Object
    client_info: Object | None
    log_level: str | None
    progress_token: Id | None
    fields: Object
    """All of it as it came: trace context and the keys of others included."""

    @classmethod
    def of(cls, params: Object) -> Meta:
        """Read `params._meta`; raises InvalidParams that names the offending key."""
        meta = params.get("_meta")
        if not isinstance(meta, dict):
            raise InvalidParams("params._meta is missing or not an object")
        version = meta.get(META_PROTOCOL_VERSION)
        # base-52: a request without a required field MUST be rejected with -32602
        if not isinstance(version, str):
            raise InvalidParams(f"_meta[{META_PROTOCOL_VERSION!r}] must be a string")
        capabilities = meta.get(META_CLIENT_CAPABILITIES)
        if not isinstance(capabilities, dict):
            raise InvalidParams(
                f"_meta[{META_CLIENT_CAPABILITIES!r}] must be an object"
            )
        if len(meta) == 2:
            return cls(version, capabilities, None, None, None, meta)
        info = meta.get(META_CLIENT_INFO)
        if info is not None and not isinstance(info, dict):
            raise InvalidParams(f"_meta[{META_CLIENT_INFO!r}] must be an object")
        level = meta.get(META_LOG_LEVEL)
        # logging-06: an unknown level SHOULD be rejected with -32602
        if META_LOG_LEVEL in meta and str(level) not in _LEVEL_INDEX:
            levels = ", ".join(LOG_LEVELS)
            raise InvalidParams(f"_meta[{META_LOG_LEVEL!r}] must be one of {levels}")
        token = meta.get("progressToken")
        # progress-02: MUST be a string or an integer
        if token is not None and type(token) not in (str, int):
            raise InvalidParams("_meta.progressToken must be a string or an integer")
        return cls(version, capabilities, info, level, token, meta)


# ======================================================================================
# 2  Versioning                                         spec: basic/versioning
# ======================================================================================


def check_version(requested: str, supported: Sequence[str]) -> None:
    """Accept a revision or raise UnsupportedProtocolVersion."""
    # versioning-01: MUST answer with the list of supported versions
    if requested not in supported:
        raise UnsupportedProtocolVersion(supported, requested)


def supports(capabilities: JSON, needed: JSON) -> bool:
    """Tell whether `capabilities` contain all members of `needed`, however deep.

    elicitation-05: an empty `elicitation` stands for {"form": {}}.
    """
    for name, inner in needed.items():
        declared = capabilities.get(name)
        if not isinstance(declared, dict):
            return False
        if name == "elicitation" and not declared:
            declared = {"form": {}}
        if not supports(declared, inner):
            return False
    return True


@dataclass(frozen=True)
class Extension:
    """What an extension adds to a server; hand it to `Server.extend`.

    spec: basic/versioning, Extension Negotiation. Everything else that an extension may
    want, an Exchange around `server.handle` can do.
    """

    identifier: str
    """Such as "io.modelcontextprotocol/tasks"; goes to `capabilities.extensions`."""
    settings: Object = field(default_factory=dict)
    methods: Mapping[str, MethodHandler] = field(default_factory=dict)
    """Method name -> `async (server, ctx, params) -> result without resultType`."""
    result_types: frozenset[str] = frozenset()
    """base-12: values of `resultType` that its results may carry."""
    filters: Mapping[str, ListenFilter] = field(default_factory=dict)
    """Member of a listen request's `notifications` -> what is honoured of it."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Method name -> the parameter that `Mcp-Name` mirrors."""


# ======================================================================================
# 3  Message patterns                                   spec: basic/patterns
# ======================================================================================
#
#   client                         server
#     | request --------------------> |   request [notification]* (response|cancelled)
#     | <--------- [notification]*    |
#     | <------------------ response  |    the server never sends a request
#
# One type carries all of it: an Exchange takes a request and a way to send
# notifications, and returns the response. `Server.handle` is one, a client transport is
# one, and so is whatever wraps them. To cancel the task that awaits it is cancellation.

Send = Callable[[JSON], Awaitable[None]]
Exchange = Callable[[Request, Send], Awaitable[JSON]]
MethodHandler = Callable[["Server", "Context", Object], Awaitable[JSON]]
ListenFilter = Callable[["Context", JSON], tuple[JSON, Iterable[Hashable]]]


async def carry_out(exchange: Exchange, request: Request, send: Send) -> JSON:
    """Await an Exchange for a transport: what it raises becomes the error response."""
    try:
        return await exchange(request, send)
    except McpError as error:
        return error_response(request.id, error)
    except Exception as error:
        _log.error("the exchange for %s failed", request.method, exc_info=error)
        return error_response(request.id, InternalError("Internal error"))


class _Done:
    """The value of a Context method that has nothing more to wait for."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __await__(self) -> Generator[None, None, Any]:
        return self.value
        yield  # makes this a generator


def _give(value: Any) -> Any:
    """Return `value` to a plain handler, something to await to an `async def` one."""
    return value if asyncio._get_running_loop() is None else _Done(value)


class TokenBucket:
    """A rate with a burst: take() tells whether one more is within it."""

    __slots__ = ("burst", "rate", "tokens", "updated")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self.tokens = burst
        self.updated = now

    def take(self, now: float) -> bool:
        """Take a token if there is one; `now` is in seconds."""
        earned = (now - self.updated) * self.rate
        self.tokens = min(self.burst, self.tokens + earned)
        self.updated = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class _Outbox:
    """The notifications of one request on their way to `send`, from any thread.

    Bounded: of a flood of progress only the latest waits, of a flood of log messages
    the newest OUTBOX_SIZE. After close() nothing passes any more.
    """

    def __init__(self, send: Send, loop: asyncio.AbstractEventLoop) -> None:
        self.send = send
        self.loop = loop
        self.lock = threading.Lock()
        self.queue: deque[JSON] = deque(maxlen=OUTBOX_SIZE)
        self.latest: JSON = None
        self.pump: asyncio.Task[None] | None = None
        self.closed = False
        now = loop.time()
        self.progress = TokenBucket(PROGRESS_PER_SECOND, PROGRESS_BURST, now)
        self.logs = TokenBucket(LOGS_PER_SECOND, LOG_BURST, now)

    def put(self, message: JSON) -> None:
        """Queue a message; the loop sends it soon."""
        self.queue.append(message)
        self._on_loop(self._start)

    def put_progress(self, message: JSON) -> None:
        """Queue progress, or keep it as the latest while the rate is exceeded.

        Called with the lock held, so that threads of one handler cannot overtake."""
        # progress-11: both parties SHOULD limit the rate
        if self.latest is None and self.progress.take(self.loop.time()):
            self.put(message)
        else:
            waiting, self.latest = self.latest, message
            if waiting is None:
                pause = 1 / PROGRESS_PER_SECOND
                self._on_loop(self.loop.call_later, pause, self._release)

    def _on_loop(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function: now if this is the loop's thread, else soon."""
        if self.closed:
            return
        if self._is_here():
            function(*arguments)
        else:
            self.loop.call_soon_threadsafe(function, *arguments)

    def _is_here(self) -> bool:
        return asyncio._get_running_loop() is self.loop

    def _release(self) -> None:
        with self.lock:
            if self.latest is not None:
                self.queue.append(self.latest)
            self.latest = None
        self._start()

    def _start(self) -> None:
        if self.pump is None and not self.closed:
            self.pump = self.loop.create_task(self._run())

    async def _run(self) -> None:
        while self.queue:
            await self.send(self.queue.popleft())
        self.pump = None

    def flush(self) -> Awaitable[None]:
        """Return something to await: done when all that is queued was sent."""
        return self.pump if self.pump and self._is_here() else _Done()

    async def close(self) -> None:
        """Send what is left, the latest progress included, then refuse the rest."""
        while self.pump or self.queue or self.latest is not None:
            self._release()
            await self.flush()
        # progress-12: progress MUST stop after completion
        self.closed = True

    def abandon(self) -> None:
        """Drop what is left: the request was cancelled."""
        self.closed = True
        if self.pump is not None:
            self.pump.cancel()


class Context:
    """What a handler knows of its request, and how it reaches the client.

    A handler gets one by a parameter annotated `Context`. All methods work from
    `async def` handlers, where they are awaited, and from plain ones, where they are
    just called.
    """

    __slots__ = (
        "_counter",
        "_outbox",
        "_progress",
        "_replay",
        "_send",
        "cancelled",
        "meta",
        "request",
        "server",
    )

    def __init__(
        self, server: Server, request: Request, meta: Meta, send: Send
    ) -> None:
        self.server = server
        self.request = request
        self.meta = meta
        self.cancelled = False
        """True once the client gave up: a plain handler that runs long looks at it."""
        self._send = send
        # Made now, not when it is first needed: what a handler leaves running must find
        # it closed, and two threads must not make two.
        told = meta.progress_token is not None or meta.log_level is not None
        self._outbox = _Outbox(send, asyncio.get_running_loop()) if told else None
        self._progress = -math.inf
        self._replay: _Replay | None = None
        self._counter = 0

    # --- who calls --------------------------------------------------------------------

    @property
    def principal(self) -> Principal | None:
        """Return the verified caller, or None without authorization."""
        return self.request.principal

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the HTTP fields under lower-case names; empty on stdio."""
        return self.request.headers or {}

    def supports(self, *path: str) -> bool:
        """Tell whether the client declared a capability, `supports("sampling")`.

        More names lead deeper: `supports("elicitation", "url")`.
        """
        needed: Object = {}
        for name in reversed(path):
            needed = {name: needed}
        return supports(self.meta.client_capabilities, needed)

    # --- progress, log      spec: basic/patterns/progress, server/utilities/logging ---

    def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        """Report how far the work is; nothing happens if the client did not ask.

        Values that do not rise, and those that are not finite, are left out. Over
        PROGRESS_PER_SECOND only the latest is sent, the last one always.
        """
        token, outbox = self.meta.progress_token, self._outbox
        if token is None or outbox is None:
            return _Done()
        # progress-08: MUST only reference the token of this very request
        params: Object = {"progressToken": token, "progress": progress}
        if total is not None and abs(total) < math.inf:
            params["total"] = total
        if message is not None:
            params["message"] = message
        with outbox.lock:
            # progress-05: MUST increase with each notification
            if not self._progress < progress < math.inf:
                return _Done()
            self._progress = progress
            outbox.put_progress(notification("notifications/progress", params))
        return outbox.flush()

    def log(self, level: str, data: JSON, logger: str | None = None) -> Awaitable[None]:
        """Send a log message if the client asked for this level; `data` is any JSON.

        Deprecated by the specification in favour of stderr and OpenTelemetry. Never
        pass credentials or personal data: it leaves the machine.
        """
        if level not in _LEVEL_INDEX:
            raise ValueError(f"level must be one of {', '.join(LOG_LEVELS)}")
        wanted, outbox = self.meta.log_level, self._outbox
        # logging-03: MUST NOT be sent for a request that does not ask for it
        if (
            wanted is None
            or outbox is None
            or _LEVEL_INDEX[level] < _LEVEL_INDEX[wanted]
        ):
            return _Done()
        params: Object = {"level": level, "data": to_json(data)}
        encode(params)  # what is not JSON is the caller's mistake: raises ValueError
        if logger is not None:
            params["logger"] = logger
        # logging-07, logging-10: SHOULD limit the rate; what is over it is dropped
        with outbox.lock:
            if outbox.logs.take(outbox.loop.time()):
                outbox.put(notification("notifications/message", params))
        return outbox.flush()

    # --- questions                              spec: basic/patterns/mrtr, client/* ---

    def elicit(self, message: str, schema: Any, *, key: str | None = None) -> Any:
        """Ask the user to fill in a form. Code before a question runs again!

        `schema` is a flat object schema of primitive properties, or a dataclass or
        TypedDict of such. Returns an Answer: `accepted`, `action`, `content`, `value`.
        The handler is started again once the answer is there; give side effects that
        stand before the question to `once`.
        """
        return self._ask_one(key, elicitation(message, schema))

    def elicit_url(self, message: str, url: str, *, key: str | None = None) -> Any:
        """Send the user to a web page; code before a question runs again.

        `accepted` means that the user agreed to go there, not that anything happened.
        """
        return self._ask_one(key, elicitation_url(message, url))

    def sample(
        self,
        messages: str | Sequence[JSON],
        *,
        max_tokens: int = 1000,
        key: str | None = None,
        options: Mapping[str, JSON] | None = None,
    ) -> Any:
        """Ask the client's model; code before a question runs again.

        `options` are further members of CreateMessageRequestParams. Returns the
        CreateMessageResult. Deprecated by the specification.
        """
        return self._ask_one(key, sampling(messages, max_tokens, options))

    def roots(self, *, key: str | None = None) -> Any:
        """Ask for the client's roots, a list of {"uri", "name"?}. Deprecated."""
        return self._ask_one(key, list_roots())

    def ask(self, **questions: Question) -> Any:
        """Ask several things in one round: `ask(a=elicitation(...), b=sampling(...))`.

        Returns a dict of the answers. Code before a question runs again.
        """
        replay = self._replaying()
        answers: dict[str, Any] = {}
        missing: dict[str, Question] = {}
        for key, question in questions.items():
            try:
                answers[key] = replay.answer(key, question)
            except InputRequired as required:
                missing |= required.requests
        if missing:
            raise InputRequired(missing)
        return _give(answers)

    def once(self, key: str, function: Callable[[], Any]) -> Any:
        """Run a side effect once, however often questions start the handler again.

        Its JSON result travels in `requestState`: signed, but readable by the client. A
        client that never comes back, or starts over, can make it run another time.
        """
        done = self._replaying().once
        if key not in done:
            value = function()
            if inspect.isawaitable(value):
                return self._once_later(key, value)
            done[key] = to_json(value)
        return _give(done[key])

    async def _once_later(self, key: str, value: Awaitable[Any]) -> JSON:
        self._replaying().once[key] = result = to_json(await value)
        return result

    @property
    def state(self) -> JSON:
        """Return what `InputRequired(state=...)` carried last round, or None."""
        return self._replaying().raw

    @property
    def input_responses(self) -> Object:
        """Return the client's responses to the requests of last round, unchecked."""
        return self._replaying().fresh

    def _ask_one(self, key: str | None, question: Question) -> Any:
        if key is None:
            self._counter += 1
            key = f"question-{self._counter}"
        return _give(self._replaying().answer(key, question))

    def _replaying(self) -> _Replay:
        # mrtr-05: MUST NOT be asked on any other request
        if self._replay is None:
            raise RuntimeError(f"{self.request.method} cannot ask the client")
        return self._replay


# --- multi round-trip requests                            spec: basic/patterns/mrtr ---
#
#   tools/call (id 1) ---------------> handler runs, elicit() finds no answer
#   <--- input_required, requestState
#   tools/call (id 2, the same, plus inputResponses, requestState)
#                     ---------------> handler runs from the top, elicit() returns
#   <------------------------ complete
#
# requestState = base64url(JSON) "." base64url(HMAC-SHA-256), so any process that knows
# the key can serve the retry. It is signed, not secret.


class Question(NamedTuple):
    """One entry of `inputRequests`; made by the functions of section 6."""

    method: str
    params: Object
    needs: Object
    """The client capabilities that it takes."""
    read: Callable[[JSON], Any]
    """Turns the client's result into the answer.

    Raises ValueError when it does not fit, which asks again, and InvalidParams when it
    is not a result at all."""
    misfit: str = ""
    """Why the last answer did not do; goes into the message."""

    @property
    def request(self) -> JSON:
        """Return the wire form."""
        params = dict(self.params)
        if self.misfit and "message" in params:
            params["message"] += f"\n(The last answer did not fit: {self.misfit})"
        return _without_none({"method": self.method, "params": params or None})

    @property
    def digest(self) -> str:
        """Identify the question, so that an answer is never taken for another's."""
        return _digest([self.method, self.params])


class InputRequired(BaseException):
    """Raise it to answer `input_required`: what `Context.ask` does underneath.

    `requests` maps keys of your choice to questions; `state` is any JSON value, handed
    back as `Context.state` with the retry (signed, not secret). At least one is needed.
    A BaseException, so that a handler's `except Exception` cannot swallow it.
    """

    def __init__(
        self, requests: Mapping[str, Question] | None = None, state: JSON = None
    ) -> None:
        super().__init__("the client's input is required")
        # mrtr-17: MUST have at least one of the two
        if not requests and state is None:
            raise ValueError("InputRequired needs requests or state")
        self.requests = dict(requests or {})
        self.state = state


class _Replay:
    """What earlier rounds of this request left behind."""

    def __init__(self, state: JSON, responses: JSON) -> None:
        # Answers that come without a state go by their keys alone: some clients answer
        # before they are asked, and what they say could be made up just as well.
        unasked = state is None
        state = state or {}
        self.answers: Object = state.get("answers", {})
        self.once: Object = state.get("once", {})
        self.raw: JSON = state.get("raw")
        self.asked: dict[str, str] = state.get("asked", {})
        # mrtr-31: SHOULD ignore what was not asked for
        self.fresh = {
            key: response
            for key, response in (responses or {}).items()
            if unasked or key in self.asked
        }

    def answer(self, key: str, question: Question) -> Any:
        """Return the answer, or raise InputRequired with the question."""
        digest = question.digest
        if self.answers.get(key, {}).get("of") == digest:
            return question.read(self.answers[key]["is"])
        if key not in self.fresh or self.asked.get(key, digest) != digest:
            # mrtr-32: SHOULD ask again for what is missing
            raise InputRequired({key: question})
        try:
            # elicitation-46, mrtr-29: SHOULD be checked against what was asked
            value = question.read(self.fresh[key])
        except ValueError as error:
            again = question._replace(misfit=str(error))
            raise InputRequired({key: again}) from None
        self.answers[key] = {"of": digest, "is": self.fresh[key]}
        return value

    def state(self, required: InputRequired) -> JSON:
        """Return what the next round has to know."""
        asked = {key: question.digest for key, question in required.requests.items()}
        return {
            "answers": self.answers,
            "once": self.once,
            "raw": required.state,
            "asked": asked,
        }


def _digest(value: JSON) -> str:
    return hashlib.sha256(_encode_sorted(value).encode("ascii")).hexdigest()[:36]


def seal(value: JSON, keys: Sequence[bytes]) -> str:
    """Sign a JSON value with the first key: base64url(JSON).base64url(HMAC-SHA-256)."""
    body = base64.urlsafe_b64encode(encode(value))
    return (body + b"." + _mac(keys[0], body)).decode("ascii")


def unseal(text: JSON, keys: Sequence[bytes]) -> JSON:
    """Return the value that any of the keys signed, else raise ValueError."""
    body, _, mac = str(text).encode("ascii", "replace").rpartition(b".")
    if any(hmac.compare_digest(_mac(key, body), mac) for key in keys):
        return _decode_json(base64.urlsafe_b64decode(body).decode("ascii"))
    raise ValueError("not signed by us")


def _mac(key: bytes, body: bytes) -> bytes:
    return base64.urlsafe_b64encode(hmac.digest(key, body, "sha256"))


def seal_state(
    state: JSON, binding: JSON, expires: float, keys: Sequence[bytes]
) -> str:
    """Seal what a retry brings back; `binding` is what it must be retried with."""
    # mrtr-15: SHOULD hold principal, expiry and the request that it belongs to
    return seal({"s": state, "b": _digest(binding), "e": int(expires)}, keys)


def unseal_state(text: JSON, binding: JSON, now: float, keys: Sequence[bytes]) -> JSON:
    """Open a `requestState`; raises InvalidParams, the same for whatever is wrong."""
    try:
        # mrtr-12, mrtr-13: MUST protect its integrity and reject what fails
        sealed = unseal(text, keys)
        if sealed["b"] == _digest(binding) and now < sealed["e"]:
            return sealed["s"]
    except (ValueError, KeyError, TypeError):
        pass  # of these, the last two: it is a cursor
    raise InvalidParams("requestState is not valid for this request, or has expired")


# --- subscriptions                               spec: basic/patterns/subscriptions ---
#
#   subscriptions/listen (id 7) --> keys registered
#   <-- notifications/subscriptions/acknowledged      subscriptionId 7, always first
#   <-- [notifications/* ]*                           subscriptionId 7
#   <-- result (id 7)                                 only when the server ends it
#
#   listen acknowledged [change]* (result | cancelled)


class Change:
    """A notification for many streams, encoded once: only the id in it differs."""

    __slots__ = ("after", "before", "method", "params")

    def __init__(self, method: str, params: Object) -> None:
        self.method = method
        self.params = params
        any_id = {META_SUBSCRIPTION_ID: "\0"}
        line = encode(notification(method, {**params, "_meta": any_id}))
        self.before, _, self.after = line.rpartition(encode("\0"))

    def message(self, id: Id) -> Framed:
        """Return the notification for the stream with this id."""
        # base-60: MUST carry the id of the listen request, the same in type
        params = {**self.params, "_meta": {META_SUBSCRIPTION_ID: id}}
        found = Framed(jsonrpc="2.0", method=self.method, params=params)
        found.line = self.before + encode(id) + self.after
        return found


_EVERY = object()  # a key that each subscription holds


class _Subscription:
    """One open listen request: what waits to be sent, at most one per key."""

    __slots__ = ("ended", "id", "keys", "pending", "waiter")

    def __init__(self, id: Id, keys: Iterable[Hashable]) -> None:
        self.id = id
        self.keys = tuple(dict.fromkeys((_EVERY, *keys)))
        self.pending: dict[Hashable, Change] = {}
        self.ended = False
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def changed(self) -> Awaitable[None]:
        """Return what is done when something is pending or the end has come."""
        if self.pending or self.ended:
            return _Done()
        self.waiter = asyncio.get_running_loop().create_future()
        return self.waiter

    def take(self) -> list[JSON]:
        """Hand over what is pending, each message with our subscriptionId."""
        pending, self.pending = self.pending, {}
        return [change.message(self.id) for change in pending.values()]


class Subscriptions:
    """All open listen requests of a server; publish() may be called from any thread.

    A change that is announced again before it was sent is sent once: the memory of a
    slow reader is bounded by what it subscribed to.
    """

    def __init__(self) -> None:
        # By loop, then by key. Each loop alone changes what is below it.
        self._open: dict[
            asyncio.AbstractEventLoop, dict[Hashable, set[_Subscription]]
        ] = {}
        self._due: dict[tuple[asyncio.AbstractEventLoop, Hashable], Change] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of open streams, on all loops."""
        return sum(len(keys.get(_EVERY, ())) for keys in list(self._open.values()))

    def add(self, subscription: _Subscription) -> None:
        """Register; from here on nothing is lost."""
        keys = self._open.setdefault(asyncio.get_running_loop(), {})
        for key in subscription.keys:
            keys.setdefault(key, set()).add(subscription)

    def remove(self, subscription: _Subscription) -> None:
        """Forget a subscription."""
        loop = asyncio.get_running_loop()
        keys = self._open[loop]
        for key in subscription.keys:
            keys[key].discard(subscription)
            if not keys[key]:
                del keys[key]
        if not keys:
            del self._open[loop]

    def publish(self, key: Hashable, method: str, params: Object) -> None:
        """Announce a change to the subscriptions that hold `key`; never waits."""
        loops = [loop for loop, keys in list(self._open.items()) if key in keys]
        if not loops:
            return
        change = Change(method, params)
        for loop in loops:
            with self._lock:
                scheduled = (loop, key) in self._due
                self._due[loop, key] = change
            if not scheduled:
                with contextlib.suppress(RuntimeError):  # that loop has ended
                    loop.call_soon_threadsafe(self._deliver, loop, key)

    def _deliver(self, loop: asyncio.AbstractEventLoop, key: Hashable) -> None:
        with self._lock:
            change = self._due.pop((loop, key))
        waiting = list(self._open.get(loop, {}).get(key, ()))
        self._wake_some(waiting, key, change)

    def _wake_some(
        self, waiting: list[_Subscription], key: Hashable, change: Change
    ) -> None:
        """Wake the next FAN_OUT streams, then let the loop serve others first."""
        for subscription in waiting[-FAN_OUT:]:
            subscription.pending[key] = change
            subscription.wake()
        del waiting[-FAN_OUT:]
        if waiting:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._wake_some, waiting, key, change)

    def end(self) -> None:
        """End all streams of the running loop gracefully, each with its result."""
        keys = self._open.get(asyncio.get_running_loop(), {})
        for subscription in keys.get(_EVERY, ()):
            subscription.ended = True
            subscription.wake()


# ======================================================================================
# 4  Transports                                         spec: basic/transports
# ======================================================================================

# --- header mirroring                        spec: basic/transports/streamable-http ---
#
#   body                                       header
#   _meta.../protocolVersion                   MCP-Protocol-Version
#   method                                     Mcp-Method
#   params.name, params.uri                    Mcp-Name
#   arguments at an x-mcp-header property      Mcp-Param-{its value}
#
# The body is the source of truth; a request whose headers say something else is
# refused, because a proxy on the way may have decided by the header.

MIRRORED_NAMES = {  # method -> the parameter that Mcp-Name mirrors
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
}
SAFE_INTEGER = 2**53 - 1
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")
_HEADER_TEXT = re.compile(r"[\t -~]*")
_SENTINEL = re.compile(r"=\?base64\?(.*)\?=")  # http-52: case-sensitive
_HEADER_INTEGER = r"-?(?:0|[1-9][0-9]{0,15})(?:\.0{1,16})?"
_BY_NAME = ("properties", "$defs", "patternProperties", "dependentSchemas")
_DATA = ("const", "enum", "default", "examples")  # no schema below these keywords


def encode_header_value(value: JSON) -> str:
    """Write a string, integer or boolean as a header value.

    http-49, http-50: text that is not safe in a header MUST be carried as Base64;
    http-55: and so MUST text that looks like Base64 already.
    """
    text = _header_text(value)
    if _PLAIN_VALUE.fullmatch(text) and not _SENTINEL.fullmatch(text):
        return text
    raw = text.encode("utf-8", "surrogatepass")
    return f"=?base64?{base64.b64encode(raw).decode()}?="


def _header_text(value: JSON) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def decode_header_value(text: str) -> str:
    """Read a header value; raises ValueError for illegal characters or bad Base64."""
    text = text.strip(" \t")
    # http-59: MUST be rejected when it contains invalid characters
    if not _HEADER_TEXT.fullmatch(text):
        raise ValueError("it contains characters that are not visible ASCII")
    encoded = _SENTINEL.fullmatch(text)
    if encoded is None:
        return text
    raw = base64.b64decode(encoded[1])  # the comparison sees what this leaves out
    if base64.b64encode(raw).decode() != encoded[1]:
        raise ValueError("its Base64 is not in canonical form")
    return raw.decode("utf-8")


def check_headers(request: Request, names: Mapping[str, str]) -> None:
    """Compare the standard headers with the body; raises HeaderMismatch.

    `names` maps methods to the parameter that Mcp-Name mirrors. The version is compared
    only if the body has one: that it must is a rule of `_meta`.
    """
    headers, params = request.headers or {}, request.params
    version = headers.get("mcp-protocol-version")
    # http-25, http-31: a request without the header MUST be rejected
    if version is None:
        # versioning-10: SHOULD name the versions, also to those who know no better
        missing = "MCP-Protocol-Version is missing; this server speaks "
        raise _mismatch(missing + ", ".join(SUPPORTED_VERSIONS))
    meta = params.get("_meta")
    if isinstance(meta, dict) and isinstance(meta.get(META_PROTOCOL_VERSION), str):
        # http-26, http-27: MUST match, otherwise 400 and HeaderMismatch
        _compare("MCP-Protocol-Version", version, meta[META_PROTOCOL_VERSION])
    # http-32: REQUIRED headers
    _compare("Mcp-Method", headers.get("mcp-method"), request.method)
    source = names.get(request.method)
    mirrored = params.get(source) if source else None
    if isinstance(mirrored, str):
        # http-54, http-70: MUST be decoded before it is compared
        _compare("Mcp-Name", _decoded("Mcp-Name", headers), mirrored)


def _compare(name: str, header: str | None, body: str) -> None:
    # http-67: MUST reject what differs; values are case-sensitive
    if header != body:
        raise _difference(name, header, body)


def _difference(name: str, header: str | None, body: str) -> HeaderMismatch:
    found = "is missing" if header is None else f"says {header[:100]!r}"
    return _mismatch(f"{name} {found}, the body says {body[:100]!r}")


def _decoded(name: str, headers: Mapping[str, str]) -> str | None:
    text = headers.get(name.lower())
    try:
        return None if text is None else decode_header_value(text)
    except ValueError as error:
        raise _mismatch(f"{name} cannot be read: {error}") from None


def _mismatch(message: str) -> HeaderMismatch:
    return HeaderMismatch(f"Header mismatch: {message}")


class MirroredParameter(NamedTuple):
    """An `x-mcp-header` annotation: `Mcp-Param-{name}` mirrors the value at `path`."""

    name: str
    path: tuple[str, ...]
    type: str

    def value(self, arguments: JSON) -> JSON:
        """Return the argument at the path; None where it is absent or null."""
        for step in self.path:
            if not isinstance(arguments, dict):
                return None
            arguments = arguments.get(step)
        return arguments


def mirrored_parameters(schema: JSON) -> tuple[MirroredParameter, ...]:
    """Find the `x-mcp-header` annotations of an input schema.

    Raises ValueError for one that breaks a rule: a server refuses to register the tool,
    a client leaves the tool out.
    """
    found: dict[str, MirroredParameter] = {}
    for path, annotated in _annotated(schema, ()):
        # http-43, http-44, tools-28: MUST be reachable through `properties` alone
        if not path:
            raise ValueError("x-mcp-header below anything but `properties`")
        parameter = _mirrored(annotated, path)
        # http-40, tools-25: MUST be unique, case-insensitively
        if parameter.name.lower() in found:
            raise ValueError(f"x-mcp-header {parameter.name!r} occurs more than once")
        found[parameter.name.lower()] = parameter
    return tuple(found.values())


def _annotated(
    schema: JSON, path: tuple[str, ...] | None
) -> Iterator[tuple[Any, JSON]]:
    """Yield annotated subschemas, each with its path, None off that of `properties`."""
    if isinstance(schema, list):
        for one in schema:
            yield from _annotated(one, None)
    if not isinstance(schema, dict):
        return
    if "x-mcp-header" in schema:
        yield path, schema
    for keyword, value in schema.items():
        if keyword in _BY_NAME and isinstance(value, dict):
            above = path if keyword == "properties" else None
            for name, inner in value.items():
                yield from _annotated(inner, None if above is None else (*above, name))
        elif keyword not in _DATA:
            yield from _annotated(value, None)


def _mirrored(schema: JSON, path: tuple[str, ...]) -> MirroredParameter:
    name, kind = schema["x-mcp-header"], schema.get("type")
    where = f"x-mcp-header {name!r} of {'.'.join(path)}"
    # http-37, http-38, http-39, tools-22 to tools-24: MUST be a non-empty token
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ValueError(f"{where} is not an HTTP token")
    # A parameter that may be absent as null keeps its type: null means no header.
    if isinstance(kind, list) and len(kind) == 2 and "null" in kind:
        kind = kind[kind[0] == "null"]
    # http-41, tools-26: MUST be a primitive type, and not `number`
    if kind not in ("string", "integer", "boolean"):
        raise ValueError(f"{where} is on type {kind!r}: string, integer, boolean only")
    return MirroredParameter(name, path, kind)


def check_mirrored(
    parameters: Iterable[MirroredParameter],
    arguments: JSON,
    headers: Mapping[str, str],
) -> None:
    """Compare the Mcp-Param-* headers of a call with its arguments.

    Raises HeaderMismatch. http-58: headers that no annotation names are ignored.
    """
    for parameter in parameters:
        name = f"Mcp-Param-{parameter.name}"
        text = _decoded(name, headers)
        value = parameter.value(arguments)
        # http-63, http-64: null or absent: the header is not expected
        # http-62, http-65: given: the header MUST be there and match
        if not _same(parameter.type, text, value):
            raise _difference(name, text, str(value))


def _same(kind: str, text: str | None, value: JSON) -> bool:
    if text is None or value is None:
        return text is None and value is None
    if kind == "integer" and type(value) in (int, float):
        # http-68: SHOULD compare numerically, so that 42.0 equals 42
        # http-42, tools-27: integers MUST be within the safe range
        plain = re.fullmatch(_HEADER_INTEGER, text)
        return bool(plain) and abs(value) <= SAFE_INTEGER and float(text) == value
    return isinstance(value, (str, int)) and text == _header_text(value)


# --- plain functions in threads -------------------------------------------------------


class Workers:
    """Daemon threads for plain `def` handlers, started on demand, `limit` at the most.

    The event loop never waits for them: when all are busy, run() refuses at once.
    Results go back in batches, one wake-up each; the stock executor costs five times
    as much.
    """

    def __init__(self, limit: int = WORKER_THREADS) -> None:
        self.limit = limit
        self._jobs: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0
        self._done: dict[asyncio.AbstractEventLoop, list[tuple[Any, ...]]] = {}

    async def run(
        self, function: Callable[..., Any], arguments: Mapping[str, Any]
    ) -> Any:
        """Call `function(**arguments)` in a thread, in a copy of our contextvars.

        Raises Overloaded. Cancelling abandons the thread's result, not the thread.
        """
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        call = functools.partial(contextvars.copy_context().run, function, **arguments)
        with self._lock:
            if self._busy >= self.limit:
                raise Overloaded(f"All {self.limit} worker threads are busy")
            self._busy += 1
            start = self._busy > self._threads
            self._threads += start
        self._jobs.put((call, loop, future))
        if start:
            _start_thread("mcp_ref", self._work)
        return await future

    def _work(self) -> None:
        while True:
            self._run(*self._jobs.get())

    def _run(
        self,
        call: Callable[[], Any],
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
    ) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = call()
        except (StopIteration, KeyboardInterrupt, GeneratorExit) as caught:
            # A future refuses the first, the event loop ends at the second.
            error = RuntimeError(repr(caught))
        except BaseException as caught:
            error = caught
        with self._lock:
            self._busy -= 1
            waiting = self._done.setdefault(loop, [])
            waiting.append((future, value, error))
            first = len(waiting) == 1
        if first:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._drain, loop)

    def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            waiting = self._done.pop(loop)
        for future, value, error in waiting:
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)


# --- stdio                                             spec: basic/transports/stdio ---
#
#   descriptor 0 --> private duplicate --> reader thread --> lines --> one task each
#   descriptor 1 --> private duplicate <-------------------- one write per message
#
# While serving, descriptor 0 is the null device and descriptor 1 is stderr, so neither
# print() nor a child process can touch the messages.


class LineSplitter:
    """Cut a byte stream at newlines, in linear time; lines over `limit` are None."""

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self.limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """Take bytes, return the lines that they complete."""
        *lines, rest = chunk.split(b"\n")
        found: list[bytes | None] = []
        for line in lines:
            self._add(line)
            found.append(self.end())
        self._add(rest)
        return found

    def end(self) -> bytes | None:
        """Return the line so far, complete or not, and start the next."""
        line = b"".join(self._parts) if self._size <= self.limit else None
        self._parts, self._size = [], 0
        return line

    @property
    def overflowing(self) -> bool:
        """Tell whether the line that is not yet complete is over the limit already."""
        return self._size > self.limit

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self.limit:
            self._parts.append(part)
        else:
            self._parts.clear()  # the rest of the line is only counted


async def serve_stdio(
    server: Server | Exchange,
    *,
    grace: float = STDIO_GRACE,
    limit: int = MAX_MESSAGE_BYTES,
) -> None:
    """Serve on standard input and output until end of file.

    After end of file, requests in flight have `grace` seconds to end. The process's
    standard streams work again when this returns.
    """
    with _private_stdio() as (source, sink):
        await _StdioServer(server, sink, limit).run(source, grace)


@contextlib.contextmanager
def _private_stdio() -> Iterator[tuple[int, int]]:
    """Duplicate descriptors 0 and 1 for the protocol; detach them from it meanwhile."""
    null = os.open(os.devnull, os.O_RDWR)
    saved = [_duplicate(number, null) for number in (0, 1)]
    try:
        _flush_stdout()
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # stderr is closed
            os.dup2(null, 1)
        yield saved[0], saved[1]
    finally:
        _flush_stdout()
        for number, private in enumerate(saved):
            os.dup2(private, number)
            os.close(private)
        os.close(null)


def _flush_stdout() -> None:
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sys.stdout.flush()


def _duplicate(number: int, null: int) -> int:
    try:
        private = os.dup(number)
    except OSError:  # it was closed when we started: end of file, nobody to write to
        return os.dup(null)
    with contextlib.suppress(AttributeError, OSError):
        os.set_blocking(private, True)  # whoever started us may want it otherwise
    if sys.platform == "win32":
        importlib.import_module("msvcrt").setmode(private, os.O_BINARY)
    return private


class _Sink:
    """The writing end: the loop writes what cannot block, a thread writes the rest.

    So a client that does not read its answers stops nothing but itself.
    """

    def __init__(self, descriptor: int, on_broken: Callable[[], None]) -> None:
        self.descriptor = descriptor
        self.on_broken = on_broken
        self.loop = asyncio.get_running_loop()
        self.waiting = 0  # bytes that the thread has still to write
        self.room = asyncio.Event()
        self.queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.started = False
        self.poll: Any = None
        if hasattr(select, "poll"):
            self.poll = select.poll()
            self.poll.register(descriptor, select.POLLOUT)

    def put(self, data: bytes) -> None:
        """Write, or let the thread write; messages keep their order."""
        small = not self.waiting and len(data) <= _ATOMIC
        if small and self.poll and self.poll.poll(0):
            self._write(data)
            return
        self.waiting += len(data)
        self.queue.put(data)
        if not self.started:
            self.started = True
            _start_thread("mcp_ref stdout", self._work)

    async def drain(self, limit: int = STDIO_BACKLOG) -> None:
        """Wait until no more than `limit` bytes are waiting."""
        while self.waiting > limit:
            self.room.clear()
            await self.room.wait()

    def _work(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            while True:
                data = self.queue.get()
                self._write(data)
                self.loop.call_soon_threadsafe(self._written, len(data))

    def _written(self, size: int) -> None:
        self.waiting -= size
        self.room.set()

    def _write(self, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:  # the client is gone
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.on_broken)


def _start_thread(name: str, target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(None, target, name, arguments, daemon=True).start()


# Up to so many bytes, a pipe that has room takes a write whole and at once.
_ATOMIC = getattr(select, "PIPE_BUF", 512)


def _exchange_of(server: Server | Exchange) -> Exchange:
    return server.handle if isinstance(server, Server) else server


def _end_streams(exchange: Exchange) -> None:
    """End a server's streams, also those below wrappers made with functools.wraps."""
    inner = inspect.unwrap(exchange)
    found = getattr(getattr(inner, "__self__", inner), "subscriptions", None)
    if isinstance(found, Subscriptions):
        found.end()


class _StdioServer:
    """One stdio connection: requests in flight by id, answers as they come."""

    def __init__(self, server: Server | Exchange, sink: int, limit: int) -> None:
        self.exchange = _exchange_of(server)
        self.ended = asyncio.Event()
        self.sink = _Sink(sink, self.ended.set)
        self.lines = LineSplitter(limit)
        self.tasks: dict[Id, asyncio.Task[None]] = {}
        self.stopped = False
        self.room = threading.Semaphore(STDIO_CHUNKS)
        self.first = True

    async def run(self, source: int, grace: float) -> None:
        _start_thread("mcp_ref stdin", self._read, source, self.sink.loop)
        try:
            await self.ended.wait()
            _end_streams(self.exchange)
            if self.tasks:
                await asyncio.wait(self.tasks.values(), timeout=grace)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.sink.drain(0), grace)
        finally:
            self.stopped = True
            # stdio-13: SHOULD exit promptly when the input ends
            for task in list(self.tasks.values()):
                task.cancel()

    def _read(self, source: int, loop: asyncio.AbstractEventLoop) -> None:
        """Drain the descriptor, also while a write blocks: no dead-lock with the peer.

        os.read works where asyncio's pipes do not: files, terminals, Windows.
        """
        with contextlib.suppress(RuntimeError):  # the loop has ended
            while True:
                try:
                    chunk = os.read(source, 65536)
                except OSError:
                    chunk = b""
                self.room.acquire()
                if self.stopped:  # the descriptor is no longer ours
                    return
                loop.call_soon_threadsafe(self._received, chunk)
                if not chunk:
                    return

    def _received(self, chunk: bytes) -> None:
        self.room.release()
        for line in self.lines.feed(chunk):
            self._line(line)
        if not chunk:
            last = self.lines.end()
            # A whole message without its newline is answered, half of one is dropped.
            if last and last.rstrip().endswith(b"}"):
                self._line(last)
            self.ended.set()

    def _line(self, line: bytes | None) -> None:
        """Take one message; nothing that a peer writes ends the loop."""
        try:
            if line is None:
                limit = self.lines.limit
                raise ParseError(f"A line of over {limit} bytes was skipped")
            if self.first:
                self.first, line = False, line.removeprefix(codecs.BOM_UTF8)
            line = line.strip()
            if not line:
                return
            data = decode(line)
            if "method" not in data and ("result" in data or "error" in data):
                # stdio-07: clients MUST NOT write responses; nobody waits for an answer
                _log.warning("ignored a response from the client")
                return
            message = read_message(data)
            if isinstance(message, Request):
                self._start(message)
            elif message.method == "notifications/cancelled":
                self._cancel(message.params)
        except McpError as error:
            self._write(error_response(getattr(error, "id", None), error))

    def _start(self, request: Request) -> None:
        # base-06: MUST NOT match the id of a request in flight
        if request.id in self.tasks:
            raise InvalidRequest("A request with this id is in flight", request.id)
        if len(self.tasks) >= REQUESTS_IN_FLIGHT:
            busy = Overloaded(f"{REQUESTS_IN_FLIGHT} requests are in flight")
            self._write(error_response(request.id, busy))
            return
        self.tasks[request.id] = asyncio.create_task(self._answer(request))

    def _cancel(self, params: dict[str, JSON]) -> None:
        """Cancel a request; cancellation-19: invalid ones SHOULD be ignored."""
        id = params.get("requestId")
        task = None
        if type(id) is str or type(id) is int:  # True is not 1
            task = self.tasks.pop(id, None)
        if task is not None:
            # cancellation-17: SHOULD log the reason
            _log.info("request %r was cancelled: %.200s", id, params.get("reason", ""))
            task.cancel()

    async def _answer(self, request: Request) -> None:
        task = asyncio.current_task()

        async def send(message: JSON) -> None:
            # stdio-11: MUST NOT send anything for a request that was cancelled
            if self.tasks.get(request.id) is task:
                self._write(message)
                await self.sink.drain()

        try:
            await send(await carry_out(self.exchange, request, send))
        finally:
            if self.tasks.get(request.id) is task:
                del self.tasks[request.id]

    def _write(self, message: JSON) -> None:
        """Write one message whole. stdio-04: nothing else goes to standard output."""
        self.sink.put(encode_response(message)[0] + b"\n")


# --- Streamable HTTP: server                 spec: basic/transports/streamable-http ---
#
#   POST /mcp   request       --> 200 application/json      the response or an error
#                             --> 200 text/event-stream     if a notification came first
#                                 data: {notification}
#                                 data: {response}
#               notification  --> 202
#               anything else --> 4xx, a JSON-RPC error
#
#   bytes -> _HttpConnection -> _HttpEndpoint.admit -> _HttpEndpoint.respond -> reply
#            framing            line and fields       body, exchange
#
# The rules are in _HttpEndpoint, once. The built-in server and the ASGI application
# know only how bytes come and go.

_Fields = tuple[tuple[str, str], ...]  # header fields of an answer

_JSON_FIELDS: _Fields = (("Content-Type", "application/json"),)
_STREAM_FIELDS: _Fields = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-cache, no-transform"),
    # http-22: SHOULD be included, so that proxies do not hold events back
    ("X-Accel-Buffering", "no"),
)
_KEEP_ALIVE = b":\n\n"  # an SSE comment
_METADATA_PATH = "/.well-known/oauth-protected-resource"
_SINGLETONS = frozenset(
    {
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "origin",
        "transfer-encoding",
    }
)
# Patterns that only an HTTP server needs are compiled when it first uses them.
_HOST = r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?"
_ORIGIN = rf"(https?)://{_HOST}"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii"})


class HttpLimits(NamedTuple):
    """What a server takes from its HTTP clients before it refuses or hangs up."""

    request_line: int = 8192
    """Bytes of the request line; more is 414."""
    header_bytes: int = 32768
    """Bytes of the request line and all header fields; more is 431."""
    header_count: int = 99
    """Header fields; more is 431. http.server cannot read more than 99."""
    body_bytes: int = 16 * 1024 * 1024
    """Bytes of a request body; more is 413."""
    waiting_bytes: int = 256 * 1024 * 1024
    """Bytes of all bodies that are not complete yet; more is 503."""
    chunk_overhead: int = 256 * 1024
    """Bytes of chunk sizes, chunk extensions and trailers of one body; more is 400."""
    header_seconds: float = 10.0
    """From the first byte, or the connection, to the end of the header; then 408."""
    body_seconds: float = 60.0
    """From the end of the header to the end of the body; then 408."""
    idle_seconds: float = 75.0
    """Between two requests of a connection; then it is closed."""
    blocked_seconds: float = 30.0
    """For a client to read 64 KiB of what waits for it; then it is cut off."""
    keep_alive_seconds: float = 15.0
    """Between the comments that keep a stream open."""
    shutdown_seconds: float = 2.0
    """For requests in flight when the server ends."""
    connections: int = 10_000
    """Open connections; more are answered 503 and closed."""
    requests: int = 1_000
    """Requests in flight, streams not counted; more are answered 503."""
    streams: int = 10_000
    """Open subscriptions/listen streams; more are answered 503."""


_DEFAULT_LIMITS = HttpLimits()


class _HttpAnswer(NamedTuple):
    """A whole answer; the transport adds what all have, such as CORS and the date."""

    status: int
    fields: _Fields = ()
    body: bytes = b""


class _HttpRefusal(Exception):
    """A request that is answered with an HTTP error; `why` becomes the JSON-RPC error.

    A text stands for an error whose code is the status, or -32600 for 400.
    """

    def __init__(
        self, status: int, why: str | McpError, *fields: tuple[str, str]
    ) -> None:
        super().__init__(status, why)
        if isinstance(why, str):
            why = McpError(why, code=-32600 if status == 400 else status)
        body = encode(error_response(getattr(why, "id", None), why))
        self.answer = _HttpAnswer(status, _JSON_FIELDS + fields, body)


class _HttpHead(NamedTuple):
    """What request line and header fields say; shared by requests that say the same."""

    headers: Mapping[str, str]
    """Lower-case name -> value, without Authorization."""
    token: str | None = None
    """The value of Authorization, for the verifier alone."""
    json: bool = True
    """The client takes a JSON answer."""
    stream: bool = True
    """The client takes an SSE stream."""
    fields: _Fields = ()
    """What goes out with all answers: CORS."""
    answer: _HttpAnswer | None = None
    """The answer, if it does not depend on the body."""

    # The rest is the framing, which is none of the endpoint's business.
    length: int = 0
    """Bytes of the body; -1 if it comes in chunks."""
    expects: bool = False
    close: bool = False
    old: bool = False
    """HTTP/1.0: no chunks."""
    bodiless: bool = False
    """HEAD: the answer has no body."""


class _HttpReply:
    """The answer to one request on its way out: one JSON object or an SSE stream."""

    __slots__ = ("head", "started")

    def __init__(self, head: _HttpHead) -> None:
        self.head = head
        self.started = False

    def write(
        self, status: int, fields: _Fields, body: bytes, last: bool = True
    ) -> Awaitable[None]:
        """Send a whole answer, or with _STREAM_FIELDS the next part of a stream."""
        raise NotImplementedError

    def send(self, message: JSON) -> Awaitable[None]:
        """Send a notification: the first one turns the answer into a stream.

        Dropped if the client does not take streams.
        """
        if not self.head.stream:
            return _DONE
        return self.write(200, _STREAM_FIELDS, _event(encode(message)), last=False)


_DONE = _Done()


def _event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


class _HttpEndpoint:
    """The MCP endpoint: what is answered, whoever moves the bytes.

    `allowed_hosts` are values of Host, with or without port; `allowed_origins` are
    origins such as "https://app.example". `verifier` is a Verifier or an Authorization.
    """

    def __init__(
        self,
        server: Server | Exchange,
        path: str,
        allowed_hosts: Iterable[str],
        allowed_origins: Iterable[str],
        limits: HttpLimits,
        verifier: Authorization | Verifier | None,
    ) -> None:
        self.exchange = _exchange_of(server)
        self.path = path.rstrip("/")
        self.allowed_hosts = frozenset(map(str.lower, allowed_hosts))
        self.allowed_origins = frozenset(map(_canonical_origin, allowed_origins))
        self.limits = limits
        if verifier is not None and not isinstance(verifier, Authorization):
            verifier = Authorization(verifier)
        self.authorization = verifier
        self.documents = verifier.documents if verifier else {}
        self.running = {"requests": 0, "streams": 0}

    # --- request line and header fields -----------------------------------------------

    def admit(
        self,
        method: str,
        path: str,
        query: str,
        fields: Iterable[tuple[str, str]],
        loopback: bool,
    ) -> _HttpHead:
        """Check everything that does not need the body.

        `loopback` tells that the server is bound to a loopback address.
        """
        headers: dict[str, str] = {}
        cors: _Fields = ()
        try:
            _collect(fields, headers)
            self._check_host(headers.get("host", "").lower(), loopback)
            answer = self._metadata(method, path)
            if answer is None:
                cors = self._check_origin(headers.get("origin"), loopback)
                answer = self._route(method, path, query, headers)
        except _HttpRefusal as refusal:
            answer = refusal.answer
        token = headers.pop("authorization", None)
        json, stream = _accepted(headers.get("accept", "*/*").lower())
        shown = types.MappingProxyType(headers)
        return _HttpHead(shown, token, json, stream, cors, answer)

    def _check_host(self, host: str, loopback: bool) -> None:
        """Refuse names that are not ours: a DNS rebinding page sends its own."""
        found = re.fullmatch(_HOST, host)
        if found is None:
            raise _HttpRefusal(400, "Host is missing or malformed")
        name = found[1]
        listed = not self.allowed_hosts.isdisjoint((host, name))
        if loopback:
            listed = listed or name.strip("[]") in LOOPBACK_HOSTS
        if not listed and (loopback or self.allowed_hosts):
            message = f"Host {host[:100]!r} is not in the option allowed_hosts"
            raise _HttpRefusal(403, message)

    def _check_origin(self, origin: str | None, loopback: bool) -> _Fields:
        """Return the CORS fields; without Origin it is not a browser."""
        if origin is None:
            return ()
        # http-02: MUST be validated; parsed, so that no prefix or substring passes
        found = re.fullmatch(_ORIGIN, origin)
        local = loopback and found and found[2].strip("[]") in LOOPBACK_HOSTS
        if not local and _canonical_origin(origin) not in self.allowed_origins:
            # http-03: MUST answer 403; "null" is an origin like any other
            message = f"Origin {origin[:100]!r} is not in the option allowed_origins"
            raise _HttpRefusal(403, message)
        return (
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", "WWW-Authenticate, Retry-After"),
            ("Vary", "Origin"),
        )

    def _metadata(self, method: str, path: str) -> _HttpAnswer | None:
        """Answer for the metadata document: public, for pages of all origins."""
        document = self.documents.get(path)
        if document is None:
            return None
        public = (("Access-Control-Allow-Origin", "*"),)
        if method == "OPTIONS":
            return _HttpAnswer(204, (*public, ("Access-Control-Allow-Methods", "GET")))
        if method not in ("GET", "HEAD"):
            raise _HttpRefusal(405, "Only GET is possible here", ("Allow", "GET"))
        return _HttpAnswer(200, _JSON_FIELDS + public, document)

    def _route(
        self, method: str, path: str, query: str, headers: Mapping[str, str]
    ) -> _HttpAnswer | None:
        # http-01: MUST be a single path; a slash at its end is never a redirect
        if path.rstrip("/") != self.path:
            raise _HttpRefusal(404, f"Nothing is here; the endpoint is {self.path}")
        if method == "OPTIONS":
            return _preflight(headers)
        if method != "POST":
            # http-76: GET and DELETE SHOULD be answered 405
            raise _HttpRefusal(405, "Only POST is possible", ("Allow", "POST, OPTIONS"))
        # auth-39: MUST NOT be in the query, where every log has it
        if re.search(r"(?:^|&)access_token=", query):
            raise _HttpRefusal(400, "A token must not be in the query string")
        self._check_content(headers)
        if self.authorization and "authorization" not in headers:
            raise self.authorization.unauthorized()
        return None

    def _check_content(self, headers: Mapping[str, str]) -> None:
        media, _, parameters = headers.get("content-type", "").partition(";")
        # Any other type would let a web page send requests without a preflight.
        if media.strip().lower() != "application/json":
            raise _HttpRefusal(415, "Content-Type must be application/json")
        charset = re.search(r"charset\s*=\s*\"?([^\s\";]*)", parameters.lower())
        if charset and charset[1] not in _UTF8:
            raise _HttpRefusal(415, "charset must be utf-8")
        if headers.get("content-encoding", "identity").lower() != "identity":
            message = "Content-Encoding must be identity"
            raise _HttpRefusal(415, message, ("Accept-Encoding", "identity"))
        if headers.get("expect", "100-continue").lower() != "100-continue":
            raise _HttpRefusal(417, "Expect can only be 100-continue")
        if _digits(headers.get("content-length", "0")) > self.limits.body_bytes:
            raise self.too_large()

    def too_large(self) -> _HttpRefusal:
        """Return the refusal of a body that is too long."""
        return _HttpRefusal(413, f"A body has at most {self.limits.body_bytes} bytes")

    # --- body -------------------------------------------------------------------------

    async def respond(self, reply: _HttpReply, body: bytes, peer: str | None) -> None:
        """Answer a POST; raises nothing but CancelledError."""
        head, principal = reply.head, None
        try:
            if self.authorization is not None:
                principal = await self.authorization.principal(head.token)
            message = read_message(
                decode(body), headers=head.headers, principal=principal, peer=peer
            )
            del body
            if isinstance(message, Notification):
                # http-13: MUST be 202 with no body
                answer = _HttpAnswer(202)
            else:
                answer = self._answer(await self._exchange(message, reply), reply)
        except _HttpRefusal as refusal:
            answer = refusal.answer
        except McpError as error:
            # http-14: MUST be an error status
            answer = self._answer(
                error_response(getattr(error, "id", None), error), reply
            )
        await reply.write(*answer)

    async def _exchange(self, request: Request, reply: _HttpReply) -> JSON:
        """Run the Exchange if there is room for one more."""
        kind = "streams" if request.method == "subscriptions/listen" else "requests"
        if kind == "streams" and not reply.head.stream:
            message = "subscriptions/listen takes Accept: text/event-stream"
            raise _HttpRefusal(406, InvalidRequest(message, request.id))
        limit = getattr(self.limits, kind)
        if self.running[kind] >= limit:
            busy = Overloaded(f"{limit} {kind} are open")
            return error_response(request.id, busy)
        self.running[kind] += 1
        try:
            return await carry_out(self.exchange, request, reply.send)
        finally:
            self.running[kind] -= 1

    def _answer(self, response: JSON, reply: _HttpReply) -> _HttpAnswer:
        """Write the response. http-16: MUST be JSON or an SSE stream."""
        data, response = encode_response(response)
        status, fields = 200, _JSON_FIELDS
        if "error" in response:
            status, fields = self._error_fields(response["error"])
        if reply.started or (status == 200 and not reply.head.json):
            # http-21: the response SHOULD terminate the stream
            return _HttpAnswer(200, _STREAM_FIELDS, _event(data))
        return _HttpAnswer(status, fields, data)

    def _error_fields(self, error: JSON) -> tuple[int, _Fields]:
        """Return status and fields for a JSON-RPC error."""
        status, data = HTTP_STATUS.get(error["code"], 200), error.get("data")
        data = data if isinstance(data, dict) else {}
        # What a gateway passes on is not to be trusted in a header.
        after, scopes = data.get("retryAfter"), data.get("requiredScopes")
        if status in (429, 503) and isinstance(after, int):
            return status, (*_JSON_FIELDS, ("Retry-After", str(after)))
        if status == 403 and self.authorization and isinstance(scopes, list):
            # auth-53: SHOULD be 403 with a challenge that names the scopes
            return status, (*_JSON_FIELDS, self.authorization.insufficient(scopes))
        return status, _JSON_FIELDS


def _collect(fields: Iterable[tuple[str, str]], headers: dict[str, str]) -> None:
    """Fill `headers`; a field that two parties could read differently is refused."""
    for field_name, text in fields:
        name, value = field_name.lower(), text.strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name.startswith("mcp-"):
            # http-67: of two values, one does not match the body
            raise _HttpRefusal(400, _mismatch(f"{name[:100]} occurs more than once"))
        elif name in _SINGLETONS:
            raise _HttpRefusal(400, f"{name} occurs more than once")
        else:
            headers[name] += ", " + value


def _canonical_origin(origin: str) -> str:
    """Bring an origin into one form: lower case, no default port."""
    found = re.fullmatch(_ORIGIN, origin.lower().rstrip("/"))
    return found[0].removesuffix(_DEFAULT_PORTS[found[1]]) if found else origin


def _preflight(headers: Mapping[str, str]) -> _HttpAnswer:
    fields: _Fields = (("Allow", "POST, OPTIONS"),)
    if "origin" in headers:
        # By name, because `*` does not cover Authorization, nor are there wildcards for
        # Mcp-Param-*.
        asked = _TOKEN.findall(headers.get("access-control-request-headers", ""))
        fields += (
            ("Access-Control-Allow-Methods", "POST"),
            ("Access-Control-Allow-Headers", ", ".join(asked)),
            ("Access-Control-Max-Age", "600"),
        )
    return _HttpAnswer(204, fields)


def _accepted(accept: str) -> tuple[bool, bool]:
    """Tell whether the client takes JSON and SSE. http-09 binds clients, so be lenient.

    The most specific range counts. A client that names neither gets JSON.
    """
    taken: dict[str, bool] = {}
    for one in accept.split(","):
        media, _, parameters = one.partition(";")
        refused = re.search(r"(^|;)\s*q\s*=\s*0(\.0*)?\s*(;|$)", parameters)
        taken[media.strip()] = not refused
    others = taken.get("*/*", False)
    stream = taken.get("text/event-stream", taken.get("text/*", others))
    json = taken.get("application/json", taken.get("application/*", others))
    return json or not stream, stream


# --- the built-in HTTP server: asyncio moves bytes, http.server reads the header ----

_HEAD_MEMO = 256  # header blocks remembered
_HEAD_MEMO_BYTES = 2048  # none that is longer
_DRAIN_BYTES = 65536  # of a refused request are skipped; more closes the connection
_PIPELINE_BYTES = 65536  # that arrive while a request runs; then reading waits
_CHUNK_LINE = 4096  # bytes of a chunk size or trailer
_LINGER_SECONDS = 2.0  # for a refused client to read the answer
# RFC 9112 without what its readers disagree about: no folded lines, no space before the
# colon, no bare CR or LF, no control characters.
_HEAD_GRAMMAR = (
    rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~]+ HTTP/[1-9]\.[0-9]\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)*\r\n"
)
_CREDENTIALS = rb"(?i)\r\nauthorization:[ \t]*([\t -~\x80-\xff]*)(?=\r\n)"
_SECRET_FIELDS = frozenset({"cookie", "proxy-authorization", "x-api-key"})
_CHUNK_SIZE = rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t -~\x80-\xff]*)?"
_TRAILER = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*"
# What a connection is doing; each has its own end of patience, see _HttpSite.patience.
_IDLE, _HEADER, _BODY, _RUNNING, _REFUSED, _CLOSING = range(6)


class _Chunks:
    """Decode a chunked body; extensions and trailers are skipped."""

    def __init__(self, endpoint: _HttpEndpoint) -> None:
        self.endpoint = endpoint
        self.data = bytearray()
        self.left = 0  # bytes of the chunk and its line end that are still to come
        self.trailers = False
        self.overhead = 0

    def feed(self, buffer: bytearray) -> bool:
        """Take what is there; True at the end. Raises _HttpRefusal."""
        while True:
            if self.left:
                taken = min(self.left, len(buffer))
                self.data += buffer[:taken]
                del buffer[:taken]
                self.left -= taken
                if self.left:
                    return False
                if not self.data.endswith(b"\r\n"):
                    raise _HttpRefusal(400, "A chunk does not end where its size says")
                del self.data[-2:]
            end = buffer.find(b"\r\n")
            if end < 0 and len(buffer) < _CHUNK_LINE:
                return False
            self.overhead += end + 4  # the two ends of line of a chunk
            if end < 0 or self.overhead > self.endpoint.limits.chunk_overhead:
                raise _HttpRefusal(400, "Too much between the chunks of the body")
            line = bytes(buffer[:end])
            del buffer[: end + 2]
            if not self.trailers:
                self._size(line)
            elif not line:
                return True
            elif not re.fullmatch(_TRAILER, line):
                raise _HttpRefusal(400, "A malformed trailer")

    def _size(self, line: bytes) -> None:
        found = re.fullmatch(_CHUNK_SIZE, line)
        if found is None:
            raise _HttpRefusal(400, "A malformed chunk size")
        size = int(found[1], 16)
        if len(self.data) + size > self.endpoint.limits.body_bytes:
            raise self.endpoint.too_large()
        self.trailers = size == 0
        self.left = size and size + 2


class _ConnectionReply(_HttpReply):
    """A reply that writes to a connection, one write per answer or event."""

    __slots__ = ("connection",)

    def __init__(self, head: _HttpHead, connection: _HttpConnection) -> None:
        self.head = head
        self.started = False
        self.connection: _HttpConnection | None = connection

    def write(
        self, status: int, fields: _Fields, body: bytes, last: bool = True
    ) -> Awaitable[None]:
        connection, head = self.connection, self.head
        if connection is None:
            return _DONE
        framing, data = b"", body
        if fields is not _STREAM_FIELDS:
            if status != 204:
                framing = b"Content-Length: %d\r\n" % len(body)
            if head.bodiless:
                data = b""
        elif not head.old:
            framing = b"Transfer-Encoding: chunked\r\n"
            end = b"\r\n0\r\n\r\n" if last else b"\r\n"
            data = b"%x\r\n%b%b" % (len(body), body, end)
        if not self.started:
            self.started = True
            close = head.close or connection.site.ending
            start = connection.site.prefix(status, fields + head.fields, close)
            data = b"%b%b\r\n%b" % (start, framing, data)
        connection.transport.write(data)
        if last:
            self.connection = None
            connection.finished(head.close)
        elif connection.waiter is not None:  # until the client has read enough
            return asyncio.shield(connection.waiter)
        return _DONE


class _HttpConnection(asyncio.Protocol):
    """One connection: requests are read, run and answered one after the other."""

    __slots__ = (
        "buffer",
        "chunks",
        "deadline",
        "head",
        "held",
        "peer",
        "reply",
        "site",
        "state",
        "task",
        "transport",
        "unread",
        "waiter",
    )
    transport: asyncio.Transport

    def __init__(self, site: _HttpSite) -> None:
        self.site = site
        self.buffer = bytearray()
        self.state = _HEADER
        self.deadline = math.inf
        self.head: _HttpHead | None = None
        self.chunks: _Chunks | None = None
        self.reply: _ConnectionReply | None = None
        self.task: asyncio.Task[None] | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.held = 0  # bytes of a body that is not complete
        self.unread = math.inf  # bytes, when it was last looked at while we wait
        self.peer: str | None = None

    # --- what asyncio calls ---------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else None
        self._await(_HEADER)
        self.site.connections.add(self)
        limit, count = self.site.limits.connections, len(self.site.connections)
        if count > 2 * limit:
            transport.abort()  # a flood: even refusals have to end somewhere
        elif count > limit:
            busy = Overloaded(f"{limit} connections are open")
            self._refuse(_HttpRefusal(503, busy, ("Retry-After", "1")))

    def data_received(self, data: bytes) -> None:
        if self.state >= _REFUSED:
            return
        self.buffer += data
        if self.task is None:
            self._advance()
        if len(self.buffer) > _PIPELINE_BYTES and (self.task or self.waiter):
            self.transport.pause_reading()

    def eof_received(self) -> None:
        """Treat the end of input as the end of the client.

        A client that only closed its sending side looks the same, and waiting for a
        write to fail would leave work running that nobody wants: http-23,
        cancellation-04. Answers that are ready are still written.
        """
        self._cancel()
        self._await(_CLOSING)

    def connection_lost(self, error: Exception | None) -> None:
        self.site.connections.discard(self)
        self._hold(0)
        self._cancel()
        self._wake()

    def pause_writing(self) -> None:
        self.waiter = self.site.loop.create_future()
        self.unread = math.inf
        self.deadline = 0.0  # the next look finds out what is unread

    def resume_writing(self) -> None:
        self._wake()
        self._await(self.state)
        if self.state < _RUNNING:
            self._advance()

    # --- reading --------------------------------------------------------------------

    def _advance(self) -> None:
        """Take requests from the buffer until one runs or is not complete."""
        if not self.transport.is_reading() and not self.transport.is_closing():
            self.transport.resume_reading()
        try:
            while not (self.task or self.waiter or self.state >= _REFUSED):
                head = self.head or self._read_head()
                if head is None or not self._read_body(head):
                    return
        except _HttpRefusal as refusal:
            self._refuse(refusal)

    def _read_head(self) -> _HttpHead | None:
        """Read a header block; None if it is not complete, or nothing follows it."""
        buffer, site = self.buffer, self.site
        while buffer.startswith(b"\r\n"):  # RFC 9112 2.2
            del buffer[:2]
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            site.check_size(buffer)
            if buffer.count(b"\n") > buffer.count(b"\r\n"):
                raise _HttpRefusal(400, "A line must end with CR and LF")
            if buffer and self.state == _IDLE:
                self._await(_HEADER)
            return None
        block = bytes(buffer[: end + 4])
        del buffer[: end + 4]
        self.head = head = site.read_head(block)
        if head.answer is not None:
            _ConnectionReply(head, self).write(*head.answer)
            self.head = head  # whose body is skipped, unless the connection is closed
        return head if self.state < _REFUSED else None

    def _read_body(self, head: _HttpHead) -> bool:
        """Read a body and start its task; False if it is not complete."""
        buffer = self.buffer
        if head.length < 0:
            self.chunks = self.chunks or _Chunks(self.site.endpoint)
            complete = self.chunks.feed(buffer)
        else:
            complete = len(buffer) >= head.length
        if not complete:
            self._wait_for_body(head)
            return False
        if self.chunks:
            body = bytes(self.chunks.data)
            self.chunks = None
        else:
            body = bytes(buffer[: head.length])
            del buffer[: head.length]
        self._hold(0)
        if head.answer is not None:
            self.head = None
            self._await(_IDLE)
            return True
        self._await(_RUNNING)
        self.reply = reply = _ConnectionReply(head, self)
        self.task = self.site.loop.create_task(self._run(reply, body))
        return True

    def _wait_for_body(self, head: _HttpHead) -> None:
        self._hold(len(self.buffer) + len(self.chunks.data if self.chunks else b""))
        if self.site.held > self.site.limits.waiting_bytes:
            busy = Overloaded("Too many requests are being received")
            raise _HttpRefusal(503, busy, ("Retry-After", "1"))
        if self.state == _BODY:
            return
        self._await(_BODY)
        if head.expects and not self.buffer:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _hold(self, size: int) -> None:
        self.site.held += size - self.held
        self.held = size

    async def _run(self, reply: _ConnectionReply, body: bytes) -> None:
        try:
            responding = self.site.endpoint.respond(reply, body, self.peer)
            del body
            await responding
        finally:
            self.task = None
            if reply.connection is not None:  # cancelled before there was an answer
                reply.connection = None
                self.transport.abort()
        if self.buffer or not self.transport.is_reading():
            # Not from here: the next task would inherit this one's context variables.
            self.site.loop.call_soon(self._advance, context=self.site.context)

    # --- after an answer ------------------------------------------------------------

    def finished(self, close: bool) -> None:
        """Go on after an answer."""
        self.head = self.reply = None
        if self.site.ending:
            self.close()
        elif close:
            self._linger()
        else:
            self._await(_IDLE)

    def _refuse(self, refusal: _HttpRefusal) -> None:
        """Answer what cannot be read on, unless it was answered already, and close."""
        head = (self.head or _HttpHead({}))._replace(close=True)
        if head.answer is None:
            _ConnectionReply(head, self).write(*refusal.answer)
        else:
            self._linger()

    def _linger(self) -> None:
        """Close so that the client can read the answer: unread input would reset it.

        What still comes is thrown away until the client closes; with TLS there is no
        other way to say that we are done than to close.
        """
        self.buffer.clear()
        self.head = self.chunks = None
        self._hold(0)
        self._await(_CLOSING if self.task else _REFUSED)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        elif self.task:
            self.transport.close()

    # --- the end --------------------------------------------------------------------

    def close(self) -> None:
        """Close when everything is written."""
        self._await(_CLOSING)
        self.transport.close()

    def abort(self) -> None:
        """End at once."""
        self._cancel()
        self.transport.abort()

    def _cancel(self) -> None:
        """Stop the running request. http-24: MUST NOT send anything more for it."""
        if self.reply is not None:
            self.reply.connection = None
        if self.task is not None:
            self.task.cancel()

    def _wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.set_result(None)

    def _await(self, state: int) -> None:
        self.state = state
        if self.waiter is None:
            self.deadline = self.site.loop.time() + self.site.patience[state]

    def expire(self, now: float) -> None:
        """Act on a deadline that has passed."""
        if self.waiter is not None:
            size = self.transport.get_write_buffer_size()
            if self.unread - size < 65536:
                _log.info("%s does not read; it is cut off", self.peer)
                self.transport.abort()
                return
            self.unread = size
            self.deadline = now + self.site.limits.blocked_seconds
        elif self.state == _RUNNING:
            self._await(_RUNNING)
            if self.reply is not None and self.reply.started:
                self.reply.write(200, _STREAM_FIELDS, _KEEP_ALIVE, last=False)
        elif self.state >= _REFUSED:
            self.transport.abort()
        elif self.state == _IDLE or not (self.buffer or self.head):
            self.close()
        else:
            self._refuse(_HttpRefusal(408, "The request took too long to arrive"))


class _HttpSite:
    """What the connections of a built-in server share."""

    def __init__(self, endpoint: _HttpEndpoint, loopback: bool) -> None:
        self.endpoint = endpoint
        self.limits = limits = endpoint.limits
        self.patience = (  # seconds, by what a connection is doing
            limits.idle_seconds,
            limits.header_seconds,
            limits.body_seconds,
            limits.keep_alive_seconds,
            _LINGER_SECONDS,
            limits.blocked_seconds,
        )
        self.loopback = loopback
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()
        self.connections: set[_HttpConnection] = set()
        self.held = 0  # bytes of bodies that are not complete
        self.ending = False
        self.grammar = _grammar()
        self.memo: dict[bytes, _HttpHead] = {}
        self.prefix = functools.lru_cache(_HEAD_MEMO)(self._prefix)
        self.date = self.grammar.now()

    def read_head(self, block: bytes) -> _HttpHead:
        """Parse a header block, or remember it; raises _HttpRefusal.

        Credentials are cut out before: only that there were some is remembered.
        """
        found = self.memo.get(block)
        if found is not None:
            return found
        self.check_size(block)
        given = re.findall(_CREDENTIALS, block)
        if given:
            block = re.sub(_CREDENTIALS, rb"\r\nAuthorization:", block)
            found = self.memo.get(block)
        if found is None:
            found = self._parse(block)
            # A refused one may hold secrets in fields that were not looked at any more.
            good = found.answer is None and _SECRET_FIELDS.isdisjoint(found.headers)
            if good and len(block) <= _HEAD_MEMO_BYTES:
                if len(self.memo) >= _HEAD_MEMO:
                    self.memo.clear()
                self.memo[block] = found
        if given:
            found = found._replace(token=given[0].decode("latin-1").strip(" \t"))
        return found

    def check_size(self, block: bytes | bytearray) -> None:
        """Refuse a header block, complete or not, that is over a limit."""
        limits, line = self.limits, block.find(b"\n")
        if (line if line >= 0 else len(block)) > limits.request_line:
            raise _HttpRefusal(414, f"At most {limits.request_line} bytes")
        if len(block) > limits.header_bytes:
            raise _HttpRefusal(431, f"A header has at most {limits.header_bytes} bytes")
        if block.count(b"\n") - 2 > limits.header_count:
            message = f"A header has at most {limits.header_count} fields"
            raise _HttpRefusal(431, message)

    def _parse(self, block: bytes) -> _HttpHead:
        if not re.fullmatch(_HEAD_GRAMMAR, block):
            raise _HttpRefusal(400, "The request line or a header field is malformed")
        parsed = self.grammar(block)
        # http.server drops everything after a line that it cannot read
        if len(parsed.headers) != block.count(b"\n") - 2:
            raise _HttpRefusal(400, "A header field is malformed")
        target = _origin_form(parsed.path, parsed.headers["host"])
        path, _, query = target.partition("?")
        method, fields = parsed.command, parsed.headers.items()
        head = self.endpoint.admit(method, path, query, fields, self.loopback)
        old = parsed.request_version == "HTTP/1.0"
        options = head.headers.get("connection", "").lower()
        length = _body_length(head.headers, old)
        expects = "expect" in head.headers and not old
        close = old or "close" in re.split(r"[ \t,]+", options)
        if head.answer is not None:
            # It needs no body, which is skipped, or the connection closed.
            close = close or expects or head.answer.status in (400, 413)
            close = close or not 0 <= length <= _DRAIN_BYTES
        return head._replace(
            length=length,
            expects=expects,
            close=close,
            old=old,
            bodiless=method == "HEAD",
        )

    def _prefix(self, status: int, fields: _Fields, close: bool) -> bytes:
        """Return status line and fields; `prefix` remembers them for a second."""
        phrase = self.grammar.responses[status][0]
        lines = f"HTTP/1.1 {status} {phrase}\r\nDate: {self.date}\r\n"
        lines += "".join(f"{name}: {value}\r\n" for name, value in fields)
        if close:
            lines += "Connection: close\r\n"
        return lines.encode("latin-1")

    async def watch(self) -> None:
        """Act on deadlines: one timer for all connections."""
        pause = min(1.0, max(0.01, min(self.patience) / 2))
        while True:
            self.date = self.grammar.now()
            self.prefix.cache_clear()
            await asyncio.sleep(pause)
            now = self.loop.time()
            for connection in list(self.connections):
                if connection.deadline <= now:
                    connection.expire(now)

    async def end(self) -> None:
        """End gracefully: streams get their result, requests in flight some time."""
        self.ending = True
        try:
            # subscriptions-07, subscriptions-08: SHOULD send the result, then close
            _end_streams(self.endpoint.exchange)
            for connection in list(self.connections):
                if connection.task is None:
                    connection.close()
            await _until(lambda: not self.connections, self.limits.shutdown_seconds)
        finally:
            tasks = [one.task for one in self.connections if one.task is not None]
            for connection in list(self.connections):
                connection.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=self.limits.shutdown_seconds)
        await asyncio.sleep(0)  # lets the sockets be closed


async def _until(done: Callable[[], bool], seconds: float) -> None:
    """Wait for something that nobody announces, so many seconds at the most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not done():
                await asyncio.sleep(0.01)


def _origin_form(target: str, host: str | None) -> str:
    """Return path and query; RFC 9112 3.2.2: the absolute form MUST be accepted too."""
    found = re.fullmatch(r"https?://([^/?#]*)(.*)", target, re.IGNORECASE)
    if found is None:
        return target
    if host is None or host.strip(" \t") != found[1]:
        raise _HttpRefusal(400, "Request line and Host name different hosts")
    return found[2] if found[2].startswith("/") else "/" + found[2]


def _body_length(headers: Mapping[str, str], old: bool) -> int:
    """Return the length of the body, -1 for chunks; refuse what is ambiguous."""
    coding = headers.get("transfer-encoding")
    if coding is None:
        return _digits(headers.get("content-length", "0"))
    if "content-length" in headers or old:
        raise _HttpRefusal(400, "Transfer-Encoding must not be used here")
    if coding.lower() != "chunked":
        raise _HttpRefusal(501, "Transfer-Encoding can only be chunked")
    return -1


def _digits(length: str) -> int:
    """Read a Content-Length: int() would take +20, 2_0 and digits of other scripts."""
    if not re.fullmatch(r"[0-9]+", length):
        raise _HttpRefusal(400, "Content-Length must be digits")
    if len(length) > 18:
        raise _HttpRefusal(413, "Content-Length is too large")
    return int(length)


def _grammar() -> Any:
    """Return the class that parses a header block; http.server is imported here."""
    import email.utils
    import http.server
    import io

    class Grammar(http.server.BaseHTTPRequestHandler):
        def __init__(self, block: bytes) -> None:
            self.rfile = io.BytesIO(block)
            self.raw_requestline = self.rfile.readline()
            self.parse_request()

        def send_error(
            self, code: int, message: str | None = None, explain: str | None = None
        ) -> None:
            raise _HttpRefusal(int(code), message or "")

        @staticmethod
        def now() -> str:
            return email.utils.formatdate(usegmt=True)

    return Grammar


async def serve_http(
    server: Server | Exchange,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    path: str = "/mcp",
    allowed_hosts: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    limits: HttpLimits = _DEFAULT_LIMITS,
    ssl: Any = None,
    verifier: Authorization | Verifier | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve Streamable HTTP until cancelled, then end gracefully.

    "localhost" listens on IPv4 and IPv6. Port 0 takes a free one; `on_ready` is told
    the URL. `ssl` is an SSLContext. On a loopback address only loopback names pass as
    Host, and loopback origins as Origin; elsewhere every Host passes unless
    `allowed_hosts` says which.
    """
    endpoint = _HttpEndpoint(
        server, path, allowed_hosts, allowed_origins, limits, verifier
    )
    # http-05: SHOULD bind only to localhost when running locally, hence the default
    loopback = _is_loopback(host)
    if not loopback and not endpoint.allowed_hosts:
        _log.warning("%s is reachable from elsewhere; allowed_hosts is not set", host)
    site = _HttpSite(endpoint, loopback)
    listeners: list[asyncio.Server] = []
    try:
        port = await _listen_on(site, host, port, ssl, listeners)
        if on_ready is not None:
            name = "localhost" if host in ("", "0.0.0.0", "::") else host
            name = f"[{name}]" if ":" in name else name
            on_ready(f"{'https' if ssl else 'http'}://{name}:{port}{path}")
        await site.watch()
    finally:
        for listener in listeners:
            listener.close()
        await site.end()


def _is_loopback(host: str) -> bool:
    return host in LOOPBACK_HOSTS or host.startswith("127.")


async def _listen_on(
    site: _HttpSite, host: str, port: int, ssl: Any, listeners: list[asyncio.Server]
) -> int:
    """Add the listeners of a host; returns their port."""
    for address in ("127.0.0.1", "::1") if host == "localhost" else (host,):
        try:
            listener = await site.loop.create_server(
                lambda: _HttpConnection(site), address, port, backlog=1024, ssl=ssl
            )
        except OSError:
            if not listeners:
                raise
            break  # there is no IPv6 here
        port = listener.sockets[0].getsockname()[1]
        listeners.append(listener)
    return port


# --- ASGI: the same endpoint in somebody else's HTTP server ---------------------------

_Event = dict[str, Any]
_Receive = Callable[[], Awaitable[_Event]]
_Transmit = Callable[[_Event], Awaitable[None]]


def asgi_app(
    server: Server | Exchange,
    *,
    path: str = "/mcp",
    allowed_hosts: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    limits: HttpLimits = _DEFAULT_LIMITS,
    verifier: Authorization | Verifier | None = None,
) -> Callable[[_Event, _Receive, _Transmit], Awaitable[None]]:
    """Make an ASGI 3 application, for uvicorn and others, or to mount in a framework.

    `path` is relative to the place where it is mounted. Loopback rules hold where the
    server's own address (`scope["server"]`) is one. Limits of lines, headers, idle time
    and connections are the ASGI server's. Streams end when the lifespan does; a server
    that waits for connections first needs a limit (uvicorn: timeout_graceful_shutdown).
    """
    return _AsgiApp(server, path, allowed_hosts, allowed_origins, limits, verifier)


class _AsgiReply(_HttpReply):
    """A reply that goes out as ASGI events."""

    def __init__(self, head: _HttpHead, transmit: _Transmit, patience: float) -> None:
        super().__init__(head)
        self.transmit = transmit
        self.patience = patience
        self.watch: asyncio.Future[None] | None = None
        self.lock = asyncio.Lock()  # a comment must not cut an event in two
        self.ended = False

    async def write(
        self, status: int, fields: _Fields, body: bytes, last: bool = True
    ) -> None:
        if fields is not _STREAM_FIELDS and status != 204:
            fields = (*fields, ("Content-Length", str(len(body))))
        fields += self.head.fields
        try:
            async with self.lock, asyncio.timeout(self.patience):
                if self.ended:  # a comment that came too late
                    return
                self.ended = last
                if not self.started:
                    self.started = True
                    raw = [(k.lower().encode(), v.encode("latin-1")) for k, v in fields]
                    start = {"type": "http.response.start", "status": status}
                    await self.transmit({**start, "headers": raw})
                event = {"type": "http.response.body", "body": body}
                await self.transmit({**event, "more_body": not last})
        except OSError:  # TimeoutError is one: who does not read counts as gone
            if self.watch is not None:
                self.watch.cancel()


class _AsgiApp(_HttpEndpoint):
    """The ASGI application."""

    async def __call__(self, scope: _Event, receive: _Receive, send: _Transmit) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise ValueError(f"ASGI scope {scope['type']!r} is not served here")

    async def _lifespan(self, receive: _Receive, send: _Transmit) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()  # the shutdown
        _end_streams(self.exchange)
        running = self.running.values()
        await _until(lambda: not any(running), self.limits.shutdown_seconds)
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: _Event, receive: _Receive, send: _Transmit) -> None:
        head = self._admit(scope)
        reply = _AsgiReply(head, send, self.limits.blocked_seconds)
        answer = head.answer
        try:
            body = None if answer else await self._body(receive)
        except _HttpRefusal as refusal:
            answer = refusal.answer
        if answer is not None:
            await reply.write(*answer)
        elif body is not None:
            client = scope.get("client")
            work = self.respond(reply, body, client and str(client[0]))
            del body
            await self._attend(reply, asyncio.ensure_future(work), receive)

    def _admit(self, scope: _Event) -> _HttpHead:
        pairs = scope["headers"]
        fields = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in pairs]
        root = scope.get("root_path", "").rstrip("/")
        path = scope["path"].removeprefix(root)
        query = scope.get("query_string", b"").decode("latin-1")
        loopback = _is_loopback((scope.get("server") or ("",))[0])
        return self.admit(scope["method"], path, query, fields, loopback)

    async def _body(self, receive: _Receive) -> bytes | None:
        """Read the body; None if the client is gone."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while True:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        return None
                    body += event.get("body", b"")
                    if len(body) > self.limits.body_bytes:
                        raise self.too_large()
                    if not event.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise _HttpRefusal(408, "The request took too long to arrive") from None

    async def _attend(
        self, reply: _AsgiReply, work: asyncio.Future[None], receive: _Receive
    ) -> None:
        """Wait for the answer; a disconnect cancels it. Keeps quiet streams alive."""
        reply.watch = watch = asyncio.ensure_future(_disconnected(receive))
        patience, done = self.limits.keep_alive_seconds, set[Any]()
        either, first = {work, watch}, asyncio.FIRST_COMPLETED
        try:
            while not done:
                if reply.started:
                    await reply.write(200, _STREAM_FIELDS, _KEEP_ALIVE, last=False)
                done, _ = await asyncio.wait(
                    either, timeout=patience, return_when=first
                )
        finally:
            # http-23, cancellation-04: MUST be treated as cancellation
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)


async def _disconnected(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# --- client transports ----------------------------------------------------------------
#
#   await transport(request, send)      one Exchange per server
#
#   stdio   one process for all requests; answers find their request by id,
#           notifications by progressToken or subscriptionId; giving up = cancelled
#   HTTP    one POST per request, answered as JSON or as an SSE stream;
#           giving up = closing the connection

STDERR_TAIL = 8192  # bytes of a server's stderr that are kept
SHUTDOWN_STEP = 2.0  # seconds before the next rung of the shutdown ladder
LAST_WORDS = 0.5  # seconds for output that is still in the pipes of a dead process
RESTARTS = 3  # failed starts in a row before a server is given up
INBOX_SIZE = 1000  # notifications that wait for one request's `send`


class TransportError(ConnectionError):
    """The server cannot be reached, has stopped, or answered what is not MCP.

    Whatever fails that is neither the peer's JSON-RPC error (RemoteError) nor a timeout
    (TimeoutError) is this one exception. `status` and `headers` are those of the HTTP
    answer, if there was one.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class PostAnswer(dict[str, JSON]):
    """A response and the HTTP status that it came with."""

    status = 200


def _from_server(data: bytes) -> JSON | None:
    """Read a response or a notification; report and drop what else a server sends."""
    try:
        message = decode(data)
    except McpError as error:
        _log.warning("not a message: %.200r (%s)", data, error.message)
        return None
    method = message.get("method", "")
    if not isinstance(method, str):
        _log.warning("not a message: %.200r", data)
        return None
    if "method" in message and "id" in message:
        # stdio-07: MUST NOT answer; patterns-01, http-20: a server MUST NOT ask
        _log.warning("ignored a request from the server: %.100s", method)
        return None
    return message


def _torn_down(message: JSON, request: Request) -> JSON | None:
    """Return the result that a server's notifications/cancelled stands for, or None.

    The pages on cancellation and on subscriptions differ in how a server ends a listen
    stream: notification or result. To us both are the graceful end.
    """
    if message.get("method") != "notifications/cancelled":
        return None
    params = _as_object(message.get("params"))
    # cancellation-12: MUST reference a subscriptions/listen request
    listening = request.method == "subscriptions/listen"
    if not listening or not _same_id(params.get("requestId"), request.id):
        return None
    # cancellation-17: SHOULD log the reason
    _log.info("the server ended a stream: %.200s", params.get("reason", ""))
    meta = {META_SUBSCRIPTION_ID: request.id}
    return result_response(request.id, {"resultType": COMPLETE, "_meta": meta})


def _same_id(one: JSON, other: JSON) -> bool:
    # bool is an int only to Python, and None is no id
    return type(one) in (str, int) and (type(one), one) == (type(other), other)


# --- stdio client                                      spec: basic/transports/stdio ---

_SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)


class _Call:
    """One request in flight: what arrived for it and was not looked at yet."""

    __slots__ = ("inbox", "meta", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.meta = _as_object(request.params.get("_meta"))
        self.inbox: asyncio.Queue[JSON | TransportError] = asyncio.Queue(INBOX_SIZE)

    def put(self, message: JSON | TransportError) -> None:
        if self.inbox.full():
            _log.warning("request %r: too slow a reader", self.request.id)
            self.inbox.get_nowait()
        self.inbox.put_nowait(message)


class _ServerProcess(asyncio.SubprocessProtocol):
    """One run of a server: its pipes, and the requests that wait for its answers."""

    usable = True  # somebody to write to, and somebody to hear
    proven = False
    _overflow = False

    def __init__(self, limit: int, on_stderr: Callable[[bytes], None] | None) -> None:
        self.calls: dict[Id, _Call] = {}
        self.tail = bytearray()
        self.loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = self.loop.create_future()
        self.over: asyncio.Future[None] = self.loop.create_future()
        self._lines = LineSplitter(limit)
        self._on_stderr = on_stderr
        self._room = asyncio.Event()
        self._room.set()

    # --- what asyncio calls -----------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.process: asyncio.SubprocessTransport = transport
        self.stdin: asyncio.WriteTransport = transport.get_pipe_transport(0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            for line in self._lines.feed(data):
                self._line(line)
            if self._lines.overflowing:
                self._overflown()
            return
        # stdio-03: stderr is not a sign of an error; drained, or the server would block
        self.tail += data
        del self.tail[:-STDERR_TAIL]
        if self._on_stderr is not None:
            self._on_stderr(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and (last := self._lines.end()):
            self._line(last)
        if fd != 2:
            self._closing()

    def process_exited(self) -> None:
        self.exited.set_result(None)
        self._closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()  # it has exited, and all its output was read

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    # --- the end ----------------------------------------------------------------------

    def _closing(self) -> None:
        """Use it no more; it ends soon, if connection_lost() does not come before.

        Not at once, because answers may still be in the pipe; not later, because a
        grandchild may hold the pipe open for ever.
        """
        self.usable = False
        self.loop.call_later(LAST_WORDS, self._end)

    def _end(self) -> None:
        if not self.over.done():
            self.usable = False
            self.over.set_result(None)
            self.fail(self.obituary())
            self._room.set()

    def fail(self, reason: str) -> None:
        """Make every request in flight fail."""
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.put(TransportError(reason))

    def obituary(self) -> str:
        """Say how the process ended, and the last lines that it wrote to stderr."""
        status = self.process.get_returncode()
        if status is None:
            text = "The server closed its pipes"
        elif status < 0:
            text = f"The server was ended by signal {-status}"
        else:
            text = f"The server exited with status {status}"
        tail = self.tail.decode("utf-8", "replace").strip().splitlines()[-10:]
        if tail:
            text += ", after writing to stderr:"
        return "\n  ".join([text, *tail])

    async def stop(self, step: float) -> None:
        """Climb the ladder: close the input, SIGTERM, SIGKILL; then what it started."""
        self.fail("The connection to the server was closed")
        self._end()
        # stdio-12: SHOULD close the input, wait, and only then use force
        self.stdin.close()
        for number in (signal.SIGTERM, _SIGKILL):
            await asyncio.wait([self.exited], timeout=step)
            if self.exited.done():
                break
            self._signal(number)
        await asyncio.wait([self.exited], timeout=step)
        for _ in range(10):
            if not self._signal(signal.SIGTERM):
                break
            await asyncio.sleep(0.02)
        else:
            self._signal(_SIGKILL)
        self.process.close()
        await asyncio.sleep(0)  # asyncio closes the pipes in its next round

    def _signal(self, number: int) -> bool:
        """Signal the process group; False when nobody is left in it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.get_pid(), number)
                return True
            self.process.send_signal(number)
        return False

    # --- messages ---------------------------------------------------------------------

    def write(self, message: JSON) -> None:
        """Write one message; stdio-05: nothing else goes to the server's input."""
        self.stdin.write(encode(message) + b"\n")

    async def exchange(self, request: Request, send: Send) -> JSON:
        """Send one request and wait for its answer."""
        await self._room.wait()
        if self.over.done():
            raise TransportError(self.obituary())
        # base-06: MUST NOT match the id of a request in flight
        if request.id in self.calls:
            raise ValueError(f"a request with the id {request.id!r} is in flight")
        self.write(request_message(request.id, request.method, request.params))
        call = self.calls[request.id] = _Call(request)
        try:
            while True:
                message = await call.inbox.get()
                if isinstance(message, TransportError):
                    raise message
                if "method" not in message:
                    return message
                await send(message)
        finally:
            # stdio-10, cancellation-05: MUST tell the server
            # cancellation-11: and MUST NOT for a request that was answered
            if self.calls.get(request.id) is call:
                del self.calls[request.id]
                reason = "the client no longer waits for the answer"
                params = {"requestId": request.id, "reason": reason}
                self.write(notification("notifications/cancelled", params))

    def _line(self, line: bytes | None) -> None:
        """Take one line; what is not a message is reported and skipped."""
        if line is None:
            self._overflown()
            self._overflow = False
            return
        line = line.removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            return
        if line[:15].lower() == b"content-length:":
            self.fail("The server frames messages by Content-Length; MCP takes lines")
            return
        message = _from_server(line)
        if message is None:
            return
        if "method" in message:
            self._notified(message)
        else:
            self._answered(message)

    def _overflown(self) -> None:
        """Fail all at once: whose answer the line was cannot be known."""
        if not self._overflow:
            self.fail(f"The server sent a line of over {self._lines.limit} bytes")
        self._overflow = True

    def _answered(self, message: JSON) -> None:
        id = message.get("id")
        if id is None and "error" in message and len(self.calls) == 1:
            # base-15: an error without id is about a message that was not understood;
            # with one request in flight it can only be that one.
            (id,) = self.calls
        call = self.calls.pop(id, None) if type(id) in (str, int) else None
        if call is None:
            # cancellation-15: SHOULD ignore late responses
            _log.info("ignored a response to %r", id)
            return
        self.proven = True
        call.put(message)

    def _notified(self, message: JSON) -> None:
        found = self._concerned(message)
        for call in found:
            end = _torn_down(message, call.request)
            if end is None:
                call.put(message)
            else:
                self._answered(end)
        if not found:
            _log.info("ignored a notification: %.200s", message)

    def _concerned(self, message: JSON) -> list[_Call]:
        """Find the requests that a notification belongs to."""
        method, params = message["method"], _as_object(message.get("params"))
        waiting = self.calls.values()
        if method == "notifications/progress":
            token = params.get("progressToken")
            return [c for c in waiting if _same_id(c.meta.get("progressToken"), token)]
        if method == "notifications/message":
            # It says not whose it is: those who asked for log messages get it.
            return [c for c in waiting if META_LOG_LEVEL in c.meta]
        # stdio-08, subscriptions-05: MUST be correlated by subscriptionId
        key = _as_object(params.get("_meta")).get(META_SUBSCRIPTION_ID)
        if method == "notifications/cancelled":
            key = params.get("requestId")
        return [c for c in waiting if _same_id(c.request.id, key)]


class StdioClient:
    """Talk to a server that is a child process; an Exchange.

    The process starts with the first request, in a process group of its own. When it
    dies, requests in flight fail with its exit status and the end of its stderr; the
    next request starts it again, if `restart`. Lines may be `limit` bytes long.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        on_stderr: Callable[[bytes], None] | None = None,
        restart: bool = True,
        limit: int = MAX_MESSAGE_BYTES,
        step: float = SHUTDOWN_STEP,
    ) -> None:
        """Remember how to start the server; `env` is added to our own environment.

        on_stderr: gets what the server writes to stderr, as it comes. Without, only the
        last STDERR_TAIL bytes are kept, to be shown if the server dies. step: seconds
        that it gets to exit after its input was closed, and again after SIGTERM.
        """
        self.command = [command] if isinstance(command, str) else list(command)
        self.label = " ".join(self.command)
        self._env = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._protocol = functools.partial(_ServerProcess, limit, on_stderr)
        self._restart = restart
        self._step = step
        self._process: _ServerProcess | None = None
        self._starting = asyncio.Lock()
        self._failures = 0

    async def __call__(self, request: Request, send: Send) -> JSON:
        process = self._process
        if process is None or not process.usable:
            process = await self._start()
        return await process.exchange(request, send)

    async def _start(self) -> _ServerProcess:
        async with self._starting:
            last = self._process
            if last is not None and last.usable:
                return last
            if last is not None:
                await asyncio.wait([last.over])
                self._failures = 0 if last.proven else self._failures + 1
                # stdio-15: SHOULD restart it, but not for ever
                if not self._restart or self._failures >= RESTARTS:
                    raise TransportError(last.obituary())
                await last.stop(self._step)
            self._process = await self._spawn()
            return self._process

    async def _spawn(self) -> _ServerProcess:
        import shutil  # here, because only this needs it

        name = self.command[0] if self.command else ""
        path = shutil.which(name, path=self._env.get("PATH"))
        if path is None:
            raise TransportError(f"Command not found: {name!r}")
        pipe = asyncio.subprocess.PIPE
        try:
            _, protocol = await asyncio.get_running_loop().subprocess_exec(
                self._protocol,
                path,
                *self.command[1:],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise TransportError(f"Cannot start {name!r}: {error}") from error
        return protocol

    async def aclose(self) -> None:
        """Stop the server; requests in flight fail at once."""
        async with self._starting:
            process, self._process, self._failures = self._process, None, 0
        if process is not None:
            await process.stop(self._step)


# --- SSE                          WHATWG HTML 9.2.6, Interpreting an event stream ---


class SseDecoder:
    """Cut a byte stream into server-sent events; `limit` bounds one event.

    `last_id` and `retry` hold what the stream last said; nothing in this revision uses
    them. Data stays bytes: the WHATWG would replace malformed UTF-8, but an altered
    message is worse than a refused one.
    """

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self.limit = limit
        self.last_id = ""
        self.retry: int | None = None
        self._type = b""
        self._data: list[bytes] = []
        self._line = bytearray()
        self._size = 0
        self._first = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        """Take bytes; return the events that they complete, as (type, data).

        An event that the stream's end cuts off never comes out. Raises ValueError when
        an event exceeds the limit.
        """
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        events = []
        for piece in chunk.splitlines(keepends=True):
            self._size += len(piece)
            if self._size > self.limit:
                raise ValueError(f"an event of over {self.limit} bytes")
            self._line += piece
            if piece.endswith((b"\r", b"\n")):
                line = bytes(self._line).rstrip(b"\r\n")
                self._line.clear()
                if self._first:
                    self._first, line = False, line.removeprefix(codecs.BOM_UTF8)
                events += self._take(line)
        return events

    def _take(self, line: bytes) -> list[tuple[str, bytes]]:
        """Take one line; return the event that it ends, if it does."""
        # A line that begins with a colon is a comment: its field name is empty.
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._type = value
        elif name == b"id" and b"\0" not in value:
            self.last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            self.retry = int(value)
        if line:
            return []
        kind = self._type.decode("utf-8", "replace") or "message"
        data = b"\n".join(self._data)
        self._type, self._size = b"", 0
        self._data.clear()
        return [(kind, data)] if data else []


# --- HTTP client                             spec: basic/transports/streamable-http ---

CONNECT_TIMEOUT = 10.0
HEADER_LIMIT = 256 * 1024  # bytes of a response's header block, or of a chunk's line
IDLE_CONNECTIONS = 32
IDLE_SECONDS = 4.0  # servers drop idle connections from 5 s on
DRAIN_SECONDS = 0.25  # for a stream to end after its response
REDIRECTS = 5
AUTH_ROUNDS = 3
# These only read: they may be repeated when a kept connection proves to be closed.
_READING = frozenset(
    "completion/complete prompts/get prompts/list resources/list resources/read "
    "resources/templates/list server/discover tools/list".split()
)
# Fields that are ours to write; sessions and resumption are not part of this revision.
_OWN_FIELDS = frozenset(
    "accept accept-encoding connection content-length content-type host keep-alive "
    "last-event-id mcp-method mcp-name mcp-protocol-version mcp-session-id te trailer "
    "transfer-encoding upgrade".split()
)


class Challenge(NamedTuple):
    """One challenge of a WWW-Authenticate field."""

    scheme: str
    """In lower case, such as "bearer"."""
    params: dict[str, str]
    """Under lower-case names."""


AuthHook = Callable[[list[Challenge], int], Awaitable[Mapping[str, str] | None]]
"""`async (challenges, 401 or 403) -> header fields to send from now on, or None`."""

# A word, and either its value or, if it is a scheme, its token68.
_CHALLENGE_PART = r"""(?xs)
    ([!#$%&'*+.^_`|~0-9A-Za-z-]+)
    (?: \s* = \s* (?: "((?: [^"\\] | \\. )*)"? | ([^\s,"]+) )
      | [ \t]+ [A-Za-z0-9._~+/-]+ =* [ \t]* (?=,|$)
    )?"""


def parse_challenges(values: Iterable[str]) -> list[Challenge]:
    """Read WWW-Authenticate fields, as RFC 9110, 11.6.1 has them.

    Copes with several challenges in one field, commas in quoted values, and unquoted
    values that should have been quoted. Of a repeated parameter the first counts.
    """
    found: list[Challenge] = []
    for text in values:
        current = None
        for part in re.finditer(_CHALLENGE_PART, text):
            word, quoted, plain = part.groups()
            if current is None or (quoted is None and plain is None):
                current = Challenge(word.lower(), {})
                found.append(current)
            else:
                value = plain or re.sub(r"\\(.)", r"\1", quoted)
                current.params.setdefault(word.lower(), value)
    return found


_BROKEN = (OSError, EOFError, ValueError, asyncio.LimitOverrunError)


def _broken(problem: str, error: Exception, status: int | None) -> TransportError:
    """Make one exception of all that reading from a socket raises: of _BROKEN."""
    return TransportError(f"{problem}: {str(error) or type(error).__name__}", status)


class _Connection:
    """One HTTP/1.1 connection, used by one request at a time."""

    status = 0
    used = False
    idle_since = 0.0
    _left: float = 0  # bytes of the body, or of the chunk, that are to come
    _chunked = False

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.headers: dict[str, str] = {}

    async def post(self, data: bytes) -> None:
        """Send a request, read the answer's status and headers."""
        # Not drained: all of it is in memory anyway, and a server that refuses a large
        # body answers before it has read it.
        self.writer.write(data)
        self.status = 0
        try:
            while self.status < 200:
                head = await self.reader.readuntil(b"\r\n\r\n")
                self.status, self.headers = _parse_head(head)
            self._expect_body()
        except _BROKEN as error:
            raise _broken("No valid HTTP answer", error, self.status or None) from error

    def _expect_body(self) -> None:
        headers = self.headers
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._left = 0
        if not self._chunked and self.status != 204:
            length = headers.get("content-length")
            if length is None:
                self._left = math.inf
            elif length.isdecimal():
                self._left = int(length)
            else:
                raise ValueError(f"malformed length {length[:40]!r}")

    async def read_some(self) -> bytes:
        """Return the next piece of the body, which may be empty, until it has ended."""
        try:
            if self._chunked and not self._left:
                await self._next_chunk()
            piece = await self.reader.read(int(min(self._left, HEADER_LIMIT)))
            if not piece and 0 < self._left < math.inf:
                raise EOFError("end of file")
            self._left = self._left - len(piece) if piece else 0
            return piece
        except _BROKEN as error:
            problem = "The connection broke within the answer"
            raise _broken(problem, error, self.status) from error

    async def _next_chunk(self) -> None:
        line = b""
        while not line.strip():  # what ends the chunk before
            line = await self.reader.readuntil(b"\n")
        self._left = int(line.partition(b";")[0], 16)
        if self._left < 0:
            raise ValueError("a negative chunk size")
        if self._left == 0:
            self._chunked = False
            while (await self.reader.readuntil(b"\n")).strip():
                pass  # trailers

    async def read(self, limit: int) -> bytes:
        """Return the whole body."""
        parts, size = [], 0
        while not self.ended:
            parts.append(await self.read_some())
            size += len(parts[-1])
            if size > limit:
                raise TransportError(f"The answer exceeds {limit} bytes", self.status)
        return b"".join(parts)

    @property
    def ended(self) -> bool:
        """Tell whether all of the answer was read."""
        return not (self._left or self._chunked)

    @property
    def reusable(self) -> bool:
        """Tell whether another request may follow."""
        transport = self.writer.transport
        return (
            self.ended
            and "close" not in self.headers.get("connection", "").lower()
            and not self.reader.at_eof()
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        )

    def abort(self) -> None:
        """Close at once; http-23: to the server this MUST be cancellation."""
        self.writer.transport.abort()


@functools.lru_cache(256)
def _field_line(name: str, value: str) -> str:
    """Write one field; raises ValueError for what would break out of its line."""
    if not (_TOKEN.fullmatch(name) and _HEADER_TEXT.fullmatch(value)):
        raise ValueError(f"the header {name!r} cannot be sent: {value[:80]!r}")
    return f"{name}: {value}\r\n"


def _request_head(start: str, fields: Mapping[str, str]) -> bytes:
    lines = "".join(_field_line(name, value) for name, value in fields.items())
    return f"{start}\r\n{lines}\r\n".encode("ascii")


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Read a status line and fields; repeated fields are joined by commas."""
    first, *lines = head.decode("latin-1").split("\r\n")
    if not first.startswith("HTTP/1."):
        raise ValueError(f"not HTTP/1.1: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines[:-2]:
        name, _, value = line.partition(":")
        # http-66: MUST compare header names case-insensitively
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if first.startswith("HTTP/1.0"):
        headers.setdefault("connection", "close")
    return int(first[9:12]), headers


class HttpClient:
    """Talk to a Streamable HTTP server; an Exchange.

    Connections are kept and reused. Redirects are followed within the origin only, so
    neither credentials nor arguments reach anybody else. Proxies come from the
    environment, except for loopback. `request.headers` are sent along.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: AuthHook | None = None,
        tls: Any = None,
        names: Mapping[str, str] = MIRRORED_NAMES,
        limit: int = MAX_MESSAGE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember the endpoint; raises ValueError for an unusable URL.

        headers: sent with each request. tls: an ssl.SSLContext, instead of one that
        verifies against the system's authorities. names: method -> the parameter that
        Mcp-Name mirrors, for methods of extensions. limit: bytes of an answer.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http or https URL: {url!r}")
        if parts.username is not None:
            raise ValueError("credentials do not belong into a URL; use headers")
        self.label = url
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._secure else 80)
        name = parts.netloc.lower().rstrip(":").encode("idna").decode("ascii")
        self._authority = name  # without a port if the URL has none
        self._target = name if parts.port else f"{name}:{self._port}"
        self._origin = f"{parts.scheme}://{name}"
        self._path = _request_target(parts)
        self._proxy = _proxy_for(parts.scheme, self._host, self._authority)
        self._headers = dict(headers or {})
        self._credentials: dict[str, str] = {}
        self._auth = auth
        self._tls: Any = tls if self._secure else None
        self._names = names
        self._limit = limit
        self._clock = clock
        self._idle: list[_Connection] = []
        self._draining: dict[_Connection, asyncio.Task[None]] = {}

    @property
    def credentials(self) -> tuple[tuple[str, str], ...]:
        """Return what identifies us to the server: the key of private cache entries."""
        return tuple(sorted({**self._headers, **self._credentials}.items()))

    # --- one request ------------------------------------------------------------------

    async def __call__(self, request: Request, send: Send) -> JSON:
        # http-11, http-07: each message MUST be a new POST with one request as its body
        body = encode(request_message(request.id, request.method, request.params))
        path, hops, rounds = self._path, 0, 0
        while True:
            answer = None
            head = self._head(path, request, len(body))
            connection = await self._connection()
            try:
                await connection.post(head + body)
                status = connection.status
                if status in (307, 308) and hops < REDIRECTS:
                    path, hops = self._redirected(connection, path), hops + 1
                elif (
                    status in (401, 403)
                    and rounds < AUTH_ROUNDS
                    and await self._authorize(connection)
                ):
                    rounds += 1
                else:
                    answer = await self._answer(connection, request, send)
            except BaseException as error:
                connection.abort()
                stale = connection.used and not connection.status
                broken = stale and isinstance(error, TransportError)
                if not broken or request.method not in _READING:
                    raise
                continue
            self._finish(connection)
            if answer is not None:
                return answer

    def _head(self, path: str, request: Request, length: int) -> bytes:
        """Write the header block. http-08: MUST be POST."""
        meta = _as_object(request.params.get("_meta"))
        fields = {
            "Host": self._authority,
            "Content-Type": "application/json",
            # http-09: MUST list both
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
            # http-10, http-32: REQUIRED headers
            "Mcp-Method": encode_header_value(request.method),
        }
        # http-25, http-26: MUST be there, and match the body
        if META_PROTOCOL_VERSION in meta:
            fields["MCP-Protocol-Version"] = str(meta[META_PROTOCOL_VERSION])
        if self._proxy is not None and not self._secure:
            path = self._origin + path
            fields |= _proxy_credentials(self._proxy)
        name = request.params.get(self._names.get(request.method, ""))
        if isinstance(name, str):
            # http-33: MUST be Base64 where plain text is not safe
            fields["Mcp-Name"] = encode_header_value(name)
        for more in (self._headers, request.headers or {}, self._credentials):
            for key, value in more.items():
                if key.lower() not in _OWN_FIELDS:
                    fields[key.title()] = value  # one case, or a field comes twice
        start = f"POST {path} HTTP/1.1\r\nContent-Length: {length}"
        return _request_head(start, fields)

    def _redirected(self, connection: _Connection, path: str) -> str:
        """Return the path to go on with; another origin is refused."""
        location = connection.headers.get("location", "")
        parts = urllib.parse.urlsplit(urljoin(self._origin + path, location))
        if not location or f"{parts.scheme}://{parts.netloc}" != self._origin:
            problem = f"Redirected to another place: {location[:200]!r}"
            raise TransportError(problem, connection.status, connection.headers)
        return _request_target(parts)

    async def _authorize(self, connection: _Connection) -> bool:
        """Ask the hook; tell whether there are credentials to try again with."""
        field = connection.headers.get("www-authenticate", "")
        challenges = parse_challenges([field])
        credentials = None
        if self._auth is not None:
            credentials = await self._auth(challenges, connection.status)
        if credentials is not None:
            self._credentials = dict(credentials)
        return credentials is not None

    # --- the answer -------------------------------------------------------------------

    async def _answer(
        self, connection: _Connection, request: Request, send: Send
    ) -> JSON:
        status, headers = connection.status, connection.headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        coding = headers.get("content-encoding", "identity").lower()
        if coding != "identity":
            problem = f"The answer is compressed ({coding}), which was not asked for"
            raise TransportError(problem, status, headers)
        # http-17: MUST support both
        if kind == "text/event-stream" and status == 200:
            return await self._stream(connection, request, send)
        body = await connection.read(self._limit)
        message = _message_for(request, body) if kind == "application/json" else None
        if message is None or "method" in message:
            shown = body[:200].decode("utf-8", "replace").strip()
            problem = f"HTTP status {status} instead of an answer to {request.method}"
            raise TransportError(f"{problem}: {kind} {shown}".strip(), status, headers)
        answer = PostAnswer(message)
        answer.status = status
        return answer

    async def _stream(
        self, connection: _Connection, request: Request, send: Send
    ) -> JSON:
        decoder = SseDecoder(self._limit)
        while not connection.ended:
            try:
                events = decoder.feed(await connection.read_some())
            except ValueError as error:
                problem = "The answer's stream is broken"
                raise _broken(problem, error, connection.status) from error
            for kind, data in events:
                message = _message_for(request, data) if kind == "message" else None
                if message is None:
                    continue
                if "method" not in message:
                    return message
                await send(message)
        raise TransportError("The stream ended without an answer", connection.status)

    # --- connections ------------------------------------------------------------------

    def _finish(self, connection: _Connection) -> None:
        """Read an answer to its end meanwhile, so that its connection can be reused."""
        if connection.ended:
            self._release(connection)
        else:
            drain = asyncio.get_running_loop().create_task(self._drain(connection))
            self._draining[connection] = drain

    async def _drain(self, connection: _Connection) -> None:
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await connection.read(HEADER_LIMIT)
        except (TimeoutError, TransportError):
            pass
        finally:
            del self._draining[connection]
            self._release(connection)

    def _release(self, connection: _Connection) -> None:
        if connection.reusable and len(self._idle) < IDLE_CONNECTIONS:
            connection.used = True
            connection.idle_since = self._clock()
            self._idle.append(connection)
        else:
            connection.abort()

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            fresh = self._clock() - connection.idle_since < IDLE_SECONDS
            if fresh and connection.reusable:
                return connection
            connection.abort()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await self._connect()
        except _BROKEN as error:
            problem = f"Cannot connect to {self._authority}"
            raise _broken(problem, error, None) from error

    async def _connect(self) -> _Connection:
        """Open a connection; asyncio tries all addresses of a host in turn."""
        if self._secure and self._tls is None:
            self._tls = importlib.import_module("ssl").create_default_context()
        host, port, tls, proxy = self._host, self._port, self._tls, self._proxy
        if proxy is not None:
            host, port, tls = proxy.hostname or "", proxy.port or 80, None
        connection = _Connection(
            *await asyncio.open_connection(host, port, ssl=tls, limit=HEADER_LIMIT)
        )
        if proxy is not None and self._secure:
            await self._tunnel(connection)
        return connection

    async def _tunnel(self, connection: _Connection) -> None:
        """Have the proxy connect us through to the server."""
        fields = {"Host": self._target, **_proxy_credentials(self._proxy)}
        start = f"CONNECT {self._target} HTTP/1.1"
        try:
            await connection.post(_request_head(start, fields))
            if connection.status != 200:
                raise TransportError(f"The proxy answered {connection.status}")
            await connection.writer.start_tls(self._tls, server_hostname=self._host)
        except BaseException:
            connection.abort()
            raise

    async def aclose(self) -> None:
        """Close all connections that no request is using."""
        for connection in (*self._idle, *self._draining):
            connection.abort()
        self._idle.clear()
        await asyncio.gather(*self._draining.values())
        await asyncio.sleep(0)


def _request_target(parts: urllib.parse.SplitResult) -> str:
    """Return path and query, percent-encoded where necessary, otherwise untouched."""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return quote(target, safe="/?#[]@!$&'()*+,;=:%~")


def _message_for(request: Request, data: bytes) -> JSON | None:
    """Read a request's response, or a notification; None for anything else."""
    message = _from_server(data)
    if message is None:
        return None
    if "method" in message:
        return _torn_down(message, request) or message
    id = message.get("id")
    if _same_id(id, request.id):
        return message
    # An error on a request's own answer belongs to it, whatever became of the id.
    ours = id is None or str(id) == str(request.id)
    if ours and isinstance(message.get("error"), dict):
        return message
    _log.info("ignored a response to %r", id)
    return None


def _proxy_for(scheme: str, host: str, authority: str) -> Any:
    """Return the proxy's split URL that the environment demands, or None."""
    if _is_loopback(host):
        return None
    given = any(name.lower().endswith("_proxy") for name in os.environ)
    if not given and sys.platform not in ("darwin", "win32"):
        return None  # spares the import
    request = importlib.import_module("urllib.request")
    url = request.getproxies().get(scheme)
    if not url or request.proxy_bypass(authority):
        return None
    proxy = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    if proxy.scheme != "http":
        raise TransportError(f"Proxies of the kind {proxy.scheme}:// are not supported")
    return proxy


def _proxy_credentials(proxy: Any) -> dict[str, str]:
    if not proxy.username:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


# ======================================================================================
# 5  Authorization (resource server)                    spec: basic/authorization
# ======================================================================================
#
#   POST /mcp                         --> 401, WWW-Authenticate: Bearer
#                                              resource_metadata="...", scope="..."
#   GET /.well-known/oauth-protected-resource/mcp
#                                     --> 200, {"resource", "authorization_servers"}
#   POST /mcp, Authorization: Bearer  --> 200, or 401 invalid_token, or 403
#                                              insufficient_scope, all scopes at once
#
# Without an authorization server, keys that you hand out do:
#
#   keys = static_tokens({os.environ["KEY"]: Principal("alice")})
#   await serve_http(server, verifier=keys)


@dataclass(frozen=True)
class Principal:
    """Who calls: what a verifier found out about a token."""

    subject: str
    client: str | None = None
    scopes: frozenset[str] = frozenset()
    audience: str | Iterable[str] | None = None
    """The resources that the token was issued for."""
    expires: float | None = None
    """Seconds since the epoch."""
    claims: Mapping[str, JSON] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        """Show who it is, and never what the token says."""
        return f"Principal({self.subject!r}, scopes={sorted(self.scopes)})"


Verifier = Callable[[str], "Principal | None | Awaitable[Principal | None]"]
"""Token -> its principal, or None for a token that is not good."""


_SCOPE = r"[!#-\[\]-~]+"  # RFC 6749 3.3


@dataclass(frozen=True)
class Authorization:
    """What an HTTP server demands of its callers, and where they get it.

    `resource` is the server's own URL as clients know it. With it and
    `authorization_servers`, a metadata document is served, and tokens must name the
    resource as their audience: a verifier that makes sure of it in another way returns
    a principal that says so. Without, it is up to the verifier alone.
    """

    verify: Verifier
    resource: str = ""
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] = ()
    required_scopes: frozenset[str] = frozenset()
    """What every request takes; tools, resources and prompts may take more."""
    implied: Callable[[frozenset[str]], frozenset[str]] = frozenset
    """Adds to granted scopes those that they include, such as read to write."""
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        if bool(self.resource) != bool(self.authorization_servers):
            # auth-discovery-02: MUST name at least one authorization server
            raise ValueError("resource and authorization_servers belong together")
        url = urllib.parse.urlsplit(self.resource)
        if self.resource and (not url.scheme or not url.netloc or url.fragment):
            raise ValueError(f"{self.resource!r} is not a URL without fragment")
        # auth-51: SHOULD NOT include offline_access
        if "offline_access" in {*self.scopes_supported, *self.required_scopes}:
            _log.warning("offline_access is not a scope of a resource")

    @functools.cached_property
    def documents(self) -> dict[str, bytes]:
        """The metadata by path. auth-07, auth-discovery-01: MUST be implemented."""
        if not self.resource:
            return {}
        document: Object = {
            "resource": self.resource,
            "authorization_servers": self.authorization_servers,
            "bearer_methods_supported": ["header"],
            "scopes_supported": self.scopes_supported or None,
        }
        data = encode(_without_none(document))
        return dict.fromkeys((_METADATA_PATH, self._metadata_path), data)

    @property
    def _metadata_path(self) -> str:
        path = urllib.parse.urlsplit(self.resource).path
        return _METADATA_PATH + path.rstrip("/")

    # --- challenges -------------------------------------------------------------------

    def challenge(
        self, scopes: Iterable[str], error: str = "", description: str = ""
    ) -> tuple[str, str]:
        """Build the WWW-Authenticate field."""
        named = sorted(one for one in map(str, scopes) if re.fullmatch(_SCOPE, one))
        metadata = urljoin(self.resource, self._metadata_path)
        parameters = {
            "error": error,
            "error_description": description,
            # auth-13, auth-54, auth-55: SHOULD hold all scopes that it takes
            "scope": " ".join(named),
            # auth-discovery-04: MUST tell where the metadata is
            "resource_metadata": metadata if self.resource else "",
        }
        given = [f'{key}="{value}"' for key, value in parameters.items() if value]
        return "WWW-Authenticate", f"Bearer {', '.join(given)}".strip()

    def unauthorized(self, description: str = "") -> _HttpRefusal:
        """Return the 401; without a description it is for a request without a token."""
        error = "invalid_token" if description else ""
        field = self.challenge(self.required_scopes, error, description)
        return _HttpRefusal(401, description or "A bearer token is needed", field)

    def insufficient(self, scopes: Iterable[str]) -> tuple[str, str]:
        """Return the challenge of a 403."""
        description = "The token does not have all scopes that this takes"
        return self.challenge(scopes, "insufficient_scope", description)

    # --- checks -----------------------------------------------------------------------

    async def principal(self, authorization: str | None) -> Principal:
        """Return who sent the Authorization field; raises _HttpRefusal."""
        found = re.fullmatch(
            r"(?i:bearer) +([A-Za-z0-9._~+/-]+=*)", authorization or ""
        )
        if found is None:
            raise self.unauthorized("" if authorization is None else "No bearer token")
        principal = await self._verified(found[1])
        # auth-43: invalid or expired tokens MUST receive 401
        if principal is None:
            raise self.unauthorized("The token is not valid")
        if principal.expires is not None and self.clock() >= principal.expires:
            raise self.unauthorized("The token has expired")
        # auth-41, auth-45, auth-security-33: MUST be issued for us
        if self.resource and not self._is_for_us(principal.audience):
            raise self.unauthorized("The token was not issued for this server")
        # auth-63: MUST account for hierarchies
        scopes = self.implied(principal.scopes)
        missing = self.required_scopes - scopes
        if missing:
            error = InsufficientScope(missing)
            raise _HttpRefusal(403, error, self.insufficient(missing))
        if scopes == principal.scopes:
            return principal
        return dataclasses.replace(principal, scopes=scopes)

    async def _verified(self, token: str) -> Principal | None:
        try:
            found = self.verify(token)
            return await found if inspect.isawaitable(found) else found
        except Exception as error:
            # Neither the message nor the traceback: they may hold the token.
            _log.error("the verifier failed: %s", type(error).__name__)
            raise _HttpRefusal(500, "Tokens cannot be verified") from None

    def _is_for_us(self, audience: str | Iterable[str] | None) -> bool:
        named = (audience,) if isinstance(audience, str) else audience or ()
        return _canonical_resource(self.resource) in map(_canonical_resource, named)


def _canonical_resource(uri: str) -> str:
    """Bring a resource identifier into one form for comparison."""
    url = urllib.parse.urlsplit(uri)
    # auth-33: SHOULD accept upper case in scheme and host; auth-34: and the slash
    return url._replace(
        scheme=url.scheme.lower(), netloc=url.netloc.lower(), path=url.path.rstrip("/")
    ).geturl()


def static_tokens(tokens: Mapping[str, Principal | str]) -> Verifier:
    """Make a verifier of fixed tokens or API keys; a str stands for its Principal.

    Only digests are kept, and a token is compared with all of them in constant time.
    """
    known = {_sha256(token): who for token, who in tokens.items()}

    def verify(token: str) -> Principal | None:
        given = _sha256(token)
        found = [known[one] for one in known if hmac.compare_digest(one, given)]
        who = found[0] if found else None
        return Principal(who) if isinstance(who, str) else who

    return verify


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


# --- limits per caller ----------------------------------------------------------------


class _Caller(TokenBucket):
    """A token bucket and a count of what runs."""

    running = 0


def rate_limit(
    exchange: Exchange,
    *,
    per_second: float,
    burst: int = 10,
    concurrent: int = 100,
    callers: int = 10_000,
    clock: Callable[[], float] = time.monotonic,
) -> Exchange:
    """Wrap an Exchange: requests over a caller's limit are answered TooManyRequests.

    A caller is a principal, else a peer address, else everybody. Of those that run
    nothing, the `callers` seen last are remembered.
    """
    table: collections.OrderedDict[tuple[str, str], _Caller] = collections.OrderedDict()

    @functools.wraps(exchange)
    async def limited(request: Request, send: Send) -> JSON:
        who = request.principal
        key = ("principal", who.subject) if who else ("peer", request.peer or "")
        one = table.pop(key, None) or _Caller(per_second, burst, clock())
        if len(table) >= callers:
            idle = (known for known in table if not table[known].running)
            table.pop(next(idle, key), None)  # the one seen longest ago
        table[key] = one
        if one.running >= concurrent:
            error = TooManyRequests(f"{concurrent} requests are in flight")
        elif not one.take(clock()):
            error = TooManyRequests("Too many requests", (1 - one.tokens) / per_second)
        else:
            one.running += 1
            try:
                return await exchange(request, send)
            finally:
                one.running -= 1
        return error_response(request.id, error)

    return limited


# ======================================================================================
# 6  Client features                                    spec: client/*
# ======================================================================================
#
# What a server can ask the client for. Each function builds one Question; section 3
# sends it inside `input_required` and reads the client's result.

ROLES = ("user", "assistant")
_ACTIONS = ("accept", "decline", "cancel")
_PRIMITIVES = ("string", "number", "integer", "boolean")
_FORM_FORMATS = ("email", "uri", "date", "date-time")
_SECRETS = frozenset(
    "password passwd passphrase pin apikey accesstoken refreshtoken secret "
    "clientsecret privatekey creditcard creditcardnumber cardnumber cvv cvc".split()
)


class Answer(Object):
    """The client's ElicitResult; `value` is its content in the type asked for."""

    value: Any = None

    @property
    def action(self) -> str:
        """Return "accept", "decline" or "cancel"."""
        return str(self["action"])

    @property
    def accepted(self) -> bool:
        """Tell whether the user agreed; the two other actions must be handled too."""
        return self.action == "accept"

    @property
    def content(self) -> Object:
        """Return the form's data; empty unless accepted."""
        return _as_object(self.get("content")) if self.accepted else {}


def elicitation(message: str, schema: Any) -> Question:
    """Ask the user to fill in a form.                        spec: client/elicitation

    `schema`: a JSON Schema object of primitive properties, a dataclass or TypedDict of
    such, or one primitive type (bool, str, Literal["a", "b"], an Enum). Raises
    ValueError for schemas that the specification does not allow, and for secrets.
    """
    form, convert = _form_schema(schema)
    _check_form(form)
    fits = Schema(form, formats=True)  # here, so that a bad schema is never asked
    # elicitation-08, elicitation-11: MUST have message and requestedSchema
    params = {"mode": "form", "message": message, "requestedSchema": form}
    # elicitation-32: SHOULD NOT hold URLs that are meant to be clicked
    if re.search(r"https?://", _encode_text(params)):
        _log.warning("a form should not hold URLs, see elicit_url: %.100s", message)

    def read(result: JSON) -> Answer:
        answer = _elicit_result(result)
        if answer.accepted:
            violations = fits.violations(answer.get("content"))
            if violations:
                raise ValueError(f"content: {'; '.join(map(str, violations))}")
            answer.value = convert(answer.content)
        return answer

    return Question("elicitation/create", params, {"elicitation": {"form": {}}}, read)


def elicitation_url(message: str, url: str) -> Question:
    """Ask the user to open a web page; raises ValueError for a bad URL.

    For passwords, payment, third-party authorization: whatever must not pass through
    the client. Never put credentials or personal data into the URL; tie what happens
    there to the user who opens it, not to the URL.
    """
    parts = urllib.parse.urlsplit(url)
    # elicitation-14: MUST be a valid URL; a bad port raises ValueError when it is read
    valid = parts.scheme in ("https", "http") and parts.hostname and parts.port != 0
    if not valid or re.search(r"[\x00-\x20\x7f<>\"\\^`{|}]", url):
        raise ValueError(f"not a web address: {url!r}")
    # elicitation-30, elicitation-31: MUST NOT contain credentials
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL of an elicitation must not contain credentials")
    # elicitation-33: SHOULD use HTTPS outside of development
    if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS:
        _log.warning("elicitation URL without HTTPS: %s://%s", parts[0], parts[1])
    # elicitation-13: MUST specify the mode
    params = {"mode": "url", "message": message, "url": url}
    needs: Object = {"elicitation": {"url": {}}}
    return Question("elicitation/create", params, needs, _elicit_result)


def _elicit_result(result: JSON) -> Answer:
    # mrtr-29: SHOULD be valid; elicitation-24: MUST handle decline and cancel
    if _as_object(result).get("action") not in _ACTIONS:
        raise InvalidParams(f"An elicitation result needs an action of {_ACTIONS}")
    return Answer(result)


def _form_schema(schema: Any) -> tuple[Object, Callable[[JSON], Any]]:
    """Return the form's schema and what turns its content into the type asked for."""
    if isinstance(schema, dict):
        return schema, _as_it_is
    made, convert = schema_of(schema), converter_of(schema) or _as_it_is
    if "properties" not in made:  # one value: a form with one field
        form = _form({"value": made}, ["value"])
        return form, lambda content: convert(content["value"])
    return _form(made["properties"], made.get("required")), convert


def _as_it_is(content: JSON) -> JSON:
    return content


def _form(fields: Object, required: list[str] | None) -> Object:
    properties = {name: _not_null(schema) for name, schema in fields.items()}
    form = {"type": "object", "properties": properties, "required": required}
    return _without_none(form)


def _not_null(schema: Object) -> Object:
    """Turn Optional[T] into T: a form leaves out what the user leaves empty."""
    options = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(options) != 1:
        return schema
    merged = options[0] | {k: v for k, v in schema.items() if k != "anyOf"}
    return _without_none(merged)  # the default None goes with the null


def _check_form(form: Object) -> None:
    """Hold the restricted subset of JSON Schema that forms are limited to."""
    properties = form.get("properties")
    if form.get("type") != "object" or not isinstance(properties, dict):
        raise ValueError("a form's schema is an object with properties")
    for name, schema in properties.items():
        kind = _as_object(schema).get("type")
        multiple = kind == "array" and _offers_strings(schema)
        if kind not in _PRIMITIVES and not multiple:
            raise ValueError(f"form field {name!r} is not primitive: {kind!r}")
        if schema.get("format", "date") not in _FORM_FORMATS:
            raise ValueError(f"form field {name!r}: format is of {_FORM_FORMATS}")
        # elicitation-01, elicitation-44: MUST NOT ask for secrets in a form
        if re.sub(r"[^a-z]", "", name.lower()) in _SECRETS:
            raise ValueError(f"form field {name!r} asks for a secret: use elicit_url")


def _offers_strings(schema: JSON) -> bool:
    """Tell a multi-select field from other arrays."""
    items = _as_object(schema.get("items"))
    choices = items.get("enum", items.get("anyOf"))
    return isinstance(choices, list) and all(
        isinstance(_as_object(one).get("const", one), str) for one in choices
    )


def sampling(
    messages: str | Sequence[JSON],
    max_tokens: int = 1000,
    options: Mapping[str, JSON] | None = None,
) -> Question:
    """Ask the client's model for a completion.                  spec: client/sampling

    `options` are further members of CreateMessageRequestParams. The answer is the
    CreateMessageResult. Deprecated by the specification: call a model directly.
    """
    messages = [user(messages)] if isinstance(messages, str) else list(messages)
    _check_sampling(messages)
    options = dict(options or {})
    needs: Object = {}
    # sampling-05: MUST NOT be sent to clients without sampling.tools
    if "tools" in options or "toolChoice" in options:
        needs["tools"] = {}
    # sampling-07: SHOULD NOT be used without sampling.context
    if options.get("includeContext", "none") != "none":
        needs["context"] = {}
    params = {"messages": messages, "maxTokens": max_tokens, **options}
    return Question("sampling/createMessage", params, {"sampling": needs}, _sampled)


def _sampled(result: JSON) -> JSON:
    found = _as_object(result)
    if found.get("role") not in ROLES or not {"content", "model"} <= found.keys():
        raise InvalidParams(f"A sampling result needs a role {ROLES}, content, model")
    return found


def _check_sampling(messages: Sequence[JSON]) -> None:
    """Check roles and the balance of tool uses and results; raises ValueError."""
    open_uses: list[str] = []
    for message in messages:
        role, content = (_as_object(message).get(key) for key in ("role", "content"))
        blocks = content if isinstance(content, list) else [content]
        # sampling-13: MUST have a role and content
        if role not in ROLES or not all(isinstance(one, dict) for one in blocks):
            raise ValueError(f"a sampling message needs role {ROLES} and content")
        results = _named(blocks, "tool_result", "toolUseId")
        # sampling-08, sampling-26: results MUST NOT be mixed with other content
        if results and len(results) != len(blocks):
            raise ValueError("tool results must not be mixed with other content")
        # sampling-09: each use MUST be followed by its result, before anything else
        if results != open_uses:
            raise ValueError(f"tool uses and results do not match: {message}")
        open_uses = _named(blocks, "tool_use", "id")
        if role != "user" and results or role != "assistant" and open_uses:
            raise ValueError("the assistant uses tools, the user gives their results")
    if open_uses:
        raise ValueError(f"tool uses without result: {open_uses}")


def _named(blocks: list[Any], kind: str, key: str) -> list[str]:
    """Return the tool uses that the blocks of one kind name, in a fixed order."""
    return sorted(str(one.get(key)) for one in blocks if one.get("type") == kind)


def list_roots() -> Question:
    """Ask for the client's roots: a list of {"uri", "name"?}.     spec: client/roots"""
    return Question("roots/list", {}, {"roots": {}}, _listed_roots)


def _listed_roots(result: JSON) -> list[JSON]:
    roots = _as_object(result).get("roots")
    if not isinstance(roots, list):
        raise InvalidParams("A roots result needs a list `roots`")
    for root in roots:
        uri = str(_as_object(root).get("uri"))
        # roots-03: MUST be a file:// URI
        if not uri.startswith("file://"):
            raise InvalidParams(f"A root needs a file:// URI, got {uri[:100]!r}")
    return roots


# ======================================================================================
# 7  Server features                                    spec: server/*
# ======================================================================================

_Function = typing.TypeVar("_Function", bound=Callable[..., Any])
_URI = r"[A-Za-z][A-Za-z0-9+.-]*:(?:[!#$&-;=?-Z_a-z~\[\]]|%[0-9A-Fa-f]{2})*"
_URI_SHAPE = r"[A-Za-z][A-Za-z0-9+.-]*:[^\x00-\x20\x7f]*"
_CONTENT_TYPES = ("text", "image", "audio", "resource", "resource_link")


class ToolError(Exception):
    """Raise it in a tool: its text is shown to the model as it is, never masked."""


# --- content         spec: server/tools, Tool Result; server/resources, Annotations ---


class Content(dict[str, JSON]):
    """A content block, made by text(), image(), audio(), embedded(), ..."""


class Message(dict[str, JSON]):
    """A prompt or sampling message, made by user() and assistant()."""


class Result(dict[str, JSON]):
    """A whole result that a handler returns instead of a value, made by result()."""


class Contents(dict[str, JSON]):
    """One entry of a resource's `contents`, made by contents()."""


def annotations(  # type: ignore[no-redef]  # the name that `from __future__` took
    audience: Sequence[str] | None = None,
    priority: float | None = None,
    last_modified: datetime.datetime | str | None = None,
) -> dict[str, JSON]:
    """Build annotations; raises ValueError for values that are not allowed."""
    last = to_json(last_modified)
    found = _given(audience=to_json(audience), priority=priority, lastModified=last)
    return _check_annotations(found)


def _given(**members: JSON) -> dict[str, JSON]:
    """Return the members that there are: None stands for one that was not given."""
    return {name: value for name, value in members.items() if value is not None}


def _check_annotations(given: dict[str, JSON]) -> dict[str, JSON]:
    audience, priority = given.get("audience", []), given.get("priority", 0)
    if not set(audience) <= set(ROLES):
        raise ValueError(f"annotations: audience is of {ROLES}, got {audience!r}")
    if not 0 <= priority <= 1:
        raise ValueError(f"annotations: priority is from 0 to 1, got {priority!r}")
    if "lastModified" in given:
        datetime.datetime.fromisoformat(given["lastModified"])
    return given


def _block(
    kind: str, fields: dict[str, JSON], annotations: JSON, meta: JSON = None
) -> Content:
    block = Content(type=kind, **fields)
    if annotations is not None:
        block["annotations"] = _check_annotations(annotations)
    if meta is not None:
        block["_meta"] = _check_meta(meta)
    return block


def _check_meta(given: JSON) -> JSON:
    return given and {check_meta_key(key): value for key, value in given.items()}


def text(text: str, *, annotations: JSON = None, meta: JSON = None) -> Content:
    """Build a text block."""
    return _block("text", {"text": text}, annotations, meta)


def image(
    data: bytes, mime_type: str, *, annotations: JSON = None, meta: JSON = None
) -> Content:
    """Build an image block from its bytes."""
    return _block("image", _binary(data, mime_type), annotations, meta)


def audio(
    data: bytes, mime_type: str, *, annotations: JSON = None, meta: JSON = None
) -> Content:
    """Build an audio block from its bytes."""
    return _block("audio", _binary(data, mime_type), annotations, meta)


def _binary(data: bytes, mime_type: str) -> dict[str, JSON]:
    # prompts-08, prompts-09: MUST be Base64 and have a valid MIME type
    if not re.fullmatch(r"[\w.+-]+/[\w.+-]+(?:\s*;.*)?", mime_type, re.ASCII):
        raise ValueError(f"not a MIME type: {mime_type!r}")
    return {"data": base64.b64encode(data).decode(), "mimeType": mime_type}


def contents(
    uri: str, data: str | bytes, mime_type: str | None = None, *, meta: JSON = None
) -> Contents:
    """Build one entry of a resource's contents from its text or bytes."""
    entry = Contents(uri=uri, **_given(mimeType=mime_type, _meta=_check_meta(meta)))
    if isinstance(data, str):
        entry["text"] = data
    else:
        # resources-19: binary data MUST be properly encoded
        entry["blob"] = base64.b64encode(data).decode()
    return entry


def embedded(
    uri: str, data: str | bytes, mime_type: str, *, annotations: JSON = None
) -> Content:
    """Embed a resource. prompts-11: MUST have a URI, a MIME type, and text or blob."""
    _check_uri(uri)
    resource = contents(uri, data, mime_type)
    return _block("resource", {"resource": resource}, annotations)


def resource_link(
    uri: str,
    name: str,
    *,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    size: int | None = None,
    annotations: JSON = None,
) -> Content:
    """Build a link to a resource."""
    _check_uri(uri)
    fields = _given(
        uri=uri,
        name=name,
        title=title,
        description=description,
        mimeType=mime_type,
        size=size,
    )
    return _block("resource_link", fields, annotations)


def user(content: str | Content) -> Message:
    """Build a message of the user's."""
    return _as_message("user", content)


def assistant(content: str | Content) -> Message:
    """Build a message of the assistant's."""
    return _as_message("assistant", content)


def _as_message(role: str, content: str | Content) -> Message:
    block = text(content) if isinstance(content, str) else content
    if block.get("type") not in _CONTENT_TYPES:
        raise ValueError(f"not a content block: {block!r:.100}")
    return Message(role=role, content=block)


def result(
    content: Sequence[str | Content] = (),
    *,
    structured: JSON = ...,
    is_error: bool = False,
    meta: JSON = None,
) -> Result:
    """Build a tool's whole result; `structured` may be any JSON value, also None."""
    shown = [_as_block(one) for one in content]
    found = Result(content=shown)
    if structured is not ...:
        found["structuredContent"] = to_json(structured)
        found["content"] = shown or [_as_block(found["structuredContent"])]
    if is_error:
        found["isError"] = True
    if meta is not None:
        found["_meta"] = _check_meta(meta)
    return found


def _as_block(value: Any) -> Content:
    return value if isinstance(value, Content) else text(_serialise(to_json(value)))


def _serialise(value: JSON) -> str:
    """Write a JSON value for a text block; a string stands for itself."""
    if type(value) is int:
        return repr(value)
    return value if isinstance(value, str) else _encode_text(value)


# --- what is registered ---------------------------------------------------------------


class _Entry:
    """A tool, resource, resource template, prompt, or completer of an argument."""

    position = 0
    """They only grow, so a cursor that holds one stays good while the list changes."""
    output: Schema | None = None
    """Of a tool: what its structured results are held to."""
    mirrored: tuple[MirroredParameter, ...] = ()
    """Of a tool: the arguments that HTTP headers mirror."""

    def __init__(self, member: str, function: Any, options: JSON) -> None:
        name = options.get("name") or function.__name__
        self.member = member
        """The member of a list result that it is shown in."""
        self.key: str = options.get("uri", name)
        """What requests call it."""
        self.function = _by_name(function)
        self.is_async = any(
            map(inspect.iscoroutinefunction, (function, function.__call__))
        )
        self.parameters = parameters_of(function, Context)
        self.scopes = frozenset(options.get("scopes", ()))
        self.wire = {"name": name, **_defined(function, options)}
        """The definition, as the list methods show it."""
        self.caching: dict[str, JSON] = {}
        """Of a resource: the hints that differ from the server's."""

    @functools.cached_property
    def schema(self) -> Schema:
        """Compile at the first use what registering did not compile."""
        return Schema(self.parameters.schema)

    async def call(self, ctx: Context, arguments: dict[str, Any]) -> Any:
        """Call the handler: on the loop if it is `async def`, else in a thread."""
        if self.parameters.context is not None:
            arguments = {**arguments, self.parameters.context: ctx}
        try:
            if self.is_async:
                return await self.function(**arguments)
            value = await ctx.server.workers.run(self.function, arguments)
            return await value if inspect.isawaitable(value) else value
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError(f"{self.key!r} cancelled itself") from None
        except SystemExit as error:  # it ends the call, not the server
            raise RuntimeError(f"{self.key!r} called exit: {error!r}") from error

    def check_scopes(self, principal: Principal | None) -> None:
        """Raise InsufficientScope unless the caller has all scopes; all are named."""
        # tools-42, resources-20, caching-29: MUST implement access control
        if self.scopes and not self.scopes <= _granted(principal):
            raise InsufficientScope(self.scopes)


def _granted(principal: Principal | None) -> frozenset[str]:
    """Return what a caller may do; an entry that takes no more can be seen and used."""
    return principal.scopes if principal is not None else frozenset()


def _by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function with positional-only parameters be called by name."""
    parameters = inspect.signature(function).parameters.values()
    unnamed = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]

    def call(**arguments: Any) -> Any:
        first = [arguments.pop(p.name, p.default) for p in unnamed]
        return function(*first, **arguments)

    return call if unnamed else function


def _check_uri(uri: str) -> None:
    # resources-12: URI schemes MUST be in accordance with RFC 3986
    if not re.fullmatch(_URI, uri):
        raise ValueError(f"not an RFC 3986 URI: {uri!r}; percent-encode the rest")


_MEMBERS = {  # parameter of a decorator -> member of the definition
    "title": "title",
    "description": "description",
    "icons": "icons",
    "mime_type": "mimeType",
    "size": "size",
    "annotations": "annotations",
    "meta": "_meta",
}


def _defined(function: Callable[..., Any], options: JSON) -> dict[str, JSON]:
    """Return the members that all definitions share, checked; None is left out."""
    given = {member: options.get(option) for option, member in _MEMBERS.items()}
    if given["description"] is None:
        given["description"] = parse_docstring(inspect.getdoc(function))[0] or None
    found = _given(**given)
    _check_meta(found.get("_meta"))
    for icon in found.get("icons", ()):
        # base-65: consumers MUST reject other schemes, so we do not send them
        if not str(icon.get("src")).startswith(("https:", "http:", "data:")):
            raise ValueError(f"an icon's src is an https: or data: URI: {icon!r:.100}")
    return found


def _decorate(add: Callable[[Any, JSON], None], options: JSON) -> Callable[..., Any]:
    """Register the function among the options, or return what registers one."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        add(function, options)
        return function

    function = options.get("function")
    return register if function is None else register(function)


class Method(NamedTuple):
    """A row of the method table."""

    handler: MethodHandler
    feature: str | None = None
    """What must have been registered or declared for the method to exist."""
    cacheable: bool = False
    asks: bool = False
    """Whether it may answer `input_required`."""


class Server:
    """An MCP server: register with the decorators, then run(), or await handle().

    Registering is allowed at any time and from any thread; open listen streams are
    told. Plain `def` handlers run in threads, `async def` handlers on the event loop.
    """

    def __init__(
        self,
        name: str,
        version: str = "0",
        *,
        title: str | None = None,
        instructions: str | None = None,
        website_url: str | None = None,
        icons: Sequence[JSON] | None = None,
        keys: Sequence[bytes] = (),
        state_seconds: int = 600,
        ttl_ms: int = 0,
        page_size: int | None = None,
        mask_errors: bool = True,
        subscriptions: bool = True,
        declare: Iterable[str] = (),
        workers: Workers | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a server.

        keys: secrets under which requestState and cursors are signed, the first signs,
        all verify; give all processes that serve the same clients the same. Without, a
        random one. state_seconds: how long a question may take to be answered.
        ttl_ms: how long clients may cache lists. page_size: entries per page, or None.
        mask_errors: hide the text of exceptions other than ToolError from clients.
        subscriptions: False turns change notifications off. declare: capabilities to
        declare although nothing is registered yet: "tools", "resources", "prompts".
        """
        self.info = {"name": name, "version": version}
        self.info |= _given(title=title, websiteUrl=website_url, icons=icons)
        self.instructions = instructions
        self.keys = tuple(keys) or (os.urandom(32),)
        if not all(self.keys):
            raise ValueError("an empty key signs nothing")
        self.state_seconds = state_seconds
        # caching-11: MUST be >= 0
        self.ttl_ms = _check_ttl(ttl_ms)
        if page_size is not None and page_size < 1:
            raise ValueError("a page holds at least one entry")
        self.page_size = page_size
        self.mask_errors = mask_errors
        self.workers = workers or Workers()
        self.clock = clock
        self.subscriptions = Subscriptions()
        self.extensions: dict[str, Extension] = {}
        self._features = set(declare)  # what there is, was, or will be
        if not self._features <= _CHANGED.keys():
            raise ValueError(f"declare takes {', '.join(_CHANGED)}, not {declare!r}")
        self._registries: dict[str, dict[str, _Entry]] = {f: {} for f in _CHANGED}
        self._positions = {feature: itertools.count(1) for feature in _CHANGED}
        self._restricted = False
        self._templates: dict[str, tuple[UriTemplate, _Entry]] = {}
        self._completers: dict[tuple[str, str], _Entry] = {}
        self._methods = dict(METHODS)
        self._filters = dict(FILTERS)
        self._names = dict(MIRRORED_NAMES)
        self._server_meta = {META_SERVER_INFO: self.info}
        if not subscriptions:
            del self._methods["subscriptions/listen"]

    # --- one request ------------------------------------------------------------------

    async def handle(self, request: Request, send: Send) -> JSON:
        """Answer one request: the Exchange that everything else is built around.

        Raises nothing but CancelledError.
        """
        try:
            return result_response(request.id, await self._answer(request, send))
        except McpError as error:
            return error_response(request.id, error)
        except (Exception, BaseExceptionGroup) as error:
            return error_response(request.id, self._internal(request.method, error))

    async def _answer(self, request: Request, send: Send) -> JSON:
        # Headers first: whoever reads only them must not see another request than we.
        if request.headers is not None:
            check_headers(request, self._names)
        method = self._methods.get(request.method)
        if method is None or (method.feature and method.feature not in self._features):
            raise self._unknown_method(request.method)
        meta = Meta.of(request.params)
        check_version(meta.protocol_version, SUPPORTED_VERSIONS)
        ctx = Context(self, request, meta, send)
        if method.asks:
            ctx._replay = self._open_state(request)
        try:
            found = await method.handler(self, ctx, request.params)
        except InputRequired as required:
            found = self._input_required(ctx, required)
        except BaseExceptionGroup as group:
            found = self._input_required(ctx, _asked_in(group))
        except asyncio.CancelledError:
            ctx.cancelled = True
            raise
        finally:
            if ctx._outbox is not None and ctx.cancelled:
                ctx._outbox.abandon()
            elif ctx._outbox is not None:
                await ctx._outbox.close()
        return self._finish(method, ctx, found)

    def _finish(self, method: Method, ctx: Context, found: JSON) -> JSON:
        """Add to a result what each result has to have."""
        # base-10: MUST include a resultType
        kind = found.setdefault("resultType", COMPLETE)
        if kind != COMPLETE and not (method.asks and kind == ASKING):
            self._check_result_type(kind, ctx)
        # base-58: SHOULD include serverInfo in every result
        meta = found.get("_meta")
        found["_meta"] = self._server_meta | meta if meta else self._server_meta
        # caching-01: MUST include hints, on complete results only
        if method.cacheable and kind == COMPLETE:
            # What is read is stale at once unless its entry says otherwise.
            found.setdefault("ttlMs", 0 if method.asks else self.ttl_ms)
            # caching-26, caching-27: MUST be the same for all pages of a list
            depends = ctx.principal is not None or self._restricted or method.asks
            found.setdefault("cacheScope", "private" if depends else "public")
        return found

    def _check_result_type(self, kind: str, ctx: Context) -> None:
        """Let only those results of an extension pass that the client understands."""
        owners = [e for e in self.extensions.values() if kind in e.result_types]
        # base-12: MUST be one of the core protocol's or of an extension's
        if not owners:
            raise ValueError(f"resultType {kind!r} belongs to no extension")
        # versioning-06: MUST be refused if the client does not support the extension
        name = owners[-1].identifier
        if not ctx.supports("extensions", name):
            raise MissingRequiredClientCapability({"extensions": {name: {}}})

    def _unknown_method(self, name: str) -> MethodNotFound:
        message = f"Method not found: {name[:100]}"
        if name != "initialize":
            return MethodNotFound(message)
        # versioning-10: SHOULD name the versions in an error to `initialize`
        versions = ", ".join(SUPPORTED_VERSIONS)
        message += f"; this server speaks only {versions}, which has no handshake"
        return MethodNotFound(message, {"supported": list(SUPPORTED_VERSIONS)})

    def _internal(self, what: str, error: BaseException) -> InternalError:
        """Log an exception and return what the client may know of it."""
        _log.error("%s failed", what, exc_info=error)
        if self.mask_errors:
            return InternalError("Internal error")
        return InternalError(f"{type(error).__name__}: {error}")

    # --- state of multi round-trip requests -------------------------------------------

    def _binding(self, request: Request) -> JSON:
        """Name the request that a state belongs to: only its repetition has it."""
        params = request.params
        principal = request.principal
        return [
            self.info["name"],
            principal and [principal.subject, principal.client],
            request.method,
            params.get("name", params.get("uri")),
            params.get("arguments", {}),
        ]

    def _open_state(self, request: Request) -> _Replay:
        params = request.params
        responses, state = params.get("inputResponses"), None
        # mrtr-29: SHOULD be a valid InputResponses object
        if "inputResponses" in params and not (
            isinstance(responses, dict)
            and all(isinstance(one, dict) for one in responses.values())
        ):
            raise InvalidParams("inputResponses must be an object of objects")
        if "requestState" in params:
            # mrtr-11, mrtr-33: MUST be treated as attacker-controlled
            binding, now = self._binding(request), self.clock()
            state = unseal_state(params["requestState"], binding, now, self.keys)
        return _Replay(state, responses)

    def _input_required(self, ctx: Context, required: InputRequired) -> JSON:
        replay = ctx._replaying()
        needed: dict[str, JSON] = {}
        for question in required.requests.values():
            # mrtr-18, mrtr-19, elicitation-06, sampling-05: MUST NOT ask for what the
            # client did not declare; base-56: MUST answer with all that is missing
            if not supports(ctx.meta.client_capabilities, question.needs):
                _merge(needed, question.needs)
        if needed:
            raise MissingRequiredClientCapability(needed)
        found: dict[str, JSON] = {"resultType": ASKING}
        if required.requests:
            requests = required.requests.items()
            found["inputRequests"] = {key: one.request for key, one in requests}
        expires = self.clock() + self.state_seconds
        state, binding = replay.state(required), self._binding(ctx.request)
        found["requestState"] = seal_state(state, binding, expires, self.keys)
        return found

    # --- what the server offers -------------------------------------------------------

    @property
    def capabilities(self) -> dict[str, JSON]:
        """Return ServerCapabilities: what is there, and nothing else."""
        found: dict[str, JSON] = {}
        # tools-04, resources-02, prompts-02, completion-02, logging-02: MUST declare
        for feature, changes in _CAPABILITIES.items():
            if feature in self._features:
                listens = "subscriptions/listen" in self._methods
                found[feature] = dict.fromkeys(changes, True) if listens else {}
        if self.extensions:
            found["extensions"] = {k: e.settings for k, e in self.extensions.items()}
        return found

    def extend(self, extension: Extension) -> None:
        """Add an extension's methods, result types and listen filters."""
        # versioning-05: MUST follow the _meta key rules, with a prefix
        check_meta_key(extension.identifier, prefixed=True)
        for name, handler in extension.methods.items():
            if name in self._methods:
                raise ValueError(f"method {name!r} exists already")
            self._methods[name] = Method(handler)
        self._filters.update(extension.filters)
        self._names.update(extension.names)
        if extension.methods:
            self._features.add("logging")
        self.extensions[extension.identifier] = extension

    @typing.overload
    def tool(self, function: _Function, /) -> _Function: ...

    @typing.overload
    def tool(
        self, function: None = None, /, **options: Any
    ) -> Callable[[_Function], _Function]: ...

    def tool(  # type: ignore[misc]  # the overloads do not spell out the options
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        schema: dict[str, JSON] | None = None,
        output_schema: dict[str, JSON] | None = None,
        annotations: dict[str, JSON] | None = None,
        icons: Sequence[JSON] | None = None,
        meta: dict[str, JSON] | None = None,
        scopes: Iterable[str] = (),
    ) -> Any:
        """Register a tool: `@server.tool`, or `@server.tool(name=..., ...)`.

        The input schema comes from the type hints, unless `schema` gives it: then the
        handler gets the arguments as they are. The output schema comes from the return
        hint. `annotations` are ToolAnnotations, such as {"readOnlyHint": True}.
        Returns the function. Raises ValueError or TypeError for what cannot be.
        """
        return _decorate(self._add_tool, locals())

    def _add_tool(self, function: Callable[..., Any], options: JSON) -> None:
        entry = _Entry("tools", function, options)
        name, wire = entry.key, entry.wire
        # tools-15, tools-17, tools-18: SHOULD be 1 to 128 of these characters
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name):
            expected = "hosts expect 1 to 128 of A-Z a-z 0-9 _ - ."
            _log.warning("tool name %r: %s", name, expected)
        hints = wire.get("annotations", {})
        if not all(isinstance(v, bool) for k, v in hints.items() if k.endswith("Hint")):
            raise ValueError(f"the hints of a tool are booleans: {hints!r:.100}")
        given, output = options["schema"], options["output_schema"]
        if given is not None:
            entry.parameters = entry.parameters._replace(schema=given, convert=dict)
        inputs = wire["inputSchema"] = entry.parameters.schema
        # tools-12: MUST be a valid JSON Schema object; base-40
        entry.schema = _schema(name, "input", inputs)
        if inputs.get("type") != "object":
            raise ValueError(f'input schema of {name!r}: it must say "type": "object"')
        entry.mirrored = mirrored_parameters(inputs)
        if output is None:
            output = returns_of(function, _UNSTRUCTURED)
        if output is not None:
            wire["outputSchema"] = output
            entry.output = _schema(name, "output", output)
        self._add("tools", entry)

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: dict[str, JSON] | None = None,
        icons: Sequence[JSON] | None = None,
        meta: dict[str, JSON] | None = None,
        ttl_ms: int | None = None,
        cache_scope: str | None = None,
        scopes: Iterable[str] = (),
    ) -> Callable[[_Function], _Function]:
        """Register a resource, or with `{variables}` in the URI a resource template.

        The handler returns str (text), bytes (blob), Contents or a list of them, or any
        JSON value; None means that there is no such resource. A template's variables
        are its parameters, converted as their hints say; URIs are compared as written.
        """
        return _decorate(self._add_resource, locals())

    def _add_resource(self, function: Callable[..., Any], options: JSON) -> None:
        uri, size = options["uri"], options["size"]
        ttl_ms, scope = options["ttl_ms"], options["cache_scope"]
        template = UriTemplate(uri) if is_template(uri) else None
        if template is None:
            _check_uri(uri)
        if size is not None and not 0 <= operator.index(size):
            raise ValueError("size is a number of bytes")
        if ttl_ms is not None:
            _check_ttl(ttl_ms)
        if scope not in (None, "public", "private"):
            raise ValueError(f"cache_scope is public or private, not {scope!r}")
        entry = _Entry("resources", function, options)
        _check_annotations(entry.wire.get("annotations", {}))
        names = set(entry.parameters.schema["properties"])
        if names != set(template.names if template else ()):
            raise ValueError(f"{uri!r} and the parameters {sorted(names)} differ")
        entry.caching = _given(ttlMs=ttl_ms, cacheScope=scope)
        if template is None:
            entry.wire = {"uri": uri, **entry.wire}
        else:
            entry.member = "resourceTemplates"
            entry.wire = {"uriTemplate": uri, **entry.wire}
        self._add("resources", entry)
        if template is not None:
            self._templates[uri] = template, entry

    @typing.overload
    def prompt(self, function: _Function, /) -> _Function: ...

    @typing.overload
    def prompt(
        self, function: None = None, /, **options: Any
    ) -> Callable[[_Function], _Function]: ...

    def prompt(  # type: ignore[misc]  # as above
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Sequence[JSON] | None = None,
        meta: dict[str, JSON] | None = None,
        scopes: Iterable[str] = (),
    ) -> Any:
        """Register a prompt: `@server.prompt`, or `@server.prompt(name=..., ...)`.

        Arguments come from the signature; clients send strings, which are converted as
        the hints say. The handler returns str, Content, user(...), assistant(...), or a
        list of these.
        """
        return _decorate(self._add_prompt, locals())

    def _add_prompt(self, function: Callable[..., Any], options: JSON) -> None:
        entry = _Entry("prompts", function, options)
        schema = entry.parameters.schema
        entry.schema = _schema(entry.key, "argument", schema)
        needed = schema.get("required", ())
        arguments = [
            _given(
                name=name,
                description=one.get("description"),
                required=True if name in needed else None,
            )
            for name, one in schema["properties"].items()
        ]
        if arguments:
            entry.wire["arguments"] = arguments
        self._add("prompts", entry)

    def complete(
        self, of: str, argument: str, values: Sequence[str] | None = None
    ) -> Callable[[Callable[..., Any]], Any]:
        """Register suggestions for an argument of a prompt or variable of a template.

        `of` is the prompt's name or the URI template. Decorate a function
        `(value, arguments)` or `(value)` that returns strings, best first, or give
        `values`, which are filtered by what was typed.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            entry = _Entry("values", function, {"name": of})
            self._completers[of, argument] = entry
            self._note("completions", entry)
            return function

        if values is not None:
            register(functools.partial(_matching, tuple(values)))
        return register

    def _add(self, feature: str, entry: _Entry) -> None:
        entries = self._registries[feature]
        # tools-19: SHOULD be unique
        if entry.key in entries:
            raise ValueError(f"{entry.key!r} is registered already")
        encode(entry.wire)  # what is not JSON must fail here, not in every list
        entry.position = next(self._positions[feature])
        entries[entry.key] = entry
        self._restricted = self._restricted or bool(entry.scopes)
        self._note(feature, entry)
        self.subscriptions.publish(*_CHANGED[feature], {})

    def _note(self, feature: str, entry: _Entry) -> None:
        """Remember for good what there is to be declared."""
        self._features.add(feature)
        if entry.parameters.context is not None:
            self._features.add("logging")

    # --- changes at run time, from any thread -----------------------------------------

    def remove_tool(self, name: str) -> None:
        """Remove a tool; open streams are told. Raises KeyError."""
        self._remove("tools", name)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt; open streams are told. Raises KeyError."""
        self._remove("prompts", name)

    def remove_resource(self, uri: str) -> None:
        """Remove a resource or template; open streams are told. Raises KeyError."""
        self._remove("resources", uri)
        self._templates.pop(uri, None)

    def _remove(self, feature: str, name: str) -> None:
        del self._registries[feature][name]
        # tools-11, resources-08, prompts-07: SHOULD send a notification
        self.subscriptions.publish(*_CHANGED[feature], {})

    def resource_updated(self, uri: str) -> None:
        """Tell the streams that subscribed to exactly this URI."""
        key = "resourceSubscriptions", uri
        self.subscriptions.publish(key, "notifications/resources/updated", {"uri": uri})

    # --- running ----------------------------------------------------------------------

    @property
    def asgi(self) -> Callable[..., Awaitable[None]]:
        """Return an ASGI 3 application; asgi_app() is the same with options."""
        return asgi_app(self)

    def run(self, http: int | str | None = None, **options: Any) -> int:
        """Serve until the end: stdio, or HTTP if `http` is PORT or "HOST:PORT".

        Blocks; returns an exit status: 0, or 128 + the signal that ended it. `options`
        are those of serve_stdio() or serve_http().
        """
        if http is None:
            return run_until_signal(serve_stdio(self, **options))
        host, port = parse_address(http)
        options.setdefault("on_ready", _announce)
        return run_until_signal(serve_http(self, host, port, **options))


def _schema(name: str, which: str, schema: JSON) -> Schema:
    if not isinstance(schema, dict):  # true and false are schemas, but not for tools
        raise ValueError(f"{which} schema of {name!r}: it must be an object")
    try:
        return Schema(schema)
    except SchemaError as error:
        raise ValueError(f"{which} schema of {name!r}: {error}") from None


def _check_ttl(ttl_ms: int) -> int:
    if type(ttl_ms) is not int or ttl_ms < 0:
        raise ValueError(f"ttl_ms is an integer >= 0, not {ttl_ms!r}")
    return ttl_ms


def _matching(values: tuple[str, ...], value: str) -> list[str]:
    """Put values that start with what was typed before those that contain it."""
    typed = value.lower()
    found = [one for one in values if typed in one.lower()]
    return sorted(found, key=lambda one: not one.lower().startswith(typed))


def _merge(into: dict[str, JSON], other: dict[str, JSON]) -> None:
    for key, value in other.items():
        _merge(into.setdefault(key, {}), value)


def _asked_in(group: BaseExceptionGroup[Any]) -> InputRequired:
    """Unite the questions of tasks that ran side by side, or raise the group."""
    requests: dict[str, Question] = {}
    queue: list[BaseException] = [group]
    for error in queue:
        if isinstance(error, BaseExceptionGroup):
            queue.extend(error.exceptions)
        elif isinstance(error, InputRequired):
            requests |= error.requests
        else:
            raise group
    return InputRequired(requests)


# --- the methods ----------------------------------------------------------------------
#
# One signature: (server, ctx, params) -> result without what Server._finish adds.


def _param(params: JSON, path: str, kind: type, default: JSON = None) -> Any:
    """Return the parameter at a dotted path, of which null is as good as absent.

    Raises InvalidParams that names it.
    """
    value = params
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else ...
        value = default if value is None else value
    if not isinstance(value, kind):
        wanted = "a string" if kind is str else "an object"
        raise InvalidParams(f"params.{path} must be {wanted}")
    return value


async def _discover(server: Server, ctx: Context, params: JSON) -> JSON:
    # versioning-03, discover-01: MUST be implemented
    return _given(
        supportedVersions=list(SUPPORTED_VERSIONS),
        capabilities=server.capabilities,
        instructions=server.instructions,
    )


def _lister(feature: str, member: str) -> Method:
    """Make a list method.                          spec: server/utilities/pagination"""

    async def listing(server: Server, ctx: Context, params: JSON) -> JSON:
        after = 0
        if "cursor" in params:
            try:
                given_out_by, after = unseal(params["cursor"], server.keys)
            except (ValueError, TypeError, AttributeError):
                given_out_by = None
            # pagination-07: SHOULD be -32602
            if given_out_by != member:
                raise InvalidParams("The cursor is not one that this list gave out")
        entries = list(server._registries[feature].values())
        granted = _granted(ctx.principal)
        # tools-06, resources-04, prompts-04: MUST NOT depend on anything but the caller
        found = [
            entry
            for entry in entries
            if entry.member == member
            and entry.position > after
            and entry.scopes <= granted
        ]
        page = found[: server.page_size]
        answer: dict[str, JSON] = {member: [entry.wire for entry in page]}
        if len(page) < len(found):
            answer["nextCursor"] = seal([member, page[-1].position], server.keys)
        return answer

    return Method(listing, feature, cacheable=True)


async def _call_tool(server: Server, ctx: Context, params: JSON) -> JSON:
    """Answer tools/call.                                          spec: server/tools"""
    name, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(name, str):
        raise InvalidParams("params.name must be a string")
    if not isinstance(arguments, dict):
        raise InvalidParams("params.arguments must be an object")
    tool = server._registries["tools"].get(name)
    if tool is None:
        # A protocol error: a model cannot mend it by other arguments.
        raise InvalidParams(f"Unknown tool: {name[:100]}")
    tool.check_scopes(ctx.principal)
    if tool.mirrored and ctx.request.headers is not None:
        check_mirrored(tool.mirrored, arguments, ctx.request.headers)
    try:
        # tools-42: MUST validate all inputs
        _hold(tool.schema, arguments)
        converted = tool.parameters.convert(arguments)
    except ValueError as error:  # SchemaError, the budget of a validation, is one
        return _failed(f"Invalid arguments: {error}")
    try:
        value = await tool.call(ctx, converted)
        return _tool_result(tool, value)
    except McpError:
        raise
    except ToolError as error:
        return _failed(str(error))
    except Exception as error:
        # tools-42: MUST sanitize outputs: exceptions are for the log
        hidden = server._internal(f"tool {name!r}", error)
        reason = f"The tool {name!r} failed"
        return _failed(reason if server.mask_errors else f"{reason}: {hidden.message}")


def _hold(schema: Schema, value: JSON, error: str = "") -> None:
    """Raise ValueError that says where the value does not fit the schema."""
    violations = schema.violations(value)
    if violations:
        raise ValueError(error + "; ".join(map(str, violations)))


def _failed(message: str) -> JSON:
    return {"content": [text(message)], "isError": True}


def _tool_result(tool: _Entry, value: Any) -> JSON:
    """Turn what a tool returned into a CallToolResult."""
    if isinstance(value, Result):
        found: JSON = dict(value)
        if "resultType" in found:  # an extension's, not a CallToolResult
            return found
    elif isinstance(value, Content):
        found = {"content": [value]}
    elif isinstance(value, (list, tuple)) and any(
        isinstance(one, Content) for one in value
    ):
        found = {"content": [_as_block(one) for one in value]}
    elif tool.output is None and (value is None or isinstance(value, str)):
        found = {"content": [] if value is None else [text(value)]}
    else:
        structured = to_json(value)
        try:
            shown = _serialise(structured)
        except ValueError as error:
            flaw = _not_finite(structured) or error
            raise ToolError(f"The result is not JSON: {flaw}") from None
        # tools-37: SHOULD also return the serialized JSON in a text block
        found = {
            "content": [{"type": "text", "text": shown}],
            "structuredContent": structured,
        }
    if tool.output is not None and not found.get("isError"):
        _check_output(tool.output, found)
    return found


def _not_finite(value: JSON, path: str = "result") -> str | None:
    """Name the first number that JSON cannot write, if there is one."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path} is {value}"
    members: Iterable[tuple[Any, JSON]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    found = (_not_finite(one, f"{path}[{key!r}]") for key, one in members)
    return next(filter(None, found), None)


def _check_output(schema: Schema, found: JSON) -> None:
    # tools-38: MUST provide structured results that conform to the output schema
    if "structuredContent" not in found:
        raise TypeError(
            "the tool has an output schema, but its result no structured value"
        )
    error = "the result does not fit the output schema: "
    _hold(schema, found["structuredContent"], error)


async def _read_resource(server: Server, ctx: Context, params: JSON) -> JSON:
    """Answer resources/read.                                  spec: server/resources"""
    uri = _param(params, "uri", str)
    # resources-17: MUST validate all URIs
    if len(uri) > MAX_URI or not re.fullmatch(_URI_SHAPE, uri):
        raise InvalidParams(f"params.uri is not a URI: {uri[:100]!r}")
    found = _find_resource(server, uri)
    # resources-13: MUST be -32602
    if found is None:
        raise ResourceNotFound(uri)
    resource, variables = found
    resource.check_scopes(ctx.principal)
    try:
        arguments = _from_text(resource, variables)
    except ValueError as error:
        raise InvalidParams(f"{uri[:200]}: {error}", {"uri": uri}) from None
    try:
        value = await resource.call(ctx, arguments)
    except (FileNotFoundError, UnsafePath):
        # resources-21: a path that leads out of its root is as good as absent
        value = None
    # resources-16: MUST NOT return empty contents for what does not exist
    if value is None:
        raise ResourceNotFound(uri)
    return {"contents": _contents(resource, uri, value), **resource.caching}


def _find_resource(server: Server, uri: str) -> tuple[_Entry, dict[str, str]] | None:
    """Find by exact URI, then by the templates, the most specific one first."""
    # The key of a template is no URI, but a client may send it all the same.
    exact = None if is_template(uri) else server._registries["resources"].get(uri)
    if exact is not None:
        return exact, {}
    templates = list(server._templates.values())
    for template, entry in sorted(templates, key=lambda pair: pair[0].sort_key):
        variables = template.match(uri)
        if variables is not None:
            return entry, variables
    return None


def _contents(resource: _Entry, uri: str, value: Any) -> list[JSON]:
    parts = value if isinstance(value, (list, tuple)) else [value]
    if parts and all(isinstance(one, Contents) for one in parts):
        return list(parts)
    mime_type = resource.wire.get("mimeType")
    if not isinstance(value, (str, bytes)):
        value = _encode_text(to_json(value))
        mime_type = mime_type or "application/json"
    return [contents(uri, value, mime_type)]


async def _get_prompt(server: Server, ctx: Context, params: JSON) -> JSON:
    """Answer prompts/get.                                       spec: server/prompts"""
    name, arguments = _param(params, "name", str), params.get("arguments", {})
    prompt = server._registries["prompts"].get(name)
    # prompts-12: SHOULD be -32602 for an unknown prompt or missing arguments
    if prompt is None:
        raise InvalidParams(f"Unknown prompt: {name[:100]}")
    prompt.check_scopes(ctx.principal)
    if not isinstance(arguments, dict) or not all(
        isinstance(value, str) for value in arguments.values()
    ):
        raise InvalidParams("params.arguments must be an object of strings")
    try:
        # prompts-13, prompts-16: MUST validate the arguments
        converted = _from_text(prompt, arguments)
    except ValueError as error:
        raise InvalidParams(f"Invalid arguments: {error}") from None
    value = await prompt.call(ctx, converted)
    if isinstance(value, Result):
        if not {"messages", "resultType"} & value.keys():
            raise TypeError("a prompt's Result needs messages; result() is for tools")
        return dict(value)
    messages = [
        one if isinstance(one, Message) else user("" if one is None else one)
        for one in (value if isinstance(value, (list, tuple)) else [value])
    ]
    return _given(messages=messages, description=prompt.wire.get("description"))


def _from_text(entry: _Entry, given: Mapping[str, str]) -> dict[str, Any]:
    """Convert strings as the hints say: "5" for an int, "false" for a bool.

    Raises ValueError that names the argument.
    """
    values: dict[str, JSON] = dict(given)
    for violation in entry.schema.violations(values, limit=100):
        if violation.keyword in ("type", "anyOf", "enum", "const") and violation.path:
            name = str(violation.path[0])
            with contextlib.suppress(ValueError):
                values[name] = json.loads(given[name])
    _hold(entry.schema, values)
    return entry.parameters.convert(values)


async def _complete(server: Server, ctx: Context, params: JSON) -> JSON:
    """Answer completion/complete.                  spec: server/utilities/completion"""
    entry = _completion_target(server, params)
    entry.check_scopes(ctx.principal)
    name = _param(params, "argument.name", str)
    value = _param(params, "argument.value", str)
    known = _param(params, "context.arguments", dict, {})
    if name not in entry.parameters.schema["properties"]:
        raise InvalidParams(f"{entry.key} has no argument {name[:100]!r}")
    completer = server._completers.get((entry.key, name))
    values: list[str] = []
    if completer is not None:
        wanted = completer.parameters.schema["properties"]
        offered = {"value": value, "arguments": known}
        given = {key: one for key, one in offered.items() if key in wanted}
        values = [str(one) for one in await completer.call(ctx, given)]
    return {
        "completion": {
            "values": values[:MAX_COMPLETIONS],
            "total": len(values),
            "hasMore": len(values) > MAX_COMPLETIONS,
        }
    }


def _completion_target(server: Server, params: JSON) -> _Entry:
    """Find what a completion reference names. completion-03: else SHOULD be -32602."""
    kinds = {"ref/prompt": ("prompts", "name"), "ref/resource": ("resources", "uri")}
    kind = _param(params, "ref.type", str)
    if kind not in kinds:
        raise InvalidParams(f"params.ref.type must be one of {', '.join(kinds)}")
    feature, member = kinds[kind]
    key = _param(params, f"ref.{member}", str)
    entry = server._registries[feature].get(key)
    if entry is None:
        raise InvalidParams(f"params.ref names nothing that exists: {key[:100]!r}")
    return entry


async def _listen(server: Server, ctx: Context, params: JSON) -> JSON:
    """Answer subscriptions/listen: it ends when the server shuts down."""
    wanted = _param(params, "notifications", dict)
    if len(server.subscriptions) >= LISTEN_STREAMS:
        raise Overloaded(f"{LISTEN_STREAMS} listen streams are open")
    honoured: dict[str, JSON] = {}
    keys: list[Hashable] = []
    # subscriptions-01: MUST NOT send what was not asked for
    for name, value in wanted.items():
        agree = server._filters.get(name)
        agreed, more = agree(ctx, value) if agree else (None, ())
        if agreed is not None:
            honoured[name] = agreed
            keys.extend(more)
    subscription = _Subscription(ctx.request.id, keys)
    server.subscriptions.add(subscription)
    try:
        # subscriptions-02: MUST be the first message
        await ctx._send(
            notification(
                "notifications/subscriptions/acknowledged",
                {
                    "notifications": honoured,
                    "_meta": {META_SUBSCRIPTION_ID: subscription.id},
                },
            )
        )
        while not subscription.ended:
            await subscription.changed()
            for message in subscription.take():
                await ctx._send(message)
    finally:
        server.subscriptions.remove(subscription)
    # subscriptions-07, subscriptions-08: SHOULD end with a result
    return {"_meta": {META_SUBSCRIPTION_ID: subscription.id}}


def _list_filter(
    feature: str, event: str, ctx: Context, value: JSON
) -> tuple[JSON, Iterable[Hashable]]:
    if not isinstance(value, bool):
        raise InvalidParams(f"params.notifications.{event} must be a boolean")
    offered = value and feature in ctx.server._features
    return (True, (event,)) if offered else (None, ())


def _resource_filter(ctx: Context, value: JSON) -> tuple[JSON, Iterable[Hashable]]:
    """Honour the URIs that exist or match a template, and that the caller may read."""
    if not isinstance(value, list) or not all(isinstance(uri, str) for uri in value):
        raise InvalidParams(
            "params.notifications.resourceSubscriptions must be an array of strings"
        )
    if "resources" not in ctx.server._features:
        return None, ()
    honoured, granted = [], _granted(ctx.principal)
    for uri in dict.fromkeys(value[:MAX_SUBSCRIBED]):
        found = _find_resource(ctx.server, uri)
        if found is not None and found[0].scopes <= granted:
            honoured.append(uri)
    return honoured, [("resourceSubscriptions", uri) for uri in honoured]


_CHANGED = {  # feature -> filter and notification of changes to its lists
    "tools": ("toolsListChanged", "notifications/tools/list_changed"),
    "resources": ("resourcesListChanged", "notifications/resources/list_changed"),
    "prompts": ("promptsListChanged", "notifications/prompts/list_changed"),
}
_CAPABILITIES = {  # feature -> what one can listen to
    "tools": ("listChanged",),
    "resources": ("listChanged", "subscribe"),
    "prompts": ("listChanged",),
    "completions": (),
    "logging": (),
}
_UNSTRUCTURED = (str, type(None), Content, Result)
FILTERS: dict[str, ListenFilter] = {
    event: functools.partial(_list_filter, feature, event)
    for feature, (event, _) in _CHANGED.items()
}
FILTERS["resourceSubscriptions"] = _resource_filter
# mrtr-05: of these, only the three that ask may answer `input_required`
METHODS: dict[str, Method] = {
    "server/discover": Method(_discover, cacheable=True),
    "tools/list": _lister("tools", "tools"),
    "tools/call": Method(_call_tool, "tools", asks=True),
    "resources/list": _lister("resources", "resources"),
    "resources/templates/list": _lister("resources", "resourceTemplates"),
    "resources/read": Method(_read_resource, "resources", cacheable=True, asks=True),
    "prompts/list": _lister("prompts", "prompts"),
    "prompts/get": Method(_get_prompt, "prompts", asks=True),
    "completion/complete": Method(_complete, "completions"),
    "subscriptions/listen": Method(_listen),
}


# --- URI templates                                 spec: server/resources, RFC 6570 ---
#
#    note://{name}{?lang,page}      template, listed by resources/templates/list
#    note://my%20file?page=2        URI in resources/read  ->  match:  URI to values
#    {"name": "my file", "page": "2"}                      <-  expand: values to URI

_UNRESERVED = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
_SEGMENT = _UNRESERVED + "!$&'()*+,;=:@"  # RFC 3986 pchar, less the triplets
_ANY = _SEGMENT + "/?#[]"
_UCS = "\u00a0-\ud7ff\ue000-\U0010ffff"  # of an IRI; no lone surrogates
_TRIPLET = "%[0-9A-Fa-f]{2}"
_NAME_CHAR = f"(?:[A-Za-z0-9_]|{_TRIPLET})"
_VARIABLE = rf"{_NAME_CHAR}(?:\.?{_NAME_CHAR})*"


class _Operator(NamedTuple):
    first: str
    separator: str
    chars: str  # the ASCII characters that match() admits in a value
    reserved: bool = False  # expand() leaves reserved characters and triplets alone
    pairs: bool = False  # name=value, each optional, in any order
    empty: str = ""  # what follows the name in a pair without a value


_OPERATORS = {  # RFC 6570 appendix A; `chars` is ours
    "": _Operator("", ",", _SEGMENT),
    "+": _Operator("", ",", _ANY, reserved=True),
    "#": _Operator("#", ",", _ANY, reserved=True),
    ".": _Operator(".", ".", _SEGMENT),
    "/": _Operator("/", "/", _SEGMENT),
    ";": _Operator(";", ";", _SEGMENT, pairs=True),
    "?": _Operator("?", "&", _SEGMENT + "/?", pairs=True, empty="="),
    "&": _Operator("&", "&", _SEGMENT + "/?", pairs=True, empty="="),
}
_Part = tuple[_Operator | None, tuple[str, ...]]  # None: a literal, else names


class _Step(NamedTuple):
    unit: re.Pattern[str]
    name: str = ""  # of a value, which has one or more units
    separator: str = ""  # of pairs; a literal has neither


class UriTemplate:
    """Expand a template to a URI, and match a URI back to values (RFC 6570).

    The RFC defines expansion only. Matching takes the whole URI or nothing, normalises
    nothing, and decodes each value once, as UTF-8; "+" stays "+".

    * ``{a}``, ``{.a}`` and ``{/a}`` take one or more characters of a path segment:
      never a bare "/", but "%2F" decodes to one. For files, `safe_path` is the guard.
    * ``{+a}`` and ``{#a}`` take one or more characters of any kind.
    * ``{?a,b}``, ``{&a,b}`` and ``{;a,b}`` take pairs in any order. An absent one is
      left out of the result, an empty one is "". A name that is unknown or comes twice
      is no match. A value further left ends where these could begin: in
      ``{+path}{?page}``, the path holds no bare "?".
    * Else, the leftmost value takes what it can: ``{a}-{b}`` splits 1-2-3 after 1-2.
    * Lenient: bare non-ASCII characters are accepted in values and in literals.
    """

    def __init__(self, template: str) -> None:
        """Parse; raise ``ValueError``, with the position, if it is malformed."""
        self.template = template
        self._parts = list(_parse(template))
        self.names = tuple(name for op, names in self._parts if op for name in names)

    @functools.cached_property
    def _steps(self) -> list[_Step]:
        return _compile(self._parts)

    @functools.cached_property
    def sort_key(self) -> tuple[int, int, int]:
        """Sort by this to try the most specific template first.

        More literal characters, then fewer ``{+a}`` and ``{#a}``, then fewer names.
        """
        literal = sum(len(names[0]) for op, names in self._parts if op is None)
        wide = sum(op.reserved for op, _ in self._parts if op)
        return -literal, wide, len(self.names)

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the decoded values, or None for no match: an empty dict is one."""
        # resources-17: MUST validate; no step admits a character illegal in a URI
        steps = self._steps
        if len(uri) > MAX_URI or (steps and not steps[0].unit.match(uri)):
            return None
        tables = [[-1] * len(uri) + [len(uri)]]
        for step in reversed(steps):
            tables.append(_ends(step, uri, tables[-1]))
        if tables[-1][0] < 0:
            return None
        pairs: list[str] = []
        end = 0
        for step in steps:
            start, end = end, tables.pop()[end]
            if step.name:
                pairs.append(f"{step.name}={uri[start:end]}")
            elif step.separator and start < end:
                pairs += uri[start + 1 : end].split(step.separator)
        split = [pair.partition("=") for pair in pairs]
        try:
            found = {name: unquote(text, errors="strict") for name, _, text in split}
        except UnicodeDecodeError:
            return None
        return found if len(found) == len(pairs) else None  # none comes twice

    def expand(self, values: Mapping[str, str]) -> str:
        """Return the URI for these values; a variable without one is left out."""
        uri = ""
        for op, names in self._parts:
            if op is None:
                uri += _encode(names[0], reserved=True)
                continue
            items = []
            for name in names:
                if name in values:
                    text = _encode(values[name], op.reserved)
                    label = name + ("=" if text else op.empty) if op.pairs else ""
                    items.append(label + text)
            uri += op.first + op.separator.join(items) if items else ""
        return uri


def is_template(uri: str) -> bool:
    """Tell a template from a URI, which holds no bare brace."""
    return "{" in uri or "}" in uri


def _encode(text: str, reserved: bool) -> str:
    if not reserved:
        return quote(text, safe="")
    return quote(re.sub(f"(?!{_TRIPLET})%", "%25", text), safe=_ANY + "%")


def _unit(chars: str, stops: str) -> str:
    kept = "".join(char for char in chars if char not in stops)
    return f"(?:[{re.escape(kept)}{_UCS}]|{_TRIPLET})"


# An expression, a literal, or one character that can be in neither.
_PART = rf"(?s)\{{([^{{}}]*)\}}|({_unit(_ANY, '')}+)|(.)"


def _parse(template: str) -> Iterator[_Part]:
    seen: set[str] = set()
    for part in re.finditer(_PART, template):
        body, literal, stray = part.groups()
        start, at = f"URI template {template!r}: ", f" at {part.start()}"
        # resources-12: MUST be in accordance with RFC 3986
        if stray:
            why = "brace without its partner" if stray in "{}" else "illegal character"
            raise ValueError(f"{start}{why} {stray!r}{at}")
        if literal:
            yield None, (literal,)
            continue
        symbol = body[:1] if body[:1] in _OPERATORS else ""
        names = tuple(body[len(symbol) :].split(","))
        for name in names:
            why = "comes twice" if name in seen else ""
            if name.endswith("*") or ":" in name:
                why = "has a modifier of level 4; levels 1 to 3 are supported"
            elif not re.fullmatch(_VARIABLE, name):
                why = "is not a variable name, nor an operator with one"
            if why:
                raise ValueError(f"{start}{name!r}{at} {why}")
            seen.add(name)
        yield _OPERATORS[symbol], names


def _compile(parts: list[_Part]) -> list[_Step]:
    """Turn parts into steps, from the right: a value stops where later pairs open."""
    steps: list[_Step] = []
    stops = ""
    for op, names in reversed(parts):
        if op is None:
            steps.append(_literal(names[0]))
        elif op.pairs:
            value = _unit(op.chars, op.separator)
            name = "|".join(map(re.escape, names))
            pair = rf"(?:{name})(?:={value}*+|(?![\w.%]))"
            run = rf"(?:\{op.first}{pair}(?:{op.separator}{pair})*+)?"
            steps.append(_Step(re.compile(run), separator=op.separator))
            stops += op.first
        else:
            unit = re.compile(_unit(op.chars, stops))
            for name in reversed(names):
                steps.append(_Step(unit, name))
                before = op.first if name == names[0] else op.separator
                steps += [_literal(before)] if before else []
    return steps[::-1]


def _literal(text: str) -> _Step:
    encoded = _encode(text, reserved=True)
    return _Step(re.compile(f"{re.escape(text)}|{re.escape(encoded)}"))


def _ends(step: _Step, uri: str, after: list[int]) -> list[int]:
    """Tabulate where the step ends if it starts at each position; -1 is a dead end.

    ``after`` is the table of the next step. Tables take time in proportion to length
    times steps; one regular expression would try all ways to divide the URI.
    """
    ends = [-1] * len(after)
    for start in range(len(uri), -1, -1):
        if unit := step.unit.match(uri, start):
            end = unit.end()
            if step.name and ends[end] >= 0:
                ends[start] = ends[end]  # one more unit to the left of a value
            elif after[end] >= 0:
                ends[start] = end
    return ends


class UnsafePath(ValueError):
    """A path would lead out of its root; resources/read answers 'not found'."""


def safe_path(root: str | os.PathLike[str], relative: str) -> pathlib.Path:
    """Join a path from a URI to a directory; raise ``ValueError`` if it gets outside.

    ``relative`` has been decoded by `UriTemplate.match` and is not decoded again. "/"
    separates on every system, a backslash is refused on all. Links are followed before
    the check; the result is absolute and need not exist. Not kept out is who can
    replace what lies in ``root`` between this call and the opening of the file.
    """
    import pathlib  # here, because a server without files does not need it

    # resources-21: MUST sanitize file paths to prevent directory traversal
    if "\0" in relative or "\\" in relative:
        raise UnsafePath(f"path {relative!r} holds NUL or a backslash")
    stream = os.name == "nt" and ":" in relative
    if stream or pathlib.PureWindowsPath(relative).anchor:
        raise UnsafePath(f"path {relative!r} is absolute or names a drive or stream")
    try:
        base = pathlib.Path(root).resolve()
        path = (base / relative).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop, before 3.13
        raise UnsafePath(f"path {relative!r} cannot be resolved") from error
    # Also refused is a way out and in again, which would tell the name of the root.
    climbs = os.path.normpath(relative).split(os.sep)[0] == ".."
    if climbs or not path.is_relative_to(base):
        raise UnsafePath(f"path {relative!r} leaves its directory")
    return path


# ======================================================================================
# 8  Client
# ======================================================================================
#
#   call_tool("table_book", {"guests": 2})
#     -- tools/call (id 1), _meta ------------------>
#     <-- input_required: inputRequests, requestState      on_elicit answers
#     -- tools/call (id 2), inputResponses, requestState ->
#     <-- complete ----------------------------------      a Reply
#
#   request = round (question round)*     round = one Request through the Exchange

CALL_TIMEOUT = 60.0
PROBE_TIMEOUT = 30.0  # for server/discover, the start of the server included
MAX_ROUNDS = 10  # times that a server may ask before it answers
MAX_PAGES = 1000
CACHE_SIZE = 16 * 1024 * 1024  # characters of JSON
MAX_TTL_MS = 24 * 60 * 60 * 1000
RETRY_DELAY = 0.5  # doubled each time, with jitter, up to RETRY_LIMIT
RETRY_LIMIT = 30.0
CHANGES_QUEUED = 1000  # changes that wait for a slow reader of Listening
EARLIER_VERSION = "2025-11-25"  # the newest revision that begins with initialize
_MODERN_ERRORS = frozenset({-32020, -32021, -32022})
_MAY_ASK = frozenset({"tools/call", "prompts/get", "resources/read"})
_CACHEABLE = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)
_OUTDATES = {  # notification -> the methods whose cached results it makes stale
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": (
        "resources/list",
        "resources/templates/list",
    ),
    "notifications/resources/updated": ("resources/read",),
}


def _chance() -> float:
    """Return a random number from 0 to 1, without importing `random`."""
    return int.from_bytes(os.urandom(7), "big") / 2**56


class InvalidResponse(TransportError):
    """The server's answer breaks the protocol; `result` is what there is of it."""

    def __init__(self, message: str, result: JSON = None) -> None:
        super().__init__(message)
        self.result = result


class LegacyServer(TransportError):
    """The server speaks none of our revisions; `versions` are its own, if known."""

    def __init__(self, versions: Iterable[str], reason: str) -> None:
        self.versions = tuple(versions)
        speaks = ", ".join(self.versions) or "an earlier revision of MCP"
        super().__init__(
            f"The server speaks {speaks}; this client {', '.join(SUPPORTED_VERSIONS)} "
            f"({reason})"
        )


class UnansweredInput(TransportError):
    """The server asked for input that it does not get; `requests` are its questions."""

    def __init__(self, message: str, requests: JSON) -> None:
        super().__init__(message)
        self.requests = requests


class NoSuchResource(RemoteError):
    """The server has no resource with this URI."""


class Reply(dict[str, JSON]):
    """A result as it came, with conveniences."""

    stale = False
    """True for a cached result past its time, served because the server failed."""

    @property
    def text(self) -> str:
        """Return all text of a tool's, prompt's or resource's result, one string."""
        return "\n".join(
            text
            for block in self.blocks
            for holder in (block, block.get("resource"))
            if isinstance(holder, dict)
            if isinstance(text := holder.get("text"), str)
        )

    @property
    def blocks(self) -> list[dict[str, JSON]]:
        """Return all content blocks of a tool's, prompt's or resource's result."""
        found = _as_objects(self.get("content")) + _as_objects(self.get("contents"))
        for message in _as_objects(self.get("messages")):
            found += _as_objects(message.get("content"))
        return found

    @property
    def structured(self) -> JSON:
        """Return `structuredContent`; None if it is null or absent."""
        return self.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """Tell whether the tool said that it failed. tools-41: show it to the model."""
        return bool(self.get("isError"))

    @property
    def server_info(self) -> JSON:
        """Return the server's name and version, as it says itself; may be empty."""
        return _as_object(_as_object(self.get("_meta")).get(META_SERVER_INFO))


def _as_objects(value: JSON) -> list[dict[str, JSON]]:
    """Return the objects in a list, or the object itself: anything may have come."""
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, dict)]


def _as_object(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}


class CallOptions(typing.TypedDict, total=False):
    """What each call may be given; Client(...) takes the same as defaults."""

    timeout: float | None
    """Seconds for one round, CALL_TIMEOUT unless given; None waits for ever."""
    max_timeout: float
    """Progress extends the timeout, each time anew, up to this many seconds in all."""
    headers: Mapping[str, str]
    """HTTP only."""
    meta: Mapping[str, JSON]
    """Further members of `_meta`, such as traceparent."""
    log_level: str
    """The least severe log messages that the server should send. Deprecated."""
    on_progress: Callable[[dict[str, JSON]], Any]
    """Gets the params of each notifications/progress."""
    on_log: Callable[[dict[str, JSON]], Any]
    """Gets the params of each notifications/message."""
    refresh: bool
    """Ask the server even though a cached result is fresh."""


Handler = Callable[["Client", dict[str, JSON]], Any]
"""`(client, params of the question) -> answer`, plain or async; plain ones must not
block. client.label says which server asks."""


def in_memory(server: Any) -> Exchange:
    """Return the Exchange that reaches a Server in this process, through JSON."""

    async def exchange(request: Request, send: Send) -> JSON:
        async def forward(message: JSON) -> None:
            await send(decode(encode(message)))

        message = request_message(request.id, request.method, request.params)
        received = typing.cast(Request, read_message(decode(encode(message))))
        response = await server.handle(received, forward)
        return decode(encode_response(response)[0])

    return exchange


def connect(target: Any, names: Mapping[str, str] = MIRRORED_NAMES) -> Exchange:
    """Return the Exchange to a target.

    target: a URL, a command as list of arguments, a Server, or an Exchange already.
    """
    if isinstance(target, str):
        return HttpClient(target, names=names)
    if isinstance(target, (list, tuple)):
        return StdioClient(target)
    if hasattr(target, "handle"):
        return in_memory(target)
    if not callable(target):
        raise TypeError(f"not a URL, a command, a Server or an Exchange: {target!r}")
    return typing.cast(Exchange, target)


async def _maybe(value: Any) -> Any:
    """Await what needs it: callbacks may be plain or async."""
    return await value if inspect.isawaitable(value) else value


def backoff(attempt: int, delay: float, chance: Callable[[], float]) -> float:
    """Return how long to wait: doubling, bounded, jittered between half and full."""
    # caching-15: MUST apply jitter and backoff
    return min(delay * 2.0 ** min(attempt, 20), RETRY_LIMIT) * (0.5 + chance() / 2)


class Client:
    """A client of one server.

        async with Client("https://example.com/mcp") as client:
            print((await client.call_tool("add", {"a": 1, "b": 2})).text)

    Raises RemoteError for the server's JSON-RPC errors, TimeoutError, and
    TransportError for everything else that fails. What a tool says went wrong is no
    exception: look at Reply.is_error. Cancelling the awaiting task cancels the call.

    target          see connect(); the client closes it in the end
    on_elicit       `(client, params)`: answers a form with {"action": "accept",
                    "content": {...}}, "decline" or "cancel"
    on_url          asks the user, who MUST see all of params["url"], whether to open
                    it; True or False
    on_sample       returns a CreateMessageResult
    roots           file:// URIs, paths, or Root objects
    capabilities    added to those that follow from the four above
    info            the client's name and version, or None to stay anonymous
    discover        ask for the server's versions on entry
    bridge          wraps the Exchange to a server of an earlier revision; without, it
                    is a LegacyServer
    validate        hold structured results against the tool's outputSchema
    stale_on_error  serve outdated cached results while the server fails
    """

    def __init__(
        self,
        target: Any,
        *,
        on_elicit: Handler | None = None,
        on_url: Handler | None = None,
        on_sample: Handler | None = None,
        roots: Sequence[str | JSON] | None = None,
        capabilities: JSON = None,
        extensions: Sequence[Extension] = (),
        info: JSON = {"name": "mcp_ref", "version": __version__},  # noqa: B006
        discover: bool = True,
        probe_timeout: float = PROBE_TIMEOUT,
        bridge: Callable[[Exchange], Exchange] | None = None,
        max_rounds: int = MAX_ROUNDS,
        validate: bool = True,
        cache_size: int = CACHE_SIZE,
        stale_on_error: bool = False,
        retry_delay: float = RETRY_DELAY,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = _chance,
        ids: Iterator[Id] | None = None,
        **options: typing.Unpack[CallOptions],
    ) -> None:
        """Prepare a client; nothing is sent yet. `options` are the calls' defaults."""
        names = dict(MIRRORED_NAMES)
        self._result_types = {COMPLETE, ASKING}
        for extension in extensions:
            names |= extension.names
            # base-12: MUST include those of extensions that are advertised
            self._result_types |= extension.result_types
        self._transport = connect(target, names)
        self._exchange = self._transport
        self.label: str = getattr(self._transport, "label", "a server in this process")
        self.version = SUPPORTED_VERSIONS[0]
        self.server: Reply = Reply()
        """The last DiscoverResult."""
        self._on_elicit = on_elicit
        self._on_url = on_url
        self._on_sample = on_sample
        self._roots = [_root(root) for root in roots or ()]
        declared = self._declared(roots is not None, extensions)
        self.capabilities = _merged(declared, capabilities or {})
        self._info = info
        self._discover = discover
        self._probe_timeout = probe_timeout
        self._bridge = bridge
        self._legacy: LegacyServer | None = None
        self._max_rounds = max_rounds
        self._validate = validate
        self._stale_on_error = stale_on_error
        self._retry_delay = retry_delay
        self._chance = chance
        self._ids = ids or itertools.count(1)
        self._defaults = options
        self._cache = _Cache(cache_size, clock)
        self._tools: dict[str, _KnownTool] = {}
        self._closed = False

    def _declared(self, roots: bool, extensions: Sequence[Extension]) -> JSON:
        """Return the capabilities that follow from the handlers."""
        # elicitation-04, roots-02, sampling-06: MUST be declared on each request
        found: dict[str, JSON] = {}
        modes = {"form": self._on_elicit, "url": self._on_url}
        # elicitation-05: MUST support at least one mode
        if any(modes.values()):
            found["elicitation"] = {mode: {} for mode, on in modes.items() if on}
        if self._on_sample is not None:
            found["sampling"] = {}
        if roots:
            found["roots"] = {}
        if extensions:
            # versioning-05: MUST follow the _meta key rules, with a prefix
            found["extensions"] = {
                check_meta_key(one.identifier, prefixed=True): one.settings
                for one in extensions
            }
        return found

    async def __aenter__(self) -> Client:
        self._closed = False
        if self._discover:
            try:
                await self.discover()
            except BaseException:
                await self.aclose()
                raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the connection, and the server if it is a child process."""
        self._closed = True
        if hasattr(self._transport, "aclose"):
            await self._transport.aclose()

    def wrap(self, wrapper: Callable[[Exchange], Exchange]) -> None:
        """Put an Exchange around the transport: to trace, to limit, to rewrite."""
        self._exchange = wrapper(self._exchange)

    # --- versions                                            spec: basic/versioning ---

    async def discover(self, **options: typing.Unpack[CallOptions]) -> Reply:
        """Learn the server's versions, capabilities and instructions.

        Raises LegacyServer if it is of an earlier revision, and goes on doing so
        without asking again until `refresh`.
        """
        # versioning-09: SHOULD be remembered
        if self._legacy is not None and not options.get("refresh"):
            raise self._legacy
        self._legacy = None
        options.setdefault("timeout", self._probe_timeout)
        try:
            return await self._discovered(options)
        except (RemoteError, TransportError, TimeoutError) as error:
            if not self._looks_legacy(error):
                raise
            await self._fall_back(error)
        return await self._discovered(options)

    async def _discovered(self, options: CallOptions) -> Reply:
        found = await self.request("server/discover", {}, **options)
        versions = found.get("supportedVersions")
        if not isinstance(versions, list):
            raise InvalidResponse("server/discover without supportedVersions", found)
        self._select(versions, "it says so in server/discover")
        self.server = found
        return found

    def _looks_legacy(self, error: Exception) -> bool:
        """Tell whether this answer to server/discover is one of an earlier revision."""
        if isinstance(error, LegacyServer):
            return True
        if isinstance(error, TimeoutError):
            # On stdio silence is an answer, on HTTP it is a server that is slow.
            return isinstance(self._transport, StdioClient)
        if isinstance(error, RemoteError):
            # stdio-17: MUST NOT be keyed to one code; http-75: but modern ones stay
            if error.code in _MODERN_ERRORS:
                return False
            return error.status in (None, 200, 400, 404, 405)
        status = getattr(error, "status", None)
        return status in (400, 404, 405)

    async def _fall_back(self, error: Exception) -> None:
        """Hand over to the bridge, or raise LegacyServer with what can be found out."""
        if self._bridge is not None:
            self.wrap(self._bridge)
            return
        self._legacy = error if isinstance(error, LegacyServer) else None
        if self._legacy is None:
            versions = await self._initialize_versions()
            code = f"error {error.code}: " if isinstance(error, RemoteError) else ""
            self._legacy = LegacyServer(versions, f"server/discover: {code}{error}")
        raise self._legacy from None

    async def _initialize_versions(self) -> list[str]:
        """Find out which revision an initialize handshake would lead to."""
        params = {
            "protocolVersion": EARLIER_VERSION,
            "capabilities": {},
            "clientInfo": self._info or {"name": "anonymous", "version": "0"},
        }
        request = Request(next(self._ids), "initialize", params)
        try:
            async with asyncio.timeout(self._probe_timeout):
                response = await self._exchange(request, _ignore)
            return [str(response["result"]["protocolVersion"])]
        except (TransportError, TimeoutError, KeyError, TypeError):
            return []  # only the message is poorer for it

    def _select(self, offered: JSON, how: str) -> None:
        """Choose the revision for all further requests; raises LegacyServer."""
        offered = offered if isinstance(offered, list) else []
        offered = [one for one in offered[:100] if isinstance(one, str)]
        # versioning-02: SHOULD select a common version, or tell the user
        common = [version for version in SUPPORTED_VERSIONS if version in offered]
        if not common:
            raise LegacyServer(offered, how)
        self.version = common[0]

    # --- requests ---------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: Mapping[str, JSON] | None = None,
        **options: typing.Unpack[CallOptions],
    ) -> Reply:
        """Send any request, also one of an extension, and return its result.

        Answers the server's questions on the way. Results that may be cached are.
        """
        params = dict(params or {})
        options = {**self._defaults, **options}
        retried = not params.keys().isdisjoint(("inputResponses", "requestState"))
        if method not in _CACHEABLE or retried:
            return (await self._rounds(method, params, options))[0]
        # caching-02: MUST NOT be served for other parameters
        key = method, _encode_sorted(params)
        found, fresh = self._cache.get(key, self._context(options))
        if found is not None and fresh and not options.get("refresh"):
            return found
        epoch = self._cache.epochs[method]
        try:
            result, rounds = await self._rounds(method, params, options)
        except (TransportError, TimeoutError) as error:
            # caching-17: MAY serve stale responses
            if found is None or not self._stale_on_error:
                raise
            _log.warning("%s: a stale result is served: %s", method, error)
            found.stale = True
            return found
        # caching-03: results of retries MUST NOT be cached. And if a change was
        # announced meanwhile, this may be the state before it.
        if rounds == 0 and epoch == self._cache.epochs[method]:
            self._cache.put(key, self._context(options), result)
        return result

    def _context(self, options: CallOptions) -> Hashable:
        """Return what stands for who we are to the server."""
        headers = options.get("headers") or {}
        return getattr(self._transport, "credentials", ()), *sorted(headers.items())

    async def _rounds(
        self, method: str, params: dict[str, JSON], options: CallOptions
    ) -> tuple[Reply, int]:
        """Send a request until the server has no more questions; count them."""
        answers: dict[str, JSON] = {}
        for rounds in itertools.count():
            # mrtr-28: answers MUST NOT be used for other requests: they live here only
            result = await self._round(method, {**params, **answers}, options)
            if result.get("resultType") != ASKING:
                return result, rounds
            if rounds == self._max_rounds:
                problem = f"{method}: the server still asks after {rounds} rounds"
                raise UnansweredInput(problem, result.get("inputRequests"))
            answers = await self._answers(result, rounds)
        raise AssertionError  # for type checkers: count() does not end

    async def _round(
        self, method: str, params: dict[str, JSON], options: CallOptions
    ) -> Reply:
        """Send one request; once more where the specification says so."""
        try:
            return await self._send(method, params, options)
        except RemoteError as error:
            if error.code == UnsupportedProtocolVersion.code:
                self._select(_as_object(error.data).get("supported"), error.message)
            elif error.code == HeaderMismatch.code and method == "tools/call":
                # http-57: SHOULD look for changes to the tool, then retry
                again = options.copy()
                again["refresh"] = True
                await self.list_tools(**again)
            else:
                raise
        return await self._send(method, params, options)

    async def _send(
        self, method: str, params: dict[str, JSON], options: CallOptions
    ) -> Reply:
        """Send one request and return its result, within its time."""
        if self._closed:
            raise TransportError("The client was closed")
        # mrtr-27, base-06: MUST be a new id each time
        id = next(self._ids)
        headers = {**(options.get("headers") or {}), **self._mirrored(method, params)}
        params = {**params, "_meta": self._meta(id, options)}
        request = Request(id, method, params, headers or None)
        # cancellation-06, cancellation-08: SHOULD have a timeout, settable per request
        timeout = options.get("timeout", CALL_TIMEOUT)
        limit = asyncio.get_running_loop().time() + options.get("max_timeout", 0.0)

        async def send(message: JSON) -> None:
            if message.get("method") == "notifications/progress":
                _extend(deadline, timeout, limit)
            await self._notified(message, options)

        try:
            async with asyncio.timeout(timeout) as deadline:
                response = await self._exchange(request, send)
        except TimeoutError:
            if deadline.expired():
                # cancellation-07: leaving the Exchange has told the server
                raise TimeoutError(f"{method} was not answered in time") from None
            raise
        return self._read(method, response)

    def _meta(self, id: Id, options: CallOptions) -> dict[str, JSON]:
        """Build the `_meta` of a request."""
        meta = {
            **(options.get("meta") or {}),
            META_PROTOCOL_VERSION: self.version,
            META_CLIENT_CAPABILITIES: self.capabilities,
        }
        # base-54: SHOULD be there unless configured otherwise
        if self._info is not None:
            meta[META_CLIENT_INFO] = self._info
        if "log_level" in options:
            meta[META_LOG_LEVEL] = options["log_level"]
        if "on_progress" in options or "max_timeout" in options:
            # progress-03: MUST be unique across active requests
            meta["progressToken"] = id
        return meta

    async def _notified(self, message: JSON, options: CallOptions) -> None:
        """Pass on a notification that came with a request."""
        method, params = str(message.get("method")), _as_object(message.get("params"))
        if method == "notifications/progress" and "on_progress" in options:
            await _maybe(options["on_progress"](params))
        elif method == "notifications/message" and "on_log" in options:
            await _maybe(options["on_log"](params))
        else:
            self._outdate(method, params)

    def _outdate(self, method: str, params: dict[str, JSON]) -> None:
        """Drop the cached results that a change notification is about."""
        for stale in _OUTDATES.get(method, ()):
            uri = params.get("uri") if stale == "resources/read" else None
            self._cache.drop(stale, uri)

    def _read(self, method: str, response: JSON) -> Reply:
        """Return the result of a response; raises RemoteError, InvalidResponse."""
        if not isinstance(response, dict) or response.get("jsonrpc") != "2.0":
            raise InvalidResponse(f"{method}: the answer is not JSON-RPC 2.0", response)
        error, result = response.get("error"), response.get("result")
        if isinstance(error, dict):
            code = error.get("code")
            raise _remote_error(error, code if type(code) is int else 0, response)
        if not isinstance(result, dict):
            raise InvalidResponse(f"{method}: neither result nor error", response)
        # base-14: MUST treat an absent resultType as "complete"
        kind = result.get("resultType", COMPLETE)
        # base-13: MUST consider an unrecognized one invalid
        # mrtr-05: and questions on any other request
        asks = kind == ASKING
        known = isinstance(kind, str) and kind in self._result_types
        if not known or (asks and method not in _MAY_ASK):
            raise InvalidResponse(f"{method}: invalid resultType {kind!r}", result)
        if method == "tools/list":
            self._learn(result)
        return Reply(result)

    # --- questions                              spec: basic/patterns/mrtr, client/* ---

    async def _answers(self, result: Reply, rounds: int) -> dict[str, JSON]:
        """Answer the questions of a result; return what the retry has to carry."""
        questions = result.get("inputRequests")
        answers: dict[str, JSON] = {}
        # mrtr-24, mrtr-26: MUST be echoed as it is, and left out if there is none
        if "requestState" in result:
            answers["requestState"] = result["requestState"]
        if questions is None and not answers:
            # mrtr-17: MUST have at least one of the two
            raise InvalidResponse("input_required without anything to answer", result)
        if not questions:
            # mrtr-23: MAY retry immediately; a server that waits gets some time
            await asyncio.sleep(backoff(rounds, self._retry_delay, self._chance))
        if questions is not None:
            if not isinstance(questions, dict):
                raise InvalidResponse("inputRequests is not an object", result)
            # mrtr-22: MUST be constructed before retrying
            answers["inputResponses"] = {
                key: await self._answer(question, questions)
                for key, question in questions.items()
            }
        return answers

    async def _answer(self, question: JSON, questions: JSON) -> JSON:
        """Answer one question; raises UnansweredInput for what we did not offer."""
        question = _as_object(question)
        method, params = str(question.get("method")), _as_object(question.get("params"))
        url = params.get("mode") == "url"
        needed = _needed(method, params)
        # mrtr-18: MUST NOT be sent without the capability; nobody is bothered with it
        if needed is None or not supports(self.capabilities, needed):
            raise UnansweredInput(f"The server asks for undeclared {method}", questions)
        if method == "roots/list":
            return {"roots": self._roots}
        ask = {"sampling/createMessage": self._on_sample}.get(
            method, self._on_url if url else self._on_elicit
        )
        if ask is None:
            raise UnansweredInput(f"Nobody here answers {method}", questions)
        if url:
            _check_web_address(params.get("url"), questions)
        answer = await _maybe(ask(self, params))
        if method == "sampling/createMessage":
            if not {"role", "content", "model"} <= _as_object(answer).keys():
                raise ValueError("on_sample has to return role, content and model")
            return answer
        return _elicited(answer, params)

    # --- tools                                                   spec: server/tools ---

    def _learn(self, result: JSON) -> None:
        """Remember tool definitions; leave out those that are invalid.

        Whatever the transport is, so that all show the same tools. http-48: on others
        than HTTP that is our choice.
        """
        kept = []
        tools = result.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            name = tool.get("name") if isinstance(tool, dict) else None
            try:
                if not isinstance(name, str):
                    raise ValueError("it has no name")
                known = _KnownTool(tool, mirrored_parameters(tool.get("inputSchema")))
            except (ValueError, RecursionError) as error:
                # http-45 to http-47, tools-29 to tools-31: MUST be excluded
                _log.warning("tool %r is left out: %s", name, error)
                self._tools.pop(str(name), None)
                continue
            self._tools[name] = known
            kept.append(tool)
        if isinstance(tools, list):
            result["tools"] = kept

    def _mirrored(self, method: str, params: dict[str, JSON]) -> dict[str, str]:
        """Return the Mcp-Param-* headers of a call. http-36: MUST be mirrored."""
        known = self._tools.get(params.get("name", ""))
        if method != "tools/call" or known is None:
            return {}
        found = {}
        for parameter in known.mirrored:
            value = parameter.value(params.get("arguments") or {})
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if type(value) is int and abs(value) > SAFE_INTEGER:
                # http-42: MUST be within the safe range
                raise ValueError(f"{parameter.name}: {value} exceeds 2**53 - 1")
            # http-63, http-64: MUST be omitted for null and absent
            if isinstance(value, (str, int)):
                found[f"Mcp-Param-{parameter.name}"] = encode_header_value(value)
        return found

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        **options: typing.Unpack[CallOptions],
    ) -> Reply:
        """Call a tool; that the tool failed is told by Reply.is_error."""
        params = {"name": name, "arguments": dict(arguments or {})}
        result = await self.request("tools/call", params, **options)
        known = self._tools.get(name)
        if known is not None and self._validate and not result.is_error:
            # tools-39: SHOULD validate structured results
            known.check(result)
        return result

    async def list_tools(self, **options: typing.Unpack[CallOptions]) -> list[JSON]:
        """Return all tools, in the server's order.

        tools-14: their annotations are untrusted unless the server is trusted.
        """
        return await self._list("tools/list", "tools", options)

    # --- everything else a server has                                spec: server/* ---

    async def list_resources(self, **options: typing.Unpack[CallOptions]) -> list[JSON]:
        """Return all resources, in the server's order."""
        return await self._list("resources/list", "resources", options)

    async def list_resource_templates(
        self, **options: typing.Unpack[CallOptions]
    ) -> list[JSON]:
        """Return all resource templates, in the server's order."""
        method = "resources/templates/list"
        return await self._list(method, "resourceTemplates", options)

    async def list_prompts(self, **options: typing.Unpack[CallOptions]) -> list[JSON]:
        """Return all prompts, in the server's order."""
        return await self._list("prompts/list", "prompts", options)

    async def read_resource(
        self, uri: str, **options: typing.Unpack[CallOptions]
    ) -> Reply:
        """Read a resource: `contents` is a list of text or base64 blobs.

        Raises NoSuchResource.
        """
        try:
            return await self.request("resources/read", {"uri": uri}, **options)
        except RemoteError as error:
            named = _as_object(error.data).get("uri") == uri
            # resources-15, base-23: SHOULD also accept -32002
            if error.code == -32002 or (error.code == InvalidParams.code and named):
                raise NoSuchResource(error.message, error.data, error.code) from error
            raise

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        **options: typing.Unpack[CallOptions],
    ) -> Reply:
        """Get a prompt: `messages` is what to put before the model."""
        params = {"name": name, "arguments": dict(arguments or {})}
        return await self.request("prompts/get", params, **options)

    async def complete(
        self,
        ref: str | Mapping[str, JSON],
        argument: str,
        value: str,
        context: Mapping[str, str] | None = None,
        **options: typing.Unpack[CallOptions],
    ) -> Reply:
        """Ask for completions of a prompt's or template's argument.

        ref: the prompt's name or the URI template, or the wire's object. context: the
        arguments that are known already.
        """
        if isinstance(ref, str):
            uri = "://" in ref or "{" in ref
            ref = {"type": "ref/resource", "uri": ref} if uri else _prompt(ref)
        params: dict[str, JSON] = {
            "ref": dict(ref),
            "argument": {"name": argument, "value": value},
        }
        if context:
            params["context"] = {"arguments": dict(context)}
        return await self.request("completion/complete", params, **options)

    async def _list(self, method: str, member: str, options: CallOptions) -> list[JSON]:
        """Walk all pages of a list."""
        try:
            return await self._pages(method, member, options)
        except RemoteError as error:
            # caching-25: a cursor became invalid: discard the pages, begin again
            if error.code != InvalidParams.code or not self._cache.drop(method):
                raise
            return await self._pages(method, member, options)

    async def _pages(
        self, method: str, member: str, options: CallOptions
    ) -> list[JSON]:
        found: list[JSON] = []
        params: dict[str, JSON] = {}
        # pagination-05: a cursor MUST NOT be interpreted, so endless lists are told by
        # the number of pages and not by a cursor that comes again
        for _ in range(MAX_PAGES):
            page = await self.request(method, params, **options)
            entries = page.get(member)
            if not isinstance(entries, list):
                raise InvalidResponse(f"{method}: `{member}` is not an array", page)
            found += entries
            # pagination-06: "" is a cursor; only null and absent are the end
            if page.get("nextCursor") is None:
                return found
            params = {"cursor": page["nextCursor"]}
        raise InvalidResponse(f"{method}: more than {MAX_PAGES} pages")

    # --- listening                               spec: basic/patterns/subscriptions ---

    def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool | Iterable[str] = False,
        filters: Mapping[str, JSON] | None = None,
        relisten: bool = False,
        **options: typing.Unpack[CallOptions],
    ) -> Listening:
        """Listen for changes: `async with client.listen(tools=True) as changes`.

        resources: True for changes of the list, URIs for changes of these resources;
        `filters` are members of the filter as the wire has them, for extensions too.
        relisten: when the stream breaks, open it again, and report MAY_HAVE_MISSED.
        """
        wanted: dict[str, JSON] = {}
        if tools:
            wanted["toolsListChanged"] = True
        if prompts:
            wanted["promptsListChanged"] = True
        if resources is True:
            wanted["resourcesListChanged"] = True
        elif resources:
            wanted["resourceSubscriptions"] = list(resources)
        wanted |= filters or {}
        return Listening(self, wanted, relisten, {**self._defaults, **options})


async def _ignore(message: JSON) -> None:
    pass


def _extend(deadline: asyncio.Timeout, timeout: float | None, limit: float) -> None:
    """Let progress prolong a request, never beyond `limit`."""
    when = deadline.when()
    # cancellation-09, cancellation-10: SHOULD always enforce a maximum
    if timeout is not None and when is not None and when < limit:
        later = asyncio.get_running_loop().time() + timeout
        deadline.reschedule(min(limit, later))


def _prompt(name: str) -> dict[str, JSON]:
    return {"type": "ref/prompt", "name": name}


def _remote_error(error: JSON, code: int, response: JSON) -> RemoteError:
    found = RemoteError(str(error.get("message", "")), error.get("data"), code)
    found.status = getattr(response, "status", None)
    if found.status not in (None, 200):
        found.add_note(f"HTTP status {found.status}")
    return found


def _merged(one: JSON, other: JSON) -> JSON:
    """Merge two objects, member by member, however deep."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return other
    merged = {key: _merged(one[key], other[key]) for key in one.keys() & other.keys()}
    return {**one, **other, **merged}


class _KnownTool:
    """What a client has to know of a tool to call it."""

    def __init__(self, tool: JSON, mirrored: tuple[MirroredParameter, ...]) -> None:
        self.name: str = tool["name"]
        self.mirrored = mirrored
        self.output: JSON = tool.get("outputSchema")
        self._schema: Schema | None = None

    def check(self, result: Reply) -> None:
        """Hold a result against the outputSchema; raises InvalidResponse."""
        if self.output is None:
            return
        try:
            self._schema = self._schema or Schema(self.output)
            if "structuredContent" not in result:
                found = ["structuredContent is missing"]
            else:
                found = list(map(str, self._schema.violations(result.structured)))
        except SchemaError as error:
            # base-38: unsupported dialects MUST be handled gracefully
            _log.warning("tool %r: outputSchema cannot be used: %s", self.name, error)
            return
        if found:
            problem = f"tool {self.name!r}: its result does not fit its outputSchema"
            raise InvalidResponse(f"{problem}: {'; '.join(found)}", result)


# --- answers                                                         spec: client/* ---


def _needed(method: JSON, params: JSON) -> JSON:
    """Return the capabilities that a question takes; None for an unknown kind."""
    if method == "elicitation/create":
        # elicitation-10: MUST treat requests without a mode as form mode
        return {"elicitation": {str(params.get("mode", "form")): {}}}
    if method == "sampling/createMessage":
        # sampling-04: MUST have been declared
        tools = "tools" in params or "toolChoice" in params
        return {"sampling": {"tools": {}} if tools else {}}
    return {"roots": {}} if method == "roots/list" else None


def _elicited(answer: Any, params: dict[str, JSON]) -> JSON:
    """Build an ElicitResult from what a handler returned.

    Raises ValueError when it does not fit the form.
    """
    if answer is None or isinstance(answer, bool):
        answer = "accept" if answer else "decline"
    if isinstance(answer, str):
        answer = {"action": answer}
    if answer.get("action") not in _ACTIONS:
        raise ValueError(f"the action of an answer is one of {_ACTIONS}: {answer!r}")
    if params.get("mode") == "url" or answer["action"] != "accept":
        return {"action": answer["action"]}
    form = params.get("requestedSchema")
    try:
        schema = Schema(form)
    except SchemaError as error:
        raise InvalidResponse(f"the form's schema is unusable: {error}", form) from None
    # elicitation-12: SHOULD pre-populate with the defaults
    properties = _as_object(_as_object(form).get("properties"))
    fields = {name: _as_object(field) for name, field in properties.items()}
    content = {k: field["default"] for k, field in fields.items() if "default" in field}
    content |= answer.get("content") or {}
    # elicitation-45: SHOULD validate against the provided schema
    violations = schema.violations(content)
    if violations:
        raise ValueError(f"the answer does not fit: {'; '.join(map(str, violations))}")
    return {"action": "accept", "content": content}


def _check_web_address(url: JSON, questions: JSON) -> None:
    """Refuse what nobody should be asked to open."""
    # elicitation-14, elicitation-34: MUST be valid, MUST be handled carefully
    with contextlib.suppress(ValueError):
        parts = urllib.parse.urlsplit(str(url))
        if parts.scheme in ("https", "http") and parts.hostname:
            return
    raise UnansweredInput(f"The server asks to open {url!r:.200}", questions)


def url_warnings(url: str) -> list[str]:
    """Say what is suspicious about an address that the user is asked to open."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    found = []
    # elicitation-40: SHOULD warn about ambiguous addresses
    if "xn--" in host or not host.isascii():
        found.append(
            "the host name has non-English letters, which can look like others"
        )
    if parts.username is not None:
        found.append(f"what stands before the @ is not the host; the host is {host}")
    if parts.scheme != "https" and host not in LOOPBACK_HOSTS:
        found.append("the connection would not be encrypted")
    return found


def _file_uri(path: str) -> str:
    import pathlib  # here, because few clients need it

    return pathlib.Path(path).resolve().as_uri()


def _root(root: str | JSON) -> JSON:
    """Return a Root; raises ValueError for one that is no file or leads elsewhere."""
    if isinstance(root, str):
        path = root if root.startswith("file://") else _file_uri(root)
        root = {"uri": path}
    uri = root["uri"]
    # roots-03: MUST be a file:// URI; roots-04: MUST NOT allow path traversal
    if not uri.startswith("file://") or ".." in unquote(uri).split("/"):
        raise ValueError(f"not a file:// URI without `..`: {uri!r}")
    return root


# --- cache                                           spec: server/utilities/caching ---


class _Cached(NamedTuple):
    text: str
    expires: float


class _Cache:
    """Results by method, parameters and authorization context, least used first.

    Kept as text: whoever gets a result may change it without harm to the next.
    """

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.epochs: collections.Counter[str] = collections.Counter()
        """How often results of a method were dropped."""
        self._size = size
        self._used = 0
        self._clock = clock
        self._entries: dict[Hashable, _Cached] = {}

    def get(self, key: tuple[str, str], context: Hashable) -> tuple[Reply | None, bool]:
        """Return a copy of a result, and whether it is fresh."""
        # caching-19: private results MUST NOT be shared across contexts
        for whole in ((*key, context), (*key, None)):
            entry = self._entries.pop(whole, None)
            if entry is not None:
                self._entries[whole] = entry  # now the most recently used
                # caching-13: stale once the time is over
                return Reply(_decode_json(entry.text)), self._clock() < entry.expires
        return None, False

    def put(self, key: tuple[str, str], context: Hashable, result: Reply) -> None:
        """Keep a result for as long as it says; private unless it says public."""
        seconds = _ttl(result.get("ttlMs"))
        public = result.get("cacheScope") == "public"
        for whole in ((*key, context), (*key, None)):
            self._remove(whole)
        try:
            text = _encode_json(result) if seconds > 0 else ""
        except RecursionError:
            return
        if seconds <= 0 or len(text) > self._size:
            return
        whole = (*key, None if public else context)
        self._entries[whole] = _Cached(text, self._clock() + seconds)
        self._used += len(text)
        while self._used > self._size:
            self._remove(next(iter(self._entries)))

    def drop(self, method: str, uri: JSON = None) -> bool:
        """Forget the results of a method, or of reading one URI."""
        self.epochs[method] += 1
        wanted = None if uri is None else _encode_sorted({"uri": uri})
        found = [
            key
            for key in self._entries
            if typing.cast(Any, key)[0] == method
            and wanted in (None, typing.cast(Any, key)[1])
        ]
        for key in found:
            self._remove(key)
        return bool(found)

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._used -= len(entry.text)


def _ttl(value: JSON) -> float:
    """Return seconds of freshness; 0 for everything that is not a sensible number."""
    # caching-09, caching-10: SHOULD be 0 if absent or negative
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    return min(value, MAX_TTL_MS) / 1000 if value > 0 and value == int(value) else 0


# --- listening                                   spec: basic/patterns/subscriptions ---

MAY_HAVE_MISSED = Notification("changes may have been missed", {})
"""What Listening yields after it had to open its stream again."""


class Listening:
    """Changes, as Notification(method, params): `async for change in changes`.

    The loop ends when the server ends the stream gracefully, and raises TransportError
    when it breaks (but see `relisten` of Client.listen). A change that waits is not
    queued twice.
    """

    def __init__(
        self,
        client: Client,
        wanted: dict[str, JSON],
        relisten: bool,
        options: CallOptions,
    ) -> None:
        self.wanted = wanted
        self.honoured: dict[str, JSON] = {}
        """What the server agreed to, of what was wanted."""
        self.ended = False
        """True once the server ended the stream gracefully."""
        self._client = client
        self._relisten = relisten
        self._options = options
        self._waiting: dict[str, Notification] = {}
        self._news = asyncio.Event()
        self._ready = asyncio.Event()
        self._acknowledged = False
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._id: Id = 0
        self._deadline: asyncio.Timeout | None = None

    @property
    def refused(self) -> dict[str, JSON]:
        """Return the part of `wanted` that the server did not agree to."""
        found = {}
        for name, value in self.wanted.items():
            honoured = self.honoured.get(name)
            if isinstance(value, list):
                known = honoured if isinstance(honoured, list) else []
                value = [one for one in value if one not in known]
            elif honoured:
                value = None
            if value:
                found[name] = value
        return found

    async def __aenter__(self) -> Listening:
        """Return once the server has acknowledged: nothing is missed from here on."""
        self._task = asyncio.create_task(self._run())
        try:
            await self._ready.wait()
        except BaseException:
            await self.aclose()
            raise
        if self._failure is not None and not self._acknowledged:
            raise self._failure
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening; the server is told."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def __aiter__(self) -> Listening:
        return self

    async def __anext__(self) -> Notification:
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            if self.ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._waiting.pop(next(iter(self._waiting)))

    async def _run(self) -> None:
        """Keep a stream open until its end."""
        client, attempt = self._client, 0
        while True:
            try:
                await self._stream()
                self.ended = True
                break
            except (TransportError, TimeoutError) as error:
                # subscriptions-09: MAY reconnect after an end without result
                # subscriptions-10: MUST listen again on a new connection
                again = self._relisten and self._acknowledged and not client._closed
                if not again:
                    self._failure = error
                    break
                _log.info("listening again: %s", error)
            except Exception as error:
                self._failure = error
                break
            attempt = 0 if self._deadline is None else attempt + 1
            await asyncio.sleep(backoff(attempt, client._retry_delay, client._chance))
        self._ready.set()
        self._news.set()

    async def _stream(self) -> None:
        client = self._client
        self._id = next(client._ids)
        options = {k: v for k, v in self._options.items() if k != "log_level"}
        meta = client._meta(self._id, typing.cast(CallOptions, options))
        params = {"notifications": self.wanted, "_meta": meta}
        headers = self._options.get("headers") or {}
        request = Request(self._id, "subscriptions/listen", params, headers)
        # Only the acknowledgement has to come in time.
        async with asyncio.timeout(self._options.get("timeout", CALL_TIMEOUT)) as limit:
            self._deadline = limit
            response = await client._exchange(request, self._receive)
        client._read("subscriptions/listen", response)

    async def _receive(self, message: JSON) -> None:
        method, params = str(message.get("method")), _as_object(message.get("params"))
        meta = _as_object(params.get("_meta"))
        # subscriptions-05: MUST be correlated; on HTTP the stream itself does that
        if META_SUBSCRIPTION_ID in meta and not _same_id(
            meta[META_SUBSCRIPTION_ID], self._id
        ):
            _log.warning("ignored a notification of another subscription: %s", method)
        elif method == "notifications/subscriptions/acknowledged":
            self._accept(params)
        else:
            if self._deadline is not None:
                _log.warning("%s came before the acknowledgement", method)
            self._client._outdate(method, params)
            self._put(Notification(method, params))

    def _accept(self, params: JSON) -> None:
        """Take the acknowledgement."""
        honoured = params.get("notifications")
        self.honoured = honoured if isinstance(honoured, dict) else {}
        # subscriptions-04: SHOULD be checked against what was requested
        if self.refused:
            _log.warning("the server does not announce %s", self.refused)
        if self._deadline is not None:
            self._deadline.reschedule(None)
            self._deadline = None
        if self._acknowledged:
            for method in _OUTDATES.values():
                for stale in method:
                    self._client._cache.drop(stale)
            self._put(MAY_HAVE_MISSED)
        self._acknowledged = True
        self._ready.set()

    def _put(self, change: Notification) -> None:
        params = {key: value for key, value in change.params.items() if key != "_meta"}
        self._waiting[_encode_sorted([change.method, params])] = change
        if len(self._waiting) > CHANGES_QUEUED:
            self._waiting.pop(next(iter(self._waiting)))
            self._waiting[MAY_HAVE_MISSED.method] = MAY_HAVE_MISSED
        self._news.set()


# --- several servers ------------------------------------------------------------------

_MODEL_NAME = re.compile(r"[^A-Za-z0-9_-]")
MODEL_FORMS: dict[str, Callable[[JSON], JSON]] = {  # of a tool, as model APIs take it
    "anthropic": lambda tool: {
        "name": tool["name"],
        "description": tool.get("description", ""),
        "input_schema": tool["inputSchema"],
    },
    "openai": lambda tool: {
        "type": "function",
        "function": {
            "name": tool["name"],
            "description": tool.get("description", ""),
            "parameters": tool["inputSchema"],
        },
    },
}


def load_clients(config: JSON, **common: Any) -> dict[str, Client]:
    """Build clients from the `mcpServers` shape that hosts share.

    config: the decoded JSON file, or its `mcpServers` member: name -> {"command",
    "args", "env", "cwd"} or {"url", "headers"}. `common` goes to each Client.
    """
    found = {}
    for name, entry in config.get("mcpServers", config).items():
        if "url" in entry:
            target: Any = HttpClient(entry["url"], headers=entry.get("headers"))
        elif "command" in entry:
            command = [entry["command"], *entry.get("args", ())]
            target = StdioClient(command, env=entry.get("env"), cwd=entry.get("cwd"))
        else:
            raise ValueError(f"mcpServers: {name!r} has neither url nor command")
        found[name] = Client(target, **common)
    return found


class ClientGroup:
    """Several servers as one: merged tools under unambiguous names, calls routed.

    A server that fails is left out, with its error in `failed`, until it works again.
    """

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self.clients = dict(clients)
        self.failed: dict[str, Exception] = {}
        self._routes: dict[str, tuple[str, str]] = {}

    async def __aenter__(self) -> ClientGroup:
        await self._each(lambda client: client.__aenter__())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all clients."""
        await asyncio.gather(*(client.aclose() for client in self.clients.values()))

    async def list_tools(self) -> list[JSON]:
        """Return the tools of all servers, `name` being `server__tool`.

        The names are what model APIs accept: 64 characters of A-Z, a-z, 0-9, _ and -.
        """
        # tools-20: SHOULD disambiguate, such as by a prefix
        listed = await self._each(_reopened_tools)
        merged: dict[str, JSON] = {}
        routes: dict[str, tuple[str, str]] = {}
        for server, tools in listed.items():
            for tool in tools:
                name = _model_name(f"{server}__{tool['name']}", merged)
                merged[name] = {**tool, "name": name}
                routes[name] = server, tool["name"]
        self._routes = routes
        return list(merged.values())

    async def model_tools(self, form: str = "anthropic") -> list[JSON]:
        """Return the tools as a model API takes them: a key of MODEL_FORMS."""
        return [MODEL_FORMS[form](tool) for tool in await self.list_tools()]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        **options: typing.Unpack[CallOptions],
    ) -> Reply:
        """Call a tool by its merged name; raises LookupError for an unknown one."""
        if name not in self._routes:
            await self.list_tools()
        if name not in self._routes:
            raise LookupError(f"no server has a tool {name!r}")
        server, tool = self._routes[name]
        return await self.clients[server].call_tool(tool, arguments, **options)

    async def _each(self, action: Callable[[Client], Awaitable[Any]]) -> dict[str, Any]:
        """Do something with all servers at once; return what those that work gave."""

        async def attempt(client: Client) -> Any:
            return await action(client)

        names, clients = list(self.clients), self.clients.values()
        results = await asyncio.gather(*map(attempt, clients), return_exceptions=True)
        found = {}
        for name, outcome in zip(names, results, strict=True):
            if isinstance(outcome, Exception):
                _log.warning("server %r is left out: %s", name, outcome)
                self.failed[name] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                self.failed.pop(name, None)
                found[name] = outcome
        return found


async def _reopened_tools(client: Client) -> list[JSON]:
    if client._closed:
        await client.__aenter__()
    return await client.list_tools()


def _model_name(name: str, taken: Container[str]) -> str:
    """Return a name that model APIs accept and that is not taken."""
    short = _MODEL_NAME.sub("_", name)
    if len(short) <= 64 and short not in taken:
        return short
    # By the whole name and not by a counter, so that it stays the same from run to run.
    return f"{short[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# --- without await --------------------------------------------------------------------
#
# The one place of this section that knows threads.

_P = typing.ParamSpec("_P")
_T = typing.TypeVar("_T")


def _blocking(
    method: Callable[typing.Concatenate[Client, _P], Coroutine[Any, Any, _T]],
) -> Callable[typing.Concatenate[SyncClient, _P], _T]:
    """Make the blocking twin of a method of Client."""

    def blocking(self: SyncClient, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._wait(method(self.client, *args, **kwargs))

    functools.update_wrapper(blocking, method)
    return blocking


class SyncClient:
    """Client for programs without an event loop: the same methods without `await`.

        with SyncClient(["python", "server.py"]) as client:
            print(client.call_tool("add", {"a": 1, "b": 2}).text)

    May be used from any thread. Callbacks run in a thread of their own and may block.
    close() makes calls that still wait fail with TransportError.
    """

    def __init__(self, target: Any, **options: Any) -> None:
        """Take what Client takes."""
        for name in ("on_elicit", "on_url", "on_sample", "on_progress", "on_log"):
            if options.get(name) is not None:
                options[name] = _in_thread(options[name])
        self.client = Client(target, **options)
        self._loop = asyncio.new_event_loop()
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="mcp_ref client", daemon=True
        )
        self._thread.start()

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise TransportError("The client was closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._waiting.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise TransportError("The client was closed") from None
        except BaseException:  # such as KeyboardInterrupt: the server is told
            future.cancel()
            raise
        finally:
            self._waiting.discard(future)

    discover = _blocking(Client.discover)
    request = _blocking(Client.request)
    list_tools = _blocking(Client.list_tools)
    call_tool = _blocking(Client.call_tool)
    list_resources = _blocking(Client.list_resources)
    list_resource_templates = _blocking(Client.list_resource_templates)
    read_resource = _blocking(Client.read_resource)
    list_prompts = _blocking(Client.list_prompts)
    get_prompt = _blocking(Client.get_prompt)
    complete = _blocking(Client.complete)

    @contextlib.contextmanager
    def listen(self, **wanted: Any) -> Iterator[Iterator[Notification]]:
        """Listen for changes: `with client.listen(tools=True) as changes`."""
        listening = self.client.listen(**wanted)
        self._wait(listening.__aenter__())
        try:
            yield self._changes(listening)
        finally:
            with contextlib.suppress(TransportError):
                self._wait(listening.aclose())

    def _changes(self, listening: Listening) -> Iterator[Notification]:
        async def following() -> Notification | None:
            return await anext(listening, None)

        while (change := self._wait(following())) is not None:
            yield change

    def __enter__(self) -> SyncClient:
        try:
            self._wait(self.client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection and wake whoever waits; from any thread."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TransportError):
            self._wait(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for future in list(self._waiting):  # came too late to be started
            future.cancel()

    async def _finish(self) -> None:
        await self.client.aclose()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _in_thread(callback: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any) -> Any:
        return await _maybe(await asyncio.to_thread(callback, *args))

    return call


# ======================================================================================
# Appendix A  JSON Schema 2020-12                   spec: basic/index, JSON Schema Usage
# ======================================================================================
#
#   Schema({...}) -> check against the meta-schema -> index $id and anchors
#                 -> compile each keyword to closures -> violations(value)
#
# A keyword becomes a function, `check(value, run, notes)`, and a schema the list of
# those that may refuse a value of a given Python type: for a string, mostly none, since
# `type` is decided by then. They return the failures, nothing if the value fits. A
# failure stays a bare tuple until somebody wants to read it, because `anyOf` throws
# most of them away; its path grows from the inside out, so a fit pays for none.
#
# `unevaluatedProperties` and `unevaluatedItems` must know what their neighbours looked
# at: `notes` is the set of those names or indices, or None where nobody asks.
#
# Nothing is ever fetched: a reference leads into the schema itself, into `resources`,
# or to the meta-schemas below. Anything else is an error at construction.

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_STEPS = 100_000  # sub-schema evaluations allowed in one validation
SCHEMA_DEPTH = 150  # references within references; each takes 4 to 6 of 1000 frames
# `re` can't be interrupted. The bound below tames patterns of polynomial cost; against
# exponential ones, such as (a+)+$, only the author of the schema can help.
SCHEMA_PATTERN_INPUT = 10_000  # characters of a string that a pattern may look at
_SHOWN = 60  # characters of a value that a message shows
_LISTED = 20  # alternatives that a message lists


class SchemaError(ValueError):
    """Refuse a schema: invalid, of another dialect, unresolvable or too expensive."""


class Violation(NamedTuple):
    """Say where a value breaks the schema, which keyword it breaks, and how."""

    path: tuple[str | int, ...]
    keyword: str
    message: str

    def __str__(self) -> str:
        """Return `address.lines[2]: message`, or the message alone at the root."""
        keys = (f"[{k}]" if isinstance(k, int) else f".{k}" for k in self.path)
        where = "".join(keys).removeprefix(".")
        return f"{where}: {self.message}" if self.path else self.message


class Schema:
    """Compile a schema once; validate any number of values with it, from any thread.

    `schema` and `value` are what `json.loads` gives. `resources` maps the URIs that
    `$ref` and `$schema` may name to documents. `format` asserts only if `formats` is
    true. Raises `SchemaError` at once for a schema that can't be used, and later for a
    value that takes more than `steps` evaluations of sub-schemas, nests references
    deeper than `SCHEMA_DEPTH`, or has a pattern search a string of more characters
    than `SCHEMA_PATTERN_INPUT`.
    """

    def __init__(
        self,
        schema: JSON,
        *,
        resources: Mapping[str, JSON] | None = None,
        formats: bool = False,
        steps: int = SCHEMA_STEPS,
    ) -> None:
        if not isinstance(schema, (dict, bool)):
            raise SchemaError(f"#: expected object or boolean, got {_show(schema)}")
        self._steps = steps
        try:
            self._check = _Compiler(resources or {}, formats).compile(schema).check
        except RecursionError:
            raise SchemaError("the schema is nested too deeply") from None

    def violations(self, value: JSON, limit: int = 10) -> list[Violation]:
        """Return up to `limit` violations; [] if the value is valid."""
        failures = self._failures(value, limit)
        if not failures:  # worth a tenth of the time
            return []
        return [
            Violation(path, word, _message(word, tell, got))
            for path, word, tell, got in failures[:limit]
        ]

    def is_valid(self, value: JSON) -> bool:
        """Return whether the value is valid; stop at the first violation."""
        return not self._failures(value, 1)

    def _failures(self, value: JSON, limit: int) -> list[_Failure]:
        try:
            return self._check(value, _Run(self._steps, limit), None) or []
        except RecursionError:
            raise SchemaError("the value is nested too deeply") from None


# --- What all keywords share ----------------------------------------------------------

_Tell = str | Callable[[Any], str]  # what was expected, or what to say of the value
_Failure = tuple[tuple[str | int, ...], str, _Tell, JSON]  # path, keyword, tell, value
_Found = list[_Failure] | None
_Notes = set[str | int] | None
_Check = Callable[[Any, "_Run", _Notes], _Found]
_Maker = Callable[["_Place", str, Any], list[_Check]]  # (place, keyword, its value)


class _Run:
    """Hold the state of one validation."""

    __slots__ = ("steps", "depth", "limit", "scope")

    def __init__(self, steps: int, limit: int) -> None:
        self.steps = steps  # evaluations left
        self.depth = 0  # references that are being followed
        self.limit = limit  # failures after which looking further is pointless
        self.scope: dict[str, _Place] = {}  # $dynamicAnchor -> the outermost place


class _Resource:
    """A schema with a URI of its own, and what a reference can name in it."""

    def __init__(self, uri: str, root: JSON, words: Collection[str]) -> None:
        self.uri = uri
        self.root = root
        self.words = words  # the keywords of its dialect
        self.anchors: dict[str, _Place] = {}
        self.dynamic: dict[str, _Place] = {}  # those of $dynamicAnchor


class _Place:
    """A schema where it stands, and the checks that its keywords became."""

    def __init__(self, resource: _Resource, schema: JSON, where: str) -> None:
        self.resource = resource
        self.schema = schema
        self.where = where  # for messages: "#/properties/a"
        # Of its dialect: keyword -> value, with places where that has sub-schemas.
        self.parts: dict[str, Any] = {}
        self.checks: list[tuple[tuple[type, ...], _Check]] = []
        self.types: tuple[type, ...] = ()  # those that `type` allows
        self.late = False  # has a keyword that asks what its neighbours looked at
        self.check: _Check = self.evaluate
        self._by_type: dict[type, list[_Check]] = {}

    def evaluate(self, value: JSON, run: _Run, notes: _Notes) -> _Found:
        """Run the checks, and charge for that."""
        run.steps -= 1
        if run.steps < 0:
            raise SchemaError("too many evaluations of sub-schemas for one value")
        try:
            checks = self._by_type[type(value)]
        except KeyError:
            checks = self._select(type(value))
        failures: _Found = None
        for check in checks:
            found = check(value, run, notes)
            if found:
                failures = failures + found if failures else found
                # After a wrong type, the other keywords would only add noise.
                if len(failures) >= run.limit or found[0][:2] == ((), "type"):
                    break
        return failures

    def _select(self, kind: type) -> list[_Check]:
        """Return the checks that a value of a Python type may fail."""
        # `type` comes first; nearly always, the Python type alone decides it.
        checks = self.checks[1:] if _is_of(kind, self.types) else self.checks
        found = [check for kinds, check in checks if _is_of(kind, kinds)]
        self._by_type[kind] = found
        return found


def _track(place: _Place, value: JSON, run: _Run, notes: _Notes) -> _Found:
    """Evaluate with the dynamic scope, and with notes for an `unevaluated*`."""
    outer, own = run.scope, set() if place.late else notes
    run.scope = place.resource.dynamic | outer
    failures = place.evaluate(value, run, own)
    if place.late:
        failures = failures or _check_unevaluated(place, value, run, own)
    if notes is not None:
        notes.update(own or ())
    run.scope = outer
    return failures


def _is_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """Tell if a Python type is one of `kinds` or below; but true is no number."""
    return kind in kinds if kind is bool else issubclass(kind, kinds)


def _attempt(branch: _Place, value: JSON, run: _Run, notes: _Notes) -> _Found:
    """Evaluate a branch that may fail without harm; then its notes don't count."""
    if notes is None:
        return branch.check(value, run, None)
    own: set[str | int] = set()
    found = branch.check(value, run, own)
    if not found:
        notes |= own
    return found


# --- Messages and values --------------------------------------------------------------

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def _show(value: JSON) -> str:
    """Write a value for people and models: strings in quotes, the rest as JSON, cut."""
    if isinstance(value, str):
        return repr(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
    text = ""
    try:
        # Piece by piece, so that a huge value costs no more than what is shown.
        for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            text += piece
            if len(text) > _SHOWN:
                return text[:_SHOWN] + "..."
    except (TypeError, ValueError):  # not JSON, or a number of too many digits
        return f"a value of type {type(value).__name__}"
    return text


def _listed(texts: Iterable[str], separator: str = ", ") -> str:
    few = list(itertools.islice(texts, _LISTED + 1))
    return separator.join(few[:_LISTED] + ["..."] * (len(few) > _LISTED))


def _message(keyword: str, tell: _Tell, got: JSON) -> str:
    if callable(tell):
        return tell(got)
    names = (name for name, kinds in _TYPES.items() if type(got) in kinds)
    name = next(names, type(got).__name__)
    kind = f" ({name})" if keyword == "type" and got is not None else ""
    return f"expected {tell}, got {_show(got)}{kind}"


def _key(value: JSON) -> Any:
    """Return a hashable stand-in: equal for equal JSON (1 is 1.0, but not true)."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, (int, float)) and 2**53 < abs(value) < float("inf"):
        # hash(n) is n modulo 2**61-1: without the text, a hostile list of multiples
        # of that number would make uniqueItems quadratic.
        return int, hex(int(value))
    if isinstance(value, list):
        return list, tuple(map(_key, value))
    if isinstance(value, dict):
        return dict, frozenset((name, _key(item)) for name, item in value.items())
    return value


def _is_multiple(value: int | float, step: int | float) -> bool:
    """Divide exactly, and take floats for the decimals they were written as."""
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    from fractions import Fraction  # here, because few schemas need it

    try:
        return Fraction(str(value)) % Fraction(str(step)) == 0
    except ValueError:  # infinite, or no number at all
        return False


# --- Keywords that look at the value itself -------------------------------------------


def _leaf(fits: Callable[[Any, Any], object], text: str) -> _Maker:
    """Return the maker of a keyword that compares the value with its own."""

    def make(place: _Place, word: str, wanted: Any) -> list[_Check]:
        return [_test(word, fits, wanted, text.format(_show(wanted)))]

    return make


def _test(
    word: str, fits: Callable[[Any, Any], object], wanted: Any, tell: str
) -> _Check:
    def check(value: Any, run: _Run, notes: _Notes) -> _Found:
        return None if fits(value, wanted) else [((), word, tell, value)]

    return check


def _at_least(value: Any, size: int) -> bool:
    return len(value) >= size


def _at_most(value: Any, size: int) -> bool:
    return len(value) <= size


def _is_unique(value: list[JSON], wanted: bool) -> bool:
    return not wanted or len(set(map(_key, value))) == len(value)


def _type(place: _Place, word: str, wanted: str | list[str]) -> list[_Check]:
    names = [wanted] if isinstance(wanted, str) else wanted
    place.types = tuple(kind for name in names for kind in _TYPES[name])
    whole, tell = "integer" in names, " or ".join(names)

    def check(value: Any, run: _Run, notes: _Notes) -> _Found:
        # Only values of other Python types come here, but 1.0 is an integer.
        if whole and isinstance(value, float) and value.is_integer():
            return None
        return [((), word, tell, value)]

    return [check]


def _enum(place: _Place, word: str, allowed: list[JSON]) -> list[_Check]:
    tell = ("one of " if len(allowed) > 1 else "") + _listed(map(_show, allowed))
    keys = set(map(_key, allowed))
    return [_test(word, lambda value, keys: _key(value) in keys, keys, tell)]


def _pattern(place: _Place, word: str, pattern: str) -> list[_Check]:
    search = _search(place, word, pattern)
    tell = f"a string that matches {_show(pattern)}"
    return [_test(word, lambda value, search: search(value), search, tell)]


def _search(place: _Place, word: str, pattern: str) -> Callable[[str], object]:
    """Return the search function of an ECMA-262 pattern, bounded in its input."""
    try:
        search = _regex(pattern).search
    except (re.error, ValueError, OverflowError) as error:
        text = f"{place.where}/{word}: {pattern!r} is no valid pattern: {error}"
        raise SchemaError(text) from None

    def bounded(text: str) -> object:
        if len(text) > SCHEMA_PATTERN_INPUT:
            raise SchemaError(f"{len(text)} characters are too long for a pattern")
        return search(text)

    return bounded


def _format(place: _Place, word: str, name: str) -> list[_Check]:
    tell = f"a string in the format {name!r}"
    return [_test(word, _has_format, name, tell)] if name in _FORMATS else []


# --- Keywords that apply sub-schemas to members of the value --------------------------

_Spots = list[tuple[str, Any, _Place]]  # keyword, name or index, what must fit there


def _members(
    place: _Place, spots: _Spots, value: Any, run: _Run, notes: _Notes
) -> _Found:
    """Check members of the value; those under `false` are unexpected."""
    failures: list[_Failure] = []
    for word, key, child in spots:
        if word == "properties" and key not in value:
            continue
        if notes is not None:
            notes.add(key)
        found = child.check(value[key], run, None)
        if not found:
            continue
        if child.schema is False:
            tell = functools.partial(_tell_unexpected, place, word)
            failures.append(((), word, tell, key))
        else:
            failures += [((key, *path), *failure) for path, *failure in found]
        if len(failures) >= run.limit:
            break
    return failures


def _tell_unexpected(place: _Place, word: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"unexpected item at index {key}"
    if word != "additionalProperties":
        return f"unexpected property {key!r}"
    import difflib  # here, because only errors need it

    names = sorted(place.parts.get("properties", ()))
    few = names if len(names) < 100 else ()  # difflib is slow: no guess among many
    close = difflib.get_close_matches(key[:_SHOWN], few, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    allowed = _listed(names) or "none"
    return f"unexpected property {_show(key)}; allowed: {allowed}{hint}"


def _properties(place: _Place, word: str, wanted: Any) -> list[_Check]:
    table, patterns = place.parts.get("properties", {}), "patternProperties"
    named = [("properties", name, child) for name, child in table.items()]
    rules = [
        (_search(place, patterns, pattern), child)
        for pattern, child in place.parts.get(patterns, {}).items()
    ]
    rest: _Place | None = place.parts.get("additionalProperties")

    def check(value: Any, run: _Run, notes: _Notes) -> _Found:
        spots = named
        if rules or (rest and not table.keys() >= value.keys()):
            matched = [(n, child) for n in value for find, child in rules if find(n)]
            spots = named + [(patterns, name, child) for name, child in matched]
            if rest:
                known = table.keys() | dict(matched)
                others = [name for name in value if name not in known]
                spots += [("additionalProperties", name, rest) for name in others]
        return _members(place, spots, value, run, notes)

    return [check]


def _check_items(place: _Place, value: Any, run: _Run, notes: _Notes) -> _Found:
    first = place.parts.get("prefixItems", [])[: len(value)]
    spots = [("prefixItems", index, child) for index, child in enumerate(first)]
    rest = place.parts.get("items")
    if rest:
        spots += [("items", index, rest) for index in range(len(first), len(value))]
    return _members(place, spots, value, run, notes)


def _check_unevaluated(place: _Place, value: Any, run: _Run, notes: _Notes) -> _Found:
    is_object = isinstance(value, dict)
    word = "unevaluatedProperties" if is_object else "unevaluatedItems"
    if word not in place.parts or not isinstance(value, (dict, list)):
        return None
    child, seen = place.parts[word], notes or ()
    keys = value if is_object else range(len(value))
    spots = [(word, key, child) for key in keys if key not in seen]
    return _members(place, spots, value, run, notes)


def _check_names(place: _Place, value: Any, run: _Run, notes: _Notes) -> _Found:
    child: _Place = place.parts["propertyNames"]
    return [
        ((), "propertyNames", functools.partial(_tell_name, name, word, tell), got)
        for name in value
        for _, word, tell, got in child.check(name, run, None) or ()
    ]


def _tell_name(name: str, inner: str, tell: _Tell, got: JSON) -> str:
    return f"property name {_show(name)}: {_message(inner, tell, got)}"


def _check_required(place: _Place, value: Any, run: _Run, notes: _Notes) -> _Found:
    tell = "missing required property {!r}".format
    names = place.parts["required"]
    return [((), "required", tell, name) for name in names if name not in value]


def _check_dependent(place: _Place, value: Any, run: _Run, notes: _Notes) -> _Found:
    text = "missing property {1!r}, which {0!r} requires"
    return [
        ((), "dependentRequired", functools.partial(text.format, name), needed)
        for name, names in place.parts["dependentRequired"].items()
        if name in value
        for needed in names
        if needed not in value
    ]


def _check_contains(place: _Place, value: Any, run: _Run, notes: _Notes) -> _Found:
    child, least = place.parts["contains"], place.parts.get("minContains", 1)
    most = place.parts.get("maxContains", sys.maxsize)
    hits = [n for n, item in enumerate(value) if not child.check(item, run, None)]
    if notes is not None:
        notes.update(hits)
    if least <= len(hits) <= most:
        return None
    upper = "" if most == sys.maxsize else f" and at most {most}"
    tell = f"at least {least}{upper} items that match `contains`"
    return [((), "contains", tell, len(hits))]


# --- Keywords that apply sub-schemas to the same value --------------------------------


def _all_of(place: _Place, word: str, children: list[_Place]) -> list[_Check]:
    # Not child.check itself: that may be replaced yet.
    return [functools.partial(_apply, child) for child in children]


def _apply(child: _Place, value: Any, run: _Run, notes: _Notes) -> _Found:
    return child.check(value, run, notes)


def _some_of(place: _Place, word: str, branches: list[_Place]) -> list[_Check]:
    single = word == "oneOf"
    tell = "expected exactly one form of oneOf to fit, but forms {} fit".format

    def check(value: Any, run: _Run, notes: _Notes) -> _Found:
        failed: list[list[_Failure]] = []
        fits: list[int] = []
        for index, branch in enumerate(branches):
            found = _attempt(branch, value, run, notes)
            if found:
                failed.append(found)
            elif notes is None and not single:
                return None  # else each branch that fits adds its notes
            else:
                fits.append(index)
        if not fits:
            return _no_branch(word, failed, value)
        return [((), word, tell, fits)] if single and len(fits) > 1 else None

    return [check]


def _no_branch(word: str, failed: list[list[_Failure]], value: JSON) -> _Found:
    """Choose what to say if no branch fits: the failures of the nearest one, or all.

    Near is a branch of the right type; nearer, one whose constants agree too (they are
    the usual tags of a union).
    """
    far = ("type", "anyOf", "oneOf")
    near = [f for f in failed if f[0][1] not in far or not _is_plain(f[0])] or failed
    tagged = [f for f in near if all(one[1] not in ("const", "enum") for one in f)]
    for choice in (near, tagged):
        if len(choice) == 1:
            return choice[0]
    firsts = [found[0] for found in near]
    if all(map(_is_plain, firsts)):
        tells = dict.fromkeys(str(tell) for _, _, tell, _ in firsts)
        return [((), word, _listed(tells, " or "), value)]
    return [((), word, functools.partial(_tell_forms, firsts), value)]


def _is_plain(failure: _Failure) -> bool:
    return not failure[0] and isinstance(failure[2], str)


def _tell_forms(firsts: list[_Failure], value: JSON) -> str:
    parts = []
    for path, word, tell, got in firsts[:4]:
        # A summary inside a summary stays short, or its length would be exponential.
        nested = isinstance(tell, functools.partial) and tell.func is _tell_forms
        text = "fits no form" if nested else _message(word, tell, got)
        parts.append(str(Violation(path, word, text)))
    parts += ["..."] * (len(firsts) > 4)
    return f"fits none of {len(firsts)} forms: {'; or '.join(parts)}"


def _check_not(place: _Place, value: Any, run: _Run, notes: _Notes) -> _Found:
    child: _Place = place.parts["not"]
    tell = f"a value that does not match {_show(child.schema)}"
    return None if child.check(value, run, None) else [((), "not", tell, value)]


def _check_if(place: _Place, value: Any, run: _Run, notes: _Notes) -> _Found:
    failed = _attempt(place.parts["if"], value, run, notes)
    branch: _Place | None = place.parts.get("else" if failed else "then")
    return branch.check(value, run, notes) if branch else None


def _check_schemas(place: _Place, value: Any, run: _Run, notes: _Notes) -> _Found:
    found: list[_Failure] = []
    for name, child in place.parts["dependentSchemas"].items():
        if name in value:
            found += child.check(value, run, notes) or ()
    return found


def _ref(place: _Place, word: str, target: _Place) -> list[_Check]:
    anchor = urldefrag(place.schema[word]).fragment
    # core 8.2.3.2: without a $dynamicAnchor, $dynamicRef behaves like $ref
    dynamic = word == "$dynamicRef" and target.resource.dynamic.get(anchor) is target

    def check(value: Any, run: _Run, notes: _Notes) -> _Found:
        run.depth += 1  # only references can nest without end
        if run.depth > SCHEMA_DEPTH:
            text = f"nested too deeply: references go deeper than {SCHEMA_DEPTH}"
            raise SchemaError(text)
        place = run.scope.get(anchor, target) if dynamic else target
        found = place.check(value, run, notes)
        run.depth -= 1
        return found

    return [check]


def _of(check: Callable[[_Place, Any, _Run, _Notes], _Found]) -> _Maker:
    """Return the maker of a keyword that finds all that it needs in its place."""
    return lambda place, word, wanted: [types.MethodType(check, place)]


_VALUES, _NUMBERS, _STRINGS = (object, bool), (int, float), (str,)
_LISTS, _DICTS = (list,), (dict,)
# Keyword -> the types of the values that it looks at, and its maker; in order of
# evaluation. `unevaluated*` come after all that they must see, in _track.
_KEYWORDS: dict[str, tuple[tuple[type, ...], _Maker]] = {
    "type": (_VALUES, _type),
    "enum": (_VALUES, _enum),
    "const": (_VALUES, lambda place, word, wanted: _enum(place, word, [wanted])),
    "minimum": (_NUMBERS, _leaf(operator.ge, "a number >= {}")),
    "maximum": (_NUMBERS, _leaf(operator.le, "a number <= {}")),
    "exclusiveMinimum": (_NUMBERS, _leaf(operator.gt, "a number > {}")),
    "exclusiveMaximum": (_NUMBERS, _leaf(operator.lt, "a number < {}")),
    "multipleOf": (_NUMBERS, _leaf(_is_multiple, "a multiple of {}")),
    "minLength": (_STRINGS, _leaf(_at_least, "a string of at least {} characters")),
    "maxLength": (_STRINGS, _leaf(_at_most, "a string of at most {} characters")),
    "pattern": (_STRINGS, _pattern),
    "format": (_STRINGS, _format),
    "minItems": (_LISTS, _leaf(_at_least, "an array of at least {} items")),
    "maxItems": (_LISTS, _leaf(_at_most, "an array of at most {} items")),
    "uniqueItems": (_LISTS, _leaf(_is_unique, "an array without equal items")),
    "minProperties": (_DICTS, _leaf(_at_least, "an object of at least {} properties")),
    "maxProperties": (_DICTS, _leaf(_at_most, "an object of at most {} properties")),
    "required": (_DICTS, _of(_check_required)),
    "dependentRequired": (_DICTS, _of(_check_dependent)),
    "properties": (_DICTS, _properties),
    "propertyNames": (_DICTS, _of(_check_names)),
    "items": (_LISTS, _of(_check_items)),
    "contains": (_LISTS, _of(_check_contains)),
    "$ref": (_VALUES, _ref),
    "$dynamicRef": (_VALUES, _ref),
    "allOf": (_VALUES, _all_of),
    "anyOf": (_VALUES, _some_of),
    "oneOf": (_VALUES, _some_of),
    "not": (_VALUES, _of(_check_not)),
    "if": (_VALUES, _of(_check_if)),
    "dependentSchemas": (_DICTS, _of(_check_schemas)),
}
_TOGETHER = {  # keywords that the maker of another one sees to
    "patternProperties": "properties",
    "additionalProperties": "properties",
    "prefixItems": "items",
}

# --- Compiling: resources, places, references -----------------------------------------


class _Compiler:
    """Find, check, index and compile all that one schema leads to."""

    def __init__(self, documents: Mapping[str, JSON], formats: bool) -> None:
        given = {uri.rstrip("#"): document for uri, document in documents.items()}
        self.documents = given | _META_SCHEMAS
        self.unused = frozenset() if formats else {"format"}
        self.resources: dict[str, _Resource] = {}
        # By id() of the schema. All true are one place, and so are all false.
        nowhere = _Resource("", None, ())
        self.places = {id(s): _Place(nowhere, s, "") for s in (True, False)}
        nothing = _test("false", lambda value, _: False, None, "no value at all")
        self.places[id(False)].checks = [(_VALUES, nothing)]
        self.pending: list[_Place] = []

    def compile(self, schema: JSON) -> _Place:
        """Compile a schema and whatever it refers to, directly or not."""
        self.load("", schema)
        while self.pending:
            self._build(self.pending.pop())
        return self.places[id(schema)]

    def _build(self, place: _Place) -> None:
        """Make the checks of a place."""
        for word in ("$ref", "$dynamicRef"):
            if word in place.parts:
                place.parts[word] = self.resolve(place.parts[word], place, word)
        place.late = not _VOCABULARIES["unevaluated"].keys().isdisjoint(place.parts)
        if place.late or place.resource.dynamic:
            place.check = types.MethodType(_track, place)
        words = {_TOGETHER.get(word, word) for word in place.parts} - self.unused
        for word in [word for word in _KEYWORDS if word in words]:
            kinds, make = _KEYWORDS[word]
            checks = make(place, word, place.parts.get(word))
            place.checks += [(kinds, check) for check in checks]

    def load(self, uri: str, schema: JSON) -> None:
        """Check and index a document."""
        words = self._dialect(schema, uri + "#")
        self.resources[uri] = resource = self._resource(schema, uri, words)
        self._index(schema, resource, uri + "#")

    def _resource(self, schema: JSON, base: str, words: Collection[str]) -> _Resource:
        """Register a schema under its $id."""
        name = schema.get("$id", "") if isinstance(schema, dict) else ""
        uri = _join(base, name)[0]
        self.resources[uri] = resource = _Resource(uri, schema, words)
        return resource

    def _dialect(self, schema: JSON, where: str) -> Collection[str]:
        """Check a schema against its meta-schema; return the keywords of that."""
        given = schema.get("$schema") if isinstance(schema, dict) else None
        meta = self.documents.get(str(given or SCHEMA_DIALECT).rstrip("#"))
        if not isinstance(meta, dict):
            raise SchemaError(
                f"{where}/$schema: unsupported dialect {_show(given)}; "
                f"supported is {SCHEMA_DIALECT!r}"
            )
        # Our own meta-schemas are taken on trust: they can't check themselves.
        if not any(schema is own for own in _META_SCHEMAS.values()):
            ours = meta is _META_SCHEMAS[SCHEMA_DIALECT] or meta is schema
            judge = _meta_schema() if ours else Schema(meta, resources=self.documents)
            for wrong in judge.violations(schema, 1):
                raise SchemaError(f"{where}{_pointer(wrong.path)}: {wrong.message}")
        if "$vocabulary" not in meta:
            return _SHAPES
        words: set[str] = set()
        for uri, needed in meta["$vocabulary"].items():
            name = uri.removeprefix(f"{_BASE}vocab/")
            if name not in _VOCABULARIES and needed:
                raise SchemaError(f"{where}: unsupported vocabulary {uri!r}")
            words.update(_VOCABULARIES.get(name, ()))
        return words

    def _index(self, schema: JSON, resource: _Resource, where: str) -> _Place:
        """Note the place of a schema, its anchors, and those of its sub-schemas."""
        if id(schema) in self.places:
            return self.places[id(schema)]
        if "$id" in schema and schema is not resource.root:
            own = "$schema" in schema
            words = self._dialect(schema, where) if own else resource.words
            resource = self._resource(schema, resource.uri, words)
        self.places[id(schema)] = place = _Place(resource, schema, where)
        self.pending.append(place)
        for word in ("$anchor", "$dynamicAnchor"):
            if word in schema:
                resource.anchors[schema[word]] = place
        if "$dynamicAnchor" in schema:
            resource.dynamic[schema["$dynamicAnchor"]] = place
        for word, value in schema.items():
            if word in resource.words:
                part = self._part(word, value, resource, f"{where}/{word}")
                place.parts[word] = part
        return place

    def _part(self, word: str, value: Any, resource: _Resource, where: str) -> Any:
        """Return the value of a keyword, with places instead of sub-schemas."""
        shape = _SHAPES[word]
        if shape is _SUB:
            return self._index(value, resource, where)
        if shape is _SUB_LIST:
            return [
                self._index(schema, resource, f"{where}/{index}")
                for index, schema in enumerate(value)
            ]
        if shape is _SUB_MAP:
            return {
                name: self._index(schema, resource, where + _pointer([name]))
                for name, schema in value.items()
            }
        return value

    def resolve(self, ref: str, place: _Place, word: str) -> _Place:
        """Return the place of the schema that a reference names."""
        uri, fragment = _join(place.resource.uri, ref)
        if uri not in self.resources and uri in self.documents:
            self.load(uri, self.documents[uri])
        try:
            resource = self.resources[uri]
            if fragment and not fragment.startswith("/"):
                return resource.anchors[fragment]
            schema = _follow_pointer(resource.root, unquote(fragment))
        except (LookupError, ValueError):
            schema = None
        if not isinstance(schema, (dict, bool)):
            raise SchemaError(
                f"{place.where}/{word}: {ref!r} leads to no schema; documents are "
                "never fetched, they can be given as `resources`"
            )
        if id(schema) not in self.places:
            # Below a keyword that we don't know, so it has not been checked yet.
            self._dialect(schema, ref)
        return self._index(schema, resource, ref)


def _join(base: str, ref: str) -> tuple[str, str]:
    """Resolve a reference; return its URI and its fragment."""
    try:
        uri, fragment = urldefrag(ref)
        # urljoin can't join with bases such as urn:..., but a fragment always works.
        return (urljoin(base, uri) if uri else base), fragment
    except ValueError:
        return ref, ""  # no URI at all, so nothing will be found under it


def _pointer(keys: Iterable[str | int]) -> str:
    """Write a JSON Pointer (RFC 6901)."""
    escaped = (str(key).replace("~", "~0").replace("/", "~1") for key in keys)
    return "".join(f"/{key}" for key in escaped)


def _follow_pointer(document: JSON, pointer: str) -> JSON:
    """Follow a JSON Pointer; raise LookupError or ValueError if it leads nowhere."""
    for token in pointer.split("/")[1:]:
        if isinstance(document, list) and token.isdecimal():
            document = document[int(token)]
        elif isinstance(document, dict):
            document = document[token.replace("~1", "/").replace("~0", "~")]
        else:
            raise LookupError(token)
    return document


# --- The meta-schema, condensed -------------------------------------------------------

_SUB: JSON = {"$dynamicRef": "#meta"}
_SUB_LIST: JSON = {"type": "array", "minItems": 1, "items": _SUB}
_SUB_MAP: JSON = {"type": "object", "additionalProperties": _SUB}
_STRING: JSON = {"type": "string"}
_FLAG: JSON = {"type": "boolean"}
_NAMES: JSON = {"type": "array", "items": _STRING, "uniqueItems": True}
_NAME: JSON = {"enum": list(_TYPES)}


def _shaped(shape: JSON, words: str) -> dict[str, JSON]:
    return dict.fromkeys(words.split(), shape)


# Vocabulary -> keyword -> what its value must look like. Where a schema has sub-schemas
# is read off this table too.
_VOCABULARIES: dict[str, dict[str, JSON]] = {
    "core": {
        "$id": {"type": "string", "pattern": "^[^#]*#?$"},
        **_shaped(_STRING, "$schema $ref $dynamicRef $comment"),
        **_shaped(
            {"type": "string", "pattern": "^[A-Za-z_][-A-Za-z0-9._]*$"},
            "$anchor $dynamicAnchor",
        ),
        "$vocabulary": {"type": "object", "additionalProperties": _FLAG},
        "$defs": _SUB_MAP,
    },
    "applicator": {
        **_shaped(_SUB, "not if then else items contains"),
        **_shaped(_SUB, "additionalProperties propertyNames"),
        **_shaped(_SUB_LIST, "allOf anyOf oneOf prefixItems"),
        **_shaped(_SUB_MAP, "properties patternProperties dependentSchemas"),
    },
    "unevaluated": _shaped(_SUB, "unevaluatedItems unevaluatedProperties"),
    "validation": {
        "type": {"anyOf": [_NAME, {**_NAMES, "items": _NAME, "minItems": 1}]},
        "enum": {"type": "array"},
        "const": True,
        "multipleOf": {"type": "number", "exclusiveMinimum": 0},
        **_shaped({"type": "number"}, "minimum maximum"),
        **_shaped({"type": "number"}, "exclusiveMinimum exclusiveMaximum"),
        **_shaped(
            {"type": "integer", "minimum": 0},
            "minLength maxLength minItems maxItems minContains maxContains "
            "minProperties maxProperties",
        ),
        "pattern": _STRING,
        "uniqueItems": _FLAG,
        "required": _NAMES,
        "dependentRequired": {"type": "object", "additionalProperties": _NAMES},
    },
    "meta-data": {
        **_shaped(_STRING, "title description"),
        **_shaped(_FLAG, "deprecated readOnly writeOnly"),
        "default": True,
        "examples": {"type": "array"},
    },
    "format-annotation": {"format": _STRING},
    "content": {
        **_shaped(_STRING, "contentEncoding contentMediaType"),
        "contentSchema": _SUB,
    },
}
_SHAPES = {word: form for v in _VOCABULARIES.values() for word, form in v.items()}
_BASE = SCHEMA_DIALECT.removesuffix("schema")
_META_SCHEMAS: dict[str, JSON] = {
    uri: {
        "$id": uri,
        "$dynamicAnchor": "meta",
        "type": ["object", "boolean"],
        "properties": words,
    }
    for uri, words in (
        (SCHEMA_DIALECT, _SHAPES),
        *((f"{_BASE}meta/{name}", words) for name, words in _VOCABULARIES.items()),
    )
}


@functools.cache
def _meta_schema() -> Schema:
    return Schema(_META_SCHEMAS[SCHEMA_DIALECT])


# --- Patterns: ECMA-262 in Unicode mode, in terms of `re` -----------------------------

_ECMA_TOKEN = (
    r"(?s)\\(?P<category>[pP]\{[^}]*\})"
    r"|\\u\{(?P<code>[0-9A-Fa-f]+)\}"
    r"|\\c(?P<control>[A-Za-z])"
    r"|\\(?P<wrong>[aceg-jl-mo-qy-zACE-RT-VX-Z])"
    r"|\\k<(?P<name>\w+)>"
    r"|\(\?<(?![=!])|\[\^?\]?|\\.|."
)
# With re.ASCII, \d \w \b and their complements are those of ECMA-262, but not these.
_ECMA_SETS = {
    r"\s": r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
    r"\S": r"\0-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e"
    r"\u2030-\u205e\u2060-\u2fff\u3001-\ufefe\uff00-\U0010ffff",
}
_OUTSIDE_SETS = {
    "$": r"\Z",  # Python's own $ also matches before a last newline
    ".": r"[^\n\r\u2028\u2029]",
    "[]": r"(?!)",
    "[^]": r"[\s\S]",
    "(?<": "(?P<",
}
_CATEGORIES = {  # long names of the common ones
    **{"Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Mark": "M"},
    **{"Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Punctuation": "P"},
    **{"punct": "P", "Symbol": "S", "Separator": "Z", "Other": "C"},
}


@functools.lru_cache(256)
def _regex(pattern: str) -> re.Pattern[str]:
    """Compile an ECMA-262 pattern; raise re.error for what `re` can't express."""
    parts: list[str] = []
    inside = False  # of a set: [...]
    for match in re.finditer(_ECMA_TOKEN, pattern):
        token, kind = match[0], match.lastgroup
        if kind == "wrong":
            raise re.error(f"unknown escape {token}")
        if kind == "category" or token in _ECMA_SETS:
            chars = _ECMA_SETS.get(token) or _category(token)
            parts.append(chars if inside else f"[{chars}]")
        elif kind == "code":
            parts.append(f"\\U{int(match['code'], 16):08x}")
        elif kind == "name":
            parts.append(f"(?P={match['name']})")
        elif kind == "control":
            parts.append(f"\\x{ord(match['control']) % 32:02x}")
        elif inside:
            # `re` reserves these four characters in sets.
            parts.append("".join("\\" + c if c in "[&~|" else c for c in token))
            inside = not token.endswith("]") or token == r"\]"
        else:
            parts.append(_OUTSIDE_SETS.get(token, token))
            inside = token in ("[", "[^")
    return re.compile("".join(parts), re.ASCII)


@functools.cache
def _category(token: str) -> str:
    r"""Write \p{L} or \P{Nd} as the inside of a set; takes a tenth of a second."""
    name = token[3:-1].split("=")[-1]
    short = _CATEGORIES.get(name, name)
    if not re.fullmatch("[A-Z][a-z]?", short):
        raise re.error(f"unsupported property {name!r}")
    ranges = ""
    for member, group in itertools.groupby(
        range(sys.maxunicode + 1),
        lambda code: unicodedata.category(chr(code)).startswith(short),
    ):
        if member == token.startswith(r"\p"):
            codes = list(group)
            ranges += f"\\U{codes[0]:08x}-\\U{codes[-1]:08x}"
    return ranges


# --- Formats --------------------------------------------------------------------------


def _is_date(text: str) -> object:
    import datetime  # here, because few schemas need it

    return datetime.date.fromisoformat(text[:10])


def _is_address(text: str) -> object:
    import ipaddress  # here, because few schemas need it

    return ipaddress.ip_address(text)


_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_ATOM = r"[\w!#$%&'*+/=?^`{|}~-]+"
# Name -> a pattern, and a function that raises ValueError for what it lets through.
_FORMATS: dict[str, tuple[str, Callable[[str], object]]] = {
    "date": (_DATE, _is_date),
    "time": (_TIME, str),
    "date-time": (f"{_DATE}[Tt]{_TIME}", _is_date),
    "email": (
        rf"{_ATOM}(\.{_ATOM})*@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?",
        str,
    ),
    "uri": (
        r"[A-Za-z][A-Za-z0-9+.-]*:([!#$&-;=?-Z_a-z~\[\]]|%[0-9A-Fa-f]{2})*",
        str,
    ),
    "uuid": ("[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", str),
    "ipv4": ("[0-9.]+", _is_address),
    "ipv6": ("[0-9A-Fa-f.]*:[0-9A-Fa-f.:]+", _is_address),
}


def _has_format(text: str, name: str) -> bool:
    pattern, parse = _FORMATS[name]
    try:
        return bool(re.fullmatch(pattern, text, re.ASCII)) and bool(parse(text))
    except ValueError:
        return False


# ======================================================================================
# Appendix B  Type hints and JSON Schema            spec: basic/index, JSON Schema Usage
# ======================================================================================
#
#     hint ----> plan = schema    what a client may send, and what we promise to send
#                       convert   validated JSON -> Python value (None: leave it alone)
#
#     arguments --validate--> convert --> handler(**kwargs) --> to_json --> result
#
# One walk over a hint builds both, so they can't drift apart. In a union, the schema
# also chooses the member. Only types that contain themselves go through $defs; all
# others are written in place, so that an x-mcp-header stays statically reachable
# (streamable-http, Schema Extension).
#
# Objects made from dataclasses, NamedTuples and TypedDicts are closed: a misspelt key
# should reach the model as an error and not as a default. A NamedTuple is an object and
# not an array: names tell a model more than positions.


_Convert = Callable[[JSON], Any]
_SCALARS = frozenset({str, int, float, bool, type(None)})


class HintError(TypeError):
    """A signature that has no JSON Schema: a fault of the handler's author."""


class _Misfit(ValueError, TypeError):
    """Say where inside a value the fault lies; each level puts its step in front.

    One class for both directions: callers of a converter expect ValueError, callers of
    to_json expect TypeError.
    """

    def __init__(self, text: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(str(Violation(path, "", text)))
        self.text = text
        self.path = path

    @classmethod
    def under(cls, step: str | int, error: Exception) -> _Misfit:
        text, path = getattr(error, "text", str(error)), getattr(error, "path", ())
        return cls(text, (step, *path))


# --- Python value -> JSON value -------------------------------------------------------


def to_json(value: Any) -> JSON:
    """Return the JSON form of a Python value; plain scalars come back untouched.

    Dataclasses and NamedTuples become objects, Enums their value, dates ISO 8601, bytes
    base64, Decimal and UUID and Path strings, sets sorted arrays, other collections and
    iterators arrays. Keys become strings. Non-finite floats are left to the encoder.
    Raises TypeError that names type and path.
    """
    if type(value) in _SCALARS:
        return value
    try:
        return _write(value)
    except RecursionError:
        raise TypeError("the value contains itself or is nested too deeply") from None


def _write(value: Any) -> JSON:
    kind = type(value)
    if kind is dict:
        return _write_members(value.items())
    if kind is list:
        return _write_items(value)
    if isinstance(value, enum.Enum):
        return _write(value.value)
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return _write_members((name, getattr(value, name)) for name in names)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _write_members(value._asdict().items())
    if isinstance(value, abc.Mapping):
        return _write_members(value.items())
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, abc.Set):
        # Hash order differs between workers; the same result should read the same.
        return sorted(_write_items(value), key=_set_order)
    if isinstance(value, (abc.Sequence, abc.Iterator, abc.MappingView)):
        return _write_items(typing.cast("Iterable[Any]", value))
    if any(map(_library_row, kind.__mro__)):
        return str(value)
    raise _Misfit(f"a value of type {kind.__name__} has no JSON form")


def _set_order(item: JSON) -> tuple[bool, Any]:
    number = isinstance(item, (int, float))
    return (not number, item if number else str(item))


def _write_items(values: Iterable[Any]) -> list[JSON]:
    result: list[JSON] = []
    try:
        for item in values:
            result.append(item if type(item) in _SCALARS else _write(item))
    except _Misfit as error:
        raise _Misfit.under(len(result), error) from None
    return result


def _write_members(members: Iterable[tuple[Any, Any]]) -> dict[str, JSON]:
    result: dict[str, JSON] = {}
    for key, item in members:
        name = key if type(key) is str else _write_key(key)
        if name in result:  # 1 and "1": one of the two would be lost
            raise _Misfit(f"two keys have the JSON form {name!r}")
        try:
            result[name] = item if type(item) in _SCALARS else _write(item)
        except _Misfit as error:
            raise _Misfit.under(name, error) from None
    return result


def _write_key(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    whole = isinstance(key, int) and not isinstance(key, bool)
    name = f"{key:d}" if whole else _write(key)
    if isinstance(name, str):
        return name
    raise _Misfit(f"a key of type {type(key).__name__} has no JSON form")


def _constant(value: Any) -> JSON:
    """Return the JSON form of something that a schema is to publish."""
    try:
        result = to_json(value)
        json.dumps(result, allow_nan=False)  # NaN would break tools/list later
    except (TypeError, ValueError) as error:
        raise HintError(f"{value!r} can't stand in a schema: {error}") from None
    return result


# --- Plans: schema and converter of one hint ------------------------------------------


class _Plan(NamedTuple):
    schema: dict[str, JSON]
    convert: _Convert | None = None
    breadth: int = 1  # in unions: 0 narrow, 1 general, 2 anything
    exact: type | None = None  # the Python type whose values need no conversion


def _to_float(value: JSON) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _Misfit("expected a number in the range of a double") from None


def _text(
    what: str,
    pattern: str,
    schema: dict[str, JSON],
    parse: Callable[[str], Any],
    breadth: int = 0,
) -> _Plan:
    """Plan a type with a textual form, held to one spelling by a pattern.

    The parsers take more: fromisoformat reads 20260728 as a date, UUID() takes braces.
    """

    def convert(value: JSON) -> Any:
        with contextlib.suppress(ValueError, ArithmeticError):
            text = str(value)  # Decimal takes numbers too
            if re.fullmatch(pattern, text, re.ASCII):
                return parse(text)
        raise _Misfit(f"expected {what}, got {reprlib.repr(value)}")

    return _Plan(schema, convert, breadth)


_ANYTHING = _Plan({}, breadth=2)
_NULL = _Plan({"type": "null"}, exact=type(None))
_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:[0-9]{2})?"
_DECIMAL = r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"

_PLANS: dict[Any, _Plan] = {
    Any: _ANYTHING,
    object: _ANYTHING,
    None: _NULL,
    type(None): _NULL,
    str: _Plan(_STRING, exact=str),
    bool: _Plan(_FLAG, exact=bool),
    int: _Plan({"type": "integer"}, int, exact=int),
    float: _Plan({"type": "number"}, _to_float, exact=float),
    datetime.date: _text(
        "an ISO 8601 date such as 2026-07-28",
        r"\d{4}-\d\d-\d\d",
        {"type": "string", "format": "date"},
        datetime.date.fromisoformat,
    ),
    datetime.datetime: _text(
        "an ISO 8601 date and time such as 2026-07-28T09:30:00Z",
        rf"\d{{4}}-\d\d-\d\d[T ]{_CLOCK}",
        {"type": "string", "format": "date-time"},
        datetime.datetime.fromisoformat,
    ),
    # No format "time": that one demands an offset, which Python's times rarely have.
    datetime.time: _text(
        "an ISO 8601 time such as 09:30:00",
        _CLOCK,
        {"type": "string", "pattern": f"^{_CLOCK}$"},
        datetime.time.fromisoformat,
    ),
    # Many words are base64 too, so in a union plain str comes first.
    bytes: _text(
        "base64 text",
        r"[A-Za-z0-9+/=]*",
        {"type": "string", "contentEncoding": "base64"},
        functools.partial(base64.b64decode, validate=True),
        breadth=1,
    ),
}
_PATH = ("a path", r"(?s:.*)", _STRING)
# By name: a server should only import the modules of these types if it uses them.
# The type itself parses the text.
_LIBRARY: dict[str, tuple[str, str, dict[str, JSON]]] = {
    "pathlib.Path": _PATH,
    "pathlib.PurePath": _PATH,
    "uuid.UUID": (
        "a UUID such as 123e4567-e89b-12d3-a456-426614174000",
        r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        {"type": "string", "format": "uuid"},
    ),
    "decimal.Decimal": (
        "a decimal number such as 12.50",
        _DECIMAL,
        {"anyOf": [{"type": "number"}, {**_STRING, "pattern": f"^{_DECIMAL}$"}]},
    ),
}


def _library_row(kind: Any) -> tuple[str, str, dict[str, JSON]] | None:
    package = getattr(kind, "__module__", "").partition(".")[0]  # pathlib._local
    return _LIBRARY.get(f"{package}.{getattr(kind, '__qualname__', '')}")


# What to make of the list that JSON gives; None: it will do as it is.
_ARRAYS: dict[Any, Callable[[list[Any]], Any] | None] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence)),
    **dict.fromkeys((abc.Collection, abc.Iterable)),
    **dict.fromkeys((set, abc.MutableSet), set),
    **dict.fromkeys((frozenset, abc.Set), frozenset),
    tuple: tuple,
    collections.deque: collections.deque,
    abc.Iterator: iter,
}
_BARE = (tuple, typing.Tuple)  # noqa: UP006  (but tuple[()] is the empty one)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
_UNIONS = (typing.Union, types.UnionType)
_READ_ONLY = getattr(typing, "ReadOnly", typing.Final)  # since 3.13
_QUALIFIERS = (typing.Required, typing.NotRequired, typing.Final, _READ_ONLY)


def schema_of(hint: Any) -> dict[str, JSON]:
    """Return the JSON Schema (2020-12) of a type hint; raise HintError if none."""
    walk = _Walk()
    schema = walk.plan(hint).schema
    if schema.keys() == {"$ref"}:  # older clients want to see "type" at the root
        schema = walk.defs[schema["$ref"].removeprefix("#/$defs/")]
    return walk.finish(schema)


def converter_of(hint: Any) -> _Convert | None:
    """Return what turns validated JSON into a value of the hint; None: nothing to do.

    The converter raises ValueError with a text that a model can act on.
    """
    return _Walk().plan(hint).convert


class _Walk:
    """Build the plans of one document; remember the types that contain themselves."""

    def __init__(self) -> None:
        self.defs: dict[str, JSON] = {}
        self._names: set[str] = set()
        self._plans: dict[Any, _Plan] = {}  # of classes and aliases

    def finish(self, schema: dict[str, JSON]) -> dict[str, JSON]:
        """Return a document of one's own: plans share their parts."""
        return copy.deepcopy({**schema, "$defs": self.defs} if self.defs else schema)

    def takes(self, plan: _Plan, form: JSON) -> bool:
        """Tell if a JSON value fits; quickly for scalars and for None if optional."""
        optional = form is None and _NULL.schema in plan.schema.get("anyOf", ())
        known = optional or type(form) is plan.exact
        return known or self.test(plan).is_valid(form)

    def test(self, plan: _Plan) -> Schema:
        """Return what tells if a JSON value has the form that a plan takes."""
        # Of a type that is being planned, nothing fits yet: that only hides defaults.
        defs = dict.fromkeys(self._names, False) | self.defs
        return Schema({**plan.schema, "$defs": defs})

    def plan_at(self, where: str, hint: Any) -> _Plan:
        try:
            return self.plan(hint)
        except HintError as error:
            raise HintError(f"{where}: {error}") from None

    def plan(self, hint: Any) -> _Plan:
        kind, args = typing.get_origin(hint) or hint, typing.get_args(hint)
        if kind is typing.Annotated and args:
            return self._annotated(*args)
        if isinstance(kind, abc.Hashable) and kind in _PLANS:
            return _PLANS[kind]
        if row := _library_row(kind):
            # As the str that they are in JSON, UUIDs are the narrow type in a union.
            return _text(*row, kind, breadth=int("format" not in row[2]))
        if kind is tuple and hint not in _BARE and args[1:] != (...,):
            return self._fixed(args)
        if isinstance(kind, type) and kind in _ARRAYS:
            return self._array(kind, *args[:1])
        if kind in _MAPPINGS:
            return self._mapping(*(args or (str, Any)))
        if kind in _UNIONS and args:
            return self._union(args)
        if kind in _QUALIFIERS and args:
            return self.plan(args[0])
        if kind is typing.Literal and args:
            return _choice([(_constant(value), value) for value in args])
        if isinstance(kind, typing.TypeVar):
            return self._union(kind.__constraints__ or (kind.__bound__ or Any,))
        if isinstance(kind, typing.NewType):
            return self.plan(kind.__supertype__)
        if _is_enum(kind):
            return _choice([(_constant(member), member) for member in kind])
        if not args and (_is_alias(kind) or _is_struct(kind)):
            return self._named(kind)
        advice = "use a dataclass, TypedDict or Annotated[Any, {...}]"
        raise HintError(f"no JSON Schema for {_hint_text(hint)}; {advice}")

    def _annotated(self, hint: Any, *notes: Any) -> _Plan:
        plan = self.plan(hint)
        schema = dict(plan.schema)
        for note in notes:
            if isinstance(note, str):
                schema["description"] = note
            elif isinstance(note, dict):
                schema.update(_constant(note))
        return plan._replace(schema=schema)

    def _union(self, args: tuple[Any, ...]) -> _Plan:
        """Plan a choice: narrow types first, then exact scalars, then what converts.

        So date | str gives a date where the text is one, Path | str stays a str, and 5
        stays an int in float | int. The order of declaration decides between equals.
        """
        plans = [self.plan(arg) for arg in args]
        schemas: list[dict[str, JSON]] = []
        for plan in plans:
            if plan.schema not in schemas:
                schemas.append(plan.schema)
        schema = {"anyOf": schemas} if schemas[1:] else schemas[0]
        exact = {plan.exact for plan in plans}
        tries = sorted(plans, key=lambda plan: plan.breadth)

        @functools.cache
        def tests() -> list[Schema]:  # on first use, when all of $defs is there
            return [self.test(plan) for plan in tries]

        def convert(value: JSON) -> Any:
            failure = ValueError("expected a value of another type")
            for plan, test in zip(tries, tests(), strict=True):
                if plan.breadth and type(value) in exact:
                    return value
                if test.is_valid(value):
                    try:
                        return plan.convert(value) if plan.convert else value
                    except ValueError as error:
                        failure = error
            raise failure

        return _Plan(
            {} if {} in schemas else schema,
            convert if any(plan.convert for plan in plans) else None,
            max(plan.breadth for plan in plans),
        )

    def _array(self, kind: Any, item_hint: Any = Any) -> _Plan:
        item, make = self.plan(item_hint), _ARRAYS[kind]
        schema: dict[str, JSON] = {"type": "array"}
        if item.schema:
            schema["items"] = item.schema
        if issubclass(kind, abc.Set):
            schema["uniqueItems"] = True
            if (typing.get_origin(item_hint) or item_hint).__hash__ is None:
                text = f"no set of {_hint_text(item_hint)}: mutable; use a list"
                raise HintError(text)

        def convert(value: JSON) -> Any:
            items = [_convert_at(n, each, item.convert) for n, each in enumerate(value)]
            try:
                return make(items) if make else items
            except TypeError as error:  # set[Any], and an item is a list or object
                raise _Misfit(f"expected items for a set: {error}") from None

        return _Plan(schema, convert if make or item.convert else None)

    def _fixed(self, args: tuple[Any, ...]) -> _Plan:
        plans = [self.plan(arg) for arg in args]
        size = len(plans)
        schema = {"type": "array", "items": False, "minItems": size, "maxItems": size}
        if plans:  # an empty prefixItems is not allowed
            schema["prefixItems"] = [plan.schema for plan in plans]

        def convert(value: JSON) -> Any:
            each = enumerate(zip(value, plans, strict=True))
            return tuple(_convert_at(n, item, plan.convert) for n, (item, plan) in each)

        return _Plan(schema, convert)

    def _mapping(self, key_hint: Any, item_hint: Any) -> _Plan:
        keys, items = _keys(key_hint), self.plan(item_hint)
        names = {"propertyNames": keys.schema} if keys.schema else {}
        key = keys.convert or (lambda name: name)

        def convert(value: JSON) -> dict[Any, Any]:
            return {
                key(name): _convert_at(name, item, items.convert)
                for name, item in value.items()
            }

        return _Plan(
            {"type": "object", **names, "additionalProperties": items.schema or True},
            convert if keys.convert or items.convert else None,
        )

    def _named(self, kind: Any) -> _Plan:
        """Plan a class or alias; when it is met again inside itself, refer to $defs."""
        if kind in self._plans:
            return self._plans[kind]
        name = kind.__name__
        while name in self._names:
            name += "_"
        self._names.add(name)
        reference = {"$ref": f"#/$defs/{name}"}

        def convert(value: JSON) -> Any:
            plan = self._plans[kind]
            return plan.convert(value) if plan.convert else value

        self._plans[kind] = _Plan(reference, convert, breadth=0)
        plan = self.plan(kind.__value__) if _is_alias(kind) else self._struct(kind)
        if str(reference) in str(plan.schema):  # so it contains itself
            self.defs[name] = plan.schema
            plan = plan._replace(schema=reference)
        self._plans[kind] = plan
        return plan

    def _struct(self, kind: Any) -> _Plan:
        fields = list(_fields_of(kind))
        schema, members = self.members(fields, f"{kind.__name__}.{{}}", None)
        ours = {field.name for field in fields if field.ours}

        def convert(value: JSON) -> Any:
            given = members(value) if members else value
            try:
                return kind(**{n: item for n, item in given.items() if n not in ours})
            except ValueError:
                raise
            except Exception as error:  # what a __post_init__ raises against a value
                raise _Misfit(f"{kind.__name__}: {error}") from error

        # A TypedDict stays what it is.
        return _Plan(schema, members if issubclass(kind, dict) else convert, breadth=0)

    def members(
        self, fields: Iterable[_Field], where: str, rest: _Plan | None
    ) -> tuple[dict[str, JSON], _Convert | None]:
        """Return schema and converter of an object with some members, and a rest."""
        schema: dict[str, JSON] = {"type": "object", "properties": {}}
        converters: dict[str, _Convert | None] = {}
        for each in fields:
            plan = self.plan_at(where.format(each.name), each.hint)
            converters[each.name] = plan.convert
            found: dict[str, JSON] = {"description": each.text} if each.text else {}
            found |= plan.schema
            if each.ours:
                found["readOnly"] = True
            if each.required:
                schema.setdefault("required", []).append(each.name)
            elif each.default is not MISSING:
                # Not JSON, or (x: int = None) not of the type: we publish none.
                with contextlib.suppress(ValueError, HintError):
                    form = _constant(each.default)
                    if self.takes(plan, form):
                        found["default"] = form
            schema["properties"][each.name] = found
        schema["additionalProperties"] = (rest.schema or True) if rest else False
        further = rest.convert if rest else None

        def convert(value: dict[str, JSON]) -> dict[str, Any]:
            return {
                name: _convert_at(name, item, converters.get(name, further))
                for name, item in value.items()
            }

        return schema, convert if further or any(converters.values()) else None


def _keys(hint: Any) -> _Plan:
    if hint in (str, Any):
        return _ANYTHING
    if hint is int:
        integer = "0|-?[1-9][0-9]*"
        schema = {**_STRING, "pattern": f"^({integer})$"}
        return _text("an integer", integer, schema, int)
    if _is_enum(hint):  # by the key that to_json makes of the member
        return _choice([(_write_key(member), member) for member in hint])
    text = f"no JSON object has keys of type {_hint_text(hint)}; use str"
    raise HintError(text)


def _convert_at(key: str | int, value: JSON, convert: _Convert | None) -> Any:
    """Convert a member; say where it is if that fails."""
    if convert is None:
        return value
    try:
        return convert(value)
    except ValueError as error:
        raise _Misfit.under(key, error) from error


def _choice(pairs: list[tuple[JSON, Any]]) -> _Plan:
    """Plan a fixed set of values, given with their JSON forms."""
    # true and 1 are equal in Python but not in JSON; 1 and 1.0 are equal in both.
    table = {_key(form): value for form, value in pairs}
    forms = [form for form, _ in pairs]

    def convert(value: JSON) -> Any:
        try:
            return table[_key(value)]
        except KeyError:
            raise _Misfit(f"expected one of {json.dumps(forms)}") from None

    kinds = {type(form) for form in forms}
    plan = _PLANS.get(kinds.pop()) if len(kinds) == 1 else None
    named = plan.schema if plan else {}
    plain = all(type(value) in (str, bool, type(None)) for _, value in pairs)
    return _Plan({**named, "enum": forms}, None if plain else convert, breadth=0)


# --- Looking at classes ---------------------------------------------------------------


def _is_enum(kind: Any) -> bool:
    # The combinations of a Flag are no members: a list of values would be a lie.
    is_enum = isinstance(kind, type) and issubclass(kind, enum.Enum)
    return is_enum and not issubclass(kind, enum.Flag)


def _is_alias(kind: Any) -> bool:
    return type(kind).__name__ == "TypeAliasType"  # since 3.12, or typing_extensions


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind)
        or hasattr(kind, "__required_keys__")  # TypedDict, also of typing_extensions
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )


class _Field(NamedTuple):
    name: str
    hint: Any
    required: bool
    default: Any = MISSING
    ours: bool = False  # computed by the class: published, but not for callers to set
    text: str = ""


def _fields_of(kind: Any) -> Iterator[_Field]:
    """Yield the members of a dataclass, NamedTuple or TypedDict."""
    hints = _hints_of(kind)
    if dataclasses.is_dataclass(kind):
        for f in dataclasses.fields(kind):
            required = f.init and f.default is MISSING and f.default_factory is MISSING
            yield _Field(f.name, hints[f.name], required, f.default, not f.init)
    elif issubclass(kind, tuple):
        for name in kind._fields:
            default = kind._field_defaults.get(name, MISSING)
            yield _Field(name, hints.get(name, Any), default is MISSING, default)
    else:
        for name, hint in hints.items():
            yield _Field(name, hint, _is_required(hint, name in kind.__required_keys__))


def _is_required(hint: Any, required: bool) -> bool:
    """Look for Required and NotRequired, which __required_keys__ misses in strings."""
    while (kind := typing.get_origin(hint)) in (typing.Annotated, *_QUALIFIERS):
        if kind in (typing.Required, typing.NotRequired):
            return kind is typing.Required
        hint = typing.get_args(hint)[0]
    return required


def _hint_text(hint: Any) -> str:
    if isinstance(hint, type):
        return hint.__name__
    return re.sub(r"\b(typing|__main__)\.", "", str(hint))


def _hints_of(target: Any) -> dict[str, Any]:
    """Resolve the annotations of a function or class, those in strings included."""
    local: dict[str, Any] = {}
    if isinstance(target, type):  # even a class in a function may name itself
        local = {n: v for n, v in vars(target).items() if isinstance(v, type)}
        local[target.__name__] = target
    try:
        return typing.get_type_hints(
            target, localns=local or None, include_extras=True
        )
    except Exception as error:
        raise HintError(
            f"{_callable_name(target)}: can't resolve its hints: {error}; define names "
            "at module level, or write hints without quotes and without "
            "'from __future__ import annotations'"
        ) from error


# --- Signatures -----------------------------------------------------------------------


class Parameters(NamedTuple):
    """What the signature of a handler says.

    `convert` turns validated arguments into keyword arguments (perhaps the same dict),
    or raises ValueError with a text that starts with the name of the parameter. The
    context is not among them: set it last, so that a caller can't.
    """

    schema: dict[str, JSON]
    convert: Callable[[dict[str, JSON]], dict[str, Any]]
    context: str | None


def parameters_of(function: Callable[..., Any], context_type: type) -> Parameters:
    """Describe the parameters of a handler; raise HintError if a schema can't.

    An untyped parameter takes any JSON value. **kwargs opens the object: every further
    argument must match its hint. The parameter of the context type is the server's and
    stays out of the schema. Mutable defaults are copied for each call.
    """
    target, walk = _bare(function), _Walk()
    hints, texts = _hints_of(target), parse_docstring(target.__doc__)[1]
    name, context = _callable_name(target), []
    fields: list[_Field] = []
    rest: _Plan | None = None
    for p in _signature(function, name):
        hint = hints.get(p.name, Any)
        if _mentions(hint, (context_type,), _UNIONS):
            context.append(p.name)
        elif p.kind is p.VAR_KEYWORD:
            rest = walk.plan_at(f"{name}(**{p.name})", hint)
        else:
            needed, text = p.default is p.empty, texts.get(p.name, "")
            fields.append(_Field(p.name, hint, needed, p.default, text=text))
    if len(context) > 1:
        raise HintError(f"{name}: {context} are all the context; keep one")
    schema, members = walk.members(fields, f"{name}({{}})", rest)
    convert = _arguments_converter(members, fields)
    return Parameters(walk.finish(schema), convert, context[0] if context else None)


def _signature(function: Any, name: str) -> Iterator[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise HintError(f"{name}: {error}; wrap it in a def") from None
    for p in signature.parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            text = "arguments have names; use one list parameter"
            raise HintError(f"{name}(*{p.name}): {text}")
        yield p


def _arguments_converter(
    members: _Convert | None, fields: list[_Field]
) -> Callable[[dict[str, JSON]], dict[str, Any]]:
    # What can't be hashed can be changed, and would be shared between calls.
    fresh = {f.name: f.default for f in fields if type(f.default).__hash__ is None}
    if not members and not fresh:
        return lambda arguments: arguments

    def convert(arguments: dict[str, JSON]) -> dict[str, Any]:
        try:
            converted = members(arguments) if members else arguments
        except RecursionError:
            raise ValueError("the arguments are nested too deeply") from None
        kept = {n: copy.deepcopy(d) for n, d in fresh.items() if n not in arguments}
        return {**converted, **kept}

    return convert


def returns_of(
    function: Callable[..., Any], exclude: tuple[type, ...] = ()
) -> dict[str, JSON] | None:
    """Return the output schema that the return hint of a handler gives.

    None: there is no hint, it says nothing (None, Any), or it is made of types in
    `exclude` only. Classes there that have no schema (content blocks) also exclude the
    unions and arrays that hold one; str there excludes str, but not list[str]. Raises
    HintError if a schema can't say it.
    """
    target = _bare(function)
    hint = _hints_of(target).get("return")
    silent = (None, type(None), Any, object, typing.NoReturn, typing.Never)
    members = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    opaque = tuple(kind for kind in exclude if kind not in _PLANS)
    if hint in silent or all(member in exclude for member in members):
        return None
    if _mentions(hint, opaque, (*_UNIONS, *_ARRAYS)):
        return None
    try:
        return schema_of(hint) or None
    except HintError as error:
        where = f"{_callable_name(target)}() -> {_hint_text(hint)}"
        raise HintError(f"{where}: {error}") from None


def _bare(function: Any) -> Any:
    """Return the plain function that carries hints and docstring."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if inspect.isroutine(function):
        return function
    kind: Any = function if isinstance(function, type) else type(function)
    return kind.__init__ if kind is function else kind.__call__


def _callable_name(target: Any) -> str:
    name: str = getattr(target, "__qualname__", repr(target))
    return name.rpartition("<locals>.")[2]


def _mentions(hint: Any, wanted: tuple[type, ...], through: tuple[Any, ...]) -> bool:
    """Tell if a hint is a wanted type, or holds one inside the kinds `through`."""
    kind = typing.get_origin(hint) or hint
    if kind is typing.Annotated or kind in through:
        return any(_mentions(arg, wanted, through) for arg in typing.get_args(hint))
    return isinstance(kind, type) and issubclass(kind, wanted)


# --- Docstrings -----------------------------------------------------------------------

_DOC_MORE = r"(?:\n[ \t].*|\n$)*"  # continuation lines are indented
_DOC_NAME = r"\*{0,2}\w+"
_DOC_TYPE = r"(?:[^:\n]*[ \t])?"
# Three styles: where the parameters begin, where they end, what one of them looks like.
_DOC_STYLES = (
    (  # Google
        r"^(?:Args|Arguments|Parameters|Params):[ \t]*\n",
        r"^\S",
        rf"^({_DOC_NAME})[ \t]*(?:\(.*?\))?[ \t]*:(.*{_DOC_MORE})",
    ),
    (  # NumPy
        r"^Parameters[ \t]*\n-{3,}[ \t]*\n",
        r"^\S.*\n-{3,}[ \t]*$",
        rf"^({_DOC_NAME}(?:, *{_DOC_NAME})*)[ \t]*(?::.*)?({_DOC_MORE})",
    ),
    (  # Sphinx
        r"^(?=:(?:param|arg|keyword|type)\s)",
        r"\Z",
        rf"^:(?:param|arg|keyword)[ \t]{_DOC_TYPE}({_DOC_NAME}):(.*{_DOC_MORE})",
    ),
)


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """Split a docstring into the prose before its parameters and what it says of each.

    Reads the Google, NumPy and Sphinx forms. Sections after the parameters are left
    out: they are for people who read the source.
    """
    text = inspect.cleandoc(text or "")
    for begin, end, item in _DOC_STYLES:
        if start := re.search(begin, text, re.MULTILINE):
            rest = text[start.end() :]
            stop = re.search(end, rest, re.MULTILINE)
            block = textwrap.dedent(rest[: stop.start()] if stop else rest)
            found: dict[str, str] = {}
            for names, words in re.findall(item, block, re.MULTILINE):
                for name in names.split(","):
                    found[name.strip(" *")] = " ".join(words.split())
            return text[: start.start()].strip(), {n: t for n, t in found.items() if t}
    return text, {}


# ======================================================================================
# Appendix D  Command line and demo server
# ======================================================================================


def demo_server() -> Server:
    """Build the server that `serve` runs without FILE: one of each feature."""
    server = Server(
        "mcp_ref demo",
        __version__,
        title="Demo of mcp_ref",
        instructions="Calculator, weather (canned data), a booking that asks back.",
        ttl_ms=60_000,
    )
    _demo_tools(server)
    _demo_resources(server)
    _demo_prompts(server)
    return server


class _Weather(typing.TypedDict):
    location: str
    temperature: float
    unit: str
    conditions: str


def _demo_tools(server: Server) -> None:
    read_only = {"readOnlyHint": True, "openWorldHint": False}

    @server.tool(title="Calculator", annotations=read_only)
    async def calculator_arithmetic(
        expression: typing.Annotated[str, "Such as '2 + 3 * 4', 'sin(30)', 'sqrt(16)'"],
    ) -> str:
        """Evaluate + - * / // % **, sqrt, abs, round, log, exp, and sin, cos, tan of
        degrees."""
        return _calculate(expression)

    @server.tool(title="Current weather", annotations=read_only)
    async def weather_current(
        location: typing.Annotated[str, "City name, such as 'Paris'"],
        units: typing.Literal["metric", "imperial", "kelvin"] = "metric",
    ) -> _Weather:
        """Tell the weather of a city (canned data)."""
        city = location.strip().lower()
        if city not in _CITIES:
            known = ", ".join(map(str.title, _CITIES))
            raise ToolError(f"No data for {location!r}; there is some for {known}")
        celsius, conditions = _CITIES[city]
        factor, offset, unit = _UNITS[units]
        return {
            "location": location,
            "temperature": round(celsius * factor + offset, 2),
            "unit": unit,
            "conditions": conditions,
        }

    class Booking(NamedTuple):
        day: datetime.date
        outside: bool = False

    @server.tool(title="Book a table")
    async def table_book(ctx: Context, guests: int = 2) -> str:
        """Book a table; asks the user for the day."""
        answer = await ctx.elicit(f"Which day, for {guests} guests?", Booking)
        if not answer.accepted:
            return f"Nothing was booked ({answer.action})."
        wish: Booking = answer.value
        place = "outside" if wish.outside else "inside"
        return f"Booked for {guests} on {wish.day}, {place}."

    @server.tool(title="Count down")
    async def countdown(ctx: Context, steps: int = 5, seconds: float = 0.2) -> str:
        """Count down with progress.

        Args:
            steps: how many steps, 1 to 100
            seconds: how long each takes, up to 10
        """
        if not 1 <= steps <= 100 or not 0 <= seconds <= 10:
            raise ToolError("steps is from 1 to 100, seconds from 0 to 10")
        for step in range(steps):
            await ctx.progress(step, steps, f"{steps - step} to go")
            await asyncio.sleep(seconds)
        await ctx.progress(steps, steps, "lift-off")
        return "lift-off"


def _demo_resources(server: Server) -> None:
    @server.resource("clock://now", title="Clock", mime_type="text/plain")
    def clock(ctx: Context) -> str:
        """The server's time; whoever subscribed is told when clock_tick is called."""
        now = datetime.datetime.fromtimestamp(ctx.server.clock(), datetime.UTC)
        return now.isoformat(timespec="seconds")

    @server.tool(title="Set off the clock")
    def clock_tick() -> str:
        """Announce a change of clock://now to those who listen."""
        server.resource_updated("clock://now")
        return "announced"

    @server.resource("city://{name}", title="City", mime_type="application/json")
    def city(name: str) -> JSON:
        """What the demo knows of a city."""
        found = _CITIES.get(name.lower())
        return found and {"name": name, "celsius": found[0], "conditions": found[1]}

    server.complete("city://{name}", "name", values=sorted(_CITIES))


def _demo_prompts(server: Server) -> None:
    @server.prompt(title="Plan a day")
    def plan_day(city: str, style: str = "relaxed") -> list[Message]:
        """Ask for a plan of a day in a city.

        Args:
            city: where
            style: relaxed, busy or cheap
        """
        return [
            # half a surrogate pair is JSON, but not UTF-8
            user(resource_link(f"city://{quote(city, errors='replace')}", city)),
            user(f"Plan a {style} day in {city}."),
        ]

    server.complete("plan_day", "city", values=sorted(_CITIES))
    server.complete("plan_day", "style", values=["relaxed", "busy", "cheap"])


_CITIES = {  # city -> degrees Celsius, conditions
    "berlin": (17.0, "cloudy"),
    "london": (15.0, "rainy"),
    "new york": (22.0, "partly cloudy"),
    "paris": (18.0, "sunny"),
    "tokyo": (24.0, "clear"),
}
_UNITS = {  # units -> factor and offset from degrees Celsius, symbol
    "metric": (1.0, 0.0, "°C"),
    "imperial": (1.8, 32.0, "°F"),
    "kelvin": (1.0, 273.15, "K"),
}


def _of_degrees(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda degrees: round(function(math.radians(degrees)), 12)


_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_MEANINGS: dict[str, Any] = {
    "pi": math.pi,
    "e": math.e,
    "sqrt": math.sqrt,
    "abs": abs,
    "round": lambda value, digits=0: round(value, int(digits)),
    "log": math.log,
    "exp": math.exp,
    "sin": _of_degrees(math.sin),
    "cos": _of_degrees(math.cos),
    "tan": _of_degrees(math.tan),
}


def _calculate(expression: str) -> str:
    """Evaluate arithmetic by walking its syntax tree; nothing else has a meaning."""
    if len(expression) > 200:
        raise ToolError("The expression has over 200 characters")
    try:
        return f"{_evaluate(ast.parse(expression.strip(), mode='eval').body):.15g}"
    except (SyntaxError, ValueError, ArithmeticError, TypeError) as error:
        raise ToolError(f"Cannot evaluate {expression!r}: {error}") from None


def _evaluate(node: ast.AST) -> Any:
    match node:
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            # 9**9**9 as a whole number would fill all memory; floats cannot grow.
            return float(value)
        case ast.Name(name) if name in _MEANINGS:
            return _MEANINGS[name]
        case ast.BinOp(left, operation, right) if type(operation) in _ARITHMETIC:
            return _ARITHMETIC[type(operation)](_evaluate(left), _evaluate(right))
        case ast.UnaryOp(operation, operand) if type(operation) in _ARITHMETIC:
            return _ARITHMETIC[type(operation)](_evaluate(operand))
        case ast.Call(function, arguments, []):
            return _evaluate(function)(*map(_evaluate, arguments))
    raise ToolError("Only numbers, + - * / // % ** and the named functions are allowed")


# --- running --------------------------------------------------------------------------


class UsageError(Exception):
    """The command line cannot be carried out as it stands: exit status 2."""


def run_until_signal(main: Coroutine[Any, Any, None]) -> int:
    """Run to the end, or until SIGINT or SIGTERM cancels it; return an exit status.

    0, or 128 + the signal's number. One signal is enough, and there is no traceback.
    """
    caught: list[int] = []

    async def guarded() -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(main)

        def stop(number: int) -> None:
            caught.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            # Windows, and threads other than the main one, cannot do this.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, stop, number)
        await task

    _fill_standard_descriptors()
    try:
        asyncio.run(guarded())
    except asyncio.CancelledError:
        if not caught:
            raise
    except KeyboardInterrupt:
        caught.append(signal.SIGINT)
    return 128 + caught[0] if caught else 0


def _fill_standard_descriptors() -> None:
    """Open the null device for those of 0, 1, 2 that are closed.

    Otherwise the next thing to be opened, such as the event loop, would get the number,
    and what is written to standard output or error with it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def parse_address(address: int | str) -> tuple[str, int]:
    """Read PORT, HOST:PORT or [V6]:PORT; raises ValueError."""
    host, _, port = str(address).rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"not PORT or HOST:PORT: {address!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _announce(url: str) -> None:
    _say(f"mcp_ref: serving at {url}")


def load_server(spec: str) -> Server:
    """Import FILE.py[:NAME] and return its Server; raises UsageError.

    Without NAME the file has to have exactly one.
    """
    path, _, name = spec.rpartition(":") if ".py:" in spec else (spec, "", "")
    if not os.path.isfile(path):
        raise UsageError(f"no such file: {path}")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    # The file says `import mcp_ref`: it has to get this module, not a second copy.
    sys.modules.setdefault("mcp_ref", sys.modules[__name__])
    import runpy  # here, because only this needs it

    try:
        found = runpy.run_path(path, run_name="__mcp_ref__")
    except Exception as error:
        _log.error("running %s failed", path, exc_info=error)
        raise UsageError(f"{path}: {type(error).__name__}: {error}") from None
    candidates = [found.get(name)] if name else found.values()
    servers = {one for one in candidates if isinstance(one, Server)}
    if len(servers) == 1:
        return servers.pop()
    if servers:
        raise UsageError(f"{path} has several Servers: say FILE.py:NAME")
    raise UsageError(f"{path} has no Server" + (f" called {name}" if name else ""))


def _serve(options: Any) -> int:
    """Carry out `serve`."""
    server = load_server(options.file) if options.file else demo_server()
    if options.key_env:
        server.keys = (_environment("--key-env", options.key_env).encode(),)
    if options.http is None:
        if options.token_env or options.allow_host or options.allow_origin:
            raise UsageError("--token-env, --allow-host, --allow-origin need --http")
        return _serve_stdio(server)
    try:
        host, port = parse_address(options.http)
    except ValueError as error:
        raise UsageError(f"--http: {error}") from None
    verifier = None
    if options.token_env:
        token = _environment("--token-env", options.token_env)
        verifier = static_tokens({token: Principal("token")})
    try:
        return server.run(
            f"[{host}]:{port}",
            path=options.path,
            allowed_hosts=options.allow_host,
            allowed_origins=options.allow_origin,
            verifier=verifier,
        )
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def _serve_stdio(server: Server) -> int:
    if sys.stdin is not None and sys.stdin.isatty():
        _say("mcp_ref: serving on standard input, one JSON-RPC message per line.")
        _say("mcp_ref: for HTTP, stop this with Ctrl-C and add: --http 8000")
    status = server.run()
    # A thread that a tool left behind must not keep an orphan alive.
    _say("", end="")
    os._exit(status)


def _environment(option: str, variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise UsageError(f"{option}: the environment variable {variable} is not set")
    return value


# --- what is printed ------------------------------------------------------------------

_COLOURS = {"-->": "36", "<--": "32", "bold": "1", "dim": "2", "warn": "33"}
_CONTROLS = {
    code: f"\\x{code:02x}"
    for code in (*range(32), *range(127, 160))
    if code not in b"\t\n"
}


def _say(line: str, end: str = "\n") -> None:
    print(line, end=end, file=sys.stderr, flush=True)


def _safe(text: str) -> str:
    """Make text of a server harmless to a terminal; ESC could repaint it, or worse."""
    return text.translate(_CONTROLS)


def _print(text: str) -> None:
    print(_safe(text) if sys.stdout.isatty() else text, flush=True)


def _colour(name: str, text: str, stream: Any) -> str:
    plain = not stream.isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\x1b[{_COLOURS[name]}m{text}\x1b[0m"


def _traced(exchange: Exchange, stream: Any, brief: bool = False) -> Exchange:
    """Print every message, with its direction and the seconds since the start."""
    start = time.monotonic()

    def show(arrow: str, message: JSON) -> None:
        text = _encode_text(_brief(message) if brief else message)
        if brief and len(text) > 400:
            text = f"{text[:400]}... ({len(text)} characters)"
        line = f"{time.monotonic() - start:8.3f} {arrow} {text}"
        print(_colour(arrow, _safe(line), stream), file=stream, flush=True)

    async def traced(request: Request, send: Send) -> JSON:
        async def forward(message: JSON) -> None:
            show("<--", message)
            await send(message)

        show("-->", request_message(request.id, request.method, request.params))
        try:
            response = await exchange(request, forward)
        except asyncio.CancelledError:
            show("-->", {"cancelled": request.id})
            raise
        show("<--", response)
        return response

    return traced


def _brief(message: JSON) -> JSON:
    """Leave out of a request's _meta what the first one has shown."""
    params = message.get("params", {})
    meta = params.get("_meta", {})
    if META_CLIENT_CAPABILITIES not in meta or message["method"] == "server/discover":
        return message
    own = {key: value for key, value in meta.items() if not key.startswith(META_PREFIX)}
    return {**message, "params": {**params, "_meta": {"...": "as above", **own}}}


def _progress_line(params: JSON) -> None:
    """Show progress in one line of a terminal."""
    if sys.stderr.isatty():
        of = f" of {params['total']}" if "total" in params else ""
        line = _safe(f"{params['progress']}{of} {params.get('message', '')}")
        _say(f"\r\x1b[K{line[:70]}", end="")


def _content(reply: Reply, options: Any) -> Iterator[str]:
    """Show the text of a result, and say what else there is."""
    if reply.text:
        yield reply.text
    elif "structuredContent" in reply:
        yield _serialise(reply.structured)
    for block in reply.blocks:
        data = _binary_of(block)
        if data and options.out is None:
            kind = block.get("mimeType") or block.get("type")
            size = len(data) * 3 // 4
            _say(_safe(f"[{kind}, {size} bytes; save it with --out FILE]"))
        elif block.get("type") == "resource_link":
            yield f"[{block['uri']}]"


def _binary_of(block: JSON) -> Any:
    inner = block.get("resource", block)
    return inner.get("blob", inner.get("data"))


def _save(reply: Reply, path: str) -> None:
    """Write the first binary content, or else the text, to a file."""
    data = next(filter(None, map(_binary_of, reply.blocks)), None)
    try:
        content = base64.b64decode(data) if data else reply.text.encode()
    except binascii.Error as error:
        raise InvalidResponse(f"binary content is not Base64: {error}") from None
    with open(path, "wb") as file:
        file.write(content)


# --- questions of the server ----------------------------------------------------------


def _ask(prompt: str) -> str | None:
    """Read a line from the terminal; None without one, or at its end."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    _say(prompt, end="")
    line = sys.stdin.readline()
    return line.strip() if line else None


async def _fill_in(answers: dict[str, JSON], client: Client, params: JSON) -> JSON:
    """Answer a form: by --answer, by the terminal, or by declining."""
    # elicitation-26: MUST say which server asks; elicitation-29: SHOULD say for what
    _say(f"{_safe(client.label)} asks: {_safe(params['message'])}")
    content: dict[str, JSON] = {}
    form = params["requestedSchema"]
    for name, schema in form.get("properties", {}).items():
        given = answers.get(name)
        if given is None:
            given = _ask(_label(name, schema))
        optional = "default" in schema or name not in form.get("required", ())
        if given is None and optional:
            continue
        # elicitation-28: SHOULD be able to decline at any time
        if given in (None, "!"):
            why = "" if given else ": there is no terminal to ask at"
            _say(f"Declined{why}.")
            return "decline"
        if given != "":
            content[name] = _typed(given, schema)
    return {"action": "accept", "content": content}


def _label(name: str, schema: JSON) -> str:
    """Describe a form's field, with its choices and its default."""
    title = schema.get("title", name)
    kind = schema.get("description", schema.get("type", ""))
    inner = schema.get("items", schema)
    choices = inner.get("enum") or [
        f"{one['const']} ({one.get('title', '')})"
        for one in inner.get("oneOf", inner.get("anyOf", ()))
    ]
    of = f", one of {', '.join(map(str, choices))}" if choices else ""
    default = f" [{schema['default']}]" if "default" in schema else ""
    return _safe(f"  {title}: {kind}{of}{default} (! declines) ") + "> "


def _typed(given: JSON, schema: JSON) -> JSON:
    """Turn what was typed into what the schema says."""
    kind = schema.get("type")
    if not isinstance(given, str) or kind == "string":
        return given
    if kind == "boolean":
        return given.lower() in ("y", "yes", "true", "1", "on")
    if kind == "array":
        return [one.strip() for one in given.split(",")]
    return _decode_json(given)


async def _consent(client: Client, params: JSON) -> bool:
    """Show an address, whole, and open it only after a yes."""
    url = params["url"]
    host = urllib.parse.urlsplit(url).hostname or ""
    _say(f"{_safe(client.label)} asks you to open a page: {_safe(params['message'])}")
    # elicitation-37: MUST show all of it; elicitation-39: SHOULD highlight the domain
    _say("  " + _safe(url).replace(host, _colour("bold", host, sys.stderr), 1))
    for warning in url_warnings(url):
        _say(_colour("warn", f"  Beware: {warning}.", sys.stderr))
    # elicitation-36: MUST NOT open it without consent
    if (_ask(f"  Open {host}? [y/N] ") or "").lower() not in ("y", "yes"):
        _say("Declined.")
        return False
    # elicitation-38: the browser is another program; we see nothing of what is done
    import webbrowser  # here, because few questions need it

    webbrowser.open(url)
    return True


# --- commands -------------------------------------------------------------------------
#
#   TARGET   http://host/mcp | "command with arguments" | FILE.py
#   exit     0 done, 1 the tool said error, 2 usage, 3 the server or the network failed
#
# Most commands send one request: a function does that, and another makes the lines that
# are printed of the reply unless --json is given.


async def _send_one(
    request: Callable[[Client, Any], Awaitable[Reply]],
    lines: Callable[[Reply, Any], Iterable[str]],
    options: Any,
) -> int:
    """Carry out a command that sends one request."""
    options.given = _decode_json(getattr(options, "args", "{}"))
    if not isinstance(options.given, dict):
        raise UsageError("--args: not a JSON object")
    options.given |= _pairs(getattr(options, "pairs", ()))
    async with _client(options) as client:
        reply = await request(client, options)
    if getattr(options, "out", None) is not None:
        _save(reply, options.out)
    if options.json:
        print(json.dumps(reply, indent=2, ensure_ascii=not sys.stdout.isatty()))
    else:
        for line in lines(reply, options):
            _print(line)
    return 1 if reply.is_error else 0


def _texts(options: Any) -> dict[str, str]:
    """Return the arguments of a prompt, which can only be strings."""
    return {key: _serialise(value) for key, value in options.given.items()}


def _messages(reply: Reply, options: Any) -> Iterator[str]:
    for message in reply.get("messages", ()):
        text = Reply(messages=[message]).text or _serialise(message.get("content"))
        yield f"{message.get('role')}: {text}"


async def _inspect(client: Client, options: Any) -> Reply:
    lists = {
        "tools": client.list_tools,
        "resources": client.list_resources,
        "resourceTemplates": client.list_resource_templates,
        "prompts": client.list_prompts,
    }
    declared = client.server.get("capabilities", {})
    found = Reply(server=client.server)
    for member, listing in lists.items():
        if member.replace("resourceTemplates", "resources") in declared:
            found[member] = await listing()
    return found


def _overview(reply: Reply, options: Any) -> Iterator[str]:
    """Show a server in a few lines, and each thing that it has in one or two."""
    server, *members = reply
    info = reply[server].server_info
    yield f"{info.get('title') or info.get('name', '?')} {info.get('version', '')}"
    yield f"  speaks {', '.join(reply[server]['supportedVersions'])}"
    yield f"  {reply[server].get('instructions', '')}".rstrip()
    for member in members:
        for one in reply[member]:
            name = one.get("uri") or one.get("uriTemplate") or _with_parameters(one)
            yield f"{member.removesuffix('s'):16} {name}"
            about = one.get("description") or one.get("title")
            if about:
                yield f"{'':17}{about.splitlines()[0]}"


def _with_parameters(one: JSON) -> str:
    """Name a tool or a prompt with its arguments; optional ones of tools in []."""
    names = [argument["name"] for argument in one.get("arguments", ())]
    schema = one.get("inputSchema", {})
    for name in schema.get("properties", ()):
        names.append(name if name in schema.get("required", ()) else f"[{name}]")
    return f"{one['name']}({', '.join(names)})"


async def _follow(options: Any) -> int:
    """Carry out `listen`."""
    wanted = {
        "toolsListChanged": options.tools,
        "promptsListChanged": options.prompts,
        "resourcesListChanged": options.resources,
        "resourceSubscriptions": options.uris,
    }
    if not any(wanted.values()):
        wanted = dict.fromkeys(list(wanted)[:3], True)
    filters = {name: value for name, value in wanted.items() if value}
    seen = 0
    async with (
        _client(options) as client,
        client.listen(filters=filters, relisten=True) as changes,
    ):
        honoured = _safe(_encode_text(changes.honoured))
        _say(f"listening for {honoured}; Ctrl-C ends it")
        async for method, params in changes:
            if options.json:
                print(_encode_json({"method": method, "params": params}), flush=True)
            else:
                _print(f"{method} {params.get('uri', '')}".strip())
            seen += 1
            if seen == options.count:
                break
    return 0


def _client(options: Any) -> Client:
    """Make the client for a command's options."""
    headers = {}
    for text in options.header:
        name, colon, value = text.partition(":")
        if not colon:
            raise UsageError(f"--header: not NAME:VALUE: {text!r}")
        headers[name.strip()] = value.strip()
    target = _target(options.target)
    client = Client(
        StdioClient(target, on_stderr=_forward) if isinstance(target, list) else target,
        on_elicit=functools.partial(_fill_in, _pairs(options.answer)),
        on_url=_consent,
        timeout=options.timeout,
        headers=headers,
        on_progress=_progress_line,
        log_level="info",
        on_log=lambda params: _say(_safe(f"{params['level']}: {params['data']}")),
    )
    if options.trace:
        client.wrap(functools.partial(_traced, stream=sys.stderr))
    return client


def _forward(data: bytes) -> None:
    """Pass on what a server writes to stderr."""
    _say(data.decode("utf-8", "replace"), end="")


def _target(text: str) -> Any:
    """Return the URL, or the command as a list."""
    if text.startswith(("http://", "https://")):
        return text
    if text.endswith(".py") and os.path.isfile(text):
        return [sys.executable, text]
    return shlex.split(text) or [text]


def _pairs(pairs: Iterable[str]) -> dict[str, JSON]:
    """Read key=text and key:=json; raises UsageError."""
    found: dict[str, JSON] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip(":"):
            raise UsageError(f"not key=text or key:=json: {pair!r}")
        try:
            found[key.removesuffix(":")] = (
                _decode_json(value) if key.endswith(":") else value
            )
        except ValueError as error:
            raise UsageError(f"{pair!r}: {error}") from None
    return found


# --- tour -----------------------------------------------------------------------------


async def _tour(options: Any) -> int:
    """Carry out `tour`: the demo server as a child process, and then over HTTP."""
    if options.plain:
        os.environ["NO_COLOR"] = "1"
    step = functools.partial(_tour_step, pause=not options.plain)
    here = [sys.executable, os.path.abspath(__file__), "serve"]
    async with _tour_client(here) as client:
        await _tour_stdio(client, step)
    process = await asyncio.create_subprocess_exec(
        *here, "--http", "127.0.0.1:0", stderr=asyncio.subprocess.PIPE
    )
    try:
        line = await typing.cast(asyncio.StreamReader, process.stderr).readline()
        async with _tour_client(line.decode().split()[-1]) as client:
            client.wrap(functools.partial(_showing_headers, client._transport))
            await _tour_http(client, step)
    finally:
        process.terminate()
        await process.wait()
    print("\nThat was all of it. Next: python mcp_ref.py inspect FILE.py")
    return 0


def _tour_client(target: Any) -> Client:
    client = Client(target, on_elicit=_tour_answer, discover=False)
    client.wrap(functools.partial(_traced, stream=sys.stdout, brief=True))
    return client


def _tour_step(sentence: str, pause: bool) -> None:
    print(f"\n{_colour('bold', sentence, sys.stdout)}", flush=True)
    if pause and sys.stdout.isatty():
        _ask("  [Enter] ")


async def _tour_stdio(client: Client, step: Callable[[str], None]) -> None:
    step(
        "1. Each request stands alone: its _meta says which revision we speak and what "
        "we can do. server/discover asks the same of the server."
    )
    await client.discover()
    step("2. Which tools are there?")
    await client.list_tools()
    step(
        "3. Call one. The result comes as text and, checked against a schema, as data."
    )
    await client.call_tool("weather_current", {"location": "Paris"})
    step("4. A tool that fails says so in its result, for the model to read.")
    await client.call_tool("weather_current", {"location": "Atlantis"})
    step("5. A progressToken in the request asks for progress while the tool works.")
    await _tour_countdown(client, 3)
    step("6. Servers never send requests. One that needs input answers input_required.")
    await client.call_tool("table_book", {"guests": 2})
    step(
        "7. Listening is a request that stays open: an acknowledgement, then changes. "
        "We end it by cancelling."
    )
    async with client.listen(resources=["clock://now"]) as changes:
        await client.call_tool("clock_tick")
        await anext(changes)


async def _tour_http(client: Client, step: Callable[[str], None]) -> None:
    step(
        "8. The same over HTTP: one POST per request. Headers repeat what proxies want "
        "to know, and must agree with the body."
    )
    await client.call_tool("weather_current", {"location": "Tokyo"})
    step("9. With progress, the answer is a stream of server-sent events.")
    await _tour_countdown(client, 2)
    step("10. An unknown method is an error, and a status that proxies see.")
    try:
        await client.request("no/such/method")
    except RemoteError as error:
        print(f"{'':9}HTTP status {error.status}")


async def _tour_countdown(client: Client, steps: int) -> None:
    arguments = {"steps": steps, "seconds": 0.1}
    await client.call_tool("countdown", arguments, on_progress=lambda params: None)


async def _tour_answer(client: Client, params: JSON) -> JSON:
    _tour_step(
        "The answer is a question. We fill in the form, and call again with the answer "
        "and the server's sealed state:",
        pause=False,
    )
    content = {"day": "2026-12-24", "outside": False}
    return {"action": "accept", "content": content}


def _showing_headers(transport: Any, exchange: Exchange) -> Exchange:
    async def shown(request: Request, send: Send) -> JSON:
        head = transport._head(transport._path, request, 0).decode("ascii")
        for line in head.splitlines():
            if line.startswith(("POST", "M")):
                print(_colour("dim", f"{'':9}{line}", sys.stdout))
        return await exchange(request, send)

    return shown


# --- command line ---------------------------------------------------------------------

_SWITCH: dict[str, Any] = {"action": "store_true"}
_REPEATED: dict[str, Any] = {"action": "append", "default": []}
_ALL_LEFT: dict[str, Any] = {"nargs": "*"}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "file": {
        "nargs": "?",
        "metavar": "FILE.py[:NAME]",
        "help": "default: the demo server",
    },
    "--http": {
        "metavar": "[HOST:]PORT",
        "help": "serve over HTTP instead of stdio",
    },
    "--path": {
        "default": "/mcp",
        "help": "path of the MCP endpoint (default: /mcp)",
    },
    "--allow-host": _REPEATED
    | {
        "metavar": "HOST",
        "help": "accept this Host header besides those of this machine; may be "
        "repeated",
    },
    "--allow-origin": _REPEATED
    | {
        "metavar": "ORIGIN",
        "help": "accept browsers at this origin, such as https://app.example",
    },
    "--token-env": {
        "metavar": "VAR",
        "help": "HTTP: demand the bearer token that the environment variable VAR holds",
    },
    "--key-env": {
        "metavar": "VAR",
        "help": "sign requestState and cursors with what VAR holds, so that several "
        "processes can serve the same clients",
    },
    "target": {"metavar": "TARGET", "help": "URL, command, FILE.py"},
    "--json": _SWITCH | {"help": "print the result as JSON"},
    "--trace": _SWITCH | {"help": "print every message to stderr"},
    "--timeout": {"type": float, "default": CALL_TIMEOUT, "metavar": "SECONDS"},
    "--header": _REPEATED | {"metavar": "NAME:VALUE", "help": "HTTP only"},
    "--answer": _REPEATED
    | {
        "metavar": "KEY=VALUE",
        "help": "answer a question of the server; may be repeated",
    },
    "tool": {"metavar": "TOOL"},
    "--args": {"metavar": "JSON", "default": "{}", "help": "all arguments at once"},
    "name": {"metavar": "NAME"},
    "uri": {"metavar": "URI"},
    "--out": {"metavar": "FILE", "help": "write binary content"},
    "ref": {"metavar": "REF"},
    "argument": {"metavar": "ARGUMENT"},
    "value": {"metavar": "VALUE"},
    "pairs": _ALL_LEFT | {"metavar": "KEY=VALUE", "help": "key=text or key:=json"},
    "--tools": _SWITCH,
    "--prompts": _SWITCH,
    "--resources": _SWITCH,
    "uris": _ALL_LEFT | {"metavar": "URI"},
    "--count": {"type": int, "help": "stop after so many"},
    "--plain": _SWITCH | {"help": "no colours, no pauses"},
}
_COMMON = "target --json --trace --timeout --header --answer"
_COMMANDS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "serve": (
        "serve FILE.py or the built-in demo, on stdio or over HTTP",
        "file --http --path --allow-host --allow-origin --token-env --key-env",
        _serve,
    ),
    "inspect": (
        "show what a server is and has",
        _COMMON,
        functools.partial(_send_one, _inspect, _overview),
    ),
    "call": (
        "call a tool",
        f"{_COMMON} tool --args --out pairs",
        functools.partial(
            _send_one, lambda client, o: client.call_tool(o.tool, o.given), _content
        ),
    ),
    "read": (
        "read a resource",
        f"{_COMMON} uri --out",
        functools.partial(
            _send_one, lambda client, o: client.read_resource(o.uri), _content
        ),
    ),
    "prompt": (
        "get a prompt",
        f"{_COMMON} name pairs",
        functools.partial(
            _send_one, lambda client, o: client.get_prompt(o.name, _texts(o)), _messages
        ),
    ),
    "complete": (
        "complete an argument of a prompt or URI template",
        f"{_COMMON} ref argument value pairs",
        functools.partial(
            _send_one,
            lambda client, o: client.complete(o.ref, o.argument, o.value, _texts(o)),
            lambda reply, o: reply.get("completion", {}).get("values", ()),
        ),
    ),
    "listen": (
        "print changes as they are announced",
        f"{_COMMON} --tools --prompts --resources uris --count",
        _follow,
    ),
    "tour": ("see the protocol at work, in a minute", "--plain", _tour),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status.

    0 done, 1 the tool said error, 2 usage, 3 the server or the network failed.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        # Hosts wait for these two, and argparse would take longer than the demo.
        match words:
            case ["serve"]:
                return _serve_stdio(demo_server())
            case ["serve", file] if not file.startswith("-"):
                return _serve_stdio(load_server(file))
        options = _options_of(words)
        outcome = options.run(options)
        return outcome if isinstance(outcome, int) else _run(outcome)
    except UsageError as error:
        _say(f"mcp_ref: {error}")
        return 2


def _options_of(words: list[str]) -> Any:
    """Return the options of a command, and as `run` the function that takes them."""
    import argparse  # here, because most programs need no command line

    parser = argparse.ArgumentParser(
        prog="mcp_ref.py",
        description="The Model Context Protocol, revision 2026-07-28, in one file.",
    )
    parser.add_argument("--version", action="version", version=f"mcp_ref {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    known = words[:1] if words and words[0] in _COMMANDS else _COMMANDS
    for name in known:
        summary, members, run = _COMMANDS[name]
        command = subparsers.add_parser(name, help=summary)
        command.set_defaults(run=run)
        for member in members.split():
            command.add_argument(member, **_ARGUMENTS[member])
        if name == "serve":
            how = "Serve on stdio (for a host's configuration), or over HTTP."
            command.description = how
    options, rest = parser.parse_known_args(words)
    # What stands behind an option is part of the list too; argparse leaves it over.
    last = getattr(options, "pairs", getattr(options, "uris", None))
    unknown = [word for word in rest if last is None or word.startswith("-")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if last is not None:
        last += rest
    return options


def _run(work: Coroutine[Any, Any, int]) -> int:
    """Run a command; turn what it raises into a line on stderr and an exit status."""
    # Not asyncio's own handler, under which input() would go on waiting.
    interrupt = functools.partial(signal.default_int_handler)
    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        return asyncio.run(work)
    except RemoteError as error:
        data = "" if error.data is None else f" {json.dumps(error.data)}"
        problem = f"error {error.code} from the server: {error}{data}"
    except (TransportError, TimeoutError, SchemaError) as error:
        problem = str(error)
    except (LookupError, TypeError, AttributeError) as error:
        # The commands read answers as the schema has them; a server may differ.
        problem = f"unusable answer: {error!r}"
    except ValueError as error:
        raise UsageError(str(error)) from error
    except BrokenPipeError:  # such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, previous)
    _say(f"mcp_ref: {_safe(problem)}")
    return 3


def _main_after_script(*_: object) -> None:
    """Give back what compiling the script took, then run the command line."""
    sys.excepthook = sys.__excepthook__
    with contextlib.suppress(ImportError, OSError, TypeError, AttributeError):
        importlib.import_module("ctypes").CDLL(None).malloc_trim(0)  # GNU libc's
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        sys.__excepthook__(*sys.exc_info())
        sys.exit(1)


# CPython keeps the syntax tree of a script until its last statement is over: 20 MiB for
# as long as this server would run. So the script ends here, by an exception, and main()
# is the hook that handles it. Under a debugger, a profiler or `-m` nothing is kept.
if __name__ == "__main__":
    if sys._getframe().f_back is not None:
        sys.exit(main())
    sys.excepthook = _main_after_script
    raise RuntimeError("the script is over, main() begins")
