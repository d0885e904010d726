"""Candidates: every form of input, how the loop passes it, and which rows a batch holds."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import leakcore
from leakcore.dpsgd import FusedDPOptimizer, Trace

pytest.importorskip("opacus")
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import private

pytestmark = IGNORED
WORDS, ROWS = 20, 12


class Words(nn.Module):
    """A mean of words that counts no padding, and a class; with targets it returns its loss."""

    def __init__(self, padding_idx: int | None = None, masked: bool = True) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 6, padding_idx=padding_idx), nn.Linear(6, 3)
        self.masked = masked

    def forward(self, ids: Any, attention_mask: Any = None, *, labels: Any = None, scale: float = 1.0) -> Any:
        values = self.table(ids)
        if not self.masked:
            attention_mask = torch.ones_like(ids)
        elif attention_mask is None:
            attention_mask = (ids > 0).long()
        weights = attention_mask.to(values.dtype)[..., None]
        logits = self.head(torch.tanh((values * weights).sum(1) / weights.sum(1))) * scale
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def _rows() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    lengths = [3 + i % 4 for i in range(ROWS)]
    return [
        {"ids": torch.randint(1, WORDS, (length,), generator=generator), "labels": torch.tensor(i % 3)}
        for i, length in enumerate(lengths)
    ]


def _collate(rows: Any) -> dict[str, torch.Tensor]:
    ids = nn.utils.rnn.pad_sequence([row["ids"] for row in rows], batch_first=True)
    return {"ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.stack([row["labels"] for row in rows])}


def _pair(rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
    batch = _collate(rows)
    return batch["ids"], batch["labels"]


def _run(
    step: Callable[[Any, dict[str, torch.Tensor]], Any], candidates: Any, module: nn.Module | None = None,
    fused: bool = False, norm: float = 0.3, **arguments: Any,
) -> Trace:  # fmt: skip
    """Two steps of five rows each; six of the twelve rows are in one of them. `step` returns the loss."""
    torch.manual_seed(0)
    model = GradSampleModule(Words() if module is None else module)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=norm, expected_batch_size=5
    )
    if fused:
        optimizer = FusedDPOptimizer.replace(optimizer, model)
    rows = _rows()
    with leakcore.record(optimizer, candidates=candidates, **arguments) as recorder:
        for batch in (rows[:5], [*rows[1:3], *rows[6:8], rows[0]]):
            optimizer.zero_grad()
            step(model, _collate(batch)).backward()
            optimizer.step()
    return recorder.trace()


def _inner(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    return model(**batch)["loss"]


def _outer(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    return nn.CrossEntropyLoss()(model(batch["ids"], attention_mask=batch["attention_mask"])["logits"], batch["labels"])


def _padded(rows: Any = None) -> dict[str, torch.Tensor]:
    return _collate(rows or _rows())


TIMES = [2, 2, 2, 1, 1, 0, 1, 1, 0, 0, 0, 0]


def _inputs() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    batch = _padded()
    return {"ids": batch["ids"], "attention_mask": batch["attention_mask"]}, batch["labels"]


FORMS: dict[str, Callable[[], Any]] = {
    "a loader of single rows": lambda: DataLoader(_rows(), collate_fn=_collate),
    "a mapping, padded to the longest": _padded,
    "inputs by name, and targets": _inputs,
    "inputs by place, and targets": lambda: (tuple(_inputs()[0].values()), _inputs()[1]),
    "lists": lambda: {
        "ids": [row["ids"].tolist() for row in _rows()],
        "attention_mask": [[1] * len(row["ids"]) for row in _rows()],
        "labels": [int(row["labels"]) for row in _rows()],
    },
}


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fused", [False, True])
def test_every_form_of_candidates_has_the_same_scores(form: str, fused: bool) -> None:
    """Each is recognised in batches that were padded to other lengths, and has the gradient of its row alone."""
    trace = _run(_outer, FORMS[form](), fused=fused)
    expected = _run(_inner, FORMS["a loader of single rows"]())
    np.testing.assert_array_equal(trace.times_seen, TIMES)
    for name in ("pair_sum", "membership_sum", "clipped_share"):
        np.testing.assert_allclose(getattr(trace, name), getattr(expected, name), rtol=1e-4, atol=1e-5)


def test_the_scores_follow_from_gradients_row_by_row() -> None:
    """σ = 0, so that the steps can be repeated here: each moves the parameters by the clipped rows of its batch."""
    torch.manual_seed(2)
    module = Words()
    plain = copy.deepcopy(module)
    trace = _run(_inner, FORMS["a loader of single rows"](), module)
    total = np.zeros((ROWS, ROWS))
    for batch in ([0, 1, 2, 3, 4], [1, 2, 6, 7, 0]):
        rows = []
        for row in _rows():
            loss = functional.cross_entropy(plain(row["ids"][None])["logits"], row["labels"][None])
            g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(plain.parameters()))])
            rows.append(g * min(1.0, 0.3 / float(g.norm())))
        clipped = torch.stack(rows)
        total[batch] += (clipped[batch] @ clipped.T).numpy() / 0.09
        move = torch.split(0.1 * clipped[batch].sum(0) / 5, [p.numel() for p in plain.parameters()])
        for p, part in zip(plain.parameters(), move, strict=True):
            p.data -= part.view_as(p)
    np.testing.assert_allclose(trace.pair_sum, total, rtol=0, atol=1e-4)


class _Whole(nn.Module):
    """Takes the batch as one argument, with its inputs a level below."""

    def __init__(self) -> None:
        super().__init__()
        self.words = Words()

    def forward(self, batch: Any) -> Any:
        return self.words(batch["text"]["ids"], batch["text"]["attention_mask"])


def test_a_batch_that_is_one_argument_of_several_levels() -> None:
    def step(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        labels = batch.pop("labels")
        return nn.CrossEntropyLoss()(model({"text": batch})["logits"], labels)

    inputs, labels = _inputs()
    torch.manual_seed(0)
    trace = _run(step, ({"text": inputs}, labels), _Whole())
    np.testing.assert_array_equal(trace.times_seen, TIMES)
    expected = _run(_outer, (inputs, labels))
    np.testing.assert_allclose(trace.pair_sum, expected.pair_sum, rtol=1e-4, atol=1e-5)


def test_rows_without_a_mask_are_recognised_by_what_collate_adds() -> None:
    """Zeros at the end, which the model masks by itself."""

    def step(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        return nn.CrossEntropyLoss()(model(batch["ids"])["logits"], batch["labels"])

    trace = _run(step, DataLoader(_rows(), collate_fn=_pair))
    np.testing.assert_array_equal(trace.times_seen, TIMES)
    np.testing.assert_allclose(trace.pair_sum, _run(_outer, _padded()).pair_sum, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_of_the_model_may_be_scaled_in_place(fused: bool) -> None:
    def step(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        loss = model(**batch)["loss"]
        loss *= 0.5
        return loss

    def halved(outputs: Any, targets: Any) -> Any:
        return 0.5 * outputs["loss"]

    values = [
        _run(step, _padded(), fused=fused, norm=9.0, criterion=criterion).pair_sum for criterion in (None, halved)
    ]
    np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-7)
    assert np.abs(values[0] - _run(_inner, _padded(), norm=9.0).pair_sum).max() > 0.001


def test_padding_that_a_mask_hides_does_not_matter() -> None:
    for fused in (False, True):
        trace = _run(_inner, _padded(), Words(padding_idx=0), fused=fused)
        np.testing.assert_array_equal(trace.times_seen, TIMES)


def test_padding_that_gets_a_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Embedding\(20, 6, padding_idx=0\) gets gradients at positions with its"):
        _run(_inner, _padded(), Words(padding_idx=0, masked=False))


class _Tagger(Words):
    """A class for each word. `tokens`: the mean is over all words of the batch, else over those of a row."""

    def __init__(self, tokens: bool) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, ids: Any, attention_mask: Any, labels: Any = None, items: Any = None) -> Any:
        logits = self.head(torch.tanh(self.table(ids))).transpose(1, 2)
        values = functional.cross_entropy(logits, ids % 3, reduction="none") * attention_mask
        if items is not None:
            return {"loss": values.sum() / items}
        if self.tokens:
            return {"loss": values.sum() / attention_mask.sum()}
        return {"loss": (values.sum(1) / attention_mask.sum(1)).mean()}


def test_a_mean_over_the_words_of_a_batch_is_refused() -> None:
    assert _run(_inner, _padded(), _Tagger(tokens=False)).steps == 2
    with pytest.raises(ValueError, match=r"loss is neither the mean nor the sum|own loss over several rows is neither"):
        _run(_inner, _padded(), _Tagger(tokens=True))


def test_a_sum_divided_by_a_number_of_the_batch_is_refused() -> None:
    def step(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        return model(**batch, items=int(batch["attention_mask"].sum()))["loss"]

    for fused in (False, True):
        with pytest.raises(ValueError, match=r"(?s)model's (own )?loss .*|the sum of the model's own loss .*`items`"):
            _run(step, _padded(), _Tagger(tokens=True), fused=fused)


def _with_penalty(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    outputs = model(**batch)
    return outputs["loss"] + 0.1 * outputs["logits"].square().mean()


def _curved(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    return model(**batch)["loss"] ** 2


class _Places(Words):
    """Looks its positions up once for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(9, 6)

    def forward(self, ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        values = torch.tanh(self.table(ids) + self.places(torch.arange(ids.shape[1])[None]))
        return {"loss": functional.cross_entropy(self.head((values * attention_mask[..., None]).sum(1)), labels)}


def _first(rows: Any) -> dict[str, torch.Tensor]:
    return {"ids": _padded(rows)["ids"]}


@pytest.mark.parametrize(
    ("step", "candidates", "module", "message"),
    [
        (_with_penalty, _padded, None, "the model's own loss is only a part of the loss"),
        (_curved, _padded, None, "goes back from another function of the model's own loss"),
        (_inner, lambda: _first(_rows()), None, "the loop passes the model `attention_mask`, a value for each row"),
        (_inner, lambda: {"words": _padded()["ids"]}, None, "none of their inputs is passed to the model, which gets"),
        (_outer, lambda: ({"ids": _inputs()[0]["ids"], "more": torch.zeros(ROWS)}, _inputs()[1]), None,
         "the loop does not pass the model `more`"),
        (_inner, _padded, _Places, r"per-sample gradients of the rows of the batch, 5, got 1 of places\.weight"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded_is_named_in_the_first_step(
    step: Any, candidates: Any, module: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _run(step, candidates(), None if module is None else module())


@pytest.mark.parametrize(
    ("candidates", "error", "message"),
    [
        (lambda: DataLoader(_rows(), batch_size=2, collate_fn=_collate), ValueError, "batch_size=1 and shuffle=False"),
        (lambda: DataLoader(_rows(), shuffle=True, collate_fn=_collate), ValueError, "got batch_size=1 and RandomSam"),
        (lambda: DataLoader(["a", "b"]), TypeError, r"`candidates\[0\]` must be a mapping or a pair"),
        (lambda: {"ids": torch.zeros(3, 2), "labels": torch.zeros(2)}, ValueError, "as many inputs as targets"),
        (lambda: {"ids": "text"}, TypeError, r"`candidates\['ids'\]` must be a tensor or an array of numbers"),
    ],
)
def test_candidates_of_another_form_are_refused(candidates: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _run(_inner, candidates())


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_a_criterion_that_is_not_the_loops_is_found_by_a_candidate_in_the_batch(factor: float) -> None:
    def whole(outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs["logits"], targets)

    def step(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        return whole(model(batch["ids"], batch["attention_mask"]), batch["labels"]) * factor

    if factor == 1:
        assert _run(step, _inputs(), criterion=whole).steps == 2
        return
    with pytest.raises(ValueError, match="the gradient of candidate 0 has another norm"):
        _run(step, _inputs(), criterion=whole)


X = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])


def _record(
    candidates: Any, batches: list[tuple[list[int], list[int]]], *, named: bool = False, mode: str = "hooks",
    x: torch.Tensor = X, **arguments: Any,
) -> Any:  # fmt: skip
    """A step for each (rows, targets). named: the loop calls a function, so that its targets are not seen."""
    if mode == "ghost":
        module, optimizer, loss, _ = private(grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss())
    else:
        module, optimizer, _ = private()
        loss = functional.cross_entropy if named else nn.CrossEntropyLoss()
    criterion = functional.cross_entropy if named else None
    with leakcore.record(optimizer, candidates=candidates, criterion=criterion, **arguments) as recorder:
        for rows, targets in batches:
            optimizer.zero_grad()
            loss(module(x[rows]), torch.tensor(targets)).backward()
            optimizer.step()
    return recorder.trace()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_row_with_a_candidates_inputs_and_another_target_is_another_row(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the candidate's batch, in another, and before its first: not counted as seen, nor as the candidate."""
    batches = [([0, 1, 2, 0], [0, 1, 2, 1]), ([3, 3, 4], [1, 0, 1]), ([5, 6], [0, 0])]
    trace = _record((X[:6], Y[:6]), batches, mode=mode)
    np.testing.assert_array_equal(trace.times_seen, [1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(trace.members, [True] * 5 + [False])
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "the target of row 3 is 0, and the loop passes the loss 1 for it, or this is another row" in said
    plain = _record((X[:6], Y[:6]), [([0, 1, 2, 7], [0, 1, 2, 1]), ([8, 3, 4], [1, 0, 1]), ([9, 6], [0, 0])], mode=mode)
    np.testing.assert_array_equal(plain.times_seen, trace.times_seen)


def test_candidates_with_equal_inputs_and_other_targets_are_told_apart() -> None:
    x = X[:6].clone()
    x[3] = x[1]
    trace = _record((x, Y[:6]), [([0, 1], [0, 1]), ([1, 2], [0, 2]), ([1, 1], [1, 0]), ([1, 4], [2, 1])])
    np.testing.assert_array_equal(trace.times_seen, [1, 2, 1, 2, 1, 0])


def test_candidates_with_equal_inputs_are_refused_where_targets_are_not_seen() -> None:
    x = X[:6].clone()
    x[3] = x[1]
    with pytest.raises(ValueError, match=r"rows 1 and 3 have equal inputs, .* targets.* cannot be seen in the loop"):
        _record((x, Y[:6]), [([0, 4], [0, 1])], named=True)


@pytest.mark.parametrize("named", [False, True])
def test_candidates_with_equal_inputs_and_targets_are_refused(named: bool) -> None:
    x, y = X[:6].clone(), Y[:6].clone()
    x[3], y[3] = x[1], y[1]
    with pytest.raises(ValueError, match="rows 1 and 3 have equal inputs, and equal targets"):
        _record((x, y), [([0, 4], [0, 1])], named=named)


def test_a_candidate_twice_in_a_batch_is_seen_once() -> None:
    trace = _record((X[:3], Y[:3]), [([0, 0, 1, 5], [0, 0, 1, 2]), ([0], [0])])
    np.testing.assert_array_equal(trace.times_seen, [2, 1, 0])
    np.testing.assert_array_equal(trace.batch_rows, [4, 1])


def test_a_row_equal_to_a_candidate_that_is_not_a_member_is_another_row(caplog: pytest.LogCaptureFixture) -> None:
    """By the caller's word; where that is wrong the warning says it."""
    members = np.array([True, True, False])
    trace = _record((X[:3], Y[:3]), [([0, 2, 5], [0, 2, 2]), ([1, 2], [1, 2])], members=members)
    np.testing.assert_array_equal(trace.times_seen, [1, 1, 0])
    np.testing.assert_array_equal(trace.members, members)
    (said,) = [r.getMessage() for r in caplog.records]
    assert "candidate 2 is not among the members, but a batch has an equal row" in said


@pytest.mark.parametrize("wrong", [[(t + 1) % 3 for t in Y.tolist()], [t if t == 0 else 3 - t for t in Y.tolist()]])
def test_targets_that_are_all_wrong_are_refused(wrong: list[int]) -> None:
    """In the first step where none is right (here: each a class too far); else once chance is excluded (two classes
    that are swapped)."""
    many = [([*range(k, 12, 2)], [wrong[i] for i in range(k, 12, 2)]) for k in (0, 1) * 20]
    with pytest.raises(ValueError, match=r"target of row \d+ is \d, and the loop passes the loss \d for it, and so"):
        _record((X, Y), many, members=np.ones(12, dtype=bool), sampling=0.5)


def test_in_the_first_step_targets_of_another_form_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the target of row 0 is \[0.0, 0.0, 0.0\], and the loop passes the loss 0"):
        _record((X[:6], torch.zeros(6, 3)), [([0, 1], [0, 1])])


def test_rows_are_known_by_what_went_in_though_the_model_writes_into_them() -> None:
    module, optimizer, _ = private()
    x = X.clone()
    module._module.register_forward_pre_hook(lambda _, inputs: (inputs[0].mul_(2),))
    with leakcore.record(optimizer, candidates=(X[:3], Y[:3])) as recorder:
        nn.CrossEntropyLoss()(module(x[:2]), Y[:2]).backward()
        optimizer.step()
    np.testing.assert_array_equal(recorder.trace().times_seen, [1, 1, 0])
