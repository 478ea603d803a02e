"""The contract of `turnwire.log.base.EventLog` as checks against any engine.

Takes a way to open a log; each check opens it, uses it and closes it. Gives nothing or an `AssertionError`
that names the obligation. Needs no test framework and never looks behind the contract. With pytest:

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    async def test_my_log_keeps_the_contract(check, tmp_path):
        await check(lambda: MyLog.open(tmp_path / "log"))

`CHECKS` are for every engine and want an empty log. `REOPEN_CHECKS` are for those that keep their events over
a close: what is opened a second time must be the same log.
"""

from turnwire.testing.contracts import _event_log_events, _event_log_sessions
from turnwire.testing.contracts._event_log_kit import Check, OpenLog

_ALL = [
    value
    for module in (_event_log_events, _event_log_sessions)
    for value in vars(module).values()
    if isinstance(value, Check)
]
CHECKS = tuple(check for check in _ALL if not check.reopens)
REOPEN_CHECKS = tuple(check for check in _ALL if check.reopens)

__all__ = ["CHECKS", "REOPEN_CHECKS", "Check", "OpenLog"]
