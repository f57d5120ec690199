#!/usr/bin/env python3
"""Measure mcp_ref beside the official SDKs: the same tool, the same minutes, one table.

    python examples/benchmark.py --peer /path/to/python   # one that has `mcp` installed
    python examples/benchmark.py --quick --only http --only stdio

Without --peer only what has an absolute target is judged. --node DIR is a directory
where `npm install @modelcontextprotocol/server` was run; it adds the TypeScript SDK on
stdio. Linux only: processor time and memory come from /proc.

How: all servers of a row are started together and take turns, round by round. A figure
is the median of the rounds, a ratio the median of the rounds' ratios, so that what else
the machine does hits both sides. "us" is the server's processor time per answer, which
moves least. Every answer is kept and checked once the clock has stopped; a wrong one
ends the run. Load and servers share the machine's cores, so fast servers are rather
better than shown. Differences under 10 % are noise.

Exit status: 0; 1 if something failed or, with --check, a target is missed by more than
10 %; 2 for usage. Ctrl-C shows what is measured already.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import pathlib
import re
import resource
import select
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1.0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
NAMES = ("http", "one", "stdio", "start", "listen", "tools", "large")
TICKS = os.sysconf("SC_CLK_TCK")

# --- the servers ----------------------------------------------------------------------

OUR_SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from mcp_ref import Server
server = Server("adder", "1.0")
@server.tool
async def add(a: int, b: int) -> int:
    "Add two integers."
    return a + b
server.run()
"""

PEER_SCRIPT = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("adder", log_level="WARNING")
@server.tool()
async def add(a: int, b: int) -> int:
    "Add two integers."
    return a + b
server.run("stdio")
"""

PEER_SERVER = '''
import sys
from mcp.server.mcpserver import Context, MCPServer
import mcp.types as types

def option(name):
    return int(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else 0

server = MCPServer("bench", log_level="WARNING")
if "--sync" in sys.argv:
    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two integers."""
        return a + b
else:
    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two integers."""
        return a + b

@server.tool()
async def echo(text: str) -> str:
    """Return the text."""
    return text

async def extra(x: int) -> int:
    """Be there or not."""
    return x

shown = False

@server.tool()
async def toggle(ctx: Context) -> str:
    """Change the list of tools: the tool `extra` comes and goes."""
    global shown
    shown = not shown
    if shown:
        server.add_tool(extra, name="extra")
    else:
        server.remove_tool("extra")
    await ctx.notify_tools_changed()
    return "on" if shown else "off"

async def generated(x: int, y: str = "z") -> str:
    """Make the list of tools long."""
    return "x"

for number in range(option("--tools")):
    server.add_tool(generated, name=f"generated_{number}")
if option("--streams"):  # its default cap is 1,024
    from mcp.server.subscriptions import ListenHandler
    server._lowlevel_server.add_request_handler(
        "subscriptions/listen",
        types.SubscriptionsListenRequestParams,
        ListenHandler(server._subscriptions, max_subscriptions=option("--streams")),
    )
if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    options = {"json_response": True} if "--json" in sys.argv else {}
    server.run(
        "streamable-http",
        host="127.0.0.1",
        port=int(sys.argv[2]),
        max_request_body_size=64 * 1024 * 1024,
        **options,
    )
'''

NODE_SERVER = """
import { pathToFileURL } from "node:url";
import { createRequire } from "node:module";
const require = createRequire(process.argv[2] + "/x.js");
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { McpServer, fromJsonSchema } = await load("@modelcontextprotocol/server");
const { serveStdio } = await load("@modelcontextprotocol/server/stdio");
serveStdio(() => {
  const server = new McpServer({ name: "bench", version: "1.0" });
  const integer = { type: "integer" };
  const properties = { a: integer, b: integer };
  const required = ["a", "b"];
  const inputSchema = fromJsonSchema({ type: "object", properties, required });
  const description = "Add two integers.";
  server.registerTool("add", { description, inputSchema }, async ({ a, b }) => ({
    content: [{ type: "text", text: String(a + b) }],
    structuredContent: { result: a + b },
  }));
  return server;
});
"""


class Failed(Exception):
    """What must not happen in a measurement: a wrong answer, a dead server."""


@dataclass
class Bench:
    """The options, and how the servers are started."""

    python: str
    peer: str | None
    node: str | None
    node_directory: str | None
    directory: pathlib.Path
    rounds: int
    seconds: float
    messages: int
    starts: int
    streams: int

    def environment(self) -> dict[str, str]:
        """Return the servers' environment: byte code is cached, as for any user."""
        return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}

    def ours(self, *arguments: object) -> list[str]:
        return [self.python, str(HERE / "bench_server.py"), *map(str, arguments)]

    def peers(self, *arguments: object) -> list[str]:
        script = self._file("peer_server.py", PEER_SERVER)
        return [str(self.peer), script, *map(str, arguments)]

    def our_script(self) -> list[str]:
        return [self.python, self._file("our_script.py", OUR_SCRIPT), str(ROOT)]

    def peer_script(self) -> list[str]:
        return [str(self.peer), self._file("peer_script.py", PEER_SCRIPT)]

    def node_server(self) -> list[str]:
        script = self._file("node_server.mjs", NODE_SERVER)
        return [str(self.node), script, str(self.node_directory)]

    def _file(self, name: str, content: str) -> str:
        path = self.directory / name
        if not path.exists():
            path.write_text(content)
        return str(path)


class Process:
    """A server process; /proc tells what it uses."""

    def __init__(self, bench: Bench, command: Sequence[str], **pipes: Any) -> None:
        self.command = command
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command, env=bench.environment(), stderr=subprocess.DEVNULL, **pipes
        )

    def cpu(self) -> float:
        """Return the seconds of processor time so far."""
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def status(self, name: str) -> int:
        """Return a number of /proc/PID/status: VmRSS and VmHWM (KiB), Threads."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
        if found is None:
            raise Failed(f"the server has ended: {self.command}")
        return int(found[1])

    def forget_peak(self) -> None:
        """Start VmHWM again from the memory in use now."""
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def stop(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if self.process.stdin is None:
            self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class HttpProcess(Process):
    """A server on a port of its own; `command` gets the port."""

    def __init__(self, bench: Bench, command: Callable[..., list[str]], *more: object):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        super().__init__(bench, command("http", self.port, *more), **quiet)
        while not self._ready():
            if self.process.poll() is not None:
                raise Failed(f"the server did not start: {' '.join(self.command)}")
            if time.perf_counter() - self.started > 60:
                self.stop()
                raise Failed(f"the server does not answer: {' '.join(self.command)}")
            time.sleep(0.02)

    def _ready(self) -> bool:
        try:
            self.call("server/discover", {})
        except OSError:
            return False
        return True

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def request(
        self, id: Any, method: str, params: dict[str, Any], name: str | None = None
    ) -> bytes:
        body = message(id, method, params)
        mirrored = "" if name is None else f"Mcp-Name: {name}\r\n"
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            "User-Agent: benchmark/1.0\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\n"
            f"MCP-Protocol-Version: {VERSION}\r\nMcp-Method: {method}\r\n{mirrored}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def add_request(self, number: int) -> bytes:
        return self.request(number, "tools/call", add_params(number), "add")

    def call(
        self, method: str, params: dict[str, Any], name: str | None = None
    ) -> tuple[float, Any]:
        """Send one request on a new connection; return seconds and the response."""
        data = self.request(1, method, params, name)
        with self.connect() as connection:
            start = time.perf_counter()
            connection.sendall(data)
            answer = Answer()
            while not answer.feed(connection.recv(1 << 20)):
                pass
            seconds = time.perf_counter() - start
        return seconds, answer.response()


class StdioProcess(Process):
    """A server on stdio that has answered server/discover, after `ready` seconds."""

    def __init__(self, bench: Bench, command: Sequence[str]) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        super().__init__(bench, command, **pipes)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input = self.process.stdin.fileno()
        self.output = self.process.stdout.fileno()
        self.rest = b""
        self.write(message("ready", "server/discover", {}) + b"\n")
        first = json.loads(self.lines()[0])
        self.ready = time.perf_counter() - self.started
        if "supportedVersions" not in first.get("result", {}):
            raise Failed(f"server/discover answered {first}")

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.input, view) :]

    def lines(self) -> list[bytes]:
        """Wait for at least one whole line."""
        while True:
            chunk = os.read(self.output, 1 << 18)
            if not chunk:
                raise Failed(f"the server has ended: {' '.join(self.command)}")
            *found, self.rest = (self.rest + chunk).split(b"\n")
            if found:
                return found


# --- messages -------------------------------------------------------------------------


def message(id: Any, method: str, params: dict[str, Any]) -> bytes:
    """Build a request."""
    params = {**params, "_meta": META}
    request = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    return json.dumps(request, separators=(",", ":")).encode()


def add_params(number: int) -> dict[str, Any]:
    """Return a call whose right answer to id n is 3n + 7."""
    return {"name": "add", "arguments": {"a": number, "b": 2 * number + 7}}


def check_add(number: int, response: Any) -> None:
    """Raise Failed unless it is the right answer."""
    with contextlib.suppress(KeyError, TypeError, IndexError):
        result = response["result"]
        if (
            response["id"] == number
            and result["resultType"] == "complete"
            and not result.get("isError")
            and result["content"][0]["text"] == str(3 * number + 7)
        ):
            return
    raise Failed(f"wrong answer to request {number}: {response!r:.500}")


_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb"\r\ncontent-type:[ \t]*text/event-stream", re.IGNORECASE)


class Answer:
    """One HTTP response as it comes in: JSON with a length, or a chunked SSE stream."""

    __slots__ = ("have", "head", "parts", "want")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.have = 0
        self.head = 0
        self.want = 0

    def feed(self, data: bytes) -> bool:
        """Take bytes; return whether it is complete."""
        if not data:
            raise ConnectionError("the server closed the connection")
        self.parts.append(data)
        self.have += len(data)
        if not self.head:
            self._measure()
        if self.want >= 0:
            return bool(self.head) and self.have >= self.want
        return (b"".join(self.parts[-2:])).endswith(b"\r\n0\r\n\r\n")

    def _measure(self) -> None:
        data = b"".join(self.parts)
        self.head = data.find(b"\r\n\r\n") + 4
        if self.head == 3:
            self.head = 0
            return
        length = _LENGTH.search(data, 0, self.head)
        self.want = self.head + int(length[1]) if length else -1

    def response(self) -> Any:
        """Return the JSON-RPC response in it. Not for while the clock runs."""
        data = b"".join(self.parts)
        head, body = data[: self.head], data[self.head :]
        if head[9:12] != b"200":
            raise Failed(f"HTTP error: {data[:500]!r}")
        if self.want < 0:
            body = unchunk(body)
        if _STREAM.search(head):
            body = [x[5:] for x in body.splitlines() if x.startswith(b"data:")][-1]
        return json.loads(body)


def unchunk(data: bytes) -> bytes:
    """Undo `Transfer-Encoding: chunked`."""
    found: list[bytes] = []
    position = 0
    while True:
        end = data.index(b"\r\n", position)
        size = int(data[position:end], 16)
        if size == 0:
            return b"".join(found)
        found.append(data[end + 2 : end + 2 + size])
        position = end + 2 + size + 2


# --- load -----------------------------------------------------------------------------


@dataclass
class Load:
    """What one round of load gave."""

    rate: float
    cpu: float
    """Microseconds of the server's processor time per answer."""


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keep our own garbage collector out of the measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def http_load(server: HttpProcess, connections: int, seconds: float) -> Load:
    """Call `add` on keep-alive connections, one request outstanding on each.

    Kept lean, because it runs on the cores of the server that it measures: requests are
    filled in, an answer as long as the last one is taken to be whole.
    """
    template = add_template(server)
    number = 10**6  # so that all requests are equally long
    answers: list[tuple[int, Answer | bytes]] = []
    opened = {c.fileno(): c for c in (server.connect() for _ in range(connections))}
    current: dict[int, tuple[int, Answer]] = {}
    usual = 0
    with no_collection(), contextlib.closing(select.epoll()) as poll:
        cpu, start = server.cpu(), time.perf_counter()
        end = start + seconds
        for descriptor, connection in opened.items():
            poll.register(descriptor, select.EPOLLIN)
            number += 1
            connection.sendall(template % (number, number, 2 * number + 7))
            current[descriptor] = number, Answer()
        waiting = connections
        while waiting:
            for descriptor, _ in poll.poll(30):
                connection = opened[descriptor]
                data = connection.recv(65536)
                id, answer = current[descriptor]
                if len(data) == usual and not answer.have:
                    answers.append((id, data))
                elif answer.feed(data):
                    usual = len(data)
                    answers.append((id, answer))
                    answer = Answer()
                else:
                    continue
                if time.perf_counter() < end:
                    number += 1
                    connection.sendall(template % (number, number, 2 * number + 7))
                    current[descriptor] = number, answer
                else:
                    waiting -= 1
        elapsed, cpu = time.perf_counter() - start, server.cpu() - cpu
    for connection in opened.values():
        connection.close()
    for id, found in answers:
        check_add(id, response_of(found))
    return Load(len(answers) / elapsed, cpu / len(answers) * 1e6)


def add_template(server: HttpProcess) -> bytes:
    """Return a request with a place for the id and both arguments, 7 digits each."""
    request = server.add_request(10**6)
    assert b"%" not in request
    return request.replace(b"1000000", b"%d").replace(b"2000007", b"%d")


def response_of(found: Answer | bytes) -> Any:
    if isinstance(found, bytes):
        data, found = found, Answer()
        if not found.feed(data):
            raise Failed(f"half an answer: {data!r:.500}")
    return found.response()


def stdio_load(server: StdioProcess, window: int, count: int) -> Load:
    """Call `add` `count` times with `window` requests outstanding."""
    requests = [message(n, "tools/call", add_params(n)) + b"\n" for n in range(count)]
    answers: list[bytes] = []
    with no_collection():
        cpu, start = server.cpu(), time.perf_counter()
        server.write(b"".join(requests[:window]))
        sent = window
        while len(answers) < count:
            lines = server.lines()
            answers += lines
            if sent < count:
                server.write(b"".join(requests[sent : sent + len(lines)]))
                sent += len(lines)
        elapsed, cpu = time.perf_counter() - start, server.cpu() - cpu
    missing = set(range(count))
    for line in answers:
        response = json.loads(line)
        check_add(response.get("id"), response)
        missing.discard(response["id"])
    if missing or len(answers) != count:
        raise Failed(f"{len(missing)} answers are missing")
    return Load(count / elapsed, cpu / count * 1e6)


# --- listen streams -------------------------------------------------------------------


@dataclass
class Listening:
    """What open listen streams cost, and how fast a change reaches them."""

    opened: float
    first: float
    last: float
    kib: float
    threads: int


class Stream:
    """One listen request; what came is checked when the clock has stopped."""

    __slots__ = ("connection", "data", "id", "told")

    def __init__(self, id: str) -> None:
        self.id = id
        self.data = b""
        self.told = 0.0
        self.connection = socket.socket()
        self.connection.setblocking(False)

    def check(self, method: str) -> None:
        """Raise Failed unless the last message is this one, with our id."""
        lines = [x for x in self.data.splitlines() if x.startswith(b"data:")]
        found = json.loads(lines[-1][5:]) if lines else {}
        meta = found.get("params", {}).get("_meta", {})
        if found.get("method") != method or meta.get(SUBSCRIPTION_ID) != self.id:
            raise Failed(f"wrong message on stream {self.id}: {self.data[:500]!r}")
        self.data = b""


def listening(server: HttpProcess, count: int, changes: int) -> Listening:
    """Open streams, change the list of tools a few times."""
    for _ in range(100):
        check_add(1, server.call("tools/call", add_params(1), "add")[1])
    before = server.status("VmRSS")
    with selectors.DefaultSelector() as selector:
        start = time.perf_counter()
        streams = open_streams(server, count, selector)
        opened = time.perf_counter() - start
        time.sleep(0.5)
        kib = (server.status("VmRSS") - before) / count
        firsts, lasts = [], []
        for _ in range(changes):
            first, last = change(server, streams, selector)
            firsts.append(first)
            lasts.append(last)
            time.sleep(0.2)
        threads = server.status("Threads")
    for stream in streams:
        stream.connection.close()
    return Listening(
        opened, statistics.median(firsts), statistics.median(lasts), kib, threads
    )


def open_streams(
    server: HttpProcess, count: int, selector: selectors.BaseSelector
) -> list[Stream]:
    """Open streams, 64 at a time, each until it is acknowledged."""
    streams: list[Stream] = []
    opening, done = 0, 0
    deadline = time.perf_counter() + 120
    while done < count:
        while opening < 64 and len(streams) < count:
            stream = Stream(f"listen-{len(streams)}")
            streams.append(stream)
            stream.connection.connect_ex(("127.0.0.1", server.port))
            selector.register(stream.connection, selectors.EVENT_WRITE, stream)
            opening += 1
        for key, events in selector.select(5):
            stream = key.data
            if events & selectors.EVENT_WRITE:
                wanted = {"notifications": {"toolsListChanged": True}}
                data = server.request(stream.id, "subscriptions/listen", wanted)
                stream.connection.send(data)
                selector.modify(key.fileobj, selectors.EVENT_READ, stream)
                continue
            data = stream.connection.recv(65536)
            stream.data += data
            if not data or b'"error"' in stream.data:
                raise Failed(f"stream {stream.id} was refused: {stream.data[:300]!r}")
            if ended(stream.data, b"subscriptions/acknowledged"):
                stream.check("notifications/subscriptions/acknowledged")
                opening, done = opening - 1, done + 1
        if time.perf_counter() > deadline:
            raise Failed(f"{count - done} streams were not acknowledged")
    return streams


def ended(data: bytes, method: bytes) -> bool:
    """Tell whether an event with this method is there to its end."""
    position = data.find(method)
    return position >= 0 and b"\n" in data[position:]


def change(
    server: HttpProcess, streams: list[Stream], selector: selectors.BaseSelector
) -> tuple[float, float]:
    """Change the list of tools; return when the first and the last stream were told."""
    for key, _ in selector.select(0):  # keep-alive comments
        key.fileobj.recv(65536)  # type: ignore[union-attr]
    waiting = {stream.connection.fileno(): stream for stream in streams}
    for stream in streams:
        stream.data = b""
    call = {"name": "toggle", "arguments": {}}
    request = server.request(1, "tools/call", call, "toggle")
    with (
        server.connect() as connection,
        no_collection(),
        contextlib.closing(select.epoll()) as poll,
    ):
        for descriptor in waiting:
            poll.register(descriptor, select.EPOLLIN)
        start = time.perf_counter()
        connection.sendall(request)
        while waiting:
            ready = poll.poll(30)
            if not ready:
                raise Failed(f"{len(waiting)} streams were not told")
            for descriptor, _ in ready:
                stream = waiting[descriptor]
                data = stream.connection.recv(65536)
                stream.data = stream.data + data if stream.data else data
                if ended(stream.data, b"tools/list_changed"):
                    stream.told = time.perf_counter()
                    poll.unregister(descriptor)
                    del waiting[descriptor]
                elif not data:
                    raise Failed(f"stream {stream.id} was closed")
        answer = Answer()
        while not answer.feed(connection.recv(65536)):
            pass
    if answer.response()["result"]["content"][0]["text"] not in ("on", "off"):
        raise Failed("toggle did not work")
    told = [stream.told - start for stream in streams]
    for stream in streams:
        stream.check("notifications/tools/list_changed")
    return min(told), max(told)


# --- rows -----------------------------------------------------------------------------


@dataclass
class Row:
    """A line of the table. `value` is what the target is for: a ratio or a figure."""

    work: str
    ours: str
    peer: str
    value: float | None
    sense: str
    target: float | None
    unit: str = "x"
    cpu: float | None = None
    """The same ratio in processor time, for comparison: neighbours hardly move it."""

    def shown(self) -> list[str]:
        """Return the cells."""
        unit = self.unit if self.unit == "x" else f" {self.unit}".rstrip()
        value = "-" if self.value is None else f"{figure(self.value)}{unit}"
        if self.cpu is not None:
            value += f" (cpu {figure(self.cpu)}x)"
        goal = "-" if self.target is None else f"{self.sense} {self.target:.3g}{unit}"
        return [self.work, self.ours, self.peer, value, goal, self.verdict()]

    def verdict(self) -> str:
        if self.value is None or self.target is None:
            return "-"
        return "reached" if self.misses() <= 0 else "missed"

    def misses(self) -> float:
        """Return by which part the target is missed; 0 or less if it is reached."""
        if self.value is None or self.target is None:
            return 0.0
        if self.sense == ">=":
            return 1 - self.value / self.target
        return self.value / self.target - 1


def figure(number: float) -> str:
    if number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.3g}" if number < 100 else f"{number:.0f}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


Rounds = dict[str, list[Any]]


def take_turns(
    what: str,
    rounds: int,
    jobs: Mapping[str, Callable[..., Any]],
    show: Callable[[Any], str],
) -> Rounds:
    """Run all jobs once per round, in turn."""
    found: Rounds = {name: [] for name in jobs}
    for number in range(rounds):
        for name, job in jobs.items():
            found[name].append(job())
        shown = "  ".join(f"{name} {show(found[name][-1])}" for name in jobs)
        say(f"{what}, round {number + 1} of {rounds}: {shown}")
    return found


def middle(found: Rounds, name: str, of: Callable[[Any], float]) -> float:
    return statistics.median(of(one) for one in found[name])


def ratio(
    found: Rounds, ours: str, peer: str, of: Callable[[Any], float]
) -> float | None:
    """Return the median of the rounds' ratios, None without that peer."""
    if peer not in found:
        return None
    pairs = zip(found[ours], found[peer], strict=True)
    return statistics.median(of(a) / of(b) for a, b in pairs)


def rate_of(load: Load) -> float:
    return load.rate


def shown_rate(found: Rounds, name: str) -> str:
    if name not in found:
        return "-"
    rate = figure(middle(found, name, rate_of))
    cpu = middle(found, name, lambda load: load.cpu)
    return f"{rate}/s, {cpu:.0f} us"


def load_row(
    work: str, found: Rounds, peer: str, target: float | None, ours: str = "ours"
) -> Row:
    """Compare two servers under the same load."""
    return Row(
        work,
        shown_rate(found, ours),
        shown_rate(found, peer),
        ratio(found, ours, peer, rate_of),
        ">=",
        target,
        cpu=ratio(found, ours, peer, lambda load: 1 / load.cpu),
    )


@contextlib.contextmanager
def running(**servers: Any) -> Iterator[dict[str, Any]]:
    """Start servers, but for those that are not to be had; stop them at the end."""
    started: dict[str, Any] = {}
    try:
        for name, start in servers.items():
            if start:
                started[name] = start()
        yield started
    finally:
        for server in started.values():
            server.stop()


def http_rows(bench: Bench) -> list[Row]:
    """16 connections: `async def` and plain `def`."""
    return _http_rows(bench, "async def", (10.0, 7.0)) + _http_rows(
        bench, "def", (7.0, None), "--sync"
    )


def _http_rows(
    bench: Bench, kind: str, targets: tuple[float | None, ...], *more: str
) -> list[Row]:
    with running(
        ours=lambda: HttpProcess(bench, bench.ours, *more),
        sdk=bench.peer and (lambda: HttpProcess(bench, bench.peers, *more)),
        json=bench.peer and (lambda: HttpProcess(bench, bench.peers, "--json", *more)),
    ) as servers:
        found = http_turns(bench, servers, 16, f"HTTP, 16 connections, {kind}")
    work = f"HTTP tools/call, {kind}, 16 connections"
    return [
        load_row(
            work + (", json_response" if peer == "json" else ""), found, peer, target
        )
        for peer, target in zip(("sdk", "json"), targets, strict=True)
        if peer == "sdk" or peer in found
    ]


def http_turns(
    bench: Bench, servers: dict[str, HttpProcess], connections: int, what: str
) -> Rounds:
    for server in servers.values():
        http_load(server, 16, bench.seconds / 2)
    jobs = {
        name: lambda server=server: http_load(server, connections, bench.seconds)
        for name, server in servers.items()
    }
    return take_turns(what, bench.rounds, jobs, lambda load: f"{figure(load.rate)}/s")


def one_rows(bench: Bench) -> list[Row]:
    """One connection."""
    with running(
        ours=lambda: HttpProcess(bench, bench.ours),
        sdk=bench.peer and (lambda: HttpProcess(bench, bench.peers)),
    ) as servers:
        found = http_turns(bench, servers, 1, "HTTP, 1 connection")
    return [load_row("HTTP tools/call, async def, 1 connection", found, "sdk", 3.5)]


def stdio_rows(bench: Bench) -> list[Row]:
    """Sequential, and 64 outstanding."""
    rows = []
    with running(
        ours=lambda: StdioProcess(bench, bench.ours("stdio")),
        sdk=bench.peer and (lambda: StdioProcess(bench, bench.peers("stdio"))),
        node=bench.node and (lambda: StdioProcess(bench, bench.node_server())),
    ) as servers:
        for server in servers.values():
            stdio_load(server, 64, bench.messages)
        for window, target in ((1, 3.5), (64, 15.0)):
            kind = "sequential" if window == 1 else f"{window} outstanding"
            jobs = {
                name: lambda server=server: stdio_load(
                    server,
                    window,  # noqa: B023
                    bench.messages,
                )
                for name, server in servers.items()
            }
            found = take_turns(
                f"stdio, {kind}", bench.rounds, jobs, lambda x: f"{figure(x.rate)}/s"
            )
            for peer in ("sdk", "node") if bench.node else ("sdk",):
                against = ", TypeScript SDK" if peer == "node" else ""
                goal = target if peer == "sdk" else (1.0 if window == 64 else None)
                work = f"stdio tools/call, {kind}{against}"
                rows.append(load_row(work, found, peer, goal))
    return rows


@dataclass
class Start:
    """A start: seconds to the first answer, MiB then."""

    seconds: float
    mib: float = 0.0


def start_of(bench: Bench, command: Sequence[str]) -> Start:
    """Spawn on stdio, wait for the first answer."""
    server = StdioProcess(bench, command)
    try:
        return Start(server.ready, server.status("VmRSS") / 1024)
    finally:
        server.stop()


def import_of(bench: Bench, python: str, module: str) -> Start:
    """Run a process that only imports."""
    start = time.perf_counter()
    command = [python, "-c", f"import {module}"]
    subprocess.run(command, cwd=ROOT, env=bench.environment(), check=True)
    return Start(time.perf_counter() - start)


def start_rows(bench: Bench) -> list[Row]:
    """From spawn to the first answer on stdio, import, memory."""
    serve = [bench.python, str(ROOT / "mcp_ref.py"), "serve"]
    as_module = ["env", f"PYTHONPATH={ROOT}", bench.python, "-m", "mcp_ref", "serve"]
    jobs: dict[str, Callable[[], Start]] = {
        "serve": lambda: start_of(bench, serve),
        "module": lambda: start_of(bench, as_module),
        "script": lambda: start_of(bench, bench.our_script()),
        "import": lambda: import_of(bench, bench.python, "mcp_ref"),
    }
    if bench.peer:
        peer, module = bench.peer, "mcp.server.mcpserver"
        jobs["sdk script"] = lambda: start_of(bench, bench.peer_script())
        jobs["sdk import"] = lambda: import_of(bench, peer, module)
    for job in jobs.values():
        job()  # byte code and page cache
    found = take_turns(
        "start", bench.starts, jobs, lambda one: f"{one.seconds * 1e3:.0f} ms"
    )

    def row(work: str, ours: str, peer: str, target: float | None) -> Row:
        def ms(name: str) -> str:
            if name not in found:
                return "-"
            return f"{middle(found, name, lambda x: x.seconds) * 1e3:.0f} ms"

        value = ratio(found, ours, peer, lambda one: one.seconds)
        return Row(work, ms(ours), ms(peer), value, "<=", target)

    def memory(work: str, ours: str) -> Row:
        def mib(name: str) -> float:
            return middle(found, name, lambda one: one.mib)

        peer = f"{mib('sdk script'):.1f} MiB" if bench.peer else "-"
        value = mib(ours)
        return Row(work, f"{value:.1f} MiB", peer, value, "<=", 28, "MiB")

    return [
        row("spawn to first answer, mcp_ref.py serve", "serve", "sdk script", 0.2),
        row("spawn to first answer, -m mcp_ref serve", "module", "sdk script", None),
        row("spawn to first answer, in a script", "script", "sdk script", 0.15),
        row("import, the whole process", "import", "sdk import", 1 / 6),
        memory("memory after start, in a script", "script"),
        memory("memory after start, mcp_ref.py serve", "serve"),
    ]


def listen_rows(bench: Bench) -> list[Row]:
    """Many subscriptions/listen streams, one change."""
    changes = 3 if bench.rounds < 5 else 5

    def measure(command: Callable[..., list[str]], *more: object) -> Listening:
        server = HttpProcess(bench, command, *more)
        try:
            return listening(server, bench.streams, changes)
        finally:
            server.stop()

    cap = ("--streams", 2 * bench.streams)
    jobs = {"ours": lambda: measure(bench.ours)}
    if bench.peer:
        jobs["sdk"] = lambda: measure(bench.peers, *cap)
    found = take_turns(
        f"{bench.streams:,} listen streams",
        1 if bench.rounds < 5 else 2,
        jobs,
        lambda one: f"opened in {one.opened:.2f} s, told in {one.last * 1e3:.0f} ms",
    )

    def row(
        what: str,
        unit: str,
        of: Callable[[Listening], float],
        target: float | None,
        absolute: bool = False,
    ) -> Row:
        shown = {
            name: f"{figure(middle(found, name, of))} {unit}" if name in found else "-"
            for name in ("ours", "sdk")
        }
        value = (
            middle(found, "ours", of) if absolute else ratio(found, "ours", "sdk", of)
        )
        work = f"{bench.streams:,} listen streams, {what}"
        return Row(
            work,
            shown["ours"],
            shown["sdk"],
            value,
            "<=",
            target,
            unit if absolute else "x",
        )

    return [
        row("opened", "s", lambda one: one.opened, None),
        row("first told", "ms", lambda one: one.first * 1e3, None),
        row("last told", "ms", lambda one: one.last * 1e3, 1 / 8),
        row("memory of each", "KiB", lambda one: one.kib, 8, absolute=True),
        row("threads", "", lambda one: one.threads, 1, absolute=True),
    ]


def tools_rows(bench: Bench) -> list[Row]:
    """1,000 tools: the list, and calls beside a server with three."""
    count = 1000
    with running(
        ours=lambda: HttpProcess(bench, bench.ours, "--tools", count),
        sdk=bench.peer and (lambda: HttpProcess(bench, bench.peers, "--tools", count)),
        few=lambda: HttpProcess(bench, bench.ours),
    ) as servers:

        def list_time(server: HttpProcess) -> float:
            seconds, response = server.call("tools/list", {})
            names = {tool["name"] for tool in response["result"]["tools"]}
            if not {f"generated_{i}" for i in range(count)} | {"add"} <= names:
                raise Failed(f"{len(names)} tools were listed")
            return seconds

        jobs = {
            name: lambda server=server: statistics.median(
                list_time(server) for _ in range(5)
            )
            for name, server in servers.items()
            if name != "few"
        }
        listed = take_turns(
            "1,000 tools, tools/list", bench.rounds, jobs, lambda s: f"{s * 1e3:.1f} ms"
        )
        ours_only = {name: servers[name] for name in ("ours", "few")}
        calls = http_turns(bench, ours_only, 16, "1,000 tools and 3 tools, calls")
    shown = {
        name: f"{middle(listed, name, float) * 1e3:.1f} ms" if name in listed else "-"
        for name in ("ours", "sdk")
    }
    return [
        Row(
            "1,000 tools, tools/list",
            shown["ours"],
            shown["sdk"],
            ratio(listed, "ours", "sdk", float),
            "<=",
            0.1,
        ),
        load_row(
            "1,000 tools, tools/call; beside it: ours with 3 tools", calls, "few", 0.9
        ),
    ]


@dataclass
class Large:
    """A large message: seconds, and MiB above what was in use before."""

    seconds: float
    mib: float


def large_rows(bench: Bench) -> list[Row]:
    """An argument of 10 million characters."""
    piece = "abcdefghij\u00e9\n"
    text = (piece * (10**7 // len(piece) + 1))[: 10**7]

    def echo(server: HttpProcess) -> Large:
        call = {"name": "echo", "arguments": {"text": text}}
        before = server.status("VmRSS")
        server.forget_peak()
        seconds, response = server.call("tools/call", call, "echo")
        peak = server.status("VmHWM")
        if response["result"]["content"][0]["text"] != text:
            raise Failed("the text came back changed")
        return Large(seconds, (peak - before) / 1024)

    with running(
        ours=lambda: HttpProcess(bench, bench.ours),
        sdk=bench.peer and (lambda: HttpProcess(bench, bench.peers)),
    ) as servers:
        jobs = {name: lambda s=server: echo(s) for name, server in servers.items()}
        found = take_turns(
            "10 MB argument",
            bench.rounds + 2,
            jobs,
            lambda x: f"{x.seconds * 1e3:.0f} ms, {x.mib:.0f} MiB",
        )
    rows = []
    for what, unit, of in (
        ("time", "ms", lambda one: one.seconds * 1e3),
        # The first message makes the heap grow; what counts is the highest of all.
        ("extra memory", "MiB", lambda one: one.mib),
    ):
        best: Callable[..., float] = statistics.median if unit == "ms" else max
        figures = {name: best(map(of, ones)) for name, ones in found.items()}
        value = figures["ours"] / figures["sdk"] if "sdk" in figures else None
        if unit == "ms":
            value = ratio(found, "ours", "sdk", of)
        shown = {
            name: f"{figures[name]:.0f} {unit}" if name in figures else "-"
            for name in ("ours", "sdk")
        }
        rows.append(
            Row(
                f"10 MB argument, {what}",
                shown["ours"],
                shown["sdk"],
                value,
                "<=",
                0.75,
            )
        )
    return rows


ROWS: dict[str, Callable[[Bench], list[Row]]] = {
    "http": http_rows,
    "one": one_rows,
    "stdio": stdio_rows,
    "start": start_rows,
    "listen": listen_rows,
    "tools": tools_rows,
    "large": large_rows,
}
HEAD = ["Work", "mcp_ref", "official SDK", "value", "target", ""]


def table(rows: Sequence[Row]) -> str:
    """Write rows as a Markdown table."""
    cells = [HEAD, *(row.shown() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEAD))]
    cells.insert(1, ["-" * width for width in widths])
    lines = (
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )
    return "\n".join(f"| {line} |" for line in lines)


# --- the command line -----------------------------------------------------------------


def open_files(wanted: int) -> int:
    """Raise our limit of open files, which servers inherit; return what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


def version_of(python: str, package: str | None = None) -> str:
    code = "import platform; print(platform.python_version())"
    if package:
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
    run = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"benchmark.py: {python} has no {package or 'Python'}")
    return run.stdout.strip()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--peer", metavar="PYTHON", help="an interpreter that has `mcp` installed")
    add("--node", metavar="DIR", help="where @modelcontextprotocol/server is installed")
    add(
        "--python",
        help="the interpreter that runs mcp_ref (default: a bare venv of this)",
    )
    add(
        "--only",
        action="append",
        choices=NAMES,
        help="only these rows; may be repeated",
    )
    add("--quick", action="store_true", help="fewer and shorter rounds")
    add("--streams", type=int, default=5000, help="listen streams (default: 5000)")
    add("--json", metavar="FILE", help="write the rows there too")
    add(
        "--check",
        action="store_true",
        help="exit status 1 if a target is missed by 10 %%",
    )
    return parser.parse_args()


def prepare(options: argparse.Namespace, directory: pathlib.Path) -> Bench:
    """Make a Bench of the options."""
    python = options.python
    if python is None:
        # Bare, so that what is installed beside this interpreter does not count.
        venv.EnvBuilder(with_pip=False, symlinks=True).create(directory / "venv")
        python = str(directory / "venv" / "bin" / "python")
    node = None
    if options.node:
        local = pathlib.Path(options.node, "node_modules", ".bin", "node")
        node = str(local) if local.exists() else "node"
    say(f"mcp_ref: Python {version_of(python)}")
    if options.peer:
        mcp, its = version_of(options.peer, "mcp"), version_of(options.peer)
        say(f"official SDK: mcp {mcp}, Python {its}")
    quick = options.quick
    return Bench(
        python=python,
        peer=options.peer,
        node=node,
        node_directory=options.node and os.path.abspath(options.node),
        directory=directory,
        rounds=3 if quick else 5,
        seconds=1.0 if quick else 3.0,
        messages=1000 if quick else 3000,
        starts=5 if quick else 15,
        streams=options.streams,
    )


def main() -> int:
    """Measure, print the table, return the exit status."""
    options = arguments()
    names = options.only or list(NAMES)
    wanted = options.streams + 200
    if "listen" in names and open_files(wanted) < wanted:
        say(f"benchmark.py: {options.streams} streams need `ulimit -n {wanted}`")
        return 2
    with tempfile.TemporaryDirectory(prefix="mcp_ref_bench") as directory:
        bench = prepare(options, pathlib.Path(directory))
        rows: list[Row] = []
        status = 0
        try:
            for name in names:
                rows += ROWS[name](bench)
        except Failed as error:
            say(f"benchmark.py: {error}")
            status = 1
        except KeyboardInterrupt:
            status = 130  # what is measured already is shown
    print(table(rows))
    if options.json:
        text = json.dumps([asdict(row) | {"verdict": row.verdict()} for row in rows])
        pathlib.Path(options.json).write_text(text)
    late = [row.work for row in rows if row.misses() > 0.1]
    return status or int(bool(options.check and late))


if __name__ == "__main__":
    sys.exit(main())
