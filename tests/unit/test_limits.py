"""The leases of nodes must fit together. For ranges of limits see `tests/unit/server/test_settings.py`."""

from __future__ import annotations

from typing import Any

import pytest

from turnwire.errors import ConfigError
from turnwire.limits import Limits


@pytest.mark.parametrize("given", [{"self_s": 8.0}, {"beat_s": 5.5}, {"lease_s": 300.0}])
def test_a_node_stops_itself_before_others_declare_it_gone(given: dict[str, Any]) -> None:
    Limits().check_leases()
    for limits in (Limits(self_s=8.0), Limits(beat_s=5.5), Limits(lease_s=300.0)):
        with pytest.raises(ConfigError, match="must be less than"):
            limits.check_leases()
