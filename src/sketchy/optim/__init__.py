"""Drop-in torch optimizers with sketched second moments."""

from sketchy.optim.create import create_optimizer as create_optimizer
from sketchy.optim.options import OPTIONS as OPTIONS
from sketchy.optim.routing import param_groups as param_groups
from sketchy.optim.scalars import log as log
from sketchy.optim.shampoo import Shampoo as Shampoo
from sketchy.optim.sketchy_adagrad import SketchyAdagrad as SketchyAdagrad
from sketchy.optim.sketchy_shampoo import PAPER as PAPER
from sketchy.optim.sketchy_shampoo import SketchyShampoo as SketchyShampoo
from sketchy.optim.sketchy_soap import SMALL as SMALL
from sketchy.optim.sketchy_soap import SketchySOAP as SketchySOAP
