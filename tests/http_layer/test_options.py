from __future__ import annotations

import attrs
import pytest

from rustedvino.http.options import ServeOptions


@pytest.mark.parametrize("name", [a.name for a in attrs.fields(ServeOptions) if a.name != "answer_headers"])
def test_no_bound_is_negative(name):
    with pytest.raises(ValueError, match=name):
        ServeOptions(**{name: -1})


@pytest.mark.parametrize(
    "name", [a.name for a in attrs.fields(ServeOptions) if a.name.endswith("_secs") and "half_close" not in a.name]
)
def test_no_wait_is_zero(name):
    with pytest.raises(ValueError, match=name):
        ServeOptions(**{name: 0})
