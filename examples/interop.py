#!/usr/bin/env python3
"""Drive the official clients against our server, and our client against theirs.

    python examples/interop.py                    their clients, our server
    python examples/interop.py --ours             our client, their servers
    python examples/interop.py --all --markdown   both, as tables for README.md
    python examples/interop.py --only typescript  one peer

Each peer is installed into a scratch directory (by pip or npm, some minutes the first
time, reused afterwards), and does each check over stdio and over HTTP. The exit status
is 1 if a check fails that is not the peer's own fault as KNOWN explains it, 2 if a peer
cannot be installed. Nothing is written anywhere else, and nothing is left running.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

sys.dont_write_bytecode = True  # the tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import interop_peers as texts

CHECKS = (
    *("discover", "list tools", "list resources", "list templates", "list prompts"),
    *("text", "image", "audio", "embedded resource", "resource link"),
    *("structured output", "read text", "read blob", "read template", "prompt"),
    *("completion", "elicitation: accept", "elicitation: decline", "progress"),
    *("log messages", "listen: tool list", "listen: resource", "cancel"),
    *("10 MB argument", "unknown tool", "bad arguments", "tool error"),
    *("resource not found", "unknown method"),
)
TRANSPORTS = ("stdio", "http")
THEIRS, OURS = "their client, our server", "our client, their server"
INSTALL_SECONDS = 600
RUN_SECONDS = 300
READY_SECONDS = 30
OUR_PYTHON = [sys.executable, "-B"]

NOT_OUT_OF_404 = (
    "http-29: the answer is 404 with a JSON-RPC error; the client reads the error out "
    "of 400 only"
)
UNKNOWN_TOOL = (
    "server/tools, Error Handling: an unknown tool is a protocol error (-32602); the "
    "server returns a result with isError"
)
# (half, peer, transport, check) -> what the result looks like, whose clause it breaks.
KNOWN: dict[tuple[str, str, str, str], tuple[str, str]] = {
    (THEIRS, "typescript", "http", "unknown method"): (
        "CLIENT_HTTP_NOT_IMPLEMENTED",
        NOT_OUT_OF_404,
    ),
    **{
        (OURS, peer, transport, "unknown tool"): (
            "a result instead of an error.*Unknown tool",
            UNKNOWN_TOOL,
        )
        for peer in ("python-sdk", "fastmcp")
        for transport in TRANSPORTS
    },
}

Results = dict[str, dict[str, dict[str, dict[str, str]]]]
"""half -> peer -> transport -> check -> "ok", "fails: why" or "not offered ..."."""


@dataclass(frozen=True)
class Peer:
    """An implementation to meet: how it is installed, and its two programs."""

    name: str
    title: str
    requirements: tuple[str, ...]
    """For pip if the interpreter is Python, else for npm."""
    client: str
    server: str | None
    python: bool = True

    def home(self, scratch: pathlib.Path) -> pathlib.Path:
        return scratch / self.name

    def command(self, scratch: pathlib.Path, program: str) -> list[str]:
        """Return what runs one of its programs, written where its packages are."""
        if self.name == "inspector":  # a command line, which our interpreter can drive
            interpreter, suffix = OUR_PYTHON, ".py"
        elif self.python:
            interpreter, suffix = [str(self.home(scratch) / "bin" / "python")], ".py"
        else:
            interpreter, suffix = [str(node_directory(scratch) / "node")], ".mjs"
        path = self.home(scratch) / f"interop_{program}{suffix}"
        path.write_text(getattr(self, program), encoding="utf-8")
        return [*interpreter, str(path)]


TYPESCRIPT = (
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/server@2.4.0",
    "@modelcontextprotocol/node@2.1.2",
)
PEERS = (
    Peer(
        "python-sdk",
        "Python SDK 2.3.0",
        ("mcp==2.3.0",),
        texts.SDK_CLIENT,
        texts.SDK_SERVER,
    ),
    Peer(
        "fastmcp",
        "FastMCP 4.2.3",
        ("fastmcp==4.2.3",),
        texts.FASTMCP_CLIENT,
        texts.FASTMCP_SERVER,
    ),
    Peer(
        "typescript",
        "TypeScript SDK 2.4.0",
        TYPESCRIPT,
        texts.TS_CLIENT,
        texts.TS_SERVER,
        python=False,
    ),
    Peer(
        "inspector",
        "Inspector 2.12.0",
        ("@modelcontextprotocol/inspector@2.12.0",),
        texts.INSPECTOR_CLIENT,
        None,
        python=False,
    ),
)
NODE = Peer("node", "Node 22", ("node@22",), "", None, python=False)


# --- processes: each in its own group, with an end ------------------------------------


def say(*words: object, end: str = "\n") -> None:
    """Show progress."""
    print(*words, end=end, file=sys.stderr, flush=True)


def stop(process: subprocess.Popen[str], seconds: float = 5) -> None:
    """End a process and whatever it started in its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def run(
    command: Sequence[str],
    seconds: float,
    *,
    cwd: pathlib.Path,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> tuple[int | None, str, str]:
    """Run to the end or for `seconds`; return status (None: too slow) and output.

    `on_line` gets each line of stderr as it comes.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    output: list[str] = []
    errors: list[str] = []

    def follow() -> None:
        for line in process.stderr or ():
            errors.append(line)
            if on_line is not None:
                on_line(line)

    readers = [
        threading.Thread(
            target=lambda: output.extend(process.stdout or ()), daemon=True
        ),
        threading.Thread(target=follow, daemon=True),
    ]
    for reader in readers:
        reader.start()
    status: int | None = None
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        stop(process)
        for reader in readers:
            reader.join(5)
    return status, "".join(output), "".join(errors)


@contextlib.contextmanager
def serving(command: Sequence[str], port: int, log: pathlib.Path) -> Iterator[str]:
    """Keep a server running meanwhile; yields its URL once it accepts connections."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + READY_SECONDS
            while not _accepts(port):
                if process.poll() is not None or time.monotonic() > end:
                    tail = log.read_text()[-500:]
                    raise RuntimeError(f"the server did not start: {tail}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            stop(process)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- installing -----------------------------------------------------------------------


class CannotInstall(Exception):
    """A registry refused, or a tool is missing."""


def install(peer: Peer, scratch: pathlib.Path) -> None:
    """Install a peer unless exactly this is there already; raises CannotInstall."""
    home = peer.home(scratch)
    marker = home / "installed"
    if marker.exists() and marker.read_text() == "\n".join(peer.requirements):
        return
    say(f"installing {', '.join(peer.requirements)} ...", end=" ")
    started = time.monotonic()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    env = {}
    if peer.python:
        commands = [
            [sys.executable, "-m", "venv", str(home)],
            [str(home / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-input"],
        ]
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise CannotInstall("npm is not on the PATH")
        (home / "package.json").write_text('{"private": true}')
        commands = [[npm, "install", "--no-fund", "--no-audit", "--loglevel=error"]]
        # npm takes an older release of what does not fit the node that runs it.
        if peer is not NODE:
            env["PATH"] = f"{node_directory(scratch)}{os.pathsep}{os.environ['PATH']}"
    commands[-1] += peer.requirements
    for command in commands:
        status, output, errors = run(command, INSTALL_SECONDS, cwd=home, env=env)
        if status != 0:
            say("failed")
            raise CannotInstall(f"{' '.join(command)}: {(output + errors)[-1000:]}")
    marker.write_text("\n".join(peer.requirements))
    say(f"{time.monotonic() - started:.0f} s")


def node_directory(scratch: pathlib.Path) -> pathlib.Path:
    """Return the directory of our Node, newer than many systems have it."""
    return NODE.home(scratch) / "node_modules" / ".bin"


# --- one meeting ----------------------------------------------------------------------


@dataclass
class Meeting:
    """One client and one server over one transport."""

    peer: Peer
    half: str
    transport: str
    scratch: pathlib.Path
    results: dict[str, str] = field(default_factory=dict)

    def hold(self) -> dict[str, str]:
        """Run all checks; each gets a result, also if the client does not get there."""
        say(f"{self.peer.title}, {self.half}, {self.transport}:", end=" ")
        started = time.monotonic()
        try:
            with self._target() as target:
                self._drive([*self._client(), *target])
        except RuntimeError as error:
            self.results = dict.fromkeys(CHECKS, f"fails: {error}")
        passed = sum(result == "ok" for result in self.results.values())
        say(f" {passed} of {len(CHECKS)} ok, {time.monotonic() - started:.0f} s")
        return self.results

    @contextlib.contextmanager
    def _target(self) -> Iterator[list[str]]:
        """Yield what the client is told: a command line, or the URL of a server."""
        theirs = self.half == THEIRS
        command = (
            [*OUR_PYTHON, str(HERE / "interop_server.py")]
            if theirs
            else self.peer.command(self.scratch, "server")
        )
        if self.transport == "stdio":
            yield command if theirs else [*command, "stdio"]
            return
        port = free_port()
        command += ["--http", str(port)] if theirs else ["http", str(port)]
        with serving(command, port, self.scratch / "server.log") as url:
            yield [url]

    def _client(self) -> list[str]:
        if self.half == THEIRS:
            return self.peer.command(self.scratch, "client")
        path = self.scratch / "our_client.py"
        path.write_text(texts.OUR_CLIENT, encoding="utf-8")
        return [*OUR_PYTHON, str(path)]

    def _drive(self, command: Sequence[str]) -> None:
        begun: list[str] = []

        def on_line(line: str) -> None:
            if line.startswith("check "):
                begun.append(line[6:].strip())
                say(".", end="")

        with self._environment() as env:
            status, output, errors = run(
                command, RUN_SECONDS, cwd=self.scratch, env=env, on_line=on_line
            )
        lines = output.splitlines()
        with contextlib.suppress(IndexError, ValueError):
            self.results = json.loads(lines[-1])
        end = f"after {RUN_SECONDS} s" if status is None else f"with status {status}"
        last = errors.strip().splitlines()[-1:] if status else []
        for name in CHECKS:
            missing = f"fails: the client ended {end} {' '.join(last)}"
            self.results.setdefault(name, missing[:600])

    @contextlib.contextmanager
    def _environment(self) -> Iterator[dict[str, str]]:
        """Yield the client's environment; the Inspector's daemon ends with it."""
        home = self.scratch / "home"
        home.mkdir(exist_ok=True)
        env = {"HOME": str(home), "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
        if self.half == OURS:
            env["PYTHONPATH"] = str(HERE.parent)
        if self.peer.name != "inspector":
            yield env
            return
        mcpdo = self.peer.home(self.scratch) / "node_modules" / ".bin" / "mcpdo"
        env["PATH"] = f"{node_directory(self.scratch)}{os.pathsep}{os.environ['PATH']}"
        env["INTEROP_MCPDO"] = str(mcpdo)
        env["MCP_INSPECTOR_SECRET_STORE"] = "file"
        env["MCP_INSPECTOR_DAEMON_TOKEN"] = secrets.token_urlsafe(32)
        # The path of a socket has to be short.
        with tempfile.TemporaryDirectory(prefix="mcpdo-") as directory:
            env["MCP_INSPECTOR_DAEMON_DIR"] = directory
            try:
                yield env
            finally:
                run([str(mcpdo), "daemon", "stop"], 30, cwd=self.scratch, env=env)


# --- what came of it ------------------------------------------------------------------


def known(half: str, peer: str, transport: str, check: str, result: str) -> str | None:
    """Return the note on a failure that is the peer's, else None."""
    pattern, note = KNOWN.get((half, peer, transport, check), ("", ""))
    return note if note and re.search(pattern, result, re.DOTALL) else None


def word(half: str, peer: str, transport: str, check: str, result: str) -> str:
    """Return the cell of the matrix for a result."""
    if result == "ok":
        return "ok"
    if result.startswith("not offered"):
        return "-"
    return "peer" if known(half, peer, transport, check, result) else "FAILS"


def cell(half: str, peer: str, check: str, found: dict[str, dict[str, str]]) -> str:
    """Return one cell for all transports: one word, or a word for each."""
    words = [word(half, peer, one, check, found[one][check]) for one in found]
    if len(set(words)) == 1:
        return words[0]
    return ", ".join(f"{one} {each}" for one, each in zip(found, words))


def matrix(half: str, peers: dict[str, dict[str, dict[str, str]]]) -> list[list[str]]:
    """Return a table of cells, the header first."""
    titles = {peer.name: peer.title for peer in PEERS}
    rows = [[half, *(titles[name] for name in peers)]]
    for check in CHECKS:
        cells = [cell(half, name, check, found) for name, found in peers.items()]
        rows.append([check, *cells])
    return rows


def show(rows: list[list[str]], markdown: bool) -> None:
    """Print a table."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for number, row in enumerate(rows):
        cells = [text.ljust(width) for text, width in zip(row, widths)]
        line = f"| {' | '.join(cells)} |" if markdown else "  ".join(cells)
        print(line.rstrip())
        if markdown and number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print()


def notes(results: Results) -> tuple[list[str], list[str]]:
    """Return what explains the cells, each note once, and our own failures."""
    notes: dict[str, None] = {}
    ours = []
    for half, peer, transport, check, result in _flat(results):
        if result.startswith("not offered"):
            notes[f"- {peer}, {check}: {result}"] = None
        elif result != "ok":
            note = known(half, peer, transport, check, result)
            if note:
                notes[f"peer: {peer}, {check}: {note}"] = None
            else:
                ours.append(f"{half}, {peer}, {transport}, {check}: {result}")
    return list(notes), ours


def _flat(results: Results) -> Iterator[tuple[str, str, str, str, str]]:
    for half, peers in results.items():
        for peer, transports in peers.items():
            for transport, checks in transports.items():
                for check, result in checks.items():
                    yield half, peer, transport, check, result


def has_client() -> bool:
    """Tell whether this mcp_ref.py has a client."""
    import mcp_ref

    return hasattr(mcp_ref, "Client")


def measure(
    peers: Sequence[Peer], halves: Sequence[str], scratch: pathlib.Path
) -> Results:
    """Install the peers and hold all meetings."""
    if not all(peer.python for peer in peers):
        install(NODE, scratch)
    for peer in peers:
        install(peer, scratch)
    results: Results = {}
    for half in halves:
        for peer in peers:
            if half == OURS and peer.server is None:
                continue
            results.setdefault(half, {})[peer.name] = {
                transport: Meeting(peer, half, transport, scratch).hold()
                for transport in TRANSPORTS
            }
    return results


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = pathlib.Path(tempfile.gettempdir()) / "mcp_ref-interop"
    add = parser.add_argument
    add("--scratch", type=pathlib.Path, default=default, help="default: %(default)s")
    add("--only", action="append", choices=[peer.name for peer in PEERS])
    add("--ours", action="store_true", help="our client, their servers")
    add("--all", action="store_true", help="both halves")
    add("--json", type=pathlib.Path, metavar="FILE", help="write all results there")
    add("--markdown", action="store_true", help="print the tables for README.md")
    options = parser.parse_args()
    peers = [peer for peer in PEERS if not options.only or peer.name in options.only]
    halves = [OURS] if options.ours else [THEIRS, OURS] if options.all else [THEIRS]
    if OURS in halves and not has_client():
        say("this mcp_ref.py has no client yet: that half is left out")
        halves.remove(OURS)
    scratch = options.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        results = measure(peers, halves, scratch)
    except CannotInstall as error:
        say(f"interop: {error}")
        return 2
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    for half, found in results.items():
        show(matrix(half, found), options.markdown)
    explained, ours = notes(results)
    for note in explained:
        print(f"* `{note.replace(' ', '` ', 1)}" if options.markdown else note)
    for failure in ours:
        say(f"FAILS: {failure}")
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
