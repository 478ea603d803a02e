"""New identifiers of what a log speaks of: random, with a prefix that tells a reader what each names."""

from __future__ import annotations

import secrets

from turnwire.ids import ClientId, PermissionId, PromptId, SessionId


def session_id() -> SessionId:
    return SessionId(f"s_{secrets.token_hex(10)}")


def prompt_id() -> PromptId:
    return PromptId(f"p_{secrets.token_hex(10)}")


def permission_id() -> PermissionId:
    return PermissionId(f"q_{secrets.token_hex(10)}")


def client_id() -> ClientId:
    return ClientId(f"c_{secrets.token_hex(10)}")
