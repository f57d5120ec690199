#!/usr/bin/env python3
"""The server that the official conformance suite wants to meet.

    python examples/conformance_server.py --port 8000

The suite (@modelcontextprotocol/conformance) calls tools, resources and prompts by
fixed names and looks at what comes back. Each is written here the way a user of mcp_ref
would write it: a tour of what a handler can return, report and ask.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import pathlib
import sys
from dataclasses import dataclass
from typing import Annotated, Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from mcp_ref import (
    Context,
    Message,
    Server,
    ToolError,
    audio,
    elicitation,
    embedded,
    image,
    list_roots,
    sampling,
    text,
    user,
)

# One red pixel, and a tenth of a millisecond of silence.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAA"
    "AABJRU5ErkJggg=="
)
WAV = base64.b64decode(
    "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQIAAAAAAA=="
)

server = Server(
    "mcp_ref conformance fixture",
    "1.0.0",
    instructions="Fixture of the MCP conformance suite.",
)


# --- tools: what can be returned ------------------------------------------------------


@server.tool
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@server.tool
def test_image_content() -> Any:
    """Return an image."""
    return image(PNG, "image/png")


@server.tool
def test_audio_content() -> Any:
    """Return a sound."""
    return audio(WAV, "audio/wav")


@server.tool
def test_embedded_resource() -> Any:
    """Return an embedded resource."""
    return embedded(
        "test://embedded-resource",
        "This is an embedded resource content.",
        "text/plain",
    )


@server.tool
def test_multiple_content_types() -> Any:
    """Return a text, an image and a resource."""
    return [
        text("Multiple content types test:"),
        image(PNG, "image/png"),
        embedded(
            "test://mixed-content-resource", '{"test":"data"}', "application/json"
        ),
    ]


@server.tool
def test_error_handling() -> str:
    """Fail, in a way that the model is told about."""
    raise ToolError("This tool intentionally returns an error for testing")


# --- tools: progress and logging, on the stream of the request ------------------------


@server.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress three times."""
    for percent in (0, 50, 100):
        await ctx.progress(percent, 100, f"Completed step {percent} of 100")
        await asyncio.sleep(0.05)
    return "done"


@server.tool
async def test_logging_tool(ctx: Context) -> str:
    """Log a line, for requests that carry a log level."""
    await ctx.log("info", "Tool execution started")
    return "logged if that was wanted"


# --- tools: parameters ----------------------------------------------------------------


@server.tool
def test_x_mcp_header(
    region: Annotated[str, "Where to look", {"x-mcp-header": "Region"}] = "anywhere",
) -> str:
    """Take an argument that HTTP clients repeat in the header Mcp-Param-Region."""
    return f"region: {region}"


@server.tool(
    schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {
                    "street": {"type": "string"},
                    "city": {"type": "string"},
                },
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
def json_schema_2020_12_tool(**arguments: Any) -> str:
    """Take arguments that a JSON Schema describes, given outright."""
    return f"received {', '.join(arguments)}"


# --- tools: questions to the client ---------------------------------------------------


@dataclass
class Named:
    name: str


@dataclass
class Coloured:
    color: str


@dataclass
class Confirmed:
    ok: bool


@server.tool
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Ask the user for a name."""
    answer = await ctx.elicit("What is your name?", Named, key="user_name")
    return f"Hello, {answer.value.name}!" if answer.accepted else "Hello, stranger!"


@server.tool
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Ask the client's model."""
    answer = await ctx.sample("What is the capital of France?", max_tokens=100)
    return f"The model says: {answer['content']['text']}"


@server.tool
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Ask for the client's roots."""
    return " ".join(root["uri"] for root in await ctx.roots())


@server.tool
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Ask; what is known meanwhile travels in requestState."""
    answer = await ctx.elicit("Please confirm", Confirmed)
    return "state-ok" if answer.accepted else "declined"


@server.tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Ask the user, the model and the client in one round."""
    answers = await ctx.ask(
        user_name=elicitation("What is your name?", Named),
        greeting=sampling("Generate a greeting", 50),
        client_roots=list_roots(),
    )
    return f"{len(answers)} answers"


@server.tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Ask twice, one question after the other."""
    first = await ctx.elicit("Step 1: What is your name?", Named)
    second = await ctx.elicit("Step 2: What is your favorite color?", Coloured)
    if not (first.accepted and second.accepted):
        return "declined"
    return f"{first.value.name} likes {second.value.color}"


@server.tool
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Ask; a requestState that was tampered with is refused."""
    answer = await ctx.elicit("Please confirm", Confirmed)
    return "confirmed" if answer.accepted else "declined"


@server.tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Ask only for what the client has declared that it can do."""
    questions = {}
    if ctx.supports("elicitation"):
        questions["user_name"] = elicitation("What is your name?", Named)
    if ctx.supports("sampling"):
        questions["greeting"] = sampling("Generate a greeting", 50)
    answers = await ctx.ask(**questions)
    return f"asked for {', '.join(answers) or 'nothing'}"


@server.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Ask, where earlier revisions would have sent a request on the stream."""
    answer = await ctx.elicit("Please confirm", Confirmed)
    return str(answer.action)


@server.tool
async def test_missing_capability(ctx: Context) -> str:
    """Need a capability; a client that did not declare it gets an error."""
    answer = await ctx.sample("Hello", max_tokens=10)
    return str(answer["content"]["text"])


# --- tools: changes, told to those who listen -----------------------------------------


@server.tool
def test_trigger_tool_change() -> str:
    """Change the list of tools for a moment."""

    def test_short_lived_tool() -> None:
        """Be there and be gone."""

    server.tool(test_short_lived_tool)
    server.remove_tool("test_short_lived_tool")
    return "changed"


@server.tool
def test_trigger_prompt_change() -> str:
    """Change the list of prompts for a moment."""

    def test_short_lived_prompt() -> str:
        """Be there and be gone."""
        return "gone"

    server.prompt(test_short_lived_prompt)
    server.remove_prompt("test_short_lived_prompt")
    return "changed"


# --- resources ------------------------------------------------------------------------


@server.resource("test://static-text", title="Static text", mime_type="text/plain")
def static_text() -> str:
    """A text that never changes."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", title="Static image", mime_type="image/png")
def static_binary() -> bytes:
    """An image that never changes."""
    return PNG


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """A resource to subscribe to."""
    return "Watched resource content."


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> Any:
    """Data by id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# --- prompts --------------------------------------------------------------------------


@server.prompt
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(
    arg1: Annotated[str, "First test argument"],
    arg2: Annotated[str, "Second test argument"],
) -> str:
    """A prompt with two required arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


server.complete("test_prompt_with_arguments", "arg1", values=["paris", "park", "party"])


@server.prompt
def test_prompt_with_embedded_resource(
    resourceUri: Annotated[str, "URI of the resource to embed"],
) -> list[Message]:
    """A prompt that embeds a resource."""
    return [
        user(embedded(resourceUri, "Embedded resource content.", "text/plain")),
        user("Please process the embedded resource above."),
    ]


@server.prompt
def test_prompt_with_image() -> list[Message]:
    """A prompt that shows an image."""
    return [
        user(image(PNG, "image/png")),
        user("Please analyze the image above."),
    ]


@dataclass
class PromptContext:
    context: str


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks the user for its context first."""
    answer = await ctx.elicit("What context should the prompt use?", PromptContext)
    return f"Use this context: {answer.value.context if answer.accepted else 'none'}"


def main() -> int:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    return server.run(http=parser.parse_args().port)


if __name__ == "__main__":
    sys.exit(main())
