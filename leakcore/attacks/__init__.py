"""What an attacker can do: each attack is a pure function, or a game that repeats one and counts its successes.

Whatever takes an argument that is not allowed raises a ValueError or TypeError that names the argument.
"""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.attacks import attributes as attributes
    from leakcore.attacks import imprint as imprint
    from leakcore.attacks import inversion as inversion
    from leakcore.attacks import labels as labels
    from leakcore.attacks import membership as membership
    from leakcore.attacks import poisoning as poisoning
    from leakcore.attacks import tensor as tensor
    from leakcore.attacks import text as text
    from leakcore.attacks.inversion.result import ssim as ssim
    from leakcore.attacks.reconstruction.game import GameRules as GameRules
    from leakcore.attacks.reconstruction.game import draw_candidates as draw_candidates
    from leakcore.attacks.reconstruction.game import reconstruction_game as reconstruction_game
    from leakcore.attacks.reconstruction.game import reconstruction_games as reconstruction_games
    from leakcore.attacks.reconstruction.game_result import ReconstructionGame as ReconstructionGame
    from leakcore.attacks.reconstruction.gradient_descent import Descent as Descent
    from leakcore.attacks.reconstruction.gradient_descent import FrozenEmbedding as FrozenEmbedding
    from leakcore.attacks.reconstruction.gradient_descent import GradientReconstruction as GradientReconstruction
    from leakcore.attacks.reconstruction.gradient_descent import gradient as gradient
    from leakcore.attacks.reconstruction.gradient_descent import gradient_loss as gradient_loss
    from leakcore.attacks.reconstruction.prior_aware import PriorAware as PriorAware
    from leakcore.attacks.reconstruction.prior_aware import prior_aware as prior_aware
    from leakcore.attacks.reconstruction.reconstructor import Reconstructor as Reconstructor
    from leakcore.attacks.reconstruction.reconstructor import ReconstructorTraining as ReconstructorTraining
    from leakcore.attacks.reconstruction.reconstructor import reconstructor as reconstructor
    from leakcore.attacks.reconstruction.shadow_model import shadow_models as shadow_models
    from leakcore.attacks.reconstruction.success import UNIFORM_MSE as UNIFORM_MSE
    from leakcore.attacks.reconstruction.success import SuccessRate as SuccessRate
    from leakcore.attacks.reconstruction.success import mean_squared_error as mean_squared_error
    from leakcore.attacks.reconstruction.success import nearest_neighbour_mse as nearest_neighbour_mse
    from leakcore.attacks.reconstruction.success import nearest_prior as nearest_prior
    from leakcore.attacks.reconstruction.success import pixel_success as pixel_success
    from leakcore.attacks.reconstruction.success import pixels_within as pixels_within

_NAMES = {
    "attributes": ".attributes",
    "imprint": ".imprint",
    "inversion": ".inversion",
    "labels": ".labels",
    "membership": ".membership",
    "poisoning": ".poisoning",
    "tensor": ".tensor",
    "text": ".text",
    "Descent": ".reconstruction.gradient_descent",
    "FrozenEmbedding": ".reconstruction.gradient_descent",
    "GradientReconstruction": ".reconstruction.gradient_descent",
    "gradient": ".reconstruction.gradient_descent",
    "gradient_loss": ".reconstruction.gradient_descent",
    "PriorAware": ".reconstruction.prior_aware",
    "prior_aware": ".reconstruction.prior_aware",
    "GameRules": ".reconstruction.game",
    "ReconstructionGame": ".reconstruction.game_result",
    "reconstruction_game": ".reconstruction.game",
    "reconstruction_games": ".reconstruction.game",
    "Reconstructor": ".reconstruction.reconstructor",
    "ReconstructorTraining": ".reconstruction.reconstructor",
    "reconstructor": ".reconstruction.reconstructor",
    "shadow_models": ".reconstruction.shadow_model",
    "UNIFORM_MSE": ".reconstruction.success",
    "SuccessRate": ".reconstruction.success",
    "mean_squared_error": ".reconstruction.success",
    "nearest_neighbour_mse": ".reconstruction.success",
    "nearest_prior": ".reconstruction.success",
    "pixel_success": ".reconstruction.success",
    "pixels_within": ".reconstruction.success",
}
_SHARED = {"draw_candidates": ".reconstruction.game", "ssim": ".inversion.result"}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
