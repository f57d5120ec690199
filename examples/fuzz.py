#!/usr/bin/env python3
"""Throw mutated requests at both transports of mcp_ref and see that nothing breaks.

    python examples/fuzz.py [--seed N] [--http N] [--stdio N] [--only N]

HTTP: each case is a byte stream of one to three requests, mutated as JSON, as HTTP
grammar and as bytes. A second reader of HTTP/1.1, strict and written apart from the
server's, says what the stream holds. Then the server must answer just those requests,
each with well-formed HTTP, a defined code and the right id; refuse and close where the
reader refuses; run a tool only for what is a request and never for bytes of a body; and
answer a good server/discover wherever the connection stayed open. Most cases are fed to
the protocol class in memory, every 20th goes through a real socket.

stdio: mutated lines for the demo server in a process of its own. Every line that asks
for an answer gets one, with its id; every line that is no message gets an error; a good
server/discover after each batch is answered; after the end of file the process exits
with status 0.

Nowhere may there be a traceback, an internal error, an exception in the event loop, or
something left behind. A failure is printed with seed, number and bytes, and
`--only NUMBER` runs that case again. Exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import copy
import functools
import gc
import json
import logging
import pathlib
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import mcp_ref  # noqa: E402
from mcp_ref import Context, HttpLimits, Server, ToolError, elicitation  # noqa: E402

SEED = 20260728
LIMITS = HttpLimits(
    request_line=1024,
    header_bytes=4096,
    header_count=40,
    body_bytes=100_000,
    chunk_overhead=1024,
)
DRAINED = 65536  # bytes of a refused body that the server may read on
STEPS = 1000  # rounds of the event loop in which a request has to be answered
SECONDS = 10.0  # the same for what goes through sockets and pipes
ENOUGH = 20  # failures, after which it is no use to go on
SOCKET_SHARE = 20  # every so many cases go through a real socket
GUARDED_SHARE = 7  # every so many cases meet a server that demands CREDENTIALS
CREDENTIALS = b"Bearer fuzz-secret"
BATCH = 50  # stdio lines between two good requests
TRACEBACK = re.compile(rb'Traceback \(most recent|File \\?"[^"]+\\?", line \d')
STATUSES = frozenset(
    {
        200,
        202,
        204,
        400,
        401,
        403,
        404,
        405,
        406,
        413,
        414,
        415,
        417,
        431,
        501,
        503,
        505,
    }
)
CODES = {code: mcp_ref.HTTP_STATUS[code] for code in mcp_ref.HTTP_STATUS if code < 0}


class Failure(Exception):
    """What the server did is wrong; the text says what and where."""


class Unknown(Exception):
    """What the server did cannot be seen, and it is not the server's fault."""


# --- the server under test ------------------------------------------------------------


def build(executed: list[str]) -> Server:
    """Build a server with one of each feature; `executed` lists the calls of `mark`.

    All handlers are `async def`, so that rounds of the event loop can be counted.
    """
    server = Server("fuzz", "1.0", page_size=3)

    @server.tool
    async def mark(token: str) -> str:
        """Leave a mark: the tool that a smuggled request would call."""
        executed.append(token)
        return token

    @server.tool
    async def steps(ctx: Context, count: int = 3) -> str:
        """Report progress."""
        for step in range(min(count, 5)):
            await ctx.progress(step, count, "step")
            await ctx.log("info", {"step": step})
        return "done"

    @server.tool
    async def typed(
        number: float,
        whole: Annotated[int, "any integer"] = 1,
        kind: Literal["a", "b"] = "a",
        names: list[str] | None = None,
        table: dict[str, int] | None = None,
        anything: Any = None,
    ) -> dict[str, Any]:
        """Take arguments of many types and return them; 1e400 is infinite to Python."""
        if "Infinity" in json.dumps([number, anything]):
            raise ToolError("not finite")
        return {
            "number": number,
            "whole": whole,
            "kind": kind,
            "names": names,
            "table": table,
            "anything": anything,
        }

    @server.tool
    async def ask(ctx: Context) -> str:
        """Ask the user."""
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        answers = await ctx.ask(who=elicitation("Who?", schema))
        return str(answers["who"].action)

    @server.resource("note://{name}", mime_type="text/plain")
    async def note(name: str) -> str:
        """A note."""
        return name

    @server.prompt
    async def greet(name: str, times: int = 1) -> str:
        """Greet."""
        return f"hello {name}, {times} times"

    @server.complete("greet", "name")
    async def names(value: str) -> list[str]:
        return [value + "a", value + "b"]

    return server


# --- good messages --------------------------------------------------------------------

META = {
    mcp_ref.META_PROTOCOL_VERSION: mcp_ref.PROTOCOL_VERSION,
    mcp_ref.META_CLIENT_CAPABILITIES: {"elicitation": {}},
}
MORE_META = {
    mcp_ref.META_CLIENT_INFO: {"name": "fuzz", "version": "1"},
    mcp_ref.META_LOG_LEVEL: "debug",
    "progressToken": "p",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "com.example/key": {"a": [1, 2]},
}
TYPED = {"number": 1.5, "whole": 7, "kind": "b", "names": ["x"], "table": {"k": 1}}
HTTP_CALLS = {  # name of a tool -> its arguments
    "mark": {"token": "TOKEN"},
    "steps": {"count": 3},
    "typed": {**TYPED, "anything": [1, {"a": None}]},
    "ask": {},
    "nothing": {},
}
STDIO_CALLS: dict[str, Any] = {
    "calculator_arithmetic": {"expression": "2 + 3 * sin(30)"},
    "weather_current": {"location": "Paris", "units": "kelvin"},
    "table_book": {"guests": 3},
    "countdown": {"steps": 2, "seconds": 0},
    "nothing": {},
}
OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("server/discover", {}),
    ("tools/list", {"cursor": "bm8.bm8="}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "note://a%20b"}),
    ("resources/read", {"uri": "city://paris"}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "greet", "arguments": {"name": "x", "times": "2"}}),
    ("prompts/get", {"name": "plan_day", "arguments": {"city": "x"}}),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "greet"},
            "argument": {"name": "name", "value": "x"},
            "context": {"arguments": {"times": "2"}},
        },
    ),
    (
        "subscriptions/listen",
        {
            "notifications": {
                "toolsListChanged": True,
                "resourceSubscriptions": ["note://a"],
            }
        },
    ),
    ("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}),
)


def good_message(rng: random.Random, id: Any, calls: dict[str, Any]) -> dict[str, Any]:
    """Build a good request, or now and then a notification."""
    method, params = "tools/call", {}
    if rng.random() < 0.6:
        name = rng.choice([*calls, *list(calls)[:1] * 3])
        params = {"name": name, "arguments": calls[name]}
    else:
        method, params = rng.choice(OTHERS)
    params = copy.deepcopy(params)
    meta: dict[str, Any] = copy.deepcopy(META)
    meta |= {key: MORE_META[key] for key in MORE_META if rng.random() < 0.3}
    if rng.random() < 0.05:
        params |= {"inputResponses": {"who": {"action": "accept", "content": {}}}}
        params |= {"requestState": "e30=.bm8="}
    message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    if rng.random() < 0.05:
        message["method"] = "notifications/cancelled"
        message["params"] = params = {"requestId": 5, "reason": "why not"}
        del message["id"]
    params["_meta"] = meta
    return message


def discover(id: str) -> dict[str, Any]:
    """Build the good request that shows that the server still works."""
    params = {"_meta": META}
    return {"jsonrpc": "2.0", "id": id, "method": "server/discover", "params": params}


# --- mutation of JSON -----------------------------------------------------------------

# fmt: off
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.5, 2**31, 2**53 + 1, -(2**63), 10**400, 1e308, "",
    "x", " ", "a\0b", "line\nbreak", "\u2028", "\u00e9\u4e16", "x" * 5000, "0", "true",
    "null", [], {}, [[]], {"": ""}, {"a": {"b": {"c": 1}}}, ["a", 1, None],
    list(range(300)), "2026-07-28", "2025-11-25", "tools/call", "ref/resource",
    "note://\x7f", "../../etc", "note://%ff%00", "=?base64?eA==?=",
    "io.modelcontextprotocol/", "e30=.e30=",
)
# fmt: on
# fmt: off
# What json.dumps() cannot write; each stands where the marker stood.
RAW: tuple[bytes, ...] = (
    b"NaN", b"Infinity", b"-Infinity", b"-0", b"-0.0", b"1e400", b"1E-400", b"1" * 4400,
    b"0." + b"3" * 5000, b"1e99999999999", b"01", b"+1", b".5", b"1.", b"0x10", b"nul",
    b"'x'", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\ud83d\\ude00"', b'"\xff"',
    b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\x00"', b'"\\u0000"', b'"\\x"', b'"\t"',
    b'"\r"', b'"a\nb"', b'"', b"[", b"{", b"}", b"[1,]", b'{"a":1,"a":2}', b'{"a":1,}',
    b"/**/1", b"[" * 300 + b"]" * 300, b'{"a":' * 300 + b"1" + b"}" * 300, b"[" * 20000,
    b"[" * 20000 + b"]" * 20000, b'{"a":' * 6000 + b"1" + b"}" * 6000, b"", b"1 2",
)
# fmt: on
MARKER = "@raw@"
CODECS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7", "latin-1")


SPACED = (" ,\t", "\n:\r ")


def mutate_json(
    rng: random.Random,
    message: Any,
    times: int,
    separators: tuple[tuple[str, str], ...] = ((",", ":"), (", ", ": "), SPACED),
) -> tuple[Any, bytes]:
    """Mutate members; return the message as far as it is one, and its bytes."""
    message = copy.deepcopy(message)
    raw: list[bytes] = []
    for _ in range(times):
        message = _mutate_member(rng, message, raw)
    ascii = rng.random() < 0.7
    text = json.dumps(message, separators=rng.choice(separators), ensure_ascii=ascii)
    data = text.encode("utf-8", "surrogatepass")
    for one in raw:
        data = data.replace(f'"{MARKER}"'.encode(), one, 1)
    if rng.random() < 0.02 * times:
        data = data.decode("utf-8", "replace").encode(rng.choice(CODECS), "replace")
    if rng.random() < 0.02 * times:
        data = rng.choice(
            (b"[%b]", b"%b%b" % (data, b"%b"), b"%b x", b"\xef\xbb\xbf%b")
        ).replace(b"%b", data)
    return message, data


def _mutate_member(rng: random.Random, message: Any, raw: list[bytes]) -> Any:
    places = list(_places(message))
    if not places:
        return rng.choice(VALUES)
    parent, key = rng.choice(places)
    action = rng.random()
    if action < 0.45:
        parent[key] = copy.deepcopy(rng.choice(VALUES))
    elif action < 0.65:
        parent[key] = MARKER
        raw.append(rng.choice(RAW))
    elif action < 0.75:
        del parent[key]
    elif action < 0.8:
        parent[key] = [parent[key]]
    elif action < 0.85:
        parent[key] = str(parent[key])[:50]
    elif isinstance(parent, dict):
        new = rng.choice(
            (str(key).upper(), f"{key} ", "", "__proto__", "\0", "_meta", "id")
        )
        parent[new] = parent[key] if rng.random() < 0.5 else parent.pop(key)
    else:
        parent.append(copy.deepcopy(parent[key]))
    return message


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """List all (container, key) of a JSON value."""
    items: Any = ()
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value[:5]))
    for key, inner in items:
        yield value, key
        yield from _places(inner)


# --- mutation of HTTP -----------------------------------------------------------------


@dataclass
class Draft:
    """A request before it becomes bytes."""

    lines: list[bytes]
    """The header fields."""
    body: bytes
    method: bytes = b"POST"
    target: bytes = b"/mcp"
    version: bytes = b"HTTP/1.1"
    end: bytes = b"\r\n"
    framed: bool = False
    """The body is in its final form, and its length is among the fields."""
    missing: int = 0
    """Bytes at the end that are never sent."""

    def render(self) -> bytes:
        """Return the bytes."""
        if not self.framed:
            self.lines.append(b"Content-Length: %d" % len(self.body))
        first = b" ".join((self.method, self.target, self.version))
        data = self.end.join((first, *self.lines, b"", b"")) + self.body
        return data[: len(data) - self.missing] if self.missing else data

    def put(self, name: bytes, *values: bytes) -> None:
        """Replace a field by one line per value."""
        self.lines = [
            one for one in self.lines if not one.lower().startswith(name + b":")
        ]
        self.lines += [name + b": " + value for value in values]

    def chunk(self, *sizes: int, size_line: Callable[[bytes], bytes] = bytes) -> None:
        """Frame the body in chunks of these sizes, the last takes the rest."""
        pieces, rest = [], self.body
        for size in sizes:
            pieces.append(rest[:size])
            rest = rest[size:]
        chunks = [
            b"%b\r\n%b\r\n" % (size_line(b"%x" % len(p)), p)
            for p in (*pieces, rest)
            if p
        ]
        self.body = b"".join(chunks) + b"0\r\n\r\n"
        self.lines.append(b"Transfer-Encoding: chunked")
        self.framed = True


def draft_of(message: Any, data: bytes, host: bytes = b"127.0.0.1") -> Draft:
    """Frame a message, with the header fields that mirror it."""
    lines = [b"Host: " + host, b"Content-Type: application/json"]
    lines.append(b"Accept: application/json, text/event-stream")
    message = message if isinstance(message, dict) else {}
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    meta = params.get("_meta")
    version = (
        meta.get(mcp_ref.META_PROTOCOL_VERSION) if isinstance(meta, dict) else None
    )
    name = params.get(mcp_ref.MIRRORED_NAMES.get(str(message.get("method")), ""))
    mirrored = {
        "MCP-Protocol-Version": version,
        "Mcp-Method": message.get("method"),
        "Mcp-Name": name,
    }
    for header, value in mirrored.items():
        if isinstance(value, str):
            text = mcp_ref.encode_header_value(value)
            lines.append(f"{header}: {text}".encode())
    return Draft(lines, data)


def smuggled(rng: random.Random, token: str) -> bytes:
    """Return a whole good request; it must never run where it stands in a body."""
    params = {"name": "mark", "arguments": {"token": token}, "_meta": META}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    data = draft_of(message, json.dumps(message).encode()).render()
    return rng.choice((b"", b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"{}\r\n")) + data


# fmt: off
LENGTHS = (
    b"+20", b"2_0", b"0x14", b"-1", b"", b"20, 20", b"\xb2\xb3", b"20abc", b"1e1",
    b"9" * 20, b"9" * 5000, b"20 ", b"\t20", b"2 0", b"0", b"00000000000000000000",
    b"20;20", "\uff12\uff10".encode(), b"65537", b"100001",
)
CODINGS = (
    b"gzip", b"chunked, identity", b"identity", b"Chunked", b"chunked ", b"xchunked",
    b"\x0bchunked", b"chunked;q=1", b"chunked, chunked", b"", b"\tchunked",
    b"chunked\x00", b"gzip, chunked", b'"chunked"',
)
SIZES = (
    b"0x5", b"-5", b"+5", b"5g", b"", b" ", b"5 5", b"5_0", b"0" * 17 + b"5", b"f" * 16,
    b"ffffffffffffffffff", b"5\x00", b"\xb5", b"0", b"00", b"7fffffff",
)
EXTENSIONS = (
    b";a=b", b" ; a", b';a="b\r\nc"', b";" + b"x" * 1100, b";\x00", b";\n", b"\t;",
    b" ", b";a=\xff",
)
METHODS = (
    b"GET", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"post", b"CONNECT", b"PO ST", b"",
    b"\x00", b"P" * 1500, b"PRI", b"POST\t", b" POST", b"TRACE", b"P\xd6ST", b"{}",
)
TARGETS = (
    b"*", b"http://127.0.0.1/mcp", b"/mcp/", b"/other", b"/mcp?access_token=x",
    b"//mcp", b"/%6dcp", b"/mcp#x", b"/" + b"a" * 2000, b"", b"/mcp /mcp", b"/\x00",
    b"/mcp?x=1", b"127.0.0.1:80", b"/.well-known/oauth-protected-resource", b"\xff",
    b"/mcp HTTP/1.1\r\nX-Injected: yes\r\nX:",
)
VERSIONS = (
    b"HTTP/1.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/1", b"", b"HTTP/1.1.1",
    b"http/1.1", b"HTTP/1.1 ", b"HTTP/11.1", b"HTTP/-1.1", b"HTTP/\xb9.1", b"ICY/1.1",
)
FIELDS: dict[bytes, tuple[bytes, ...]] = {
    b"host": (
        b"", b"evil.example", b"127.0.0.1:99999", b"localhost", b"127.0.0.1, x",
        b"[::1", b"127.0.0.1\x00", b"user@127.0.0.1", b"[::1]:1", b"127.0.0.1/",
        b"\xff",
    ),
    b"content-type": (
        b"", b"text/plain", b"application/json; charset=utf-16", b";",
        b"application/json;charset=\"UTF-8\"", b"APPLICATION/JSON", b"a/b\xff",
    ),
    b"content-encoding": (b"gzip", b"identity", b"", b"br, gzip"),
    b"expect": (b"100-continue", b"200-ok", b"", b"100-Continue"),
    b"connection": (
        b"close", b"keep-alive", b"Close, TE", b"upgrade", b"content-length", b"",
    ),
    b"accept": (
        b"application/json", b"text/event-stream", b"*/*;q=0", b"", b";;,,;q=", b"x/y",
        b"application/json;q=0, text/event-stream", b"*/*", b"\xff\xfe",
    ),
    b"origin": (
        b"null", b"https://evil.example", b"http://localhost:5", b"", b"http://[::1]",
    ),
    b"upgrade": (b"h2c", b"websocket"),
    b"authorization": (
        b"Bearer x", b"Basic \xff", b"", b"Bearer " + b"y" * 900, CREDENTIALS,
        CREDENTIALS[:-1], CREDENTIALS + b" ", b"Bearer",
    ),
    b"cookie": (b"a=b",),
    b"mcp-protocol-version": (b"2025-11-25", b"", b"2026-07-28 ", b"\xff", b"1" * 300),
    b"mcp-method": (b"tools/list", b"TOOLS/CALL", b"", b"\xff", b"=?base64?eA==?="),
    b"mcp-name": (b"", b"=?base64?!!?=", b"=?base64?/w==?=", b"other", b"\xe9"),
    b"mcp-param-x": (b"1", b"=?base64?", b"\xff"),
    b"x-forwarded-host": (b"evil.example",),
}
BREAKS = (
    b"\n", b"\r", b"\r\r\n", b"\x00", b"\x0b", b"\x0c", b"\x7f", b"\x1c", b"\x85",
    b"\t", b" ", b"\r\n ", b"\r\n\t", b"\n\n", b"\r\n\r\n", b":", b"\xff", b"\x08",
)
# fmt: on


def _odd_length(rng: random.Random, draft: Draft) -> None:
    draft.put(b"content-length", rng.choice(LENGTHS))
    draft.framed = True


def _wrong_length(rng: random.Random, draft: Draft) -> None:
    size = len(draft.body)
    wrong = rng.choice(
        (size - 1, size + 1, size // 2, 0, size + 70, size * 3, size - 2)
    )
    draft.put(b"content-length", b"%d" % max(0, wrong))
    draft.framed = True


def _two_lengths(rng: random.Random, draft: Draft) -> None:
    right = b"%d" % len(draft.body)
    others = (right, b"0", b"5", right + b"0", b"")
    draft.put(b"content-length", right, rng.choice(others))
    draft.framed = True


def _length_and_chunks(rng: random.Random, draft: Draft) -> None:
    length = rng.choice((len(draft.body), 0, 5))
    draft.chunk(rng.randrange(1, 40))
    draft.lines.insert(rng.randrange(len(draft.lines)), b"Content-Length: %d" % length)


def _odd_coding(rng: random.Random, draft: Draft) -> None:
    if not draft.framed:
        draft.chunk(rng.randrange(1, 40))
    draft.put(b"transfer-encoding", *rng.choices(CODINGS, k=rng.choice((1, 1, 1, 2))))


def _chunked(rng: random.Random, draft: Draft) -> None:
    if draft.framed:
        return
    draft.chunk(*(rng.randrange(1, 200) for _ in range(rng.randrange(6))))


def _odd_chunks(rng: random.Random, draft: Draft) -> None:
    """Spoil one of: a size line, an extension, a line end, the trailers, the end."""
    if draft.framed:
        return
    spoilt, extension, at = rng.choice(SIZES), rng.choice(EXTENSIONS), rng.randrange(2)
    choice = rng.randrange(6)
    count = iter(range(100))

    def size_line(size: bytes) -> bytes:
        if next(count) != at or choice > 1:
            return size.upper() if at else size
        return spoilt if choice == 0 else size + extension

    draft.chunk(rng.randrange(1, 60), size_line=size_line)
    if choice == 2:
        draft.body = draft.body.replace(b"\r\n", rng.choice((b"\n", b"\r", b"")), 1)
    elif choice == 3:
        trailers = (
            b"X: y\r\n",
            b"Content-Length: 3\r\n",
            b"bad\r\n",
            b" x\r\n",
            b"a:\n\r\n",
            b"X: " + b"y" * 1100 + b"\r\n",
            b"Host: x\r\n",
            b"X:\x00\r\n",
        )
        draft.body = draft.body[:-2] + rng.choice(trailers) + b"\r\n"
    elif choice == 4:
        draft.body = draft.body[: -rng.randrange(1, 6)]
    elif choice == 5:
        end = rng.choice((b"x\r\n0", b"xy0", b"\r\r\n0", b"\n\n0", b"0", b"\r\n\r\n0"))
        draft.body = draft.body.replace(b"\r\n0\r\n", end + b"\r\n")


def _old_chunks(rng: random.Random, draft: Draft) -> None:
    """Send chunks with HTTP/1.0, which has none."""
    draft.version = b"HTTP/1.0"
    _chunked(rng, draft)


def _odd_method(rng: random.Random, draft: Draft) -> None:
    draft.method = rng.choice(METHODS)


def _odd_target(rng: random.Random, draft: Draft) -> None:
    draft.target = rng.choice(TARGETS)


def _odd_version(rng: random.Random, draft: Draft) -> None:
    draft.version = rng.choice(VERSIONS)


def _odd_field(rng: random.Random, draft: Draft) -> None:
    name = rng.choice(list(FIELDS))
    draft.put(name, rng.choice(FIELDS[name]))


def _two_fields(rng: random.Random, draft: Draft) -> None:
    line = rng.choice(draft.lines)
    if rng.random() < 0.5:
        name = rng.choice(list(FIELDS))
        line = name + b": " + rng.choice(FIELDS[name])
    draft.lines.insert(rng.randrange(len(draft.lines) + 1), line)


def _no_field(rng: random.Random, draft: Draft) -> None:
    draft.lines.remove(rng.choice(draft.lines))


def _broken_field(rng: random.Random, draft: Draft) -> None:
    """Put a line break, a control character or the like into a field."""
    at = rng.randrange(len(draft.lines))
    line = draft.lines[at]
    cut = rng.choice(
        (0, line.find(b":"), line.find(b":") + 1, rng.randrange(len(line) + 1))
    )
    draft.lines[at] = line[:cut] + rng.choice(BREAKS) + line[cut:]


def _name_case(rng: random.Random, draft: Draft) -> None:
    change = rng.choice((bytes.upper, bytes.lower, bytes.swapcase))
    draft.lines = [
        change(n) + c + v for n, c, v in (x.partition(b":") for x in draft.lines)
    ]
    rng.shuffle(draft.lines)


def _many_fields(rng: random.Random, draft: Draft) -> None:
    count = rng.choice((10, 34, 35, 36, 60, 120))
    draft.lines += [b"X-%d: %d" % (number, number) for number in range(count)]


def _long_field(rng: random.Random, draft: Draft) -> None:
    size = rng.choice((1000, 3500, 4096, 5000, 70_000))
    draft.lines.append(b"X-Long: " + b"x" * size)


def _line_ends(rng: random.Random, draft: Draft) -> None:
    draft.end = rng.choice((b"\n", b"\r", b"\r\r\n", b"\n\r"))


def _truncated(rng: random.Random, draft: Draft) -> None:
    draft.missing = rng.choice((1, 2, 3, len(draft.body), rng.randrange(1, 300)))


def _large_body(rng: random.Random, draft: Draft) -> None:
    if not draft.framed:
        draft.body += b" " * rng.choice((DRAINED - 100, DRAINED, LIMITS.body_bytes))


# fmt: off
HEAD_MUTATIONS: tuple[Callable[[random.Random, Draft], None], ...] = (
    _odd_length, _wrong_length, _two_lengths, _length_and_chunks, _odd_coding, _chunked,
    _odd_chunks, _odd_chunks, _old_chunks, _odd_method, _odd_target, _odd_version,
    _odd_field, _odd_field, _two_fields, _no_field, _broken_field, _broken_field,
    _name_case, _many_fields, _long_field, _line_ends, _truncated,
)
# fmt: on


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Mutate without regard to any grammar."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        action = rng.randrange(6)
        if action == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            changed[at:at] = rng.choice(BREAKS)
        elif action == 2:
            del changed[at : at + rng.choice((1, 1, 2, 20))]
        elif action == 3:
            other = rng.randrange(len(changed) + 1)
            changed[at:at] = changed[other : other + rng.choice((1, 4, 30, 200))]
        elif action == 4:
            changed[at:at] = rng.randbytes(rng.choice((1, 3, 10)))
        elif at < len(changed):
            changed[at] = rng.choice(b'\r\n\0 :,;{}[]"0123456789\xff')
    return bytes(changed)


# --- HTTP cases -----------------------------------------------------------------------


@dataclass
class Case:
    """A byte stream, how it is cut, and what was done to it."""

    index: int
    stream: bytes = b""
    pieces: list[bytes] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)


def http_case(seed: int, index: int) -> Case:
    """Build case number `index`; it depends on nothing but the two numbers."""
    rng = random.Random(f"{seed}/http/{index}")
    case = Case(index)
    parts = []
    for number in range(rng.choice((1, 1, 1, 1, 2, 3))):
        parts.append(_request(rng, case, f"{index}-{number}"))
        if rng.random() < 0.02:
            parts.append(
                rng.choice((b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\x16\x03\x01"))
            )
    case.stream = b"".join(parts)
    if rng.random() < 0.15:
        case.changes.append("bytes")
        case.stream = mutate_bytes(rng, case.stream)
    case.pieces = cut(rng, case.stream)
    return case


def guarded(index: int) -> bool:
    """Tell whether a case goes to the server that demands credentials."""
    return index % GUARDED_SHARE == 1 and index % SOCKET_SHARE != 0


def _request(rng: random.Random, case: Case, token: str) -> bytes:
    """Build one request, changed or not, with its token and a smuggled one's."""
    calls = HTTP_CALLS | {"mark": {"token": token}}
    message = good_message(rng, rng.choice((case.index, token, 1)), calls)
    focus = rng.random()  # most requests are changed in one respect only
    times = rng.choice((1, 1, 2, 3)) if focus < 0.5 else int(focus > 0.95)
    if times:
        case.changes.append(f"JSON*{times}")
    mutated, data = mutate_json(rng, message, times)
    draft = draft_of(message if rng.random() < 0.1 else mutated, data)
    if rng.random() < 0.15:
        case.changes.append("smuggled")
        extra = smuggled(rng, f"smuggled-{token}")
        draft.body = rng.choice((extra, draft.body + extra, extra + draft.body))
    if rng.random() < 0.01:
        case.changes.append("_large_body")
        _large_body(rng, draft)
    if guarded(case.index) and rng.random() < 0.9:
        draft.put(b"authorization", CREDENTIALS)
    for _ in range(rng.choice((1, 1, 1, 2, 3)) if focus > 0.55 else 0):
        change = rng.choice(HEAD_MUTATIONS)
        if draft.lines:
            case.changes.append(change.__name__)
            change(rng, draft)
    return draft.render()


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """Cut into pieces of random sizes, now and then into single bytes."""
    if len(data) < 1500 and rng.random() < 0.03:
        return [data[at : at + 1] for at in range(len(data))]
    cuts = sorted(
        rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 2, 5)))
    )
    ends = [*cuts, len(data)]
    return [data[start:end] for start, end in zip([0, *cuts], ends, strict=True)]


# --- a second reader of HTTP/1.1 ------------------------------------------------------

TOKEN = frozenset(
    b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
DIGITS, HEX = frozenset(b"0123456789"), frozenset(b"0123456789abcdefABCDEF")


@dataclass
class Item:
    """What the strict reader finds: a request, or the end of what can be read."""

    kind: str
    """"request", "wait", or "refuse": to be answered with an error, then closed."""
    method: bytes = b""
    body: bytes = b""
    close: bool = False
    may_close: bool = False
    """Expect, or a body that is too long to be drained."""
    credentials: bytes = b""


class Refused(Exception):
    """Two readers could understand it differently, or it is beyond a limit."""


class Waiting(Exception):
    """The message goes on."""


def read_stream(stream: bytes) -> list[Item]:
    """List what a strict reader finds in the stream, as far as it can read."""
    items: list[Item] = []
    at = 0
    while True:
        while stream.startswith(b"\r\n", at):
            at += 2
        if at == len(stream):
            return items
        item = Item("request")
        try:
            at = _read_request(stream, at, item)
        except (Refused, Waiting) as reason:
            item.kind = "refuse" if isinstance(reason, Refused) else "wait"
        items.append(item)
        if item.kind != "request" or item.close:
            return items


def _read_request(stream: bytes, at: int, item: Item) -> int:
    """Fill `item`, return where the next request begins."""
    end = stream.find(b"\r\n\r\n", at)
    if end < 0:
        raise Waiting
    lines = stream[at:end].split(b"\r\n")
    too_many = len(lines) - 1 > LIMITS.header_count
    too_long = end + 4 - at > LIMITS.header_bytes
    if too_many or too_long or len(lines[0]) + 1 > LIMITS.request_line:
        raise Refused
    for line in lines:
        if not all(byte == 9 or (byte >= 32 and byte != 127) for byte in line):
            raise Refused
    old, authority = _read_request_line(lines[0], item)
    fields = [_read_field(line) for line in lines[1:]]
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) != 1 or authority not in (b"", hosts[0]):
        raise Refused
    given = [value for name, value in fields if name == b"authorization"]
    if len(given) > 1:
        raise Refused
    item.credentials = given[0] if given else b""
    options = b",".join(
        value.lower() for name, value in fields if name == b"connection"
    )
    item.close = old or b"close" in re.split(rb"[ \t,]+", options)
    item.may_close = any(name == b"expect" for name, _ in fields)
    at = _read_body(stream, end + 4, fields, old, item)
    item.may_close = item.may_close or len(item.body) > DRAINED
    return at


def _read_request_line(line: bytes, item: Item) -> tuple[bool, bytes]:
    """Return whether it is HTTP/1.0, and the host that an absolute target names."""
    words = line.split(b" ")
    if len(words) != 3 or not words[0] or not words[1]:
        raise Refused
    item.method, target, version = words
    if not TOKEN.issuperset(item.method) or not all(
        33 <= byte < 127 for byte in target
    ):
        raise Refused
    if len(version) != 8 or version[:7] != b"HTTP/1." or version[7] not in DIGITS:
        raise Refused
    absolute = re.match(rb"https?://([^/?#]*)", target, re.IGNORECASE)
    return version == b"HTTP/1.0", absolute[1] if absolute else b""


def _read_field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or not TOKEN.issuperset(name):
        raise Refused
    return name.lower(), value.strip(b" \t")


def _read_body(
    stream: bytes, at: int, fields: list[tuple[bytes, bytes]], old: bool, item: Item
) -> int:
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = [value for name, value in fields if name == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise Refused
    if codings:
        if codings[0].lower() != b"chunked" or old:
            raise Refused
        item.may_close = True
        return _read_chunks(stream, at, item)
    if not lengths:
        return at
    if not lengths[0] or not DIGITS.issuperset(lengths[0]) or len(lengths[0]) > 18:
        raise Refused
    size = int(lengths[0])
    if size > LIMITS.body_bytes:
        raise Refused
    item.may_close = item.may_close or size > DRAINED
    if at + size > len(stream):
        raise Waiting
    item.body = stream[at : at + size]
    return at + size


def _read_chunks(stream: bytes, at: int, item: Item) -> int:
    overhead, last = 0, False
    while True:
        end = stream.find(b"\r\n", at)
        if end < 0:
            raise Waiting
        line, at = stream[at:end], end + 2
        overhead += len(line) + 2
        if overhead > LIMITS.chunk_overhead:
            raise Refused
        if not all(byte == 9 or (byte >= 32 and byte != 127) for byte in line):
            raise Refused
        if last:
            if not line:
                return at
            _read_field(line)
            continue
        size_text, extended, _ = line.partition(b";")
        if extended:
            size_text = size_text.rstrip(b" \t")
        if not 0 < len(size_text) <= 16 or not HEX.issuperset(size_text):
            raise Refused
        size = int(size_text, 16)
        if len(item.body) + size > LIMITS.body_bytes:
            raise Refused
        last = size == 0
        if last:
            continue
        end = at + size
        if end + 2 > len(stream):
            raise Waiting
        if stream[end : end + 2] != b"\r\n":
            raise Refused
        item.body += stream[at:end]
        at = end + 2


# --- answers --------------------------------------------------------------------------


@dataclass
class Answer:
    """One answer of the server's, read strictly."""

    status: int
    fields: dict[bytes, bytes]
    messages: list[Any]
    complete: bool = True
    """False for a stream that goes on."""

    @property
    def close(self) -> bool:
        """Tell whether it announces the end of the connection."""
        return self.fields.get(b"connection") == b"close"


def read_answers(data: bytes, items: list[Item]) -> list[Answer]:
    """Read all answers; raises Failure for what is not well-formed."""
    found: list[Answer] = []
    at = 0
    while at < len(data):
        method = items[len(found)].method if len(found) < len(items) else b""
        answer, at = _read_answer(data, at, method)
        if answer.status != 100:
            found.append(answer)
    return found


def _read_answer(data: bytes, at: int, method: bytes) -> tuple[Answer, int]:
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        raise Failure(f"the header of an answer does not end: {data[at : at + 100]!r}")
    first, *lines = data[at:end].split(b"\r\n")
    status_line = re.fullmatch(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]+", first)
    if status_line is None:
        raise Failure(f"not a status line: {first[:100]!r}")
    status, at = int(status_line[1]), end + 4
    fields: dict[bytes, bytes] = {}
    for line in lines:
        parsed = re.fullmatch(rb"([A-Za-z-]+): ([\t -~\x80-\xff]*)", line)
        if parsed is None or parsed[1].lower() in fields:
            raise Failure(
                f"a field of an answer is malformed or repeated: {line[:100]!r}"
            )
        fields[parsed[1].lower()] = parsed[2]
    if status == 100:
        return Answer(status, fields, []), at
    if status not in STATUSES:
        raise Failure(f"status {status} is not one of those that are defined")
    if b"date" not in fields:
        raise Failure("an answer without Date")
    return _read_answer_body(data, at, method, Answer(status, fields, []))


def _read_answer_body(
    data: bytes, at: int, method: bytes, answer: Answer
) -> tuple[Answer, int]:
    fields = answer.fields
    kind = fields.get(b"content-type")
    if answer.status == 204:
        return answer, at
    if kind == b"text/event-stream":
        if fields.get(b"transfer-encoding") == b"chunked":
            content, at, answer.complete = _dechunk(data, at)
        else:
            content, at = data[at:], len(data)
        answer.messages = [json.loads(event) for event in _events(content)]
        answer.complete = answer.complete and "method" not in answer.messages[-1]
        return answer, at
    size = int(fields[b"content-length"])
    if method == b"HEAD" and data[at : at + 1] in (b"", b"H"):
        return answer, at
    content = data[at : at + size]
    if len(content) != size:
        raise Failure("an answer is shorter than its Content-Length")
    if content and kind != b"application/json":
        raise Failure(f"an answer with Content-Type {kind!r}")
    if content:
        answer.messages = [json.loads(content)]
    return answer, at + size


def _dechunk(data: bytes, at: int) -> tuple[bytes, int, bool]:
    content = b""
    while at < len(data):
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        at = end + 2 + size + 2
        if data[at - 2 : at] != b"\r\n":
            raise Failure("a chunk of an answer does not end where its size says")
        content += data[end + 2 : at - 2]
        if size == 0:
            return content, at, True
    return content, at, False


def _events(content: bytes) -> Iterator[bytes]:
    for event in content.split(b"\n\n")[:-1]:
        if event.startswith(b"data: ") and b"\n" not in event:
            yield event[6:]
        elif not event.startswith(b":"):
            raise Failure(f"not an event: {event[:100]!r}")


# --- the verdict ----------------------------------------------------------------------


def judge(
    items: list[Item],
    answers: list[Answer],
    closed: bool,
    executed: list[str],
    guard: bool = False,
) -> str:
    """Compare what the reader found with what the server did; return the outcome.

    Raises Failure.
    """
    expected: list[str] = []
    outcome = "answered"
    for number, item in enumerate(items):
        answer = answers[number] if number < len(answers) else None
        last = number == len(answers) - 1
        if item.kind == "wait":
            if answer is not None and not _is_early(item, answer):
                raise Failure(f"half a request was answered {answer.status}")
            outcome = "half a request"
            continue
        if answer is None:
            raise Failure(f"request {number} was not answered, closed is {closed}")
        token = check_answer(item, answer)
        if token is not None:
            expected.append(token)
        stranger = guard and item.credentials != CREDENTIALS
        if stranger and answer.status < 400 and item.method != b"OPTIONS":
            raise Failure(f"answered {answer.status} without credentials")
        if item.kind == "refuse":
            _check_refusal(item, answer, closed)
            outcome = f"refused {answer.status}"
        if answer.close or (closed and last and number < len(items) - 1):
            _check_close(item, answer)
            items = items[: number + 1]
            break
    if len(answers) > len(items):
        raise Failure(f"{len(answers)} answers to {len(items)} requests")
    if executed != expected:
        raise Failure(f"the tool ran for {executed}, answers are there for {expected}")
    return outcome


def _is_early(item: Item, answer: Answer) -> bool:
    """Tell whether this is an answer that does not need the body."""
    return answer.status >= 400 or (answer.status == 204 and item.method == b"OPTIONS")


def _check_refusal(item: Item, answer: Answer, closed: bool) -> None:
    if not _is_early(item, answer):
        raise Failure(f"what must be refused was answered {answer.status}")
    if not answer.close or not closed:
        raise Failure(f"refused with {answer.status}, but the connection is kept open")


def _check_close(item: Item, answer: Answer) -> None:
    """Closing is right where it was asked for, and with a refusal before the body."""
    if item.kind != "request" or item.close:
        return
    message = answer.messages[0] if answer.messages else {"error": {"code": -32600}}
    code = message.get("error", {}).get("code")
    bad_head = code in (-32600, -32020) and "id" not in message
    if not bad_head and not (item.may_close and _is_early(item, answer)):
        raise Failure(f"closed after {answer.status} for no reason")


def check_answer(item: Item, answer: Answer) -> str | None:
    """Check the messages of an answer; return the token if `mark` was called."""
    *before, last = answer.messages or [None]
    for message in before:
        check_notification(message)
    if last is None:
        if answer.status not in (202, 204) and item.method != b"HEAD":
            raise Failure(f"{answer.status} without a body")
        return None
    asked = _json_or_none(item.body)
    asked = asked if isinstance(asked, dict) else {}
    if not answer.complete:
        check_notification(last)
        if asked.get("method") != "subscriptions/listen":
            raise Failure("an answer that does not end")
        return None
    check_response(last, asked.get("id"))
    if "error" in last:
        code = last["error"]["code"]
        stream = answer.fields[b"content-type"] == b"text/event-stream"
        if not stream and answer.status not in (CODES.get(code, code), 406):
            raise Failure(f"error {code} came with status {answer.status}")
        return None
    if answer.status != 200:
        raise Failure(f"a result came with status {answer.status}")
    called = asked.get("params", {}).get("name") == "mark"
    if asked["method"] != "tools/call" or not called or last["result"].get("isError"):
        return None
    token: str = last["result"]["content"][0]["text"]
    if token != asked["params"]["arguments"]["token"]:
        raise Failure(f"the answer {token!r} belongs to another request")
    return token


def check_notification(message: Any) -> None:
    """Raise Failure unless it is a notification."""
    if message.get("jsonrpc") != "2.0" or "id" in message:
        raise Failure(f"not a notification: {message!r:.200}")
    if not str(message.get("method")).startswith("notifications/"):
        raise Failure(f"not a notification: {message!r:.200}")


def check_response(message: Any, id: Any) -> None:
    """Raise Failure unless it is a response to a request with this id."""
    if message.get("jsonrpc") != "2.0" or ("result" in message) == ("error" in message):
        raise Failure(f"not a response: {message!r:.200}")
    if "id" in message and (type(message["id"]), message["id"]) != (type(id), id):
        raise Failure(f"the answer to {id!r:.100} has the id {message['id']!r:.100}")
    if "error" not in message:
        if "id" not in message or not isinstance(message["result"], dict):
            raise Failure(f"not a result: {message!r:.200}")
        return
    code = message["error"]["code"]
    if code not in CODES and code not in STATUSES:
        raise Failure(f"error code {code}: {message['error']['message']}")
    if code in (-32601, -32602, -32021, -32022) and "id" not in message:
        raise Failure(f"error {code} without the id")


def _refuse_constant(token: str) -> Any:
    raise ValueError(token)


def _json_or_none(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


# --- HTTP: in memory and over sockets -------------------------------------------------


class MemoryTransport(asyncio.Transport):
    """As much of asyncio's socket transport as a connection uses, without a socket."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.protocol = protocol
        self.written = bytearray()
        self.waiting: list[bytes] = []
        self.reading = True
        self.closing = False
        self.ended = False

    def feed(self, data: bytes) -> None:
        """Deliver bytes as the event loop would: not while reading is paused."""
        self.waiting.append(data)
        if self.closing:
            self.waiting.clear()
        while self.waiting and self.reading:
            self.protocol.data_received(self.waiting.pop(0))

    def feed_eof(self) -> None:
        """Deliver the end of the input."""
        if not self.closing and not self.protocol.eof_received():
            self.close()

    def write(self, data: Any) -> None:
        if self.ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not self.closing:
            self.written += data

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        asyncio.get_running_loop().call_soon(self.feed, b"")

    def is_reading(self) -> bool:
        return self.reading and not self.closing

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class HttpFuzz:
    """The HTTP half: one server, reached in memory and through a socket."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.executed: list[str] = []
        self.server = build(self.executed)
        make = functools.partial(
            mcp_ref._HttpEndpoint, self.server, "/mcp", (), (), LIMITS
        )
        principal = mcp_ref.Principal("fuzz")
        verifier = mcp_ref.static_tokens({CREDENTIALS[7:].decode(): principal})
        self.sites = [mcp_ref._HttpSite(make(one), True) for one in (None, verifier)]
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.port = 0

    async def run(self, numbers: range, failures: list[str]) -> None:
        """Run the cases, each on a connection of its own."""
        with Watcher() as watcher:
            ready = asyncio.get_running_loop().create_future()
            serving = [
                *(asyncio.create_task(site.watch()) for site in self.sites),
                asyncio.create_task(
                    mcp_ref.serve_http(
                        self.server, port=0, limits=LIMITS, on_ready=ready.set_result
                    )
                ),
            ]
            self.port = int((await ready).rpartition(":")[2].partition("/")[0])
            await asyncio.sleep(0)
            tasks = len(asyncio.all_tasks())
            for index in numbers:
                case = http_case(self.seed, index)
                try:
                    await self.case(case)
                    watcher.check()
                    if index % 500 == 0:
                        await self._check_tasks(tasks)
                except Unknown as reason:
                    self.outcomes[str(reason)] += 1
                except Exception as error:
                    failures.append(describe("http", self.seed, case, error))
                    if len(failures) >= ENOUGH:
                        break
            gc.collect()
            for task in serving:
                task.cancel()
            await asyncio.wait(serving)
            try:
                watcher.check()
            except Failure as error:
                failures.append(describe("http", self.seed, Case(numbers.stop), error))

    async def _check_tasks(self, expected: int) -> None:
        for _ in range(STEPS):
            if len(asyncio.all_tasks()) == expected:
                return
            await asyncio.sleep(0)
        raise Failure(f"tasks are left behind: {asyncio.all_tasks()}")

    async def case(self, case: Case) -> None:
        """Run one case; raises Failure."""
        self.executed.clear()
        items = read_stream(case.stream)
        whole = all(item.kind == "request" for item in items)
        streams = any(b"subscriptions/listen" in item.body for item in items)
        good = f"good-{case.index}"
        follow = whole and not (items and items[-1].close)
        message = discover(good)
        draft = draft_of(message, json.dumps(message).encode())
        if guarded(case.index):
            draft.put(b"authorization", CREDENTIALS)
        if case.index % SOCKET_SHARE or streams:
            written, closed = await self._in_memory(
                case, draft.render() if follow else b""
            )
        else:
            draft.lines.append(b"Connection: close")
            written, closed = await self._by_socket(
                case, items, draft.render() if follow else b""
            )
        if TRACEBACK.search(written):
            raise Failure("a traceback on the wire")
        answers = read_answers(written, items)
        if follow and len(answers) == len(items) + 1:
            check_good(answers.pop(), good)
            self.outcomes["good requests answered afterwards"] += 1
        elif follow and not closed and all(answer.complete for answer in answers):
            raise Failure("the connection is open, but a good request is not answered")
        outcome = self._judge(items, answers, closed, guarded(case.index))
        self.outcomes[outcome] += 1
        self.outcomes.update(f"status {answer.status}" for answer in answers)
        errors = (m["error"] for a in answers for m in a.messages if "error" in m)
        self.outcomes.update(f"error {error['code']}" for error in errors)
        self.outcomes["tool calls"] += len(self.executed)

    def _judge(
        self, items: list[Item], answers: list[Answer], closed: bool, guard: bool
    ) -> str:
        running = next((n for n, a in enumerate(answers) if not a.complete), None)
        if running is not None:  # nothing after a stream is read before it ends
            items = items[: running + 1]
            answers[running].complete = items[running].kind != "request"
            return judge(items, answers, closed, self.executed, guard) and "stream"
        return judge(items, answers, closed, self.executed, guard)

    async def _in_memory(self, case: Case, follow: bytes) -> tuple[bytes, bool]:
        """Feed the protocol class; return what it wrote and whether it closed."""
        rng = random.Random(case.index)
        connection = mcp_ref._HttpConnection(self.sites[guarded(case.index)])
        transport = MemoryTransport(connection)
        connection.connection_made(transport)
        try:
            for piece in case.pieces:
                transport.feed(piece)
                for _ in range(rng.choice((0, 0, 1, 3))):
                    await asyncio.sleep(0)
            await self._settle(connection, transport)
            if follow and not transport.closing and not transport.ended:
                transport.feed(follow)
                await self._settle(connection, transport)
            closed = transport.closing or transport.ended
            transport.feed_eof()
            await self._settle(connection, transport, True)
        finally:
            transport.close()
            await asyncio.sleep(0)
        await self._check_left(connection)
        return bytes(transport.written), closed

    async def _settle(
        self, connection: Any, transport: MemoryTransport, end: bool = False
    ) -> None:
        """Let the loop run until nothing happens any more."""
        quiet = 0
        for _ in range(STEPS):
            await asyncio.sleep(0)
            idle = connection.task is None and not (
                transport.waiting and transport.reading
            )
            idle = idle and (not end or connection not in connection.site.connections)
            quiet = quiet + 1 if idle else 0  # between two requests it is idle, too
            if quiet > 3:
                return
            if (
                not end
                and connection.site.endpoint.running["streams"]
                and transport.written
            ):
                return
        raise Failure(f"not done after {STEPS} rounds of the event loop")

    async def _check_left(self, connection: Any) -> None:
        for _ in range(STEPS):
            if connection.task is None:
                break
            await asyncio.sleep(0)
        left = {
            "connections": len(connection.site.connections),
            "subscriptions": len(self.server.subscriptions),
            **connection.site.endpoint.running,
        }
        if any(left.values()):
            raise Failure(f"left behind: {left}")

    async def _by_socket(
        self, case: Case, items: list[Item], follow: bytes
    ) -> tuple[bytes, bool]:
        """Send through a real socket; return what came back and whether it closed."""
        self.outcomes["through a socket"] += 1
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                return await self._converse(reader, writer, case, items, follow)
            finally:
                writer.close()

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        case: Case,
        items: list[Item],
        follow: bytes,
    ) -> tuple[bytes, bool]:
        for piece in (*case.pieces, follow):
            writer.write(piece)
            await asyncio.sleep(0)
        written = b""
        half = bool(items) and items[-1].kind == "wait"
        if half:
            # The end of the input cancels what runs, so wait for all answers first.
            while not _has_answers(written, items[:-1]):
                data = await reader.read(65536)
                written += data
                if not data:
                    return written, True
            writer.write_eof()
        try:
            written += await reader.read()
        except ConnectionError:
            if items and items[-1].close:
                # Bytes that follow a request to close can reset its answer, too.
                raise Unknown("reset after a request to close") from None
            raise Failure("the connection was reset") from None
        return written, not half  # otherwise it is we who closed


def _has_answers(written: bytes, items: list[Item]) -> bool:
    try:
        answers = read_answers(written, items)
        return len(answers) >= len(items) and all(one.complete for one in answers)
    except (Failure, ValueError, IndexError):  # not yet complete
        return False


def check_good(answer: Answer, id: str) -> None:
    """Raise Failure unless it is the right answer to discover(id)."""
    message = answer.messages[-1] if answer.messages else {}
    versions = message.get("result", {}).get("supportedVersions")
    if answer.status != 200 or message.get("id") != id or not versions:
        raise Failure(f"a good request was answered {answer.status} {message!r:.300}")


class Watcher(logging.Handler):
    """Catches what the event loop and the log would tell of an exception."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def __enter__(self) -> Watcher:
        logger = logging.getLogger("mcp_ref")
        logger.addHandler(self)
        logger.propagate = False
        asyncio.get_running_loop().set_exception_handler(self._exception)
        return self

    def __exit__(self, *details: object) -> None:
        logging.getLogger("mcp_ref").removeHandler(self)
        asyncio.get_running_loop().set_exception_handler(None)

    def _exception(self, loop: Any, context: dict[str, Any]) -> None:
        self.seen.append(f"event loop: {context}")

    def emit(self, record: logging.LogRecord) -> None:
        """Note an error in the log: there is an exception behind it."""
        self.seen.append(f"log: {self.format(record)}")

    def check(self) -> None:
        """Raise Failure if there was something."""
        if self.seen:
            seen, self.seen = self.seen, []
            raise Failure("; ".join(seen))


# --- stdio ----------------------------------------------------------------------------

# fmt: off
NOT_JSON = (
    b"", b"   ", b"\r", b"\x00", b"null", b"1", b'"x"', b"[]", b"{}", b"\xff\xfe\x00",
    b"Content-Length: 20\r\n\r", b"POST /mcp HTTP/1.1", b"\xef\xbb\xbf{}", b"{" * 30000,
    b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"error":{},"id":null}', b"\x85",
    b"\x0c",
)
# fmt: on


def stdio_lines(seed: int, index: int) -> bytes:
    """Build line number `index`, which may turn out to be several."""
    rng = random.Random(f"{seed}/stdio/{index}")
    message = good_message(rng, rng.choice((index, f"s{index}", 7)), STDIO_CALLS)
    compact = ((",", ":"), (" ,\t", ":\r "))
    data = mutate_json(rng, message, rng.choice((0, 1, 1, 2, 3)), compact)[1]
    action = rng.random()
    if action < 0.2:
        data = mutate_bytes(rng, data)
    elif action < 0.25:
        data = rng.choice(NOT_JSON)
    elif action < 0.27:
        data += data
    elif action < 0.28:
        data = data[: rng.randrange(len(data) + 1)]
    elif action < 0.2805:
        data += b" " * 3_000_000
    return data + rng.choice((b"\n", b"\n", b"\n", b"\r\n", b"\n\n", b" \n"))


Key = tuple[type, Any]
NO_ID: Key = (type(None), None)


def expected_answer(line: bytes, excused: set[Key]) -> Key | None:
    """Return the id that the answer has to have, NO_ID for an error, None for none."""
    line = line.strip()
    if not line:
        return None
    message = _json_or_none(line)
    if not isinstance(message, dict):
        return NO_ID
    if "method" not in message and ("result" in message or "error" in message):
        return None
    id, method = message.get("id"), message.get("method")
    key = (type(id), id) if type(id) in (str, int) else NO_ID
    params = message.get("params", {})
    malformed = message.get("jsonrpc") != "2.0" or not isinstance(method, str)
    if malformed or not isinstance(params, dict) or ("id" in message and key == NO_ID):
        return key
    if key == NO_ID and method == "notifications/cancelled":
        given = params.get("requestId")
        excused.add(
            (type(given), str(given) if isinstance(given, (dict, list)) else given)
        )
    return None if key == NO_ID else key


class StdioFuzz:
    """The stdio half: the demo server in a process of its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.outstanding: collections.Counter[Key] = collections.Counter()
        self.excused: set[Key] = set()
        self.streams: set[Key] = set()
        self.good: dict[str, asyncio.Future[None]] = {}
        self.problem: Failure | None = None

    async def run(self, numbers: range, failures: list[str]) -> None:
        """Send all lines in batches, then end of file."""
        self.process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "mcp_ref.py"),
            "serve",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=mcp_ref.MAX_MESSAGE_BYTES,
        )
        assert process.stderr is not None
        reading = asyncio.create_task(self._read())
        errors = asyncio.create_task(process.stderr.read())
        case = Case(0)
        try:
            for start in range(numbers.start, numbers.stop, BATCH):
                batch = range(start, min(start + BATCH, numbers.stop))
                case = Case(start, b"".join(stdio_lines(self.seed, n) for n in batch))
                await self._batch(case)
            case = Case(numbers.stop)
            await self._end(reading, errors)
        except Exception as error:
            failures.append(describe("stdio", self.seed, case, error))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            reading.cancel()

    async def _batch(self, case: Case) -> None:
        """Send lines and a good request, and wait for the answer to that."""
        assert self.process.stdin is not None
        for line in case.stream.split(b"\n")[:-1]:
            key = expected_answer(line, self.excused)
            if key is not None:
                self.outstanding[key] += 1
                self.outcomes["lines that ask for an answer"] += key != NO_ID
                self.outcomes["lines that are no message"] += key == NO_ID
        good = f"good-{case.index}"
        self.good[good] = done = asyncio.get_running_loop().create_future()
        for piece in cut(random.Random(case.index), case.stream):
            self.process.stdin.write(piece)
            await self.process.stdin.drain()
        self.process.stdin.write(json.dumps(discover(good)).encode() + b"\n")
        for _, id in self.streams:
            params = {"requestId": id}
            cancelled = mcp_ref.notification("notifications/cancelled", params)
            self.process.stdin.write(json.dumps(cancelled).encode() + b"\n")
        self.excused |= self.streams
        self.streams.clear()
        try:
            async with asyncio.timeout(SECONDS):
                await done
        except TimeoutError:
            raise Failure("a good request was not answered in time") from None
        if self.problem is not None:
            raise self.problem

    async def _read(self) -> None:
        """Check each line that the server writes."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            try:
                self._line(line)
            except Exception as error:
                problem = Failure(
                    f"{type(error).__name__}: {error}; line {line[:300]!r}"
                )
                self.problem = self.problem or problem

    def _line(self, line: bytes) -> None:
        if TRACEBACK.search(line):
            raise Failure("a traceback on the wire")
        message = json.loads(line)
        self.outcomes["lines of the server's"] += 1
        if "method" in message:
            check_notification(message)
            if message["method"].endswith("/acknowledged"):
                id = message["params"]["_meta"][mcp_ref.META_SUBSCRIPTION_ID]
                self.streams.add((type(id), id))
            return
        id = message.get("id")
        check_response(message, id)
        done = self.good.pop(id, None) if isinstance(id, str) else None
        if done is not None:
            done.set_result(None)
            if not message["result"]["supportedVersions"]:
                raise Failure("a wrong answer to a good request")
            self.outcomes["good requests answered afterwards"] += 1
            return
        key = NO_ID if "id" not in message else (type(id), id)
        self.outstanding[key] -= 1
        if self.outstanding[key] < 0:
            raise Failure(f"an answer that nobody asked for, to {id!r:.100}")
        kind = f"error {message['error']['code']}" if "error" in message else "result"
        self.outcomes[kind] += 1

    async def _end(self, reading: Any, errors: Any) -> None:
        """End the input; the process has to answer what is left and exit with 0."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(SECONDS):
            await reading
            status = await self.process.wait()
            stderr: bytes = await errors
        if self.problem is not None:
            raise self.problem
        if status != 0:
            raise Failure(f"exit status {status}: {stderr[-500:]!r}")
        if TRACEBACK.search(stderr) or b"ERROR" in stderr:
            at = TRACEBACK.search(stderr)
            around = stderr[max(0, at.start() - 200) :][:3000] if at else stderr[-500:]
            raise Failure(f"standard error: {around.decode(errors='replace')}")
        left = {key for key in +self.outstanding if key not in self.excused}
        if left:
            raise Failure(
                f"{len(left)} requests were never answered: {list(left)[:5]!r}"
            )


# --- running --------------------------------------------------------------------------


def describe(kind: str, seed: int, case: Case, error: Exception) -> str:
    """Say all that it takes to run a failure again."""
    name = "" if isinstance(error, Failure) else f"{type(error).__name__}: "
    changes = ", ".join(case.changes) or "as it is"
    return (
        f"{kind} case {case.index} of seed {seed} ({changes})"
        f"\n  {name}{error or 'too slow'}\n  bytes: {case.stream[:3000]!r}"
    )


def report(kind: str, count: int, seconds: float, outcomes: dict[str, int]) -> None:
    """Print the figures of one half."""
    print(f"{kind}: {count} cases in {seconds:.1f} s")
    for name, number in sorted(outcomes.items(), key=lambda item: (-item[1], item[0])):
        print(f"  {number:>8}  {name}")


async def fuzz(options: argparse.Namespace) -> list[str]:
    """Run both halves; return the failures."""
    failures: list[str] = []
    for kind, half, count in (
        ("http", HttpFuzz(options.seed), options.http),
        ("stdio", StdioFuzz(options.seed), options.stdio),
    ):
        numbers = range(count)
        if options.only is not None:
            numbers = range(options.only, options.only + min(count, 1))
        if numbers:
            start = time.perf_counter()
            await half.run(numbers, failures)
            report(kind, len(numbers), time.perf_counter() - start, half.outcomes)
    return failures


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--http", type=int, default=20_000, help="cases (default 20000)"
    )
    parser.add_argument(
        "--stdio", type=int, default=20_000, help="lines (default 20000)"
    )
    parser.add_argument("--only", type=int, metavar="N", help="run just case number N")
    options = parser.parse_args()
    failures = asyncio.run(fuzz(options))
    for number, failure in enumerate(failures):
        if number == 0:
            print(f"FAILED {failure}")
        else:
            print(f"also failed: {failure[:300]}")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
