from . import attributes as attributes
from . import imprint as imprint
from . import inversion as inversion
from . import labels as labels
from . import membership as membership
from . import poisoning as poisoning
from . import tensor as tensor
from . import text as text
from .reconstruction.game import GameRules as GameRules
from .reconstruction.game import reconstruction_game as reconstruction_game
from .reconstruction.game import reconstruction_games as reconstruction_games
from .reconstruction.game_result import ReconstructionGame as ReconstructionGame
from .reconstruction.gradient_descent import Descent as Descent
from .reconstruction.gradient_descent import FrozenEmbedding as FrozenEmbedding
from .reconstruction.gradient_descent import GradientReconstruction as GradientReconstruction
from .reconstruction.gradient_descent import gradient as gradient
from .reconstruction.gradient_descent import gradient_loss as gradient_loss
from .reconstruction.prior_aware import PriorAware as PriorAware
from .reconstruction.prior_aware import prior_aware as prior_aware
from .reconstruction.reconstructor import Reconstructor as Reconstructor
from .reconstruction.reconstructor import ReconstructorTraining as ReconstructorTraining
from .reconstruction.reconstructor import reconstructor as reconstructor
from .reconstruction.reconstructor import shadow_models as shadow_models
from .reconstruction.success import UNIFORM_MSE as UNIFORM_MSE
from .reconstruction.success import SuccessRate as SuccessRate
from .reconstruction.success import mean_squared_error as mean_squared_error
from .reconstruction.success import nearest_neighbour_mse as nearest_neighbour_mse
from .reconstruction.success import nearest_prior as nearest_prior
from .reconstruction.success import pixel_success as pixel_success
from .reconstruction.success import pixels_within as pixels_within

"""For leakcore's other packages: no promise to users."""

from .inversion.result import ssim as ssim
from .reconstruction.game import draw_candidates as draw_candidates
