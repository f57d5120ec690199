#!/usr/bin/env python3
"""Load an HTTP server with all that goes wrong in real life, then look for leaks.

    python examples/soak.py [--seconds 60] [--connections 200] [--seed N]

A server of its own runs in another process: fast and slow tools, `async def` and plain
ones, progress, list changes, listen streams. First all of its worker threads are
blocked: discovery, cancellation and streams must go on, further plain tools must be
refused quickly, and work again afterwards. Then come so many connections for so many
seconds: calls, pipelined calls, streams, disconnects in the middle of a body, of a call
and of a stream, cancelled slow tools, list changes, malformed requests. Every answer is
checked. At the end:

  * what was acknowledged was done once, half a request was not done at all;
  * each slow tool that was abandoned was cancelled;
  * no task, thread but idle workers, descriptor, connection or subscription is left;
  * the memory is within 20 % of what it was after the warm-up;
  * SIGTERM ends open streams with their result and the process with status 143.

Prints figures; exit status 1 if a condition is broken. Descriptors and memory are only
looked at where there is /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import collections
import gc
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import mcp_ref  # noqa: E402
from mcp_ref import Context, Server  # noqa: E402

WARM_UP = 5.0  # seconds of load before the memory is looked at for the first time
PATIENCE = 20.0  # seconds for any single exchange under load
QUICK = 1.0  # seconds for what must not be held up
GROWTH = 1.2  # the memory at the end, compared with that after the warm-up
SLACK = 2048  # KiB that are never called a leak


class Broken(Exception):
    """A condition does not hold; the text says which."""


def require(condition: object, message: str) -> None:
    """Raise Broken unless the condition holds."""
    if not condition:
        raise Broken(message)


# --- the server -----------------------------------------------------------------------


def build() -> Server:
    """Build the server under load."""
    server = Server("soak", "1.0")
    counters: collections.Counter[str] = collections.Counter()
    ledger: dict[int, bytearray] = {}
    shown: set[int] = set()
    gate = threading.Event()
    lock = threading.Lock()

    def count(what: str, step: int = 1) -> None:
        with lock:
            counters[what] += step

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add on the event loop."""
        return a + b

    @server.tool
    def add_in_thread(a: int, b: int) -> int:
        """Add in a worker thread."""
        return a + b

    @server.tool
    async def record(worker: int, number: int) -> str:
        """Note that this was done."""
        row = ledger.setdefault(worker, bytearray())
        row.extend(bytes(max(0, number + 1 - len(row))))
        row[number] += 1
        return "noted"

    @server.tool
    async def steps(ctx: Context, count: int) -> str:
        """Report progress."""
        for step in range(count):
            await ctx.progress(step, count)
            await asyncio.sleep(0.001)
        return "done"

    @server.tool
    async def slow(ctx: Context) -> str:
        """Never end."""
        count("slow started")
        try:
            await ctx.progress(0)
            await asyncio.Event().wait()
        finally:
            count("slow ended")
        return "never"

    @server.tool
    def slow_in_thread(ctx: Context) -> str:
        """Go on until the client gives up."""
        count("slow started")
        ctx.progress(0)
        while not ctx.cancelled:
            time.sleep(0.01)  # this is the work
        count("slow ended")
        return "cancelled"

    @server.tool
    def block() -> str:
        """Block a worker thread until `release` is called."""
        count("blocked")
        gate.wait()
        count("blocked", -1)
        return "released"

    @server.tool
    async def release() -> str:
        """Let all blocked threads go on."""
        gate.set()
        return "released"

    async def extra() -> str:
        return "extra"

    @server.tool
    async def toggle(worker: int) -> str:
        """Change the list of tools: each worker has one that comes and goes."""
        if worker in shown:
            shown.remove(worker)
            server.remove_tool(f"extra_{worker}")
        else:
            shown.add(worker)
            server.tool(name=f"extra_{worker}")(extra)
        return "on" if worker in shown else "off"

    @server.tool
    async def done(worker: int) -> str:
        """Tell how often each number was recorded, one byte each."""
        return base64.b64encode(ledger.get(worker, b"")).decode()

    @server.tool
    async def diagnose() -> dict[str, Any]:
        """Tell what the process holds."""
        gc.collect()
        names = [thread.name for thread in threading.enumerate()]
        return {
            "tasks": len(asyncio.all_tasks()),
            "workers": names.count("mcp_ref"),
            "other threads": len(names) - names.count("mcp_ref"),
            "descriptors": _descriptors(),
            "subscriptions": len(server.subscriptions),
            "memory": _memory(),
            "counters": dict(counters),
        }

    return server


def _descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _memory() -> int:
    """Return the resident set in KiB, 0 where it cannot be found out."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    except OSError:
        return 0


# --- a client that can misbehave ------------------------------------------------------


def message(id: Any, method: str, params: Any, token: str | None = None) -> Any:
    """Build a request."""
    meta: dict[str, Any] = {
        mcp_ref.META_PROTOCOL_VERSION: mcp_ref.PROTOCOL_VERSION,
        mcp_ref.META_CLIENT_CAPABILITIES: {},
    }
    if token is not None:
        meta["progressToken"] = token
    return mcp_ref.request_message(id, method, {**params, "_meta": meta})


def tool_call(name: str, arguments: Any, token: str | None = None) -> Any:
    """Build a tools/call."""
    return message("id", "tools/call", {"name": name, "arguments": arguments}, token)


def http_bytes(request: Any) -> bytes:
    """Frame a request."""
    data = json.dumps(request).encode()
    lines = [
        "POST /mcp HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"MCP-Protocol-Version: {mcp_ref.PROTOCOL_VERSION}",
        f"Mcp-Method: {request['method']}",
    ]
    if "name" in request["params"]:
        lines.append(f"Mcp-Name: {request['params']['name']}")
    lines += [f"Content-Length: {len(data)}", "", ""]
    return "\r\n".join(lines).encode() + data


class Wire:
    """One connection, written to and read from directly."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.fields: dict[str, str] = {}

    @classmethod
    async def open(cls, port: int) -> Wire:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, *requests: Any) -> None:
        """Send requests with one write."""
        self.writer.write(b"".join(map(http_bytes, requests)))

    async def head(self) -> int:
        """Read the header of an answer; return the status."""
        block = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = block.decode("latin-1").split("\r\n")[:-2]
        self.fields = {}
        for line in lines:
            name, _, value = line.partition(": ")
            self.fields[name.lower()] = value
        return int(first.split()[1])

    async def answer(self) -> tuple[int, Any]:
        """Read an answer that is no stream; return status and message."""
        status = await self.head()
        data = await self.reader.readexactly(int(self.fields["content-length"]))
        return status, json.loads(data) if data else None

    async def event(self) -> Any:
        """Read an event of a stream: one chunk each; None at the end."""
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = (await self.reader.readexactly(size + 2))[:-2]
            if size == 0:
                return None
            if not data.startswith(b":"):
                require(data.startswith(b"data: "), f"not an event: {data[:100]!r}")
                return json.loads(data[6:])

    async def ask(self, request: Any) -> Any:
        """Return the result of a request that is answered without a stream."""
        self.send(request)
        status, found = await self.answer()
        require(status == 200, f"{request['method']}: {status} {found!r:.300}")
        require(found["id"] == request["id"], f"the answer has the id {found['id']!r}")
        return found["result"]

    async def value(self, name: str, **arguments: Any) -> Any:
        """Call a tool; return its structured result, or its text."""
        result = await self.ask(tool_call(name, arguments))
        require(not result.get("isError"), f"{name}: {result!r:.300}")
        text = result["content"][0]["text"]
        return result.get("structuredContent", text)

    async def start(self, request: Any) -> Any:
        """Send a request that is answered with a stream; return the first event."""
        self.send(request)
        status = await self.head()
        kind = self.fields.get("content-type")
        require(status == 200 and kind == "text/event-stream", f"{status} {kind}")
        return await self.event()

    def vanish(self, rng: random.Random) -> None:
        """Close in the middle of whatever it is, politely or not."""
        if rng.random() < 0.5:
            self.writer.transport.abort()
        else:
            self.writer.close()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    """Connect for the length of a block."""
    wire = await Wire.open(port)
    try:
        yield wire
    finally:
        wire.writer.close()


# --- the load -------------------------------------------------------------------------
#
# An action returns whether its connection can go on.


class Worker:
    """One client: does one thing after the other and remembers what it may expect."""

    def __init__(self, load: Load, number: int) -> None:
        self.load = load
        self.number = number
        self.rng = random.Random(f"{load.seed}/{number}")
        self.expected: list[range] = []
        """How often each number that was sent may have been recorded."""

    async def run(self) -> None:
        """Work until the load ends."""
        wire = None
        while time.monotonic() < self.load.end:
            action, _ = self.rng.choices(ACTIONS, [weight for _, weight in ACTIONS])[0]
            try:
                async with asyncio.timeout(PATIENCE):
                    wire = wire or await Wire.open(self.load.port)
                    if not await action(self, wire):
                        wire.vanish(self.rng)
                        wire = None
            except (
                Broken,
                OSError,
                EOFError,
                ValueError,
                LookupError,
                TimeoutError,
            ) as e:
                text = f"{action.__name__}: {type(e).__name__} {e}"
                self.load.failures.append(text)
                if wire is not None:
                    wire.writer.transport.abort()
                wire = None
            self.load.counts[action.__name__] += 1
        if wire is not None:
            wire.writer.close()

    def next_record(self, may_be: range) -> Any:
        """Build a call of `record` with a number that was not used yet."""
        self.expected.append(may_be)
        arguments = {"worker": self.number, "number": len(self.expected) - 1}
        return tool_call("record", arguments)


async def call(worker: Worker, wire: Wire) -> bool:
    """Add two numbers."""
    a, b = worker.rng.randrange(1000), worker.rng.randrange(1000)
    require(await wire.value("add", a=a, b=b) == a + b, "a wrong sum")
    return True


async def call_in_thread(worker: Worker, wire: Wire) -> bool:
    """Add in a thread; with all of them busy it is refused, which is no failure."""
    a, b = worker.rng.randrange(1000), worker.rng.randrange(1000)
    wire.send(tool_call("add_in_thread", {"a": a, "b": b}))
    status, found = await wire.answer()
    if status == 503:
        worker.load.counts["refused: all threads busy"] += 1
        return True
    require(found["result"]["structuredContent"] == a + b, f"{status} {found!r:.300}")
    return True


async def call_record(worker: Worker, wire: Wire) -> bool:
    """Have work done, and see it acknowledged."""
    request = worker.next_record(range(2))
    result = await wire.ask(request)
    require(result["content"][0]["text"] == "noted", f"{result!r:.300}")
    worker.expected[request["params"]["arguments"]["number"]] = range(1, 2)
    return True


async def call_pipelined(worker: Worker, wire: Wire) -> bool:
    """Send several requests at once; the answers come in order."""
    requests = [
        message(n, "tools/call", {"name": "add", "arguments": {"a": n, "b": 1}})
        for n in range(4)
    ]
    wire.send(*requests)
    for n in range(4):
        status, found = await wire.answer()
        require(status == 200 and found["id"] == n, f"{status} {found!r:.300}")
        require(found["result"]["structuredContent"] == n + 1, "a wrong sum")
    return True


async def discover(worker: Worker, wire: Wire) -> bool:
    """Ask what the server is."""
    result = await wire.ask(message(5, "server/discover", {}))
    require(result["supportedVersions"], f"{result!r:.300}")
    return True


async def list_tools(worker: Worker, wire: Wire) -> bool:
    """List tools, which come and go."""
    result = await wire.ask(message(6, "tools/list", {}))
    names = {tool["name"] for tool in result["tools"]}
    require({"add", "slow", "toggle"} <= names, f"tools are missing: {sorted(names)}")
    return True


async def change_list(worker: Worker, wire: Wire) -> bool:
    """Add or remove a tool."""
    require(await wire.value("toggle", worker=worker.number) in ("on", "off"), "toggle")
    return True


async def read_progress(worker: Worker, wire: Wire) -> bool:
    """Read a whole stream of progress."""
    count = worker.rng.randrange(1, 8)
    event = await wire.start(tool_call("steps", {"count": count}, "token"))
    last = -1
    while "id" not in event:
        params = event["params"]
        require(params["progressToken"] == "token", "progress of another request")
        require(params["progress"] > last, "progress does not rise")
        last, event = params["progress"], await wire.event()
    require(last == count - 1 and event["result"]["content"], f"{event!r:.300}")
    require(await wire.event() is None, "something comes after the response")
    return True


async def listen(worker: Worker, wire: Wire) -> bool:
    """Listen for list changes, cause one, see it, and leave."""
    await open_listen(wire, worker.number)
    async with connected(worker.load.port) as other:
        await change_list(worker, other)
    event = await wire.event()
    require(event["method"] == "notifications/tools/list_changed", f"{event!r:.300}")
    return False


async def open_listen(wire: Wire, id: int) -> None:
    """Open a listen stream and check its acknowledgement."""
    params = {"notifications": {"toolsListChanged": True}}
    event = await wire.start(message(id, "subscriptions/listen", params))
    method = event["method"]
    require(method == "notifications/subscriptions/acknowledged", f"{event!r:.300}")
    found = event["params"]["_meta"][mcp_ref.META_SUBSCRIPTION_ID]
    require(found == id, f"subscriptionId {found!r}")


async def cancel_slow(worker: Worker, wire: Wire) -> bool:
    """Start a tool that never ends, wait until it runs, and leave."""
    await wire.start(tool_call("slow", {}, "token"))
    return False


async def cancel_slow_in_thread(worker: Worker, wire: Wire) -> bool:
    """The same with a plain tool."""
    request = tool_call("slow_in_thread", {}, "token")
    wire.send(request)
    if await wire.head() == 503:
        worker.load.counts["refused: all threads busy"] += 1
        return False
    await wire.event()
    return False


async def leave_in_body(worker: Worker, wire: Wire) -> bool:
    """Send a part of a request and leave."""
    data = http_bytes(worker.next_record(range(1)))
    start = worker.rng.choice((20, data.index(b"\r\n\r\n") + 4, data.index(b"{") + 1))
    wire.writer.write(data[: worker.rng.randrange(start, len(data))])
    await wire.writer.drain()
    return False


async def leave_in_call(worker: Worker, wire: Wire) -> bool:
    """Send a request and leave before the answer."""
    wire.send(worker.next_record(range(2)))
    await wire.writer.drain()
    return False


async def leave_in_stream(worker: Worker, wire: Wire) -> bool:
    """Leave after the first event."""
    await wire.start(tool_call("steps", {"count": 50}, "token"))
    return False


MALFORMED = (
    b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: +5\r\n\r\nhello",
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n",
    b"POST /other HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b'Content-Length: 9\r\n\r\n{"id": 1,',
)


async def send_malformed(worker: Worker, wire: Wire) -> bool:
    """Send what no server should take; it is refused with a message."""
    wire.writer.write(worker.rng.choice(MALFORMED))
    status, found = await wire.answer()
    require(status >= 400 and "error" in found, f"{status} {found!r:.300}")
    if wire.fields.get("connection") == "close":
        require(await wire.reader.read() == b"", "something comes after a refusal")
        return False
    return True


Action = Callable[[Worker, Wire], Awaitable[bool]]
ACTIONS: tuple[tuple[Any, int], ...] = (
    (call, 25),
    (call_in_thread, 15),
    (call_record, 20),
    (call_pipelined, 3),
    (discover, 8),
    (list_tools, 2),
    (change_list, 2),
    (read_progress, 5),
    (listen, 3),
    (cancel_slow, 4),
    (cancel_slow_in_thread, 2),
    (leave_in_body, 3),
    (leave_in_call, 3),
    (leave_in_stream, 3),
    (send_malformed, 4),
)


class Load:
    """All workers, and what they found."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.seed = seed
        self.end = 0.0
        self.counts: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.memory = [0, 0]
        """KiB after the warm-up and at the end, both under load."""

    async def run(self, connections: int, seconds: float, control: Wire) -> None:
        """Keep so many connections busy for so many seconds; check what was done."""
        start = time.monotonic()
        self.end = start + seconds
        workers = [Worker(self, number) for number in range(connections)]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        await asyncio.sleep(min(WARM_UP, seconds / 3))
        self.memory[0] = (await control.value("diagnose"))["memory"]
        await asyncio.sleep(max(0.0, self.end - time.monotonic() - 0.1))
        self.memory[1] = (await control.value("diagnose"))["memory"]
        await asyncio.gather(*running)
        await self.check_records(workers, control)

    async def check_records(self, workers: list[Worker], control: Wire) -> None:
        """Compare what was acknowledged with what the server did."""
        for worker in workers:
            row = base64.b64decode(await control.value("done", worker=worker.number))
            row = row.ljust(len(worker.expected), b"\0")
            for number, (times, may_be) in enumerate(
                zip(row, worker.expected, strict=True)
            ):
                self.counts["acknowledged work"] += may_be == range(1, 2)
                if times not in may_be:
                    text = f"{worker.number}/{number}: done {times} times, not {may_be}"
                    self.failures.append(text)


# --- phases ---------------------------------------------------------------------------


async def until(
    control: Wire, hold: Callable[[Any], bool], seconds: float = 10.0
) -> dict[str, Any]:
    """Ask `diagnose` until the condition holds or time is over; return the last."""
    end = time.monotonic() + seconds
    while True:
        found: dict[str, Any] = await control.value("diagnose")
        if hold(found) or time.monotonic() > end:
            return found
        await asyncio.sleep(0.02)


async def check_blocked(port: int, control: Wire) -> None:
    """Block all worker threads, and see what goes on and what is refused."""
    limit = mcp_ref.WORKER_THREADS
    blocked = [await Wire.open(port) for _ in range(limit)]
    for wire in blocked:
        wire.send(tool_call("block", {}))
    found = await until(control, lambda d: d["counters"].get("blocked") == limit)
    number = found["counters"].get("blocked")
    require(number == limit, f"{number} threads are blocked, not {limit}")
    slowest = 0.0
    async with connected(port) as wire, connected(port) as other:
        for _ in range(50):
            slowest = max(
                slowest, await timed(wire.ask(message(1, "server/discover", {})))
            )
        await cancel_while_blocked(port, control)
        await open_listen(other, 9)
        await wire.value("toggle", worker=-1)
        slowest = max(slowest, await timed(other.event()))
        for _ in range(20):
            wire.send(tool_call("add_in_thread", {"a": 1, "b": 1}))
            slowest = max(slowest, await timed(refused(wire)))
        require(slowest < QUICK, f"something took {slowest:.3f} s meanwhile")
        for gone in blocked[::2]:  # an abandoned thread is still a busy one
            gone.writer.transport.abort()
        wire.send(tool_call("add_in_thread", {"a": 1, "b": 1}))
        await refused(wire)
        await wire.value("release")
        for still in blocked[1::2]:
            status, answer = await still.answer()
            text = answer["result"]["content"][0]["text"]
            require(status == 200 and text == "released", f"{status} {answer!r:.300}")
            still.writer.close()
        await until(control, lambda d: d["counters"].get("blocked") == 0)
        require(await wire.value("add_in_thread", a=2, b=3) == 5, "a wrong sum")
    print(
        f"{limit} threads blocked: slowest of discover, cancellation, list change and "
        f"refusal {slowest * 1000:.1f} ms"
    )


async def timed(awaitable: Awaitable[Any]) -> float:
    """Return the seconds that something takes."""
    start = time.perf_counter()
    await awaitable
    return time.perf_counter() - start


async def refused(wire: Wire) -> None:
    """Read the refusal of a call for which there is no thread."""
    status, answer = await wire.answer()
    code = answer.get("error", {}).get("code")
    require(
        status == 503 and code == 503, f"beyond the limit: {status} {answer!r:.300}"
    )
    require(int(wire.fields["retry-after"]) >= 1, "503 without Retry-After")


async def cancel_while_blocked(port: int, control: Wire) -> None:
    """Cancel an `async def` tool by disconnecting."""
    async with connected(port) as wire:
        await wire.start(tool_call("slow", {}, "token"))
    found = await until(control, lambda d: d["counters"].get("slow ended") == 1, QUICK)
    require(found["counters"].get("slow ended") == 1, "cancellation took too long")


async def check_left(
    control: Wire, before: dict[str, Any], load: Load
) -> dict[str, Any]:
    """Wait until all is quiet, then compare with the beginning."""

    def quiet(now: dict[str, Any]) -> bool:
        ended = now["counters"]["slow ended"] == now["counters"]["slow started"]
        same = ("tasks", "other threads", "descriptors", "subscriptions")
        return ended and all(now[key] <= before[key] for key in same)

    now = await until(control, quiet)
    print(f"{'':>18}{'before':>10}{'after':>10}")
    for key in ("tasks", "other threads", "workers", "descriptors", "subscriptions"):
        print(f"{key:>18}{before[key]:>10}{now[key]:>10}")
    started, ended = (now["counters"][f"slow {what}"] for what in ("started", "ended"))
    print(f"slow tools: {started} started and abandoned, {ended} cancelled")
    require(quiet(now), f"left behind: {now}")
    limit = mcp_ref.WORKER_THREADS
    require(now["workers"] <= limit, f"{now['workers']} worker threads, not {limit}")
    warm, last = load.memory[0], max(load.memory[1], now["memory"])
    print(
        f"memory: {before['memory']} KiB at the start, {warm} after the warm-up, "
        f"{load.memory[1]} at the end of the load, {now['memory']} at rest"
    )
    require(
        last <= max(warm * GROWTH, warm + SLACK), f"it grew from {warm} to {last} KiB"
    )
    return now


async def check_end(port: int, process: asyncio.subprocess.Process) -> None:
    """End the server while a stream is open and a tool runs."""
    async with connected(port) as stream, connected(port) as running:
        await open_listen(stream, 77)
        await running.start(tool_call("slow", {}, "token"))
        process.send_signal(signal.SIGTERM)
        event = await stream.event()
        require(event.get("id") == 77 and "result" in event, f"{event!r:.300}")
        require(await stream.event() is None, "the stream goes on after its result")
        seconds = await timed(process.wait())
    code = process.returncode
    require(code == 128 + signal.SIGTERM, f"exit status {code}")
    print(f"ended {seconds:.2f} s after its last stream, status {code}")


async def soak(options: argparse.Namespace) -> list[str]:
    """Run all phases; return what is broken."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            "--serve",
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        load = Load(port, options.seed)
        failures = load.failures
        try:
            async with connected(port) as control:
                before = await control.value("diagnose")
                await check_blocked(port, control)
                await load.run(options.connections, options.seconds, control)
                report(load, options.seconds)
                await check_left(control, before, load)
            await check_end(port, process)
        except (Broken, OSError, EOFError, ValueError, LookupError) as error:
            failures.append(f"{type(error).__name__}: {error}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        log.seek(0)
        text = log.read().decode(errors="replace")
        if "Traceback" in text or "ERROR" in text:
            failures.append(f"in the server's log: {text[:3000]}")
    return failures


def report(load: Load, seconds: float) -> None:
    """Print what was done."""
    names = {action.__name__ for action, _ in ACTIONS}
    total = sum(number for name, number in load.counts.items() if name in names)
    print(f"{total} actions in {seconds:.0f} s, {total / seconds:.0f} per second")
    for name, number in load.counts.most_common():
        print(f"  {number:>8}  {name}")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20260728)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return build().run(0, on_ready=_tell_port)
    failures = asyncio.run(soak(options))
    for failure in failures[:20]:
        print(f"FAILED {failure}")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


def _tell_port(url: str) -> None:
    print(url.rpartition(":")[2].partition("/")[0], flush=True)


if __name__ == "__main__":
    sys.exit(main())
