import pytest

from leakcore._base import reading
from tests.base import tricks


@pytest.fixture
def _a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may expand to a megabyte here, so that what is too much is quickly made."""
    monkeypatch.setattr(reading, "FREE", tricks.FREE)
