#!/usr/bin/env python3
"""The server that benchmark.py puts under load: add, echo, and toggle.

    python examples/bench_server.py stdio
    python examples/bench_server.py http PORT

Options: --sync makes `add` a plain `def` (it runs in a worker thread), --tools N
registers N more tools, --maxbody BYTES takes longer messages than the default.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from mcp_ref import HttpLimits, Server


def build(sync: bool = False, tools: int = 0) -> Server:
    """Build the server."""
    server = Server("bench", "1.0")
    if sync:

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two integers."""
            return a + b

    else:

        @server.tool(name="add")
        async def add_on_the_loop(a: int, b: int) -> int:
            """Add two integers."""
            return a + b

    @server.tool
    async def echo(text: str) -> str:
        """Return the text."""
        return text

    async def extra(x: int) -> int:
        """Be there or not."""
        return x

    shown = False

    @server.tool
    async def toggle() -> str:
        """Change the list of tools: the tool `extra` comes and goes."""
        nonlocal shown
        shown = not shown
        if shown:
            server.tool(extra)
        else:
            server.remove_tool("extra")
        return "on" if shown else "off"

    async def generated(x: int, y: str = "z") -> str:
        """Make the list of tools long."""
        return "x"

    for number in range(tools):
        server.tool(generated, name=f"generated_{number}")
    return server


def main() -> int:
    """Serve until the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["stdio", "http"])
    parser.add_argument("port", nargs="?", type=int, default=8000)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--tools", type=int, default=0)
    parser.add_argument("--maxbody", type=int, default=64 * 1024 * 1024)
    options = parser.parse_args()
    server = build(options.sync, options.tools)
    if options.mode == "stdio":
        return server.run(limit=options.maxbody)
    return server.run(options.port, limits=HttpLimits(body_bytes=options.maxbody))


if __name__ == "__main__":
    sys.exit(main())
