"""From `provider:name` and the environment to a model, without the library until it is asked."""

from __future__ import annotations

import subprocess
import sys

import pytest
from starlette.types import Receive, Scope, Send
from tests.builtin.model_kit import HELLO, KEYS, LIMIT_S, READ, answer, asked_at
from tests.support.played import serving

