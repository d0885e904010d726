from __future__ import annotations

import pytest

from leakcore._base import version
from leakcore._base.run_folder import identity
from leakcore.audit.hyperparameters.request import AuditConfig


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("delta", 0.0, r"^`delta` must be in \(0, 1\), got 0.0$"),
        ("epsilon", -1.0, r"^`epsilon` must be in \(0, 1e\+06\], got -1.0$"),
        ("sample_rate", 1.5, r"^`sample_rate` must be in \(0, 1\], got 1.5$"),
        ("sample_rate", 0, r"^`sample_rate` must be in \(0, 1\], got 0$"),
        ("steps", 0, r"^`steps` must be in \[1, 16777215\], got 0$"),
        ("max_grad_norm", 0.0, r"^`max_grad_norm` must be above 0, got 0.0$"),
        ("sweep", (1.0, 0.0), r"^`sweep\[1\]` must be in \(0, 1e\+06\], got 0.0$"),
        ("num_candidates", 1, r"^`num_candidates` must be at least 2, got 1$"),
        ("runs", 0, r"^`runs` must be in \[1, 10000000\], got 0$"),
        ("confidence", 1.0, r"^`confidence` must be in \(0, 1 - 1e-12\], got 1.0$"),
        ("seed", -1, r"^`seed` must be in \[0, 18446744073709551615\], got -1$"),
    ],
)
def test_bad_fields_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AuditConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"epsilon": None}, {"noise_multiplier": 1.0}])
def test_exactly_one_of_epsilon_and_noise_multiplier(fields: dict[str, float | None]) -> None:
    with pytest.raises(ValueError, match="`epsilon` or `noise_multiplier` must be given, exactly one of the two"):
        AuditConfig(**fields)  # type: ignore[arg-type]


def test_fields_as_a_mapping() -> None:
    assert AuditConfig.from_dict({"epsilon": 4, "hidden": [20]}) == AuditConfig(epsilon=4.0, hidden=(20,))


def test_the_sweep_is_a_sorted_set() -> None:
    assert AuditConfig(sweep=(10, 1, 10)).sweep == (1.0, 10.0)


def test_partial_results_of_another_release_are_not_mixed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity("audit", AuditConfig().to_dict(), 0)
    monkeypatch.setattr("leakcore._base.version.__version__", "99.0")
    monkeypatch.setattr(version, "identity_text", version.identity_text.__wrapped__)
    after = identity("audit", AuditConfig().to_dict(), 0)
    assert after["versions"].pop("leakcore") == "99.0" != before["versions"].pop("leakcore")
    assert after == before
