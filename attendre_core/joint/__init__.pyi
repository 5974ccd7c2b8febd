from attendre_core.joint.beside import Beside as Beside
from attendre_core.joint.beside import Joined as Joined
from attendre_core.joint.beside import join as join
from attendre_core.joint.soft_mask import soften as soften
