"""Connections end with the tests that opened them."""

import gc
import warnings
from collections.abc import Iterator

import pytest

import navia

_opened: list[navia.Client] = []


@pytest.fixture(scope="session", autouse=True)
def _clients_are_noted() -> Iterator[None]:
    original = navia.Client.__init__

    def noted(self: navia.Client, url: str = "http://127.0.0.1:8000", key: str | None = None, timeout: float = 60.0) -> None:
        original(self, url, key, timeout)
        _opened.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(navia.Client, "__init__", noted)
        yield


@pytest.fixture(autouse=True)
def _clients_are_closed() -> Iterator[None]:
    """One that goes on to be used connects again."""
    yield
    for client in _opened:
        client.close()


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_to_other_tests() -> Iterator[None]:
    """Sockets that a test opened itself and left to the collector would warn in the middle of another file's test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
