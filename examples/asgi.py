#!/usr/bin/env python3
"""The endpoint as an ASGI application, for as many workers as you like.

    MCP_KEY=$(openssl rand -hex 32) uvicorn --app-dir examples asgi:app --workers 2

All workers sign with the same key, so that a question asked by one can be answered at
another; nothing else is shared.

    python examples/asgi.py --check PYTHON

runs that, and the same endpoint mounted in a Starlette application, with an interpreter
that has uvicorn and starlette, and asks questions across workers. Exit status 0 or 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from mcp_ref import Client, Context, Server  # noqa: E402: found through the line above

KEY = os.environ.get("MCP_KEY", "").encode()
server = Server("asgi example", "1.0", keys=[KEY] if KEY else ())


@server.tool
async def whoami() -> int:
    """Tell which process answers."""
    return os.getpid()


@server.tool
async def greet(ctx: Context) -> dict[str, Any]:
    """Ask for a name; tell which process asked, and which got the answer."""
    asked_by = await ctx.once("asked", os.getpid)
    answer = await ctx.elicit("What is your name?", str)
    name = answer.value if answer.accepted else "stranger"
    return {"text": f"Hello, {name}!", "asked": asked_by, "answered": os.getpid()}


@server.tool
async def steps(ctx: Context) -> str:
    """Report progress, so that the answer is a stream."""
    for step in range(1, 4):
        await ctx.progress(step, 3)
    return "done"


app = server.asgi

MOUNTED = """
import sys
sys.path.insert(0, {examples!r})
import asgi
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
hello = Route("/", lambda request: PlainTextResponse("a web page"))
app = Starlette(routes=[hello, Mount("/api", app=asgi.app)])
"""


# --- the check --------------------------------------------------------------------------


@contextlib.contextmanager
def uvicorn(python: str, directory: str, name: str, *options: str) -> Iterator[int]:
    """Run uvicorn until the block ends; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [python, "-m", "uvicorn", "--app-dir", directory, "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--log-level", "warning", *options, name],
        env={**os.environ, "MCP_KEY": secrets.token_hex(32)},
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def call(url: str, **params: Any) -> Any:
    """Call `greet` on a connection of its own; return the result."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }
    params = {"name": "greet", "arguments": {}, **params, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "greet",
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)["result"]


async def across_workers(url: str) -> None:
    """Ask on one worker, and bring the answer until another one takes it."""
    asked = await asyncio.to_thread(call, url)
    (key,) = asked["inputRequests"]
    answer = {key: {"action": "accept", "content": {"value": "Ada"}}}
    retry = {"requestState": asked["requestState"], "inputResponses": answer}
    for _ in range(50):
        tries = [asyncio.to_thread(call, url, **retry) for _ in range(8)]
        for found in [one["structuredContent"] for one in await asyncio.gather(*tries)]:
            assert found["text"] == "Hello, Ada!", found
            if found["asked"] != found["answered"]:
                print(f"  asked by {found['asked']}, answered {found['answered']}")
                return
    raise AssertionError("no answer met the other worker in 400 tries")


async def streams(url: str) -> None:
    """Call, and get progress on the way."""
    seen: list[float] = []
    async with Client(url) as client:
        reply = await client.call_tool(
            "steps", on_progress=lambda params: seen.append(params["progress"])
        )
        assert reply.text == "done" and seen == [1, 2, 3], (reply, seen)


def check(python: str) -> int:
    """Carry out --check."""
    examples = str(pathlib.Path(__file__).resolve().parent)
    print("two workers of uvicorn")
    with uvicorn(python, examples, "asgi:app", "--workers", "2") as port:
        asyncio.run(streams(f"http://127.0.0.1:{port}/mcp"))
        asyncio.run(across_workers(f"http://127.0.0.1:{port}/mcp"))
    print("mounted in a Starlette application")
    with tempfile.TemporaryDirectory() as scratch:
        source = MOUNTED.format(examples=examples)
        (pathlib.Path(scratch) / "mounted.py").write_text(source, encoding="utf-8")
        with uvicorn(python, scratch, "mounted:app") as port:
            asyncio.run(streams(f"http://127.0.0.1:{port}/api/mcp"))
    print("ok")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="The endpoint as an ASGI application.")
    parser.add_argument("--check", metavar="PYTHON", help="one that has uvicorn")
    options = parser.parse_args()
    if options.check:
        return check(options.check)
    parser.error("run it by an ASGI server, such as: uvicorn asgi:app; or --check PYTHON")


if __name__ == "__main__":
    sys.exit(main())
