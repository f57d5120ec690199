"""What interop.py runs with the peers' own interpreters: their clients and servers.

These are texts, not imports, so that everything here needs the standard library only.
interop.py writes each into its scratch directory and starts it there. A client gets a URL
or a command line as arguments, names each check on stderr when it begins, and prints one
JSON object {check: "ok" | "fails: why" | "not offered by this client: why"}. A server
gets "stdio", or "http" and a port, and offers what interop_server.py offers.
"""

# --- what the clients in Python share ---------------------------------------------------

CLIENT_COMMON = r'''
import asyncio, base64, contextlib, json, sys

TARGET = sys.argv[1:]
VERSION = "2026-07-28"
TOOLS = {"say_text", "say_image", "say_audio", "say_embedded", "say_link", "weather",
         "echo", "add", "fail", "ask", "count", "chatter", "hang", "cancelled_hangs",
         "toggle", "touch"}
STEPS = [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
PNG_START, WAV_START = b"\x89PNG\r\n\x1a\n", b"RIFF"
BLOB = bytes(range(256))
BIG = "0123456789" * (10 * 1024 * 1024 // 10)
PEER, TESTS, RESULTS = "client", [], {}


class NotOffered(Exception):
    """The peer has no way to do it."""


def check(name):
    def register(test):
        TESTS.append((name, test))
        return test
    return register


def same(found, wanted):
    if found != wanted:
        raise AssertionError(f"{found!r:.300} instead of {wanted!r:.300}")


def starts(data, wanted):
    same(base64.b64decode(data)[:len(wanted)], wanted)


async def until(reached, seconds=5):
    """Wait until an async predicate holds."""
    for _ in range(int(seconds / 0.05)):
        if await reached():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the server did not notice")


async def run(client):
    for name, test in TESTS:
        print("check", name, file=sys.stderr, flush=True)
        try:
            async with asyncio.timeout(45):
                await test(client)
            RESULTS[name] = "ok"
        except NotOffered as error:
            RESULTS[name] = f"not offered by this {PEER}: {error}"
        except Exception as error:
            RESULTS[name] = f"fails: {type(error).__name__}: {error}"[:600]


def main(coroutine):
    try:
        asyncio.run(coroutine)
    finally:
        print(json.dumps(RESULTS), flush=True)
'''

# --- Python SDK: client -----------------------------------------------------------------

SDK_CLIENT = (
    CLIENT_COMMON
    + r"""
from typing import Literal
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

ANSWER = types.ElicitResult(action="accept", content={"name": "Ann"})
answer, asked, logged = [ANSWER], [], []


async def elicit(ctx, params):
    asked.append(params.message)
    return answer[0]


async def log(params):
    logged.append((params.level, params.data))


async def error_of(awaitable):
    try:
        found = await awaitable
    except MCPError as error:
        return error.error.code
    raise AssertionError(f"a result instead of an error: {found!r:.200}")


@check("discover")
async def _(c):
    same(c.protocol_version, VERSION)
    same(c.server_info.name, "interop")
    capabilities = c.server_capabilities
    same([bool(capabilities.tools), bool(capabilities.resources), bool(capabilities.prompts)],
         [True, True, True])

@check("list tools")
async def _(c):
    tools = {t.name: t for t in (await c.list_tools()).tools}
    same(TOOLS - tools.keys(), set())
    same(tools["add"].input_schema["required"], ["a", "b"])

@check("list resources")
async def _(c):
    same({str(r.uri) for r in (await c.list_resources()).resources}, {"test://text", "test://blob"})

@check("list templates")
async def _(c):
    found = (await c.list_resource_templates()).resource_templates
    same([t.uri_template for t in found], ["test://item/{id}"])

@check("list prompts")
async def _(c):
    (prompt,) = (await c.list_prompts()).prompts
    same((prompt.name, [(a.name, a.required) for a in prompt.arguments]), ("greet", [("name", True)]))

@check("text")
async def _(c):
    (block,) = (await c.call_tool("say_text", {})).content
    same((block.type, block.text), ("text", "plain text"))

@check("image")
async def _(c):
    (block,) = (await c.call_tool("say_image", {})).content
    same((block.type, block.mime_type), ("image", "image/png"))
    starts(block.data, PNG_START)

@check("audio")
async def _(c):
    (block,) = (await c.call_tool("say_audio", {})).content
    same((block.type, block.mime_type), ("audio", "audio/wav"))
    starts(block.data, WAV_START)

@check("embedded resource")
async def _(c):
    (block,) = (await c.call_tool("say_embedded", {})).content
    same((block.type, str(block.resource.uri), block.resource.text),
         ("resource", "test://embedded", "embedded text"))

@check("resource link")
async def _(c):
    (block,) = (await c.call_tool("say_link", {})).content
    same((block.type, str(block.uri), block.name), ("resource_link", "test://text", "text"))

@check("structured output")
async def _(c):
    found = await c.call_tool("weather", {"city": "Paris"})
    same(found.structured_content, {"city": "Paris", "celsius": 18.5})
    same(json.loads(found.content[0].text), found.structured_content)

@check("read text")
async def _(c):
    (entry,) = (await c.read_resource("test://text")).contents
    same((entry.text, entry.mime_type), ("text of the resource", "text/plain"))

@check("read blob")
async def _(c):
    (entry,) = (await c.read_resource("test://blob")).contents
    same(base64.b64decode(entry.blob), BLOB)

@check("read template")
async def _(c):
    (entry,) = (await c.read_resource("test://item/7")).contents
    same((str(entry.uri), json.loads(entry.text)), ("test://item/7", {"id": 7}))

@check("prompt")
async def _(c):
    (message,) = (await c.get_prompt("greet", {"name": "Bo"})).messages
    same((message.role, message.content.text), ("user", "Say hello to Bo"))

@check("completion")
async def _(c):
    ref = types.PromptReference(type="ref/prompt", name="greet")
    found = await c.complete(ref, {"name": "name", "value": "an"})
    same(found.completion.values, ["Ann", "Anton"])

@check("elicitation: accept")
async def _(c):
    answer[0] = ANSWER
    asked.clear()
    same((await c.call_tool("ask", {})).content[0].text, "accept Ann")
    same(asked, ["Who are you?"])

@check("elicitation: decline")
async def _(c):
    answer[0] = types.ElicitResult(action="decline")
    same((await c.call_tool("ask", {})).content[0].text, "decline")

@check("progress")
async def _(c):
    seen = []
    async def progress(done, total, message):
        seen.append((done, total, message))
    same((await c.call_tool("count", {"steps": 3}, progress_callback=progress)).content[0].text, "counted")
    same(seen, STEPS)

@check("log messages")
async def _(c):
    logged.clear()
    same((await c.call_tool("chatter", {})).content[0].text, "logged")
    same([level for level, data in logged], ["info"])
    same("working" in json.dumps([data for level, data in logged]), True)

@check("listen: tool list")
async def _(c):
    async with c.listen(tools_list_changed=True) as events:
        state = (await c.call_tool("toggle", {})).content[0].text
        same(await anext(events), ToolsListChanged())
        names = {t.name for t in (await c.list_tools()).tools}
        same("extra" in names, state == "on")

@check("listen: resource")
async def _(c):
    async with c.listen(resource_subscriptions=["test://text"]) as events:
        same(events.honored.resource_subscriptions, ["test://text"])
        await c.call_tool("touch", {"uri": "test://blob"})
        await c.call_tool("touch", {"uri": "test://text"})
        same(await anext(events), ResourceUpdated(uri="test://text"))

@check("cancel")
async def _(c):
    async def cancelled():
        return int((await c.call_tool("cancelled_hangs", {})).content[0].text)
    before = await cancelled()
    try:
        async with asyncio.timeout(0.3):
            await c.call_tool("hang", {})
    except TimeoutError:
        pass
    async def noticed():
        return await cancelled() == before + 1
    await until(noticed)

@check("10 MB argument")
async def _(c):
    same((await c.call_tool("echo", {"text": BIG})).content[0].text == BIG, True)

@check("unknown tool")
async def _(c):
    same(await error_of(c.call_tool("no_such_tool", {})), -32602)

@check("bad arguments")
async def _(c):
    same((await c.call_tool("add", {"a": "one", "b": 2})).is_error, True)

@check("tool error")
async def _(c):
    found = await c.call_tool("fail", {})
    same((found.is_error, "no luck today" in found.content[0].text), (True, True))

@check("resource not found")
async def _(c):
    same(await error_of(c.read_resource("test://nothing")), -32602)

@check("unknown method")
async def _(c):
    class Unknown(types.Request[types.RequestParams, Literal["interop/unknown"]]):
        method: Literal["interop/unknown"] = "interop/unknown"
        params: types.RequestParams = types.RequestParams()
    same(await error_of(c.session.send_request(Unknown(), types.EmptyResult)), -32601)


async def drive():
    target = TARGET[0] if TARGET[0].startswith("http") else StdioServerParameters(
        command=TARGET[0], args=TARGET[1:])
    async with Client(target, elicitation_callback=elicit, logging_callback=log, log_level="debug",
                      read_timeout_seconds=40, cache=None) as client:
        await run(client)

main(drive())
"""
)

# --- FastMCP: client --------------------------------------------------------------------

FASTMCP_CLIENT = (
    CLIENT_COMMON
    + r"""
from typing import Literal
import mcp_types as types
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from mcp import MCPError
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged, listen

action, asked, logged = ["accept"], [], []


async def elicit(message, response_type, params, ctx):
    asked.append(message)
    return response_type(name="Ann") if action[0] == "accept" else ElicitResult(action=action[0])


async def log(message):
    logged.append((message.level, message.data))


async def error_of(awaitable):
    try:
        found = await awaitable
    except MCPError as error:
        return error.error.code
    raise AssertionError(f"a result instead of an error: {found!r:.200}")


async def text_of(c, tool, arguments=None, **options):
    return (await c.call_tool(tool, arguments or {}, **options)).content[0].text


@check("discover")
async def _(c):
    same(c.protocol_version, VERSION)
    same(c.server_info.name, "interop")

@check("list tools")
async def _(c):
    tools = {t.name: t for t in await c.list_tools()}
    same(TOOLS - tools.keys(), set())
    same(tools["add"].input_schema["required"], ["a", "b"])

@check("list resources")
async def _(c):
    same({str(r.uri) for r in await c.list_resources()}, {"test://text", "test://blob"})

@check("list templates")
async def _(c):
    same([t.uri_template for t in await c.list_resource_templates()], ["test://item/{id}"])

@check("list prompts")
async def _(c):
    (prompt,) = await c.list_prompts()
    same((prompt.name, [(a.name, a.required) for a in prompt.arguments]), ("greet", [("name", True)]))

@check("text")
async def _(c):
    (block,) = (await c.call_tool("say_text", {})).content
    same((block.type, block.text), ("text", "plain text"))

@check("image")
async def _(c):
    (block,) = (await c.call_tool("say_image", {})).content
    same((block.type, block.mime_type), ("image", "image/png"))
    starts(block.data, PNG_START)

@check("audio")
async def _(c):
    (block,) = (await c.call_tool("say_audio", {})).content
    same((block.type, block.mime_type), ("audio", "audio/wav"))
    starts(block.data, WAV_START)

@check("embedded resource")
async def _(c):
    (block,) = (await c.call_tool("say_embedded", {})).content
    same((block.type, str(block.resource.uri), block.resource.text),
         ("resource", "test://embedded", "embedded text"))

@check("resource link")
async def _(c):
    (block,) = (await c.call_tool("say_link", {})).content
    same((block.type, str(block.uri), block.name), ("resource_link", "test://text", "text"))

@check("structured output")
async def _(c):
    found = await c.call_tool("weather", {"city": "Paris"})
    same(found.structured_content, {"city": "Paris", "celsius": 18.5})
    same((found.data.city, found.data.celsius), ("Paris", 18.5))

@check("read text")
async def _(c):
    (entry,) = await c.read_resource("test://text")
    same((entry.text, entry.mime_type), ("text of the resource", "text/plain"))

@check("read blob")
async def _(c):
    (entry,) = await c.read_resource("test://blob")
    same(base64.b64decode(entry.blob), BLOB)

@check("read template")
async def _(c):
    (entry,) = await c.read_resource("test://item/7")
    same((str(entry.uri), json.loads(entry.text)), ("test://item/7", {"id": 7}))

@check("prompt")
async def _(c):
    (message,) = (await c.get_prompt("greet", {"name": "Bo"})).messages
    same((message.role, message.content.text), ("user", "Say hello to Bo"))

@check("completion")
async def _(c):
    ref = types.PromptReference(type="ref/prompt", name="greet")
    same((await c.complete(ref, {"name": "name", "value": "an"})).values, ["Ann", "Anton"])

@check("elicitation: accept")
async def _(c):
    action[0] = "accept"
    asked.clear()
    same(await text_of(c, "ask"), "accept Ann")
    same(asked, ["Who are you?"])

@check("elicitation: decline")
async def _(c):
    action[0] = "decline"
    same(await text_of(c, "ask"), "decline")

@check("progress")
async def _(c):
    seen = []
    async def progress(done, total, message):
        seen.append((done, total, message))
    same(await text_of(c, "count", {"steps": 3}, progress_handler=progress), "counted")
    same(seen, STEPS)

@check("log messages")
async def _(c):
    logged.clear()
    same(await text_of(c, "chatter"), "logged")
    same([level for level, data in logged], ["info"])
    same("working" in json.dumps([data for level, data in logged]), True)

@check("listen: tool list")
async def _(c):
    # FastMCP's client has no listen of its own; its session is the SDK's.
    async with listen(c.session, tools_list_changed=True) as events:
        state = await text_of(c, "toggle")
        same(await anext(events), ToolsListChanged())
        same("extra" in {t.name for t in await c.list_tools()}, state == "on")

@check("listen: resource")
async def _(c):
    async with listen(c.session, resource_subscriptions=["test://text"]) as events:
        await c.call_tool("touch", {"uri": "test://blob"})
        await c.call_tool("touch", {"uri": "test://text"})
        same(await anext(events), ResourceUpdated(uri="test://text"))

@check("cancel")
async def _(c):
    before = int(await text_of(c, "cancelled_hangs"))
    try:
        await asyncio.wait_for(c.call_tool("hang", {}), 0.3)
    except TimeoutError:
        pass
    async def noticed():
        return int(await text_of(c, "cancelled_hangs")) == before + 1
    await until(noticed)

@check("10 MB argument")
async def _(c):
    same(await text_of(c, "echo", {"text": BIG}) == BIG, True)

@check("unknown tool")
async def _(c):
    same(await error_of(c.call_tool("no_such_tool", {})), -32602)

@check("bad arguments")
async def _(c):
    found = await c.call_tool("add", {"a": "one", "b": 2}, raise_on_error=False)
    same(found.is_error, True)

@check("tool error")
async def _(c):
    try:
        await c.call_tool("fail", {})
    except ToolError as error:
        same("no luck today" in str(error), True)
    else:
        raise AssertionError("no ToolError")

@check("resource not found")
async def _(c):
    same(await error_of(c.read_resource("test://nothing")), -32602)

@check("unknown method")
async def _(c):
    class Unknown(types.Request[types.RequestParams, Literal["interop/unknown"]]):
        method: Literal["interop/unknown"] = "interop/unknown"
        params: types.RequestParams = types.RequestParams()
    same(await error_of(c.session.send_request(Unknown(), types.EmptyResult)), -32601)


async def drive():
    target = TARGET[0] if TARGET[0].startswith("http") else StdioTransport(
        TARGET[0], TARGET[1:], keep_alive=False)
    async with Client(target, elicitation_handler=elicit, log_handler=log, timeout=40,
                      cache=False) as client:
        await run(client)

main(drive())
"""
)

# --- TypeScript SDK: client -------------------------------------------------------------

TS_CLIENT = r"""
import { Client, LOG_LEVEL_META_KEY, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';

const target = process.argv.slice(2);
const VERSION = '2026-07-28';
const TOOLS = ['say_text', 'say_image', 'say_audio', 'say_embedded', 'say_link', 'weather',
  'echo', 'add', 'fail', 'ask', 'count', 'chatter', 'hang', 'cancelled_hangs', 'toggle', 'touch'];
const BIG = '0123456789'.repeat(10 * 1024 * 1024 / 10);
const results = {}, tests = [];
const check = (name, test) => tests.push([name, test]);
const show = value => String(JSON.stringify(value)).slice(0, 300);
const same = (found, wanted) => {
  if (!isDeepStrictEqual(found, wanted)) throw new Error(`${show(found)} instead of ${show(wanted)}`);
};
const starts = (data, wanted) => same(Buffer.from(data, 'base64').subarray(0, wanted.length).toString('latin1'), wanted);
const within = (seconds, promise) => new Promise((done, fail) => {
  const timer = setTimeout(() => fail(new Error(`nothing for ${seconds} s`)), seconds * 1000);
  promise.then(done, fail).finally(() => clearTimeout(timer));
});
const codeOf = async promise => {
  let found;
  try { found = await promise; } catch (error) { return error.code ?? String(error); }
  throw new Error(`a result instead of an error: ${show(found)}`);
};

// The default is the handshake of earlier revisions: this one has to be asked for.
const c = new Client({ name: 'interop', version: '1' }, {
  capabilities: { elicitation: { form: {} } },
  versionNegotiation: { mode: { pin: VERSION } },
});
let answer; const asked = [], logged = [];
c.setRequestHandler('elicitation/create', async request => { asked.push(request.params.message); return answer; });
c.setNotificationHandler('notifications/message', n => { logged.push([n.params.level, n.params.data]); });
const call = (name, args = {}, options = undefined) => c.callTool({ name, arguments: args }, options);
const text = async (name, args, options) => (await call(name, args, options)).content[0].text;
const arrival = method => new Promise(done => c.setNotificationHandler(method, done));

check('discover', async () => {
  same(c.getNegotiatedProtocolVersion(), VERSION);
  same(c.getServerVersion().name, 'interop');
  const found = c.getServerCapabilities();
  same([!!found.tools, !!found.resources, !!found.prompts], [true, true, true]);
});
check('list tools', async () => {
  const tools = new Map((await c.listTools()).tools.map(tool => [tool.name, tool]));
  same(TOOLS.filter(name => !tools.has(name)), []);
  same(tools.get('add').inputSchema.required, ['a', 'b']);
});
check('list resources', async () =>
  same((await c.listResources()).resources.map(one => one.uri).sort(), ['test://blob', 'test://text']));
check('list templates', async () =>
  same((await c.listResourceTemplates()).resourceTemplates.map(one => one.uriTemplate), ['test://item/{id}']));
check('list prompts', async () => {
  const { prompts } = await c.listPrompts();
  same(prompts.map(one => [one.name, one.arguments.map(a => [a.name, a.required])]), [['greet', [['name', true]]]]);
});
check('text', async () => {
  const [block] = (await call('say_text')).content;
  same([block.type, block.text], ['text', 'plain text']);
});
check('image', async () => {
  const [block] = (await call('say_image')).content;
  same([block.type, block.mimeType], ['image', 'image/png']);
  starts(block.data, '\x89PNG\r\n\x1a\n');
});
check('audio', async () => {
  const [block] = (await call('say_audio')).content;
  same([block.type, block.mimeType], ['audio', 'audio/wav']);
  starts(block.data, 'RIFF');
});
check('embedded resource', async () => {
  const [block] = (await call('say_embedded')).content;
  same([block.type, block.resource.uri, block.resource.text], ['resource', 'test://embedded', 'embedded text']);
});
check('resource link', async () => {
  const [block] = (await call('say_link')).content;
  same([block.type, block.uri, block.name], ['resource_link', 'test://text', 'text']);
});
check('structured output', async () => {
  const found = await call('weather', { city: 'Paris' });
  same(found.structuredContent, { city: 'Paris', celsius: 18.5 });
  same(JSON.parse(found.content[0].text), found.structuredContent);
});
check('read text', async () => {
  const [entry] = (await c.readResource({ uri: 'test://text' })).contents;
  same([entry.text, entry.mimeType], ['text of the resource', 'text/plain']);
});
check('read blob', async () => {
  const [entry] = (await c.readResource({ uri: 'test://blob' })).contents;
  same([...Buffer.from(entry.blob, 'base64')], [...Array(256).keys()]);
});
check('read template', async () => {
  const [entry] = (await c.readResource({ uri: 'test://item/7' })).contents;
  same([entry.uri, JSON.parse(entry.text)], ['test://item/7', { id: 7 }]);
});
check('prompt', async () => {
  const [message] = (await c.getPrompt({ name: 'greet', arguments: { name: 'Bo' } })).messages;
  same([message.role, message.content.text], ['user', 'Say hello to Bo']);
});
check('completion', async () => {
  const found = await c.complete({ ref: { type: 'ref/prompt', name: 'greet' }, argument: { name: 'name', value: 'an' } });
  same(found.completion.values, ['Ann', 'Anton']);
});
check('elicitation: accept', async () => {
  answer = { action: 'accept', content: { name: 'Ann' } };
  asked.length = 0;
  same(await text('ask'), 'accept Ann');
  same(asked, ['Who are you?']);
});
check('elicitation: decline', async () => {
  answer = { action: 'decline' };
  same(await text('ask'), 'decline');
});
check('progress', async () => {
  const seen = [];
  same(await text('count', { steps: 3 }, { onprogress: p => seen.push([p.progress, p.total, p.message]) }), 'counted');
  same(seen, [[1, 3, 'step 1'], [2, 3, 'step 2'], [3, 3, 'step 3']]);
});
check('log messages', async () => {
  logged.length = 0;
  const found = await c.callTool({ name: 'chatter', arguments: {}, _meta: { [LOG_LEVEL_META_KEY]: 'debug' } });
  same(found.content[0].text, 'logged');
  same(logged, [['info', 'working']]);
});
check('listen: tool list', async () => {
  const changed = arrival('notifications/tools/list_changed');
  const events = await c.listen({ toolsListChanged: true });
  const state = await text('toggle');
  await within(10, changed);
  same((await c.listTools()).tools.some(tool => tool.name === 'extra'), state === 'on');
  await events.close();
});
check('listen: resource', async () => {
  const changed = arrival('notifications/resources/updated');
  const events = await c.listen({ resourceSubscriptions: ['test://text'] });
  same(events.honoredFilter.resourceSubscriptions, ['test://text']);
  await call('touch', { uri: 'test://blob' });
  await call('touch', { uri: 'test://text' });
  same((await within(10, changed)).params.uri, 'test://text');
  await events.close();
});
check('cancel', async () => {
  const before = Number(await text('cancelled_hangs'));
  const abort = new AbortController();
  setTimeout(() => abort.abort(), 300);
  await call('hang', {}, { signal: abort.signal }).then(() => { throw new Error('not cancelled'); }, () => {});
  for (let tries = 0; Number(await text('cancelled_hangs')) !== before + 1; tries++) {
    if (tries > 100) throw new Error('the server did not notice');
    await new Promise(done => setTimeout(done, 50));
  }
});
check('10 MB argument', async () => same(await text('echo', { text: BIG }) === BIG, true));
check('unknown tool', async () => same(await codeOf(call('no_such_tool')), -32602));
check('bad arguments', async () => same((await call('add', { a: 'one', b: 2 })).isError, true));
check('tool error', async () => {
  const found = await call('fail');
  same([found.isError, found.content[0].text.includes('no luck today')], [true, true]);
});
check('resource not found', async () => same(await codeOf(c.readResource({ uri: 'test://nothing' })), -32602));
check('unknown method', async () =>
  same(await codeOf(c.request({ method: 'interop/unknown', params: {} }, z.any())), -32601));

const transport = target[0].startsWith('http')
  ? new StreamableHTTPClientTransport(new URL(target[0]))
  : new StdioClientTransport({ command: target[0], args: target.slice(1), maxBufferSize: 64 * 1024 * 1024 });
try {
  await c.connect(transport, { timeout: 20000 });
  for (const [name, test] of tests) {
    console.error('check', name);
    try {
      await within(45, test());
      results[name] = 'ok';
    } catch (error) { results[name] = `fails: ${error}`.slice(0, 600); }
  }
} finally {
  await new Promise(done => process.stdout.write(JSON.stringify(results) + '\n', done));
}
await within(10, c.close());
process.exit(0);
"""

# --- Inspector: its command line with a connection that stays open ----------------------

INSPECTOR_CLIENT = (
    CLIENT_COMMON
    + r'''
import os, pathlib, subprocess

MCPDO = os.environ["INTEROP_MCPDO"]


def mcpdo(*arguments, expect=0):
    """Run one command on the connection; return its JSON output."""
    done = subprocess.run([MCPDO, "--format", "json", "--connection", "interop", *arguments],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    if done.returncode != expect:
        raise AssertionError(f"exit {done.returncode}: {done.stdout[:200]}{done.stderr[:300]}")
    return json.loads(done.stdout) if done.stdout.strip() else json.loads(done.stderr)


def call(tool, *arguments, expect=0):
    return mcpdo("tools/call", tool, *arguments, expect=expect)


def block_of(tool):
    (block,) = call(tool)["content"]
    return block


@contextlib.contextmanager
def watching(*arguments):
    """Run a command that prints as things happen; yields a function that waits for a text."""
    path = pathlib.Path(os.environ["HOME"], "watched")
    with path.open("w") as out:
        process = subprocess.Popen([MCPDO, "--format", "json", "--connection", "interop", *arguments],
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    async def wait_for(text, seconds=8):
        for _ in range(int(seconds / 0.05)):
            if text in path.read_text():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{text!r} did not come, but {path.read_text()!r:.300}")
    try:
        yield wait_for
    finally:
        process.terminate()
        process.wait(10)


@check("discover")
async def _(c):
    found = mcpdo("connections/show")
    same((found["protocolVersion"], found["protocolEra"]), (VERSION, "modern"))
    same(found["serverInfo"]["name"], "interop")
    same({"tools", "resources", "prompts"} - found["capabilities"].keys(), set())

@check("list tools")
async def _(c):
    tools = {t["name"]: t for t in mcpdo("tools/list")["tools"]}
    same(TOOLS - tools.keys(), set())
    same(tools["add"]["inputSchema"]["required"], ["a", "b"])

@check("list resources")
async def _(c):
    same({r["uri"] for r in mcpdo("resources/list")["resources"]}, {"test://text", "test://blob"})

@check("list templates")
async def _(c):
    found = mcpdo("resources/templates/list")["resourceTemplates"]
    same([t["uriTemplate"] for t in found], ["test://item/{id}"])

@check("list prompts")
async def _(c):
    (prompt,) = mcpdo("prompts/list")["prompts"]
    same((prompt["name"], [a["name"] for a in prompt["arguments"]]), ("greet", ["name"]))

@check("text")
async def _(c):
    block = block_of("say_text")
    same((block["type"], block["text"]), ("text", "plain text"))

@check("image")
async def _(c):
    block = block_of("say_image")
    same((block["type"], block["mimeType"]), ("image", "image/png"))
    starts(block["data"], PNG_START)

@check("audio")
async def _(c):
    block = block_of("say_audio")
    same((block["type"], block["mimeType"]), ("audio", "audio/wav"))
    starts(block["data"], WAV_START)

@check("embedded resource")
async def _(c):
    block = block_of("say_embedded")
    same((block["type"], block["resource"]["uri"], block["resource"]["text"]),
         ("resource", "test://embedded", "embedded text"))

@check("resource link")
async def _(c):
    block = block_of("say_link")
    same((block["type"], block["uri"], block["name"]), ("resource_link", "test://text", "text"))

@check("structured output")
async def _(c):
    same(call("weather", "city:=Paris")["structuredContent"], {"city": "Paris", "celsius": 18.5})

@check("read text")
async def _(c):
    (entry,) = mcpdo("resources/read", "test://text")["contents"]
    same((entry["text"], entry["mimeType"]), ("text of the resource", "text/plain"))

@check("read blob")
async def _(c):
    (entry,) = mcpdo("resources/read", "test://blob")["contents"]
    same(base64.b64decode(entry["blob"]), BLOB)

@check("read template")
async def _(c):
    (entry,) = mcpdo("resources/read", "test://item/7")["contents"]
    same((entry["uri"], json.loads(entry["text"])), ("test://item/7", {"id": 7}))

@check("prompt")
async def _(c):
    (message,) = mcpdo("prompts/get", "greet", "--prompt-args", "name=Bo")["messages"]
    same((message["role"], message["content"]["text"]), ("user", "Say hello to Bo"))

@check("completion")
async def _(c):
    found = mcpdo("prompts/complete", "--complete-ref-type", "ref/prompt", "--complete-ref", "greet",
                  "--complete-arg-name", "name", "--complete-arg-value", "an")
    same(found["values"], ["Ann", "Anton"])

def answer(*arguments):
    pending = call("ask")["elicitationPending"]
    same(pending["message"], "Who are you?")
    found = mcpdo("elicitation/respond", pending["elicitationId"], *arguments)
    return found["content"][0]["text"]

@check("elicitation: accept")
async def _(c):
    same(answer("name:=Ann"), "accept Ann")

@check("elicitation: decline")
async def _(c):
    same(answer("--decline"), "decline")

@check("progress")
async def _(c):
    raise NotOffered("the command line shows no progress")

@check("log messages")
async def _(c):
    with watching("logging/tail") as wait_for:
        await asyncio.sleep(1.5)
        same(call("chatter", "--metadata", "io.modelcontextprotocol/logLevel=debug")["content"][0]["text"], "logged")
        await wait_for("working")

@check("listen: tool list")
async def _(c):
    state = call("toggle")["content"][0]["text"]
    same("extra" in {t["name"] for t in mcpdo("tools/list")["tools"]}, state == "on")
    raise NotOffered("the command line does not show changes of lists")

@check("listen: resource")
async def _(c):
    with watching("resources/subscribe", "test://text") as wait_for:
        await wait_for("subscribed")
        call("touch", "uri:=test://text")
        await wait_for("resources/updated")

@check("cancel")
async def _(c):
    raise NotOffered("the command line cannot give a call up")

@check("10 MB argument")
async def _(c):
    raise NotOffered("no argument of a command can be that long")

@check("unknown tool")
async def _(c):
    same(call("no_such_tool", expect=5)["error"]["code"], "tool_not_found")
    raise NotOffered("it looks into the list and does not ask the server")

@check("bad arguments")
async def _(c):
    same(call("add", "a:=\"one\"", "b:=2", expect=5)["isError"], True)

@check("tool error")
async def _(c):
    found = call("fail", expect=5)
    same((found["isError"], "no luck today" in found["content"][0]["text"]), (True, True))

@check("resource not found")
async def _(c):
    found = mcpdo("resources/read", "test://nothing", expect=1)
    same("not found" in found["error"]["message"].lower(), True)

@check("unknown method")
async def _(c):
    raise NotOffered("the command line knows only the methods it knows")


async def drive():
    options = ["--era", "modern", "--elicit", "form"]  # the default era is that of the handshake
    if TARGET[0].startswith("http"):
        mcpdo("connect", *options, "--transport", "http", "--server-url", TARGET[0])
    else:
        mcpdo("connect", *options, "--transport", "stdio", "--", *TARGET)
    await run(None)

main(drive())
'''
)

# --- our client, for the servers below --------------------------------------------------

OUR_CLIENT = (
    CLIENT_COMMON
    + r'''
from mcp_ref import Client, NoSuchResource, RemoteError, TransportError

PEER = "server"

answer, asked, logged = {}, [], []
ACCEPT = {"action": "accept", "content": {"name": "Ann"}}


def elicit(client, params):
    asked.append(params["message"])
    return answer


def log(params):
    logged.append((params["level"], params["data"]))


async def error_of(awaitable):
    try:
        found = await awaitable
    except RemoteError as error:
        return error.code
    raise AssertionError(f"a result instead of an error: {found!r:.200}")


async def block_of(c, tool):
    (block,) = (await c.call_tool(tool))["content"]
    return block


def offers(c, *path):
    """Stop the check if the server does not declare the capability."""
    found = c.server["capabilities"]
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if not found and found != {}:
        raise NotOffered("no " + ".".join(path) + " among its capabilities")


@check("discover")
async def _(c):
    same(c.version, VERSION)
    same(c.server.server_info["name"], "interop")
    same({"tools", "resources", "prompts"} - c.server["capabilities"].keys(), set())

@check("list tools")
async def _(c):
    tools = {t["name"]: t for t in await c.list_tools()}
    same(TOOLS - tools.keys(), set())
    same(sorted(tools["add"]["inputSchema"]["required"]), ["a", "b"])

@check("list resources")
async def _(c):
    same({r["uri"] for r in await c.list_resources()}, {"test://text", "test://blob"})

@check("list templates")
async def _(c):
    same([t["uriTemplate"] for t in await c.list_resource_templates()], ["test://item/{id}"])

@check("list prompts")
async def _(c):
    (prompt,) = await c.list_prompts()
    same((prompt["name"], [a["name"] for a in prompt["arguments"]]), ("greet", ["name"]))

@check("text")
async def _(c):
    same((await c.call_tool("say_text")).text, "plain text")

@check("image")
async def _(c):
    block = await block_of(c, "say_image")
    same((block["type"], block["mimeType"]), ("image", "image/png"))
    starts(block["data"], PNG_START)

@check("audio")
async def _(c):
    block = await block_of(c, "say_audio")
    same((block["type"], block["mimeType"]), ("audio", "audio/wav"))
    starts(block["data"], WAV_START)

@check("embedded resource")
async def _(c):
    block = await block_of(c, "say_embedded")
    same((block["type"], block["resource"]["uri"], block["resource"]["text"]),
         ("resource", "test://embedded", "embedded text"))

@check("resource link")
async def _(c):
    block = await block_of(c, "say_link")
    same((block["type"], block["uri"], block["name"]), ("resource_link", "test://text", "text"))

@check("structured output")
async def _(c):
    same((await c.call_tool("weather", {"city": "Paris"})).structured, {"city": "Paris", "celsius": 18.5})

@check("read text")
async def _(c):
    same((await c.read_resource("test://text")).text, "text of the resource")

@check("read blob")
async def _(c):
    (entry,) = (await c.read_resource("test://blob"))["contents"]
    same(base64.b64decode(entry["blob"]), BLOB)

@check("read template")
async def _(c):
    same(json.loads((await c.read_resource("test://item/7")).text), {"id": 7})

@check("prompt")
async def _(c):
    (message,) = (await c.get_prompt("greet", {"name": "Bo"}))["messages"]
    same((message["role"], message["content"]["text"]), ("user", "Say hello to Bo"))

@check("completion")
async def _(c):
    offers(c, "completions")
    same((await c.complete("greet", "name", "an"))["completion"]["values"], ["Ann", "Anton"])

@check("elicitation: accept")
async def _(c):
    global answer
    answer = ACCEPT
    asked.clear()
    same((await c.call_tool("ask")).text, "accept Ann")
    same(asked, ["Who are you?"])

@check("elicitation: decline")
async def _(c):
    global answer
    answer = {"action": "decline"}
    same((await c.call_tool("ask")).text, "decline")

@check("progress")
async def _(c):
    seen = []
    def progress(params):
        seen.append((params["progress"], params.get("total"), params.get("message")))
    same((await c.call_tool("count", {"steps": 3}, on_progress=progress)).text, "counted")
    same(seen, STEPS)

@check("log messages")
async def _(c):
    logged.clear()
    same((await c.call_tool("chatter", log_level="debug", on_log=log)).text, "logged")
    if not logged:
        offers(c, "logging")
    same([level for level, data in logged], ["info"])
    same("working" in json.dumps([data for level, data in logged]), True)

@check("listen: tool list")
async def _(c):
    offers(c, "tools", "listChanged")
    async with c.listen(tools=True) as changes:
        if changes.refused:
            raise NotOffered("it acknowledges without tools")
        state = (await c.call_tool("toggle")).text
        same((await anext(changes)).method, "notifications/tools/list_changed")
        same("extra" in {t["name"] for t in await c.list_tools(refresh=True)}, state == "on")

@check("listen: resource")
async def _(c):
    offers(c, "resources", "subscribe")
    async with c.listen(resources=["test://text"]) as changes:
        same(changes.honoured, {"resourceSubscriptions": ["test://text"]})
        await c.call_tool("touch", {"uri": "test://blob"})
        await c.call_tool("touch", {"uri": "test://text"})
        change = await anext(changes)
        same((change.method, change.params["uri"]), ("notifications/resources/updated", "test://text"))

@check("cancel")
async def _(c):
    before = int((await c.call_tool("cancelled_hangs")).text)
    try:
        async with asyncio.timeout(0.3):
            await c.call_tool("hang")
    except TimeoutError:
        pass
    async def noticed():
        return int((await c.call_tool("cancelled_hangs")).text) == before + 1
    await until(noticed)

@check("10 MB argument")
async def _(c):
    try:
        same((await c.call_tool("echo", {"text": BIG})).text == BIG, True)
    except (RemoteError, TransportError) as error:
        if error.status == 413:  # a server may have a limit
            raise NotOffered("HTTP status 413") from None
        raise

@check("unknown tool")
async def _(c):
    same(await error_of(c.call_tool("no_such_tool")), -32602)

@check("bad arguments")
async def _(c):
    same((await c.call_tool("add", {"a": "one", "b": 2})).is_error, True)

@check("tool error")
async def _(c):
    found = await c.call_tool("fail")
    same((found.is_error, "no luck today" in found.text), (True, True))

@check("resource not found")
async def _(c):
    try:
        await c.read_resource("test://nothing")
    except NoSuchResource as error:
        same(error.code, -32602)
    else:
        raise AssertionError("no error")

@check("unknown method")
async def _(c):
    same(await error_of(c.request("interop/unknown")), -32601)


async def drive():
    target = TARGET[0] if TARGET[0].startswith("http") else TARGET
    async with Client(target, on_elicit=elicit, timeout=40) as client:
        await run(client)

main(drive())
'''
)

# --- what the servers in Python share ---------------------------------------------------

SERVER_COMMON = r'''
import asyncio, base64, json, sys
import mcp_types as types
from pydantic import BaseModel

PNG = ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAA"
       "AABJRU5ErkJggg==")
WAV = base64.b64encode(b"RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0"
                       b"\2\0\x10\0data\2\0\0\0\0\0").decode()
NAMES = ["Ann", "Anton", "Bert"]
QUESTION = types.ElicitRequest(params=types.ElicitRequestFormParams(
    message="Who are you?",
    requested_schema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}))
cancelled = 0


class Weather(BaseModel):
    city: str
    celsius: float


async def hang() -> str:
    """Wait until the client gives up."""
    global cancelled
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        cancelled += 1
        raise
    return "nobody gave up"


async def cancelled_hangs() -> str:
    """Tell how many calls of `hang` were cancelled."""
    return str(cancelled)


def say_text() -> str:
    return "plain text"


def weather(city: str) -> Weather:
    return Weather(city=city, celsius=18.5)


def echo(text: str) -> str:
    return text


def add(a: int, b: int) -> int:
    return a + b


def extra() -> str:
    return "here"


def answered(ctx):
    """Return what `ask` says, or the question."""
    if not ctx.input_responses:
        return types.InputRequiredResult(input_requests={"who": QUESTION})
    found = ctx.input_responses["who"]
    return f"accept {found.content['name']}" if found.action == "accept" else found.action
'''

# --- Python SDK: server -----------------------------------------------------------------

SDK_SERVER = (
    SERVER_COMMON
    + r"""
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("interop", version="1.0", log_level="ERROR")
for function in (hang, cancelled_hangs, say_text, weather, echo, add):
    server.tool()(function)


@server.tool()
def say_image() -> types.CallToolResult:
    return types.CallToolResult(content=[types.ImageContent(type="image", data=PNG, mime_type="image/png")])

@server.tool()
def say_audio() -> types.CallToolResult:
    return types.CallToolResult(content=[types.AudioContent(type="audio", data=WAV, mime_type="audio/wav")])

@server.tool()
def say_embedded() -> types.CallToolResult:
    resource = types.TextResourceContents(uri="test://embedded", text="embedded text", mime_type="text/plain")
    return types.CallToolResult(content=[types.EmbeddedResource(type="resource", resource=resource)])

@server.tool()
def say_link() -> types.CallToolResult:
    return types.CallToolResult(content=[types.ResourceLink(type="resource_link", uri="test://text", name="text")])

@server.tool()
def fail() -> str:
    raise ToolError("no luck today")

@server.tool()
async def ask(ctx: Context) -> str | types.InputRequiredResult:
    return answered(ctx)

@server.tool()
async def count(steps: int, ctx: Context) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
        await asyncio.sleep(0.02)
    return "counted"

@server.tool()
async def chatter(ctx: Context) -> str:
    await ctx.log("info", "working", logger_name="interop")
    return "logged"

on = False

@server.tool()
async def toggle(ctx: Context) -> str:
    global on
    on = not on
    server.add_tool(extra) if on else server.remove_tool("extra")
    await ctx.notify_tools_changed()
    return "on" if on else "off"

@server.tool()
async def touch(uri: str, ctx: Context) -> str:
    await ctx.notify_resource_updated(uri)
    return "touched"

@server.resource("test://text", name="text", mime_type="text/plain")
def text_resource() -> str:
    return "text of the resource"

@server.resource("test://blob", name="blob", mime_type="application/octet-stream")
def blob_resource() -> bytes:
    return bytes(range(256))

@server.resource("test://item/{id}", name="item", mime_type="application/json")
def item(id: str) -> str:
    return json.dumps({"id": int(id)})

@server.prompt()
def greet(name: str) -> str:
    return f"Say hello to {name}"

@server.completion()
async def complete(ref, argument, context):
    found = [name for name in NAMES if name.lower().startswith(argument.value.lower())]
    return types.Completion(values=found, total=len(found), has_more=False)


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]),
               max_request_body_size=64 * 1024 * 1024)
"""
)

# --- FastMCP: server --------------------------------------------------------------------

FASTMCP_SERVER = (
    SERVER_COMMON
    + r"""
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.resources import ResourceContent, ResourceResult
from fastmcp.tools.base import ToolResult

server = FastMCP("interop", version="1.0")
for function in (hang, cancelled_hangs, say_text, weather, echo, add):
    server.tool(function)


@server.tool
def say_image() -> ToolResult:
    return ToolResult(content=[types.ImageContent(type="image", data=PNG, mime_type="image/png")])

@server.tool
def say_audio() -> ToolResult:
    return ToolResult(content=[types.AudioContent(type="audio", data=WAV, mime_type="audio/wav")])

@server.tool
def say_embedded() -> ToolResult:
    resource = types.TextResourceContents(uri="test://embedded", text="embedded text", mime_type="text/plain")
    return ToolResult(content=[types.EmbeddedResource(type="resource", resource=resource)])

@server.tool
def say_link() -> ToolResult:
    return ToolResult(content=[types.ResourceLink(type="resource_link", uri="test://text", name="text")])

@server.tool
def fail() -> str:
    raise ToolError("no luck today")

@server.tool
async def ask(ctx: Context) -> str | types.InputRequiredResult:
    return answered(ctx)

@server.tool
async def count(steps: int, ctx: Context) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
        await asyncio.sleep(0.02)
    return "counted"

@server.tool
async def chatter(ctx: Context) -> str:
    await ctx.info("working", logger_name="interop")
    return "logged"

on = False

@server.tool
async def toggle(ctx: Context) -> str:
    global on
    on = not on
    server.tool(extra) if on else server.local_provider.remove_tool("extra")
    return "on" if on else "off"

@server.tool
async def touch(uri: str, ctx: Context) -> str:
    await ctx.send_notification(types.ResourceUpdatedNotification(
        params=types.ResourceUpdatedNotificationParams(uri=uri)))
    return "touched"

@server.resource("test://text", name="text", mime_type="text/plain")
def text_resource() -> str:
    return "text of the resource"

@server.resource("test://blob", name="blob", mime_type="application/octet-stream")
def blob_resource() -> bytes:
    return bytes(range(256))

@server.resource("test://item/{id}", name="item", mime_type="application/json")
def item(id: str) -> str:
    return json.dumps({"id": int(id)})

@server.prompt
def greet(name: str) -> str:
    return f"Say hello to {name}"

@server.completion
async def complete(ref, argument, context):
    return [name for name in NAMES if name.lower().startswith(argument.value.lower())]


if sys.argv[1] == "stdio":
    server.run("stdio", show_banner=False, log_level="ERROR")
else:
    server.run("http", host="127.0.0.1", port=int(sys.argv[2]), path="/mcp", show_banner=False, log_level="ERROR")
"""
)

# --- TypeScript SDK: server -------------------------------------------------------------

TS_SERVER = r"""
import { createServer } from 'node:http';
import { completable, createMcpHandler, inputRequired, McpServer, ResourceTemplate } from '@modelcontextprotocol/server';
import { serveStdio, StdioServerTransport } from '@modelcontextprotocol/server/stdio';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { z } from 'zod';

const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';
const WAV = Buffer.from('RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x02\0\0\0\0\0', 'latin1').toString('base64');
const pause = (milliseconds, signal) => new Promise((done, fail) => {
  const timer = setTimeout(done, milliseconds);
  signal?.addEventListener('abort', () => { clearTimeout(timer); fail(new Error('aborted')); });
});
let cancelled = 0, on = false, publish;

// One server for each HTTP request, or for each stdio connection.
function make() {
  const server = new McpServer({ name: 'interop', version: '1.0' },
    { capabilities: { logging: {}, tools: { listChanged: true }, resources: { listChanged: true, subscribe: true } } });
  const tool = (name, inputSchema, run) => server.registerTool(name, { description: name, inputSchema: z.object(inputSchema) }, run);
  const saying = (name, block) => tool(name, {}, async () => ({ content: [block] }));
  const text = value => ({ content: [{ type: 'text', text: value }] });
  saying('say_text', { type: 'text', text: 'plain text' });
  saying('say_image', { type: 'image', data: PNG, mimeType: 'image/png' });
  saying('say_audio', { type: 'audio', data: WAV, mimeType: 'audio/wav' });
  saying('say_embedded', { type: 'resource', resource: { uri: 'test://embedded', text: 'embedded text', mimeType: 'text/plain' } });
  saying('say_link', { type: 'resource_link', uri: 'test://text', name: 'text' });
  server.registerTool('weather', {
    description: 'weather', inputSchema: z.object({ city: z.string() }),
    outputSchema: z.object({ city: z.string(), celsius: z.number() }),
  }, async ({ city }) => {
    const structuredContent = { city, celsius: 18.5 };
    return { ...text(JSON.stringify(structuredContent)), structuredContent };
  });
  tool('echo', { text: z.string() }, async args => text(args.text));
  tool('add', { a: z.number().int(), b: z.number().int() }, async ({ a, b }) => text(String(a + b)));
  tool('fail', {}, async () => { throw new Error('no luck today'); });
  tool('ask', {}, async (args, ctx) => {
    const found = ctx.mcpReq.inputResponses?.who;
    if (!found) return inputRequired({ inputRequests: { who: inputRequired.elicit({
      message: 'Who are you?', requestedSchema: z.object({ name: z.string() }) }) } });
    return text(found.action === 'accept' ? `accept ${found.content.name}` : found.action);
  });
  tool('count', { steps: z.number().int() }, async ({ steps }, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (let step = 1; step <= steps; step++) {
      if (progressToken !== undefined) await ctx.mcpReq.notify({ method: 'notifications/progress',
        params: { progressToken, progress: step, total: steps, message: `step ${step}` } });
      await pause(20);
    }
    return text('counted');
  });
  tool('chatter', {}, async (args, ctx) => { await ctx.mcpReq.log('info', 'working', 'interop'); return text('logged'); });
  tool('hang', {}, async (args, ctx) => {
    try { await pause(60000, ctx.mcpReq.signal); } catch (error) { cancelled++; throw error; }
    return text('nobody gave up');
  });
  tool('cancelled_hangs', {}, async () => text(String(cancelled)));
  const addExtra = () => saying('extra', { type: 'text', text: 'here' });
  let extra = on ? addExtra() : undefined;
  tool('toggle', {}, async () => {
    on = !on;
    if (on) extra = addExtra(); else { extra?.remove(); extra = undefined; }
    publish?.toolsChanged();
    return text(on ? 'on' : 'off');
  });
  tool('touch', { uri: z.string() }, async ({ uri }) => {
    if (publish) publish.resourceUpdated(uri); else await server.server.sendResourceUpdated({ uri });
    return text('touched');
  });
  server.registerResource('text', 'test://text', { mimeType: 'text/plain' },
    async uri => ({ contents: [{ uri: uri.href, text: 'text of the resource', mimeType: 'text/plain' }] }));
  server.registerResource('blob', 'test://blob', { mimeType: 'application/octet-stream' },
    async uri => ({ contents: [{ uri: uri.href, blob: Buffer.from([...Array(256).keys()]).toString('base64') }] }));
  server.registerResource('item', new ResourceTemplate('test://item/{id}', { list: undefined }), { mimeType: 'application/json' },
    async (uri, { id }) => ({ contents: [{ uri: uri.href, text: JSON.stringify({ id: Number(id) }), mimeType: 'application/json' }] }));
  server.registerPrompt('greet', {
    argsSchema: z.object({ name: completable(z.string(), value =>
      ['Ann', 'Anton', 'Bert'].filter(name => name.toLowerCase().startsWith(value.toLowerCase()))) }),
  }, async ({ name }) => ({ messages: [{ role: 'user', content: { type: 'text', text: `Say hello to ${name}` } }] }));
  return server;
}

if (process.argv[2] === 'stdio') {
  const limit = { maxBufferSize: 64 * 1024 * 1024 };  // by default less than the long argument
  serveStdio(make, { transport: new StdioServerTransport(process.stdin, process.stdout, limit) });
} else {
  const handler = createMcpHandler(make, { maxRequestBodySize: 64 * 1024 * 1024 });
  publish = handler.notify;
  createServer(toNodeHandler(handler, { maxRequestBodySize: 64 * 1024 * 1024 })).listen(Number(process.argv[3]), '127.0.0.1');
}
"""
