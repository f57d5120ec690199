#!/usr/bin/env python3
"""The client that the official conformance suite drives.

Run by the suite as `conformance_client.py URL`, a new process per scenario; the
environment names the scenario. https://github.com/modelcontextprotocol/conformance
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import sys
from collections.abc import Callable, Coroutine
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from mcp_ref import Client, McpError, TransportError

Scenario = Callable[[str, dict[str, Any]], Coroutine[Any, Any, None]]


async def accept(client: Client, params: Any) -> Any:
    """Accept a form with its defaults, and agree to everything that is a yes or no."""
    properties = params.get("requestedSchema", {}).get("properties", {})
    yes = {k: True for k, v in properties.items() if v.get("type") == "boolean"}
    return {"action": "accept", "content": yes}


async def model(client: Client, params: Any) -> Any:
    """Stand in for a model."""
    content = {"type": "text", "text": "a sampled answer"}
    return {"role": "assistant", "content": content, "model": "none"}


def connect(url: str) -> Client:
    """Make a client with all capabilities."""
    return Client(url, on_elicit=accept, on_sample=model, roots=["/tmp"])


def arguments(tool: Any) -> dict[str, Any]:
    """Make up arguments: whatever the schema requires."""
    made_up = {"string": "text", "integer": 1, "number": 1.5, "boolean": True}
    schema = tool.get("inputSchema", {})
    properties = schema.get("properties", {})
    return {
        name: made_up.get(properties.get(name, {}).get("type"), "text")
        for name in schema.get("required", ())
    }


async def call_everything(url: str, context: dict[str, Any]) -> None:
    """List the tools and call each: what most scenarios want."""
    async with connect(url) as client:
        for tool in await client.list_tools():
            await client.call_tool(tool["name"], arguments(tool))


async def add_numbers(url: str, context: dict[str, Any]) -> None:
    """Call the adding machine."""
    async with connect(url) as client:
        await client.list_tools()
        await client.call_tool("add_numbers", {"a": 5, "b": 3})


async def list_only(url: str, context: dict[str, Any]) -> None:
    """List the tools; nothing in their schemas may be fetched."""
    async with connect(url) as client:
        await client.list_tools()


async def request_state(url: str, context: dict[str, Any]) -> None:
    """Let the server ask back, in the order that the scenario prescribes."""
    async with connect(url) as client:
        for name in ("echo_state", "unrelated", "no_state", "no_result_type"):
            await client.call_tool(f"test_mrtr_{name}")


async def standard_headers(url: str, context: dict[str, Any]) -> None:
    """Use everything that has a name or URI to mirror."""
    async with connect(url) as client:
        for tool in await client.list_tools():
            await client.call_tool(tool["name"], arguments(tool))
        for resource in await client.list_resources():
            await client.read_resource(resource["uri"])
        for prompt in await client.list_prompts():
            await client.get_prompt(prompt["name"])


async def custom_headers(url: str, context: dict[str, Any]) -> None:
    """Make exactly the calls that the scenario gives."""
    async with connect(url) as client:
        await client.list_tools()
        for call in context["toolCalls"]:
            await client.call_tool(call["name"], call["arguments"])


async def echo_schema(url: str, context: dict[str, Any]) -> None:
    """Give a schema back as it came."""
    async with connect(url) as client:
        tools = {tool["name"]: tool for tool in await client.list_tools()}
        schema = tools["json_schema_2020_12_tool"]["inputSchema"]
        await client.call_tool("json_schema_echo", {"schema": schema})


SCENARIOS: dict[str, Scenario] = {
    "tools_call": add_numbers,
    "request-metadata": call_everything,
    "sep-2322-client-request-state": request_state,
    "http-standard-headers": standard_headers,
    "http-custom-headers": custom_headers,
    "http-invalid-tool-headers": call_everything,
    "json-schema-ref-no-deref": list_only,
    "json-schema-2020-12-preservation": echo_schema,
}


def main() -> int:
    """Run the scenario that the environment names against the URL."""
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    run = SCENARIOS.get(scenario, call_everything)
    try:
        asyncio.run(run(sys.argv[-1], context))
    except (McpError, TransportError, TimeoutError) as error:
        print(f"{scenario}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
