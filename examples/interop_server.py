#!/usr/bin/env python3
"""The server that interop.py lets the official clients loose on: one of each feature.

    python examples/interop_server.py               on stdio
    python examples/interop_server.py --http 8000   over HTTP

The servers of the peers in interop_peers.py offer the same under the same names.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import pathlib
import sys
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from mcp_ref import (
    JSON,
    Content,
    Context,
    Server,
    ToolError,
    audio,
    embedded,
    image,
    resource_link,
)

# One red pixel, and a tenth of a millisecond of silence.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAA"
    "AABJRU5ErkJggg=="
)
WAV = (
    b"RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0"
    b"\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\2\0\0\0\0\0"
)

server = Server("interop", "1.0", instructions="Fixture of examples/interop.py.")


# --- what a tool can return -----------------------------------------------------------


@server.tool
def say_text() -> str:
    """Return a text."""
    return "plain text"


@server.tool
def say_image() -> Content:
    """Return an image."""
    return image(PNG, "image/png")


@server.tool
def say_audio() -> Content:
    """Return a sound."""
    return audio(WAV, "audio/wav")


@server.tool
def say_embedded() -> Content:
    """Return an embedded resource."""
    return embedded("test://embedded", "embedded text", "text/plain")


@server.tool
def say_link() -> Content:
    """Return a link to a resource."""
    return resource_link("test://text", "text", mime_type="text/plain")


@dataclass
class Weather:
    city: str
    celsius: float


@server.tool
def weather(city: str) -> Weather:
    """Return structured output."""
    return Weather(city, 18.5)


@server.tool
def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool
def add(a: int, b: int) -> int:
    """Add two integers; anything else is a bad argument."""
    return a + b


@server.tool
def fail() -> str:
    """Fail, and tell the model why."""
    raise ToolError("no luck today")


# --- what a tool can do meanwhile -----------------------------------------------------


@dataclass
class Who:
    name: str


@server.tool
async def ask(ctx: Context) -> str:
    """Ask the user for a name."""
    answer = await ctx.elicit("Who are you?", Who)
    return f"accept {answer.value.name}" if answer.accepted else answer.action


@server.tool
async def count(ctx: Context, steps: int) -> str:
    """Report each step."""
    for step in range(1, steps + 1):
        await ctx.progress(step, steps, f"step {step}")
        # Some clients lose what arrives together with the response.
        await asyncio.sleep(0.02)
    return "counted"


@server.tool
async def chatter(ctx: Context) -> str:
    """Write a log message."""
    await ctx.log("info", "working", logger="interop")
    return "logged"


_cancelled = 0


@server.tool
async def hang() -> str:
    """Wait until the client gives up."""
    global _cancelled
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        _cancelled += 1
        raise
    return "nobody gave up"


@server.tool
async def cancelled_hangs() -> str:
    """Tell how many calls of `hang` were cancelled."""
    return str(_cancelled)


# --- changes --------------------------------------------------------------------------


@server.tool
def toggle() -> str:
    """Add the tool `extra`, or remove it."""

    def extra() -> str:
        """Be there."""
        return "here"

    try:
        server.remove_tool("extra")
        return "off"
    except KeyError:
        server.tool(extra)
        return "on"


@server.tool
def touch(uri: str) -> str:
    """Announce a change of a resource."""
    server.resource_updated(uri)
    return "touched"


# --- resources and prompts ------------------------------------------------------------


@server.resource("test://text", name="text", mime_type="text/plain")
def text_resource() -> str:
    """A text."""
    return "text of the resource"


@server.resource("test://blob", name="blob", mime_type="application/octet-stream")
def blob_resource() -> bytes:
    """All bytes."""
    return bytes(range(256))


@server.resource("test://item/{id}", name="item", mime_type="application/json")
def item(id: int) -> JSON:
    """An item."""
    return {"id": id}


@server.prompt
def greet(name: str) -> str:
    """Greet someone."""
    return f"Say hello to {name}"


server.complete("greet", "name", values=["Ann", "Anton", "Bert"])


def main() -> int:
    """Serve until the input ends or a signal comes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--http", metavar="[HOST:]PORT")
    return server.run(parser.parse_args().http)


if __name__ == "__main__":
    sys.exit(main())
