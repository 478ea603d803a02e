"""Typed views: every message reads and writes, and readers tolerate the errors that ACP requires them to."""

from __future__ import annotations

from types import ModuleType

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct

from turnwire.errors import LocalProtocolError, RemoteProtocolError
from turnwire.wire.jsonrpc import INVALID_PARAMS, ErrorObject, raw
from turnwire.wire.schema import Unknown, common, content_block, decode_update, read, v1, v2
from turnwire.wire.schema.common import ResourceContents, TextContent


def structs() -> list[type[Struct]]:
    modules: list[ModuleType] = [common, v1, v2]
    found = (each for module in modules for each in vars(module).values())
    return [
        each for each in found if isinstance(each, type) and issubclass(each, Struct) and each is not ErrorObject
    ]


def test_every_view_has_a_reader_and_names_its_members_in_camel_case() -> None:
    for kind in structs():
        msgspec.json.Decoder(kind)
        for field in msgspec.structs.fields(kind):
            assert "_" not in field.encode_name.removeprefix("_meta"), kind


V1_UPDATES = [
    b'{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"t"}}',
    b'{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"eA==","mimeType":"image/png"},"messageId":"m"}',
    b'{"sessionUpdate":"agent_thought_chunk","content":{"type":"resource","resource":{"uri":"u","blob":"eA=="}}}',
    b'{"sessionUpdate":"tool_call","toolCallId":"t","title":"T","kind":"edit","content":[{"type":"diff","path":"/a",'
    b'"newText":"n"},{"type":"terminal","terminalId":"x"}],"locations":[{"path":"/a"}],"rawInput":{"a": 1}}',
    b'{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"completed","content":[{"type":"content",'
    b'"content":{"type":"text","text":"t"}}]}',
    b'{"sessionUpdate":"plan","entries":[{"content":"c","priority":"high","status":"pending"}]}',
    b'{"sessionUpdate":"plan_update","plan":{"type":"markdown","planId":"p","content":"c"}}',
    b'{"sessionUpdate":"plan_removed","planId":"p"}',
    b'{"sessionUpdate":"available_commands_update","availableCommands":[{"name":"n","description":"d","input":{"hint":"h"}}]}',
    b'{"sessionUpdate":"current_mode_update","currentModeId":"m"}',
    b'{"sessionUpdate":"config_option_update","configOptions":[{"type":"select","id":"i","name":"n","currentValue":"v",'
    b'"options":[{"name":"g","group":"g","options":[{"value":"v","name":"V"}]}]},'
    b'{"type":"boolean","id":"b","name":"n","currentValue":true}]}',
    b'{"sessionUpdate":"session_info_update","title":null}',
    b'{"sessionUpdate":"usage_update","used":1,"size":2,"cost":{"amount":0.5,"currency":"EUR"}}',
    b'{"sessionUpdate":"notice","severity":"info","title":"t"}',
    b'{"sessionUpdate":"compaction_update","compactionId":"c","status":"completed","summary":[]}',
    b'{"sessionUpdate":"compaction_summary_chunk","compactionId":"c","content":{"type":"text","text":"t"}}',
    b'{"sessionUpdate":"session_message","messageId":"m"}',
    b'{"sessionUpdate":"session_message_chunk","messageId":"m","content":{"type":"text","text":"t"}}',
    b'{"sessionUpdate":"turn_complete","promptRequestId":"7","stopReason":"end_turn"}',
    b'{"sessionUpdate":"subagent_update","sessionId":"s","title":"t","capabilities":{"cancel":{}},"cwd":"/w"}',
]
V2_UPDATES = [
    b'{"sessionUpdate":"user_message_chunk","messageId":"m","content":{"type":"text","text":"t"}}',
    b'{"sessionUpdate":"agent_message_chunk","messageId":"m","content":{"type":"text","text":"t"}}',
    b'{"sessionUpdate":"agent_thought_chunk","messageId":"m","content":{"type":"text","text":"t"}}',
    b'{"sessionUpdate":"user_message","messageId":"m","content":[{"type":"text","text":"t"}]}',
    b'{"sessionUpdate":"agent_message","messageId":"m","content":null}',
    b'{"sessionUpdate":"agent_thought","messageId":"m","_meta":{"k": 1}}',
    b'{"sessionUpdate":"state_update","state":"idle","background":[{"type":"terminal","terminalId":"t"},'
    b'{"type":"tool_call","toolCallId":"t"},{"type":"subagent","sessionId":"s"}],"stopReason":"error",'
    b'"error":{"code":-32603,"message":"m"},"usage":{"totalTokens":3,"inputTokens":2,"outputTokens":1}}',
    b'{"sessionUpdate":"tool_call_update","toolCallId":"t","title":null,"kind":"read","capabilities":{"cancel":{}}}',
    b'{"sessionUpdate":"tool_call_content_chunk","toolCallId":"t","content":{"type":"diff","changes":[{"operation":"move",'
    b'"path":"/a","oldPath":"/b"}],"patch":{"format":"git_patch","text":"x"}}}',
    b'{"sessionUpdate":"terminal_update","terminalId":"t","command":"c","output":{"data":"eA=="},"exitStatus":{"exitCode":-1},'
    b'"size":{"cols":80,"rows":24}}',
    b'{"sessionUpdate":"terminal_output_chunk","terminalId":"t","data":"eA=="}',
    b'{"sessionUpdate":"plan_update","plan":{"type":"items","planId":"p","entries":[]}}',
    b'{"sessionUpdate":"available_commands_update","availableCommands":[{"type":"command","name":"n","description":"d",'
    b'"input":{"type":"text","hint":"h"}}]}',
    b'{"sessionUpdate":"config_option_update","configOptions":[{"type":"select","configId":"i","name":"n","currentValue":"v",'
    b'"options":[{"name":"V","value":"v"}]}]}',
    b'{"sessionUpdate":"subagent_update","sessionId":"s","state":{"state":"running"}}',
]


@pytest.mark.parametrize(
    ("version", "update"), [(1, each) for each in V1_UPDATES] + [(2, each) for each in V2_UPDATES]
)
def test_an_update_is_read_as_its_kind_and_written_back_the_same(version: int, update: bytes) -> None:
    view = decode_update(Raw(update), version)
    assert not isinstance(view, Unknown)
    assert msgspec.json.decode(raw(view)) == msgspec.json.decode(update)


@pytest.mark.parametrize("version", [1, 2])
def test_an_update_of_an_unknown_kind_keeps_its_bytes(version: int) -> None:
    update = b'{ "sessionUpdate":"from_tomorrow", "x":[1,  2.0] }'
    view = decode_update(Raw(update), version)
    assert view == Unknown("from_tomorrow", Raw(update))
    assert bytes(raw(view)) == update


def test_an_unknown_value_inside_an_update_does_not_fail_it() -> None:
    update = Raw(
        b'{"sessionUpdate":"tool_call","toolCallId":"t","title":"T","content":[{"type":"hologram","x": 1},'
        b'{"type":"content","content":{"type":"smell"}}]}'
    )
    view = decode_update(update, 1)
    assert isinstance(view, v1.ToolCall)
    assert view.content == [
        Unknown("hologram", Raw(b'{"type":"hologram","x": 1}')),
        common.ContentItem(Unknown("smell", Raw(b'{"type":"smell"}'))),
    ]


@pytest.mark.parametrize(
    ("version", "update"),
    [
        (1, b'{"sessionUpdate":"agent_message_chunk"}'),
        (1, b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text"}}'),
        (1, b'{"sessionUpdate":"tool_call","toolCallId":"t"}'),
        (1, b'{"sessionUpdate":"plan"}'),
        (2, b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"t"}}'),
        (2, b'{"sessionUpdate":"available_commands_update","availableCommands":7}'),
        (2, b'{"sessionUpdate":"state_update"}'),
        (2, b"{}"),
        (2, b"[]"),
        (2, b'{"sessionUpdate":7}'),
    ],
)
def test_a_known_kind_with_a_required_field_missing_or_malformed_is_refused(version: int, update: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_update(Raw(update), version)
    assert caught.value.context == {"jsonrpc": INVALID_PARAMS, "reason": "malformed"}


def test_a_malformed_optional_field_reads_as_its_default() -> None:
    view = decode_update(
        Raw(b'{"sessionUpdate":"tool_call","toolCallId":"t","title":"T","kind":7,"locations":{}}'), 1
    )
    assert view == v1.ToolCall("t", "T")


def test_bad_items_of_a_forgiving_list_are_dropped() -> None:
    view = decode_update(
        Raw(b'{"sessionUpdate":"plan","entries":[7,{"content":"c","priority":"high","status":"pending"},{}]}'), 1
    )
    assert view == v1.Plan([common.PlanEntry("c", "high", "pending")])


def test_a_required_list_that_is_none_reads_as_empty_in_v1() -> None:
    assert decode_update(Raw(b'{"sessionUpdate":"plan","entries":"x"}'), 1) == v1.Plan([])


def test_one_bad_background_item_means_background_is_not_reported() -> None:
    update = b'{"sessionUpdate":"state_update","state":"idle","background":[{"type":"terminal"}],"stopReason":7}'
    assert decode_update(Raw(update), 2) == v2.StateUpdate("idle")
    update = b'{"sessionUpdate":"state_update","state":"idle","background":[{"type":"_x"}]}'
    view = decode_update(Raw(update), 2)
    assert view == v2.StateUpdate("idle", [Unknown("_x", Raw(b'{"type":"_x"}'))])


@pytest.mark.parametrize("kind", ["state_update", "state_change"])
def test_the_older_spellings_of_a_state_are_read(kind: str) -> None:
    view = decode_update(raw({"sessionUpdate": kind, "state": "idle", "stop_reason": "end_turn"}), 2)
    assert view == v2.StateUpdate("idle", stop_reason="end_turn")


def test_accepted_spellings_of_required_fields_are_read() -> None:
    view = decode_update(Raw(b'{"sessionUpdate":"current_mode_update","modeId":"m"}'), 1)
    assert view == v1.CurrentModeUpdate("m")
    view = decode_update(Raw(b'{"sessionUpdate":"_turn_complete","promptRequestId":2,"stop_reason":"end_turn"}'), 1)
    assert view == common.TurnCompleteUpdate(2, "end_turn")


def test_absent_and_null_are_kept_apart_in_v2_and_are_the_same_in_v1() -> None:
    absent, null = (
        Raw(b'{"sessionUpdate":"tool_call_update","toolCallId":"t"}'),
        Raw(b'{"sessionUpdate":"tool_call_update","toolCallId":"t","title":null}'),
    )
    assert decode_update(absent, 1) == decode_update(null, 1)
    assert decode_update(absent, 2) == v2.ToolCallUpdate("t", title=UNSET)
    assert decode_update(null, 2) == v2.ToolCallUpdate("t", title=None)


def test_a_version_that_does_not_exist_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        decode_update(Raw(b"{}"), 3)


def test_content_block_is_read_by_its_type() -> None:
    assert content_block(Raw(b'{"type":"text","text":"a"}')) == TextContent("a")
    assert content_block(Raw(b'{"type":"new"}')) == Unknown("new", Raw(b'{"type":"new"}'))
    assert content_block(Raw(b'{"type":"resource","resource":{"uri":"u","text":"t"}}')) == common.EmbeddedResource(
        ResourceContents("u", text="t")
    )


@pytest.mark.parametrize("block", [b"{}", b"7", b'{"type":"text"}', b'{"text":"t"}'])
def test_malformed_content_block_is_rejected(block: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        content_block(Raw(block))


def test_servers_and_directories_may_be_null_but_not_half_broken() -> None:
    request = read(Raw(b'{"cwd":"/w","mcpServers":null,"additionalDirectories":null}'), v1.NewSessionRequest)
    assert request == v1.NewSessionRequest("/w", [])
    for members in (
        b'"mcpServers":[{"command":"/x"}]',
        b'"mcpServers":[],"additionalDirectories":["/a",7]',
        b'"x":1',
    ):
        with pytest.raises(RemoteProtocolError):
            read(Raw(b'{"cwd":"/w",%b}' % members), v1.NewSessionRequest)


def test_a_stdio_server_is_written_without_a_type_in_v1_and_with_one_in_v2() -> None:
    assert (
        bytes(raw(v1.McpServer("n", command="/c", args=[], env=[])))
        == b'{"name":"n","command":"/c","args":[],"env":[]}'
    )
    assert bytes(raw(v2.StdioServer("n", "/c"))) == b'{"type":"stdio","name":"n","command":"/c","args":[],"env":[]}'


def test_a_command_without_its_tag_is_a_command_and_another_tag_is_kept() -> None:
    view = decode_update(
        Raw(
            b'{"sessionUpdate":"available_commands_update","availableCommands":[{"name":"n","description":"d"},'
            b'{"type":"menu","name":"n","description":"d"}]}'
        ),
        2,
    )
    assert isinstance(view, v2.AvailableCommandsUpdate)
    assert view.available_commands[0] == v2.Command("n", "d")
    assert isinstance(view.available_commands[1], Unknown)


def test_strict_optional_fields_are_strict() -> None:
    with pytest.raises(RemoteProtocolError):
        read(Raw(b'{"sessionId":"s","path":"/p","line":"7"}'), v1.ReadTextFileRequest)
    with pytest.raises(RemoteProtocolError):
        read(Raw(b'{"sessionId":"s","cwd":"/w","replayFrom":7}'), v2.ResumeSessionRequest)


def test_a_refusal_repeats_nothing_of_the_peer() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read(Raw(b'{"cwd":{"secret":1}}'), v2.NewSessionRequest)
    assert str(caught.value) == "malformed NewSessionRequest: `cwd` is not as documented"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (b'{"cwd":"/"}', "malformed NewSessionRequest: `mcpServers` is missing"),
        (b'{"mcpServers":[]}', "malformed NewSessionRequest: `cwd` is missing"),
        (b'{"cwd":7,"mcpServers":[]}', "malformed NewSessionRequest: `cwd` is not as documented"),
        (b"[]", "malformed NewSessionRequest"),
    ],
)
def test_a_refusal_names_the_field_at_fault(params: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read(Raw(params), v1.NewSessionRequest)
    assert str(caught.value) == words


def test_a_refusal_calls_a_union_by_what_it_is() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        content_block(Raw(b'{"type":"text"}'))
    assert str(caught.value) == "malformed content block: `text` is missing"
    with pytest.raises(RemoteProtocolError) as caught:
        content_block(Raw(b'{"type":"resource","resource":{}}'))
    assert str(caught.value) == "malformed content block: `resource.uri` is missing"
    with pytest.raises(RemoteProtocolError) as caught:
        decode_update(Raw(b'{"sessionUpdate":"tool_call","toolCallId":"t"}'), 1)
    assert str(caught.value) == "malformed session update: `title` is missing"


def test_unknown_values_are_equal_by_their_bytes() -> None:
    one, same, other = Unknown("x", Raw(b"{}")), Unknown("x", Raw(b"{}")), Unknown("x", Raw(b"{ }"))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert repr(one) == "Unknown(tag='x')"
