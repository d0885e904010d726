from collections.abc import Iterator

import pytest

from leakcore.audit.hyperparameters import layers


@pytest.fixture(scope="package", autouse=True)
def _few_rows_behind_the_layers() -> Iterator[None]:
    """Measures with a permutation null then take a second in an audit, on the same path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "_ROWS", 120)
        patch.setattr(layers, "_PERMUTATIONS", 3)
        yield


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that no option names must not replace the user's."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
