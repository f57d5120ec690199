#!/usr/bin/env python3
"""Break one rule of mcp_ref.py at a time, and see that the tests notice.

    python examples/mutants.py                all mutants, some minutes
    python examples/mutants.py --only B7      those of one row or clause
    python examples/mutants.py --list         what there is, nothing runs

Further options: --jobs N, --json.

The module and its tests are copied into a scratch directory, and the tests are run once
as they are. Then a mutant replaces one piece of the source there, and the tests that it
names are run: it is `killed` when one of them fails, has `SURVIVED` when all pass, and
`cannot be applied` when its source is not there exactly once. Exit status: 0 if all are
killed, else 1.

Rows B1 to B36 and C1 to C23 are those of ../shared/conformance/UNTESTED.md, parts B and
C: what the conformance suite does not look at. Everything else is a clause of the
specification, as in SPEC_NOTES.md. The rows about OAuth on the client are not here. Of
row B34, task ids that cannot be guessed belong to the Tasks extension, which is not in
the module; the other two rules go through `Extension`, and those are here.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent
TIMEOUT = 60.0  # seconds for the tests of one mutant; one that hangs is killed
UNCHANGED = 300.0  # seconds for all of them on the module as it is


class Mutant(NamedTuple):
    """One broken rule: where `old` stood stands `new`, and `tests` should fail."""

    rows: str
    broken: str
    old: str
    new: str
    tests: str


class Outcome(NamedTuple):
    """What became of a mutant; `killer` is the first test that failed."""

    mutant: Mutant
    state: str
    killer: str
    seconds: float


KILLED, SURVIVED, STALE = "killed", "SURVIVED", "cannot be applied"
M = Mutant
MUTANTS = [
    # --- what the conformance suite does not see of a server
    M(
        "B1 http-32",
        "Mcp-Method is not compared with the body",
        '    _compare("Mcp-Method", headers.get("mcp-method"), request.method)\n',
        "    pass\n",
        "HeaderMirroring.test_each_standard_header_is_required_on_every_request",
    ),
    M(
        "B1 http-60",
        "Mcp-Name is not compared with the body",
        '        _compare("Mcp-Name", _decoded("Mcp-Name", headers), mirrored)\n',
        "        pass\n",
        "HeaderMirroring.test_an_encoded_name_is_decoded_before_it_is_compared",
    ),
    M(
        "B1 http-62 http-65",
        "Mcp-Param-* are not compared with the arguments",
        "        if not _same(parameter.type, text, value):",
        "        if False:",
        "HeaderMirroring.test_arguments_and_their_headers_must_agree",
    ),
    M(
        "B2 http-69 http-61",
        "header failures carry -32602",
        "    code = -32020\n",
        "    code = -32602\n",
        "HeaderMirroring.test_a_name_in_bad_base64_is_refused "
        "HeaderMirroring.test_arguments_and_their_headers_must_agree",
    ),
    M(
        "B3 http-31 http-25",
        "a request without MCP-Protocol-Version passes",
        "    if version is None:\n        # versioning-10",
        '    version = version or str(params.get("_meta", '
        "{}).get(META_PROTOCOL_VERSION))\n"
        "    if False:\n"
        "        # versioning-10",
        "HeaderMirroring.test_each_standard_header_is_required_on_every_request",
    ),
    M(
        "B4 http-54 http-70",
        "Base64 in Mcp-Name is compared as it is",
        '"Mcp-Name", _decoded("Mcp-Name", headers), mirrored',
        '"Mcp-Name", headers.get("mcp-name"), mirrored',
        "HeaderMirroring.test_an_encoded_name_is_decoded_before_it_is_compared",
    ),
    M(
        "B5 http-54",
        "Base64 that is not canonical is read",
        "    if base64.b64encode(raw).decode() != encoded[1]:",
        "    if False:",
        "HeaderMirroring.test_a_name_in_bad_base64_is_refused",
    ),
    M(
        "B5 http-59",
        "invalid characters in a header value are read",
        "    if not _HEADER_TEXT.fullmatch(text):",
        "    if False:",
        "HeaderMirroring.test_headers_that_cannot_be_read_raise",
    ),
    M(
        "B6 http-63 http-64",
        "a header is expected for a null argument",
        "        return text is None and value is None\n",
        "        return text == _header_text(value)\n",
        "HeaderMirroring.test_no_header_is_expected_for_what_is_null_or_absent",
    ),
    M(
        "B6 http-63",
        "a header for an absent argument passes",
        "        return text is None and value is None\n",
        "        return value is None\n",
        "HeaderMirroring.test_no_header_is_expected_for_what_is_null_or_absent",
    ),
    M(
        "B6 http-68",
        "integers are compared as text",
        " and float(text) == value",
        " and text == str(value)",
        "HeaderMirroring.test_integers_are_compared_as_numbers_and_kept_safe",
    ),
    M(
        "B6 http-42 tools-27",
        "integers beyond 2**53 - 1 pass",
        "abs(value) <= SAFE_INTEGER and ",
        "",
        "HeaderMirroring.test_integers_are_compared_as_numbers_and_kept_safe",
    ),
    M(
        "B7 base-52",
        "_meta is checked on server/discover and subscriptions/listen only",
        "        meta = Meta.of(request.params)\n",
        "        try:\n"
        "            meta = Meta.of(request.params)\n"
        "        except InvalidParams:\n"
        '            if request.method in ("server/discover", '
        '"subscriptions/listen"):\n'
        "                raise\n"
        '            meta = Meta("2026-07-28", {}, None, None, None, {})\n',
        "BaseProtocol.test_each_method_demands_the_required_metadata",
    ),
    M(
        "B7 base-52",
        "clientCapabilities may be missing",
        "        if not isinstance(capabilities, dict):\n"
        "            raise InvalidParams(\n",
        "        if capabilities is not None and not "
        "isinstance(capabilities, dict):\n"
        "            raise InvalidParams(\n",
        "BaseProtocol.test_each_method_demands_the_required_metadata",
    ),
    M(
        "B8 versioning-01",
        "the version is judged on server/discover only",
        "        check_version(meta.protocol_version, SUPPORTED_VERSIONS)\n        ctx",
        '        if request.method == "server/discover":\n'
        "            check_version(meta.protocol_version, SUPPORTED_VERSIONS)\n"
        "        ctx",
        "HeaderMirroring.test_headers_are_compared_before_the_version_is_judged",
    ),
    M(
        "B9 http-03",
        "a bad Origin is answered 400",
        ' is not in the option allowed_origins"\n            raise _HttpRefusal(403',
        ' is not in the option allowed_origins"\n            raise _HttpRefusal(400',
        "HttpRules.test_an_origin_is_parsed_and_a_wrong_one_refused",
    ),
    M(
        "B10 http-02",
        "Origin is not looked at, Host is",
        "        if not local and _canonical_origin(origin) not in "
        "self.allowed_origins:",
        "        if False:",
        "HttpRules.test_an_origin_is_parsed_and_a_wrong_one_refused",
    ),
    M(
        "B10",
        "Host is not looked at, Origin is",
        "        if not listed and (loopback or self.allowed_hosts):",
        "        if False:",
        "HttpRules.test_elsewhere_every_host_passes_unless_some_are_listed",
    ),
    M(
        "B11 http-13",
        "an accepted notification is answered 200",
        "_HttpAnswer(202)",
        "_HttpAnswer(200)",
        "HttpRules.test_a_notification_is_202_without_body",
    ),
    M(
        "B11 http-14",
        "a refused notification is answered 202",
        '            answer = self._answer(\n'
        '                error_response(getattr(error, "id", None), error), reply\n'
        "            )\n",
        "            answer = _HttpAnswer(202)\n",
        "HttpRules.test_a_body_that_is_not_one_message_is_400",
    ),
    M(
        "B12 http-76",
        "GET and DELETE are taken like POST",
        '        if method != "POST":\n            # http-76',
        '        if method not in ("POST", "GET", "DELETE"):\n            # http-76',
        "HttpRules.test_other_methods_are_405_and_say_what_is_allowed",
    ),
    M(
        "B13 http-11",
        "of a batch the first message is answered",
        "    if not isinstance(message, dict):\n"
        '        raise InvalidRequest("A message is one JSON object")',
        "    if isinstance(message, list) and message:\n"
        "        message = message[0]\n"
        "    if not isinstance(message, dict):\n"
        '        raise InvalidRequest("A message is one JSON object")',
        "BaseProtocol.test_json_that_is_not_one_request_or_notificatio"
        "n_is_an_invalid_request",
    ),
    M(
        "B13 base-05",
        "a null id makes a notification",
        '    if "id" in message and readable is None:',
        '    if message.get("id") is not None and readable is None:',
        "BaseProtocol.test_json_that_is_not_one_request_or_notificatio"
        "n_is_an_invalid_request",
    ),
    M(
        "B13 base-04",
        "true is taken for an id",
        "    readable = id if type(id) in (str, int) else None",
        "    readable = id if isinstance(id, (str, int)) else None",
        "BaseProtocol.test_json_that_is_not_one_request_or_notificatio"
        "n_is_an_invalid_request",
    ),
    M(
        "B13 http-12 base-03",
        "a response is taken for a notification",
        "    if not isinstance(method, str):\n"
        '        raise InvalidRequest("method must be a string", readable)',
        '    if not isinstance(method, str) and "result" not in message:\n'
        '        raise InvalidRequest("method must be a string", readable)',
        "BaseProtocol.test_json_that_is_not_one_request_or_notificatio"
        "n_is_an_invalid_request",
    ),
    M(
        "B13",
        "NaN is taken for JSON",
        "json.JSONDecoder(parse_constant=_refuse_constant)",
        "json.JSONDecoder()",
        "BaseProtocol.test_what_is_not_json_in_utf_8_is_a_parse_error",
    ),
    M(
        "B13 transports-01",
        "UTF-16 is guessed",
        '_decode_json(data.decode("utf-8"))',
        "json.loads(data, parse_constant=_refuse_constant)",
        "BaseProtocol.test_what_is_not_json_in_utf_8_is_a_parse_error",
    ),
    M(
        "B14 base-07 base-08",
        "ids come back as strings",
        '    return {"jsonrpc": "2.0", "id": id, "result": result}',
        '    return {"jsonrpc": "2.0", "id": str(id), "result": result}',
        "BaseProtocol.test_ids_come_back_the_same_in_type_and_value",
    ),
    M(
        "B14 base-15",
        "0 and the empty string are left out of errors",
        '_without_none({"jsonrpc": "2.0", "id": id, "error": body})',
        '_without_none({"jsonrpc": "2.0", "id": id or None, "error": body})',
        "BaseProtocol.test_an_error_has_the_id_where_it_could_be_read_and_else_none",
    ),
    M(
        "B15 base-21 base-22",
        "a handler's reserved code passes",
        "    if -32099 <= code <= -32000 and code not in HTTP_STATUS:",
        "    if False:",
        "BaseProtocol.test_no_handler_can_send_a_code_that_is_retired_or_not_defined",
    ),
    M(
        "B15 base-19",
        "legacy codes pass",
        "    if -32099 <= code <= -32000 and code not in HTTP_STATUS:",
        "    if -32099 <= code <= -32020 and code not in HTTP_STATUS:",
        "BaseProtocol.test_no_handler_can_send_a_code_that_is_retired_or_not_defined",
    ),
    M(
        "B16 resources-13",
        "resource not found is -32002",
        'class ResourceNotFound(InvalidParams):\n    """No resource has this URI."""\n',
        "class ResourceNotFound(InvalidParams):\n"
        '    """No resource has this URI."""\n'
        "\n"
        "    code = -32002\n",
        "Resources.test_what_is_not_there_is_an_error_that_names_it",
    ),
    M(
        "B16 resources-16",
        "what does not exist has empty contents",
        "    if value is None:\n"
        "        raise ResourceNotFound(uri)\n"
        '    return {"contents"',
        "    if value is None:\n"
        '        return {"contents": []}\n'
        '    return {"contents"',
        "Resources.test_what_is_not_there_is_an_error_that_names_it",
    ),
    M(
        "B17",
        "an unknown tool is a result with isError",
        '        raise InvalidParams(f"Unknown tool: {name[:100]}")',
        '        return _failed(f"Unknown tool: {name[:100]}")',
        "Tools.test_an_unknown_tool_is_an_error_of_the_protocol",
    ),
    M(
        "B18 prompts-12",
        "an unknown prompt is an internal error",
        '        raise InvalidParams(f"Unknown prompt: {name[:100]}")',
        '        raise InternalError(f"Unknown prompt: {name[:100]}")',
        "Prompts.test_bad_names_and_arguments_are_refused_by_name",
    ),
    M(
        "B18 prompts-13",
        "prompt arguments are not validated",
        "        converted = _from_text(prompt, arguments)\n",
        "        converted = dict(arguments)\n",
        "Prompts.test_bad_names_and_arguments_are_refused_by_name",
    ),
    M(
        "B18 tools-42",
        "tool arguments are not validated",
        "        _hold(tool.schema, arguments)\n",
        "",
        "Tools.test_bad_arguments_are_told_to_the_model_by_name",
    ),
    M(
        "B19 base-60",
        "subscriptionId is the id as a string",
        "        found.line = self.before + encode(id) + self.after\n",
        "        found.line = self.before + encode(str(id)) + self.after\n",
        "StdioFraming.test_streams_share_the_channel_and_keep_apart",
    ),
    M(
        "B19 base-60",
        "subscriptionId is the id as a string, before anything is encoded",
        '"_meta": {META_SUBSCRIPTION_ID: id}}\n        found = Framed',
        '"_meta": {META_SUBSCRIPTION_ID: str(id)}}\n        found = Framed',
        "Subscriptions",
    ),
    M(
        "B20 subscriptions-01",
        "the acknowledgement repeats the request",
        '"notifications": honoured,',
        '"notifications": wanted,',
        "Subscriptions.test_exactly_what_is_honoured_is_acknowledged",
    ),
    M(
        "B20",
        "URIs that nobody serves are acknowledged",
        "        if found is not None and found[0].scopes <= granted:\n"
        "            honoured",
        "        if True:\n            honoured",
        "Subscriptions.test_exactly_what_is_honoured_is_acknowledged",
    ),
    M(
        "B21 subscriptions-01",
        "updates go to all streams",
        "        waiting = list(self._open.get(loop, {}).get(key, ()))\n",
        "        waiting = list(self._open.get(loop, {}).get(_EVERY, ()))\n",
        "StdioFraming.test_streams_share_the_channel_and_keep_apart",
    ),
    M(
        "B21",
        "a subscription holds for the URIs below it",
        '        """Announce a change to the subscriptions that hold '
        '`key`; never waits."""\n',
        "        if isinstance(key, tuple):\n"
        '            key = (key[0], key[1].rstrip("/?").lower())\n',
        "Subscriptions.test_updates_go_to_exactly_the_uris_that_were_asked_for",
    ),
    M(
        "B21 resources-08",
        "changes of the resource list are not told",
        '    "resources": ("resourcesListChanged", "n',
        '    "resources": ("resourceListChanged", "n',
        "Subscriptions.test_adding_and_removing_is_told_to_those_who_asked",
    ),
    M(
        "B22 subscriptions-07 subscriptions-08",
        "a stream ends without a result",
        "            subscription.ended = True\n            subscription.wake()",
        "            subscription.wake()",
        "Stdio.test_what_does_not_end_in_time_is_cancelled",
    ),
    M(
        "B22 subscriptions-07",
        "the result has no subscriptionId",
        '    return {"_meta": {META_SUBSCRIPTION_ID: subscription.id}}\n',
        "    return {}\n",
        "Stdio.test_what_does_not_end_in_time_is_cancelled",
    ),
    M(
        "B22 subscriptions-07",
        "the end of the input does not end the streams",
        "            _end_streams(self.exchange)\n",
        "",
        "Stdio.test_what_does_not_end_in_time_is_cancelled",
    ),
    M(
        "B23 logging-03",
        "messages come without logLevel",
        "            wanted is None\n"
        "            or outbox is None\n"
        "            or _LEVEL_INDEX[level] < _LEVEL_INDEX[wanted]",
        "            outbox is None\n"
        '            or _LEVEL_INDEX[level] < _LEVEL_INDEX[wanted or "debug"]',
        "Logging.test_nothing_is_sent_that_was_not_asked_for",
    ),
    M(
        "B23 logging-03 logging-04",
        "the level is no threshold",
        "_LEVEL_INDEX[level] < _LEVEL_INDEX[wanted]",
        "False",
        "Logging.test_nothing_is_sent_that_was_not_asked_for "
        "Logging.test_the_level_is_a_threshold",
    ),
    M(
        "B23 logging-05",
        "log messages reach all listen streams",
        "            if outbox.logs.take(outbox.loop.time()):\n",
        "            self.server.subscriptions.publish(\n"
        '                _EVERY, "notifications/message", params\n'
        "            )\n"
        "            if outbox.logs.take(outbox.loop.time()):\n",
        "Logging.test_messages_stay_on_the_stream_of_their_request",
    ),
    M(
        "B24 progress-05",
        "progress that stands still is sent",
        "            if not self._progress < progress < math.inf:",
        "            if not self._progress <= progress < math.inf:",
        "Progress.test_only_values_that_rise_are_sent",
    ),
    M(
        "B24 progress-08",
        "progress without a token is sent",
        "        if token is None or outbox is None:\n            return _Done()",
        "        if outbox is None:\n"
        "            outbox = _Outbox(self._send, asyncio.get_running_loop())",
        "Progress.test_without_a_token_there_is_no_progress",
    ),
    M(
        "B24 progress-12",
        "progress is sent after the response",
        "        # progress-12: progress MUST stop after completion\n"
        "        self.closed = True",
        "        pass",
        "Progress.test_a_task_that_outlives_its_call_reports_nothing",
    ),
    M(
        "B25 mrtr-18 mrtr-19 elicitation-06 sampling-05 roots-07",
        "clients are asked for what they did not declare",
        "            if not supports(ctx.meta.client_capabilities, question.needs):",
        "            if False:",
        "Elicitation.test_only_modes_that_the_client_declared_are_aske"
        "d MultiRoundTrip.test_nothing_is_asked_that_the_client_did_no"
        "t_declare Roots.test_only_a_client_with_roots_is_asked",
    ),
    M(
        "B25 elicitation-06",
        "modes and sub-capabilities do not count",
        "            if not supports(ctx.meta.client_capabilities, question.needs):",
        "            if not all(k in ctx.meta.client_capabilities for "
        "k in question.needs):",
        "Elicitation.test_only_modes_that_the_client_declared_are_asked",
    ),
    M(
        "B25 elicitation-05",
        "an empty elicitation stands for url too",
        '            declared = {"form": {}}',
        '            declared = {"form": {}, "url": {}}',
        "Elicitation.test_only_modes_that_the_client_declared_are_asked",
    ),
    M(
        "B25 sampling-05",
        "sampling with tools needs no sampling.tools",
        '        needs["tools"] = {}\n',
        "        pass\n",
        "MultiRoundTrip.test_nothing_is_asked_that_the_client_did_not_declare",
    ),
    M(
        "B25 sampling-07",
        "includeContext needs no sampling.context",
        '        needs["context"] = {}\n',
        "        pass\n",
        "Sampling.test_only_what_the_client_declared_is_asked",
    ),
    M(
        "B26 mrtr-05",
        "completion/complete may ask",
        'Method(_complete, "completions")',
        'Method(_complete, "completions", asks=True)',
        "MultiRoundTrip.test_no_other_method_ever_asks",
    ),
    M(
        "B26 mrtr-04",
        "resources/read may not ask",
        'Method(_read_resource, "resources", cacheable=True, asks=True)',
        'Method(_read_resource, "resources", cacheable=True)',
        "MultiRoundTrip.test_prompts_and_resources_ask_in_the_same_way",
    ),
    M(
        "B27 mrtr-17",
        "input_required with neither requests nor state",
        "        if not requests and state is None:\n",
        "        if False:\n",
        "MultiRoundTrip.test_asking_for_nothing_is_refused",
    ),
    M(
        "B28 mrtr-12 mrtr-13",
        "the signature of requestState is not checked",
        "    if any(hmac.compare_digest(_mac(key, body), mac) for key in keys):",
        "    if True:",
        "MultiRoundTrip.test_a_state_of_another_server_is_rejected",
    ),
    M(
        "B28 mrtr-12",
        "half of the signature is enough",
        "hmac.compare_digest(_mac(key, body), mac)",
        "hmac.compare_digest(_mac(key, body)[:20], mac[:20])",
        "MultiRoundTrip.test_a_state_with_any_character_changed_is_rejected",
    ),
    M(
        "B29 mrtr-15",
        "requestState does not expire",
        ' and now < sealed["e"]',
        "",
        "MultiRoundTrip.test_a_state_expires",
    ),
    M(
        "B29 mrtr-15 elicitation-25",
        "requestState is not bound to the principal",
        "            principal and [principal.subject, principal.client],\n",
        "",
        "MultiRoundTrip.test_a_state_belongs_to_its_principal "
        "Elicitation.test_an_answer_counts_only_for_the_user_who_was_asked",
    ),
    M(
        "B29 mrtr-15",
        "requestState is not bound to the method",
        '            request.method,\n            params.get("name"',
        '            params.get("name"',
        "MultiRoundTrip.test_a_state_belongs_to_its_request",
    ),
    M(
        "B29 mrtr-15",
        "requestState is not bound to the arguments",
        '            params.get("arguments", {}),\n        ]',
        "        ]",
        "MultiRoundTrip.test_a_state_belongs_to_its_request",
    ),
    M(
        "B29",
        "an answer counts for another question",
        "return _digest([self.method, self.params])",
        'return ""',
        "MultiRoundTrip.test_an_answer_is_never_taken_for_another_questions",
    ),
    M(
        "B30 caching-01",
        "discover has no hints",
        "Method(_discover, cacheable=True)",
        "Method(_discover)",
        "Caching.test_every_cacheable_result_has_its_hints",
    ),
    M(
        "B31 base-27",
        "server/discover has to come first",
        "        meta = Meta.of(request.params)\n",
        "        meta = Meta.of(request.params)\n"
        '        self._seen = getattr(self, "_seen", request.method '
        '== "server/discover")\n'
        "        if not self._seen:\n"
        '            raise InvalidRequest("discover first")\n',
        "BaseProtocol.test_capabilities_of_an_earlier_request_do_not_count",
    ),
    M(
        "B31 base-27 base-55",
        "capabilities of earlier requests count",
        "        if len(meta) == 2:",
        "        supports._seen = capabilities = {**getattr(supports, "
        '"_seen", {}), **capabilities}\n'
        "        if len(meta) == 2:",
        "BaseProtocol.test_capabilities_of_an_earlier_request_do_not_count",
    ),
    M(
        "B31 tools-06 tools-08",
        "the list has another order each time",
        "        entries = list(server._registries[feature].values())\n",
        "        entries = list(server._registries[feature].values())\n"
        "        server._registries[feature] = {e.key: e for e in entries[::-1]}\n",
        "BaseProtocol.test_lists_depend_neither_on_the_connection_nor_"
        "on_what_came_before Tools.test_lists_depend_on_nothing_but_the_caller",
    ),
    M(
        "B32 caching-26 caching-27 caching-28",
        "lists that depend on scopes are public",
        "ctx.principal is not None or self._restricted or method.asks\n",
        "ctx.principal is not None or method.asks\n",
        "Caching.test_all_pages_of_a_list_have_the_same_scope",
    ),
    M(
        "B32 caching-28",
        "what a principal gets is public",
        "ctx.principal is not None or self._restricted or method.asks\n",
        "self._restricted or method.asks\n",
        "Caching.test_all_pages_of_a_list_have_the_same_scope",
    ),
    M(
        "B32 caching-11",
        "a negative ttlMs is taken",
        "        self.ttl_ms = _check_ttl(ttl_ms)\n",
        "        self.ttl_ms = ttl_ms\n",
        "Caching.test_hints_that_cannot_be_are_refused",
    ),
    M(
        "B33 elicitation-01 elicitation-44",
        "a form asks for a secret",
        '        if re.sub(r"[^a-z]", "", name.lower()) in _SECRETS:',
        "        if False:",
        "Elicitation.test_a_form_never_asks_for_secrets",
    ),
    M(
        "B33 elicitation-30 elicitation-31",
        "a URL with credentials goes out",
        "    if parts.username is not None or parts.password is not None:\n"
        '        raise ValueError("the URL of',
        '    if False:\n        raise ValueError("the URL of',
        "Elicitation.test_bad_urls_and_urls_with_credentials_are_refused",
    ),
    M(
        "B33 elicitation-14",
        "any scheme passes for a URL",
        "    if not valid or re.search(",
        "    if False and re.search(",
        "Elicitation.test_bad_urls_and_urls_with_credentials_are_refused",
    ),
    M(
        "B33 elicitation-13",
        "the mode of a URL question is missing",
        '    params = {"mode": "url", "message": message, "url": url}',
        '    params = {"message": message, "url": url}',
        "Elicitation.test_a_url_goes_out_with_its_mode",
    ),
    M(
        "B34 versioning-06",
        "a result type of an extension reaches clients that did not declare it",
        '        if not ctx.supports("extensions", name):\n            raise',
        "        if False:\n            raise",
        "Versioning.test_a_client_that_does_not_know_the_extension_is_refused",
    ),
    M(
        "B34 versioning-06",
        "a listen filter of an extension that refuses is overheard",
        "        agreed, more = agree(ctx, value) if agree else (None, ())\n",
        "        with contextlib.suppress(McpError):\n"
        "            agreed, more = None, ()\n"
        "            agreed, more = agree(ctx, value) if agree else (None, ())\n",
        "Versioning.test_a_listen_filter_can_refuse_clients_without_the_extension",
    ),
    M(
        "B34",
        "a listen filter of an extension does not count",
        "            honoured[name] = agreed\n",
        "            honoured[name] = value\n",
        "Versioning.test_an_extension_adds_a_listen_filter",
    ),
    M(
        "B35 base-45",
        "keys that we do not know are dropped, trace context too",
        "        return cls(version, capabilities, info, level, token, meta)",
        "        return cls(version, capabilities, info, level, "
        'token, {k: v for k, v in meta.items() if "/" in k})',
        "BaseProtocol.test_keys_of_others_and_trace_context_pass_through",
    ),
    M(
        "B35 base-45",
        "keys that we do not know are refused",
        "        info = meta.get(META_CLIENT_INFO)\n        if",
        "        info = meta.get(META_CLIENT_INFO)\n"
        "        for key in meta:\n"
        "            check_meta_key(key)\n"
        "        if",
        "BaseProtocol.test_keys_of_others_and_trace_context_pass_through",
    ),
    M(
        "B36 base-28",
        "plain handlers run on the event loop",
        "            value = await ctx.server.workers.run(self.function, arguments)\n",
        "            value = self.function(**arguments)\n",
        "StdioFraming.test_a_blocked_plain_handler_stops_nothing_else",
    ),
    M(
        "B36 base-28",
        "stdio answers one request at a time",
        "            await send(await carry_out(self.exchange, request, send))",
        '            self._turn = getattr(self, "_turn", None) or asyncio.Lock()\n'
        "            async with self._turn:\n"
        "                response = await carry_out(self.exchange, "
        "request, send)\n"
        "            await send(response)",
        "StdioFraming.test_a_blocked_plain_handler_stops_nothing_else",
    ),
    M(
        "B36 subscriptions-03",
        "one listen stream is all that there is",
        "    if len(server.subscriptions) >= LISTEN_STREAMS:",
        "    if len(server.subscriptions) >= 1:",
        "StdioFraming.test_streams_share_the_channel_and_keep_apart",
    ),
    # --- and of a client
    M(
        "C1 base-14",
        "an absent resultType is invalid",
        'kind = result.get("resultType", COMPLETE)',
        'kind = result.get("resultType")',
        "ClientVersions.test_era_06_result_types",
    ),
    M(
        "C2 base-13",
        "an unknown resultType is taken for complete",
        "known = isinstance(kind, str) and kind in self._result_types",
        "known = True",
        "ClientVersions.test_era_06_result_types",
    ),
    M(
        "C5 http-33 http-51",
        "Mcp-Name is never Base64",
        '            fields["Mcp-Name"] = encode_header_value(name)\n',
        '            fields["Mcp-Name"] = name\n',
        "ClientOverHttp.test_htp_29_names_that_are_not_safe_travel_as_base64",
    ),
    M(
        "C6 http-55",
        "text that looks like Base64 goes out as it is",
        "    if _PLAIN_VALUE.fullmatch(text) and not _SENTINEL.fullmatch(text):",
        "    if _PLAIN_VALUE.fullmatch(text):",
        "ClientOverHttp.test_htp_29_names_that_are_not_safe_travel_as_base64",
    ),
    M(
        "C7 http-43 http-44 tools-28",
        "annotations off the path of properties are taken",
        "        if not path:",
        "        if False:",
        "HeaderMirroring.test_annotations_off_the_path_of_properties_are_refused",
    ),
    M(
        "C7 http-36 http-56",
        "nested properties are not followed",
        "            above = path if keyword",
        "            above = path if not path and keyword",
        "ClientOverHttp.test_xmh_02_annotated_arguments_are_mirrored",
    ),
    M(
        "C7 http-42",
        "integers beyond 2**53 - 1 are sent",
        "            if type(value) is int and abs(value) > SAFE_INTEGER:",
        "            if False:",
        "ClientOverHttp.test_integers_beyond_the_safe_range_are_refused",
    ),
    M(
        "C7 http-45 http-46 http-47 tools-29 tools-30 tools-31",
        "a tool with illegal annotations is kept",
        "                self._tools.pop(str(name), None)\n                continue",
        "                kept.append(tool)\n                continue",
        "ClientOverHttp.test_xmh_01_tools_with_illegal_annotations_are_left_out",
    ),
    M(
        "C8 elicitation-04 roots-02 sampling-06",
        "capabilities are not declared",
        "            META_CLIENT_CAPABILITIES: self.capabilities,",
        "            META_CLIENT_CAPABILITIES: {},",
        "ClientVersions.test_each_request_carries_version_capabilities_and_identity",
    ),
    M(
        "C9 base-54",
        "there is no clientInfo",
        "            meta[META_CLIENT_INFO] = self._info\n",
        "            pass\n",
        "ClientVersions.test_each_request_carries_version_capabilities_and_identity",
    ),
    M(
        "C10 versioning-02",
        "-32022 is not tried again",
        "            if error.code == UnsupportedProtocolVersion.code:\n",
        "            if False:\n",
        "ClientVersions.test_an_unsupported_version_is_retried_once_with_a_common_one",
    ),
    M(
        "C12 http-09",
        "Accept has JSON only",
        '"Accept": "application/json, text/event-stream"',
        '"Accept": "application/json"',
        "ClientOverHttp.test_each_message_is_a_post_with_the_required_headers",
    ),
    M(
        "C13",
        "Mcp-Session-Id goes out",
        '"last-event-id mcp-method mcp-name mcp-protocol-version '
        'mcp-session-id te trailer "',
        '"last-event-id mcp-method mcp-name mcp-protocol-version te trailer "',
        "ClientOverHttp.test_htp_33_no_session_no_get_no_initialize",
    ),
    M(
        "C13 http-75",
        "any error makes a server one of an earlier revision",
        "            if error.code in _MODERN_ERRORS:\n                return False",
        "            if False:\n                return False",
        "ClientVersions.test_era_02_over_http",
    ),
    M(
        "C14 mrtr-28",
        "answers leak into parallel requests",
        "result = await self._round(method, {**params, **answers}, options)",
        'self.leak = {**getattr(self, "leak", {}), **answers}\n'
        "            result = await self._round(method, {**params, "
        "**self.leak}, options)",
        "ClientQuestions.test_answers_do_not_leak_into_parallel_requests",
    ),
    M(
        "C15 mrtr-18 mrtr-19",
        "what was not declared is answered",
        "        if needed is None or not supports(self.capabilities, needed):",
        "        if needed is None:",
        "ClientQuestions.test_mrt_07_undeclared_and_unknown_questions_are_refused",
    ),
    M(
        "C15",
        "an unknown kind of question is answered",
        '    return {"roots": {}} if method == "roots/list" else None',
        '    return {"roots": {}} if method == "roots/list" else {}',
        "ClientQuestions.test_mrt_07_undeclared_and_unknown_questions_are_refused",
    ),
    M(
        "C15 sampling-27",
        "rounds have no bound",
        "            if rounds == self._max_rounds:",
        "            if rounds > self._max_rounds:",
        "ClientQuestions.test_mrt_02_the_last_allowed_round_counts",
    ),
    M(
        "C16",
        "a redirect leads to another origin",
        "        if not location or "
        'f"{parts.scheme}://{parts.netloc}" != self._origin:',
        "        if not location:",
        "ClientOverHttp.test_htp_22_redirects_stay_within_the_origin",
    ),
    M(
        "C16 auth-37",
        "credentials go out once",
        "self._credentials = dict(credentials)",
        "self._credentials = dict(credentials) if not self._credentials else {}",
        "ClientOverHttp.test_the_auth_hook_sees_challenges_and_supplies_headers",
    ),
    M(
        "C19 auth-discovery-06",
        "the first challenge is all that is read",
        "    for text in values:\n        current",
        "    for text in list(values)[:1]:\n        current",
        "ClientOverHttp.test_aut_03_challenges",
    ),
    M(
        "C22",
        "a tool's error ends the command line with 0",
        "    return 1 if reply.is_error else 0",
        "    return 0",
        "ClientCommands.test_call",
    ),
    M(
        "C23 elicitation-36 elicitation-37",
        "a URL is opened without consent",
        'if (_ask(f"  Open {host}? [y/N] ") or "").lower() not in ("y", "yes"):',
        'if (_ask(f"  Open {host}? [y/N] ") or "").lower() in ("n",):',
        "ClientCommands.test_the_terminal_shows_who_asks_and_the_whole_address",
    ),
    M(
        "C23 elicitation-34",
        "any scheme is shown to the user",
        '        if parts.scheme in ("https", "http") and parts.hostname:\n'
        "            return",
        "        if True:\n            return",
        "ClientQuestions.test_urls_need_consent_and_are_never_fetched",
    ),
    M(
        "C23 elicitation-40",
        "ambiguous host names are not pointed out",
        '    if "xn--" in host or not host.isascii():',
        "    if False:",
        "ClientQuestions.test_suspicious_addresses_are_pointed_out",
    ),
    M(
        "C23 base-65",
        "icons with any scheme go out",
        '        if not str(icon.get("src")).startswith(("https:", "http:", "data:")):',
        "        if False:",
        "BaseProtocol.test_icons_with_unsafe_schemes_are_not_sent",
    ),
    # --- more clauses, from all pages
    M(
        "base-06",
        "an id in flight is taken a second time",
        "        if request.id in self.tasks:\n            raise InvalidRequest",
        "        if False:\n            raise InvalidRequest",
        "StdioFraming.test_an_id_in_flight_cannot_be_taken",
    ),
    M(
        "base-10",
        "results have no resultType",
        '        kind = found.setdefault("resultType", COMPLETE)\n',
        '        kind = found.get("resultType", COMPLETE)\n',
        "BaseProtocol.test_each_result_says_which_server_it_is_from",
    ),
    M(
        "base-12",
        "result types of no extension are sent",
        '        if not owners:\n            raise ValueError(f"resultType',
        "        if not owners:\n"
        "            return\n"
        '            raise ValueError(f"resultType',
        "Versioning.test_a_result_type_of_no_extension_is_never_sent",
    ),
    M(
        "base-25",
        "unknown notifications are answered",
        '            elif message.method == "notifications/cancelled":',
        '            elif message.method != "notifications/cancelled":\n'
        "                self._write(error_response(None, "
        "MethodNotFound(message.method)))\n"
        "            elif True:",
        "StdioFraming.test_notifications_and_responses_are_never_answered",
    ),
    M(
        "base-44",
        "references may go as deep as they like",
        "        if run.depth > SCHEMA_DEPTH:",
        "        if False:",
        "SchemaBudget.test_deep_values_are_an_error_and_no_crash",
    ),
    M(
        "base-46 base-47",
        "any text is a key of _meta",
        '    if not found or (prefixed and not found["prefix"]):',
        "    if not found and not key:",
        "BaseProtocol.test_keys_that_we_write_follow_the_grammar",
    ),
    M(
        "base-58",
        "results do not name the server",
        'found["_meta"] = self._server_meta | meta if meta else self._server_meta',
        'found["_meta"] = meta or {}',
        "BaseProtocol.test_each_result_says_which_server_it_is_from",
    ),
    M(
        "versioning-05",
        "an extension needs no prefix",
        "        check_meta_key(extension.identifier, prefixed=True)\n        for",
        "        check_meta_key(extension.identifier)\n        for",
        "Versioning.test_an_extension_identifier_has_a_prefix",
    ),
    M(
        "versioning-09",
        "the era is found out each time",
        '        if self._legacy is not None and not options.get("refresh"):',
        "        if False:",
        "ClientVersions.test_the_era_is_remembered_until_asked_again",
    ),
    M(
        "versioning-10",
        "initialize is not told the versions",
        '        if name != "initialize":',
        "        if True:",
        "Discovery.test_initialize_is_told_which_versions_there_are",
    ),
    M(
        "discover-01 versioning-03",
        "server/discover does not exist",
        '    "server/discover": Method(_discover, cacheable=True),\n',
        "",
        "Discovery.test_a_bare_server_answers_with_versions_and_identity",
    ),
    M(
        "discover-03",
        "discover names no server",
        '        found["_meta"] = self._server_meta | meta if meta '
        "else self._server_meta\n",
        '        found["_meta"] = meta if meta else {}\n',
        "BaseProtocol.test_each_result_says_which_server_it_is_from",
    ),
    M(
        "patterns-01 stdio-09",
        "the client calls what a server asks a request",
        '    if "method" in message and "id" in message:\n        # stdio-07',
        "    if False:\n        # stdio-07",
        "ClientOnStdio.test_requests_of_the_server_are_not_answered",
    ),
    M(
        "mrtr-24 mrtr-26",
        "an empty state is not echoed",
        '        if "requestState" in result:\n            answers',
        '        if result.get("requestState"):\n            answers',
        "ClientQuestions.test_mrt_01_state_is_echoed_exactly_and_only_if_given",
    ),
    M(
        "mrtr-27",
        "a retry has the old id",
        "        id = next(self._ids)\n        headers",
        "        id = 1\n        headers",
        "ClientQuestions.test_mrt_01_state_is_echoed_exactly_and_only_if_given",
    ),
    M(
        "mrtr-29 elicitation-46",
        "a wrong answer is an error",
        "        except ValueError as error:\n            again =",
        "        except ZeroDivisionError as error:\n            again =",
        "Elicitation.test_an_answer_that_does_not_fit_is_asked_for_again",
    ),
    M(
        "mrtr-31",
        "what was not asked for is kept",
        "            if unasked or key in self.asked\n",
        "            if True\n",
        "MultiRoundTrip.test_raw_requests_and_their_responses",
    ),
    M(
        "mrtr-32",
        "a missing answer is an error",
        "            raise InputRequired({key: question})\n        try",
        '            raise InvalidParams("missing")\n        try',
        "Elicitation.test_a_question_without_an_answer_is_asked_again",
    ),
    M(
        "subscriptions-02",
        "changes come before the acknowledgement",
        "    server.subscriptions.add(subscription)\n    try:",
        "    server.subscriptions.add(subscription)\n"
        "    await asyncio.sleep(0.05)\n"
        "    for early in subscription.take():\n"
        "        await ctx._send(early)\n"
        "    try:",
        "Subscriptions.test_the_acknowledgement_comes_first_whatever_happens",
    ),
    M(
        "subscriptions-04",
        "what was refused is not looked at",
        "        if self.refused:",
        "        if False:",
        "ClientListening.test_sub_01_listening_begins_with_the_acknowledgement",
    ),
    M(
        "subscriptions-05 stdio-08",
        "notifications of one stream reach all",
        "        return [c for c in waiting if _same_id(c.request.id, key)]",
        "        return list(waiting)",
        "ClientOnStdio.test_sub_05_subscriptions_are_told_apart_by_id_and_type",
    ),
    M(
        "subscriptions-10",
        "a broken stream is not opened again",
        "again = self._relisten and self._acknowledged and not client._closed",
        "again = False",
        "ClientListening.test_sub_04_a_broken_stream_is_opened_again",
    ),
    M(
        "cancellation-05 stdio-10",
        "giving up does not tell the server",
        "            if self.calls.get(request.id) is call:\n",
        "            if False:\n",
        "ClientOnStdio.test_can_01_giving_up_tells_the_server_once",
    ),
    M(
        "cancellation-06 cancellation-07",
        "requests have no timeout",
        "            async with asyncio.timeout(timeout) as deadline:\n"
        "                response",
        "            async with asyncio.timeout(None) as deadline:\n"
        "                response",
        "ClientCalls.test_timeouts_per_call_and_per_client",
    ),
    M(
        "cancellation-10",
        "progress extends the time for ever",
        "deadline.reschedule(min(limit, later))",
        "deadline.reschedule(later)",
        "ClientCalls.test_can_07_progress_extends_the_timeout_up_to_a_maximum",
    ),
    M(
        "cancellation-11",
        "an answered request is cancelled",
        "            if self.calls.get(request.id) is call:\n"
        "                del self.calls[request.id]\n",
        "            if True:\n"
        "                self.calls.pop(request.id, None)\n",
        "ClientOnStdio.test_an_answered_request_is_not_cancelled",
    ),
    M(
        "cancellation-13",
        "a plain handler is not told",
        "            ctx.cancelled = True\n",
        "            pass\n",
        "Cancellation.test_a_plain_handler_sees_that_it_was_cancelled",
    ),
    M(
        "cancellation-17",
        "the reason of a cancellation is not logged",
        '            _log.info("request %r was cancelled: %.200s", '
        'id, params.get("reason", ""))\n',
        "",
        "Remaining.test_why_a_request_was_cancelled_is_in_the_log",
    ),
    M(
        "progress-02",
        "true is taken for a token",
        "        if token is not None and type(token) not in (str, int):",
        "        if token is not None and not isinstance(token, (str, int)):",
        "BaseProtocol.test_optional_fields_of_the_wrong_type_are_refused",
    ),
    M(
        "progress-10",
        "progress reaches all calls",
        'c for c in waiting if _same_id(c.meta.get("progressToken"), token)',
        "c for c in waiting",
        "ClientOnStdio.test_prg_01_progress_finds_its_request_also_for_token_0",
    ),
    M(
        "progress-11",
        "progress has no rate",
        "        if self.latest is None and self.progress.take(self.loop.time()):",
        "        if True:",
        "Progress.test_a_flood_is_thinned_out_but_its_last_value_arrives",
    ),
    M(
        "stdio-01",
        "a message takes several lines",
        '_encode_json = _writer(",", ":", _ascii)',
        '_encode_json = _writer(",\\n", ":", _ascii)',
        "BaseProtocol.test_a_message_is_written_as_one_line_of_ascii",
    ),
    M(
        "stdio-04",
        "what tools print is on the standard output",
        "            os.dup2(2, 1)\n",
        "            pass\n",
        "StdioFraming.test_nothing_that_tools_print_comes_on_the_standard_output",
    ),
    M(
        "stdio-07",
        "a response of the client is answered",
        '            if "method" not in data and ("result" in data or '
        '"error" in data):',
        "            if False:",
        "StdioFraming.test_notifications_and_responses_are_never_answered",
    ),
    M(
        "stdio-11",
        "a cancelled request is answered",
        "            if self.tasks.get(request.id) is task:\n"
        "                self._write(message)\n",
        "            if True:\n                self._write(message)\n",
        "StdioFraming.test_nothing_is_written_for_a_cancelled_request",
    ),
    M(
        "stdio-12",
        "the server process is never killed",
        "        for number in (signal.SIGTERM, _SIGKILL):",
        "        for number in (signal.SIGTERM, signal.SIGTERM):",
        "ClientOnStdio.test_the_shutdown_ladder",
    ),
    M(
        "stdio-15",
        "a server that died stays dead",
        "                if not self._restart or self._failures >= RESTARTS:",
        "                if True:",
        "ClientOnStdio.test_the_next_request_restarts_a_dead_server",
    ),
    M(
        "stdio-16 versioning-11 discover-02",
        "there is no probe",
        "        if self._discover:\n            try:",
        "        if False:\n            try:",
        "ClientVersions.test_discover_comes_first_unless_switched_off "
        "ClientVersions.test_era_01_any_unknown_error_is_an_earlier_revision",
    ),
    M(
        "http-01",
        "every path is the endpoint",
        '        if path.rstrip("/") != self.path:',
        "        if False:",
        "HttpRules.test_the_path_is_served_or_404_and_never_redirected",
    ),
    M(
        "http-05",
        "a server for all networks does not warn",
        "    if not loopback and not endpoint.allowed_hosts:\n        _log",
        "    if False:\n        _log",
        "HttpRules.test_elsewhere_every_host_passes_unless_some_are_listed",
    ),
    M(
        "http-17",
        "the client reads no SSE",
        '        if kind == "text/event-stream" and status == 200:',
        "        if False:",
        "ClientOverHttp.test_htp_06_both_content_types_with_parameters_in_any_case",
    ),
    M(
        "http-21",
        "a stream stays open after the response",
        r'end = b"\r\n0\r\n\r\n" if last else b"\r\n"',
        r'end = b"\r\n"',
        "HttpServer.test_a_listen_stream_ends_with_its_result",
    ),
    M(
        "http-22",
        "proxies may hold events back",
        '    ("X-Accel-Buffering", "no"),\n',
        "",
        "HttpStreams.test_a_notification_turns_the_answer_into_a_stream",
    ),
    M(
        "http-23 cancellation-04",
        "a closed connection does not cancel",
        "            self.task.cancel()\n\n    def _wake",
        "            pass\n\n    def _wake",
        "HttpStreams.test_a_client_that_goes_away_cancels_its_request",
    ),
    M(
        "http-26 http-27",
        "the version header may differ from the body",
        '        _compare("MCP-Protocol-Version", version, '
        "meta[META_PROTOCOL_VERSION])\n",
        "        pass\n",
        "HeaderMirroring.test_headers_that_differ_from_the_body_are_refused",
    ),
    M(
        "http-28 base-57",
        "an unsupported version is answered 200",
        "    -32022: 400,\n",
        "    -32022: 200,\n",
        "BaseProtocol.test_codes_travel_with_the_http_status_that_the_"
        "specification_wants",
    ),
    M(
        "http-29",
        "an unknown method is answered 200",
        "    -32601: 404,\n",
        "    -32601: 200,\n",
        "BaseProtocol.test_codes_travel_with_the_http_status_that_the_"
        "specification_wants",
    ),
    M(
        "http-37 http-38 http-39 tools-22",
        "any text is a header name",
        "    if not isinstance(name, str) or not _TOKEN.fullmatch(name):\n"
        '        raise ValueError(f"{where} is not',
        '    if False:\n        raise ValueError(f"{where} is not',
        "HeaderMirroring.test_annotations_that_break_a_rule_are_refused",
    ),
    M(
        "http-40 tools-25",
        "two parameters mirror into one header",
        "        if parameter.name.lower() in found:",
        "        if False:",
        "HeaderMirroring.test_annotations_that_break_a_rule_are_refused",
    ),
    M(
        "http-41 tools-26",
        "numbers are mirrored",
        '    if kind not in ("string", "integer", "boolean"):\n',
        '    if kind not in ("string", "integer", "boolean", "number"):\n',
        "HeaderMirroring.test_annotations_that_break_a_rule_are_refused",
    ),
    M(
        "http-57",
        "-32020 does not list the tools again",
        '                again["refresh"] = True\n',
        '                again["refresh"] = False\n',
        "ClientOverHttp.test_xmh_05_a_header_mismatch_lists_again_and_retries_once",
    ),
    M(
        "http-66",
        "header names have case on the client",
        '        name, value = name.lower(), value.strip(" \\t")\n',
        '        name, value = name, value.strip(" \\t")\n',
        "ClientOverHttp.test_header_names_come_in_any_case",
    ),
    M(
        "http-67",
        "a header that differs by case passes",
        "    if header != body:\n",
        "    if header is None or header.lower() != body.lower():\n",
        "HeaderMirroring.test_headers_that_differ_from_the_body_are_refused",
    ),
    M(
        "auth-13",
        "the challenge names no scopes",
        '            "scope": " ".join(named),',
        '            "scope": "",',
        "AuthChecks.test_without_a_token_the_challenge_has_no_error",
    ),
    M(
        "auth-33 auth-34",
        "audiences are compared byte by byte",
        "        scheme=url.scheme.lower(), "
        'netloc=url.netloc.lower(), path=url.path.rstrip("/")\n',
        "        scheme=url.scheme, netloc=url.netloc, path=url.path\n",
        "AuthChecks.test_a_token_for_somebody_else_is_401",
    ),
    M(
        "auth-39",
        "a token in the query is taken",
        '        if re.search(r"(?:^|&)access_token=", query):',
        "        if False:",
        "AuthChecks.test_a_token_in_the_query_does_not_count",
    ),
    M(
        "auth-41 auth-45 auth-security-33",
        "a token for another server is taken",
        "        if self.resource and not self._is_for_us(principal.audience):",
        "        if False:",
        "AuthChecks.test_a_token_for_somebody_else_is_401",
    ),
    M(
        "auth-43",
        "an expired token is taken",
        "        if principal.expires is not None and self.clock() >= "
        "principal.expires:",
        "        if False:",
        "AuthChecks.test_an_expired_token_is_401",
    ),
    M(
        "auth-51",
        "offline_access is no matter",
        '        if "offline_access" in {*self.scopes_supported, '
        "*self.required_scopes}:",
        "        if False:",
        "AuthMetadata.test_offline_access_is_warned_about",
    ),
    M(
        "auth-53",
        "403 comes without a challenge",
        "        if status == 403 and self.authorization and isinstance(scopes, list):",
        "        if False:",
        "AuthChecks.test_the_scopes_of_a_tool_are_asked_for_with_403",
    ),
    M(
        "auth-63",
        "scopes have no hierarchy",
        "        scopes = self.implied(principal.scopes)\n",
        "        scopes = principal.scopes\n",
        "AuthChecks.test_missing_scopes_are_named_all_at_once",
    ),
    M(
        "auth-discovery-04",
        "the challenge names no metadata",
        '            "resource_metadata": metadata if self.resource else "",',
        '            "resource_metadata": "",',
        "AuthChecks.test_without_a_token_the_challenge_has_no_error",
    ),
    M(
        "tools-04",
        "capabilities are always the same",
        "            if feature in self._features:\n                listens",
        "            if True:\n                listens",
        "Discovery.test_capabilities_are_those_of_what_is_registered",
    ),
    M(
        "tools-07 tools-42 caching-29",
        "scopes of a tool are not asked for",
        "        if self.scopes and not self.scopes <= _granted(principal):\n",
        "        if False:\n",
        "Tools.test_tools_are_seen_and_called_with_their_scopes_only",
    ),
    M(
        "tools-11 resources-08 prompts-07",
        "removing an entry is not told",
        "        # tools-11, resources-08, prompts-07: SHOULD send a notification\n"
        "        self.subscriptions.publish(*_CHANGED[feature], {})\n",
        "",
        "Tools.test_listeners_are_told_when_lists_change",
    ),
    M(
        "tools-12",
        "an input schema may be of any type",
        '        if inputs.get("type") != "object":\n',
        "        if False:\n",
        "Tools.test_schemas_that_cannot_be_are_refused_at_registration",
    ),
    M(
        "tools-15",
        "names are not judged",
        '        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name):\n',
        "        if False:\n",
        "Tools.test_names_that_hosts_do_not_expect_are_warned_about",
    ),
    M(
        "tools-19",
        "a name that is taken is replaced",
        "        if entry.key in entries:\n",
        "        if False:\n",
        "Tools.test_names_are_unique_and_have_case",
    ),
    M(
        "tools-37",
        "structured results have no text",
        '            "content": [{"type": "text", "text": shown}],\n',
        '            "content": [],\n',
        "Tools.test_values_become_text_and_structured_content",
    ),
    M(
        "tools-38",
        "the output schema is not held",
        '    _hold(schema, found["structuredContent"], error)\n',
        "",
        "Tools.test_an_output_schema_that_is_given_is_held",
    ),
    M(
        "tools-39",
        "the client does not check structured results",
        "        if known is not None and self._validate and not result.is_error:",
        "        if False:",
        "ClientCalls.test_out_07_structured_results_are_checked",
    ),
    M(
        "resources-12",
        "any text is the URI of a resource",
        "    if not re.fullmatch(_URI, uri):\n",
        "    if False:\n",
        "Resources.test_uris_that_are_none_are_refused_at_registration",
    ),
    M(
        "resources-15 base-23",
        "-32002 of a server is no such resource's error",
        "            if error.code == -32002 or (",
        "            if (",
        "ClientCalls.test_res_07_both_codes_mean_not_found",
    ),
    M(
        "resources-17",
        "URIs that are none are looked up",
        '    uri = _param(params, "uri", str)\n'
        "    # resources-17: MUST validate all URIs\n"
        "    if len(uri) > MAX_URI or not re.fullmatch(_URI_SHAPE, uri):\n",
        '    uri = params.get("uri")\n    if False:\n',
        "Resources.test_malformed_uris_are_refused",
    ),
    M(
        "resources-19",
        "blobs are URL-safe Base64",
        '        entry["blob"] = base64.b64encode(data).decode()',
        '        entry["blob"] = base64.urlsafe_b64encode(data).decode()',
        "Resources.test_values_become_contents",
    ),
    M(
        "resources-21",
        "a path out of its root is an internal error",
        '    if "\\0" in relative or "\\\\" in relative:\n',
        "    if False:\n",
        "Resources.test_paths_cannot_leave_their_root",
    ),
    M(
        "prompts-08 prompts-09",
        "any text is a MIME type",
        '    if not re.fullmatch(r"[\\w.+-]+/[\\w.+-]+(?:\\s*;.*)?", '
        "mime_type, re.ASCII):",
        "    if False:",
        "Tools.test_blocks_that_cannot_be_are_refused",
    ),
    M(
        "prompts-14",
        "the client lists the first page only",
        '            if page.get("nextCursor") is None:',
        "            if True:",
        "ClientPages.test_pag_02_all_pages_in_order_empty_ones_and_cursors_too",
    ),
    M(
        "caching-02",
        "a cached result serves other parameters",
        "        key = method, _encode_sorted(params)\n",
        '        key = method, ""\n',
        "ClientCache.test_fresh_results_are_served_for_the_same_request_only",
    ),
    M(
        "caching-03",
        "results of retries are cached",
        "        if rounds == 0 and epoch == self",
        "        if epoch == self",
        "ClientCache.test_results_of_retries_are_not_cached",
    ),
    M(
        "caching-08 caching-13",
        "stale results are served",
        "self._clock() < entry.expires",
        "True",
        "ClientCache.test_fresh_results_are_served_for_the_same_request_only",
    ),
    M(
        "caching-15",
        "there is no jitter",
        " * (0.5 + chance() / 2)",
        "",
        "ClientQuestions.test_nothing_to_answer_backs_off",
    ),
    M(
        "caching-19",
        "private results are shared",
        "        whole = (*key, None if public else context)\n",
        "        whole = (*key, None)\n",
        "ClientCache.test_private_results_stay_with_their_authorization",
    ),
    M(
        "completion-02",
        "completions are not declared",
        '    "completions": (),\n',
        "",
        "Discovery.test_capabilities_are_those_of_what_is_registered",
    ),
    M(
        "completion-03",
        "an unknown reference has no values",
        '        raise InvalidParams(f"params.ref names nothing that '
        'exists: {key[:100]!r}")',
        '        raise InternalError(f"params.ref names nothing that '
        'exists: {key[:100]!r}")',
        "Completion.test_bad_references_and_arguments_are_refused",
    ),
    M(
        "logging-02",
        "logging is not declared",
        '    "logging": (),\n',
        "",
        "Discovery.test_capabilities_are_those_of_what_is_registered",
    ),
    M(
        "logging-06",
        "an unknown level is refused on subscriptions/listen only",
        "        if META_LOG_LEVEL in meta and str(level) not in _LEVEL_INDEX:\n",
        '        if "notifications" in params and META_LOG_LEVEL in '
        "meta and str(level) not in _LEVEL_INDEX:\n",
        "BaseProtocol.test_optional_fields_of_the_wrong_type_are_refused",
    ),
    M(
        "logging-07 logging-10",
        "log messages have no rate",
        "            if outbox.logs.take(outbox.loop.time()):\n",
        "            if True:\n",
        "Logging.test_a_flood_of_messages_is_bounded",
    ),
    M(
        "pagination-03",
        "cursors are positions in the list",
        "            and entry.position > after\n"
        "            and entry.scopes <= granted\n"
        "        ]\n",
        "            and entry.scopes <= granted\n"
        "        ][after:]\n"
        "        for n, entry in enumerate(found, after + 1):\n"
        "            entry.position = n\n",
        "Pagination.test_cursors_are_stable_while_the_list_changes",
    ),
    M(
        "pagination-05 pagination-06",
        "an empty cursor is the last",
        '            if page.get("nextCursor") is None:',
        '            if not page.get("nextCursor"):',
        "ClientPages.test_pag_02_all_pages_in_order_empty_ones_and_cursors_too",
    ),
    M(
        "pagination-07",
        "a cursor of another list is taken",
        "            if given_out_by != member:\n",
        "            if False:\n",
        "Pagination.test_bad_cursors_are_refused",
    ),
    M(
        "elicitation-10",
        "a question without a mode is unknown",
        '{str(params.get("mode", "form")): {}}',
        '{str(params.get("mode")): {}}',
        "ClientQuestions.test_forms_are_filled_with_defaults_and_checked",
    ),
    M(
        "elicitation-12",
        "defaults are not filled in",
        '    content = {k: field["default"] for k, field in '
        'fields.items() if "default" in field}',
        "    content = {}",
        "ClientQuestions.test_forms_are_filled_with_defaults_and_checked",
    ),
    M(
        "elicitation-24",
        "any action is an answer",
        '    if _as_object(result).get("action") not in _ACTIONS:\n',
        "    if not isinstance(result, dict):\n",
        "Elicitation.test_what_is_no_answer_at_all_is_an_error",
    ),
    M(
        "elicitation-33",
        "an http address is no matter",
        '    if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS:\n'
        "        _log",
        "    if False:\n        _log",
        "Elicitation.test_http_outside_of_this_machine_is_warned_about",
    ),
    M(
        "elicitation-45",
        "the client does not check its answer",
        '    if violations:\n        raise ValueError(f"the answer does not fit',
        '    if False:\n        raise ValueError(f"the answer does not fit',
        "ClientQuestions.test_forms_are_filled_with_defaults_and_checked",
    ),
    M(
        "roots-03 roots-05",
        "a root of any scheme is taken",
        '        if not uri.startswith("file://"):\n',
        "        if not uri:\n",
        "Roots.test_roots_that_are_not_files_are_refused",
    ),
    M(
        "roots-04",
        "a root that climbs is given",
        ' or ".." in unquote(uri).split("/")',
        "",
        "ClientQuestions.test_roots_are_files_and_go_nowhere_else",
    ),
    M(
        "sampling-04",
        "tools are sampled without sampling.tools",
        '        return {"sampling": {"tools": {}} if tools else {}}',
        '        return {"sampling": {}}',
        "ClientQuestions.test_mrt_07_undeclared_and_unknown_questions_are_refused",
    ),
    M(
        "sampling-08 sampling-26",
        "tool results are mixed with other content",
        "        if results and len(results) != len(blocks):\n",
        "        if False:\n",
        "Sampling.test_messages_keep_roles_and_the_balance_of_tool_uses",
    ),
    M(
        "sampling-09",
        "tool uses need no results",
        "        if results != open_uses:\n",
        "        if False:\n",
        "Sampling.test_messages_keep_roles_and_the_balance_of_tool_uses",
    ),
    M(
        "sampling-13",
        "a message needs no role",
        "        if role not in ROLES or not all(",
        "        if not all(",
        "Sampling.test_messages_keep_roles_and_the_balance_of_tool_uses",
    ),
]


def chosen(only: list[str]) -> list[Mutant]:
    """Return the mutants of the rows and clauses; all of them without any."""
    wanted = {name.lower() for name in only}
    return [m for m in MUTANTS if not wanted or wanted & {*m.rows.lower().split()}]


def workplace(scratch: pathlib.Path, number: int) -> pathlib.Path:
    """Copy what the tests need; the tests are compiled once, the module never."""
    place = scratch / str(number) / "main"
    place.mkdir(parents=True)
    for name in ("mcp_ref.py", "test_mcp_ref.py", "SPEC_NOTES.md", "README.md"):
        if (TREE / name).exists():
            shutil.copy(TREE / name, place)
    ignored = shutil.ignore_patterns(".*", "__*")
    shutil.copytree(HERE, place / "examples", ignore=ignored)
    shared = TREE.parent / "shared"
    if shared.is_dir():
        (place.parent / "shared").symlink_to(shared)
    compiled = [sys.executable, "-m", "py_compile", "test_mcp_ref.py"]
    subprocess.run(compiled, cwd=place, check=True)
    return place


def tested(
    place: pathlib.Path, tests: list[str], timeout: float = TIMEOUT
) -> tuple[str, str]:
    """Run tests on the module as it stands there; return the state and the killer."""
    # -B: a module of the same size and second must not be taken from a cache.
    command = [sys.executable, "-B", "-m", "unittest", "-f"]
    command += [f"test_mcp_ref.{name}" for name in tests]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return KILLED, f"{tests[0]} (it hangs)"
        finally:
            end_group(process)
        output.seek(0)
        text = output.read()
    if status == 0:
        return SURVIVED, ""
    found = re.search(r"^(?:FAIL|ERROR): (\w+) \(test_mcp_ref\.(\w+)", text, re.M)
    if found is None:
        last = text.strip().splitlines()[-1:]
        return STALE, f"the run broke off: {' '.join(last)[:100]}"
    return KILLED, f"{found[2]}.{found[1]}"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the run and whatever it has started."""
    try:
        os.killpg(process.pid, 9)
    except OSError:
        process.kill()
    process.wait()


def tried(mutant: Mutant, source: str, places: queue.Queue[pathlib.Path]) -> Outcome:
    """Apply one mutant in a free workplace and run its tests."""
    count = source.count(mutant.old)
    if count != 1:
        return Outcome(mutant, STALE, f"its source is there {count} times", 0.0)
    place, start = places.get(), time.monotonic()
    try:
        text = source.replace(mutant.old, mutant.new)
        (place / "mcp_ref.py").write_text(text, encoding="utf-8")
        state, killer = tested(place, mutant.tests.split())
    finally:
        places.put(place)
    return Outcome(mutant, state, killer, time.monotonic() - start)


def run(mutants: list[Mutant], jobs: int) -> list[Outcome]:
    """Try all mutants, and say on stderr how far it is."""
    source = (TREE / "mcp_ref.py").read_text(encoding="utf-8")
    places: queue.Queue[pathlib.Path] = queue.Queue()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        for number in range(jobs):
            places.put(workplace(pathlib.Path(scratch), number))
        names = sorted({name for one in mutants for name in one.tests.split()})
        print(f"{len(names)} tests, nothing broken", file=sys.stderr)
        place = places.get()
        state, why = tested(place, names, UNCHANGED)
        places.put(place)
        if state != SURVIVED:
            sys.exit(f"a test fails on the module as it is: {why}")
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for one in pool.map(lambda m: tried(m, source, places), mutants):
                outcomes.append(one)
                line = f"{len(outcomes)}/{len(mutants)} {one.state}: {one.mutant.rows}"
                print(f"{line} | {one.mutant.broken} | {one.killer}", file=sys.stderr)
    return outcomes


def report(outcomes: list[Outcome]) -> str:
    """Return the table, and a line that counts."""
    lines = ["| Row, clause | The rule is broken: | Killed by |", "|---|---|---|"]
    for one in outcomes:
        name = f"`{one.killer}`" if one.state == KILLED else f"{one.state} {one.killer}"
        lines.append(f"| {one.mutant.rows} | {one.mutant.broken} | {name} |")
    killed = [one for one in outcomes if one.state == KILLED]
    names = {name for one in killed for name in one.mutant.rows.split()}
    clauses = sum("-" in name for name in names)
    lines.append(
        f"\n{len(killed)} of {len(outcomes)} mutants killed: "
        f"{len(names) - clauses} rows, {clauses} clauses"
    )
    return "\n".join(lines)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="ROW")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--json", action="store_true", help="the outcomes as JSON")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args()
    mutants = chosen(options.only)
    if not mutants:
        parser.error("no mutant has that row or clause")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.rows}: {mutant.broken}\n    {mutant.tests}")
        return 0
    outcomes = run(mutants, max(1, options.jobs))
    if options.json:
        rows = [
            {
                "rows": one.mutant.rows.split(),
                "broken": one.mutant.broken,
                "state": one.state,
                "killer": one.killer,
                "seconds": round(one.seconds, 2),
            }
            for one in outcomes
        ]
        print(json.dumps(rows, indent=1))
    else:
        print(report(outcomes))
    return 0 if all(one.state == KILLED for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
