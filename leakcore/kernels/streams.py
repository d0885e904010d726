"""The registry of random numbers: every use in this package is one member, and no two members share a draw."""

from __future__ import annotations

import enum

from leakcore._base import validate

STEP_BITS = 24
"""Steps of a purpose; the purpose is the stream word's leading byte."""


@enum.unique
class Stream(enum.IntEnum):
    """What a random number is for. No two members share a draw under one seed.

    A draw is a pure function of (seed, stream word, row, number of the draw); the stream word is the member's value
    plus the step. Each member documents its steps and rows; where it does not, both are 0. `CALLER` is for your own
    draws.

    Attributes:
        steps: how many steps the member has, that is the stream words that no other member reaches.

    Example:
        >>> from leakcore import kernels
        >>> kernels.Stream.CALLER.steps == 2**24
        True
    """

    steps: int

    def __new__(cls, purpose: int, first: int = 0, steps: int | None = None) -> Stream:
        """Words purpose·2²⁴ + first, …; steps: how many, all of the purpose's unless given."""
        word = purpose << STEP_BITS | first
        member = int.__new__(cls, word)
        member._value_ = word
        member.steps = 2**STEP_BITS - first if steps is None else steps
        return member

    # Members whose words share a leading byte keep the words that they had before they had names.

    # Kernels and mechanisms. What native code draws stands in csrc/core/rng/streams.h as well; a test compares the two.
    MIXTURE = 1, 0, 2
    """Normals of the Gaussian mixture, T ≥ 2. Step: 0 under the null, 1 under the alternative. Row: the sample."""
    MIXTURE_PICK = 6, 0, 2
    """Which component a mixture step takes. Step: 0 the leading 32 bits, 1 the next 32. Row: the sample."""
    MIXTURE_ONE = 8, 0, 2
    """As `MIXTURE`, where T = 1: sample i takes draw i % 4 of row i // 4, so that none is wasted."""
    MIXTURE_ONE_PICK = 9, 0, 2
    """As `MIXTURE_PICK`, likewise."""
    ALLOCATION = 78, 0, 2
    """Normals of random allocation: epoch e of b bins (columns of a factor) takes draws e·b to (e + 1)·b − 1. Step: 0
    under the null, 1 under the alternative. Row: the sample."""
    ALLOCATION_PICK = 79, 0, 1
    """Which bin the target is in, where their noise is correlated: draws 2e and 2e + 1 for epoch e. Row: the sample."""
    FIXED_BATCH = 6, 2, 2
    """`mechanisms.FixedSize`. Step: 0 under the null, 1 under the alternative. Row: the sample."""
    CLIP_NOISE = 2
    """Noise of DP-SGD: of `clip_and_noise`, of training and of `defenses.DPSGD`, which are one mechanism. Step: the
    training's. Row: the run. Draw: the column."""
    LAPLACE = 10
    """Noise of the Laplace mechanism: entry i takes draws 2i and 2i + 1. Step: the release."""
    IMPORTANCE_UPPER = 13
    """Samples of the tilted loss for upper limits. Step: the law. Row: the chunk."""
    IMPORTANCE_LOWER = 14
    """Samples of the tilted loss for lower limits. Step: the law. Row: the chunk."""
    FANO = 15, 0, 1
    """Draws of a mixture's information (`bounds.fano_advantage`). Row: the first draw of the chunk."""
    SCORE_SPLIT = 16, 0, 1
    """Which trials of an audit choose the threshold and which are counted."""
    SCORE_TIES = 16, 1, 1
    """The order of equal scores in a test by their ranks."""
    GUESS_TIES = 16, 2, 1
    """The order of equal scores where `attacks.membership.guess` takes the clearest."""
    COIN_TIES = 16, 3, 1
    """The order of equal scores where an audit guesses at coins."""
    PLANTED_COINS = 92, 0, 1
    """Which planted canaries are in the data, and the coordinates of all."""
    RANK_CUTS = 90, 0, 1
    """Where the ranks of a test of scores cut the other side's distribution, simulated."""
    RANK_SCORES = 91, 0, 1
    """How many scores of the likelier side fall between such cuts, simulated."""

    # Training of many runs.
    INIT = 3, 0, 1
    """Initial parameters, uniform. Row: the run."""
    INIT_GLOROT = 3, 1, 1
    """Initial parameters, normal. Row: the run."""
    INIT_NOISE = 3, 2, 1
    """Noise of each run's own around them. Row: the run."""
    BATCH = 4
    """Which rows are in a batch. Step: the training's or, where batches are shuffled, the epoch. Row: the run."""

    CANDIDATE_DRAWS = 77
    """Seeds of what a user's model draws where a recorder takes a candidate's gradient. Step: the training's, modulo
    2²⁴. Row: the candidate."""

    # Coins and choices of games and audits. Nothing but the one function of each draws from these.
    MEMBERSHIP_COINS = 5, 4, 1
    """Which rows a model of `attacks.membership.play` is trained on. Row: the run."""
    CANARY_COINS = 5, 5, 1
    """Which canaries are in. Row: the run."""
    CANARY_DIRECTIONS = 5, 6, 1
    """The canaries' features. Row: the canary."""
    CANARY_LABELS = 5, 7, 1
    """The canaries' labels. Row: the canary."""
    GAME = 5, 1, 1
    """Candidates and target of the reconstruction game. Row: the run."""
    POISONED_ROWS = 5, 3, 1
    """The order in which rows are replaced by poison."""
    LABEL_BATCHES = 5, 2, 1
    """Batches of an audit's label study."""
    LABEL_RELEASES = 7
    """Noise of repeated releases of one gradient. Step: the batch. Row: the release."""
    RELEASED_LAYERS = 17, 0, 1
    """Noise of an audit's study of layers."""
    SELFTEST_SCORES = 18
    """Trials of the self-test. Step: the case."""
    SELFTEST_SPLITS = 19
    """Seeds of the self-test's bounds. Step: the case. Row: the audit."""

    # Attacks.
    GRADIENT_STARTS = 20, 0, 1
    """Where `attacks.gradient` starts. Row: the run."""
    INVERSION_STARTS = 21, 0, 1
    """Where `attacks.inversion.invert` starts. Row: the restart."""
    INVERSION_LABELS = 22, 0, 1
    """The labels that it starts with. Row: the restart."""
    RECONSTRUCTOR_INIT = 23, 0, 1
    """Initial weights of the reconstructor network."""
    RECONSTRUCTOR_ORDER = 24
    """The order of its rows. Step: the epoch."""
    RECONSTRUCTOR_NOISE = 93, 0, 1
    """Seed of the noise that its shadow models get."""
    MALICIOUS_FEATURES = 11, 0, 1
    """Features that an attacker makes (`attacks.labels.malicious_input`)."""
    TENSOR_WEIGHTS = 25, 0, 1
    """`attacks.tensor.GaussianWeights`. Row: the neuron."""
    TENSOR_STARTS = 26, 0, 1
    """Contractions and starts of the tensor decomposition."""
    ATTRIBUTE_PAIRS = 27, 0, 1
    """Pairs of rows with and without an attribute."""
    ATTRIBUTE_FOREST = 28, 0, 1
    """Seed of the forest that names attributes."""
    INPUT_PROBE = 29, 0, 1
    """An input that shows which layers a model calls, in which order."""
    SLOPE_PROBE = 30, 0, 1
    """Weights of outputs by which a layer's use is checked."""
    REDRAW_PROBE = 31
    """Seeds of torch under which a model's output must stay the same. Step: the repetition."""
    NOISY_COPIES = 94, 0, 1
    """Noise of the copies that a label-only attack asks about. Row: the copy."""
    QUANTILE_TREES = 95, 0, 1
    """Seed of the boosted trees of `attacks.membership.QuantileRegression`."""

    # Leakage.
    V_BALANCE = 32, 0, 1
    """Units drawn from the larger classes."""
    V_PERMUTATIONS = 33
    """Permuted labels of the null. Step: the permutation."""
    V_FOLDS = 34
    """Folds of a cross-validation. Step: the permutation, 0 for the labels as they are."""
    FAMILY_FOREST = 35, 0, 1
    """Seed of the forest of `leakage.RandomForest`."""
    FAMILY_MLP = 36, 0, 1
    """Initial weights of `leakage.MLP`."""
    MUTUAL_ORDER = 37, 0, 1
    """Which rows train, choose and measure in `leakage.mutual_information`."""
    MUTUAL_TRAINING = 38
    """Pairing, initial weights and orders of a training. Step: the permutation, 0 for the pairs as they are."""
    SENSITIVITY_PROBES = 39, 0, 1
    """Random signs of Hutchinson's estimator."""
    ORIGINAL_STARTS = 40, 0, 1
    """Where the inversion behind `leakage.v_information_original` starts."""
    LAYER_COLUMNS = 41, 0, 1
    """Parameters that stand for a larger layer in `leakage.by_layer`."""
    SUBSPACE_SUBSET = 42, 0, 1
    """Gradients drawn from the larger set of `leakage.subspace_distance`."""
    SUBSPACE_PERMUTATIONS = 43
    """Its permutations. Step: the permutation."""

    # Defences.
    DEFENSE_GAUSSIAN = 12
    """Noise of `defenses.GaussianNoise`. Step: the release. Row: the row."""
    DEFENSE_LAPLACE = 44
    """Noise of `defenses.Laplace`, likewise."""
    DEFENSE_PARTS = 45, 0, 1
    """Seeds of a composition's parts after the first. Row: the part."""
    DEFENSE_LOCAL_STEPS = 47
    """Seeds of what acts within each of several local steps. Step: the local step."""
    DEFENSE_DROPOUT = 48
    """Seeds of dropout's masks. Step: the local step. Row: the layer."""
    DEFENSE_MASKS = 49
    """Dropout's masks. Step: the release. Row: the sample."""
    DEFENDED_GAME = 50
    """Seeds of a defended game's releases. Step: the defence's part. Row: the run."""
    DEFENDED_GAME_MASKS = 51
    """Dropout's masks in a defended game. Step: the training's. Row: the run."""

    # Data and models.
    DATA_ORDER = 5, 0, 1
    """The shuffle of `Dataset.split`."""
    UNIFORM_NOISE = 5, 2**23, 1
    """`datasets.uniform_noise`. Row: the row."""
    WORD_VECTORS = 52, 0, 1
    """A word's vector. Row: the word's checksum."""
    EXTRACTOR_INIT = 53, 0, 1
    """Initial weights of the extractor of an audited claim."""
    EXTRACTOR_HEAD = 54, 0, 1
    """Initial weights of the head of `models.train_extractor`."""
    EXTRACTOR_ORDER = 55
    """Its order of images and which are mirrored. Step: the epoch."""
    EXTRACTOR_DROPOUT = 56, 0, 1
    """What the extractor draws in training."""
    DLG_LENET = 57, 0, 1
    """Initial weights of `models.dlg_lenet`."""
    COMMAND_ROWS = 58, 0, 1
    """Rows that `leakcore attack inversion` attacks."""
    COMMAND_MODEL = 59, 0, 1
    """Initial weights of the model that it attacks."""
    FACTORY_MODEL = 75, 0, 1
    """Initial weights of the model that `leakcore leakage` measures."""
    FACTORY_MODELS = 96, 0, 1
    """Initial weights of the models that `leakcore attack membership` attacks, all of them replaced."""

    # Experiments.
    EXPERIMENT_EXTRACTOR = 76, 0, 1
    """Initial weights of the extractor behind the reconstruction figures."""
    GRADIENT_TARGETS = 60, 0, 1
    """Targets of the gradient attack's figures."""
    SPREAD_CALLS = 61
    """Seeds of the calls whose spread is measured. Step: the series. Row: the call."""
    BOUND_GROWTH = 5, 2**22, 1
    """Orders of batches. Row: the order."""
    OPACUS_NOISE = 62, 0, 1
    """Noise of Opacus's optimizer. Row: the run."""
    TABLE1_NETWORKS = 63, 0, 1
    """Seeds of the lecture's networks. Row: the network."""
    TABLE1_ROWS = 64, 0, 1
    """Their rows and labels."""
    DEFENCES_NETWORKS = 82, 0, 1
    """Seeds of the networks under the lecture's defences. Row: the network."""
    DEFENCES_ROWS = 83, 0, 1
    """Rows that their attacks are after."""
    DEFENCES_MODEL = 84, 0, 1
    """Initial weights of the networks on digits."""
    DEFENCES_TRAINING = 85, 0, 1
    """Which rows train. Row: 0 the split, 1 the batches."""
    LECTURE_LAPLACE = 65, 0, 1
    """Networks and inputs of the lecture's Laplace bounds. Row: neurons·2³² + inputs."""
    STUDY_NETWORK = 66, 0, 1
    """Initial weights of a network under study."""
    STUDY_ORDER = 67, 0, 1
    """The order of the rows that train it."""
    STUDY_INPUTS = 68, 0, 1
    """Inputs to invert or to differentiate at."""
    STUDY_COLUMNS = 69, 0, 1
    """Parameters that stand for a larger layer."""
    FIGURE3_ROWS = 70, 0, 1
    """Rows of leakage-fig3."""
    FIGURE3_NETWORK = 71, 0, 1
    """Its network's initial weights."""
    FIGURE9_OTHERS = 72, 0, 1
    """The other gradients of leakage-fig9."""
    FIGURE11_PAIRS = 73
    """Noise on the pairs of layers of leakage-fig11. Step: the noise level."""
    FIGURE11_LAYERS = 74
    """Noise on its single layers. Step: the noise level."""
    COMPOSITION_PART = 80, 0, 1
    """Seeds of the parts of a composed mechanism. Row: the part."""
    CLAIMED_PAIR = 81, 0, 2
    """Outcomes of the pair of an (epsilon, delta) claim. Step: 0 under the null, 1 under the alternative. Row: the
    sample."""

    CALLER = 255
    """For callers: nothing in leakcore draws from it."""


def stream_word(purpose: Stream | str, step: int) -> int:
    """The member's word at this step; errors name what is allowed."""
    member = Stream.__members__.get(purpose.upper()) if isinstance(purpose, str) else purpose
    if not isinstance(member, Stream) or (isinstance(purpose, str) and purpose != purpose.lower()):
        error = ValueError if isinstance(purpose, str) else TypeError
        raise error(
            f"`purpose` must be a leakcore.kernels.Stream or its name in lower case, got {purpose!r}; 'caller' is yours"
        )
    return int(member) + validate.integer(0, member.steps - 1, step=step)


def step_in_range(**step: int) -> int:
    """A step that fits the stream word's 24 bits."""
    return validate.integer(0, 2**STEP_BITS - 1, **step)
