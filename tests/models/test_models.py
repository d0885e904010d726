from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from leakcore import dpsgd, models


@pytest.mark.parametrize(
    ("factory", "sizes", "activation"),
    [
        (models.digits_mlp, (64, 10, 10), torch.nn.ELU),
        (models.mnist_mlp, (784, 10, 10), torch.nn.ELU),
        (models.breast_cancer_mlp, (30, 64, 1), torch.nn.ReLU),
    ],
)
def test_the_papers_models(factory, sizes, activation) -> None:
    module = factory()
    assert [type(m) for m in module] == [torch.nn.Linear, activation, torch.nn.Linear]
    assert sum(p.numel() for p in module.parameters()) == models.num_parameters(sizes)
    assert module(torch.zeros(5, sizes[0])).shape == (5, sizes[-1])


@pytest.mark.parametrize("activation", models.ACTIVATIONS)
def test_every_activation_by_name(activation) -> None:
    module = models.mlp((2, 3, 4, 1), activation)
    assert type(module[1]).__name__.lower() == activation.replace("_", "")
    assert len(module) == 5


def test_two_sizes_are_a_linear_model() -> None:
    assert [type(m) for m in models.mlp((3, 2))] == [torch.nn.Linear]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((3,),), ValueError, r"`layers` must be \(inputs, hidden..., outputs\), at least two sizes, got \(3,\)"),
        (((3, 0),), ValueError, r"`layers\[1\]` must be at least 1, got 0"),
        (((3, 2.5),), TypeError, r"`layers\[1\]` must be an integer, got 2.5"),
        (((3, 2), "swish"), ValueError, r"`activation` must be 'elu', 'relu', 'leaky_relu',.*, got 'swish'"),
    ],
)
def test_errors(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        models.mlp(*arguments)


def test_importing_does_not_import_torch() -> None:
    code = "import sys; from leakcore import models, datasets, dpsgd, attacks; attacks.prior_aware; datasets.Dataset; "
    code += "models.num_parameters((3, 2)); assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_wrn_28_10_has_its_36_5_million_parameters_and_the_layout_of_the_paper() -> None:
    with torch.device("meta"):
        module = models.wrn_28_10()
    assert sum(p.numel() for p in module.parameters()) == 36_479_194
    assert sum(name.endswith("shortcut.weight") for name in module.state_dict()) == 3
    assert not any("running" in name for name in module.state_dict()), "batch norm would mix samples"


def test_a_small_wide_resnet_runs_and_a_sample_does_not_see_the_others() -> None:
    module = models.wide_resnet(10, 1, num_classes=None)
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert module(x).shape == (3, 64)
    torch.testing.assert_close(module(x)[1:2], module(x[1:2]), rtol=1e-4, atol=1e-5)
    assert models.conv_extractor(8)(x).shape == (3, 32)
    assert models.conv_extractor(8, cells=2)(x).shape == (3, 128)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.wide_resnet(27), "`depth` must be 6k \\+ 4, got 27"),
        (lambda: models.wide_resnet(28, 0), "`width` must be at least 1, got 0"),
        (lambda: models.wide_resnet(28, 1, groups=3), "`groups` must divide 16, got 3"),
        (lambda: models.dlg_lenet(shape=(3, 0, 8)), r"`shape\[1\]` must be at least 1, got 0"),
        (lambda: models.dlg_lenet(shape=()), r"`shape` must be \(channels, height, width\), got \(\)"),
        (lambda: models.conv_extractor(6), "`width` must be a multiple of 4 .*, got 6"),
    ],
)
def test_bad_shapes_of_networks(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_weights_survive_a_safetensors_file(tmp_path) -> None:
    first, second = models.conv_extractor(8), models.conv_extractor(8)
    models.save_safetensors(first, tmp_path / "w.safetensors")
    models.load_safetensors(second, tmp_path / "w.safetensors")
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]
    half = {name: p.to(torch.bfloat16) for name, p in first.state_dict().items()}
    models.save_safetensors(half, tmp_path / "h.safetensors")
    models.load_safetensors(second, tmp_path / "h.safetensors")
    assert next(second.parameters()).dtype == torch.float32
    odd = {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5), "flag": torch.tensor([True]), "n": torch.arange(3)}
    models.save_safetensors(odd, tmp_path / "o.safetensors")
    back = models.read_safetensors(tmp_path / "o.safetensors")
    assert all(torch.equal(odd[k], back[k]) and odd[k].dtype == back[k].dtype for k in odd)


def test_a_file_written_by_hand_is_read(tmp_path) -> None:
    header = b'{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    raw = len(header).to_bytes(8, "little") + header + b"\x00\x00\x80\x3f\x00\x00\x00\x40"
    (tmp_path / "w").write_bytes(raw)
    assert models.read_safetensors(tmp_path / "w")["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"abc", "3 bytes are too few for a safetensors file"),
        ((1000).to_bytes(8, "little") + b"{}", "its header claims 1000 bytes of 10"),
        ((2).to_bytes(8, "little") + b"[]", "its header is not a JSON object"),
        ((3).to_bytes(8, "little") + b"{a}", "its header is not a JSON object"),
        ((9).to_bytes(8, "little") + b'{"w":{}}\n', "w: entry {} has no known dtype"),
        (
            (52).to_bytes(8, "little") + b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'[:52].ljust(52) + b"",
            "not a JSON object",
        ),
        (
            (54).to_bytes(8, "little") + b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' + b"1234",
            r"w: offsets \[0, 8\] do not hold \[2\] of F32",
        ),
    ],
)
def test_broken_files_are_refused(tmp_path, raw, message) -> None:
    (tmp_path / "w").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        models.read_safetensors(tmp_path / "w")


def test_weights_that_do_not_fit_are_listed_and_nothing_is_loaded(tmp_path) -> None:
    module = models.mlp((3, 2, 1))
    before = [p.detach().clone() for p in module.parameters()]
    weights = dict(models.mlp((3, 2, 1)).state_dict())
    weights["0.weight"] = torch.zeros(2, 4)
    weights["0.bias"] = torch.zeros(2, dtype=torch.int64)
    weights["extra"] = weights.pop("2.bias")
    models.save_safetensors(weights, tmp_path / "w")
    with pytest.raises(
        ValueError,
        match=r"missing 2.bias; unexpected extra; 0.bias must be of type .*, got torch.int64; .*, got \(2, 4\)",
    ):
        models.load_safetensors(module, tmp_path / "w")
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_an_extractor_learns_and_its_features_feed_an_ensemble() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 120)
    images = rng.random((120, 3, 16, 16)) * 0.3
    images[labels == 1, :, ::2] += 0.7
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        extractor = models.conv_extractor(8)
    before = torch.get_rng_state()
    accuracy = models.train_extractor(extractor, images, labels, epochs=5, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert accuracy > 0.9
    assert extractor.training
    features = models.extract_features(extractor, images)
    assert features.shape == (120, 32)
    assert not np.array_equal(features[0], features[1])
    run = dpsgd.Ensemble((32, 2), noise_multiplier=0, max_grad_norm=1, learning_rate=2, steps=40, seed=0).run(
        features[:80], labels[:80], runs=1
    )
    assert run.accuracy(features[80:], labels[80:])[0] > 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((2, 3, 8))}, r"`images` must be .*, got shape \(2, 3, 8\)"),
        ({"labels": [0]}, r"`labels` must be .*, got shape \(1,\)"),
        ({"labels": [0, -1]}, "must be one integer"),
        ({"images": np.full((2, 3, 8, 8), np.nan)}, r"`images` must be finite in float32, got nan at \[0, 0, 0, 0\]"),
        ({"epochs": 0}, "`epochs` must be at least 1, got 0"),
        ({"extractor": torch.nn.Identity()}, r"`extractor` must return \(rows, features\), got shape"),
    ],
)
def test_bad_input_to_training(change, message) -> None:
    good = {"extractor": models.conv_extractor(4), "images": np.zeros((2, 3, 8, 8)), "labels": [0, 1], "seed": 0}
    with pytest.raises(ValueError, match=message):
        models.train_extractor(**(good | change))


def test_the_format_s_own_name_and_numbers_beyond_the_type_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="__metadata__"):
        models.save_safetensors({"__metadata__": torch.zeros(1)}, tmp_path / "w")
    module = torch.nn.Linear(1, 2)
    before = module.bias.detach().clone()
    wide = {"weight": torch.full((2, 1), 1e60, dtype=torch.float64), "bias": torch.ones(2)}
    models.save_safetensors(wide, tmp_path / "w")
    with pytest.raises(ValueError, match=r"weight holds numbers beyond torch.float32"):
        models.load_safetensors(module, tmp_path / "w")
    assert torch.equal(module.bias, before)


def test_small_features_are_standardised_and_constant_ones_stay() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :4] * torch.tensor([1.0, 1e-4, 0.0, 1e-12]) + torch.tensor([0.0, 0.0, 0.1, 1.0])

    images = np.random.default_rng(0).random((500, 1, 2, 2))
    got = models.extract_features(models.standardised(Scaled(), images), images)
    np.testing.assert_allclose(got.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(got.var(axis=0), [1, 1, 0, 0], atol=1e-4)


def _dropping() -> torch.nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 6), torch.nn.Dropout(0.5)).eval()


def test_dropout_draws_by_the_seed_and_an_interrupt_leaves_no_trace() -> None:
    images, labels = np.random.default_rng(0).random((40, 1, 2, 2)), np.arange(40) % 2
    weights = []
    for outer, seed in ((0, 1), (7, 1), (0, 2)):
        extractor = _dropping()
        torch.manual_seed(outer)
        state = torch.get_rng_state()
        models.train_extractor(extractor, images, labels, epochs=1, seed=seed)
        assert torch.equal(state, torch.get_rng_state())
        weights.append(extractor[1].weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    extractor = _dropping()
    with pytest.raises(KeyboardInterrupt):
        models.train_extractor(extractor, images, labels, epochs=2, seed=1, progress=stop)
    assert not any(part.training for part in extractor.modules())
    assert all(p.grad is None for p in extractor.parameters())


def test_extractors_that_are_none_are_named() -> None:
    with pytest.raises(TypeError, match="`extractor` must be of type Module, got str"):
        models.extract_features("x", np.zeros((1, 1, 2, 2)))
    with pytest.raises(TypeError, match=r"`extractor` must be float32, .* got torch.float64 of its parameter 1.weight"):
        models.extract_features(_dropping().double(), np.zeros((1, 1, 2, 2)))
    with pytest.raises(TypeError, match="`images` must be an array of real numbers, got <U1"):
        models.extract_features(_dropping(), "x")
